//! Streams: questions of the upstream, the client's own stream, taking one up again, leaving.

use std::io;
use std::sync::Arc;

use futures_util::future::join_all;
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::json;
use support::ports::reserved_address;

use super::client::{TestGateway, call};
use super::upstream::{BodySender, Once, ScriptedServer, ScriptedState, SeenRequest, in_time};

fn is_get(seen: &SeenRequest) -> bool {
    seen.method == "GET"
}

#[tokio::test]
async fn a_question_on_the_stream_of_a_call_is_answered_by_the_client() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    let question =
        "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"elicitation/create\",\"params\":{}}\n\n";
    events.raw(question);
    let mut reply = client.post(call(1)).await;
    assert_eq!(reply.until("\n\n").await, question);
    let said = r#"{"jsonrpc":"2.0","id":0,"result":{"action":"accept","content":{"n":1.10}}}"#;
    assert_eq!(client.post(said).await.status, StatusCode::ACCEPTED);
    server.world.first(|seen| seen.bytes == said.as_bytes()).await;
    let result = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
    events.raw(result);
    drop(events);
    assert_eq!(reply.text().await, result);
}

/// The questions of one call are refused one by one, and logged once a minute.
#[tokio::test]
async fn questions_that_the_client_cannot_answer_do_not_fill_the_log() {
    let log = Arc::<Mutex<Vec<u8>>>::default();
    let into = Arc::clone(&log);
    let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(move || LogWriter(Arc::clone(&into))).finish();
    let _logged = tracing::subscriber::set_default(lines);
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    // Another test may have reached the same log statements before, and cached that no subscriber is interested.
    tracing::callsite::rebuild_interest_cache();
    let questions = (0..20).map(|id| {
        let params = json!({"mode": "url", "message": "m", "url": "https://a.example/", "elicitationId": "e"});
        let question = json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params});
        format!("data: {question}\n\n")
    });
    events.raw(questions.collect::<String>());
    events.raw("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n");
    drop(events);
    let told = client.post(call(1)).await.text().await;
    assert!(!told.contains("elicitation"), "{told}");
    server.world.nth(19, |seen| seen.body["id"].is_u64() && seen.body.get("method").is_none()).await;
    let log = String::from_utf8(log.lock().clone()).unwrap();
    assert_eq!(log.matches("a server's question was refused").count(), 1, "{log}");
}

struct LogWriter(Arc<Mutex<Vec<u8>>>);

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// LEG-08.
#[tokio::test]
async fn the_clients_own_stream_is_the_upstreams() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| is_get(seen).then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    let mut reply = client.get(None).await;
    assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, Some("text/event-stream")));
    let news = "id: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";
    events.raw(news);
    assert_eq!(reply.until("\n\n").await, news);
    let seen = server.world.first(is_get).await;
    assert_eq!((seen.header("accept"), seen.header("last-event-id")), (Some("text/event-stream"), None));
    assert_eq!((seen.header("mcp-session-id"), seen.header("mcp-protocol-version")), (Some("s-1"), Some("2025-11-25")));
    drop(reply);
    events.left().await;
}

/// A mark at the start belongs to no event: the first one is an answer with it as without.
#[tokio::test]
async fn a_stream_may_begin_with_a_byte_order_mark() {
    const ANSWER: &str = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"n\":1.10}}\n\n";
    for version in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let (events, stream) = Once::events();
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        let gate = TestGateway::before(&server).await;
        let client = gate.client_of(version).await;
        events.raw("\u{feff}");
        events.raw(ANSWER);
        drop(events);
        assert_eq!(client.post(call(1)).await.text().await, ANSWER, "{version}");
    }
}

/// LEG-09.
#[tokio::test]
async fn a_stream_is_taken_up_after_the_event_that_the_client_names() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| is_get(seen).then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    events.raw("id: e-8\ndata: {}\n\n");
    drop(events);
    let reply = client.get(Some("e-7 odd/\u{e9}")).await;
    assert_eq!(reply.text().await, "id: e-8\ndata: {}\n\n");
    let seen = server.world.first(is_get).await;
    assert_eq!(seen.headers.get("last-event-id").unwrap().as_bytes(), "e-7 odd/\u{e9}".as_bytes());
}

#[tokio::test]
async fn a_refusal_of_the_upstream_to_open_a_stream_is_forwarded() {
    for (said, shown) in [(405, 405), (404, 405), (409, 409), (400, 400), (500, 502), (401, 502)] {
        // Without a session id a 404 cannot mean that the session is lost.
        let server = ScriptedServer::start(move |seen| match (is_get(seen), seen.rpc()) {
            (true, _) => Some(super::upstream::status(said)),
            (false, "initialize") => {
                let result = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {}});
                Some(super::upstream::answer(seen, &result))
            }
            (false, _) => None,
        })
        .await;
        let gate = TestGateway::before(&server).await;
        assert_eq!(gate.client_of("2025-06-18").await.get(None).await.status.as_u16(), shown, "{said}");
    }
}

#[tokio::test]
async fn b273_a_sessions_own_stream_ends_with_the_session_in_every_version() {
    for version in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let (events, stream) = Once::events();
        let server = ScriptedServer::start(move |seen| is_get(seen).then(|| stream.take()).flatten()).await;
        let gate = TestGateway::before(&server).await;
        let client = gate.client_of(version).await;
        events.raw("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n");
        let mut own = client.get(None).await;
        own.until("\n\n").await;
        assert_eq!(client.delete().await.status, StatusCode::OK, "{version}");
        assert_eq!(own.piece().await, None, "{version}: the server has not ended it");
        drop(events);
    }
}

/// T-81, LEG-11, F49.
#[tokio::test]
async fn a_client_that_leaves_closes_the_stream_and_cancels_nothing() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    events.raw("data: {}\n\n");
    let mut reply = client.post(call(1)).await;
    reply.until("\n\n").await;
    drop(reply);
    events.left().await;
    assert_eq!(client.post(call(2)).await.status, StatusCode::OK, "the session goes on");
    assert_eq!(server.world.count("notifications/cancelled"), 0);
}

#[tokio::test]
async fn a_stream_that_breaks_between_events_ends_with_an_error_for_its_call() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    events.raw("data: {}\n\n");
    let mut reply = gate.client().await.post(call(1)).await;
    reply.until("\n\n").await;
    events.cut();
    let last = reply.text().await;
    assert!(last.contains(r#""id":1,"error":{"code":-32603"#) && last.contains("upstream_closed"), "{last}");
}

/// U21, U22: a client that cannot come back for its answer would wait for ever.
#[tokio::test]
async fn u22_a_stream_that_ends_in_order_without_the_answer_ends_with_an_error_for_its_call() {
    let other = r#"data: {"jsonrpc":"2.0","id":2,"result":{}}"#;
    let large = format!("data: {{\"jsonrpc\":\"2.0\",\"method\":\"x\",\"params\":\"{}\"}}", "x".repeat(60 * 1024));
    let question = r#"data: {"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}"#;
    let long = format!("id: {}\ndata: {{}}", "i".repeat(1025));
    for said in ["", ": a comment", "data: {}", other, question, &large, "id: a\0b\ndata: {}", "id:\ndata: {}", &long] {
        let sent = if said.is_empty() { String::new() } else { format!("{said}\n\n") };
        for message in
            [call(1), r#"{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"x://y"}}"#.into()]
        {
            let (events, stream) = Once::events();
            let server =
                ScriptedServer::start(move |seen| (seen.body["id"] == 1).then(|| stream.take()).flatten()).await;
            let gate = TestGateway::with(server.address, "in_flight_max = 1\nqueue_max = 0").await;
            let client = gate.client().await;
            events.raw(sent.clone());
            drop(events);
            let text = client.post(message).await.text().await;
            let last = text.strip_prefix(sent.as_str()).expect("all that the upstream said").to_owned();
            let error = last.strip_prefix("event: message\ndata: ").unwrap_or_else(|| panic!("{said:.80}: {last:?}"));
            let error: serde_json::Value = serde_json::from_str(error.trim_end()).unwrap();
            let data = json!({"source": "gateway", "reason": "upstream_closed", "executed": "unknown"});
            assert_eq!((&error["id"], &error["error"]["code"]), (&json!(1), &json!(-32603)), "{said:.80}");
            assert_eq!(error["error"]["data"], data, "{said:.80}");
            assert_eq!(client.post(call(2)).await.json().await["result"], json!({"n": 2}), "its place is free");
            assert_eq!(server.world.count("notifications/cancelled"), 0);
        }
    }
}

/// U22: MCP clients ignore an event with another name.
#[tokio::test]
async fn u22_a_stream_that_ends_in_the_middle_of_an_event_ends_with_an_error_for_its_call() {
    for is_cut in [false, true] {
        let (events, stream) = Once::events();
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        let gate = TestGateway::before(&server).await;
        events.raw("data: {}\n\ndata: half");
        let mut reply = gate.client().await.post(call(1)).await;
        reply.until("half").await;
        if is_cut {
            events.cut();
        }
        drop(events);
        let last = reply.text().await;
        let error = last
            .strip_prefix("x\nevent: incomplete\ndata: x\n\nevent: message\ndata: ")
            .unwrap_or_else(|| panic!("{last:?}"));
        assert!(error.contains(r#""id":1,"error":{"code":-32603"#) && error.contains("upstream_closed"), "{error}");
    }
}

/// U22: an answer anywhere in a stream is an answer, and an event that is too large to be looked into is taken for it.
#[tokio::test]
async fn u22_nothing_is_added_to_a_stream_that_brought_its_answer() {
    let answer = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
    let error = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":1,\"message\":\"m\"}}\r\n\r\n";
    let large = answer.replace("{}}", &format!("{{\"t\":\"{}\"}}}}", "x".repeat(100 * 1024)));
    // The client has to judge an answer that the gateway would not keep.
    let odd = answer.replace("{}}", "{\"a\":1,\"a\":2},\"x\":null}");
    for brought in [answer, error, &large, &odd] {
        let sent = format!("data: {{}}\n\n{brought}: bye\n\ndata: {{}}\n\n");
        let (events, stream) = Once::events();
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        let gate = TestGateway::before(&server).await;
        events.raw(sent.clone());
        drop(events);
        assert_eq!(gate.client().await.post(call(1)).await.text().await, sent);
    }
    // An array is taken apart for a client that knows none (UPC-26).
    let array = format!("data: [{}]\n\n", answer.trim().trim_start_matches("data: "));
    for (version, shown) in [("2025-03-26", array.as_str()), ("2025-06-18", answer), ("2025-11-25", answer)] {
        let (events, stream) = Once::events();
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        let gate = TestGateway::before(&server).await;
        events.raw(array.clone());
        drop(events);
        assert_eq!(gate.client_of(version).await.post(call(1)).await.text().await, shown, "{version}");
    }
}

/// T-29: with ids the client goes on by itself.
#[tokio::test]
async fn a_stream_that_can_be_taken_up_again_is_cut_as_it_was() {
    let sent = "id: 1\ndata: {}\n\n";
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    events.raw(sent);
    let mut reply = gate.client().await.post(call(1)).await;
    reply.until(sent).await;
    events.cut();
    assert_eq!(reply.try_text().await, None);
}

/// A server that closes streams on purpose: it sends the first event of each call and closes the stream, and sends the
/// rest to a client that names the event.
async fn leaving_server(rest: Arc<Once>) -> ScriptedServer {
    ScriptedServer::start(move |seen| match (is_get(seen), seen.is_call()) {
        (true, _) => rest.take(),
        (_, true) => {
            let (events, reply) = BodySender::open();
            events.raw(format!("id: e-{}\nretry: 10\ndata:\n\n", seen.body["id"]));
            Some(reply)
        }
        (false, false) => None,
    })
    .await
}

/// T-29: the call goes on upstream, so its place is taken until its answer has come.
#[tokio::test]
async fn a_call_whose_stream_was_closed_on_purpose_keeps_its_place() {
    for (name, last) in [("the stream ends", true), ("the stream goes on", false)] {
        let (events, rest) = Once::events();
        let server = leaving_server(rest).await;
        let gate = TestGateway::with(server.address, "in_flight_max = 1\nqueue_max = 0").await;
        let client = gate.client().await;
        let primer = client.post(call(1)).await.text().await;
        assert_eq!(primer, "id: e-1\nretry: 10\ndata:\n\n");
        assert_eq!(client.post(call(2)).await.json().await["error"]["data"]["reason"], "queue_full", "{name}");
        events.raw("id: e-2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n");
        let mut resumed = client.get(Some("e-1")).await;
        resumed.until("\n\n").await;
        assert_eq!(server.world.first(is_get).await.header("last-event-id"), Some("e-1"));
        assert_eq!(client.post(call(3)).await.json().await["error"]["data"]["reason"], "queue_full", "{name}");
        let result = "id: e-3\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"n\":1.10}}\n\n";
        events.raw(result);
        assert_eq!(resumed.until("\n\n").await, result, "{name}");
        if last {
            drop(events);
            assert_eq!(resumed.piece().await, None);
        }
        let again = client.post(call(4)).await;
        assert_eq!(again.header("content-type"), Some("text/event-stream"), "{name}: the place is free");
    }
}

/// U64: its client cannot come back.
#[tokio::test]
async fn u64_a_call_whose_stream_was_closed_on_purpose_gives_up_its_place_with_its_session() {
    let (_events, rest) = Once::events();
    let server = leaving_server(rest).await;
    let gate = TestGateway::with(server.address, "in_flight_max = 1\nqueue_max = 0").await;
    let (client, other) = (gate.client().await, gate.client().await);
    client.post(call(1)).await.text().await;
    assert_eq!(other.post(call(2)).await.json().await["error"]["data"]["reason"], "queue_full");
    assert_eq!(client.delete().await.status, StatusCode::OK);
    let again = other.post(call(3)).await;
    assert_eq!(again.header("content-type"), Some("text/event-stream"), "the place is free");
}

/// U90: its client does not come back.
#[tokio::test]
async fn u90_a_call_whose_stream_was_closed_on_purpose_gives_up_its_place_when_its_client_cancels_it() {
    let (_events, rest) = Once::events();
    let server = leaving_server(rest).await;
    let gate = TestGateway::with(server.address, "in_flight_max = 1\nqueue_max = 0").await;
    let client = gate.client().await;
    client.post(call(1)).await.text().await;
    let cancel = |id: u32| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    for (id, expected) in [(7, None), (1, Some("text/event-stream"))] {
        assert_eq!(client.post(cancel(id).to_string()).await.status, StatusCode::ACCEPTED);
        let next = client.post(call(2)).await;
        let stream = next.header("content-type").filter(|kind| *kind == "text/event-stream");
        assert_eq!(stream, expected, "after the cancel of {id}");
    }
    let told = server.world.all(|seen| seen.rpc() == "notifications/cancelled");
    assert_eq!(told.len(), 2, "{told:?}");
}

/// LEG-14: a server sends no response then, and may end the stream.
#[tokio::test]
async fn leg_14_a_cancelled_call_whose_stream_its_server_ends_has_no_response() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    events.raw("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n");
    let reply = client.post(call(1)).await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    assert_eq!(client.post(cancel.to_string()).await.status, StatusCode::ACCEPTED);
    drop(events);
    let text = reply.text().await;
    assert!(!text.contains("\"id\":1"), "{text}");
}

/// LEG-14: the client accepts JSON alone, and calls by one message or in an array.
#[tokio::test]
async fn leg_14_a_cancelled_call_of_a_client_without_streams_has_no_error() {
    for in_array in [false, true] {
        let (events, stream) = Once::events();
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        let gate = TestGateway::before(&server).await;
        let mut client = gate.client_of("2025-03-26").await;
        client.accept = "application/json";
        let (poster, body) = (client.clone(), if in_array { format!("[{}]", call(1)) } else { call(1) });
        let waiting = client.connections.spawn(async move { poster.post(body).await });
        server.world.first(SeenRequest::is_call).await;
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
        assert_eq!(client.post(cancel.to_string()).await.status, StatusCode::ACCEPTED);
        drop(events);
        let reply = in_time(waiting).await.unwrap();
        assert_eq!((reply.status, reply.text().await.as_str()), (StatusCode::ACCEPTED, ""));
    }
}

#[tokio::test]
async fn a_stream_with_ids_that_ends_with_its_answer_leaves_no_call_behind() {
    let server = ScriptedServer::start(|seen| {
        seen.is_call().then(|| {
            let (events, reply) = BodySender::open();
            events.raw(format!("id: e-1\ndata:\n\nid: e-2\ndata: {{\"jsonrpc\":\"2.0\",\"id\":{},", seen.body["id"]));
            events.raw("\"result\":{}}\n\n: bye\n\n");
            reply
        })
    })
    .await;
    let gate = TestGateway::with(server.address, "in_flight_max = 1\nqueue_max = 0").await;
    let client = gate.client().await;
    for id in [1, 2] {
        assert!(client.post(call(id)).await.text().await.contains("\"result\":{}"));
    }
}

/// When the client of a call whose stream has ended comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReturnTime {
    Never,
    /// At once, or as soon as it can: the deadline may have been sooner.
    Soon,
    AfterDeadline,
}

/// T-29: a deadline goes on while no client listens, and in the resumed stream; a client that returns after it gets an error.
#[tokio::test]
async fn a_call_that_is_taken_up_or_not_ends_at_its_deadline() {
    join_all([ReturnTime::Never, ReturnTime::Soon, ReturnTime::AfterDeadline].map(end_at_deadline)).await;
}

async fn end_at_deadline(returns: ReturnTime) {
    let (events, rest) = Once::events();
    let server = leaving_server(rest).await;
    // The deadline begins before the primer comes.
    let keys = "in_flight_max = 1\nqueue_max = 0\n[[upstreams.up.tools]]\nmatch = \"t\"\ndeadline = \"10s\"";
    let gate = TestGateway::with(server.address, keys).await;
    let client = gate.client().await;
    assert_eq!(client.post(call(1)).await.text().await, "id: e-1\nretry: 10\ndata:\n\n");
    let told = async || {
        let said = client.get(Some("e-1")).await.text().await;
        assert!(said.contains(r#""id":1,"error":{"code":-32603"#) && said.contains("deadline_exceeded"), "{said}");
    };
    if returns == ReturnTime::Soon {
        told().await;
        // As below.
        told().await;
    }
    let cancel = server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
    assert_eq!(cancel.body["params"], json!({"requestId": 1, "reason": "deadline_exceeded"}));
    if returns == ReturnTime::AfterDeadline {
        told().await;
        // The answer to the first attempt may have been lost.
        told().await;
    }
    let resumed = server.world.all(is_get);
    assert_eq!(resumed.len(), if returns == ReturnTime::Never { 0 } else { 2 }, "{returns:?}: it may have the answer");
    let again = client.post(call(2).replace("\"t\"", "\"lasting\"")).await;
    assert_eq!(again.header("content-type"), Some("text/event-stream"), "{returns:?}: the place is free");
    drop(events);
}

/// T-29: the server does not answer a client that comes back and leaves again.
#[tokio::test]
async fn a_call_ends_at_its_deadline_though_its_client_left_while_its_stream_was_taken_up() {
    let server = ScriptedServer::slow(async |seen: SeenRequest, _: Arc<ScriptedState>| {
        if is_get(&seen) {
            std::future::pending::<()>().await;
        }
        seen.is_call().then(|| {
            let (events, reply) = BodySender::open();
            events.raw("id: e-1\nretry: 10\ndata:\n\n");
            drop(events);
            reply
        })
    })
    .await;
    let gate = TestGateway::with(server.address, "[[upstreams.up.tools]]\nmatch = \"t\"\ndeadline = \"10s\"").await;
    let client = gate.client().await;
    assert_eq!(client.post(call(1)).await.text().await, "id: e-1\nretry: 10\ndata:\n\n");
    let returning = client.clone();
    let leaves = client.connections.spawn(async move { returning.get(Some("e-1")).await.status });
    server.world.first(is_get).await;
    leaves.abort();
    let cancel = server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
    assert_eq!(cancel.body["params"], json!({"requestId": 1, "reason": "deadline_exceeded"}));
}

/// T-29: a client that returns after the deadline gets the events that the server kept from before.
#[tokio::test]
async fn events_that_the_server_kept_are_sent_after_the_deadline_too() {
    let step = "id: e-2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n";
    let answer = "id: e-3\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"n\":1.10}}\n\n";
    let whole = format!("{step}{answer}");
    join_all([(whole.as_str(), true), (step, true), (step, false)].map(async |(kept, ends)| {
        let (events, rest) = Once::events();
        let server = leaving_server(rest).await;
        let gate = TestGateway::with(server.address, "[[upstreams.up.tools]]\nmatch = \"t\"\ndeadline = \"10s\"").await;
        let client = gate.client().await;
        client.post(call(1)).await.text().await;
        events.raw(kept.to_owned());
        let events = (!ends).then_some(events);
        server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
        let said = client.get(Some("e-1")).await.text().await;
        if kept == whole {
            assert_eq!(said, whole);
        } else {
            assert!(said.starts_with(step) && said.contains("deadline_exceeded"), "ends: {ends}, {said}");
        }
        drop(events);
    }))
    .await;
}

/// A client that the upstream refuses the rest cannot wait for it.
#[tokio::test]
async fn a_call_whose_stream_is_not_to_be_had_any_more_gives_up_its_place() {
    let (events, rest) = Once::events();
    rest.take();
    let server = leaving_server(rest).await;
    let gate = TestGateway::with(server.address, "in_flight_max = 1\nqueue_max = 0").await;
    let client = gate.client().await;
    client.post(call(1)).await.text().await;
    assert_eq!(client.get(Some("e-1")).await.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(client.post(call(2)).await.header("content-type"), Some("text/event-stream"));
    drop(events);
}

/// LEG-07.
#[tokio::test]
async fn a_client_that_takes_only_one_type_gets_it() {
    let (events, stream) = Once::events();
    let server =
        ScriptedServer::start(move |seen| (seen.is_call() && seen.body["id"] == 1).then(|| stream.take()).flatten())
            .await;
    let gate = TestGateway::before(&server).await;
    let mut client = gate.client().await;
    events.raw("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n");
    events.raw("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"n\":1.10}}\n\n");
    client.accept = "application/json";
    let reply = client.post(call(1)).await;
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.text().await, r#"{"jsonrpc":"2.0","id":1,"result":{"n":1.10}}"#);
    assert_eq!(client.get(None).await.status, StatusCode::NOT_ACCEPTABLE);
    client.accept = "text/event-stream";
    let reply = client.post(call(2)).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert_eq!(reply.text().await, "event: message\ndata: {\"id\":2,\"jsonrpc\":\"2.0\",\"result\":{\"n\":2}}\n\n");
    drop::<BodySender>(events);
}

/// The client's own stream ends by no other means, and clients come back for another.
#[tokio::test]
async fn a_shutdown_ends_the_clients_streams_in_order_and_waits_for_calls() {
    let (events, stream) = Once::events();
    let (own, own_stream) = Once::events();
    let server = ScriptedServer::start(move |seen| match (is_get(seen), seen.is_call()) {
        (true, _) => own_stream.take(),
        (_, true) => stream.take(),
        (false, false) => None,
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    own.raw(": open\n\n");
    events.raw("data: 1\n\n");
    let (mut news, mut called) = (client.get(None).await, client.post(call(1)).await);
    news.until(": open\n\n").await;
    called.until("data: 1\n\n").await;
    let drained = in_time(async {
        let watch = async {
            assert_eq!(news.piece().await, None, "ended in order");
            let result = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
            events.raw(result);
            drop(events);
            assert_eq!(called.text().await, result);
        };
        tokio::join!(Box::pin(gate.gateway.drain(Some(std::time::Duration::ZERO))), watch)
    });
    drained.await;
    own.left().await;
}

/// Some clients do not open their stream again after two refusals.
#[tokio::test]
async fn a_stream_waits_for_an_upstream_that_is_away() {
    let address = reserved_address();
    let server = ScriptedServer::start_at(address, None, |_| None).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    drop(server);
    let (events, stream) = Once::events();
    events.raw("data: {}\n\n");
    let opening = client.get(None);
    let returning = async {
        // The first attempt has failed by the time the server is back, or has not: both must do.
        tokio::task::yield_now().await;
        ScriptedServer::start_at(address, None, move |seen| is_get(seen).then(|| stream.take()).flatten()).await
    };
    let (mut reply, server) = tokio::join!(opening, returning);
    assert_eq!(reply.until("\n\n").await, "data: {}\n\n");
    assert_eq!(server.world.count("initialize"), 1, "in a session of the new server");
}

/// U46: a permit ends with its message, not with its transport.
#[tokio::test]
async fn a_call_gives_its_permit_back_with_its_answer_though_its_server_keeps_the_stream_open() {
    let open = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&open);
    let server = ScriptedServer::start(move |seen| {
        seen.is_call().then(|| {
            let (events, reply) = BodySender::open();
            events.result(seen, &json!({ "n": seen.body["id"] }));
            kept.lock().push(events);
            reply
        })
    })
    .await;
    let gate = TestGateway::with(server.address, "in_flight_max = 1\n").await;
    let client = gate.client().await;
    let mut replies = Vec::new();
    for id in 1..=3 {
        let mut reply = client.post(call(id)).await;
        assert!(reply.until("\n\n").await.contains(&format!("\"n\":{id}")));
        replies.push(reply);
    }
    open.lock().clear();
    for reply in replies {
        assert_eq!(reply.text().await, "", "it ends in order, with nothing behind the answer");
    }
}
