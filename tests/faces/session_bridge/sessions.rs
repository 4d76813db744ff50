//! Beginning and end of such a session, and arrays of messages in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use http::StatusCode;
use serde_json::{Value, json};

use super::client::{TestGateway, call};
use super::server::{ask, discovered, open, refused, request, stateless};
use super::upstream::{ScriptedServer, SeenRequest, answer, in_time, status};

#[tokio::test]
async fn another_gateway_with_the_same_key_goes_on_with_the_session() {
    let server = stateless(|_| None).await;
    let first = TestGateway::before(&server).await;
    let mut client = open(&first, "2025-11-25", &json!({})).await;
    assert_eq!(client.post(call(1)).await.json().await["result"], json!({"n": 1}));
    drop(first);
    let second = TestGateway::before(&server).await;
    client.address = second.gateway.address();
    assert_eq!(client.post(call(2)).await.json().await["result"], json!({"n": 2}));
    assert_eq!(server.world.count("initialize"), 1, "there is no second handshake");
}

/// LEG-04, LEG-06.
#[tokio::test]
async fn leg_06_notifications_get_202_and_an_ended_session_is_unknown() {
    let server = stateless(|_| None).await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-06-18", &json!({})).await;
    // The server sees each request under an id of the gateway's.
    assert_eq!(client.post(call(9)).await.status, StatusCode::OK);
    let made = server.world.first(SeenRequest::is_call).await;
    let own = format!("{}:0", made.id().rsplit_once(':').unwrap().0);
    for note in [
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": own, "result": {}}),
        json!({"jsonrpc": "2.0", "id": "tg:0", "result": {}}),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
    ] {
        assert_eq!(client.post(note.to_string()).await.verdict().await, "202 ", "{note}");
    }
    assert_eq!(server.world.all(|seen| seen.rpc().starts_with("notifications/")).len(), 0);
    let own_id = json!({"jsonrpc": "2.0", "id": own, "method": "ping"}).to_string();
    assert_eq!(client.post(own_id).await.verdict().await, format!("200 -32600 id \"{own}\""));
    assert_eq!(client.delete().await.status, StatusCode::OK);
    assert_eq!(client.post(call(1)).await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.world.all(|seen| seen.method == http::Method::DELETE).len(), 0);
}

/// LEG-12.
#[tokio::test]
async fn leg_12_the_messages_of_an_array_are_answered_together() {
    let server = stateless(|_| None).await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-03-26", &json!({})).await;
    let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    let ping = json!({"jsonrpc": "2.0", "id": "p", "method": "ping"}).to_string();
    let opening = request(3, "initialize", &json!({}));
    let odd = r#"{"jsonrpc":"2.0","id":4,"method":7}"#;
    let batch = [call(1), note.clone(), ping, call(2), opening, odd.to_owned()].join(",");
    let reply = client.post(format!("[{batch}]")).await;
    assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, Some("application/json")));
    let mut answers: Vec<Value> = serde_json::from_str(&reply.text().await).unwrap();
    answers.sort_by_key(|answer| answer["id"].to_string());
    let told: Vec<_> = answers.iter().map(|one| (&one["id"], &one["result"], &one["error"]["code"])).collect();
    let (none, one, two, empty) = (Value::Null, json!({"n": 1}), json!({"n": 2}), json!({}));
    let ids = [json!("p"), json!(1), json!(2), json!(3), json!(4)];
    let invalid = json!(-32600);
    assert_eq!(
        told,
        [
            (&ids[0], &empty, &none),
            (&ids[1], &one, &none),
            (&ids[2], &two, &none),
            (&ids[3], &none, &invalid),
            (&ids[4], &none, &invalid),
        ]
    );
    assert_eq!(client.post(format!("[{note}]")).await.status, StatusCode::ACCEPTED);
    let newer = open(&gate, "2025-11-25", &json!({})).await;
    assert_eq!(newer.post(format!("[{note}]")).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(ask(&newer, "ping", &json!({})).await["result"], json!({}));
}

/// The client opens another session, at the server. One odd response ends no session.
#[tokio::test]
async fn upc_22_a_session_ends_once_a_server_with_sessions_has_replaced_its_server() {
    const WITHOUT_SESSIONS: u8 = 0;
    const REFUSES_CALLS: u8 = 1;
    const WITH_SESSIONS: u8 = 2;
    let state = Arc::new(AtomicU8::new(WITHOUT_SESSIONS));
    let of_server = Arc::clone(&state);
    let server = ScriptedServer::start(move |seen| match (of_server.load(Ordering::SeqCst), seen.rpc()) {
        (WITH_SESSIONS, "initialize") => None,
        (WITH_SESSIONS, _) => seen.header("mcp-session-id").is_none().then(|| status(404)),
        (_, "initialize") => Some(refused(seen, 404, &json!({"code": -32601, "message": "Method not found"}))),
        (_, "server/discover") => Some(answer(seen, &discovered())),
        (REFUSES_CALLS, "tools/call") => Some(status(404)),
        (_, _) => None,
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-11-25", &json!({})).await;
    let made = ask(&client, "tools/call", &json!({"name": "t", "arguments": {"k": 1}, "task": {}})).await;
    let task = json!({"taskId": made["result"]["task"]["taskId"]});
    let settled = async { while ask(&client, "tasks/get", &task).await["result"]["status"] != "completed" {} };
    in_time(settled).await;

    let (probes, handshakes) = (server.world.count("server/discover"), server.world.count("initialize"));
    state.store(REFUSES_CALLS, Ordering::SeqCst);
    assert_eq!(client.post(call(2)).await.json().await["error"]["data"]["httpStatus"], 404);
    state.store(WITHOUT_SESSIONS, Ordering::SeqCst);
    server.world.nth(probes, |seen| seen.rpc() == "server/discover").await;
    assert_eq!(client.post(call(3)).await.json().await["result"], json!({"n": 3}), "the session goes on");

    state.store(WITH_SESSIONS, Ordering::SeqCst);
    assert!(client.post(call(4)).await.json().await["error"].is_object());
    server.world.nth(handshakes, |seen| seen.rpc() == "initialize").await;
    in_time(async { while client.post(call(5)).await.status != StatusCode::NOT_FOUND {} }).await;
    let client = open(&gate, "2025-11-25", &json!({})).await;
    assert_eq!(client.post(call(6)).await.json().await["result"], json!({"n": 6}));
    assert_eq!(ask(&client, "tasks/get", &task).await["result"]["status"], "completed", "{made}");
    let called = server.world.all(SeenRequest::is_call);
    assert_eq!(called.last().map(|seen| seen.header("mcp-session-id").is_some()), Some(true));
}
