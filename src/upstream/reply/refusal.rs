//! Judges responses under a refusing status: a response, an unknown session, or a refusal.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use super::{ErrorAddressee, JudgedResponse, ReadLimits, WholeBody, fault_of, read_whole};
use crate::task::Reason;
use crate::upstream::answer_body::BodyKind;
use crate::upstream::raw_channel::RawResponse;
use crate::wire::rpc_error::{INVALID_REQUEST, SESSION_NOT_FOUND};
use crate::wire::{Message, RpcError, ScanLimits, envelope};

/// Largest error body that is read under a refusing status.
const ERROR_BYTES_MAX: usize = 64 * 1024;
const ERROR_WAIT: Duration = Duration::from_secs(5);
/// The code of SDKs for errors of HTTP or the session, not of the message.
const TRANSPORT_ERROR: i64 = -32_000;
/// The texts of SDKs for an unknown session.
const LOST_SESSION: [&str; 4] = ["no valid session", "invalid session", "session not found", "server not initialized"];
/// Longest untyped text that is searched for these texts.
const PLAIN_REFUSAL_BYTES_MAX: usize = 256;
/// The text of early Rust SDKs for an unknown session, under 401.
const EARLY_RUST_REFUSAL: &[u8] = b"Unauthorized: Session not found";

pub(super) async fn judge<B: WholeBody>(response: RawResponse<B>, addressee: ErrorAddressee<'_>) -> JudgedResponse<B> {
    use ErrorAddressee::{Alone, Handshake, Passed, PassedInSession};
    let (fault, status) = (fault_of(response.status, response.retry_after), response.status);
    let in_session = addressee.is_in_session();
    let takes_any = matches!(addressee, Alone(_) | Handshake | Passed(_) | PassedInSession(_));
    let is_passed = matches!(addressee, Passed(_) | PassedInSession(_));
    let refused = |error, is_answer| JudgedResponse::Refused { fault, error, is_answer };
    let text = match response.content {
        BodyKind::Json if is_passed || fault.reason == Reason::UpstreamHttpStatus => {
            match small_body(response.body, ERROR_BYTES_MAX).await {
                Some(text) => text,
                // It may be the response, so the request may have run.
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
/// 400. An error that names the request is its response, except the code for an unknown session at 404.
fn refuses_session(status: StatusCode, error: &RpcError, is_answer: bool) -> bool {
    match status {
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
