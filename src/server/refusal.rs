//! Every reason to turn a request or a connection away by looking at HTTP alone, and the answer to each.
//!
//! Answers carry no body and no byte of the client's (reliability b.3, rules 1 and 5). The two reasons that
//! concern the JSON text itself are answered as JSON-RPC errors without id.

use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode, Version};

use crate::face::http::{Response, empty_body, full_body};
use crate::metric;
use crate::wire::{RpcError, envelope, fault};

/// Why something was turned away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// CONNECT: this is no tunnel (B46, B55).
    Tunnel,
    HeadTooLarge,
    TargetTooLong,
    /// No host at all, two of them, or two that disagree (B44, B45, B49, B50).
    HostUnclear,
    HostForeign,
    OriginForeign,
    /// Two credentials (B150).
    CredentialsUnclear,
    /// No credential, or none that is known: which of the two is nobody's business (B151).
    Unauthorized,
    PathUnknown,
    /// Carries the methods that the path has.
    MethodUnknown(HeaderValue),
    MediaType,
    ContentCoding,
    NotAcceptable,
    Expectation,
    /// Transfer codings that would have to be undone before the body can be read (B04).
    TransferCoding,
    BodyTooLarge,
    BodyTooSlow,
    /// The framing of the body broke off or was malformed (B15).
    BodyBroken,
    /// Chunk extensions beyond any use (B16).
    ChunkExtensions,
    BodyEmpty,
}

/// Marks the answer to a refused request, so that its connection can keep count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused;

/// How one reason is answered.
struct Terms {
    status: StatusCode,
    /// The label under which it is counted.
    reason: &'static str,
    then: Then,
    /// The message of a JSON-RPC error; without one the answer is bare.
    message: Option<&'static str>,
}

/// What becomes of an HTTP/1 connection whose request had been read to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    GoesOn,
    Ends,
}

impl Terms {
    const fn bare(status: StatusCode, reason: &'static str, then: Then) -> Self {
        Self { status, reason, then, message: None }
    }
}

impl Refusal {
    const fn terms(&self) -> Terms {
        use StatusCode as S;
        use Then::{Ends, GoesOn};
        match self {
            Self::Tunnel => Terms::bare(S::METHOD_NOT_ALLOWED, "connect", Ends),
            Self::HeadTooLarge => Terms::bare(S::REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", Ends),
            Self::TargetTooLong => Terms::bare(S::URI_TOO_LONG, "target_too_long", Ends),
            Self::HostUnclear => Terms::bare(S::BAD_REQUEST, "host_unclear", GoesOn),
            Self::HostForeign => Terms::bare(S::FORBIDDEN, "host_foreign", GoesOn),
            Self::OriginForeign => Terms::bare(S::FORBIDDEN, "origin_foreign", GoesOn),
            Self::CredentialsUnclear => Terms::bare(S::BAD_REQUEST, "credentials_unclear", GoesOn),
            Self::Unauthorized => Terms::bare(S::UNAUTHORIZED, "unauthorized", GoesOn),
            Self::PathUnknown => Terms::bare(S::NOT_FOUND, "path_unknown", GoesOn),
            Self::MethodUnknown(_) => Terms::bare(S::METHOD_NOT_ALLOWED, "method_unknown", GoesOn),
            Self::MediaType => Terms::bare(S::UNSUPPORTED_MEDIA_TYPE, "media_type", GoesOn),
            Self::ContentCoding => Terms::bare(S::UNSUPPORTED_MEDIA_TYPE, "content_coding", GoesOn),
            Self::NotAcceptable => Terms::bare(S::NOT_ACCEPTABLE, "not_acceptable", GoesOn),
            Self::Expectation => Terms::bare(S::EXPECTATION_FAILED, "expectation", GoesOn),
            Self::TransferCoding => Terms::bare(S::NOT_IMPLEMENTED, "transfer_coding", Ends),
            Self::BodyTooLarge => Terms::bare(S::PAYLOAD_TOO_LARGE, "body_too_large", Ends),
            Self::BodyTooSlow => Terms::bare(S::REQUEST_TIMEOUT, "body_too_slow", Ends),
            Self::ChunkExtensions => Terms::bare(S::BAD_REQUEST, "chunk_extensions", Ends),
            Self::BodyBroken => {
                Terms { message: Some("the body broke off"), ..Terms::bare(S::BAD_REQUEST, "body_broken", Ends) }
            }
            Self::BodyEmpty => {
                Terms { message: Some("the body is empty"), ..Terms::bare(S::BAD_REQUEST, "body_empty", GoesOn) }
            }
        }
    }

    /// The answer, counted.
    pub(super) fn answer(self, stream: StreamPosition) -> Response {
        let Terms { status, reason, then, message } = self.terms();
        metrics::counter!(metric::HTTP_REFUSED, "reason" => reason).increment(1);
        tracing::debug!(reason, "request refused");
        let mut response = Response::new(empty_body());
        *response.status_mut() = status;
        response.extensions_mut().insert(Refused);
        if let Some(message) = message {
            let text = envelope::error(None, &RpcError::new(fault::PARSE_ERROR, message));
            *response.body_mut() = full_body(text);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let ends = match stream {
            StreamPosition::Multiplexed => false,
            StreamPosition::Unread => true,
            StreamPosition::Known => then == Then::Ends,
        };
        if ends {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        match self {
            Self::MethodUnknown(allow) => drop(response.headers_mut().insert(ALLOW, allow)),
            Self::Unauthorized => {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Tunnel
            | Self::HeadTooLarge
            | Self::TargetTooLong
            | Self::HostUnclear
            | Self::HostForeign
            | Self::OriginForeign
            | Self::CredentialsUnclear
            | Self::PathUnknown
            | Self::MediaType
            | Self::ContentCoding
            | Self::NotAcceptable
            | Self::Expectation
            | Self::TransferCoding
            | Self::BodyTooLarge
            | Self::BodyTooSlow
            | Self::BodyBroken
            | Self::ChunkExtensions
            | Self::BodyEmpty => (),
        }
        response
    }
}

/// Where the byte stream stands when a request is answered before its body was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamPosition {
    /// HTTP/2: a stream ends alone, and `Connection` must not be sent.
    Multiplexed,
    /// HTTP/1 with body bytes to come: the next request cannot be found without reading them.
    Unread,
    /// HTTP/1 at the end of a message.
    Known,
}

impl StreamPosition {
    pub(super) fn of<B: hyper::body::Body>(request: &http::Request<B>) -> Self {
        if request.version() > Version::HTTP_11 {
            Self::Multiplexed
        } else if request.body().is_end_stream() {
            Self::Known
        } else {
            Self::Unread
        }
    }

    /// The position once the body had been read, or had been given up in a way that ends the connection anyway.
    pub(super) const fn after_body(self) -> Self {
        match self {
            Self::Multiplexed => Self::Multiplexed,
            Self::Unread | Self::Known => Self::Known,
        }
    }
}
