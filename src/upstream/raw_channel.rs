//! Defines raw access to a server, for clients that have a session of their own there or need none.
//!
//! Where an [`Exchange`](super::Exchange) understands its request, a channel carries bytes: it knows what
//! headers a session needs and nothing of what is said in it. No session pool stands behind it.

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

/// The body of an answer as it comes in. Not read before somebody asks for it; dropping it ends the
/// request at the upstream.
pub type RawBody = UnsyncBoxBody<BodyPart, io::Error>;

/// A server that bytes can be sent to.
#[async_trait]
pub trait RawChannel: Send + Sync + std::fmt::Debug {
    /// The name that the configuration gives the upstream.
    fn name(&self) -> &Arc<str>;

    /// The version to ask for on behalf of a client: its own, unless the operator fixed one.
    fn version_for(&self, client: ProtocolVersion) -> ProtocolVersion;

    /// The older version to ask for after `asked` was refused, if there is one (UPC-22).
    fn version_after(&self, asked: ProtocolVersion, refusal: &BeginError) -> Option<ProtocolVersion>;

    /// Sends one request and waits for the head of its answer, which may take as long as the upstream
    /// likes. Dropping the future drops the request wherever it is, without a word to the upstream.
    ///
    /// # Errors
    /// If there is no answer; the fault says whether the request may have arrived. A refusing status is an
    /// answer.
    async fn send(&self, request: RawRequest) -> Result<RawResponse, GatewayFault>;

    /// Where whoever ends a request without its answer says so, if anywhere.
    fn health(&self) -> Option<&UpstreamHealth> {
        None
    }

    /// Whether event streams of answers are the gateway's own making, out of what came over another transport. Nothing
    /// of them is known to the server then: if they are to be taken up again, that is the gateway's affair.
    fn makes_streams(&self) -> bool {
        false
    }

    /// Whether the operator keeps some of the server's tools from clients.
    fn hides_tools(&self) -> bool {
        false
    }
}

/// A session at the upstream, as its requests name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionBinding {
    /// The upstream's own id, if it gave one.
    pub session: Option<HeaderValue>,
    /// What both agreed on; `None` before they have.
    pub version: Option<ProtocolVersion>,
    /// What the upstream can do in it with tasks of its own.
    pub tasks: UpstreamTaskSupport,
}

/// One HTTP request.
#[derive(Clone, Debug)]
pub struct RawRequest {
    pub binding: SessionBinding,
    pub verb: RawMethod,
    /// What of the client's own headers goes on with this request.
    pub forwarded: ForwardedHeaders,
}

#[derive(Clone, Debug)]
pub enum RawMethod {
    /// One message, verbatim.
    Post(MessageText),
    /// The same with headers that repeat what it says (2026-07-28), and with whose it is where no session tells:
    /// without sessions, and where one begins.
    PostWith { message: MessageText, headers: Box<HeaderMap>, principal: Principal },
    /// One message that belongs to what is under way, and wants no answer: sent to an upstream that is ill, too.
    Note(MessageText),
    /// A stream: the session's own, or the rest of one that gave this event id.
    Get { last_event: Option<HeaderValue> },
    /// The end of the session.
    Delete,
}

/// The head of an answer, and its body still to be read.
#[derive(Debug)]
pub struct RawResponse<B = RawBody> {
    pub status: StatusCode,
    pub content: BodyKind,
    pub retry_after: Option<Duration>,
    /// The id of a session that begins with this answer.
    pub session: Option<HeaderValue>,
    pub body: B,
}
