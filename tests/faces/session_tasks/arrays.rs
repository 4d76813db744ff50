//! Arrays of 2025-03-26 in front of a server that runs a tool only as a task.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::client::Reply;
use super::in_time;
use super::relay::Relay;
use super::talk::SessionUser;

fn call(id: u32, tool: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": {"n": id}}})
}

fn done() -> Value {
    json!({"result": {"content": [{"type": "text", "text": "done"}]}})
}

async fn posting(relay: &Relay, accept: &'static str, array: Value) -> (SessionUser, tokio::task::JoinHandle<Reply>) {
    let mut person = SessionUser::meet(&relay.gate, "2025-03-26", &json!({"elicitation": {}})).await;
    person.client.accept = accept;
    let (sender, tracker) = (person.clone(), person.client.connections.clone());
    (person, tracker.spawn(async move { sender.client.post(array.to_string()).await }))
}

/// LEG-12: each message of an array goes the way that it would go alone.
#[tokio::test]
async fn upc_05_a_call_in_an_array_of_a_tool_that_runs_only_as_a_task_is_driven_to_its_end() {
    for accept in ["application/json, text/event-stream", "application/json"] {
        let relay = Relay::new().await;
        let array = json!([call(1, "plain"), call(2, "must"), call(3, "may")]);
        let (_person, posted) = posting(&relay, accept, array).await;
        let made = relay.made(0).await;
        assert_eq!(made.body["params"]["arguments"], json!({"n": 2}));
        relay.end(0, "completed", &done());
        let reply = in_time(posted).await.unwrap();
        assert_eq!(reply.status, StatusCode::OK, "{accept}");
        let mut answers = reply.json().await.as_array().unwrap().clone();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        let results: Vec<&Value> = answers.iter().map(|answer| &answer["result"]).collect();
        assert_eq!(results, [&json!({"n": 1}), &done()["result"], &json!({"n": 3})], "{accept}");
    }
}

/// UPC-06: a cancellation finds such a call wherever it stands.
#[tokio::test]
async fn upc_06_a_call_in_an_array_is_called_off_by_another_array() {
    let relay = Relay::new().await;
    let (person, posted) = posting(&relay, "application/json, text/event-stream", json!([call(2, "must")])).await;
    relay.made(0).await;
    let cancel = json!([{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}]);
    assert_eq!(person.client.post(cancel.to_string()).await.status, StatusCode::ACCEPTED);
    relay.server.world.first(|seen| seen.rpc() == "tasks/cancel").await;
    assert_eq!(relay.server.world.count("notifications/cancelled"), 0, "the server knows no such request");
    let reply = in_time(posted).await.unwrap();
    assert_eq!((reply.status, reply.text().await), (StatusCode::ACCEPTED, String::new()), "LEG-14");
}

/// All calls of an array together wait only once for the server's tool list.
#[tokio::test]
async fn the_calls_of_an_array_wait_together_for_a_server_that_does_not_list_its_tools() {
    let relay = Relay::new().await;
    relay.hide_tools();
    let array: Vec<Value> = (1..=4).map(|id| call(id, "plain")).collect();
    let (_person, posted) = posting(&relay, "application/json", Value::from(array)).await;
    let reply = tokio::time::timeout(Duration::from_secs(25), posted).await.expect("not one after the other").unwrap();
    assert_eq!(reply.json().await.as_array().unwrap().len(), 4);
}
