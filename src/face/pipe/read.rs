//! Reads the few answers that do not pass through: errors under refusing statuses, and what is edited.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Body;

use crate::face::call_stream::request_answer::RequestAnswer;
use crate::face::http::{AcceptedTypes, full_body};
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::answer_body::{BodyKind, fault_in};
use crate::upstream::raw_channel::{RawBody, RawResponse, SessionBinding};
use crate::upstream::reply::names_lost_session;
use crate::wire::envelope::{EnvelopeError, Response};
use crate::wire::framing::{SseDecoder, sse_message};
use crate::wire::{Message, RequestId, RpcError, ScanLimits, envelope};

/// Largest error body that is looked into under a refusing status.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// How long such a body may take.
const ERROR_WAIT: Duration = Duration::from_secs(5);
/// An answer whose head says what it is worth.
pub(in crate::face) enum JudgedResponse {
    /// A success, still to be read.
    Fine(RawResponse),
    /// The upstream does not know the session; it has not looked at the message.
    SessionLost,
    /// The upstream refuses, with a JSON-RPC error if it gave one.
    Refused { fault: GatewayFault, error: Option<RpcError> },
}

/// Judges an answer to a request in `binding`.
pub(in crate::face) async fn judge(response: RawResponse, binding: &SessionBinding) -> JudgedResponse {
    if response.status.is_success() {
        return JudgedResponse::Fine(response);
    }
    let fault = status_fault(&response);
    let status = response.status;
    if binding.session.is_some() && status == StatusCode::NOT_FOUND {
        return JudgedResponse::SessionLost;
    }
    // On the heap: few answers are refusals, and every call waits in this future.
    let error = Box::pin(explained(response)).await;
    let is_lost = error.as_ref().is_some_and(|error| names_lost_session(status, error));
    if binding.session.is_some() && is_lost {
        return JudgedResponse::SessionLost;
    }
    JudgedResponse::Refused { fault, error }
}

/// What a refusing status means.
pub(in crate::face) fn status_fault(response: &RawResponse) -> GatewayFault {
    let reason = match response.status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Reason::UpstreamAuth,
        status if status.is_redirection() => Reason::UpstreamRedirect,
        _ => Reason::UpstreamHttpStatus,
    };
    GatewayFault {
        http_status: Some(response.status.as_u16()),
        retry_after: response.retry_after,
        ..GatewayFault::new(reason, Executed::Unknown)
    }
}

/// The JSON-RPC error under a refusing status. Whoever was refused is the only one it can be meant for.
pub(in crate::face) async fn explained(response: RawResponse) -> Option<RpcError> {
    if response.content != BodyKind::Json {
        return None;
    }
    let text = tokio::time::timeout(ERROR_WAIT, whole(response.body, ERROR_BYTES_MAX)).await.ok()?.ok()?;
    match envelope::read(&text, ScanLimits::UPSTREAM) {
        Ok(Message::Response(response)) => response.outcome.err(),
        Ok(Message::Request(_) | Message::Notification(_)) | Err(_) => None,
    }
}

/// Reads a whole body.
///
/// # Errors
/// `ResultTooLarge` at the bound, without having read more; `UpstreamClosed` when it breaks.
pub(in crate::face) async fn whole(mut body: RawBody, bytes_max: usize) -> Result<Bytes, GatewayFault> {
    let too_large = GatewayFault::new(Reason::ResultTooLarge, Executed::Yes);
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large);
    }
    let mut read = BytesMut::new();
    while let Some(piece) = next(&mut body).await? {
        if read.len() + piece.len() > bytes_max {
            return Err(too_large);
        }
        // Most answers come in one piece and need no copy.
        if read.is_empty() && body.is_end_stream() {
            return Ok(piece);
        }
        read.extend_from_slice(&piece);
    }
    Ok(read.freeze())
}

/// The next bytes of a body; `None` at its end. Cancel safe.
pub(in crate::face) async fn next(body: &mut RawBody) -> Result<Option<Bytes>, GatewayFault> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => return Err(fault_in(&error)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// The answer to the request `id`, out of a JSON body or an event stream. Messages before it are passed over.
///
/// # Errors
/// If the answer does not come, is no JSON-RPC answer, or is larger than `bytes_max`.
pub(in crate::face) async fn answer(
    mut response: RawResponse,
    id: &RequestId,
    bytes_max: usize,
) -> Result<Response, GatewayFault> {
    let malformed = GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes);
    if response.content == BodyKind::Json {
        let text = whole(response.body, bytes_max).await?;
        return answer_in(&text, id).ok_or(malformed);
    }
    let mut decoder = SseDecoder::new(bytes_max);
    while let Some(piece) = next(&mut response.body).await? {
        let too_large = |_| GatewayFault::new(Reason::ResultTooLarge, Executed::Yes);
        for event in decoder.feed(&piece).map_err(too_large)? {
            if let Some(answer) = answer_in(&event.data, id) {
                return Ok(answer);
            }
        }
    }
    Err(GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown))
}

fn answer_in(text: &Bytes, id: &RequestId) -> Option<Response> {
    let messages = envelope::read_batch(text, ScanLimits::UPSTREAM, envelope::BATCH_READ_MAX).ok()?;
    messages.into_iter().flatten().find_map(|message| match message {
        Message::Response(response) => {
            let is_meant = response.id.as_ref().is_some_and(|named| named.says(id));
            is_meant.then_some(response)
        }
        Message::Request(_) | Message::Notification(_) => None,
    })
}

/// An answer that was read whole. Several messages in one array become several events, or the answer
/// alone for a client that takes no stream.
///
/// # Errors
/// `UpstreamMalformed` if there is nothing that can be passed on.
pub(in crate::face) fn several(
    mut messages: Vec<Bytes>,
    accepted: AcceptedTypes,
    id: &RequestId,
) -> Result<RequestAnswer, GatewayFault> {
    let malformed = GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes);
    if messages.is_empty() {
        return Err(malformed);
    }
    if messages.len() == 1 {
        return Ok(RequestAnswer::Json(full_body(messages.swap_remove(0))));
    }
    if accepted == AcceptedTypes::Json {
        let answer = messages.into_iter().find(|message| answer_in(message, id).is_some()).ok_or(malformed)?;
        return Ok(RequestAnswer::Json(full_body(answer)));
    }
    let events: Vec<Bytes> = messages.iter().map(sse_message).collect();
    Ok(RequestAnswer::Events(full_body(events.concat().into())))
}

/// Whether a client would take a message for the answer to `id`. Clients differ in what they can read, so a message that
/// bears the id counts even where the gateway would not keep it.
pub(in crate::face) fn brings_answer(message: &Bytes, id: &RequestId) -> bool {
    let bears_id = |error: &EnvelopeError| match error {
        EnvelopeError::Scan { id: found, .. } | EnvelopeError::Shape { id: found, .. } => {
            found.as_ref().is_some_and(|found| found.says(id))
        }
        EnvelopeError::Batch => false,
    };
    match envelope::read_batch(message, ScanLimits::UPSTREAM, envelope::BATCH_READ_MAX) {
        Ok(messages) => messages.iter().any(|message| match message {
            Ok(Message::Response(response)) => response.id.as_ref().is_some_and(|named| named.says(id)),
            Ok(Message::Request(_) | Message::Notification(_)) => false,
            Err(error) => bears_id(error),
        }),
        Err(error) => bears_id(&error),
    }
}
