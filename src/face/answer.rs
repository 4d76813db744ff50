//! Builds responses for clients: bytes and HTTP status (T-19).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};

use super::http::{
    AcceptedTypes, FaceResponse, Inbound, ResponseBody, SingleEventBody, empty_body, full_body, joined_body,
    typed_response,
};
use crate::dialect::RequestError;
use crate::dialect::faults::{gateway_error, insufficient_scope_error, rate_error};
use crate::engine::TaskError;
use crate::task::{Executed, GatewayFault, RateRefusal, Reason};
use crate::wire::envelope::{self, EnvelopeError};
use crate::wire::framing::BodyPart;
use crate::wire::{JsonPieces, ProtocolVersion, RequestId, RpcError, ScanError, rpc_error};

const RETRY_AFTER_SECONDS: u64 = 1;

/// The size in bytes from which a result is not copied into its envelope.
pub(super) const LARGE: usize = 8 * 1024;

/// Marks the response about a task that is missing or another principal's, so that it is counted.
#[derive(Clone, Copy, Debug)]
pub struct UnknownTaskMarker;

/// Marks a response with a JSON-RPC error of an upstream or of the gateway.
#[derive(Clone, Copy, Debug)]
pub struct ErrorAnswerMarker;

#[derive(Clone, Debug)]
pub struct Addressee {
    pub id: Option<RequestId>,
    pub version: ProtocolVersion,
    pub accepted: AcceptedTypes,
}

impl Addressee {
    pub fn result(&self, result: impl Into<JsonPieces>) -> FaceResponse {
        let Some(id) = &self.id else { return accepted() };
        let result = result.into();
        if result.is_large() {
            let body = joined_body(envelope::result_of_pieces(id, result.into_pieces()));
            return match self.accepted {
                AcceptedTypes::EventStream => event_stream(ResponseBody::new(SingleEventBody::new(body, None))),
                AcceptedTypes::Json | AcceptedTypes::Both | AcceptedTypes::Neither => json(body),
            };
        }
        let result = match result {
            // Copied at once: a shared buffer would take another allocation.
            JsonPieces::Text(text) if text.len() < LARGE => {
                return self.message(StatusCode::OK, envelope::result_with_text(id, &text));
            }
            result @ (JsonPieces::Whole(_) | JsonPieces::Text(_) | JsonPieces::Pieces(_)) => result.whole(),
        };
        if result.len() >= LARGE && self.accepted != AcceptedTypes::EventStream {
            let (head, tail) = envelope::result_in_pieces(id, result);
            return json(joined_body([head, tail]));
        }
        self.message(StatusCode::OK, envelope::result(id, &result))
    }

    pub fn complaint(&self, complaint: &RequestError) -> FaceResponse {
        let status = match complaint {
            RequestError::NotJson(_)
            | RequestError::NotARequest(_)
            | RequestError::UnsafeDocument { .. }
            | RequestError::InvalidMetadata(_)
            | RequestError::Header(_)
            | RequestError::Capability(_)
            | RequestError::Version { .. } => StatusCode::BAD_REQUEST,
            RequestError::UnknownMethod(_) | RequestError::UnknownSession => StatusCode::NOT_FOUND,
            RequestError::Params(_)
            | RequestError::UnknownTool(_)
            | RequestError::UnknownTask
            | RequestError::InvalidRequestState
            | RequestError::IdempotencyMismatch
            | RequestError::NeedsTask
            | RequestError::TakesNoTask => StatusCode::OK,
        };
        mark(self.error(status, &complaint.to_error(self.version)), complaint)
    }

    /// A fault of the gateway. Intermediaries retry by themselves only if nothing was sent upstream (GW-38).
    pub fn fault(&self, fault: &GatewayFault) -> FaceResponse {
        self.fault_in_words(fault, &gateway_error(fault))
    }

    pub(super) fn fault_in_words(&self, fault: &GatewayFault, error: &RpcError) -> FaceResponse {
        if fault.executed != Executed::No {
            return self.error(StatusCode::OK, error);
        }
        let is_quota = matches!(
            fault.reason,
            Reason::TooManyTasks
                | Reason::TooManyListeners
                | Reason::TooMuchStored
                | Reason::TooMuchUnread
                | Reason::RateLimited
        );
        let status = if is_quota { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::SERVICE_UNAVAILABLE };
        let mut response = self.error(status, error);
        if may_pass(fault) {
            response.headers_mut().insert(RETRY_AFTER, retry_after(fault.retry_after));
        }
        response
    }

    pub(super) fn too_often(&self, refusal: &RateRefusal) -> FaceResponse {
        let mut response = self.error(StatusCode::TOO_MANY_REQUESTS, &rate_error(refusal));
        response.headers_mut().insert(RETRY_AFTER, retry_after(Some(refusal.wait)));
        response
    }

    /// 403 for an operation for which the token lacks a scope: lists all scopes that the operation needs.
    pub fn insufficient_scope(&self, needed: &[Arc<str>]) -> FaceResponse {
        let mut response = self.error(StatusCode::FORBIDDEN, &insufficient_scope_error());
        response.extensions_mut().insert(ScopesNeeded(needed.to_vec()));
        response
    }

    /// Refuses a request for an event stream that its client does not accept.
    pub fn needs_stream(&self) -> FaceResponse {
        let why = "Not acceptable: the response is an event stream; send `Accept: application/json, text/event-stream`";
        self.error(StatusCode::NOT_ACCEPTABLE, &RpcError::new(rpc_error::INVALID_REQUEST, why))
    }

    pub fn error(&self, status: StatusCode, error: &RpcError) -> FaceResponse {
        let mut response = self.message(status, envelope::error(self.id.as_ref(), error));
        response.extensions_mut().insert(ErrorAnswerMarker);
        response
    }

    fn message(&self, status: StatusCode, message: Bytes) -> FaceResponse {
        match self.accepted {
            AcceptedTypes::EventStream if status.is_success() => event_stream(full_body(BodyPart::message(message))),
            AcceptedTypes::EventStream | AcceptedTypes::Json | AcceptedTypes::Both | AcceptedTypes::Neither => {
                let mut response = json(full_body(message));
                *response.status_mut() = status;
                response
            }
        }
    }
}

/// Whether the same request may succeed shortly without any change.
fn may_pass(fault: &GatewayFault) -> bool {
    let is_passing = |status| status >= 500 || status == StatusCode::TOO_MANY_REQUESTS.as_u16();
    if fault.reason == Reason::UpstreamHttpStatus {
        return fault.retry_after.is_some() || fault.http_status.is_none_or(is_passing);
    }
    !matches!(
        fault.reason,
        Reason::UpstreamAuth
            | Reason::UpstreamRedirect
            | Reason::CredentialMissing
            | Reason::CredentialBound
            | Reason::CredentialRefused
            | Reason::InitializeResultTooLarge
    )
}

pub(super) fn mark(response: FaceResponse, complaint: &RequestError) -> FaceResponse {
    if *complaint == RequestError::UnknownTask { missed(response) } else { response }
}

/// Marks a response that does not show by itself that its task is missing.
pub(super) fn missed(mut response: FaceResponse) -> FaceResponse {
    response.extensions_mut().insert(UnknownTaskMarker);
    response
}

/// Whole seconds, rounded up, so that the retry succeeds.
pub(crate) fn retry_after(wait: Option<Duration>) -> HeaderValue {
    let seconds = wait.map_or(RETRY_AFTER_SECONDS, |wait| wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
    HeaderValue::from(seconds.max(1))
}

pub fn too_many(fault: &GatewayFault) -> FaceResponse {
    let mut response = bare(StatusCode::TOO_MANY_REQUESTS);
    response.headers_mut().insert(RETRY_AFTER, retry_after(fault.retry_after));
    response
}

pub(super) fn too_often(refusal: &RateRefusal) -> FaceResponse {
    Addressee { id: None, version: ProtocolVersion::NEWEST_SESSION, accepted: AcceptedTypes::Json }.too_often(refusal)
}

pub(super) fn json(body: ResponseBody) -> FaceResponse {
    typed_response(body, "application/json")
}

const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// An event stream is never buffered, never cached.
pub fn event_stream(body: ResponseBody) -> FaceResponse {
    let mut response = typed_response(body, "text/event-stream");
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(BUFFERING, HeaderValue::from_static("no"));
    response
}

pub fn accepted() -> FaceResponse {
    bare(StatusCode::ACCEPTED)
}

pub fn bare(status: StatusCode) -> FaceResponse {
    let mut response = FaceResponse::new(empty_body());
    *response.status_mut() = status;
    response
}

/// A refusal with one sentence for people: an error without id, since no request was read. Contains no text from the client.
pub fn refused(status: StatusCode, code: i64, sentence: &str) -> FaceResponse {
    let mut response = json(full_body(envelope::error(None, &RpcError::new(code, sentence))));
    *response.status_mut() = status;
    response
}

/// An operation's scopes, if a token lacks one. The listener writes the challenge: it knows metadata and common scopes.
#[derive(Clone, Debug)]
pub struct ScopesNeeded(pub Vec<Arc<str>>);

/// 403 without an id, for a request whose body was not read.
pub fn insufficient_scope(sentence: &str) -> FaceResponse {
    let error = RpcError { message: sentence.to_owned(), ..insufficient_scope_error() };
    let mut response = json(full_body(envelope::error(None, &error)));
    *response.status_mut() = StatusCode::FORBIDDEN;
    response
}

/// 405 for a path that accepts only POST (MOD-01, B53).
pub fn only_post() -> FaceResponse {
    const SENTENCE: &str = "This address is for MCP clients, which send POST requests; browsers see nothing here";
    let mut response = refused(StatusCode::METHOD_NOT_ALLOWED, rpc_error::INVALID_REQUEST, SENTENCE);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    response
}

/// The error for an unreadable body, and the request's id if it may be echoed (B78 to B95). For a response there is none (B270).
pub(super) fn unreadable(error: EnvelopeError) -> (Option<RequestId>, RequestError) {
    match error {
        EnvelopeError::Scan { error, id, is_answer } => {
            let what = error.to_string();
            let refused = |reason| RequestError::UnsafeDocument { what: what.clone(), reason };
            let complaint = match error {
                ScanError::Syntax { .. } | ScanError::Utf8 { .. } | ScanError::LoneSurrogate { .. } => {
                    RequestError::NotJson(what)
                }
                ScanError::TooDeep { .. } => refused("too_deep"),
                ScanError::DuplicateKey { .. } => refused("duplicate_key"),
                ScanError::NumberRange { .. } => refused("number_range"),
                ScanError::TooManyNodes { .. } => refused("too_many_nodes"),
            };
            (id.filter(|_| !is_answer), complaint)
        }
        EnvelopeError::Shape { what, id, is_answer } => (id.filter(|_| !is_answer), RequestError::NotARequest(what)),
        EnvelopeError::Batch => (None, RequestError::not_a_request("a batch is not accepted here")),
    }
}

pub(super) fn stateless_addressee(inbound: &Inbound, id: Option<RequestId>) -> Addressee {
    Addressee { id, version: ProtocolVersion::STATELESS, accepted: inbound.accepted }
}

pub(super) fn addressee(id: Option<&RequestId>, accepted: AcceptedTypes) -> Addressee {
    Addressee { id: id.cloned(), version: ProtocolVersion::NEWEST_SESSION, accepted }
}

/// The reason why a task method has no result, for all flavours; each face encodes it.
pub(super) enum TaskMethodError {
    Complaint(RequestError),
    Error(RpcError),
    Task(TaskError),
    /// Nothing was done.
    Fault(GatewayFault),
}

from_variant!(
    TaskMethodError::Fault(GatewayFault),
    TaskMethodError::Complaint(RequestError),
    TaskMethodError::Error(RpcError),
    TaskMethodError::Task(TaskError),
);
