//! Defines raw access to a server, for clients with their own session or none. An [`Exchange`](super::Exchange)
//! understands its request; a channel forwards bytes, and knows only session headers.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};

use super::answer_body::{AnswerBody, BodyKind};
use super::upstream_health::UpstreamHealth;
use super::{BeginError, ForwardedHeaders};
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::task::{GatewayFault, Principal};
use crate::wire::framing::BodyPart;
use crate::wire::{MessageText, ProtocolVersion};

/// A response's body as it comes. Read only on demand; dropping it ends the request at the upstream.
pub struct RawBody(RawBodySource);

/// The usual bodies need no box.
enum RawBodySource {
    Answer(AnswerBody),
    Other(UnsyncBoxBody<BodyPart, io::Error>),
}

debug_members!(RawBody);

impl RawBody {
    pub fn new(body: impl Body<Data = BodyPart, Error = io::Error> + Send + 'static) -> Self {
        Self(RawBodySource::Other(UnsyncBoxBody::new(body)))
    }

    pub fn whole(text: Bytes) -> Self {
        AnswerBody::Whole(Some(text).filter(|text| !text.is_empty())).into()
    }
}

impl From<AnswerBody> for RawBody {
    fn from(body: AnswerBody) -> Self {
        Self(RawBodySource::Answer(body))
    }
}

impl Body for RawBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        match &mut self.get_mut().0 {
            RawBodySource::Answer(body) => Pin::new(body).poll_frame(cx),
            RawBodySource::Other(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            RawBodySource::Answer(body) => body.is_end_stream(),
            RawBodySource::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            RawBodySource::Answer(body) => body.size_hint(),
            RawBodySource::Other(body) => body.size_hint(),
        }
    }
}

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
    /// unnoticed upstream. The fault says whether it may have arrived. A refusing status is a response.
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

    /// Whether it reads the messages that it sends, which then keep their parsed form.
    fn reads_messages(&self) -> bool {
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
        headers: Vec<(HeaderName, HeaderValue)>,
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
