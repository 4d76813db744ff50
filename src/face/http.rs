//! Defines the faces' HTTP types: checked requests, and responses with any body.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue, Method};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::arrival::Arrival;
use crate::task::principal::Principal;
use crate::upstream::ForwardedHeaders;
use crate::wire::framing::BodyPart;
use crate::wire::{Message, MessageText};

/// The body of a response: complete, or an event stream. An error aborts the connection.
pub type ResponseBody = UnsyncBoxBody<BodyPart, io::Error>;

/// A response to a client.
pub type FaceResponse = http::Response<ResponseBody>;

/// An empty body.
#[must_use]
pub fn empty_body() -> ResponseBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A complete body.
#[must_use]
pub fn full_body(part: impl Into<BodyPart>) -> ResponseBody {
    Full::new(part.into()).map_err(|never| match never {}).boxed_unsync()
}

/// An event stream of available messages.
#[must_use]
pub fn events_body<T: Into<MessageText>>(messages: impl IntoIterator<Item = T>) -> ResponseBody {
    PartsBody(messages.into_iter().map(BodyPart::message).collect()).boxed_unsync()
}

/// A complete body in pieces: a large text need not be copied together with short ones.
#[must_use]
pub fn joined_body(pieces: impl IntoIterator<Item = Bytes>) -> ResponseBody {
    PartsBody(pieces.into_iter().map(BodyPart::Bytes).collect()).boxed_unsync()
}

struct PartsBody(VecDeque<BodyPart>);

impl Body for PartsBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<BodyPart>>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}

/// A request that has passed the HTTP guards: path, host and origin are valid.
///
/// A POST has a body of `application/json` that is unencoded, complete, within limits and not empty. GET and DELETE have an empty
/// body, as does HEAD if the endpoint accepts it. Other methods never arrive.
#[derive(Clone, Debug)]
pub struct Inbound {
    pub method: Method,
    pub path: String,
    /// The undecoded query of the target. It selects no path (B57); with HTTP+SSE it selects the stream of a message.
    pub query: Option<String>,
    /// As received, hop-by-hop fields included: an allow-list selects the forwarded ones.
    pub headers: http::HeaderMap,
    pub body: Bytes,
    /// The message in the body, if the caller has read it.
    pub message: Option<Message>,
    pub principal: Principal,
    /// The client's address, if known: an IPv4 address, or a /64 of IPv6.
    pub client: Option<IpAddr>,
    pub accepted: AcceptedTypes,
    /// The headers to forward, once the endpoint has selected them.
    pub forwarded: ForwardedHeaders,
    /// The time at which the head had been read.
    pub received_at: Instant,
    pub carriage: MessageChannel,
    /// Whether the caller has counted the request: then it takes no rate and no stream permit.
    pub is_counted: bool,
    /// The nonce of the client's session at an endpoint of several upstreams. The session that an `initialize` opens at one of
    /// them has the same, so that all state by nonce belongs to the client's session.
    pub endpoint_session: Option<u128>,
    /// Whether its client is still connected.
    pub arrival: Arrival,
}

impl Inbound {
    /// The principal by which it is counted.
    #[must_use]
    pub fn counted_as(&self) -> Principal {
        self.principal.counted_at(self.client)
    }
}

/// The channel of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageChannel {
    /// A separate HTTP request. The headers that repeat parts of the body are required and must agree with it.
    #[default]
    Request,
    /// One of many on a stream, without headers of its own: only the body counts (T-70). An HTTP request is never read as such a message.
    Stream,
}

/// The response types that `Accept` admits (B69). For a POST never [`AcceptedTypes::Neither`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedTypes {
    Json,
    EventStream,
    Both,
    Neither,
}

impl AcceptedTypes {
    /// Whether the response may be an event stream.
    #[must_use]
    pub const fn takes_stream(self) -> bool {
        matches!(self, Self::EventStream | Self::Both)
    }
}

/// The handler of one path.
#[async_trait]
pub trait Endpoint: Send + Sync {
    /// Answers one request. Dropped when the client disconnects: work that must continue runs in another task.
    async fn serve(&self, request: Inbound) -> FaceResponse;

    /// Whether a header is forwarded to the upstream, which identifies clients by a credential.
    fn forwards(&self, _header: &HeaderName) -> bool {
        false
    }

    /// Whether a principal may use the path; for others it looks like an unknown one.
    fn is_for(&self, _principal: &Principal) -> bool {
        true
    }

    /// Returns once a principal may no longer use the path, which ends its streams.
    fn withheld_from(&self, _principal: &Principal) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }

    /// Whether the path needs no authentication.
    fn is_public(&self) -> bool {
        false
    }

    /// Whether the path accepts this method.
    fn takes(&self, method: &Method) -> bool {
        [Method::POST, Method::GET, Method::DELETE].contains(method)
    }

    /// The methods in a 405 that is sent without this endpoint.
    fn allow(&self) -> HeaderValue {
        HeaderValue::from_static("POST")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_in_pieces_announces_its_whole_length() {
        let body = joined_body([Bytes::from_static(b"{\"result\":"), Bytes::from_static(b"{}}")]);
        assert_eq!(body.size_hint().exact(), Some(13));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "{\"result\":{}}");
    }
}
