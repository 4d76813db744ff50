//! The program is killed while tasks under chosen ids run, or right after one was stored: its client finds them by its own
//! ids, in the session that it has, and none of their calls is made again (SEP-1686).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use support::history::History;
use support::scripted::{BodySender, ScriptedServer, SeenRequest, answer, in_time};
use support::talk::SessionMessages;

use super::kill_cycles::keeper::Keeper;
use super::kill_cycles::people::user;

const TASK: &str = "modelcontextprotocol.io/task";

fn named(seen: &SeenRequest) -> &str {
    seen.body["params"]["arguments"]["as"].as_str().unwrap()
}

/// Answers calls as `done`, and leaves all others without an answer.
async fn server() -> ScriptedServer {
    ScriptedServer::start(|seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &json!({"tools": [{"name": "work", "inputSchema": {"type": "object"}}]}))),
        "tools/call" if named(seen) == "done" => Some(answer(seen, &json!({"content": [], "n": 1.10}))),
        "tools/call" => Some(BodySender::silent()),
        _ => None,
    })
    .await
}

async fn keeper(name: &str, server: &ScriptedServer, environment: &[(&str, &str)]) -> Keeper {
    let upstream = format!(
        "[upstreams.up]\nurl = \"http://{}/mcp\"\npath = \"/mcp\"\n[upstreams.up.tasks]\ndrafts = [\"sep-1686\"]\n",
        server.address
    );
    let mut keeper = Keeper::new(name, &upstream, Arc::new(History::begin(Duration::ZERO)));
    keeper.start(environment).await.unwrap();
    keeper
}

fn call(id: &str) -> Value {
    json!({"name": "work", "arguments": {"as": id}, "_meta": {TASK: {"taskId": id}}})
}

/// D86-06, D86-16, D86-22: after a restart, an ended task keeps its state, and a running one gets its outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d86_22_a_killed_gateway_finds_tasks_by_the_ids_that_their_client_chose() {
    let server = server().await;
    let mut keeper = keeper("chosen-ids", &server, &[]).await;
    let person = user(&keeper, "2025-06-18", None).await;
    let stream = SessionMessages::of(person.request(4, "tools/call", &call("done")).await);
    let result = stream.rest().await.last().unwrap()["result"].clone();
    let mut open = SessionMessages::of(person.request(5, "tools/call", &call("open")).await);
    assert_eq!(open.next().await.unwrap()["method"], "notifications/tasks/created");
    server.world.first(|seen| seen.is_call() && named(seen) == "open").await;
    keeper.kill().await;
    keeper.start(&[]).await.unwrap();
    let person = user(&keeper, "2025-06-18", Some(&person)).await;
    assert_eq!(person.task(&json!("done")).await["status"], "completed");
    let fetched = person.answered("tasks/result", &json!({"taskId": "done"})).await;
    assert_eq!(fetched["result"], result);
    let failed = person.until(&json!("open"), "failed").await;
    assert!(failed["error"].as_str().unwrap().starts_with("The gateway restarted"), "{failed}");
    let listed = person.answered("tasks/list", &json!({})).await["result"]["tasks"].clone();
    let ids: Vec<_> = listed.as_array().unwrap().iter().map(|task| task["taskId"].clone()).collect();
    assert_eq!(ids, [json!("done"), json!("open")]);
    for id in ["done", "open"] {
        assert_eq!(person.answered("tools/call", &call(id)).await["error"]["code"], -32602, "{id}");
    }
    assert_eq!(server.world.count("tools/call"), 2);
    keeper.forget_log();
}

/// D86-02, L1, F07: the row is stored before its handle is sent, and the client already knows the id. The row says that
/// the call may have been sent, so the next process does not send it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f07_a_gateway_killed_before_it_sends_a_handle_finds_the_task_by_its_chosen_id() {
    let server = server().await;
    let mut keeper = keeper("chosen-ids-early", &server, &[("TASKGATE_FAILPOINT", "handle-durable:1")]).await;
    let person = user(&keeper, "2025-06-18", None).await;
    let asking = person.clone();
    let cut =
        asking.client.connections.clone().spawn(async move { asking.request(4, "tools/call", &call("done")).await });
    keeper.dies().await.unwrap();
    assert!(in_time(cut).await.is_err(), "nothing was answered");
    keeper.start(&[]).await.unwrap();
    let person = user(&keeper, "2025-06-18", Some(&person)).await;
    person.until(&json!("done"), "failed").await;
    assert_eq!(person.answered("tools/call", &call("done")).await["error"]["code"], -32602);
    assert_eq!(server.world.count("tools/call"), 0);
    keeper.forget_log();
}
