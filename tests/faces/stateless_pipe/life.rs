//! How requests end: with their client, with their stream, with the gateway.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::client::TestGateway;
use super::in_time;
use super::peers::{body, body_of, client, default_reply, gate, post, server};
use super::upstream::{Once, ScriptedServer, SeenRequest};

/// The bounds of the gateway's own requests, of any kind.
const HANDSHAKE_MAX: Duration = Duration::from_secs(55);

const ACK: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\"params\":{\"notifications\":{}}}\n\n";

/// A message that no version knows.
const TOLD: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"params\":{}}\n\n";

/// MOD-20.
#[tokio::test]
async fn mod20_a_client_that_leaves_drops_the_upstreams_request() {
    let (events, once) = Once::events();
    let server = server(move |seen| if seen.is_call() { once.take() } else { None }).await;
    let gate = gate(&server).await;
    events.raw(TOLD);
    let mut reply = post(&client(&gate), &body("tools/call", r#""name":"t""#)).await;
    assert_eq!(reply.until("\n\n").await, TOLD);
    drop(reply);
    events.left().await;
    assert_eq!(server.world.count("notifications/cancelled"), 0, "leaving says it all");
}

/// T-30, UPC-18: nothing is sent again.
#[tokio::test]
async fn t_30_a_stream_that_breaks_is_an_error_and_nothing_is_sent_again() {
    let (events, once) = Once::events();
    let server = server(move |seen| if seen.is_call() { once.take() } else { None }).await;
    let gate = gate(&server).await;
    events.raw(TOLD);
    let mut reply = post(&client(&gate), &body("tools/call", r#""name":"t""#)).await;
    reply.until("\n\n").await;
    events.cut();
    let rest = reply.text().await;
    assert!(rest.contains("\"code\":-32603") && rest.contains("upstream_closed"), "{rest}");
    assert!(rest.contains(r#""id":"a\u0062""#), "{rest}");
    assert_eq!(server.world.all(SeenRequest::is_call).len(), 1);
}

#[tokio::test]
async fn a_call_meets_its_deadline() {
    let (_events, once) = Once::events();
    let server = server(move |seen| if seen.is_call() { once.take() } else { None }).await;
    // Long enough for the call to reach the server on a busy machine.
    let keys = "[[upstreams.up.tools]]\nmatch = \"t\"\ndeadline = \"10s\"";
    let gate = TestGateway::with(server.address, keys).await;
    let reply = post(&client(&gate), &body("tools/call", r#""name":"t""#)).await;
    let text = reply.text().await;
    assert!(text.contains("deadline_exceeded"), "{text}");
}

/// B196: the gateway's own requests before a call count for the call's deadline, at any server.
#[tokio::test]
async fn b196_a_call_waits_for_the_handshake_and_the_list_until_its_deadline_alone() {
    for (has_sessions, hangs) in [(true, "initialize"), (true, "tools/list"), (false, "tools/list")] {
        let server = ScriptedServer::slow(move |seen, _| async move {
            if seen.rpc() == hangs {
                std::future::pending::<()>().await;
            }
            if has_sessions { None } else { default_reply(&seen) }
        })
        .await;
        let gate = TestGateway::with(server.address, "deadline = \"1s\"").await;
        for capabilities in ["{}", r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#] {
            let began = Instant::now();
            let reply = post(&client(&gate), &body_of("tools/call", capabilities, r#""name":"t""#)).await;
            let status = reply.status.as_u16();
            let error = reply.json().await["error"].take();
            let data = &error["data"];
            assert_eq!((status, &data["reason"], &data["executed"]), (503, &json!("upstream_timeout"), &json!("no")));
            let said = error["message"].as_str().unwrap();
            assert!(said.contains("tools/list") && said.contains("`deadline`"), "{hangs}: {said}");
            assert!(began.elapsed() < HANDSHAKE_MAX, "{hangs}: {:?}", began.elapsed());
        }
        assert_eq!(server.world.all(SeenRequest::is_call).len(), 0);
    }
}

/// MOD-25.
#[tokio::test]
async fn a_subscription_lives_until_the_gateway_drains_and_ends_with_its_result() {
    let (events, once) = Once::events();
    let server = server(move |seen| if seen.rpc() == "subscriptions/listen" { once.take() } else { None }).await;
    let gate = gate(&server).await;
    let client = client(&gate);
    events.raw(ACK);
    let mut reply = post(&client, &body("subscriptions/listen", r#""notifications":{"toolsListChanged":true}"#)).await;
    assert_eq!(reply.until("\n\n").await, ACK);
    let drain = gate.gateway.drain(Some(Duration::ZERO));
    let (rest, ()) = tokio::join!(reply.text(), in_time(drain));
    let result = r#"{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":"a\u0062"}}"#;
    assert_eq!(
        rest,
        format!("event: message\ndata: {{\"jsonrpc\":\"2.0\",\"id\":\"a\\u0062\",\"result\":{result}}}\n\n")
    );
    events.left().await;
}

#[tokio::test]
async fn a_subscription_to_tasks_is_not_passed_on() {
    let server = server(|_| None).await;
    let gate = gate(&server).await;
    let reply = post(&client(&gate), &body("subscriptions/listen", r#""notifications":{"taskIds":["x"]}"#)).await;
    assert_eq!(reply.verdict().await, "400 -32021 id \"ab\"", "EXT-47: the gateway judges it");
    assert_eq!(server.world.count("subscriptions/listen"), 0);
}
