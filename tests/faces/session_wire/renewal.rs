//! An upstream that has lost a session gets another one, and the client notices nothing.

use std::sync::Arc;

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::json;
use tokio::sync::{Barrier, Semaphore};

use super::client::{TestGateway, call};
use super::upstream::{Once, ScriptedServer, SeenRequest, status};

/// Both ways in which servers say that they do not know a session.
const LOST: [u16; 2] = [404, 400];

#[tokio::test]
async fn a_restart_of_the_upstream_between_two_calls_goes_unnoticed() {
    for status in LOST {
        let server = ScriptedServer::polite().await;
        *server.world.lost_status.lock() = Some(status);
        let gate = TestGateway::before(&server).await;
        let client = gate.client().await;
        for told in [
            r#"{"jsonrpc":"2.0","id":7,"method":"logging/setLevel","params":{"level":"debug"}}"#,
            r#"{"jsonrpc":"2.0","id":8,"method":"resources/subscribe","params":{"uri":"x://kept"}}"#,
            r#"{"jsonrpc":"2.0","id":9,"method":"resources/subscribe","params":{"uri":"x://left"}}"#,
            r#"{"jsonrpc":"2.0","id":10,"method":"resources/unsubscribe","params":{"uri":"x://left"}}"#,
        ] {
            assert_eq!(client.post(told).await.status, StatusCode::OK);
        }
        server.world.forget();
        let reply = client.post(call(1)).await;
        assert_eq!(reply.json().await["result"], json!({"n": 1}));
        let all = server.world.all(|_| true);
        let order: Vec<_> = all.iter().map(|seen| (seen.rpc(), seen.header("mcp-session-id"))).collect();
        let expected = [
            ("tools/call", Some("s-1")),
            ("initialize", None),
            ("notifications/initialized", Some("s-2")),
            ("logging/setLevel", Some("s-2")),
            ("resources/subscribe", Some("s-2")),
            ("tools/call", Some("s-2")),
        ];
        assert_eq!(order, expected, "{status}: refused once, run once");
        let params = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"roots": {}, "sampling": {}, "elicitation": {}},
            "clientInfo": {"name": "raw", "version": "1"},
        });
        assert_eq!(all[1].body["params"], params, "as in the client's own `initialize`");
        assert!(all[1].body["id"].as_str().unwrap().starts_with("tg:"));
        assert_eq!(all[3].body["params"], json!({"level": "debug"}));
        assert_eq!(all[4].body["params"], json!({"uri": "x://kept"}));
        assert_eq!(client.post(call(2)).await.status, StatusCode::OK);
        assert_eq!(server.world.count("initialize"), 1, "the new session is remembered");
    }
}

/// The server answers no subscription before it has all of them: they do not wait for each other, with a call behind them.
#[tokio::test]
async fn u67_a_session_that_is_opened_anew_is_told_its_subscriptions_at_once() {
    const RESOURCES: usize = 5;
    let all = Arc::new(Barrier::new(RESOURCES));
    let server = ScriptedServer::slow(move |seen, _| {
        let all = Arc::clone(&all);
        async move {
            if seen.rpc() == "resources/subscribe" && seen.header("mcp-session-id") == Some("s-2") {
                all.wait().await;
            }
            (seen.is_call() && seen.header("mcp-session-id") == Some("s-1")).then(|| status(404))
        }
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    for id in 0..RESOURCES {
        let params = json!({"uri": format!("x://{id}")});
        let subscribe = json!({"jsonrpc": "2.0", "id": id, "method": "resources/subscribe", "params": params});
        assert_eq!(client.post(subscribe.to_string()).await.status, StatusCode::OK);
    }
    server.world.forget();
    assert_eq!(client.post(call(9)).await.json().await["result"], json!({"n": 9}));
    assert_eq!(server.world.count("resources/subscribe"), RESOURCES, "before the call");
}

/// There is nothing in it that could be cancelled; for a server over stdio a program would be started.
#[tokio::test]
async fn a_cancellation_opens_no_session() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    server.world.forget();
    let params = json!({ "requestId": 1 });
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }).to_string();
    assert_eq!(client.post(cancelled).await.status, StatusCode::ACCEPTED);
    assert_eq!(server.world.count("initialize"), 0);
    assert_eq!(client.post(call(2)).await.status, StatusCode::OK);
    assert_eq!(server.world.count("initialize"), 1, "by what needs one");
}

/// The server gets neither.
#[tokio::test]
async fn a_request_that_is_cancelled_while_its_session_is_opened_anew_is_not_sent() {
    let lost = Arc::new(Semaphore::new(1));
    let server = ScriptedServer::slow({
        let lost = Arc::clone(&lost);
        move |seen, _| {
            let lost = Arc::clone(&lost);
            async move {
                if seen.rpc() == "initialize" {
                    lost.acquire().await.unwrap().forget();
                }
                let is_lost = matches!(seen.rpc(), "tools/call" | "notifications/cancelled");
                (is_lost && seen.header("mcp-session-id") == Some("s-1")).then(|| status(404))
            }
        }
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    server.world.forget();
    let (reply, ()) = tokio::join!(client.post(call(1)), async {
        server.world.first(|seen| seen.rpc() == "initialize").await;
        let params = json!({ "requestId": 1 });
        let told = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }).to_string();
        assert_eq!(client.post(told).await.status, StatusCode::ACCEPTED);
        lost.add_permits(1);
    });
    assert_eq!(reply.text().await, "", "a request that was cancelled has no answer");
    let sent = server.world.all(|seen| seen.header("mcp-session-id") == Some("s-2"));
    assert_eq!(sent.iter().map(SeenRequest::rpc).collect::<Vec<_>>(), ["notifications/initialized"]);
    assert_eq!(client.post(call(1)).await.status, StatusCode::OK, "another one of this id");
}

/// B267: the new session is the one to end.
#[tokio::test]
async fn b267_a_session_that_ends_while_it_is_opened_anew_ends_at_its_server() {
    let handshakes = Arc::new(Semaphore::new(1));
    let server = ScriptedServer::slow({
        let handshakes = Arc::clone(&handshakes);
        move |seen, _| {
            let handshakes = Arc::clone(&handshakes);
            async move {
                if seen.rpc() == "initialize" {
                    handshakes.acquire().await.unwrap().forget();
                }
                (seen.is_call() && seen.header("mcp-session-id") == Some("s-1")).then(|| status(404))
            }
        }
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    server.world.forget();
    let ended = async {
        server.world.first(|seen| seen.rpc() == "initialize").await;
        let (ended, ()) = tokio::join!(client.delete(), async {
            let ping = r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#;
            while client.post(ping).await.status != StatusCode::NOT_FOUND {}
            handshakes.add_permits(1);
        });
        ended
    };
    let (_, ended) = tokio::join!(client.post(call(1)), ended);
    assert_eq!(ended.status, StatusCode::OK);
    let all = server.world.all(|seen| seen.method == "DELETE");
    assert_eq!(all.iter().map(|seen| seen.header("mcp-session-id")).collect::<Vec<_>>(), [Some("s-2")]);
}

#[tokio::test]
async fn fifty_calls_that_wait_share_one_handshake() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    server.world.forget();
    let bodies: Vec<String> = (1..=50).map(call).collect();
    let replies = join_all(bodies.iter().map(|body| client.post(body.clone()))).await;
    for (n, reply) in (1..).zip(replies) {
        assert_eq!(reply.json().await["result"], json!({"n": n}));
    }
    assert_eq!(server.world.count("initialize"), 1);
    let run = server.world.all(|seen| seen.is_call() && seen.header("mcp-session-id") == Some("s-2"));
    assert_eq!(run.len(), 50, "each tool ran once");
}

#[tokio::test]
async fn the_clients_stream_goes_to_the_new_session() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| (seen.method == "GET").then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    server.world.forget();
    events.raw("data: {}\n\n");
    let mut reply = client.get(Some("e-1")).await;
    assert_eq!(reply.until("\n\n").await, "data: {}\n\n");
    let gets = server.world.all(|seen| seen.method == "GET");
    let seen: Vec<_> = gets.iter().map(|seen| (seen.header("mcp-session-id"), seen.header("last-event-id"))).collect();
    assert_eq!(seen, [(Some("s-1"), Some("e-1")), (Some("s-2"), None)], "event ids belong to their session");
}

#[tokio::test]
async fn an_answer_to_a_question_of_a_lost_session_goes_nowhere() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    server.world.forget();
    assert_eq!(client.post(r#"{"jsonrpc":"2.0","id":0,"result":{}}"#).await.status, StatusCode::ACCEPTED);
    assert_eq!(server.world.count("initialize"), 0);
    let note = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
    assert_eq!(client.post(note).await.status, StatusCode::ACCEPTED);
    let noted = server.world.all(|seen| seen.bytes == note.as_bytes());
    assert_eq!(noted.last().and_then(|seen| seen.header("mcp-session-id")), Some("s-2"));
}

#[tokio::test]
async fn a_session_that_is_lost_again_and_again_is_an_error_and_no_loop() {
    let server = ScriptedServer::start(|seen| seen.is_call().then(|| status(404))).await;
    let gate = TestGateway::before(&server).await;
    let reply = gate.client().await.post(call(1)).await;
    assert_eq!(reply.status, StatusCode::OK);
    let error = reply.json().await["error"].clone();
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("upstream_session_lost")));
    assert_eq!((server.world.count("initialize"), server.world.count("tools/call")), (2, 2));
}

#[tokio::test]
async fn an_ended_session_is_not_opened_anew() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    assert_eq!(client.delete().await.status, StatusCode::OK);
    server.world.forget();
    assert_eq!(client.post(call(1)).await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.world.all(|_: &SeenRequest| true).len(), 0);
}
