//! The session face alone, in paused time: progress of a silent call, and the owner of a session.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::bytes::Bytes;
use async_trait::async_trait;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use parking_lot::Mutex;
use serde_json::json;
use support::serving;
use taskgate::engine::ServiceSettings;
use taskgate::face::http::{AcceptedTypes, FaceResponse, Inbound};
use taskgate::face::sealed::{GatewayId, IdKind, Sealer, SealingKeys, event_id};
use taskgate::face::served::Served;
use taskgate::face::session::SessionFace;
use taskgate::task::{GatewayFault, Principal, TaskMode};
use taskgate::upstream::answer_body::BodyKind;
use taskgate::upstream::raw_channel::{RawBody, RawChannel, RawMethod, RawRequest, RawResponse};
use taskgate::upstream::{OwnSessionChannel, SessionLease, Timeouts, Upstream};
use taskgate::wire::{ScanLimits, envelope};
use tokio::time::Instant;

use super::client::{KEY, call, initialize};

/// A server that answers calls after a while, in pieces that come after a while.
#[derive(Debug)]
pub(crate) struct Slow {
    name: Arc<str>,
    head_after: Duration,
    content: BodyKind,
    pieces: Vec<(Duration, &'static str)>,
    pub(crate) sent: Mutex<Vec<Bytes>>,
    makes_streams: bool,
}

impl Slow {
    pub(crate) fn new(head_after: Duration, content: BodyKind, pieces: &[(Duration, &'static str)]) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::from("slow"),
            head_after,
            content,
            pieces: pieces.to_vec(),
            sent: Mutex::default(),
            makes_streams: false,
        })
    }

    /// The same behind another transport.
    pub(crate) fn made(pieces: &[(Duration, &'static str)]) -> Arc<Self> {
        let Ok(slow) = Arc::try_unwrap(Self::new(Duration::ZERO, BodyKind::Events, pieces)) else { unreachable!() };
        Arc::new(Self { makes_streams: true, ..slow })
    }
}

#[async_trait]
impl RawChannel for Slow {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    async fn send(&self, request: RawRequest) -> Result<RawResponse, GatewayFault> {
        let response = |content, body: RawBody| RawResponse {
            status: StatusCode::OK,
            content,
            retry_after: None,
            session: Some(HeaderValue::from_static("s-1")),
            body,
        };
        if let RawMethod::Post(message) | RawMethod::Note(message) | RawMethod::PostWith { message, .. } = &request.verb
        {
            self.sent.lock().push(message.clone().into_bytes());
            if message.windows(12).any(|bytes| bytes == b"\"initialize\"") {
                let result = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}});
                let text = json!({"jsonrpc": "2.0", "id": 0, "result": result}).to_string();
                let body = RawBody::whole(Bytes::from(text));
                return Ok(response(BodyKind::Json, body));
            }
        }
        tokio::time::sleep(self.head_after).await;
        let pieces = stream::unfold(self.pieces.clone().into_iter(), |mut pieces| async {
            let (after, text) = pieces.next()?;
            tokio::time::sleep(after).await;
            Some((Ok::<_, io::Error>(Frame::data(Bytes::from_static(text.as_bytes()).into())), pieces))
        });
        Ok(response(self.content, RawBody::new(StreamBody::new(pieces))))
    }

    fn makes_streams(&self) -> bool {
        self.makes_streams
    }
}

impl OwnSessionChannel for Slow {
    fn calls_in(&self, _: SessionLease) -> Arc<dyn Upstream> {
        unreachable!("no task runs in a session here")
    }
}

pub(crate) fn face(channel: &Arc<Slow>, timeouts: Timeouts) -> SessionFace {
    face_with(Arc::<Slow>::clone(channel), timeouts, true)
}

pub(crate) fn face_with(channel: Arc<dyn OwnSessionChannel>, timeouts: Timeouts, life_signs: bool) -> SessionFace {
    let settings = ServiceSettings {
        timeouts,
        call_timeouts: timeouts,
        life_signs,
        ..serving::settings(serving::policy(TaskMode::Auto))
    };
    SessionFace::new(Arc::new(Served {
        settings: Arc::new(settings),
        sealer: Arc::new(Sealer::new(SealingKeys::parse(KEY).unwrap())),
        ..serving::served(serving::Unreachable::named("slow"), channel)
    }))
}

/// One client of the face.
pub(crate) struct Caller {
    principal: Principal,
    session: Option<HeaderValue>,
    accepted: AcceptedTypes,
}

impl Caller {
    pub(crate) async fn open(face: &SessionFace) -> Self {
        Self::open_as(face, "2025-11-25").await
    }

    pub(crate) async fn open_as(face: &SessionFace, version: &str) -> Self {
        let mut caller = Self { principal: Principal::local(), session: None, accepted: AcceptedTypes::Both };
        let reply = caller.post(face, initialize(version, &json!({}))).await;
        caller.session = reply.headers().get("mcp-session-id").cloned();
        caller
    }

    pub(crate) async fn post(&self, face: &SessionFace, body: String) -> FaceResponse {
        let inbound = self.inbound(body);
        let message = envelope::read(&inbound.body, ScanLimits::CLIENT).unwrap();
        face.post(Box::new(inbound), Box::new(message)).await
    }

    /// Resumes a stream.
    pub(crate) async fn get(&self, face: &SessionFace, last_event: &str) -> FaceResponse {
        let mut inbound = Inbound { method: Method::GET, ..self.inbound(String::new()) };
        inbound.headers.insert("last-event-id", HeaderValue::from_str(last_event).unwrap());
        face.get(&inbound).await
    }

    fn inbound(&self, body: String) -> Inbound {
        let mut headers = HeaderMap::new();
        if let Some(session) = &self.session {
            headers.insert("mcp-session-id", session.clone());
        }
        let caller = taskgate::task::Caller::of(self.principal.clone());
        Inbound {
            headers,
            body: Bytes::from(body),
            accepted: self.accepted,
            ..Inbound::new(Method::POST, "/mcp".to_owned(), caller)
        }
    }
}

/// The id of an event of the only stream of the face under test, which has no randomness.
pub(crate) fn own_event(number: u64) -> String {
    let stream = GatewayId::in_memory(IdKind::EventStream, None, 7);
    event_id(&Sealer::new(SealingKeys::parse(KEY).unwrap()).seal(&stream, None, &[]).unwrap(), number)
}

pub(crate) async fn text(response: FaceResponse) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The number in an id that the gateway gives an event.
fn own_number(line: &str) -> Option<&str> {
    let (sealed, number) = line.strip_prefix("id: ")?.split_once('.')?;
    (sealed.len() > 64).then_some(number)
}

/// A stream with `S` in place of the stream in ids that the gateway gives its events.
pub(crate) fn with_short_ids(said: &str) -> String {
    let short = |line: &str| own_number(line).map_or_else(|| line.to_owned(), |number| format!("id: S.{number}"));
    said.split_inclusive('\n').map(short).collect()
}

/// A stream without the names that the gateway gives its events, and without the empty one in front.
pub(crate) fn without_ids(said: &str) -> String {
    let kept: String = said.split_inclusive('\n').filter(|line| own_number(line).is_none()).collect();
    kept.strip_prefix("data:\n\n").map_or_else(|| kept.clone(), str::to_owned)
}

pub(crate) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(crate) const RESULT: &str = "{\"jsonrpc\":\"2.0\",\n\"id\":1,\"result\":{\"n\":1.10}}";

/// T-22: the session of another principal is unknown.
/// LEG-18.
#[tokio::test(start_paused = true)]
async fn a_session_is_its_owners_alone() {
    let channel = Slow::new(Duration::ZERO, BodyKind::Json, &[(Duration::ZERO, RESULT)]);
    let face = face(&channel, Timeouts::default());
    let mut caller = Caller::open(&face).await;
    assert_eq!(caller.post(&face, call(1)).await.status(), StatusCode::OK);
    caller.principal = Principal::new("key:other");
    assert_eq!(caller.post(&face, call(1)).await.status(), StatusCode::NOT_FOUND);
}

/// GW-26: silence of any length, a comment every 15 seconds.
#[tokio::test(start_paused = true)]
async fn a_silent_call_begins_a_stream_and_answers_in_it() {
    let pieces = [(Duration::ZERO, &RESULT[..20]), (seconds(1), &RESULT[20..])];
    let channel = Slow::new(seconds(50), BodyKind::Json, &pieces);
    let face = face(&channel, Timeouts::default());
    let mut caller = Caller::open(&face).await;
    let began = Instant::now();
    let response = caller.post(&face, call(1)).await;
    assert_eq!(began.elapsed(), seconds(15));
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let event = format!("event: message\ndata: {}\n\n", RESULT.replace('\n', "\ndata: "));
    assert_eq!(without_ids(&text(response).await), format!(":\n\n:\n\n:\n\n{event}"), "at 15, 30 and 45 seconds");
    caller.accepted = AcceptedTypes::Json;
    let response = caller.post(&face, call(1)).await;
    assert_eq!(text(response).await, RESULT, "a client that takes no stream waits");
}

const ANSWER: &str = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";

#[tokio::test(start_paused = true)]
async fn comments_stand_between_events_and_never_in_one() {
    let pieces =
        [(Duration::ZERO, "data: 1\n\n"), (seconds(31), "data: ha"), (seconds(40), "lf\n\n"), (seconds(16), ANSWER)];
    let channel = Slow::new(Duration::ZERO, BodyKind::Events, &pieces);
    let face = face(&channel, Timeouts::default());
    let caller = Caller::open(&face).await;
    let response = caller.post(&face, call(1)).await;
    assert_eq!(text(response).await, format!("data: 1\n\n:\n\n:\n\ndata: half\n\n:\n\n{ANSWER}"));
}

#[tokio::test(start_paused = true)]
async fn silence_past_its_limit_is_an_error_and_the_upstream_is_told() {
    let limits = Timeouts { first_byte: Some(seconds(20)), idle: Some(seconds(10)) };
    for (head_after, pieces) in
        [(seconds(60), vec![]), (seconds(1), vec![(seconds(0), "data: {}\n\n"), (seconds(60), "")])]
    {
        let channel = Slow::new(head_after, BodyKind::Events, &pieces);
        let face = face(&channel, limits);
        let caller = Caller::open(&face).await;
        let said = text(caller.post(&face, call(1)).await).await;
        assert!(said.contains("\"id\":1,\"error\":{\"code\":-32603") && said.contains("upstream_timeout"), "{said}");
        tokio::time::sleep(seconds(1)).await;
        let sent = channel.sent.lock();
        let last = String::from_utf8(sent.last().unwrap().to_vec()).unwrap();
        assert!(last.contains("notifications/cancelled") && last.contains("\"requestId\":1"), "{last}");
    }
}

pub(crate) fn call_with_token(token: &serde_json::Value) -> String {
    let params = json!({ "name": "t", "arguments": {}, "_meta": { "progressToken": token } });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string()
}

/// The values of all progress in a stream, and the stream with `P` in place of those events that are signs.
pub(crate) fn progress(said: &str) -> (Vec<f64>, String) {
    let mut values = Vec::new();
    let mut shown = String::new();
    for event in said.split_inclusive("\n\n") {
        let data = event.split_once("data: ").map_or("null", |(_, data)| data);
        let message: serde_json::Value = serde_json::from_str(data).unwrap_or_default();
        values.extend(message["params"]["progress"].as_f64());
        shown.push_str(
            if event.starts_with("event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"") {
                "P"
            } else {
                event
            },
        );
    }
    (values, shown)
}

const ONE: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"p\",\"progress\":1.50}}\n\n";
pub(crate) const ZERO: &str = "id: 7\ndata: {\"jsonrpc\": \"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"\\u0070\",\"progress\":0,\"message\":\"m\"}}\n\n";
pub(crate) const LAST: &str = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"n\":1.10}}\n\n";

/// MOD-22, GW-26: between whole events, above the progress shown before and below the next, none after the answer.
#[tokio::test(start_paused = true)]
async fn silence_shows_as_progress_to_clients_that_want_it() {
    // Half an event goes on once it shows that it is no question.
    let (head, tail) = ONE.split_at(ONE.find("\"params\"").unwrap());
    let pieces = [
        (seconds(20), ZERO),
        (seconds(31), head),
        (seconds(40), tail),
        (seconds(16), "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n"),
        (seconds(16), LAST),
        (seconds(31), ""),
    ];
    let channel = Slow::new(seconds(16), BodyKind::Events, &pieces);
    let face = face(&channel, Timeouts::default());
    let caller = Caller::open(&face).await;
    let began = Instant::now();
    let response = caller.post(&face, call_with_token(&json!("p"))).await;
    assert_eq!(began.elapsed(), seconds(15), "before there is a head");
    let (values, shown) = progress(&without_ids(&text(response).await));
    assert!(values.is_sorted_by(|one, next| one < next), "{values:?}");
    assert_eq!(values.iter().filter(|value| **value == 1.5).count(), 1, "{values:?}");
    let risen = ZERO.replace("\"progress\":0,", "\"progress\":0");
    let (before, rest) = shown.split_once("id: 7\n").unwrap();
    assert!(rest.contains("\"message\":\"m\"") && !rest.contains(&risen), "the event keeps its other members: {rest}");
    assert_eq!(before, "PP");
    let (_, rest) = rest.split_once("\n\n").unwrap();
    assert_eq!(
        rest,
        format!("PP{ONE}Pdata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}}\n\nP{LAST}:\n\n:\n\n")
    );
}

/// GW-26: it rises above the progress on the stream that the server closed.
#[tokio::test(start_paused = true)]
async fn silence_of_a_resumed_call_shows_as_progress_that_rises() {
    let channel = Slow::new(Duration::ZERO, BodyKind::Events, &[(seconds(20), "id: e-1\nretry: 10\ndata:\n\n")]);
    let face = face(&channel, Timeouts::default());
    let caller = Caller::open(&face).await;
    let mut said = text(caller.post(&face, call_with_token(&json!("p"))).await).await;
    said += &text(caller.get(&face, "e-1").await).await;
    let (values, _) = progress(&said);
    assert!(matches!(values[..], [first, second] if first < second), "{said}");
}

/// Servers write comments of their own, some every 15 seconds. A client that waits for progress sees none of them.
#[tokio::test(start_paused = true)]
async fn a_comment_of_the_servers_is_no_progress() {
    let comment = || (seconds(14), ": ping\n\n");
    let pieces = [(seconds(1), ONE), comment(), comment(), comment(), comment(), (seconds(1), LAST)];
    let channel = Slow::new(Duration::ZERO, BodyKind::Events, &pieces);
    let face = face(&channel, Timeouts::default());
    let caller = Caller::open(&face).await;
    let (_, shown) = progress(&text(caller.post(&face, call_with_token(&json!("p"))).await).await);
    assert_eq!(shown.matches('P').count(), 3, "at 16, 31 and 46 seconds: {shown}");
    assert_eq!(shown.matches(": ping\n\n").count(), 4, "they pass all the same: {shown}");
    let (_, shown) = progress(&text(caller.post(&face, call(1)).await).await);
    assert!(!shown.contains("\n\n:\n\n"), "without a token a comment is as good as another: {shown}");
}

/// No client gets progress that it did not ask for.
#[tokio::test(start_paused = true)]
async fn calls_without_a_token_and_gateways_without_life_signs_show_comments() {
    let channel = Slow::new(seconds(20), BodyKind::Json, &[(Duration::ZERO, RESULT)]);
    for (life_signs, token, expected) in [
        (true, json!("p"), 1),
        (true, json!(7), 1),
        (true, json!(null), 0),
        (true, json!({}), 0),
        (false, json!("p"), 0),
    ] {
        let face = face_with(Arc::<Slow>::clone(&channel), Timeouts::default(), life_signs);
        let caller = Caller::open(&face).await;
        let said = text(caller.post(&face, call_with_token(&token)).await).await;
        let (values, shown) = progress(&without_ids(&said));
        assert_eq!((values.len(), shown.contains(":\n\n")), (expected, expected == 0), "{life_signs} {token}");
    }
}

/// U90, LEG-14: the server may then send no response, or a head without a body.
#[tokio::test(start_paused = true)]
async fn u90_a_call_that_is_cancelled_before_its_response_ends_without_one_in_time() {
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}).to_string();
    let never = seconds(100_000);
    for (head_after, content) in [(never, BodyKind::Json), (seconds(0), BodyKind::Json), (seconds(0), BodyKind::Events)]
    {
        for accepted in [AcceptedTypes::Json, AcceptedTypes::Both] {
            let channel = Slow::new(head_after, content, &[(never, "")]);
            let face = face(&channel, Timeouts::default());
            let mut caller = Caller::open(&face).await;
            caller.accepted = accepted;
            let began = Instant::now();
            let answering = async { (text(caller.post(&face, call(1)).await).await, began.elapsed()) };
            let cancelling = async {
                tokio::time::sleep(seconds(1)).await;
                assert_eq!(caller.post(&face, cancel.clone()).await.status(), StatusCode::ACCEPTED);
            };
            let ((said, waited), ()) = tokio::join!(answering, cancelling);
            assert!(!said.contains("\"id\":1"), "{said}");
            assert!(waited < seconds(60), "{waited:?} {head_after:?} {content:?} {accepted:?}");
        }
    }
}
