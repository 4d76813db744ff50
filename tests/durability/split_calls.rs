//! The program is killed while a split call runs: elements that had ended are not called again, and the task ends with the
//! results of all.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use support::history::History;
use support::hostile_twin;
use support::scripted::{BodySender, ScriptedServer, SeenRequest, answer};

use super::kill_cycles::keeper::Keeper;
use super::kill_cycles::people::user;

const ELEMENTS: u64 = 6;

fn element(seen: &SeenRequest) -> u64 {
    let items = seen.body["params"]["arguments"]["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{items:?}");
    items[0].as_u64().unwrap()
}

/// Answers calls of elements before this one, and leaves the others without an answer.
async fn server(open_from: &Arc<AtomicU64>) -> ScriptedServer {
    let open_from = Arc::clone(open_from);
    ScriptedServer::start(move |seen| match seen.rpc() {
        "tools/list" => {
            let execution = json!({"taskSupport": "optional"});
            let tool = json!({"name": "work", "inputSchema": {"type": "object"}, "execution": execution});
            Some(answer(seen, &json!({ "tools": [tool] })))
        }
        "tools/call" if element(seen) < open_from.load(Ordering::SeqCst) => {
            let text = element(seen).to_string();
            Some(answer(seen, &json!({"content": [{"type": "text", "text": text}]})))
        }
        "tools/call" => Some(BodySender::silent()),
        _ => None,
    })
    .await
}

/// A gateway, and the other server where it serves an endpoint.
async fn keeper(name: &str, server: &ScriptedServer, after_crash: &str) -> (Keeper, Option<ScriptedServer>) {
    let (section, hostile) = hostile_twin::section("up", "/mcp", server.url().as_str()).await;
    let upstream = format!(
        "{section}[[upstreams.up.tools]]\nmatch = \"work\"\n\
         after_crash = \"{after_crash}\"\nsplit = {{ argument = \"items\", parallel = 2 }}\n"
    );
    (Keeper::new(name, &upstream, Arc::new(History::begin(Duration::ZERO))), hostile)
}

fn calls_of(server: &ScriptedServer, number: u64) -> usize {
    server.world.all(|seen| seen.is_call() && element(seen) == number).len()
}

/// SUB-06, SUB-13, L1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_calls_no_element_again_that_had_ended() {
    for (after_crash, lost) in [("rerun", 0), ("fail", 2)] {
        let open_from = Arc::new(AtomicU64::new(3));
        let server = server(&open_from).await;
        let (mut keeper, _hostile) = keeper(&format!("split-{after_crash}"), &server, after_crash).await;
        keeper.start(&[]).await.unwrap();
        let person = user(&keeper, "2025-11-25", None).await;
        let arguments = json!({"items": (0..ELEMENTS).collect::<Vec<_>>()});
        let call = json!({"name": "work", "arguments": arguments, "task": {}});
        let created = person.answered("tools/call", &call).await;
        let id = created["result"]["task"]["taskId"].clone();
        assert!(id.is_string(), "{created}");
        // Three have ended, two run, one waits.
        server.world.first(|seen| seen.is_call() && element(seen) == 4).await;
        keeper.kill().await;
        open_from.store(ELEMENTS, Ordering::SeqCst);
        keeper.start(&[]).await.unwrap();
        let person = user(&keeper, "2025-11-25", Some(&person)).await;
        person.until(&id, "completed").await;
        let result = person.answered("tasks/result", &json!({ "taskId": id })).await["result"].take();
        let texts: Vec<Value> = result["content"].as_array().unwrap().iter().map(|one| one["text"].clone()).collect();
        let failed = texts.iter().filter(|text| text.as_str().unwrap().contains("failed:")).count();
        assert_eq!((texts.len(), failed), (ELEMENTS as usize, lost), "{texts:?}");
        let made: Vec<usize> = (0..ELEMENTS).map(|number| calls_of(&server, number)).collect();
        let twice = if lost == 0 { 2 } else { 1 };
        assert_eq!(made, [1, 1, 1, twice, twice, 1], "{after_crash}");
        keeper.forget_log();
    }
}

/// The program is killed at points between the tree's commits, in its first process and in a later one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_survives_a_kill_between_any_two_of_its_commits() {
    for point in ["handle-durable:1", "intent-durable:2", "outcome-stored:1", "outcome-stored:4", "recovering:1"] {
        let server = server(&Arc::new(AtomicU64::new(ELEMENTS))).await;
        let (mut keeper, _hostile) = keeper(&format!("split-{}", point.replace(':', "-")), &server, "rerun").await;
        let (first, second) = if point.starts_with("recovering") { ("outcome-stored:2", point) } else { (point, "") };
        keeper.start(&[("TASKGATE_FAILPOINT", first)]).await.unwrap();
        let person = user(&keeper, "2025-11-25", None).await;
        let arguments = json!({"items": (0..ELEMENTS).collect::<Vec<_>>()});
        let call = json!({"name": "work", "arguments": arguments, "task": {}});
        let asking = person.clone();
        let asked =
            asking.client.connections.clone().spawn(async move { asking.request(4, "tools/call", &call).await });
        keeper.dies().await.unwrap();
        asked.abort();
        // It may die before it serves.
        if !second.is_empty() && keeper.start(&[("TASKGATE_FAILPOINT", second)]).await.is_some() {
            keeper.dies().await.unwrap();
        }
        keeper.start(&[]).await.unwrap();
        let person = user(&keeper, "2025-11-25", Some(&person)).await;
        let listed = person.answered("tasks/list", &json!({})).await["result"]["tasks"].clone();
        let id = listed[0]["taskId"].clone();
        assert_eq!(listed.as_array().unwrap().len(), 1, "{point}: {listed}");
        person.until(&id, "completed").await;
        let result = person.answered("tasks/result", &json!({ "taskId": id })).await["result"].take();
        assert_eq!(result["content"].as_array().unwrap().len(), ELEMENTS as usize, "{point}: {result}");
        keeper.forget_log();
    }
}
