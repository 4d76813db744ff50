//! Reads answers: judges the head, reads whole bodies within a bound, decodes event streams.
//!
//! Knows JSON-RPC only as far as an error answer under a refusing status.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Body;

use super::answer_body::{AnswerBody, BodyBreakError, BodyKind};
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::framing::{SseDecoder, SseEvent};
use crate::wire::{Message, RequestId, RpcError, ScanLimits, envelope};

/// Largest error body that is looked into under a refusing status.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// How long such a body may take.
const ERROR_WAIT: Duration = Duration::from_secs(5);
/// The code that SDKs answer with where something is wrong with HTTP or the session, not the message.
const TRANSPORT_ERROR: i64 = -32_000;
/// What is said with it where the session is unknown.
const LOST_SESSION: [&str; 4] = ["no valid session", "invalid session", "session not found", "server not initialized"];

/// Most room that is taken for an answer before it has come.
const RESERVE_MAX: usize = 1024 * 1024;

/// Bounds on reading one answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadLimits {
    pub(crate) bytes_max: usize,
    /// Longest silence between two pieces.
    pub(crate) idle: Option<Duration>,
}

/// An answer whose head is fine.
#[derive(Debug)]
pub(crate) enum AcceptedResponse {
    Json(AnswerBody),
    Events(EventStream),
}

/// An answer whose head is not.
#[derive(Debug)]
pub(crate) enum ResponseRefusal {
    Gateway(GatewayFault),
    /// A JSON-RPC error came under the refusing status.
    Rpc(RpcError),
    /// The session is unknown; the message was not looked at. Only for requests in a session.
    SessionLost,
}

/// Whose error a refusing answer may carry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ErrorAddressee<'a> {
    /// Only the one with this id counts.
    Request(&'a RequestId),
    /// The same, in a session that the upstream may have forgotten.
    RequestInSession(&'a RequestId),
    /// The only request that the connection's other end can mean, so any id or none will do.
    Handshake,
}

/// Judges the answer to a request (U01 to U06, U16).
pub(crate) async fn open(
    response: Response<AnswerBody>,
    addressee: ErrorAddressee<'_>,
    limits: ReadLimits,
) -> Result<AcceptedResponse, ResponseRefusal> {
    if !response.status().is_success() {
        return Err(Box::pin(refusal(response, addressee)).await);
    }
    match content_of(response.headers()) {
        BodyKind::Json => Ok(AcceptedResponse::Json(response.into_body())),
        BodyKind::Events => Ok(AcceptedResponse::Events(EventStream::new(response.into_body(), limits))),
        BodyKind::Other => {
            Err(ResponseRefusal::Gateway(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown)))
        }
    }
}

/// What a body is by its head. One that is encoded is of no use, as none was asked for.
pub(crate) fn content_of(headers: &HeaderMap) -> BodyKind {
    let plain =
        headers.get_all(CONTENT_ENCODING).iter().all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"));
    if plain && is_json(headers) {
        BodyKind::Json
    } else if plain && is_media(headers, "text/event-stream") {
        BodyKind::Events
    } else {
        BodyKind::Other
    }
}

/// Judges the answer to a notification or response: any success will do, its body is of no interest.
pub(crate) fn accepted(response: &Response<AnswerBody>) -> Result<(), GatewayFault> {
    if response.status().is_success() { Ok(()) } else { Err(status_fault(response)) }
}

/// What a status other than success means.
pub(crate) fn status_fault<B>(response: &Response<B>) -> GatewayFault {
    let status = response.status();
    let reason = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Reason::UpstreamAuth,
        _ if status.is_redirection() => Reason::UpstreamRedirect,
        _ => Reason::UpstreamHttpStatus,
    };
    GatewayFault {
        http_status: Some(status.as_u16()),
        retry_after: retry_after(response.headers()),
        ..GatewayFault::new(reason, Executed::Unknown)
    }
}

/// `Retry-After` in seconds; a date is not understood.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    is_media(headers, "application/json")
}

/// Whether the body is of one media type, whatever its parameters.
fn is_media(headers: &HeaderMap, media: &str) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else { return false };
    if value.as_bytes() == media.as_bytes() {
        return true;
    }
    let text = value.to_str().unwrap_or_default();
    text.split(';').next().is_some_and(|essence| essence.trim().eq_ignore_ascii_case(media))
}

/// What a refusing answer means.
async fn refusal(response: Response<AnswerBody>, addressee: ErrorAddressee<'_>) -> ResponseRefusal {
    let (fault, status) = (status_fault(&response), response.status());
    let in_session = matches!(addressee, ErrorAddressee::RequestInSession(_));
    if in_session && status == StatusCode::NOT_FOUND {
        return ResponseRefusal::SessionLost;
    }
    let may_explain = fault.reason == Reason::UpstreamHttpStatus && is_json(response.headers());
    let explained = if may_explain { explained(response.into_body()).await } else { None };
    match (explained, addressee) {
        (Some((_, error)), _) if in_session && names_lost_session(status, &error) => ResponseRefusal::SessionLost,
        (Some((_, error)), ErrorAddressee::Handshake) => ResponseRefusal::Rpc(error),
        (Some((Some(named), error)), ErrorAddressee::Request(id) | ErrorAddressee::RequestInSession(id))
            if named == *id =>
        {
            ResponseRefusal::Rpc(error)
        }
        (Some(_) | None, _) => ResponseRefusal::Gateway(fault),
    }
}

/// Whether an error says what a 404 should have said. Servers built after the SDKs' examples refuse an
/// unknown session with 400, before they look at the message. A tool whose own words these are would have
/// to answer with this code and status to be called twice.
pub(crate) fn names_lost_session(status: StatusCode, error: &RpcError) -> bool {
    let message = error.message.to_ascii_lowercase();
    let named = LOST_SESSION.iter().any(|words| message.contains(words));
    status == StatusCode::BAD_REQUEST && error.code == TRANSPORT_ERROR && named
}

/// The JSON-RPC error in a body, if it is one, and whom it names.
async fn explained(body: AnswerBody) -> Option<(Option<RequestId>, RpcError)> {
    let limits = ReadLimits { bytes_max: ERROR_BYTES_MAX, idle: None };
    let text = tokio::time::timeout(ERROR_WAIT, read_whole(body, limits)).await.ok()?.ok()?;
    let Message::Response(response) = envelope::read(&text, ScanLimits::UPSTREAM).ok()? else { return None };
    Some((response.id, response.outcome.err()?))
}

/// Reads a whole body. Not cancel safe: what was read so far goes with the future.
///
/// # Errors
/// `ResultTooLarge` at the bound, without having read more (U12); `UpstreamTimeout` when silent too long;
/// `UpstreamClosed` when it breaks.
pub(crate) async fn read_whole(mut body: AnswerBody, limits: ReadLimits) -> Result<Bytes, GatewayFault> {
    let too_large = GatewayFault::new(Reason::ResultTooLarge, Executed::Yes);
    if body.size_hint().lower() > limits.bytes_max as u64 {
        return Err(too_large);
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(piece) = next_piece(&mut body, limits.idle).await.map_err(BodyReadError::into_fault)? {
        if first.len() + rest.len() + piece.len() > limits.bytes_max {
            return Err(too_large);
        }
        // Most answers come in one piece and need no copy.
        if first.is_empty() && rest.is_empty() {
            first = piece;
        } else {
            if rest.is_empty() {
                // Room for all of it, as far as the upstream has said how much and is to be believed.
                let left = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX).min(RESERVE_MAX);
                rest.reserve(first.len() + piece.len() + left);
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&piece);
        }
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// Why a body or a stream stops before it said what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyReadError {
    /// The connection broke.
    Closed,
    /// Silent for longer than allowed.
    Idle,
    /// One event outgrew the bound.
    TooLarge,
    /// It broke off, and it is known why.
    Known(GatewayFault),
}

impl BodyReadError {
    pub(crate) const fn into_fault(self) -> GatewayFault {
        match self {
            Self::Closed => GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown),
            Self::Idle => GatewayFault::new(Reason::UpstreamTimeout, Executed::Unknown),
            Self::TooLarge => GatewayFault::new(Reason::ResultTooLarge, Executed::Yes),
            Self::Known(fault) => fault,
        }
    }
}

/// The next bytes of a body; `None` at its end. Cancel safe.
async fn next_piece(body: &mut AnswerBody, idle: Option<Duration>) -> Result<Option<Bytes>, BodyReadError> {
    loop {
        let frame = match idle {
            Some(max) => tokio::time::timeout(max, body.frame()).await.map_err(|_| BodyReadError::Idle)?,
            None => body.frame().await,
        };
        match frame {
            None => return Ok(None),
            Some(Err(error)) => {
                return Err(BodyBreakError::known_in(&error).map_or(BodyReadError::Closed, BodyReadError::Known));
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => return Ok(Some(data)),
                Err(_trailers) => (),
            },
        }
    }
}

/// An event stream being read.
#[derive(Debug)]
pub(crate) struct EventStream {
    body: AnswerBody,
    decoder: SseDecoder,
    ready: VecDeque<SseEvent>,
    idle: Option<Duration>,
}

impl EventStream {
    pub(crate) fn new(body: AnswerBody, limits: ReadLimits) -> Self {
        Self { body, decoder: SseDecoder::new(limits.bytes_max), ready: VecDeque::new(), idle: limits.idle }
    }

    /// The next event; `None` when the stream ended in order. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<SseEvent>, BodyReadError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let piece = next_piece(&mut self.body, self.idle).await?;
            // The decoder hands out what came before an event that is too large, and refuses then.
            let events =
                self.decoder.feed(piece.as_deref().unwrap_or_default()).map_err(|_| BodyReadError::TooLarge)?;
            if piece.is_none() {
                return Ok(None);
            }
            self.ready.extend(events);
        }
    }
}

/// The text of an event that carries messages; `None` for one that only primes the stream or is called
/// something else.
pub(crate) fn message_in(event: &SseEvent) -> Option<&Bytes> {
    let is_message = event.name.as_deref().is_none_or(|name| name == "message");
    Some(&event.data).filter(|data| is_message && !data.is_empty())
}

/// Where a stream can be taken up again, and how soon.
#[derive(Clone, Debug, Default)]
pub(crate) struct SseResumePoint {
    pub(crate) last_event: Option<HeaderValue>,
    pub(crate) retry: Option<Duration>,
}

impl SseResumePoint {
    /// Soonest and latest reconnection, whatever the upstream asks for (U21).
    const RETRY_MIN: Duration = Duration::from_millis(100);
    const RETRY_MAX: Duration = Duration::from_secs(60);
    const RETRY_DEFAULT: Duration = Duration::from_secs(1);

    /// Takes note of an event. An id that no header can carry is as good as an empty one, which takes back
    /// those before it.
    pub(crate) fn note(&mut self, event: &SseEvent) {
        if let Some(id) = &event.id {
            self.last_event = HeaderValue::from_bytes(id.as_bytes()).ok().filter(|value| !value.is_empty());
        }
        if let Some(millis) = event.retry_ms {
            self.retry = Some(Duration::from_millis(millis).clamp(Self::RETRY_MIN, Self::RETRY_MAX));
        }
    }

    pub(crate) fn pause(&self) -> Duration {
        self.retry.unwrap_or(Self::RETRY_DEFAULT)
    }
}
