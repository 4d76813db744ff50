//! One client over one ordered stream (`face::duplex`), in front of an endpoint that follows a script.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod room;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::StreamBody;
use hyper::body::Frame;
use parking_lot::Mutex;
use serde_json::{Value, json};
use support::serving;
use taskgate::face::http::{Endpoint, FaceResponse, Inbound, MessageChannel, ResponseBody, empty_body, full_body};
use taskgate::face::stream_client::{self, ClientMessage, StreamClient};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

const PATIENCE: Duration = Duration::from_secs(600);
const BYTES_MAX: usize = 4_096;

/// The endpoint's answer to one request.
enum Act {
    Json(u16, String),
    /// The same, after a while.
    Later(Duration, String),
    /// Pieces of an event stream, which ends behind them.
    Events(Vec<&'static str>),
    /// The same, and the stream stays open.
    Open(Vec<&'static str>),
    Bare(u16),
    /// The session's id, beside an answer.
    Session(String),
    /// Waits for ever, and notes when it is dropped.
    Hang,
    Panic,
}

struct Script {
    acts: Mutex<VecDeque<(&'static str, Act)>>,
    /// `METHOD session last-event-id body`, as they came.
    seen: Mutex<Vec<(Method, HeaderMap, String)>>,
    came: Semaphore,
    dropped: Arc<Mutex<Vec<String>>>,
}

struct Dropped(Arc<Mutex<Vec<String>>>, String);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.lock().push(self.1.clone());
    }
}

#[async_trait]
impl Endpoint for Script {
    async fn serve(&self, inbound: Box<Inbound>) -> FaceResponse {
        assert_eq!(inbound.carriage, MessageChannel::Stream);
        let body = String::from_utf8(inbound.body.to_vec()).unwrap();
        self.seen.lock().push((inbound.method.clone(), inbound.headers, body.clone()));
        let key = if inbound.method == Method::POST { body.clone() } else { inbound.method.to_string() };
        let act = {
            let mut acts = self.acts.lock();
            let at = acts.iter().position(|(part, _)| key.contains(part));
            at.and_then(|at| acts.remove(at)).map_or(Act::Bare(202), |(_, act)| act)
        };
        self.came.add_permits(1);
        match act {
            Act::Json(status, text) => json_answer(status, text),
            Act::Later(pause, text) => {
                tokio::time::sleep(pause).await;
                json_answer(200, text)
            }
            Act::Events(pieces) => events(stream::iter(pieces).boxed()),
            Act::Open(pieces) => events(stream::iter(pieces).chain(stream::pending()).boxed()),
            Act::Bare(status) => {
                let mut response = FaceResponse::new(empty_body());
                *response.status_mut() = StatusCode::from_u16(status).unwrap();
                response
            }
            Act::Session(text) => {
                let mut response = json_answer(200, text);
                response.headers_mut().insert("mcp-session-id", "s-1".parse().unwrap());
                response
            }
            Act::Hang => {
                let _dropped = Dropped(Arc::clone(&self.dropped), body);
                std::future::pending().await
            }
            Act::Panic => panic!("a bug"),
        }
    }
}

fn json_answer(status: u16, text: String) -> FaceResponse {
    let mut response = FaceResponse::new(full_body(Bytes::from(text)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    response
}

fn events(pieces: stream::BoxStream<'static, &'static str>) -> FaceResponse {
    let frames = pieces.map(|piece| Ok(Frame::data(Bytes::from_static(piece.as_bytes()).into())));
    let mut response = FaceResponse::new(ResponseBody::new(StreamBody::new(frames)));
    response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
    response
}

/// A client at its end of the stream.
struct Host {
    script: Arc<Script>,
    to: Option<mpsc::Sender<ClientMessage>>,
    from: mpsc::Receiver<Bytes>,
    serving: JoinHandle<()>,
}

impl Host {
    fn new(acts: Vec<(&'static str, Act)>) -> Self {
        let script = Arc::new(Script {
            acts: Mutex::new(acts.into()),
            seen: Mutex::default(),
            came: Semaphore::new(0),
            dropped: Arc::default(),
        });
        let client =
            StreamClient { message_bytes_max: BYTES_MAX, ..serving::stream_client(Arc::<Script>::clone(&script)) };
        let (to, spoken) = mpsc::channel(4);
        let (outgoing, from) = mpsc::channel(4);
        let serving = TaskTracker::new().spawn(stream_client::serve(client, spoken, outgoing));
        Self { script, to: Some(to), from, serving }
    }

    /// One with a session.
    async fn initialized(mut acts: Vec<(&'static str, Act)>) -> Self {
        acts.insert(0, ("\"initialize\"", Act::Session(answer(0))));
        let mut host = Self::new(acts);
        host.write(&request(0, "initialize")).await;
        assert_eq!(host.read().await["id"], 0);
        host.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        // The handshake's two messages, and the stream that is opened behind it.
        host.seen(3).await;
        host
    }

    async fn write(&self, message: &Value) {
        self.write_text(&message.to_string()).await;
    }

    async fn write_text(&self, text: &str) {
        let spoken = ClientMessage { text: Bytes::copy_from_slice(text.as_bytes()), ..ClientMessage::default() };
        timeout(PATIENCE, self.to.as_ref().unwrap().send(spoken)).await.unwrap().unwrap();
    }

    async fn read(&mut self) -> Value {
        let message = timeout(PATIENCE, self.from.recv()).await.expect("a message comes").expect("it goes on");
        serde_json::from_slice(&message).expect("it is JSON")
    }

    /// Waits until the endpoint was asked so often since the last wait.
    async fn seen(&self, count: u32) {
        timeout(PATIENCE, self.script.came.acquire_many(count)).await.expect("it is asked").unwrap().forget();
    }

    fn methods(&self) -> Vec<String> {
        let named = |body: &str| serde_json::from_str::<Value>(body).ok()?["method"].as_str().map(str::to_owned);
        let seen = self.script.seen.lock();
        seen.iter().map(|(verb, _, body)| named(body).unwrap_or_else(|| verb.to_string())).collect()
    }

    /// The client closes its input; returns the later requests at the endpoint.
    async fn leave(&mut self) {
        self.to = None;
        timeout(PATIENCE, &mut self.serving).await.expect("it ends").unwrap();
    }
}

fn request(id: u64, method: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {}})
}

fn stateless(id: u64, method: &str) -> Value {
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"_meta": meta}})
}

fn answer(id: u64) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {}}).to_string()
}

fn cancel(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}})
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_answer_reaches_the_host_as_messages() {
    let large = json!({"jsonrpc": "2.0", "id": 6, "result": "x".repeat(BYTES_MAX)}).to_string();
    let mut host = Host::new(vec![
        ("\"id\":1,", Act::Json(200, answer(1))),
        (
            "\"id\":2,",
            Act::Events(vec![
                ":\n\nid: 1\ndata:\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\nda",
                "ta: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n",
            ]),
        ),
        ("\"id\":3,", Act::Bare(429)),
        ("\"id\":4,", Act::Json(400, json!({"jsonrpc": "2.0", "error": {"code": -32600, "message": "m"}}).to_string())),
        ("\"id\":5,", Act::Bare(202)),
        ("\"id\":6,", Act::Json(200, large)),
        ("\"id\":7,", Act::Panic),
        (
            "\"id\":8,",
            Act::Json(503, json!({"jsonrpc": "2.0", "id": 8, "error": {"code": 1, "message": "m"}}).to_string()),
        ),
        ("\"id\":9,", Act::Events(vec!["data: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\n"])),
    ]);
    let expected = [
        (1, vec!["{}"]),
        (2, vec!["n", "{}"]),
        (3, vec!["rate_limited"]),
        (4, vec!["-32600"]),
        (5, vec!["upstream_closed"]),
        (6, vec!["result_too_large"]),
        (7, vec!["internal"]),
        (8, vec!["1"]),
        (9, vec!["n", "upstream_closed"]),
    ];
    for (id, words) in expected {
        host.write(&stateless(id, "tools/list")).await;
        for word in words {
            let said = host.read().await;
            let found = [&said["method"], &said["result"], &said["error"]["data"]["reason"], &said["error"]["code"]]
                .into_iter()
                .find(|part| !part.is_null())
                .map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned));
            assert_eq!(found.as_deref(), Some(word), "{said}");
            assert!(said["id"] == id || said["method"] == "n", "{said}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_line_is_refused_under_its_id_if_it_has_one() {
    let mut host = Host::new(vec![]);
    for (text, code, id) in [
        ("{\"jsonrpc\":", -32700, Value::Null),
        ("nonsense", -32700, Value::Null),
        ("{\"jsonrpc\":\"2.0\",\"id\":4}", -32600, json!(4)),
        ("{\"jsonrpc\":\"2.0\",\"id\":4,\"error\":{\"code\":-32603}}", -32600, Value::Null),
        ("{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tools/list\"}", -32600, json!(5)),
        ("[{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tools/list\"}]", -32600, Value::Null),
    ] {
        host.write_text(text).await;
        let said = host.read().await;
        assert_eq!((&said["error"]["code"], &said["id"]), (&json!(code), &id), "{text}");
    }
    // A cancel is allowed before there is a session; one of an unknown request is dropped.
    host.write(&cancel(1)).await;
    host.write_text(&answer(1)).await;
    host.write(&request(6, "ping")).await;
    assert_eq!(host.read().await, json!({"jsonrpc": "2.0", "id": 6, "result": {}}));
    assert!(host.script.seen.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn mod20_a_cancelled_request_without_a_session_is_dropped_and_hears_no_more() {
    let mut host = Host::new(vec![("\"id\":1,", Act::Hang), ("\"id\":2,", Act::Json(200, answer(2)))]);
    host.write(&stateless(1, "tools/call")).await;
    host.write(&cancel(1)).await;
    host.write(&stateless(2, "tools/list")).await;
    assert_eq!(host.read().await["id"], 2);
    assert_eq!(host.script.dropped.lock().len(), 1);
    assert_eq!(host.methods(), ["tools/call", "tools/list"], "the endpoint hears of it by the drop alone");
    // Its id is free again.
    host.write(&stateless(1, "tools/list")).await;
    assert_eq!(host.read().await["id"], 1);
}

/// T-52, MOD-25: behind its result a subscription is cancelled, unless it was refused or its client cancelled it.
#[tokio::test(start_paused = true)]
async fn t_52_a_subscription_that_ends_is_cancelled_behind_its_result() {
    const LISTEN: &str = "subscriptions/listen";
    let refusal = json!({"jsonrpc": "2.0", "id": 2, "error": {"code": -32602, "message": "m"}}).to_string();
    let news = "data: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\n";
    let mut host = Host::new(vec![
        ("\"id\":1,", Act::Events(vec![news, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"])),
        ("\"id\":2,", Act::Json(400, refusal)),
        ("\"id\":3,", Act::Open(vec![news])),
        ("\"id\":4,", Act::Events(vec!["data: {\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{}}\n\n"])),
        ("\"id\":5,", Act::Json(200, answer(5))),
    ]);
    host.write(&stateless(1, LISTEN)).await;
    assert_eq!(host.read().await["method"], "n");
    assert_eq!(host.read().await["id"], 1);
    let last = host.read().await;
    assert_eq!((&last["method"], &last["params"]["requestId"]), (&json!("notifications/cancelled"), &json!(1)));
    host.write(&stateless(2, LISTEN)).await;
    assert_eq!(host.read().await["error"]["code"], -32602);
    host.write(&stateless(3, LISTEN)).await;
    assert_eq!(host.read().await["method"], "n");
    host.write(&cancel(3)).await;
    for id in [4, 5] {
        host.write(&stateless(id, "tools/list")).await;
        assert_eq!(host.read().await["id"], id);
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_that_waits_for_its_answer_is_not_taken_twice() {
    let mut host = Host::new(vec![("\"id\":1,", Act::Hang)]);
    host.write(&stateless(1, "tools/call")).await;
    host.write(&stateless(1, "tools/call")).await;
    let said = host.read().await;
    assert_eq!((&said["error"]["code"], &said["id"]), (&json!(-32600), &json!(1)));
    assert!(host.script.dropped.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_session_wait_for_its_handshake_and_bear_its_id() {
    let mut host = Host::new(vec![
        ("\"initialize\"", Act::Session(answer(0))),
        ("GET", Act::Open(vec!["data: {\"jsonrpc\":\"2.0\",\"id\":\"s\",\"method\":\"roots/list\"}\n\n"])),
        ("\"id\":1,", Act::Json(200, answer(1))),
    ]);
    host.write(&request(0, "initialize")).await;
    host.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    host.write(&request(1, "tools/list")).await;
    host.write(&request(2, "initialize")).await;
    let mut said = Vec::new();
    for _ in 0..4 {
        said.push(host.read().await);
    }
    assert_eq!(said[0]["id"], 0);
    for (id, count) in [(json!(1), 1), (json!("s"), 1), (json!(2), 1)] {
        assert_eq!(said.iter().filter(|said| said["id"] == id).count(), count, "{said:?}");
    }
    assert_eq!(said.iter().find(|said| said["id"] == 2).unwrap()["error"]["code"], -32600);
    // The question's answer goes in the session.
    host.write_text("{\"jsonrpc\":\"2.0\",\"id\":\"s\",\"result\":{\"roots\":[]}}").await;
    host.seen(5).await;
    let seen = host.script.seen.lock();
    let sessions: Vec<_> = seen.iter().map(|(_, headers, _)| headers.contains_key("mcp-session-id")).collect();
    assert_eq!(sessions, [false, true, true, true, true]);
    assert!(seen[1].2.contains("initialized"), "before anything else of the session");
    assert!(seen[4].2.contains("roots"));
}

/// The error tells a host to begin with `initialize`.
#[tokio::test(start_paused = true)]
async fn a_host_whose_session_is_over_may_open_another_one() {
    let over =
        json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32001, "message": "Session not found"}}).to_string();
    let mut host = Host::initialized(vec![
        ("GET", Act::Open(vec![])),
        ("\"id\":1,", Act::Json(404, over)),
        ("\"initialize\"", Act::Session(answer(3))),
        ("\"id\":4,", Act::Json(200, answer(4))),
    ])
    .await;
    host.write(&request(1, "tools/list")).await;
    assert_eq!(host.read().await["error"]["code"], -32001);
    host.write(&request(2, "tools/list")).await;
    assert_eq!(host.read().await["error"]["code"], -32600, "nothing more is asked in the session that is over");
    host.write(&request(3, "initialize")).await;
    assert_eq!(host.read().await["result"], json!({}));
    host.write(&request(4, "tools/list")).await;
    assert_eq!(host.read().await["result"], json!({}));
    let seen = host.script.seen.lock();
    let (.., headers, body) = seen.last().unwrap();
    assert!(headers.contains_key("mcp-session-id") && body.contains("\"id\":4"), "{body}");
}

/// Of a stateless request, such a status says nothing about the session.
#[tokio::test(start_paused = true)]
async fn an_unknown_method_of_a_stateless_request_ends_no_session() {
    let unknown = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32601, "message": "m"}}).to_string();
    let mut host = Host::initialized(vec![
        ("GET", Act::Bare(405)),
        ("\"id\":1,", Act::Json(404, unknown)),
        ("\"id\":2,", Act::Json(200, answer(2))),
    ])
    .await;
    host.write(&stateless(1, "odd/method")).await;
    assert_eq!(host.read().await["error"]["code"], -32601);
    host.write(&request(2, "tools/list")).await;
    assert_eq!(host.read().await["result"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_early_is_taken_up_where_it_named_a_place() {
    let mut host = Host::initialized(vec![
        ("GET", Act::Bare(405)),
        ("\"id\":1,", Act::Events(vec!["id: e-1\nretry: 2000\ndata:\n\n"])),
        ("GET", Act::Events(vec!["id: e-2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\n"])),
        ("GET", Act::Bare(503)),
        ("GET", Act::Bare(429)),
        ("GET", Act::Events(vec!["data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"])),
    ])
    .await;
    let began = tokio::time::Instant::now();
    host.write(&request(1, "tools/call")).await;
    assert_eq!(host.read().await["method"], "n");
    assert!(began.elapsed() >= Duration::from_secs(2), "the server wanted to be left alone so long");
    assert_eq!(host.read().await["id"], 1);
    let seen = host.script.seen.lock();
    let places: Vec<_> = seen.iter().filter_map(|(_, headers, _)| headers.get("last-event-id")).collect();
    assert_eq!(places, ["e-1", "e-2", "e-2", "e-2"]);
}

/// Another refusal may concern the position.
#[tokio::test(start_paused = true)]
async fn the_sessions_own_stream_goes_on_after_its_last_event_once_an_outage_is_over() {
    let mut host = Host::initialized(vec![
        ("GET", Act::Events(vec!["id: e-1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\n"])),
        ("GET", Act::Bare(503)),
        ("GET", Act::Bare(429)),
        ("GET", Act::Bare(400)),
        ("GET", Act::Open(vec![])),
    ])
    .await;
    assert_eq!(host.read().await["method"], "n");
    host.seen(4).await;
    let seen = host.script.seen.lock();
    let gets = seen.iter().filter(|(verb, ..)| verb == Method::GET);
    let places: Vec<_> = gets.map(|(_, headers, _)| Some(headers.get("last-event-id")?.to_str().unwrap())).collect();
    assert_eq!(places, [None, Some("e-1"), Some("e-1"), Some("e-1"), None]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_input_cancels_unanswered_requests_and_ends_the_session() {
    let mut host = Host::initialized(vec![("GET", Act::Open(vec![])), ("\"id\":1,", Act::Hang)]).await;
    host.write(&request(1, "tools/call")).await;
    host.write(&stateless(2, "tools/list")).await;
    host.seen(2).await;
    host.leave().await;
    assert_eq!(host.methods()[3..], ["tools/call", "tools/list", "notifications/cancelled", "DELETE"]);
    assert!(host.script.seen.lock()[5].2.contains("\"requestId\":1"));
    assert_eq!(host.script.dropped.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_call_that_was_cancelled_is_told_so_and_may_stay_without_an_answer() {
    let mut host = Host::initialized(vec![
        ("GET", Act::Open(vec![])),
        ("\"id\":1,", Act::Hang),
        ("\"id\":2,", Act::Json(200, answer(2))),
    ])
    .await;
    host.write(&request(1, "tools/call")).await;
    host.write(&cancel(1)).await;
    host.seen(2).await;
    host.write(&request(2, "tools/list")).await;
    assert_eq!(host.read().await["id"], 2);
    host.leave().await;
    let cancels = host.methods().iter().filter(|method| *method == "notifications/cancelled").count();
    assert_eq!(cancels, 1, "it is taken back once");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_not_listened_to_for_ever() {
    let mut host = Host::new(vec![]);
    let flood = async {
        for _ in 0..1_000 {
            host.write_text("nonsense").await;
        }
    };
    assert!(timeout(Duration::from_secs(60), flood).await.is_err(), "a flood meets a bound");
    for _ in 0..60 {
        assert_eq!(host.read().await["error"]["code"], -32700);
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_requests_are_refused_and_cancellations_still_heard() {
    let mut host = Host::new((0..1_024).map(|_| ("tools/call", Act::Hang)).collect());
    for id in 0..1_024 {
        host.write(&stateless(id, "tools/call")).await;
    }
    host.seen(1_024).await;
    host.write(&stateless(2_000, "tools/call")).await;
    let said = host.read().await;
    assert_eq!((&said["id"], &said["error"]["data"]["reason"]), (&json!(2_000), &json!("queue_full")));
    host.write(&cancel(7)).await;
    host.write(&stateless(2_001, "tools/list")).await;
    assert_eq!(host.read().await["error"]["data"]["reason"], "upstream_closed", "there was room for it");
    assert_eq!(host.script.dropped.lock().len(), 1);
    host.leave().await;
    assert_eq!(host.script.dropped.lock().len(), 1_024);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hears_nothing_any_more_is_gone() {
    let mut host = Host::initialized(vec![("GET", Act::Open(vec![])), ("\"id\":1,", Act::Hang)]).await;
    host.write(&request(1, "tools/call")).await;
    host.seen(1).await;
    host.from.close();
    timeout(PATIENCE, &mut host.serving).await.expect("it ends").unwrap();
    assert_eq!(host.methods().last().unwrap(), "DELETE");
}
