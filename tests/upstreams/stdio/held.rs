//! Calls whose clients lose their stream: it is the gateway's own, as a program knows none, and can be resumed.

use serde_json::json;

use super::client::{StandaloneClient, StreamedReply, text};
use super::gate::{GatewayProcess, in_time};

/// A call that reports 8 steps within 2 s, up to its first report.
async fn reporting(client: &StandaloneClient, id: u32) -> StreamedReply {
    let params =
        json!({ "name": "slow_report", "arguments": { "seconds": 2, "steps": 8 }, "_meta": { "progressToken": "p" } });
    let mut reply = client.ask(id, "tools/call", params).await;
    let first = reply.next().await.expect("a report comes");
    assert_eq!(first["method"], "notifications/progress", "{first}");
    reply
}

/// LEG-09, T-81.
#[tokio::test]
async fn leg_09_a_call_goes_on_without_its_client_and_is_taken_up_in_its_own_session_alone() {
    let gate = GatewayProcess::new().await;
    let [client, other] = [StandaloneClient::session(&gate).await, StandaloneClient::session(&gate).await];
    let reply = reporting(&client, 1).await;
    let ids: Vec<String> = reply.ids().iter().map(|id| id.trim().to_owned()).collect();
    assert_eq!(ids.len(), 2, "from its beginning on: {ids:?}");
    drop(reply);
    let foreign = other.take_up(&ids[0]).await;
    assert_ne!(foreign.status(), 200, "another session has no such stream");
    let (answer, before) = client.take_up(&ids[1]).await.answer().await;
    assert_eq!((&answer["id"], text(&answer)), (&json!(1), "The report is ready: 8 sections in 2 s."));
    assert!(before >= 5, "nothing was lost: {before} reports");
    let (again, all) = client.take_up(&ids[0]).await.answer().await;
    assert_eq!((again, all > before), (answer, true), "the answer is kept, and what came before it");
    client.leave().await;
    assert_eq!(client.take_up(&ids[0]).await.status(), 404, "it is gone with its session");
}

/// LEG-14.
#[tokio::test]
async fn a_held_call_that_is_cancelled_ends_at_once() {
    let gate = GatewayProcess::new().await;
    let client = StandaloneClient::session(&gate).await;
    let mut reply = reporting(&client, 1).await;
    client.note("notifications/cancelled", json!({ "requestId": 1 })).await;
    let rest = in_time(async {
        while let Some(message) = reply.next().await {
            if message.get("method").is_none() {
                return Some(message);
            }
        }
        None
    });
    assert_eq!(rest.await, None);
    assert_eq!(text(&client.call(2, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!", "its place is free");
}
