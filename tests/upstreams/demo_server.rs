//! The demo server over real sockets: each tool, the order of its messages, cancellation, sessions.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use taskgate::demo::DemoServer;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const SESSION: &str = "mcp-session-id";

/// The longest flood needs seconds of a core, and gets a part of one: only a hang takes this long.
async fn bounded<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(90), what).await.expect("the server answers in time")
}

struct Fixture {
    server: DemoServer,
    http: Http<HttpConnector, Full<Bytes>>,
    tracker: TaskTracker,
    cancel: CancellationToken,
}

impl Fixture {
    async fn start() -> Self {
        let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = DemoServer::start(address, &tracker, cancel.clone()).await.unwrap();
        Self { server, http: Http::builder(TokioExecutor::new()).build_http(), tracker, cancel }
    }

    /// Sends one HTTP request; `headers` come after the usual ones and replace them.
    async fn send(&self, method: Method, headers: &[(&'static str, &str)], body: impl ToString) -> Reply {
        let mut request = Request::new(Full::from(body.to_string()));
        *request.method_mut() = method;
        *request.uri_mut() = self.server.url().parse().unwrap();
        let usual =
            [(ACCEPT.as_str(), "application/json, text/event-stream"), (CONTENT_TYPE.as_str(), "application/json")];
        for &(name, value) in usual.iter().chain(headers) {
            request.headers_mut().insert(HeaderName::from_static(name), value.parse().unwrap());
        }
        let response = bounded(self.http.request(request)).await.unwrap();
        Reply { response, unread: String::new() }
    }

    /// Opens a session of a client with these capabilities and returns its id.
    async fn open(&self, version: &str, capabilities: Value) -> String {
        let params = json!({ "protocolVersion": version, "capabilities": capabilities,
            "clientInfo": { "name": "test", "version": "1" } });
        let reply = self.send(Method::POST, &[], request(1, "initialize", params)).await;
        assert_eq!(reply.status(), StatusCode::OK);
        let id = reply.response.headers()[SESSION].to_str().unwrap().to_owned();
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(self.post(&id, initialized).await.status(), StatusCode::ACCEPTED);
        id
    }

    async fn post(&self, session: &str, message: Value) -> Reply {
        self.send(Method::POST, &[(SESSION, session)], message).await
    }

    async fn call(&self, session: &str, tool: &str, arguments: Value) -> Reply {
        self.post(session, request(7, "tools/call", json!({ "name": tool, "arguments": arguments }))).await
    }
}

struct Reply {
    response: http::Response<Incoming>,
    unread: String,
}

impl Reply {
    fn status(&self) -> StatusCode {
        self.response.status()
    }

    fn kind(&self) -> &str {
        self.response.headers()[CONTENT_TYPE].to_str().unwrap()
    }

    async fn json(self) -> Value {
        let body = bounded(self.response.into_body().collect()).await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    /// The next message of an event stream; `None` at its end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.unread.split_once("\n\n") {
                let message = event.lines().find_map(|line| line.strip_prefix("data: ")).map(serde_json::from_str);
                self.unread = rest.to_owned();
                match message {
                    Some(message) => return Some(message.unwrap()),
                    None => continue,
                }
            }
            let frame = bounded(self.response.body_mut().frame()).await?.unwrap();
            self.unread += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
        }
    }
}

fn request(id: u32, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn text_of(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap()
}

#[tokio::test]
async fn quick_tools_answer_with_json() {
    let fixture = Fixture::start().await;
    let session = fixture.open("2025-06-18", json!({})).await;
    for (tool, arguments, text, is_error) in [
        ("greet", json!({ "name": "Ada" }), "Hello, Ada!", false),
        ("slow_report", json!({ "seconds": 0, "steps": 2 }), "The report is ready: 2 sections in 0 s.", false),
        ("flood", json!({ "bytes": 5 }), "All w", false),
        ("fail", json!({}), "This tool always fails.", true),
    ] {
        let reply = fixture.call(&session, tool, arguments).await;
        assert_eq!((reply.status(), reply.kind()), (StatusCode::OK, "application/json"), "{tool}");
        let answer = reply.json().await;
        assert_eq!(answer["id"], 7);
        assert_eq!(text_of(&answer), text);
        assert_eq!(answer["result"]["isError"] == true, is_error, "{tool}");
    }
}

#[tokio::test]
async fn mistakes_are_answered_as_errors_with_status_200() {
    let fixture = Fixture::start().await;
    let session = fixture.open("2025-06-18", json!({})).await;
    let call = |params| request(2, "tools/call", params);
    for (message, code) in [
        (call(json!({ "name": "crash" })), -32603),
        (call(json!({ "name": "nobody" })), -32602),
        (call(json!({})), -32602),
        (call(json!({ "name": "greet", "arguments": {} })), -32602),
        (call(json!({ "name": "greet", "arguments": [] })), -32602),
        (call(json!({ "name": "slow_report", "arguments": { "seconds": -1 } })), -32602),
        (call(json!({ "name": "slow_report", "arguments": { "steps": 0 } })), -32602),
        (call(json!({ "name": "flood", "arguments": { "bytes": (64 << 20) + 1 } })), -32602),
        (request(2, "tasks/get", json!({ "taskId": "1" })), -32601),
        (request(2, "server/discover", json!({})), -32601),
    ] {
        let reply = fixture.post(&session, message.clone()).await;
        assert_eq!(reply.status(), StatusCode::OK, "{message}");
        let answer = reply.json().await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(2), &json!(code)), "{message}");
    }
    let crash = fixture.call(&session, "crash", json!({})).await.json().await;
    assert_eq!(crash["error"]["data"]["tool"], "crash");
}

#[tokio::test]
async fn the_largest_flood_arrives_whole() {
    let fixture = Fixture::start().await;
    let session = fixture.open("2025-06-18", json!({})).await;
    let answer = fixture.call(&session, "flood", json!({ "bytes": 64 << 20 })).await.json().await;
    assert_eq!(text_of(&answer).len(), 64 << 20);
}

#[tokio::test]
async fn all_tools_are_listed_with_schema_and_hints() {
    let fixture = Fixture::start().await;
    let session = fixture.open("2025-06-18", json!({})).await;
    let answer = fixture.post(&session, request(1, "tools/list", json!({}))).await.json().await;
    let tools = answer["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["greet", "slow_report", "confirm_delete", "summarise", "fail", "crash", "flood"]);
    for tool in tools {
        assert_eq!(tool["inputSchema"]["type"], "object");
        assert!(tool["annotations"]["readOnlyHint"].is_boolean());
    }
    let pong = fixture.post(&session, request(2, "ping", json!({}))).await.json().await;
    assert_eq!(pong["result"], json!({}));
}

#[tokio::test]
async fn progress_comes_in_order_and_before_the_result() {
    let fixture = Fixture::start().await;
    let session = fixture.open("2025-06-18", json!({})).await;
    let params = json!({ "name": "slow_report", "arguments": { "seconds": 0.05, "steps": 3 },
        "_meta": { "progressToken": "p" } });
    let mut reply = fixture.post(&session, request(4, "tools/call", params)).await;
    assert_eq!(reply.kind(), "text/event-stream");
    for step in 1..=3 {
        let params = json!({ "progressToken": "p", "progress": step, "total": 3,
            "message": format!("section {step}/3 written") });
        let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
        assert_eq!(reply.next().await, Some(progress));
    }
    assert_eq!(text_of(&reply.next().await.unwrap()), "The report is ready: 3 sections in 0.05 s.");
    assert_eq!(reply.next().await, None, "the answer ends the stream");
}

/// One row: a tool, the client's answer to its question, the tool's text.
async fn check_question(tool: &str, arguments: Value, answer: Value, method: &str, text: &str) {
    let fixture = Fixture::start().await;
    let session = fixture.open("2025-06-18", json!({ "elicitation": {}, "sampling": {} })).await;
    let mut reply = fixture.call(&session, tool, arguments).await;
    let question = reply.next().await.unwrap();
    assert_eq!(question["method"], method);
    let mut message = json!({ "jsonrpc": "2.0", "id": question["id"] });
    message.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
    assert_eq!(fixture.post(&session, message).await.status(), StatusCode::ACCEPTED);
    assert_eq!(text_of(&reply.next().await.unwrap()), text);
    assert_eq!(reply.next().await, None);
}

#[tokio::test]
async fn tools_that_ask_act_on_the_answer() {
    let yes = json!({ "action": "accept", "content": { "confirm": true } });
    let no = json!({ "action": "accept", "content": { "confirm": false } });
    let refused = json!({ "error": { "code": -1, "message": "the user said no" } });
    let model = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "Short." } });
    for (answer, text) in [
        (json!({ "result": yes }), "Deleted a.txt."),
        (json!({ "result": no }), "Kept a.txt."),
        (json!({ "result": { "action": "decline" } }), "Kept a.txt."),
        (refused.clone(), "Kept a.txt: the user said no."),
    ] {
        check_question("confirm_delete", json!({ "path": "a.txt" }), answer, "elicitation/create", text).await;
    }
    for (answer, text) in [(json!({ "result": model }), "Summary: Short."), (refused, "No summary: the user said no.")]
    {
        check_question("summarise", json!({ "text": "Long." }), answer, "sampling/createMessage", text).await;
    }
}

#[tokio::test]
async fn tools_that_ask_fail_where_the_client_cannot_answer() {
    let fixture = Fixture::start().await;
    let session = fixture.open("2025-06-18", json!({})).await;
    for (tool, arguments, word) in [
        ("confirm_delete", json!({ "path": "a.txt" }), "elicitation"),
        ("summarise", json!({ "text": "Long." }), "sampling"),
    ] {
        let answer = fixture.call(&session, tool, arguments).await.json().await;
        assert_eq!(answer["result"]["isError"], true);
        assert!(text_of(&answer).contains(word));
    }
}

/// Cancels a call that would otherwise take an hour, and reads its stream to the end.
async fn check_cancelled(tool: &str, arguments: Value, messages_before: usize) {
    let fixture = Fixture::start().await;
    let session = fixture.open("2025-06-18", json!({ "elicitation": {} })).await;
    let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": 1 } });
    let mut reply = fixture.post(&session, request(9, "tools/call", params)).await;
    for _ in 0..messages_before {
        assert!(reply.next().await.unwrap()["method"].is_string());
    }
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 9 } });
    assert_eq!(fixture.post(&session, cancelled).await.status(), StatusCode::ACCEPTED);
    while let Some(message) = reply.next().await {
        assert!(message["method"].is_string(), "a cancelled call has no answer, but this came: {message}");
    }
    let again = fixture.call(&session, "greet", json!({ "name": "Ada" })).await.json().await;
    assert_eq!(text_of(&again), "Hello, Ada!", "the session goes on");
}

#[tokio::test]
async fn a_cancelled_call_stops_without_an_answer() {
    check_cancelled("slow_report", json!({ "seconds": 36, "steps": 1000 }), 2).await;
    check_cancelled("confirm_delete", json!({ "path": "a.txt" }), 1).await;
}

#[tokio::test]
async fn a_client_that_leaves_does_not_cancel_its_call() {
    let fixture = Fixture::start().await;
    let session = fixture.open("2025-06-18", json!({ "elicitation": {} })).await;
    let mut reply = fixture.call(&session, "confirm_delete", json!({ "path": "a.txt" })).await;
    reply.next().await.unwrap();
    drop(reply);
    // The id stays taken for as long as the call runs.
    let answer = fixture.call(&session, "greet", json!({ "name": "Ada" })).await.json().await;
    assert_eq!(answer["error"]["code"], -32600);
}

#[tokio::test]
async fn requests_without_a_known_session_are_refused() {
    let fixture = Fixture::start().await;
    let known = fixture.open("2025-06-18", json!({})).await;
    let ping = request(1, "ping", json!({})).to_string();
    let unknown = "0123456789abcdef0123456789abcdef";
    let both = [(SESSION, known.as_str()), ("mcp-protocol-version", "2026-07-28")];
    for (method, headers, body, status) in [
        (Method::POST, &[][..], ping.as_str(), StatusCode::BAD_REQUEST),
        (Method::GET, &[], "", StatusCode::BAD_REQUEST),
        (Method::DELETE, &[], "", StatusCode::BAD_REQUEST),
        (Method::POST, &[(SESSION, unknown)], &ping, StatusCode::NOT_FOUND),
        (Method::GET, &[(SESSION, unknown)], "", StatusCode::NOT_FOUND),
        (Method::DELETE, &[(SESSION, unknown)], "", StatusCode::NOT_FOUND),
        (Method::POST, &both, &ping, StatusCode::BAD_REQUEST),
        (Method::POST, &both[..1], &ping, StatusCode::OK),
    ] {
        let reply = fixture.send(method.clone(), headers, body).await;
        assert_eq!(reply.status(), status, "{method} {headers:?}");
    }
}

#[tokio::test]
async fn malformed_http_is_refused_by_status() {
    let fixture = Fixture::start().await;
    let ping = request(1, "ping", json!({})).to_string();
    for (method, headers, body, status) in [
        (Method::PUT, ("accept", "*/*"), ping.as_str(), StatusCode::METHOD_NOT_ALLOWED),
        (Method::POST, ("accept", "text/html"), &ping, StatusCode::NOT_ACCEPTABLE),
        (Method::GET, ("accept", "application/json"), "", StatusCode::NOT_ACCEPTABLE),
        (Method::POST, ("content-type", "text/plain"), &ping, StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (Method::POST, ("accept", "*/*"), "{", StatusCode::BAD_REQUEST),
        (Method::POST, ("accept", "*/*"), "{}", StatusCode::BAD_REQUEST),
        (Method::POST, ("origin", "https://example.org"), &ping, StatusCode::FORBIDDEN),
        (Method::POST, ("host", "example.org"), &ping, StatusCode::FORBIDDEN),
        (Method::POST, ("accept", "*/*"), &"x".repeat((4 << 20) + 1), StatusCode::PAYLOAD_TOO_LARGE),
    ] {
        let reply = fixture.send(method, &[headers], body).await;
        assert_eq!(reply.status(), status, "{headers:?}");
    }
}

#[tokio::test]
async fn a_probe_for_newer_versions_hears_that_the_method_is_unknown() {
    let fixture = Fixture::start().await;
    let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "server/discover")];
    let reply = fixture.send(Method::POST, &headers, request(1, "server/discover", json!({}))).await;
    assert_eq!(reply.json().await["error"]["code"], -32601);
}

#[tokio::test]
async fn versions_are_negotiated() {
    let fixture = Fixture::start().await;
    for (asked, answered) in [
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-06-18"),
        ("2024-11-05", "2025-06-18"),
        ("2026-07-28", "2025-06-18"),
    ] {
        let params = json!({ "protocolVersion": asked, "capabilities": {} });
        let answer = fixture.send(Method::POST, &[], request(1, "initialize", params)).await.json().await;
        assert_eq!(answer["result"]["protocolVersion"], answered);
    }
}

#[tokio::test]
async fn batches_are_for_2025_03_26_alone() {
    let fixture = Fixture::start().await;
    let batch = json!([request(1, "ping", json!({})), request(2, "tools/call", json!({ "name": "crash" }))]);
    let newer = fixture.open("2025-06-18", json!({})).await;
    assert_eq!(fixture.post(&newer, batch.clone()).await.status(), StatusCode::BAD_REQUEST);
    let older = fixture.open("2025-03-26", json!({})).await;
    let mut reply = fixture.post(&older, batch).await;
    let mut ids = [reply.next().await.unwrap()["id"].clone(), reply.next().await.unwrap()["id"].clone()];
    ids.sort_by_key(Value::as_u64);
    assert_eq!(ids, [json!(1), json!(2)]);
    assert_eq!(reply.next().await, None);
}

#[tokio::test]
async fn a_deleted_session_takes_its_streams_and_calls_with_it() {
    let fixture = Fixture::start().await;
    let session = fixture.open("2025-06-18", json!({ "elicitation": {} })).await;
    let mut listening = fixture.send(Method::GET, &[(SESSION, &session)], "").await;
    assert_eq!(listening.kind(), "text/event-stream");
    let mut call = fixture.call(&session, "confirm_delete", json!({ "path": "a.txt" })).await;
    call.next().await.unwrap();

    let deleted = fixture.send(Method::DELETE, &[(SESSION, &session)], "").await;
    assert_eq!(deleted.status(), StatusCode::NO_CONTENT);
    assert_eq!(listening.next().await, None);
    assert_eq!(call.next().await, None);
    let after = fixture.post(&session, request(1, "ping", json!({}))).await;
    assert_eq!(after.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_second_get_stream_ends_the_first() {
    let fixture = Fixture::start().await;
    let session = fixture.open("2025-06-18", json!({})).await;
    let mut first = fixture.send(Method::GET, &[(SESSION, &session)], "").await;
    let second = fixture.send(Method::GET, &[(SESSION, &session)], "").await;
    assert_eq!(first.next().await, None);
    drop(second);
}

#[tokio::test]
async fn stopping_leaves_nothing_running() {
    let fixture = Fixture::start().await;
    let session = fixture.open("2025-06-18", json!({ "elicitation": {} })).await;
    let mut call = fixture.call(&session, "confirm_delete", json!({ "path": "a.txt" })).await;
    call.next().await.unwrap();
    fixture.cancel.cancel();
    fixture.tracker.close();
    bounded(fixture.tracker.wait()).await;
    assert_eq!(bounded(call.next()).await, None);
}
