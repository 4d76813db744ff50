//! A server comes back, or restarts, while a client is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http_body_util::Full;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use super::client::{Reply, TestGateway};
use super::upstream::{Once, ScriptedServer, status};
use super::{KINDS, at_one_path, client_of, hello, said, says_hello, tools};

/// An endpoint tries unavailable servers again every 30 s while a client listens.
const BACK_MAX: Duration = Duration::from_secs(60);

/// A server that refuses everything until it is let in.
async fn returning() -> (Arc<AtomicBool>, ScriptedServer) {
    let is_there = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&is_there);
    let server = hello("late", move |_| (!asked.load(Ordering::SeqCst)).then(|| status(503))).await;
    *server.world.initialize_result.lock() = json!({"capabilities": {"tools": {"listChanged": true}}});
    (is_there, server)
}

async fn with_another(late: &ScriptedServer) -> (ScriptedServer, TestGateway) {
    let other = hello("other", |_| None).await;
    *other.world.initialize_result.lock() = json!({"capabilities": {"tools": {"listChanged": true}}});
    let servers = [("late".to_owned(), late.address), ("other".to_owned(), other.address)];
    let gate = at_one_path(&servers, "").await;
    (other, gate)
}

/// A client that lists again sees it, with or without a listener.
#[tokio::test]
async fn the_tools_of_a_server_that_has_come_back_are_listed_and_work() {
    for kind in KINDS {
        let (is_there, late) = returning().await;
        let (_other, gate) = with_another(&late).await;
        let mut client = client_of(kind, &gate).await;
        assert_eq!(tools(&mut client).await, ["other__hello"], "{kind:?}");
        is_there.store(true, Ordering::SeqCst);
        assert_eq!(tools(&mut client).await, ["late__hello", "other__hello"], "{kind:?}");
        assert_eq!(said(&mut client, "late__hello").await, "late", "{kind:?}");
    }
}

/// A stream's text up to `text`.
async fn heard(mut stream: Reply, text: &str) -> String {
    let mut read = String::new();
    let reading = async {
        while !read.contains(text) {
            let piece = stream.next_piece().await.unwrap();
            read.push_str(&piece.expect("the stream stays open"));
        }
    };
    assert!(timeout(BACK_MAX, reading).await.is_ok(), "{read}");
    read
}

#[tokio::test]
async fn listeners_are_notified_that_a_server_is_back() {
    let in_session = async {
        let (is_there, late) = returning().await;
        let (_other, gate) = with_another(&late).await;
        let client = gate.client().await;
        let list = client.post(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#).await.text().await;
        assert!(!list.contains("late__hello"), "{list}");
        let stream = client.get(None).await;
        is_there.store(true, Ordering::SeqCst);
        heard(stream, "notifications/tools/list_changed").await;
        let list = client.post(r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#).await.text().await;
        assert!(list.contains("late__hello"), "{list}");
    };
    let alone = async {
        let (is_there, late) = returning().await;
        let (_other, gate) = with_another(&late).await;
        let stream = listen(&gate).await;
        is_there.store(true, Ordering::SeqCst);
        heard(stream, "notifications/tools/list_changed").await;
    };
    tokio::join!(in_session, alone);
}

/// As a program that takes long to start.
#[tokio::test]
async fn listeners_are_notified_that_a_slow_server_has_started() {
    let (begin, begun) = watch::channel(false);
    let late = ScriptedServer::slow(move |seen, _| {
        let mut begun = begun.clone();
        async move {
            if matches!(seen.rpc(), "initialize" | "server/discover") {
                let _ = begun.wait_for(|begun| *begun).await;
            }
            says_hello("late", &seen)
        }
    })
    .await;
    let (_other, gate) = with_another(&late).await;
    let client = gate.client().await;
    let list = client.post(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#).await.text().await;
    assert!(!list.contains("late__hello") && list.contains("other__hello"), "{list}");
    let stream = client.get(None).await;
    begin.send_replace(true);
    heard(stream, "notifications/tools/list_changed").await;
    let list = client.post(r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#).await.text().await;
    assert!(list.contains("late__hello"), "{list}");
}

/// A 2026-07-28 client that subscribes to changes of tools.
async fn listen(gate: &TestGateway) -> Reply {
    let params = json!({
        "notifications": {"toolsListChanged": true},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    });
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}).to_string();
    let mut client = gate.client_without_session();
    client.version = Some("2026-07-28".to_owned());
    let request = client.request("POST").header("content-type", "application/json");
    client.send(request.header("mcp-method", "subscriptions/listen").body(Full::from(body)).unwrap()).await
}

#[tokio::test]
async fn list_changes_pass_from_each_server_to_clients_of_either_era() {
    let servers = join_all(["one", "two"].map(|name| async move {
        let streams: Vec<_> = (0..2).map(|_| Once::events()).collect();
        let (events, streams): (Vec<_>, Vec<_>) = streams.into_iter().unzip();
        let server = hello(name, move |seen| {
            (seen.method == "GET").then(|| streams.iter().find_map(|stream| stream.take())).flatten()
        })
        .await;
        *server.world.initialize_result.lock() = json!({"capabilities": {"tools": {"listChanged": true}}});
        (events, server)
    }))
    .await;
    let addresses: Vec<_> =
        ["one", "two"].iter().zip(&servers).map(|(name, (_, server))| ((*name).to_owned(), server.address)).collect();
    let gate = at_one_path(&addresses, "").await;
    let client = gate.client().await;
    client.post(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#).await.text().await;
    let mut own = client.get(None).await;
    let mut listening = listen(&gate).await;
    listening.until("\n\n").await;
    for (events, server) in &servers {
        server.world.nth(1, |seen| seen.method == "GET").await;
        for stream in events {
            stream.raw("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n");
        }
        for (stream, is_tagged) in [(&mut own, false), (&mut listening, true)] {
            let mut said = stream.until("\n\n").await;
            while !said.contains("data:") {
                said = stream.until("\n\n").await;
            }
            assert!(said.contains("notifications/tools/list_changed"), "{said}");
            assert_eq!(said.contains("subscriptionId"), is_tagged, "{said}");
        }
    }
}

#[tokio::test]
async fn a_server_that_has_lost_its_sessions_gets_new_ones_and_the_others_keep_theirs() {
    for kind in KINDS {
        let (is_there, late) = returning().await;
        is_there.store(true, Ordering::SeqCst);
        let (other, gate) = with_another(&late).await;
        let mut client = client_of(kind, &gate).await;
        assert_eq!(tools(&mut client).await, ["late__hello", "other__hello"], "{kind:?}");
        let handshakes = other.world.count("initialize");
        late.world.forget();
        assert_eq!(tools(&mut client).await, ["late__hello", "other__hello"], "{kind:?}");
        late.world.forget();
        assert_eq!(said(&mut client, "late__hello").await, "late", "{kind:?}");
        assert_eq!(said(&mut client, "other__hello").await, "other", "{kind:?}");
        assert_eq!(other.world.count("initialize"), handshakes, "{kind:?}");
    }
}
