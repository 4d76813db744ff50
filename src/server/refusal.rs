//! Every reason to turn a request or a connection away by looking at HTTP alone, and the answer to each.
//!
//! Answers carry no body and no byte of the client's (reliability b.3, rules 1 and 5). The two reasons that
//! concern the JSON text itself are answered as JSON-RPC errors without id.

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE};
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

impl Refusal {
    /// The label under which it is counted.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Tunnel => "connect",
            Self::HeadTooLarge => "head_too_large",
            Self::TargetTooLong => "target_too_long",
            Self::HostUnclear => "host_unclear",
            Self::HostForeign => "host_foreign",
            Self::OriginForeign => "origin_foreign",
            Self::PathUnknown => "path_unknown",
            Self::MethodUnknown(_) => "method_unknown",
            Self::MediaType => "media_type",
            Self::ContentCoding => "content_coding",
            Self::NotAcceptable => "not_acceptable",
            Self::Expectation => "expectation",
            Self::TransferCoding => "transfer_coding",
            Self::BodyTooLarge => "body_too_large",
            Self::BodyTooSlow => "body_too_slow",
            Self::BodyBroken => "body_broken",
            Self::ChunkExtensions => "chunk_extensions",
            Self::BodyEmpty => "body_empty",
        }
    }

    const fn status(&self) -> StatusCode {
        match self {
            Self::Tunnel | Self::MethodUnknown(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::HostUnclear | Self::BodyBroken | Self::ChunkExtensions | Self::BodyEmpty => StatusCode::BAD_REQUEST,
            Self::HostForeign | Self::OriginForeign => StatusCode::FORBIDDEN,
            Self::PathUnknown => StatusCode::NOT_FOUND,
            Self::MediaType | Self::ContentCoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
            Self::Expectation => StatusCode::EXPECTATION_FAILED,
            Self::TransferCoding => StatusCode::NOT_IMPLEMENTED,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
        }
    }

    /// Whether the connection ends with the answer even where the body had been read.
    const fn ends_connection(&self) -> bool {
        match self {
            Self::Tunnel
            | Self::HeadTooLarge
            | Self::TargetTooLong
            | Self::TransferCoding
            | Self::BodyTooLarge
            | Self::BodyTooSlow
            | Self::BodyBroken
            | Self::ChunkExtensions => true,
            Self::HostUnclear
            | Self::HostForeign
            | Self::OriginForeign
            | Self::PathUnknown
            | Self::MethodUnknown(_)
            | Self::MediaType
            | Self::ContentCoding
            | Self::NotAcceptable
            | Self::Expectation
            | Self::BodyEmpty => false,
        }
    }

    /// The answer, counted.
    pub(super) fn answer(self, stream: StreamPosition) -> Response {
        metrics::counter!(metric::HTTP_REFUSED, "reason" => self.reason()).increment(1);
        tracing::debug!(reason = self.reason(), "request refused");
        let close = match stream {
            StreamPosition::Multiplexed => false,
            StreamPosition::Unread => true,
            StreamPosition::Known => self.ends_connection(),
        };
        let mut response = match self.rpc_text() {
            Some(text) => {
                let mut response = Response::new(full_body(text));
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                response
            }
            None => Response::new(empty_body()),
        };
        *response.status_mut() = self.status();
        if close {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Self::MethodUnknown(allow) = self {
            response.headers_mut().insert(ALLOW, allow);
        }
        response
    }

    fn rpc_text(&self) -> Option<Bytes> {
        let message = match self {
            Self::BodyBroken => "the body broke off",
            Self::BodyEmpty => "the body is empty",
            Self::Tunnel
            | Self::HeadTooLarge
            | Self::TargetTooLong
            | Self::HostUnclear
            | Self::HostForeign
            | Self::OriginForeign
            | Self::PathUnknown
            | Self::MethodUnknown(_)
            | Self::MediaType
            | Self::ContentCoding
            | Self::NotAcceptable
            | Self::Expectation
            | Self::TransferCoding
            | Self::BodyTooLarge
            | Self::BodyTooSlow
            | Self::ChunkExtensions => return None,
        };
        Some(envelope::error(None, &RpcError::new(fault::PARSE_ERROR, message)))
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
