//! Responses to clients of a server that speaks HTTP+SSE, with a session and without.

use futures_util::future::join_all;
use serde_json::json;
use tokio_util::task::TaskTracker;

use super::client::{StandaloneClient, text};
use super::gate::in_time;
use super::server::{Sse, both};

const SSE: &str = "transport = \"sse\"\n";

#[tokio::test]
async fn a_tool_answers_and_reports_progress_and_its_list_is_served() {
    let sse = Sse::start().await;
    let gate = sse.gate(SSE).await;
    for client in both(&gate).await {
        assert_eq!(text(&client.call(1, "echo", json!({ "text": "hi" })).await), "hi");
        let (list, _) = client.ask(2, "tools/list", json!({})).await.answer().await;
        assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 6, "{list}");
        let late = json!({ "name": "late", "arguments": {}, "_meta": { "progressToken": "p" } });
        let (answer, progress) = client.ask(3, "tools/call", late).await.answer().await;
        assert_eq!((text(&answer), progress), ("late", 1), "{client:?}");
    }
    assert_eq!(sse.streams(), 2, "a session for each client");
    let posts = sse.world().all(|seen| seen.method == "POST");
    assert!(posts.iter().all(|seen| seen.target.starts_with("/message?n=")), "nothing is sent to the stream's address");
    assert!(posts.iter().all(|seen| seen.header("mcp-session-id").is_none()), "there is no such header");
}

#[tokio::test]
async fn fifty_calls_at_once_get_their_own_answers_over_one_stream() {
    let sse = Sse::start().await;
    let gate = sse.gate(SSE).await;
    for client in both(&gate).await {
        let calls = (0..50).map(|id| {
            let client = &client;
            async move {
                let words = format!("word {id}");
                assert_eq!(text(&client.call(id, "echo", json!({ "text": words })).await), words);
            }
        });
        join_all(calls).await;
    }
    assert_eq!(sse.streams(), 2);
}

/// U55: a POST without an answer holds a connection and a descriptor.
#[tokio::test]
async fn u55_a_post_that_is_never_answered_ends_with_its_call() {
    let sse = Sse::start().await;
    sse.habits(|habits| habits.never_tells = true);
    let gate = sse.gate(SSE).await;
    let client = StandaloneClient::session(&gate).await;
    for id in 0..3 {
        assert_eq!(text(&client.call(id, "echo", json!({ "text": "hi" })).await), "hi");
    }
    sse.all_answered().await;
    assert_eq!((sse.streams(), sse.world().count("tools/call")), (1, 3), "the session goes on");
    assert_eq!(text(&client.call(4, "echo", json!({ "text": "hi" })).await), "hi");
}

#[tokio::test]
async fn a_slow_call_becomes_a_task_of_either_flavour() {
    let sse = Sse::start().await;
    let gate = sse.gate("transport = \"sse\"\n[upstreams.up.tasks]\ngrace = \"100ms\"\n").await;
    let client = StandaloneClient::stateless(&gate).with_tasks();
    // Ends when the test says so: the handle is there first.
    let end = async |call: usize| {
        let sent = sse.world().nth(call, |seen| seen.is_call()).await;
        let result = json!({ "content": [{ "type": "text", "text": "late" }] });
        sse.send(&json!({ "jsonrpc": "2.0", "id": sent.body["id"], "result": result }));
    };
    let id = client.task(1, "silent", json!({})).await;
    end(0).await;
    let task = client.settled(&id).await;
    assert_eq!(task["result"]["content"][0]["text"], "late", "{task}");

    let client = StandaloneClient::session(&gate).await;
    let params = json!({ "name": "silent", "arguments": {}, "task": { "ttl": 60_000 } });
    let (handle, _) = client.ask(1, "tools/call", params).await.answer().await;
    let id = &handle["result"]["task"]["taskId"];
    end(1).await;
    let (result, _) = client.ask(2, "tasks/result", json!({ "taskId": id })).await.answer().await;
    assert_eq!(text(&result), "late");
}

#[tokio::test]
async fn a_question_and_its_answer_travel() {
    let sse = Sse::start().await;
    let gate = sse.gate(SSE).await;
    let client = StandaloneClient::session(&gate).await;
    let mut reply = client.ask(7, "tools/call", json!({ "name": "ask", "arguments": {} })).await;
    let question = reply.next().await.unwrap();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "decline" } })).await;
    let (answer, _) = reply.answer().await;
    assert_eq!(text(&answer), "asked");
}

#[tokio::test]
async fn every_kind_of_cancel_reaches_the_server() {
    let sse = Sse::start().await;
    let gate = sse.gate(SSE).await;
    let client = StandaloneClient::session(&gate).await;
    let asked = TaskTracker::new().spawn({
        let client = client.clone();
        async move { client.ask(6, "tools/call", json!({ "name": "silent", "arguments": {} })).await.next().await }
    });
    let sent = sse.world().first(|seen| seen.is_call()).await;
    client.note("notifications/cancelled", json!({ "requestId": 6 })).await;
    let told = sse.world().first(|seen| seen.rpc() == "notifications/cancelled").await;
    assert_eq!(told.body["params"]["requestId"], sent.body["id"]);
    let rest = in_time(asked).await.unwrap();
    assert!(rest.as_ref().is_none_or(|message| message.get("result").is_none()), "{rest:?}");
    assert_eq!(text(&client.call(8, "echo", json!({ "text": "on" })).await), "on", "the session goes on");

    // One without a session cancels by leaving.
    let params = json!({ "name": "silent", "arguments": {}, "_meta": { "progressToken": "p" } });
    let mut reply = StandaloneClient::stateless(&gate).ask(1, "tools/call", params).await;
    let progress = reply.next().await.unwrap();
    assert_eq!(progress["method"], "notifications/progress", "{progress}");
    let sent = sse.world().nth(1, |seen| seen.is_call() && seen.body["params"]["name"] == "silent").await;
    drop(reply);
    let told = sse.world().nth(1, |seen| seen.rpc() == "notifications/cancelled").await;
    assert_eq!(told.body["params"]["requestId"], sent.body["id"]);
    assert_eq!(sse.streams(), 2);
}

/// SEC-04.
#[tokio::test]
async fn sec_04_the_upstreams_credential_goes_with_stream_and_posts_and_named_headers_with_calls() {
    let sse = Sse::start().await;
    let keys =
        "transport = \"sse\"\nforward_headers = [\"host-note\"]\n[upstreams.up.auth]\nauthorization = \"Bearer up\"\n";
    let gate = sse.gate(keys).await;
    for client in both(&gate).await {
        assert_eq!(text(&client.call(1, "echo", json!({ "text": "hi" })).await), "hi");
    }
    let all = sse.world().all(|_| true);
    assert!(all.len() >= 8, "{all:?}");
    assert!(all.iter().all(|seen| seen.header("authorization") == Some("Bearer up")), "{all:?}");
}

/// Some servers say that they have taken a message only once they have dealt with it.
#[tokio::test]
async fn events_of_a_call_arrive_before_its_post_is_answered() {
    let sse = Sse::start().await;
    sse.habits(|habits| habits.tells_late = true);
    let gate = sse.gate(SSE).await;
    let client = StandaloneClient::session(&gate).await;
    let late = json!({ "name": "late", "arguments": {}, "_meta": { "progressToken": "p" } });
    let mut reply = client.ask(1, "tools/call", late).await;
    let first = reply.next().await.unwrap();
    assert_eq!(first["method"], "notifications/progress", "{first}");
    assert_eq!(text(&reply.answer().await.0), "late");
}

#[tokio::test]
async fn the_oldest_version_can_be_fixed() {
    let sse = Sse::start().await;
    let gate = sse.gate("transport = \"sse\"\nprotocol = \"2024-11-05\"\n").await;
    for client in both(&gate).await {
        assert_eq!(text(&client.call(1, "echo", json!({ "text": "hi" })).await), "hi");
    }
    let asked = sse.world().all(|seen| seen.rpc() == "initialize");
    assert!(asked.iter().all(|seen| seen.body["params"]["protocolVersion"] == "2024-11-05"), "{asked:?}");
}
