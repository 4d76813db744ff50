//! Progress of forwarded requests; the face alone, in paused time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::bytes::Bytes;
use async_trait::async_trait;
use futures_util::{future, stream};
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};
use support::serving;
use taskgate::engine::ServiceSettings;
use taskgate::face::http::{AcceptedTypes, MessageChannel};
use taskgate::face::sealed::{Sealer, SealingKeys};
use taskgate::face::served::Served;
use taskgate::face::stateless::{MessageContext, StatelessFace};
use taskgate::task::{GatewayFault, Principal, TaskMode};
use taskgate::upstream::answer_body::BodyKind;
use taskgate::upstream::exchange::EraLookup;
use taskgate::upstream::raw_channel::{RawBody, RawChannel, RawRequest, RawResponse};
use taskgate::upstream::{
    BeginError, CallContext, Era, Exchange, ForwardedHeaders, Handshake, OwnSessionChannel, ResumeToken,
    ServerNotification, SessionLease, Upstream, UpstreamRequest,
};
use taskgate::wire::{Message, ProtocolVersion, ScanLimits, envelope};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::client::KEY;

/// A server of 2026-07-28 that answers after a while, in pieces that come after a while.
#[derive(Debug)]
struct Slow {
    name: Arc<str>,
    head_after: Duration,
    content: BodyKind,
    pieces: Vec<(Duration, &'static str)>,
}

#[async_trait]
impl RawChannel for Slow {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn version_for(&self, _: ProtocolVersion) -> ProtocolVersion {
        ProtocolVersion::V2026_07_28
    }

    async fn send(&self, _: RawRequest) -> Result<RawResponse, GatewayFault> {
        tokio::time::sleep(self.head_after).await;
        let pieces = stream::unfold(self.pieces.clone().into_iter(), |mut pieces| async {
            let (after, text) = pieces.next()?;
            tokio::time::sleep(after).await;
            Some((Ok::<_, io::Error>(Frame::data(Bytes::from_static(text.as_bytes()).into())), pieces))
        });
        let body = RawBody::new(StreamBody::new(pieces));
        Ok(RawResponse { status: StatusCode::OK, content: self.content, retry_after: None, session: None, body })
    }
}

impl OwnSessionChannel for Slow {
    fn calls_in(&self, _: SessionLease) -> Arc<dyn Upstream> {
        unreachable!("there are no sessions")
    }
}

#[async_trait]
impl Upstream for Slow {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    async fn handshake(&self, _: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        unreachable!("its description is not requested")
    }

    async fn begin(&self, _: UpstreamRequest, _: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        unreachable!("nothing goes to the engine")
    }

    async fn resume(&self, _: ResumeToken, _: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        unreachable!("nothing is taken up again")
    }

    async fn notifications(&self, _: &CallContext) -> Result<broadcast::Receiver<ServerNotification>, BeginError> {
        unreachable!("no listener is there")
    }

    fn era(&self, _: &ForwardedHeaders) -> EraLookup<'_> {
        EraLookup::Left(future::ready(Era::Stateless))
    }
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn face(slow: Slow, life_signs: bool) -> StatelessFace {
    let server = Arc::new(slow);
    let settings = ServiceSettings { life_signs, ..serving::settings(serving::policy(TaskMode::Never)) };
    StatelessFace::new(Arc::new(Served {
        settings: Arc::new(settings),
        sealer: Arc::new(Sealer::new(SealingKeys::parse(KEY).unwrap())),
        ..serving::served(Arc::<Slow>::clone(&server), server)
    }))
}

/// The bytes for a client with this token, and how long it waited for the head.
async fn answered(face: &StatelessFace, token: &Value, accepted: AcceptedTypes) -> (String, Duration) {
    let mut meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    if !token.is_null() {
        meta["progressToken"] = token.clone();
    }
    let params = json!({"name": "p", "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "prompts/get", "params": params}).to_string();
    let body = Bytes::from(body);
    let Ok(Message::Request(request)) = envelope::read(&body, ScanLimits::CLIENT) else {
        unreachable!("it is a request")
    };
    let mut headers = HeaderMap::new();
    for (name, value) in [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "prompts/get"), ("mcp-name", "p")] {
        headers.insert(name, value.parse().unwrap());
    }
    let arrived = Instant::now();
    let (principal, carriage) = (Principal::local(), MessageChannel::Request);
    let around = MessageContext {
        headers: &headers,
        forwarded: &ForwardedHeaders::default(),
        body: &body,
        counted_as: principal.clone(),
        caller: taskgate::task::Caller::of(principal),
        is_counted: false,
        accepted,
        arrived,
        carriage,
        has_key: false,
    };
    let response = face.serve(&request, around).await;
    let head = arrived.elapsed();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (String::from_utf8(bytes.to_vec()).unwrap(), head)
}

const RESULT: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"resultType\":\"complete\",\"n\":1.10}}";
const LAST: &str = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"resultType\":\"complete\",\"n\":1.10}}\n\n";
const ZERO: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"p\",\"progress\":0,\"message\":\"m\"}}\n\n";
const ONE: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":\"p\",\"progress\":1.50}}\n\n";

/// The progress values of a stream's events.
fn values(said: &str) -> Vec<f64> {
    let data = said.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|data| serde_json::from_str::<Value>(data).unwrap()["params"]["progress"].as_f64()).collect()
}

fn slow(head_after: Duration, content: BodyKind, pieces: &[(Duration, &'static str)]) -> Slow {
    Slow { name: Arc::from("slow"), head_after, content, pieces: pieces.to_vec() }
}

/// MOD-22, GW-26: a server that answers in JSON is silent until it has an answer.
#[tokio::test(start_paused = true)]
async fn mod_22_a_silent_server_shows_as_progress_to_a_client_that_wants_progress() {
    let pieces = [(Duration::ZERO, RESULT)];
    for (life_signs, token, expected) in
        [(true, json!("p"), 3), (true, json!(7), 3), (true, json!(null), 0), (false, json!("p"), 0)]
    {
        let face = face(slow(seconds(50), BodyKind::Json, &pieces), life_signs);
        let (said, head) = answered(&face, &token, AcceptedTypes::Both).await;
        assert_eq!(head, seconds(15), "the head comes before the answer");
        let values = values(&said);
        assert_eq!((values.len(), said.matches(":\n\n").count()), (expected, 3 - expected), "{token}: {said}");
        assert!(values.is_sorted_by(|one, next| one < next), "{values:?}");
        assert!(said.ends_with(&format!("event: message\ndata: {RESULT}\n\n")), "the answer stays as it came: {said}");
        let (said, head) = answered(&face, &token, AcceptedTypes::Json).await;
        assert_eq!((said.as_str(), head), (RESULT, seconds(50)), "a client that takes no stream waits");
    }
}

/// MOD-22, T-73: between whole events, below the upstream's own progress, and none after the answer.
#[tokio::test(start_paused = true)]
async fn mod_22_signs_stand_between_whole_events_and_below_the_servers_own_progress() {
    let pieces = [
        (seconds(0), ZERO),
        (seconds(16), &ONE[..20]),
        (seconds(40), &ONE[20..]),
        (seconds(16), LAST),
        (seconds(16), ""),
    ];
    let face = face(slow(seconds(16), BodyKind::Events, &pieces), true);
    let (said, head) = answered(&face, &json!("p"), AcceptedTypes::Both).await;
    assert_eq!(head, seconds(15));
    let values = values(&said);
    assert_eq!(values.len(), 7, "15, the server's 0 at 16, 31, 46, 61, its 1.50 at 72, and 87 seconds: {said}");
    assert!(values.is_sorted_by(|one, next| one < next), "{values:?}");
    assert!(values[1] > 0.0 && values[1] < 0.1 && values[6] < 1.51, "{values:?}");
    assert!(said.contains(ONE), "what rises by itself stays as it came: {said}");
    assert!(said.contains("\"message\":\"m\""), "{said}");
    assert!(said.ends_with(&format!("{LAST}:\n\n")), "{said}");
}
