//! The end of a stream, and of its calls; and a client that does not read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use serde_json::json;
use tokio::sync::Notify;

use super::client::{ADA, Gate};
use super::upstream::{ScriptedReply, ScriptedServer, SeenRequest, answer, in_time, polite};

/// A server whose calls of `held` wait for a word.
async fn holding() -> (ScriptedServer, Arc<Notify>) {
    let word = Arc::new(Notify::new());
    let heard = Arc::clone(&word);
    let server = ScriptedServer::slow(move |seen: SeenRequest, world| {
        let heard = Arc::clone(&heard);
        async move {
            if seen.is_call() && seen.body["params"]["name"] == "held" {
                heard.notified().await;
            }
            Some(polite(&seen, &world))
        }
    });
    (server.await, word)
}

/// LEG-19: the connection is the session, and its calls end with it.
#[tokio::test]
async fn a_stream_that_breaks_cancels_its_calls_and_ends_its_session() {
    let (server, _word) = holding().await;
    let gate = Gate::before(server).await;
    let stream = gate.client("2024-11-05").await;
    let endpoint = stream.endpoint.clone();
    stream.call(1, "held", json!({})).await;
    let call = gate.server.world.first(SeenRequest::is_call).await;
    let address = stream.address;
    drop(stream);
    let world = &gate.server.world;
    let cancelled = world.first(|seen| seen.rpc() == "notifications/cancelled").await;
    assert_eq!(cancelled.body["params"]["requestId"], 1);
    let ended = world.first(|seen| seen.method == Method::DELETE).await;
    assert_eq!(ended.header("mcp-session-id"), call.header("mcp-session-id"));
    let ping = || {
        let request = super::client::request("POST", &endpoint, ADA).header("content-type", "application/json");
        request.body(r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#.into()).unwrap()
    };
    assert_eq!(super::client::whole(address, ping()).await.0, 404);
    let mut again = gate.client("2024-11-05").await;
    again.call(2, "quick", json!({ "n": 2 })).await;
    assert_eq!(again.message().await["result"]["n"], 2, "a new stream is a new session");
}

/// U91: the credential in the first message's headers may have expired.
#[tokio::test]
async fn u91_a_session_ends_with_the_headers_of_the_latest_message() {
    let gate = Gate::with(ScriptedServer::polite().await, "forward_headers = [\"x-tenant\"]\n").await;
    let stream = gate.client("2024-11-05").await;
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "t", "arguments": {} } });
    let request = super::client::request("POST", &stream.endpoint, ADA).header("content-type", "application/json");
    let request = request.header("x-tenant", "second").body(call.to_string().into()).unwrap();
    assert_eq!(super::client::whole(stream.address, request).await.0, 202);
    let world = &gate.server.world;
    assert_eq!(world.first(SeenRequest::is_call).await.header("x-tenant"), Some("second"));
    drop(stream);
    assert_eq!(world.first(|seen| seen.method == Method::DELETE).await.header("x-tenant"), Some("second"));
}

#[tokio::test]
async fn a_drain_hears_out_a_call_and_then_ends_the_stream() {
    let (server, word) = holding().await;
    let gate = Gate::before(server).await;
    let mut idle = gate.client("2024-11-05").await;
    let mut busy = gate.client("2024-11-05").await;
    busy.call(1, "held", json!({ "n": 1 })).await;
    gate.server.world.first(SeenRequest::is_call).await;
    let Gate { server: _server, gateway, .. } = gate;
    let draining = gateway.drain(Some(Duration::ZERO));
    let watching = async {
        assert_eq!(idle.text().await, None, "with nothing under way it ends at once");
        assert!(busy.is_silent().await, "it is waited for");
        word.notify_one();
        assert_eq!(busy.message().await["result"]["n"], 1);
        assert_eq!(busy.text().await, None);
    };
    in_time(Box::pin(async { tokio::join!(draining, watching) })).await;
}

/// F24: the streams of a replaced upstream end once no call runs; others do not notice the reload.
#[tokio::test]
async fn a_reload_ends_the_streams_of_an_upstream_that_changed() {
    let (server, word) = holding().await;
    let mut gate = Gate::before(server).await;
    let (mut idle, mut busy) = (gate.client("2024-11-05").await, gate.client("2024-11-05").await);
    busy.call(1, "held", json!({ "n": 1 })).await;
    gate.server.world.first(SeenRequest::is_call).await;
    gate.gateway.reload(gate.config.clone()).unwrap();
    assert!(idle.is_silent().await, "nothing changed");
    idle.call(1, "quick", json!({ "n": 3 })).await;
    assert_eq!(idle.message().await["result"]["n"], 3, "its messages are taken as before");
    gate.config.upstreams[0].service.result_bytes_max += 1;
    gate.gateway.reload(gate.config.clone()).unwrap();
    assert_eq!(idle.text().await, None);
    let question = busy.post(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#).await;
    assert_eq!(question.0, 202, "an open call is still found");
    assert_eq!(busy.message().await["id"], 2);
    word.notify_one();
    assert_eq!(busy.message().await["result"]["n"], 1);
    assert_eq!(busy.text().await, None);
    let mut again = gate.client("2024-11-05").await;
    again.call(1, "quick", json!({ "n": 4 })).await;
    assert_eq!(again.message().await["result"]["n"], 4);
}

/// LEG-14: its server owes it no response.
#[tokio::test]
async fn a_stream_that_is_to_end_does_not_wait_for_a_cancelled_call() {
    let (server, _word) = holding().await;
    let mut gate = Gate::before(server).await;
    let mut stream = gate.client("2024-11-05").await;
    stream.call(1, "held", json!({})).await;
    gate.server.world.first(SeenRequest::is_call).await;
    stream.note("notifications/cancelled", json!({ "requestId": 1 })).await;
    gate.server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
    gate.config.upstreams[0].service.result_bytes_max += 1;
    gate.gateway.reload(gate.config.clone()).unwrap();
    assert_eq!(stream.text().await, None);
}

/// Pieces of 64 KiB without end, each counted as it is taken.
fn flood(seen: &SeenRequest, taken: &Arc<AtomicUsize>) -> ScriptedReply {
    let params = json!({ "level": "info", "data": "x".repeat(64 << 10) });
    let message = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": params });
    let event = Bytes::from(format!("data: {message}\n\n"));
    let pieces = stream::unfold((event, Arc::clone(taken)), |(event, taken)| async move {
        let n = taken.fetch_add(1, Ordering::Relaxed);
        // Far more than all buffers on the way hold together.
        (n < 4_000).then(|| (Ok::<_, io::Error>(Frame::data(event.clone())), (event, taken)))
    });
    let mut reply = Response::new(StreamBody::new(pieces).boxed_unsync());
    reply.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
    assert!(seen.is_call());
    reply
}

/// B158, SEC-11.
#[tokio::test]
async fn a_client_that_does_not_read_holds_up_its_server_and_no_other_client() {
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let server = ScriptedServer::start(move |seen| {
        (seen.is_call() && seen.body["params"]["name"] == "flood").then(|| flood(seen, &counted))
    });
    let gate = Gate::before(server.await).await;
    let (slow, mut other) = (gate.client("2024-11-05").await, gate.client("2024-11-05").await);
    slow.call(1, "flood", json!({})).await;
    let mut before = 0;
    in_time(async {
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = taken.load(Ordering::Relaxed);
            if now > 0 && now == before {
                return;
            }
            before = now;
        }
    })
    .await;
    assert!(before < 1_000, "{before} pieces were taken from the server");
    for id in 1..=20 {
        other.call(id, "quick", json!({ "n": id })).await;
        assert_eq!(other.message().await["result"]["n"], id);
    }
    drop(slow);
    gate.server.world.first(|seen| seen.method == Method::DELETE).await;
}

/// A client that POSTs without end and never reads: its POSTs wait, and no accepted request is lost.
#[tokio::test]
async fn requests_accepted_with_202_are_answered_once_the_client_reads() {
    let server = ScriptedServer::start(|seen| {
        let text = "x".repeat(32 << 10);
        seen.is_call().then(|| answer(seen, &json!({ "content": [], "text": text })))
    });
    let gate = Gate::open(server.await, "").await;
    let mut stream = gate.client("2024-11-05").await;
    for id in 1..=300 {
        stream.call(id, "large", json!({})).await;
    }
    let mut ids = Vec::new();
    for _ in 1..=300 {
        ids.push(stream.message().await["id"].as_u64().unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, (1..=300).collect::<Vec<_>>());
}
