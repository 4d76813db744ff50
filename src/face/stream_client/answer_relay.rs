//! Converts an endpoint's responses into messages for its client, and resumes streams until they are complete. An HTTP
//! error becomes a JSON-RPC error.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::RETRY_AFTER;
use parking_lot::Mutex;
use serde_json::json;
use smallvec::SmallVec;
use tokio::time::sleep;
use tokio_util::sync::DropGuard;

use super::UnansweredRequest;
use super::client_link::{ClientDisconnected, ClientLink};
use crate::dialect::faults::gateway_error;
use crate::face::http::{FaceResponse, Inbound, ResponseBody, is_event_stream, is_passing};
use crate::metric;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::reply::{BodyReadError, EventStream, read_whole};
use crate::wire::envelope::{EnvelopeError, is_batch, split_batch};
use crate::wire::{Message, MessageText, Payload, RequestId, ScanLimits, envelope, method};

/// The delay before a stream is resumed, if the server names none.
const RETRY: Duration = Duration::from_secs(1);
const OWN_STREAM_RETRY_MIN: Duration = Duration::from_millis(100);
/// The longest delay that a server may request, and the longest after failures.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// The limit of attempts in a row without a new event.
const ATTEMPTS_MAX: u32 = 10;

#[derive(Debug)]
pub(super) enum RelayOutcome {
    Whole,
    Short(RelayResumePoint),
    Nothing,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RelayResumePoint {
    pub(super) event: Option<String>,
    pub(super) retry: Option<Duration>,
    pub(super) moved: bool,
}

/// The requests of one message that await a response: one request, or an array's requests that are not cancelled.
pub(super) struct OpenRequests {
    pub(super) ids: Mutex<SmallVec<[RequestId; 1]>>,
    pub(super) is_array: bool,
}

impl OpenRequests {
    pub(super) fn take_one(&self, id: &RequestId) -> bool {
        let mut ids = self.ids.lock();
        let at = ids.iter().position(|own| own == id);
        at.map(|at| ids.remove(at)).is_some()
    }
}

impl ClientLink {
    /// Sends the messages of a response to `open` requests, or of a session's own stream.
    pub(super) async fn relay(
        &self,
        response: FaceResponse,
        open: Option<&OpenRequests>,
    ) -> Result<RelayOutcome, ClientDisconnected> {
        let is_stream = is_event_stream(&response);
        let (head, body) = response.into_parts();
        if is_stream {
            return Box::pin(self.relay_events(body, open)).await;
        }
        let text = match read_whole(body, &self.read_limits()).await {
            Ok(text) => text,
            Err(fault) => {
                self.send_fault(open, &fault).await?;
                return Ok(RelayOutcome::Whole);
            }
        };
        if text.is_empty() && head.status.is_success() {
            return Ok(RelayOutcome::Nothing);
        }
        let ids = match open {
            // An array of errors has one error for each element of the client's array.
            Some(open) if !head.status.is_success() && !is_batch(&text) => std::mem::take(&mut *open.ids.lock()),
            Some(_) | None => SmallVec::new(),
        };
        if !ids.is_empty() {
            let wait = head.headers.get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse().ok());
            for id in ids {
                self.send(refusal(&text, &id, head.status, wait.map(Duration::from_secs))).await?;
            }
            return Ok(RelayOutcome::Whole);
        }
        let (message, is_answer) = self.vetted(text.into(), open);
        if let Some(message) = message {
            self.send(message).await?;
        }
        if !is_answer {
            self.send_fault(open, &GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes)).await?;
        }
        Ok(RelayOutcome::Whole)
    }

    async fn relay_events(
        &self,
        body: ResponseBody,
        open: Option<&OpenRequests>,
    ) -> Result<RelayOutcome, ClientDisconnected> {
        let mut events = EventStream::new(body, self.read_limits());
        let (mut resume_point, mut is_answered) = (RelayResumePoint::default(), false);
        loop {
            let event = match events.next().await.map_err(BodyReadError::into_fault) {
                Ok(Some(event)) => event,
                // A session's own stream is resumed after its last message (U92).
                Err(fault) if open.is_some() && has_no_room(fault.reason) => {
                    self.send_fault(open, &fault).await?;
                    return Ok(RelayOutcome::Whole);
                }
                Ok(None) | Err(_) => break,
            };
            let says = event.is_message() && !event.data.is_empty();
            resume_point.event = event.id.or_else(|| resume_point.event.take());
            resume_point.retry = event.retry_ms.map(Duration::from_millis).or(resume_point.retry);
            // An event without data only sets a position; an event with a name is no message.
            if !says {
                continue;
            }
            resume_point.moved = true;
            let (message, is_answer) = self.vetted(event.data, open);
            is_answered |= is_answer;
            if let Some(message) = message {
                self.send(message).await?;
            }
        }
        let resume_point =
            RelayResumePoint { event: resume_point.event.filter(|event| !event.is_empty()), ..resume_point };
        Ok(if is_answered { RelayOutcome::Whole } else { RelayOutcome::Short(resume_point) })
    }

    /// Removes texts that are no messages, and responses that are not awaited. Also returns whether an awaited one is in the text.
    fn vetted(&self, text: MessageText, open: Option<&OpenRequests>) -> (Option<Bytes>, bool) {
        if text.message().is_some() || !is_batch(&text) {
            let kind = kind_of(&text, open);
            if kind == RelayedKind::None {
                self.dropped();
            }
            return ((kind != RelayedKind::None).then(|| text.into_bytes()), kind == RelayedKind::Answer);
        }
        let Ok(messages) = split_batch(&text, ScanLimits::UPSTREAM, envelope::BATCH_READ_MAX) else {
            self.dropped();
            return (None, false);
        };
        let kinds: Vec<_> = messages.iter().map(|message| kind_of(&message.clone().into(), open)).collect();
        let is_answer = kinds.contains(&RelayedKind::Answer);
        if !kinds.contains(&RelayedKind::None) {
            return (Some(text.into_bytes()), is_answer);
        }
        self.dropped();
        let kept = |(message, kind): (Bytes, RelayedKind)| (kind != RelayedKind::None).then_some(message);
        let kept: Vec<_> = messages.into_iter().zip(kinds).filter_map(kept).collect();
        (envelope::batch(&kept).map(|text| self.read_limits().rehold(text)), is_answer)
    }

    fn dropped(&self) {
        let upstream = self.upstream();
        tracing::debug!(%upstream, "a server's message was dropped: it is invalid, or a response to another request");
        metric::count_dropped(upstream, "no_message");
    }

    /// Without a request, a fault is only logged.
    pub(super) async fn send_fault(
        &self,
        open: Option<&OpenRequests>,
        fault: &GatewayFault,
    ) -> Result<(), ClientDisconnected> {
        let Some(open) = open else {
            tracing::debug!(reason = fault.reason.key(), "a message to the client was lost");
            return Ok(());
        };
        let ids = std::mem::take(&mut *open.ids.lock());
        for id in ids {
            self.send(envelope::error(Some(&id), &gateway_error(fault))).await?;
        }
        Ok(())
    }
}

/// Follows the result of a subscription that the client has not cancelled (T-52).
fn ended_subscription(id: &RequestId) -> Bytes {
    let params = Payload::of(&json!({ "requestId": id, "reason": "the subscription has ended" }));
    envelope::notification(method::CANCELLED, Some(&params))
}

const fn has_no_room(reason: Reason) -> bool {
    matches!(reason, Reason::ResultTooLarge | Reason::TooMuchUnread | Reason::AnswersFull)
}

/// The refusal in the form that the client that sent `id` expects.
fn refusal(text: &Bytes, id: &RequestId, status: StatusCode, retry_after: Option<Duration>) -> Bytes {
    if let Ok(Message::Response(response)) = envelope::read(text, ScanLimits::UPSTREAM) {
        match (response.id, response.outcome) {
            (Some(named), _) if named == *id => return text.clone(),
            (_, Err(error)) => return envelope::error(Some(id), &error),
            (_, Ok(_)) => (),
        }
    }
    let reason = match status {
        StatusCode::TOO_MANY_REQUESTS => Reason::RateLimited,
        StatusCode::SERVICE_UNAVAILABLE => Reason::Draining,
        _ => Reason::Internal,
    };
    let fault = GatewayFault { retry_after, ..GatewayFault::new(reason, Executed::No) };
    envelope::error(Some(id), &gateway_error(&fault))
}

/// The kind of a text for a client that awaits responses, or any message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RelayedKind {
    /// The awaited response: clients differ, so a text with the id counts even if the gateway cannot parse it.
    Answer,
    Message,
    /// No message, or a response to another request.
    None,
}

fn kind_of(text: &MessageText, open: Option<&OpenRequests>) -> RelayedKind {
    let named = match text.read(ScanLimits::UPSTREAM) {
        Ok(message) => match &*message {
            Message::Request(_) | Message::Notification(_) => return RelayedKind::Message,
            // An element of an array that is no request gets an error without an id.
            Message::Response(response) if open.is_none_or(|open| open.is_array && response.id.is_none()) => {
                return RelayedKind::Message;
            }
            Message::Response(response) => response.id.clone(),
        },
        Err(EnvelopeError::Scan { id: named, .. } | EnvelopeError::Shape { id: named, .. }) => named,
        Err(EnvelopeError::Batch) => None,
    };
    match named.zip(open).is_some_and(|(named, open)| open.take_one(&named)) {
        true => RelayedKind::Answer,
        false => RelayedKind::None,
    }
}

impl ClientLink {
    /// Resumes a stream that ends early, else sends an error, unless the client has `withdrawn` the request.
    pub(super) async fn serve_request(
        &self,
        inbound: Inbound,
        id: &RequestId,
        request: &UnansweredRequest,
    ) -> Result<(), ClientDisconnected> {
        let response = self.serve(inbound).await;
        let has_begun = request.is_subscription && is_event_stream(&response);
        let relayed = self.relay(response, Some(&request.open)).await?;
        self.see_through(relayed, request).await?;
        if has_begun { self.send(ended_subscription(id)).await } else { Ok(()) }
    }

    pub(super) async fn see_through(
        &self,
        mut relayed: RelayOutcome,
        request: &UnansweredRequest,
    ) -> Result<(), ClientDisconnected> {
        let mut attempts = 0;
        loop {
            let resume_point = match relayed {
                RelayOutcome::Whole => return Ok(()),
                RelayOutcome::Nothing => break,
                RelayOutcome::Short(resume_point) => resume_point,
            };
            attempts = if resume_point.moved { 1 } else { attempts + 1 };
            if attempts > ATTEMPTS_MAX || request.withdrawn.is_cancelled() {
                break;
            }
            let Some(rest) = resume_point.event.as_deref().and_then(|event| self.get(Some(event))) else { break };
            sleep(resume_point.retry.unwrap_or(RETRY).min(RETRY_MAX)).await;
            let response = self.serve(rest).await;
            relayed = match response.status() {
                StatusCode::OK => match self.relay(response, Some(&request.open)).await? {
                    // There is no new event: the position remains.
                    RelayOutcome::Short(rest @ RelayResumePoint { event: None, .. }) => {
                        let retry = rest.retry.or(resume_point.retry);
                        RelayOutcome::Short(RelayResumePoint { event: resume_point.event, retry, ..rest })
                    }
                    other @ (RelayOutcome::Whole | RelayOutcome::Nothing | RelayOutcome::Short(_)) => other,
                },
                status if is_passing(status) || status == StatusCode::BAD_GATEWAY => {
                    RelayOutcome::Short(RelayResumePoint { moved: false, ..resume_point })
                }
                _ => break,
            };
        }
        if request.withdrawn.is_cancelled() {
            return Ok(());
        }
        self.send_fault(Some(&request.open), &GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown)).await
    }

    /// Relays the session's own stream, until the server has none or the session ends. Drops `opening` at a response.
    pub(super) async fn listen(self: Arc<Self>, opening: DropGuard) -> Result<(), ClientDisconnected> {
        let (mut event, mut pause, mut opening) = (None::<String>, RETRY, Some(opening));
        let session = self.session_id();
        loop {
            let Some(get) = self.get(event.as_deref()).filter(|_| self.session_id() == session) else { return Ok(()) };
            let response = self.serve(get).await;
            drop(opening.take());
            match response.status() {
                StatusCode::OK => match self.relay(response, None).await? {
                    RelayOutcome::Short(resume_point) => {
                        pause = resume_point.retry.unwrap_or(RETRY).clamp(OWN_STREAM_RETRY_MIN, RETRY_MAX);
                        event = resume_point.event.or(event);
                    }
                    RelayOutcome::Whole | RelayOutcome::Nothing => pause = RETRY,
                },
                StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_FOUND => return Ok(()),
                // The position may be invalid: start again, at growing intervals.
                status => {
                    event = event.filter(|_| is_passing(status));
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
            sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::super::StreamClient;
    use super::*;
    use crate::face::answer::event_stream;
    use crate::face::endpoint::UnavailableStoreEndpoint;
    use crate::face::http::full_body;
    use crate::shared_limits::SharedLimits;
    use crate::task::{Caller, Principal};

    #[tokio::test]
    async fn u92_after_an_event_without_room_a_sessions_stream_is_resumed_after_its_last_message() {
        let (outgoing, mut sent) = mpsc::channel(4);
        let link = ClientLink::new(
            StreamClient {
                endpoint: Arc::new(UnavailableStoreEndpoint),
                upstream: Arc::from("up"),
                path: "/up/mcp".to_owned(),
                caller: Caller::of(Principal::local()),
                address: None,
                limits: SharedLimits::default(),
                message_bytes_max: 100,
            },
            outgoing,
        );
        let message = r#"{"jsonrpc":"2.0","method":"notifications/a"}"#;
        let events = format!("id: 1\ndata: {message}\n\nid: 2\ndata: {}\n\n", "x".repeat(1_000));
        let response = event_stream(full_body(Bytes::from(events)));
        let RelayOutcome::Short(resume_point) = link.relay(response, None).await.unwrap() else {
            panic!("the stream is taken for a complete one")
        };
        assert_eq!(resume_point.event.as_deref(), Some("1"));
        assert_eq!(sent.recv().await.unwrap(), message);
    }
}
