//! Reads responses: judges the head, reads bodies within limits, decodes event streams. Under a refusing status, a body
//! that names the request is the response; the status alone means that the request was refused.

mod event_stream;

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Body;

use super::CallContext;
use super::answer_body::{AnswerBody, BodyBreakError, BodyKind};
use super::era::denies_sessions;
use super::outgoing::SESSION_ID;
use super::raw_channel::{RawBody, RawResponse, SessionBinding};
use super::spare_headers;
use crate::answer_budget::{AnswerPermit, AnswerShare, FREE_BYTES};
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::framing::{BodyPart, SseEvent};
use crate::wire::rpc_error::{INVALID_REQUEST, SESSION_NOT_FOUND, TRANSPORT_ERROR, UNSUPPORTED_VERSION};
use crate::wire::{Message, MessageText, RequestId, RpcError, ScanLimits, envelope};
pub(crate) use event_stream::EventStream;

/// Most bytes that are reserved for a response before it has come.
const RESERVE_MAX: usize = 1024 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct ReadLimits {
    pub(crate) bytes_max: usize,
    /// Longest silence between two pieces.
    pub(crate) idle: Option<Duration>,
    /// The account for the response's bytes; `None` for small ones to the gateway's own requests.
    pub(crate) share: Option<AnswerShare>,
    /// Whether the call's own limits end the reading; else an incomplete message must grow at a minimum rate (U76).
    pub(crate) has_deadline: bool,
}

impl ReadLimits {
    pub(crate) const fn of_bytes(bytes_max: usize) -> Self {
        Self { bytes_max, idle: None, share: None, has_deadline: false }
    }

    pub(crate) fn of_call(context: &CallContext) -> Self {
        let (bytes_max, share) = (context.result_bytes_max, context.share.clone());
        Self { bytes_max, idle: context.timeouts.idle, share, has_deadline: true }
    }

    pub(crate) const fn within(bytes_max: usize, share: AnswerShare) -> Self {
        Self { bytes_max, idle: None, share: Some(share), has_deadline: false }
    }

    /// The limit on a message whose result is within this one.
    pub(crate) fn with_envelope(self) -> Self {
        const ENVELOPE_BYTES: usize = 64 << 10;
        Self { bytes_max: self.bytes_max.saturating_add(ENVELOPE_BYTES), ..self }
    }

    /// Charges a copy of a response's text to the same share.
    pub(crate) fn rehold(&self, text: Bytes) -> Bytes {
        match &self.share {
            Some(share) => share.rehold(text),
            None => text,
        }
    }

    /// As [`Self::rehold`] for an edited text, unless it is a part of `original`, which holds its bytes.
    pub(crate) fn rehold_edited(&self, text: Bytes, original: &[u8]) -> Bytes {
        if original.as_ptr_range().contains(&text.as_ptr()) { text } else { self.rehold(text) }
    }

    /// Whether the answer is an outcome that has an owner which keeps it.
    pub(crate) fn is_kept(&self) -> bool {
        self.share.as_ref().is_some_and(AnswerShare::is_kept)
    }

    /// Waits until a response with `bytes` so far may be read further. Cancel safe.
    async fn grow(&self, held: &mut AnswerPermit, bytes: usize) -> Result<(), GatewayFault> {
        match &self.share {
            Some(share) if bytes > FREE_BYTES => share.grow(held, bytes).await,
            Some(_) | None => Ok(()),
        }
    }

    /// The next part of a body, of which an incomplete message holds bytes. Cancel safe.
    async fn next_part<B: Body<Data = BodyPart, Error = io::Error> + Unpin>(
        &self,
        body: &mut B,
        held: &mut AnswerPermit,
    ) -> Result<Option<BodyPart>, BodyReadError> {
        if self.has_deadline || held.look().is_none() {
            return next_part(body, self.idle).await;
        }
        // Boxed: few messages hold bytes, and all readers have this future.
        Box::pin(self.next_part_in_time(body, held)).await
    }

    /// As [`Self::next_part`], as long as the server sends enough of the message (U76).
    async fn next_part_in_time<B: Body<Data = BodyPart, Error = io::Error> + Unpin>(
        &self,
        body: &mut B,
        held: &mut AnswerPermit,
    ) -> Result<Option<BodyPart>, BodyReadError> {
        let mut part = pin!(next_part(body, self.idle));
        while let Some(look) = held.look() {
            if held.is_stalled() {
                return Err(BodyReadError::Idle);
            }
            if let Ok(part) = tokio::time::timeout_at(look, part.as_mut()).await {
                return part;
            }
        }
        part.await
    }
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once, and a box would cost each answer an allocation"
)]
pub(crate) enum AcceptedResponse<B = AnswerBody> {
    Json(B),
    Events(EventStream<B>),
}

#[derive(Debug)]
pub(crate) enum ResponseRefusal {
    Gateway(GatewayFault),
    Rpc(RpcError),
    /// The session is unknown; the message was not processed. Only for requests in a session.
    SessionLost,
}

/// The message of a refused request. Decides which body is its response, and whether the status may be about its session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ErrorAddressee<'a> {
    /// Only an error that names this id counts.
    Request(&'a RequestId),
    /// As `Request`, in a session that the upstream may have forgotten.
    RequestInSession(&'a RequestId),
    /// The only request on the connection, so an error with any id or none counts.
    Alone(&'a RequestId),
    /// As `Alone`, for an HTTP request with an event stream or a handshake as response.
    Handshake,
    /// As `Alone`, for a forwarded message: its sender receives the error under every status.
    Forwarded(Option<&'a MessageText>),
    /// As `Forwarded`, in a session that the upstream may have forgotten.
    ForwardedInSession(Option<&'a MessageText>),
}

#[derive(Debug)]
pub(crate) enum JudgedResponse<B = RawBody> {
    /// A success, still to be read; or a result under a refusing status.
    Fine(RawResponse<B>),
    SessionLost,
    /// The upstream refuses, with a JSON-RPC error if it sent one for the addressee.
    Refused {
        fault: GatewayFault,
        error: Option<RpcError>,
        /// Whether the error names the request itself: it is the response, and no refusal of a session.
        is_answer: bool,
    },
}

/// A body that can be rebuilt from a text that was read.
pub(crate) trait WholeBody: Body<Data = BodyPart, Error = io::Error> + Unpin {
    fn whole(text: Bytes) -> Self;
}

impl WholeBody for AnswerBody {
    fn whole(text: Bytes) -> Self {
        Self::Whole(Some(text))
    }
}

impl WholeBody for RawBody {
    fn whole(text: Bytes) -> Self {
        Self::whole(text)
    }
}

impl<B> From<Response<B>> for RawResponse<B> {
    fn from(response: Response<B>) -> Self {
        let (content, retry_after) = (content_of(response.headers()), retry_after(&response));
        let (head, body) = response.into_parts();
        let session = head.headers.get(SESSION_ID).cloned();
        spare_headers::keep(head.headers);
        Self { status: head.status, content, retry_after, session, body }
    }
}

impl<'a> ErrorAddressee<'a> {
    /// A message that is forwarded in this session, or in none.
    pub(crate) const fn forwarded_in(binding: &SessionBinding, message: Option<&'a MessageText>) -> Self {
        if binding.session.is_some() { Self::ForwardedInSession(message) } else { Self::Forwarded(message) }
    }

    const fn is_in_session(self) -> bool {
        matches!(self, Self::RequestInSession(_) | Self::ForwardedInSession(_))
    }

    fn is_named_by(self, response: &envelope::Response) -> bool {
        let Some(named) = &response.id else { return false };
        match self {
            Self::Request(id) | Self::RequestInSession(id) | Self::Alone(id) => named == id,
            Self::Handshake | Self::Forwarded(None) | Self::ForwardedInSession(None) => false,
            Self::Forwarded(Some(text)) | Self::ForwardedInSession(Some(text)) => match text.read(ScanLimits::UPSTREAM)
            {
                Ok(message) => matches!(&*message, Message::Request(request) if *named == request.id),
                Err(_) => false,
            },
        }
    }
}

/// Judges a response's head (U01 to U06, U16).
pub(crate) async fn judge<B: WholeBody>(response: RawResponse<B>, addressee: ErrorAddressee<'_>) -> JudgedResponse<B> {
    if response.status.is_success() {
        return JudgedResponse::Fine(response);
    }
    // On the heap: few responses are refusals, and every call waits in this future.
    Box::pin(judge_refusal(response, addressee)).await
}

/// Judges the response to one of the gateway's own requests.
pub(crate) async fn open(
    response: Response<AnswerBody>,
    addressee: ErrorAddressee<'_>,
    limits: &ReadLimits,
) -> Result<AcceptedResponse, ResponseRefusal> {
    match judge(response.into(), addressee).await {
        JudgedResponse::Fine(response) => accepted_in(response, limits).map_err(ResponseRefusal::Gateway),
        JudgedResponse::SessionLost => Err(ResponseRefusal::SessionLost),
        JudgedResponse::Refused { error: Some(error), .. } => Err(ResponseRefusal::Rpc(error)),
        JudgedResponse::Refused { fault, error: None, .. } => Err(ResponseRefusal::Gateway(fault)),
    }
}

fn accepted_in<B: Body<Data = BodyPart, Error = io::Error> + Unpin>(
    response: RawResponse<B>,
    limits: &ReadLimits,
) -> Result<AcceptedResponse<B>, GatewayFault> {
    match response.content {
        BodyKind::Json => Ok(AcceptedResponse::Json(response.body)),
        BodyKind::Events => Ok(AcceptedResponse::Events(EventStream::new(response.body, limits.clone()))),
        BodyKind::Other => Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown)),
    }
}

/// The response to the request `id`; skips messages before it. Fails if it is missing, no JSON-RPC, or too large.
pub(crate) async fn answer<B: Body<Data = BodyPart, Error = io::Error> + Unpin>(
    response: RawResponse<B>,
    id: &RequestId,
    limits: &ReadLimits,
) -> Result<envelope::Response, GatewayFault> {
    answer_after(response, id, limits, |_| ()).await
}

/// As [`answer`]; `skip` gets each text of a stream before the response.
pub(crate) async fn answer_after<B: Body<Data = BodyPart, Error = io::Error> + Unpin>(
    response: RawResponse<B>,
    id: &RequestId,
    limits: &ReadLimits,
    mut skip: impl FnMut(&MessageText),
) -> Result<envelope::Response, GatewayFault> {
    let malformed = GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes);
    match accepted_in(response, limits)? {
        AcceptedResponse::Json(body) => answer_in(&read_whole(body, limits).await?, id).ok_or(malformed),
        AcceptedResponse::Events(mut events) => loop {
            match events.next().await.map_err(BodyReadError::into_fault)? {
                Some(event) => {
                    if let Some(answer) = answer_in(&event.data, id) {
                        return Ok(answer);
                    }
                    skip(&event.data);
                }
                None => return Err(BodyReadError::Closed.into_fault()),
            }
        },
    }
}

pub(crate) fn answer_in(text: &Bytes, id: &RequestId) -> Option<envelope::Response> {
    let messages = envelope::read_batch(text, ScanLimits::UPSTREAM, envelope::BATCH_READ_MAX).ok()?;
    messages.into_iter().flatten().find_map(|message| match message {
        Message::Response(response) => (response.id.as_ref() == Some(id)).then_some(response),
        Message::Request(_) | Message::Notification(_) => None,
    })
}

/// The kind of a body by its head. An encoded one is unusable, as none was accepted.
pub(crate) fn content_of(headers: &HeaderMap) -> BodyKind {
    let (mut kind, mut is_plain) = (None, true);
    // Most responses have few fields: a walk costs less than lookups.
    for (name, value) in headers {
        if *name == CONTENT_TYPE {
            kind.get_or_insert_with(|| match value {
                value if is_media(value, "application/json") => BodyKind::Json,
                value if is_media(value, "text/event-stream") => BodyKind::Events,
                _ => BodyKind::Other,
            });
        } else if *name == CONTENT_ENCODING {
            is_plain &= value.as_bytes().eq_ignore_ascii_case(b"identity");
        } else if *name == TRANSFER_ENCODING {
            let is_framing =
                |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked") || coding.eq_ignore_ascii_case(b"identity");
            is_plain &= value.as_bytes().split(|byte| *byte == b',').all(|coding| is_framing(coding.trim_ascii()));
        }
    }
    kind.filter(|_| is_plain).unwrap_or(BodyKind::Other)
}

/// Judges the response to a notification or response: any success counts, its body is ignored.
pub(crate) fn accepted(response: &Response<AnswerBody>) -> Result<(), GatewayFault> {
    if response.status().is_success() { Ok(()) } else { Err(status_fault(response)) }
}

pub(crate) fn status_fault<B>(response: &Response<B>) -> GatewayFault {
    fault_of(response.status(), retry_after(response))
}

fn fault_of(status: StatusCode, retry_after: Option<Duration>) -> GatewayFault {
    let reason = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Reason::UpstreamAuth,
        _ if status.is_redirection() => Reason::UpstreamRedirect,
        _ => Reason::UpstreamHttpStatus,
    };
    GatewayFault { http_status: Some(status.as_u16()), retry_after, ..GatewayFault::new(reason, Executed::Unknown) }
}

/// `Retry-After` in seconds; a date is not supported.
pub(crate) fn retry_after<B>(response: &Response<B>) -> Option<Duration> {
    if response.status().is_success() {
        return None;
    }
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| is_media(value, "application/json"))
}

fn is_media(value: &HeaderValue, media: &str) -> bool {
    if value.as_bytes() == media.as_bytes() {
        return true;
    }
    let text = value.to_str().unwrap_or_default();
    text.split(';').next().is_some_and(|essence| essence.trim().eq_ignore_ascii_case(media))
}

/// Not cancel safe. `ResultTooLarge` at the limit (U12); `UpstreamTimeout` if silent; `UpstreamClosed` if it breaks.
pub(crate) async fn read_whole<B: Body<Data = BodyPart, Error = io::Error> + Unpin>(
    mut body: B,
    limits: &ReadLimits,
) -> Result<Bytes, GatewayFault> {
    let too_large = GatewayFault::new(Reason::ResultTooLarge, Executed::Yes);
    if body.size_hint().lower() > limits.bytes_max as u64 {
        return Err(too_large);
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut held = AnswerPermit::default();
    while let Some(part) = limits.next_part(&mut body, &mut held).await.map_err(BodyReadError::into_fault)? {
        let piece = part.into_bytes();
        limits.grow(&mut held, first.len() + rest.len() + piece.len()).await?;
        if first.len() + rest.len() + piece.len() > limits.bytes_max {
            return Err(too_large);
        }
        // Most responses come in one piece and need no copy.
        if first.is_empty() && rest.is_empty() {
            first = piece;
        } else {
            let new = first.len() + piece.len();
            if rest.capacity() - rest.len() < new {
                // Room for all of it, once enough came to trust the announced length: a buffer that grows is copied.
                let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
                let is_trusted = rest.len() >= RESERVE_MAX / 2;
                rest.reserve(new + announced.min(if is_trusted { limits.bytes_max } else { RESERVE_MAX }));
            }
            rest.extend_from_slice(&std::mem::take(&mut first));
            rest.extend_from_slice(&piece);
        }
    }
    Ok(held.attach(if rest.is_empty() { first } else { rest.freeze() }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyReadError {
    Closed,
    Idle,
    TooLarge,
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

/// The next bytes of a JSON body; `None` at its end. Cancel safe.
pub(crate) async fn next_data<B: Body<Data = BodyPart, Error = io::Error> + Unpin>(
    body: &mut B,
) -> Result<Option<Bytes>, GatewayFault> {
    let part = next_part(body, None).await.map_err(BodyReadError::into_fault)?;
    Ok(part.map(BodyPart::into_bytes))
}

/// The next part of a body; `None` at its end. Fails if it breaks, or is silent for longer than `idle`. Cancel safe.
pub(crate) async fn next_part<B: Body<Data = BodyPart, Error = io::Error> + Unpin>(
    body: &mut B,
    idle: Option<Duration>,
) -> Result<Option<BodyPart>, BodyReadError> {
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

/// The text of an event with messages; `None` for one that only primes the stream or has another name.
pub(crate) fn message_in(event: &SseEvent) -> Option<&MessageText> {
    Some(&event.data).filter(|data| event.is_message() && !data.is_empty())
}

/// The position at which a stream can be resumed, and the delay before.
#[derive(Clone, Debug, Default)]
pub(crate) struct SseResumePoint {
    pub(crate) last_event: Option<HeaderValue>,
    pub(crate) retry: Option<Duration>,
}

impl SseResumePoint {
    /// Bounds on the upstream's reconnection delay (U21).
    const RETRY_MIN: Duration = Duration::from_millis(100);
    const RETRY_MAX: Duration = Duration::from_secs(60);
    const RETRY_DEFAULT: Duration = Duration::from_secs(1);

    /// Records an event. An id that no header can carry counts as an empty one, which resets earlier ids.
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

const ERROR_WAIT: Duration = Duration::from_secs(5);
const LOST_SESSION: [&str; 4] = ["no valid session", "invalid session", "session not found", "server not initialized"];
/// Longest untyped text that is searched for these texts.
const PLAIN_REFUSAL_BYTES_MAX: usize = 256;
/// The text of early Rust SDKs for an unknown session, under 401.
const EARLY_RUST_REFUSAL: &[u8] = b"Unauthorized: Session not found";

/// Judges a response under a refusing status: a response, an unknown session, or a refusal.
async fn judge_refusal<B: WholeBody>(response: RawResponse<B>, addressee: ErrorAddressee<'_>) -> JudgedResponse<B> {
    use ErrorAddressee::{Alone, Forwarded, ForwardedInSession, Handshake};
    let (fault, status) = (fault_of(response.status, response.retry_after), response.status);
    let in_session = addressee.is_in_session();
    let takes_any = matches!(addressee, Alone(_) | Handshake | Forwarded(_) | ForwardedInSession(_));
    let is_passed = matches!(addressee, Forwarded(_) | ForwardedInSession(_));
    let refused = |error, is_answer| JudgedResponse::Refused { fault, error, is_answer };
    let text = match response.content {
        BodyKind::Json if is_passed || fault.reason == Reason::UpstreamHttpStatus => {
            match small_body(response.body, RpcError::BYTES_MAX).await {
                Some(text) => text,
                // The large body may be the response, so the request may have run.
                None => return refused(None, false),
            }
        }
        BodyKind::Other if in_session && matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED) => {
            let text = small_body(response.body, PLAIN_REFUSAL_BYTES_MAX).await.unwrap_or_default();
            let is_answer = response_in(&text).is_some_and(|answer| addressee.is_named_by(&answer));
            let is_lost = match status {
                StatusCode::UNAUTHORIZED => text.trim_ascii() == EARLY_RUST_REFUSAL,
                _ => names_lost_session(&String::from_utf8_lossy(&text)),
            };
            return if is_lost && !is_answer { JudgedResponse::SessionLost } else { refused(None, false) };
        }
        BodyKind::Json | BodyKind::Other if in_session && status == StatusCode::NOT_FOUND => {
            return JudgedResponse::SessionLost;
        }
        BodyKind::Json | BodyKind::Events | BodyKind::Other => return refused(None, false),
    };
    let answer = response_in(&text);
    let is_answer = answer.as_ref().is_some_and(|answer| addressee.is_named_by(answer));
    match answer.map(|answer| answer.outcome) {
        Some(Ok(_)) if is_answer => JudgedResponse::Fine(RawResponse {
            status: StatusCode::OK,
            content: BodyKind::Json,
            retry_after: None,
            session: response.session,
            body: B::whole(text),
        }),
        Some(Err(error)) if in_session && refuses_session(status, &error, is_answer) => JudgedResponse::SessionLost,
        Some(Err(error)) if is_answer => refused(Some(error), true),
        Some(_) | None if in_session && status == StatusCode::NOT_FOUND => JudgedResponse::SessionLost,
        Some(Err(error)) if takes_any => refused(Some(error), false),
        Some(_) | None => refused(None, false),
    }
}

/// Whether an error means that the session is unknown, so that the request was not processed; some servers send it with
/// 400. An error that names the request is its response, except two: an unknown session at 404, at 400 a version.
fn refuses_session(status: StatusCode, error: &RpcError, is_answer: bool) -> bool {
    match status {
        StatusCode::BAD_REQUEST if error.code == UNSUPPORTED_VERSION && denies_sessions(error) => true,
        StatusCode::NOT_FOUND if is_answer => error.code == SESSION_NOT_FOUND,
        _ if is_answer => false,
        StatusCode::NOT_FOUND => match error.code {
            SESSION_NOT_FOUND | INVALID_REQUEST => true,
            TRANSPORT_ERROR => error.message.to_ascii_lowercase().contains("session"),
            _ => false,
        },
        StatusCode::BAD_REQUEST => error.code == TRANSPORT_ERROR && names_lost_session(&error.message),
        _ => false,
    }
}

fn response_in(text: &Bytes) -> Option<envelope::Response> {
    match envelope::read(text, ScanLimits::UPSTREAM) {
        Ok(Message::Response(response)) => Some(response),
        Ok(Message::Request(_) | Message::Notification(_)) | Err(_) => None,
    }
}

fn names_lost_session(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    LOST_SESSION.iter().any(|words| text.contains(words))
}

/// A body of at most `bytes_max` bytes; `None` if it is larger, or does not come in time.
async fn small_body<B: WholeBody>(body: B, bytes_max: usize) -> Option<Bytes> {
    tokio::time::timeout(ERROR_WAIT, read_whole(body, &ReadLimits::of_bytes(bytes_max))).await.ok()?.ok()
}
