//! Servers that break off, refuse and mislead: a lost call gets an error that says so, and the next call finds a new session.

use serde_json::json;
use tokio_util::task::TaskTracker;

use super::client::{StandaloneClient, fault, text};
use super::gate::in_time;
use super::scripted::ScriptedServer;
use super::server::{Sse, both};

const SSE: &str = "transport = \"sse\"\n";

async fn silent(client: &StandaloneClient) -> serde_json::Value {
    client.call(9, "silent", json!({})).await
}

#[tokio::test]
async fn a_stream_that_breaks_in_mid_call_loses_the_call_and_the_next_one_opens_another() {
    let sse = Sse::start().await;
    let gate = sse.gate(SSE).await;
    for (round, client) in both(&gate).await.into_iter().enumerate() {
        let calling = TaskTracker::new().spawn({
            let client = client.clone();
            async move { silent(&client).await }
        });
        sse.world().nth(round, |seen| seen.is_call() && seen.body["params"]["name"] == "silent").await;
        let before = sse.streams();
        sse.cut();
        let lost = in_time(calling).await.unwrap();
        assert_eq!(
            (&fault(&lost)["reason"], &fault(&lost)["executed"]),
            (&json!("upstream_closed"), &json!("unknown"))
        );
        assert_eq!(text(&client.call(2, "echo", json!({ "text": "back" })).await), "back");
        assert_eq!(sse.streams(), before + 1, "a new session");
    }
}

/// A task's call is not sent again either: it may have run.
#[tokio::test]
async fn a_stream_that_breaks_fails_the_tasks_that_ran_over_it() {
    let sse = Sse::start().await;
    let gate = sse.gate("transport = \"sse\"\n[upstreams.up.tasks]\nmode = \"always\"\n").await;
    let client = StandaloneClient::stateless(&gate).with_tasks();
    let handle = client.call(1, "silent", json!({})).await;
    let id = handle["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {handle}")).to_owned();
    sse.world().first(|seen| seen.is_call()).await;
    sse.cut();
    let task = in_time(async {
        loop {
            let (task, _) = client.ask(2, "tasks/get", json!({ "taskId": id })).await.answer().await;
            if task["result"]["status"] != "working" {
                return task;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(task["result"]["status"], "failed", "{task}");
    assert_eq!(task["result"]["error"]["data"]["executed"], "unknown", "{task}");
    assert_eq!(sse.world().count("tools/call"), 1);
}

/// SEC-09, U41.
#[tokio::test]
async fn sec_09_u41_an_endpoint_of_another_origin_is_refused_and_nothing_is_sent_there() {
    let (sse, other) = (Sse::start().await, ScriptedServer::polite().await);
    sse.habits(|habits| habits.endpoint = Some(format!("http://{}/message", other.address)));
    for keys in [SSE, "", "transport = \"sse\"\nforward_authorization = false\n"] {
        let gate = sse.gate(keys).await;
        let refused = StandaloneClient::try_session(&gate).await.unwrap_err();
        assert_eq!(fault(&refused)["reason"], "upstream_redirect", "{refused}");
        assert_eq!(fault(&refused)["executed"], "no", "{refused}");
        let refused = StandaloneClient::stateless(&gate).call(1, "echo", json!({})).await;
        assert_eq!(fault(&refused)["reason"], "upstream_redirect", "{refused}");
        gate.until_logged("names another origin").await;
    }
    assert!(other.world.all(|_| true).is_empty());
    // It comes to its senses.
    sse.habits(|habits| habits.endpoint = Some("message".to_owned()));
    let gate = sse.gate(SSE).await;
    assert_eq!(text(&StandaloneClient::session(&gate).await.call(1, "echo", json!({ "text": "hi" })).await), "hi");
}

#[tokio::test]
async fn an_endpoint_that_never_comes_is_waited_for_within_a_bound() {
    let sse = Sse::start().await;
    sse.habits(|habits| habits.endpoint = None);
    let gate = sse.gate(SSE).await;
    let began = tokio::time::Instant::now();
    let refused = StandaloneClient::try_session(&gate).await.unwrap_err();
    assert_eq!((&fault(&refused)["reason"], &fault(&refused)["executed"]), (&json!("upstream_timeout"), &json!("no")));
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_stream_that_is_refused_or_is_none_is_no_session() {
    for (code, reason) in [(401, "upstream_auth"), (404, "upstream_http_status"), (503, "upstream_http_status")] {
        let sse = Sse::start().await;
        sse.habits(|habits| habits.get = Some(code));
        let gate = sse.gate(SSE).await;
        let refused = StandaloneClient::try_session(&gate).await.unwrap_err();
        assert_eq!(
            (&fault(&refused)["reason"], &fault(&refused)["executed"]),
            (&json!(reason), &json!("no")),
            "{code}"
        );
    }
    let sse = Sse::start().await;
    sse.habits(|habits| habits.get = Some(204));
    let gate = sse.gate(SSE).await;
    let refused = StandaloneClient::try_session(&gate).await.unwrap_err();
    assert_eq!(fault(&refused)["reason"], "upstream_malformed", "{refused}");
}

/// U17.
#[tokio::test]
async fn u17_a_giant_event_is_a_result_that_is_too_large() {
    let sse = Sse::start().await;
    let gate = sse.gate(SSE).await;
    for client in both(&gate).await {
        let lost = client.call(1, "giant", json!({})).await;
        assert_eq!(fault(&lost)["reason"], "result_too_large", "{lost}");
        assert_eq!(fault(&lost)["executed"], "yes", "{lost}");
        assert_eq!(text(&client.call(2, "echo", json!({ "text": "on" })).await), "on");
    }
}

/// U01.
#[tokio::test]
async fn u01_a_refused_post_fails_its_call_which_may_have_run() {
    for code in [400, 401, 403, 413, 422, 429, 500, 308] {
        let sse = Sse::start().await;
        let gate = sse.gate(SSE).await;
        for (round, client) in both(&gate).await.into_iter().enumerate() {
            sse.habits(|habits| habits.refuses = Some((code, round * 2 + 1)));
            let refused = client.call(1, "echo", json!({ "text": "hi" })).await;
            assert_eq!(fault(&refused)["executed"], "unknown", "{code} {refused}");
            assert_eq!(fault(&refused)["httpStatus"], code, "{refused}");
            assert_eq!(text(&client.call(2, "echo", json!({ "text": "on" })).await), "on", "{code}");
            assert_eq!(sse.streams(), round + 1, "the session goes on");
        }
    }
}

/// GW-46, U01: neither a refusal nor an error in one releases the key.
#[tokio::test]
async fn u01_a_call_under_a_key_is_not_sent_again_after_its_post_was_refused() {
    let sse = Sse::start().await;
    let gate = sse.gate(SSE).await;
    let client = StandaloneClient::session(&gate).await;
    let error = r#"{"jsonrpc":"2.0","id":{id},"error":{"code":-32077,"message":"m"}}"#;
    for (round, (text, how)) in [("{}", "post"), (error, "post"), (error, "both")].into_iter().enumerate() {
        let arguments = json!({ "text": text, "status": 400, "as": how });
        let key = json!({ "io.taskgate/idempotency-key": format!("key-{round}") });
        let params = json!({ "name": "broken", "arguments": arguments, "_meta": key });
        let first = client.ask(1, "tools/call", params.clone()).await.answer().await.0;
        match text == error {
            true => assert_eq!(first["error"]["code"], -32077, "{first}"),
            false => assert_eq!(fault(&first)["executed"], "unknown", "{first}"),
        }
        assert_eq!(client.ask(2, "tools/call", params).await.answer().await.0["error"], first["error"]);
        assert_eq!(sse.world().count("tools/call"), round + 1);
    }
}

/// UPC-17.
#[tokio::test]
async fn upc17_a_post_that_is_refused_with_404_is_sent_once_more_in_a_new_session() {
    let sse = Sse::start().await;
    let gate = sse.gate(SSE).await;
    for (round, client) in both(&gate).await.into_iter().enumerate() {
        assert_eq!(text(&client.call(1, "echo", json!({ "text": "hi" })).await), "hi");
        sse.habits(|habits| habits.refuses = Some((404, round * 3 + 2)));
        let before = sse.streams();
        assert_eq!(text(&client.call(2, "echo", json!({ "text": "again" })).await), "again");
        assert_eq!(sse.streams(), before + 1);
    }
}

#[tokio::test]
async fn events_without_a_recipient_are_dropped_and_such_questions_refused() {
    let sse = Sse::start().await;
    let gate = sse.gate(SSE).await;
    let client = StandaloneClient::session(&gate).await;
    assert_eq!(text(&client.call(1, "echo", json!({ "text": "hi" })).await), "hi");
    sse.send(&json!({ "jsonrpc": "2.0", "id": "stray", "result": {} }));
    sse.send(&json!(7));
    sse.send(&json!({ "jsonrpc": "2.0", "id": "p", "method": "ping" }));
    let pong = sse.world().first(|seen| seen.body["id"] == "p").await;
    assert_eq!(pong.body["result"], json!({}));
    assert_eq!(text(&client.call(2, "echo", json!({ "text": "on" })).await), "on");
    assert_eq!(gate.dropped("foreign_response").await, 1);
    assert_eq!(gate.dropped("malformed_event").await, 1);
}

/// A broken stream is one failure, with any number of calls.
#[tokio::test]
async fn a_stream_that_ends_is_one_failure_of_the_upstream() {
    let keys = format!("{SSE}[upstreams.up.tasks]\nmode = \"always\"\n");
    let sse = Sse::start().await;
    let gate = sse.gate(&keys).await;
    let client = StandaloneClient::session(&gate).await;
    let running = client.start(1, "tools/call", json!({ "name": "silent", "arguments": {} })).await;
    sse.world().first(|seen| seen.is_call()).await;
    let other = client.start(2, "tools/call", json!({ "name": "silent", "arguments": {} })).await;
    sse.world().nth(1, |seen| seen.is_call()).await;
    sse.end();
    for running in [running, other] {
        let (lost, _) = running.reply().await.answer().await;
        assert_eq!(fault(&lost)["reason"], "upstream_closed", "{lost}");
    }
    assert_eq!(gate.failures("upstream_closed").await, 1, "of two calls in the pipe");
    let sse = Sse::start().await;
    let gate = sse.gate(&keys).await;
    let client = StandaloneClient::stateless(&gate);
    let task = client.task(1, "silent", json!({})).await;
    sse.world().first(|seen| seen.is_call()).await;
    sse.end();
    let task = client.settled(&task).await;
    assert_eq!(task["error"]["data"]["reason"], "upstream_closed", "{task}");
    assert_eq!(gate.failures("upstream_closed").await, 1, "of a task");
    assert_eq!(gate.health().await["state"], "failing");
}

#[tokio::test]
async fn a_message_that_is_taken_is_no_answer_of_the_upstream() {
    let sse = Sse::start().await;
    let gate = sse.gate(SSE).await;
    let client = StandaloneClient::session(&gate).await;
    sse.habits(|habits| habits.refuses = Some((500, 1)));
    client.call(1, "echo", json!({ "text": "hi" })).await;
    client.note("notifications/roots/list_changed", json!({})).await;
    sse.world().first(|seen| seen.rpc() == "notifications/roots/list_changed").await;
    assert_eq!(gate.health().await["state"], "failing");
    client.call(2, "echo", json!({ "text": "on" })).await;
    assert_eq!(gate.health().await["state"], "ok");
}

#[tokio::test]
async fn unreadable_events_in_place_of_an_answer_are_failures_of_the_upstream() {
    let sse = Sse::start().await;
    let gate = sse.gate(&format!("{SSE}[upstreams.up.tasks]\nmode = \"always\"\n")).await;
    let unreadable = json!({ "text": "{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":[broken}" });
    let answer = StandaloneClient::session(&gate).await.call(1, "broken", unreadable.clone()).await;
    assert_eq!(fault(&answer)["reason"], "upstream_malformed", "{answer}");
    assert_eq!(gate.failures("upstream_malformed").await, 1, "of a call in the pipe");
    let client = StandaloneClient::stateless(&gate);
    let task = client.settled(&client.task(1, "broken", unreadable).await).await;
    assert_eq!(task["error"]["data"]["reason"], "upstream_malformed", "{task}");
    assert_eq!(gate.failures("upstream_malformed").await, 2, "of a task");
}

/// Cancelled as soon as the server has it: nothing has come for it, nor is its stream held by the gateway.
#[tokio::test]
async fn a_call_that_its_client_takes_back_is_no_failure_of_the_upstream() {
    let sse = Sse::start().await;
    let gate = sse.gate(SSE).await;
    let client = StandaloneClient::session(&gate).await;
    let running = client.start(1, "tools/call", json!({ "name": "silent", "arguments": {} })).await;
    sse.world().first(|seen| seen.is_call()).await;
    client.note("notifications/cancelled", json!({ "requestId": 1 })).await;
    let mut reply = running.reply().await;
    while reply.next().await.is_some() {}
    assert_eq!(gate.failures("upstream_closed").await, 0, "{}", gate.log());
}
