//! Calls that wait for a place at the upstream, and are cancelled before they have one.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use super::client::{BOTH, Client, Reply, TestGateway, call};
use super::upstream::{BodySender, Once, ScriptedServer, SeenRequest, in_time};

/// A server whose first call waits for the test, and a gateway that lets one call run at a time.
async fn crowded() -> (BodySender, ScriptedServer, TestGateway) {
    let (events, once) = Once::events();
    let server = ScriptedServer::start(move |seen| if seen.is_call() { once.take() } else { None }).await;
    let gate = TestGateway::with(server.address, "in_flight_max = 1").await;
    (events, server, gate)
}

/// Takes the only place.
async fn hold(client: &Client, events: &BodySender) -> Reply {
    events.raw(":\n\n");
    let mut held = client.post(call(1)).await;
    held.until("\n\n").await;
    held
}

/// Posts a message, and cancels request 2 until it is answered: status and body.
async fn cancelled(client: &Client, body: String) -> (StatusCode, String) {
    let (poster, cancel) = (client.clone(), json!({"requestId": 2}));
    let waiting = client.connections.spawn(async move {
        let reply = poster.post(body).await;
        (reply.status, reply.text().await)
    });
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel}).to_string();
    in_time(async {
        while !waiting.is_finished() {
            assert_eq!(client.post(notice.clone()).await.status, StatusCode::ACCEPTED);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        waiting.await.unwrap()
    })
    .await
}

fn calls(server: &ScriptedServer) -> Vec<Value> {
    server.world.all(SeenRequest::is_call).into_iter().map(|seen| seen.body["id"].clone()).collect()
}

/// LEG-14: a call that was cancelled in time is never run, and has no response.
#[tokio::test]
async fn leg_14_a_call_that_is_cancelled_while_it_waits_for_a_place_is_never_sent() {
    for (accept, status) in [(BOTH, StatusCode::OK), ("application/json", StatusCode::ACCEPTED)] {
        let (events, server, gate) = crowded().await;
        let client = gate.client().await;
        let held = hold(&client, &events).await;
        let mut other = client.clone();
        other.accept = accept;
        assert_eq!(cancelled(&other, call(2)).await, (status, String::new()), "{accept}");
        drop(events);
        drop(held);
        assert_eq!(client.post(call(3)).await.json().await["result"], json!({"n": 3}));
        assert_eq!(calls(&server), [json!(1), json!(3)], "{accept}");
    }
}

/// LEG-12, LEG-14.
#[tokio::test]
async fn a_call_of_an_array_that_is_cancelled_has_no_answer_among_the_others() {
    let ping = json!({"jsonrpc": "2.0", "id": 5, "method": "ping"}).to_string();
    let array = json!([{"jsonrpc": "2.0", "id": 5, "result": {}}]);
    let rows = [("", StatusCode::ACCEPTED, Value::Null), (ping.as_str(), StatusCode::OK, array)];
    for (accept, row) in
        [BOTH, "application/json"].into_iter().flat_map(|accept| rows.each_ref().map(|row| (accept, row)))
    {
        let (rest, status, answers) = row;
        let (events, _server, gate) = crowded().await;
        let mut client = gate.client_of("2025-03-26").await;
        let held = hold(&client, &events).await;
        client.accept = accept;
        let items = [call(2), (*rest).to_owned()];
        let items = items.iter().filter(|item| !item.is_empty()).map(String::as_str).collect::<Vec<_>>().join(",");
        let (came, text) = cancelled(&client, format!("[{items}]")).await;
        let read = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
        assert_eq!((came, &read), (*status, answers), "{accept} {rest}");
        drop((events, held));
    }
}

/// A session reaches no call of another one.
#[tokio::test]
async fn a_cancel_reaches_the_waiting_calls_of_its_own_session_alone() {
    let (events, server, gate) = crowded().await;
    let (client, stranger) = (gate.client().await, gate.client().await);
    let held = hold(&client, &events).await;
    let poster = client.clone();
    let waiting = client.connections.spawn(async move { poster.post(call(2)).await });
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}});
    for _ in 0..10 {
        assert_eq!(stranger.post(cancel.to_string()).await.status, StatusCode::ACCEPTED);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(events);
    drop(held);
    assert_eq!(in_time(waiting).await.unwrap().json().await["result"], json!({"n": 2}));
    assert_eq!(calls(&server), [json!(1), json!(2)]);
}
