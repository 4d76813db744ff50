//! Messages that a client has not read yet, and those that it never gets: room for large answers, lines that are no
//! messages, ids of arrays, slow notifications.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use serde_json::json;
use support::serving;
use taskgate::face::http::{Endpoint, FaceResponse, Inbound, ResponseBody};
use taskgate::face::stdio::{self, StdioEnds};
use taskgate::face::stream_client::{self, ClientMessage, StreamClient};
use taskgate::shared_limits::SharedLimits;
use taskgate::task::PrincipalLimitTable;
use taskgate::wire::framing::BodyPart;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::{Act, Host, Script, answer, request, stateless};

const PIECE: usize = 64 << 10;
const ANSWER: usize = 4 << 20;
/// Their answers together are twice as large as the room.
const REQUESTS: usize = 12;

/// How a server sends a large answer.
#[derive(Clone, Copy, Debug)]
enum Sending {
    Sized,
    Unsized,
    Events,
}

/// A large answer that counts its read bytes.
struct Large {
    head: Option<Bytes>,
    left: usize,
    tail: Option<Bytes>,
    is_sized: bool,
    taken: Arc<AtomicUsize>,
}

impl Body for Large {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        let piece = match self.head.take() {
            Some(head) => head,
            None if self.left > 0 => {
                self.left -= PIECE;
                Bytes::from(vec![b'x'; PIECE])
            }
            None => match self.tail.take() {
                Some(tail) => tail,
                None => return Poll::Ready(None),
            },
        };
        self.taken.fetch_add(piece.len(), Ordering::SeqCst);
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }

    fn size_hint(&self) -> SizeHint {
        let rest = |part: &Option<Bytes>| part.as_ref().map_or(0, Bytes::len);
        match self.is_sized {
            true => SizeHint::with_exact((rest(&self.head) + self.left + rest(&self.tail)) as u64),
            false => SizeHint::default(),
        }
    }
}

/// Answers every request with as much.
struct Generous {
    sending: Sending,
    taken: Arc<AtomicUsize>,
}

#[async_trait]
impl Endpoint for Generous {
    async fn serve(&self, inbound: Box<Inbound>) -> FaceResponse {
        let id = serde_json::from_slice::<serde_json::Value>(&inbound.body).unwrap()["id"].take();
        let is_stream = matches!(self.sending, Sending::Events);
        let (before, after) = if is_stream { ("data: ", "\n\n") } else { ("", "") };
        let large = Large {
            head: Some(format!("{before}{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":\"").into()),
            left: ANSWER,
            tail: Some(format!("\"}}{after}").into()),
            is_sized: matches!(self.sending, Sending::Sized),
            taken: Arc::clone(&self.taken),
        };
        let mut response = FaceResponse::new(ResponseBody::new(large));
        let kind = if is_stream { "text/event-stream" } else { "application/json" };
        response.headers_mut().insert("content-type", kind.parse().unwrap());
        response
    }

    fn allow(&self) -> http::HeaderValue {
        http::HeaderValue::from_static("POST")
    }
}

/// Counted in bytes that the server got rid of, of which the client has read nothing.
#[tokio::test(start_paused = true)]
async fn a_client_that_asks_and_does_not_read_holds_up_its_server_and_not_memory() {
    for sending in [Sending::Sized, Sending::Unsized, Sending::Events] {
        let taken = Arc::new(AtomicUsize::new(0));
        let client = StreamClient {
            limits: SharedLimits::new(Arc::new(PrincipalLimitTable {
                answer_bytes_max: 8 << 20,
                ..PrincipalLimitTable::default()
            })),
            message_bytes_max: 32 << 20,
            ..serving::stream_client(Arc::new(Generous { sending, taken: Arc::clone(&taken) }))
        };
        let (to, spoken) = mpsc::channel(4);
        let (outgoing, mut from) = mpsc::channel::<Bytes>(8);
        let serving = TaskTracker::new().spawn(stream_client::serve(client, spoken, outgoing));
        for id in 0..REQUESTS as u64 {
            let text = stateless(id, "tools/call").to_string().into();
            to.send(ClientMessage { text, ..ClientMessage::default() }).await.unwrap();
        }
        // Everything that can go on has gone on once a timer fires in paused time.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let held = taken.load(Ordering::SeqCst);
        assert!(held <= 24 << 20, "{sending:?}: {held} bytes are held");
        let mut answered = 0;
        for _ in 0..REQUESTS {
            let said = tokio::time::timeout(super::PATIENCE, from.recv()).await.expect("all come").unwrap();
            assert!(said.len() > ANSWER, "{sending:?}");
            answered += 1;
        }
        assert_eq!((answered, taken.load(Ordering::SeqCst) / ANSWER), (REQUESTS, REQUESTS), "{sending:?}");
        drop(to);
        serving.await.unwrap();
    }
}

/// Only messages are written, and a waiting request gets an error in place of an invalid answer.
#[tokio::test(start_paused = true)]
async fn an_invalid_answer_is_not_forwarded_and_its_request_is_refused() {
    let other = answer(77);
    for (act, reason) in [
        (Act::Json(200, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":".to_owned()), "upstream_malformed"),
        (Act::Json(200, "\u{1b}[2J garbage".to_owned()), "upstream_malformed"),
        (Act::Json(200, format!("{}\n{}", answer(1), answer(1))), "upstream_malformed"),
        (Act::Json(200, other.clone()), "upstream_malformed"),
        (Act::Json(200, format!("[{other}]")), "upstream_malformed"),
        (Act::Json(200, "[]".to_owned()), "upstream_malformed"),
        (Act::Json(200, "7".to_owned()), "upstream_malformed"),
        (Act::Events(vec!["data: hello\n\n"]), "upstream_closed"),
        (Act::Events(vec!["data: {\"jsonrpc\":\"2.0\",\n\n"]), "upstream_closed"),
        (Act::Events(vec!["data: {\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{}}\n\n"]), "upstream_closed"),
    ] {
        let mut host = Host::new(vec![("\"id\":1,", act)]);
        host.write(&stateless(1, "tools/list")).await;
        let said = host.read().await;
        assert_eq!((&said["id"], &said["error"]["data"]["reason"]), (&json!(1), &json!(reason)), "{said}");
    }
    // Of an array the messages are kept, and an answer that bears its id is the client's to judge.
    let mixed = format!("[7,{},{other}]", answer(1));
    let mut host = Host::new(vec![("\"id\":1,", Act::Json(200, mixed))]);
    host.write(&stateless(1, "tools/list")).await;
    assert_eq!(host.read().await, json!([serde_json::from_str::<serde_json::Value>(&answer(1)).unwrap()]));
}

#[tokio::test(start_paused = true)]
async fn u94_each_request_of_an_array_is_answered_or_refused() {
    const FIRST: &str = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";
    let large = json!({"jsonrpc": "2.0", "id": 2, "result": "x".repeat(super::BYTES_MAX)});
    let large = format!("data: {large}\n\n").leak();
    for (act, answered, reason) in [
        (Act::Events(vec![FIRST, large]), 1, "result_too_large"),
        (Act::Events(vec![FIRST]), 1, "upstream_closed"),
        (Act::Panic, 0, "internal"),
        (Act::Bare(503), 0, "draining"),
        (Act::Bare(429), 0, "rate_limited"),
    ] {
        let mut host = Host::initialized(vec![("GET", Act::Open(vec![])), ("[{", act)]).await;
        host.write(&json!([request(1, "tools/call"), request(2, "tools/call"), request(3, "tools/call")])).await;
        for id in 1..=3 {
            let said = host.read().await;
            let error = said["error"]["data"]["reason"].as_str();
            assert_eq!((said["id"].as_u64(), error), (Some(id), (id > answered).then_some(reason)), "{said}");
        }
    }
    // The cancel of a call in one array is in another array.
    let later = Act::Later(Duration::from_secs(10), format!("[{}]", answer(2)));
    let mut host = Host::initialized(vec![
        ("GET", Act::Open(vec![])),
        ("\"id\":1,", later),
        ("\"id\":3,", Act::Json(200, answer(3))),
    ])
    .await;
    host.write(&json!([request(1, "tools/call"), request(2, "tools/call")])).await;
    host.write(&json!([super::cancel(1)])).await;
    assert_eq!(host.read().await, json!([serde_json::from_str::<serde_json::Value>(&answer(2)).unwrap()]));
    host.write(&request(3, "tools/list")).await;
    assert_eq!(host.read().await["id"], 3, "the cancelled one has no error");
}

/// U94.
#[tokio::test(start_paused = true)]
async fn an_array_of_cancels_is_forwarded_while_too_many_requests_are_open() {
    let hanging = (0..1_024).map(|_| ("tools/call", Act::Hang));
    let mut host = Host::initialized([("GET", Act::Open(vec![]))].into_iter().chain(hanging).collect()).await;
    for id in 1..=1_024 {
        host.write(&request(id, "tools/call")).await;
    }
    host.seen(1_024).await;
    host.write(&json!([request(2_000, "tools/list")])).await;
    let said = host.read().await;
    assert_eq!((&said["id"], &said["error"]["data"]["reason"]), (&json!(2_000), &json!("queue_full")));
    host.write(&json!([super::cancel(7), super::cancel(8)])).await;
    host.seen(1).await;
    assert!(host.script.seen.lock().last().unwrap().2.starts_with("[{"));
}

#[tokio::test(start_paused = true)]
async fn calls_in_an_array_are_taken_back_when_the_client_leaves() {
    let mut host = Host::initialized(vec![("GET", Act::Open(vec![])), ("[{", Act::Hang)]).await;
    host.write(&json!([request(5, "tools/call"), request(6, "tools/call"), request(7, "tools/call")])).await;
    host.seen(1).await;
    // The client itself cancels one, and the gateway does not cancel it again.
    host.write(&super::cancel(6)).await;
    host.seen(1).await;
    host.leave().await;
    let seen = host.script.seen.lock();
    let cancels: Vec<_> = seen.iter().filter(|(_, _, body)| body.contains("notifications/cancelled")).collect();
    let ids = |id: &str| cancels.iter().filter(|(_, _, body)| body.contains(&format!("\"requestId\":{id}"))).count();
    assert_eq!((cancels.len(), ids("5"), ids("6"), ids("7")), (3, 1, 1, 1));
}

/// Progress keeps its order, and waits for earlier messages; nothing else waits for it.
#[tokio::test(start_paused = true)]
async fn notifications_that_take_long_hold_up_nothing_else() {
    let mut host = Host::initialized(vec![
        ("GET", Act::Open(vec![])),
        ("notifications/progress", Act::Hang),
        ("notifications/roots", Act::Hang),
        ("\"id\":1,", Act::Json(200, answer(1))),
    ])
    .await;
    for n in 0..200 {
        let params = json!({ "progressToken": 1, "progress": n });
        host.write(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})).await;
    }
    host.write(&json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})).await;
    host.write_text(r#"{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}"#).await;
    host.write(&request(1, "tools/list")).await;
    assert_eq!(host.read().await["id"], 1);
    host.seen(4).await;
    let count = |part: &str| host.script.seen.lock().iter().filter(|(_, _, body)| body.contains(part)).count();
    assert_eq!((count("notifications/progress"), count("\"q\"")), (1, 1));
}

/// A host at its pipes, in front of a script.
struct Piped {
    script: Arc<Script>,
    to: tokio::io::WriteHalf<tokio::io::DuplexStream>,
    from: tokio::io::Lines<BufReader<tokio::io::ReadHalf<tokio::io::DuplexStream>>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Piped {
    fn new(line_bytes_max: usize, acts: Vec<(&'static str, Act)>) -> Self {
        Self::with(line_bytes_max, acts, || false)
    }

    fn with(line_bytes_max: usize, acts: Vec<(&'static str, Act)>, is_reader_gone: fn() -> bool) -> Self {
        let script = Arc::new(Script {
            acts: parking_lot::Mutex::new(acts.into()),
            seen: parking_lot::Mutex::default(),
            came: tokio::sync::Semaphore::new(0),
            dropped: Arc::default(),
        });
        let client = serving::stream_client(Arc::<Script>::clone(&script));
        let (near, far) = tokio::io::duplex(64 << 10);
        let serving = TaskTracker::new().spawn(async move {
            let stop = tokio_util::sync::CancellationToken::new();
            let leaving = stop.clone();
            let (input, output) = tokio::io::split(far);
            let ends = StdioEnds { input, output, is_reader_gone };
            stdio::serve(client, line_bytes_max, ends, leaving, &stop).await.unwrap();
        });
        let (from, to) = tokio::io::split(near);
        Self { script, to, from: BufReader::new(from).lines(), serving }
    }

    async fn write(&mut self, text: &str) {
        self.to.write_all(text.as_bytes()).await.unwrap();
    }

    async fn read(&mut self) -> serde_json::Value {
        let line = tokio::time::timeout(super::PATIENCE, self.from.next_line()).await.expect("a line comes");
        serde_json::from_str(&line.unwrap().unwrap()).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long_is_passed_over_and_refused_and_the_next_is_heard() {
    let mut host = Piped::new(1_000, vec![("\"initialize\"", Act::Session(answer(0))), ("GET", Act::Open(vec![]))]);
    host.write(&format!("{}\n", request(0, "initialize"))).await;
    assert_eq!(host.read().await["id"], 0);
    let long = "x".repeat(200_000);
    for (line, id) in [
        (
            format!(r#"{{"jsonrpc":"2.0","method":"tools/call","params":{{"id":1,"x":"{long}"}},"id":"last"}}"#),
            json!("last"),
        ),
        (format!(r#"{{"jsonrpc":"2.0","id":-7,"method":"tools/call","params":{{"x":"\"{long}"}}}}"#), json!(-7)),
        (
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"id":1,"x":"{long}"}}}}"#),
            json!(null),
        ),
        (long.clone(), json!(null)),
    ] {
        host.write(&line).await;
        host.write("\r\n").await;
        let refused = host.read().await;
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&id, &json!(-32600)), "{refused}");
    }
    // The server waits for an answer that is too long, and gets another.
    host.write(&format!("{{\"jsonrpc\":\"2.0\",\"id\":\"q\",\"result\":{{\"x\":\"{long}\"}}}}\n")).await;
    host.write(&format!("{}\n", stateless(9, "tools/list"))).await;
    assert_eq!(host.read().await["id"], 9, "it goes on");
    let seen = host.script.seen.lock();
    assert!(seen.iter().any(|(_, _, body)| body.contains("\"id\":\"q\",\"error\":{\"code\":-32600")), "{seen:?}");
    assert!(seen.iter().all(|(_, _, body)| body.len() < 1_000));
}

#[tokio::test(start_paused = true)]
async fn the_last_line_of_a_host_need_not_end() {
    let mut host = Piped::new(1_000, vec![]);
    host.write(&format!("\n  \n{}", stateless(1, "tools/list"))).await;
    host.to.shutdown().await.unwrap();
    tokio::time::timeout(super::PATIENCE, &mut host.serving).await.expect("it ends").unwrap();
    assert!(host.script.seen.lock().iter().any(|(_, _, body)| body.contains("tools/list")));
}

const HOUR: Duration = Duration::from_secs(3_600);

/// T-84. A subscription has no answer, so it is not waited for.
#[tokio::test(start_paused = true)]
async fn a_request_is_answered_however_long_after_the_end_of_the_input() {
    let acts = vec![("subscriptions/listen", Act::Hang), ("tools/call", Act::Later(HOUR, answer(1)))];
    let mut host = Piped::new(1_000, acts);
    for line in [stateless(1, "tools/call"), stateless(2, "subscriptions/listen")] {
        host.write(&format!("{line}\n")).await;
    }
    host.to.shutdown().await.unwrap();
    assert_eq!(tokio::time::timeout(HOUR * 2, host.from.next_line()).await.unwrap().unwrap().unwrap(), answer(1));
    host.serving.await.unwrap();
    assert_eq!(host.script.dropped.lock().len(), 1, "the subscription");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_closes_both_ends_is_gone() {
    let mut host = Piped::with(1_000, vec![("tools/call", Act::Hang)], || true);
    host.write(&format!("{}\n", stateless(1, "tools/call"))).await;
    host.to.shutdown().await.unwrap();
    tokio::time::timeout(super::PATIENCE, host.serving).await.expect("it ends").unwrap();
    assert_eq!(host.script.dropped.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_reads_answers_slowly_after_the_end_of_its_input_and_one_that_does_not_read_is_gone() {
    let large = json!({"jsonrpc": "2.0", "id": 1, "result": {"text": "x".repeat(200_000)}}).to_string();
    for (reads_after, reads) in [(Duration::from_secs(10), true), (Duration::from_secs(60), false)] {
        let mut host = Piped::new(1_000, vec![("tools/call", Act::Json(200, large.clone()))]);
        host.write(&format!("{}\n", stateless(1, "tools/call"))).await;
        host.to.shutdown().await.unwrap();
        tokio::time::sleep(reads_after).await;
        let line = host.from.next_line().await.unwrap().unwrap_or_default();
        assert_eq!(line == large, reads, "{reads_after:?}");
        host.serving.await.unwrap();
    }
}
