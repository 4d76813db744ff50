//! The program is killed under a session at an endpoint: the next process reopens its upstream sessions, and its names
//! for calls still hold.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use support::history::History;
use support::scripted::{ScriptedServer, answer};

use super::kill_cycles::keeper::Keeper;
use super::kill_cycles::people::user;

async fn server() -> ScriptedServer {
    ScriptedServer::start(|seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &json!({"tools": [{"name": "work", "inputSchema": {"type": "object"}}]}))),
        _ => None,
    })
    .await
}

fn call(tool: &str, key: &str) -> Value {
    json!({"name": tool, "arguments": {"content": []}, "task": {}, "_meta": {"io.taskgate/idempotency-key": key}})
}

/// B135: an anonymous client's names are its session's, and that is the endpoint's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b135_a_call_under_a_key_is_made_once_though_the_session_at_its_upstream_is_opened_anew() {
    let (one, two) = (server().await, server().await);
    let upstreams = format!(
        "[auth]\nanonymous = true\n[upstreams.one]\nurl = \"http://{}/mcp\"\n[upstreams.two]\nurl = \"http://{}/mcp\"\n\
         [[endpoints]]\npath = \"/mcp\"\nupstreams = [\"one\", \"two\"]\n",
        one.address, two.address
    );
    let mut keeper = Keeper::new("endpoint-sessions", &upstreams, Arc::new(History::begin(Duration::ZERO)));
    keeper.start(&[]).await.unwrap();
    let person = user(&keeper, "2025-11-25", None).await;
    let task = person.start_with(&call("two__work", "k")).await;
    person.until(&task["taskId"], "completed").await;
    keeper.kill().await;
    keeper.start(&[]).await.unwrap();
    let person = user(&keeper, "2025-11-25", Some(&person)).await;
    let again = person.start_with(&call("two__work", "k")).await;
    assert_eq!(again["taskId"], task["taskId"]);
    let stranger = user(&keeper, "2025-11-25", None).await;
    let other = stranger.start_with(&call("two__work", "k")).await;
    assert_ne!(other["taskId"], task["taskId"], "another session's names are its own");
    stranger.until(&other["taskId"], "completed").await;
    assert_eq!(two.world.count("tools/call"), 2);
    keeper.forget_log();
}
