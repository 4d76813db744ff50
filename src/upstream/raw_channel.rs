//! Defines raw access to a server, for clients with their own session or none.
//!
//! An [`Exchange`](super::Exchange) understands its request; a channel forwards bytes: it knows a session's headers,
//! not the messages.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;

use super::answer_body::BodyKind;
use super::upstream_health::UpstreamHealth;
use super::{BeginError, ForwardedHeaders};
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::task::{GatewayFault, Principal};
use crate::wire::framing::BodyPart;
use crate::wire::{MessageText, ProtocolVersion};

/// A response's body as it comes. Read only on demand; dropping it ends the request at the upstream.
pub type RawBody = UnsyncBoxBody<BodyPart, io::Error>;

#[async_trait]
pub trait RawChannel: Send + Sync + std::fmt::Debug {
    fn name(&self) -> &Arc<str>;

    /// The version to request for a client: its own, unless the operator fixed one.
    fn version_for(&self, client: ProtocolVersion) -> ProtocolVersion {
        client
    }

    /// The older version to request after the asked one was refused, if there is one (UPC-22).
    fn version_after(&self, _asked: ProtocolVersion, _refusal: &BeginError) -> Option<ProtocolVersion> {
        None
    }

    /// Sends one request and waits for the response's head, without a time limit. Dropping the future drops the request
    /// without notifying the upstream. The fault says whether the request may have arrived. A refusing status is a
    /// response.
    async fn send(&self, request: RawRequest) -> Result<RawResponse, GatewayFault>;

    /// The upstream's health, for reporting a request that ends without a response.
    fn health(&self) -> Option<&UpstreamHealth> {
        None
    }

    /// Whether the gateway makes responses' event streams, from another transport's messages, and so must resume them.
    fn makes_streams(&self) -> bool {
        false
    }

    fn hides_tools(&self) -> bool {
        false
    }
}

/// A session at the upstream, as its requests name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionBinding {
    /// The upstream's own id, if it gave one.
    pub session: Option<HeaderValue>,
    /// The negotiated version; `None` before.
    pub version: Option<ProtocolVersion>,
    /// The upstream's support for its own tasks in it.
    pub tasks: UpstreamTaskSupport,
}

#[derive(Clone, Debug)]
pub struct RawRequest {
    pub binding: SessionBinding,
    pub verb: RawMethod,
    pub forwarded: ForwardedHeaders,
}

#[derive(Clone, Debug)]
pub enum RawMethod {
    Post(MessageText),
    /// With headers that mirror it (2026-07-28), and its principal, for requests without a session or that open one.
    PostWith {
        message: MessageText,
        headers: Box<HeaderMap>,
        principal: Principal,
    },
    /// One message of existing work, without a response: sent to a failing upstream, too.
    Note(MessageText),
    /// A stream: the session's own, or the rest of one that sent this event id.
    Get {
        last_event: Option<HeaderValue>,
    },
    Delete,
}

#[derive(Debug)]
pub struct RawResponse<B = RawBody> {
    pub status: StatusCode,
    pub content: BodyKind,
    pub retry_after: Option<Duration>,
    /// The id of a session that begins with this response.
    pub session: Option<HeaderValue>,
    pub body: B,
}
