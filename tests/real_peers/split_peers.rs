//! Splits calls of every kind of client in front of a real server that needs three seconds for each element of a list: the
//! server gets one call for each element.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::{Value, json};
use support::peers::install::Peers;
use support::peers::upstream::{PeerServer, Program};
use support::standalone::client::StandaloneClient;
use support::standalone::gate::{GatewayProcess, in_time};

const TOOL: &str = "fetch_pages";
const ELEMENTS: usize = 8;
const PARALLEL: usize = 4;

fn urls() -> Vec<String> {
    (0..ELEMENTS).map(|number| format!("page-{number}")).collect()
}

fn call() -> Value {
    json!({ "name": TOOL, "arguments": { "urls": urls() } })
}

async fn gate(server: &PeerServer, keys: &str) -> GatewayProcess {
    let split = format!("split = {{ argument = \"urls\", parallel = {PARALLEL} }}");
    let upstream = format!("url = \"{}\"\n{keys}\n[[upstreams.up.tools]]\nmatch = \"{TOOL}\"\n{split}\n", server.url());
    GatewayProcess::start(tempfile::tempdir().unwrap(), &upstream).await
}

/// All pages are there, in the order of the list, and as many were fetched side by side as may be: so the whole took about
/// as many times less.
fn is_whole(who: &str, result: &Value) {
    let results = result["structuredContent"]["results"].as_array().unwrap_or_else(|| panic!("{who}: {result}"));
    let pages: Vec<&Value> = results.iter().map(|one| &one["pages"][0]).collect();
    let named: Vec<&str> = pages.iter().map(|page| page["url"].as_str().unwrap()).collect();
    assert_eq!(named, urls(), "{who}");
    assert_eq!(result["content"].as_array().unwrap().len(), ELEMENTS, "{who}");
    let time = |page: &Value, which: &str| page[which].as_f64().unwrap();
    let beside = |page: &Value| {
        let began = time(page, "began");
        pages.iter().filter(|other| time(other, "began") <= began && began < time(other, "ended")).count()
    };
    let most = pages.iter().map(|page| beside(page)).max().unwrap();
    assert_eq!(most, PARALLEL, "{who}: {results:?}");
}

/// A task of 2025-11-25, and its result.
async fn core_task(client: &StandaloneClient) -> Value {
    let mut params = call();
    params["task"] = json!({});
    let (created, _) = client.ask(1, "tools/call", params).await.answer().await;
    let id = created["result"]["task"]["taskId"].clone();
    assert!(id.is_string(), "{created}");
    let (mut answer, _) =
        in_time(async { client.ask(2, "tasks/result", json!({ "taskId": id })).await.answer().await }).await;
    answer["result"].take()
}

#[tokio::test]
async fn a_list_takes_as_many_times_less_as_elements_run_side_by_side() {
    let what = "split-pages";
    let Some(peers) = Peers::find(what) else { return };
    let server = PeerServer::start(Program::FastMcpPages, &peers, what).await.unwrap();
    let gate = gate(&server, "").await;
    let session = StandaloneClient::session(&gate).await;
    let stateless = StandaloneClient::stateless(&gate);
    let plain =
        async |client: &StandaloneClient| client.call(1, TOOL, json!({ "urls": urls() })).await["result"].take();
    is_whole("a session", &plain(&session).await);
    is_whole("a 2026-07-28 client", &plain(&stateless).await);
    let id = stateless.task(1, TOOL, json!({ "urls": urls() })).await;
    is_whole("the extension", &stateless.settled(&id).await["result"]);
    is_whole("tasks of 2025-11-25", &core_task(&session).await);
}

/// SUB-06, SUB-07: each element's result is there as soon as it is, under an id of its own.
#[tokio::test]
async fn a_client_that_knows_subtasks_reads_each_page_when_it_is_there() {
    let what = "split-pages-subtasks";
    let Some(peers) = Peers::find(what) else { return };
    let server = PeerServer::start(Program::FastMcpPages, &peers, what).await.unwrap();
    let gate = gate(&server, "[upstreams.up.tasks]\ndrafts = [\"sep-2268\"]").await;
    let client = StandaloneClient::session(&gate).await;
    let mut params = call();
    params["task"] = json!({});
    let (created, _) = client.ask(1, "tools/call", params).await.answer().await;
    let task = created["result"]["task"].clone();
    let children = task["childTaskIds"].as_array().unwrap_or_else(|| panic!("{created}")).clone();
    assert_eq!(children.len(), ELEMENTS);
    let result = async |id: &Value| {
        let params = json!({ "taskId": id });
        let (mut answer, _) = in_time(async { client.ask(2, "tasks/result", params).await.answer().await }).await;
        answer["result"].take()
    };
    let first = result(&children[0]).await;
    assert_eq!(first["structuredContent"]["pages"][0]["url"], "page-0");
    let (child, _) = client.ask(4, "tasks/get", json!({ "taskId": children[7] })).await.answer().await;
    assert_eq!(child["result"]["parentTaskId"], task["taskId"]);
    is_whole("a client of subtasks", &result(&task["taskId"]).await);
}

#[tokio::test]
async fn a_client_without_tasks_has_the_whole_by_the_three_tools() {
    let what = "split-pages-tools";
    let Some(peers) = Peers::find(what) else { return };
    let server = PeerServer::start(Program::FastMcpPages, &peers, what).await.unwrap();
    let gate = gate(&server, "[upstreams.up.tasks]\nfallback = \"tools\"\ngrace = \"100ms\"").await;
    let client = StandaloneClient::session(&gate).await;
    let notice = client.call(1, TOOL, json!({ "urls": urls() })).await;
    let id = notice["result"]["structuredContent"]["taskId"].clone();
    assert!(id.is_string(), "{notice}");
    let whole = in_time(client.call(2, "task_result", json!({ "id": id }))).await["result"].take();
    is_whole("the three tools", &whole);
}
