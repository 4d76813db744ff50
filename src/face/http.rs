//! Defines what every face speaks in: HTTP requests whose guard work is done, HTTP responses with a body of any kind.

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

/// The body of an answer: whole, or a stream of events. An error cuts the connection.
pub type ResponseBody = UnsyncBoxBody<BodyPart, io::Error>;

/// An answer to a client.
pub type FaceResponse = http::Response<ResponseBody>;

/// No body at all.
#[must_use]
pub fn empty_body() -> ResponseBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A whole body.
#[must_use]
pub fn full_body(part: impl Into<BodyPart>) -> ResponseBody {
    Full::new(part.into()).map_err(|never| match never {}).boxed_unsync()
}

/// An event stream of messages that are all there.
#[must_use]
pub fn events_body<T: Into<MessageText>>(messages: impl IntoIterator<Item = T>) -> ResponseBody {
    PartsBody(messages.into_iter().map(BodyPart::message).collect()).boxed_unsync()
}

/// A whole body in pieces, sent as one: for a large text beside short ones that need not be copied together.
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

/// A request whose HTTP guards are done: its path is the endpoint's, its host and origin are welcome.
///
/// A POST carries `application/json`, unencoded, whole, within bounds and not empty. GET and DELETE carry an
/// empty body, as does HEAD where the endpoint takes it. Other methods never arrive.
#[derive(Clone, Debug)]
pub struct Inbound {
    pub method: Method,
    pub path: String,
    /// What follows the `?` of the target, undecoded. It chooses no path (B57); on one for HTTP+SSE it says which stream
    /// a message is for.
    pub query: Option<String>,
    /// As they came, hop-by-hop fields included: what is forwarded is chosen by an allow-list.
    pub headers: http::HeaderMap,
    pub body: Bytes,
    /// The message in the body, where whoever hands it over has read it.
    pub message: Option<Message>,
    pub principal: Principal,
    /// Where the client is, as far as that is known: an IPv4 address, or a /64 of IPv6.
    pub client: Option<IpAddr>,
    pub accepted: AcceptedTypes,
    /// What of the headers goes on to the upstream, once its endpoint has chosen that.
    pub forwarded: ForwardedHeaders,
    /// When the head had been read.
    pub received_at: Instant,
    pub carriage: MessageChannel,
    /// Whether whoever hands it over has counted it: then no rate is asked, and no place of a stream taken.
    pub is_counted: bool,
    /// The nonce of the client's session at an endpoint of several upstreams: the session that an `initialize` opens at
    /// one of these has the same, so that all that is kept by nonce means the client's session.
    pub endpoint_session: Option<u128>,
    /// Whether its client is still there.
    pub arrival: Arrival,
}

impl Inbound {
    /// Whose requests it is one of where they are counted.
    #[must_use]
    pub fn counted_as(&self) -> Principal {
        self.principal.counted_at(self.client)
    }
}

/// How a message came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageChannel {
    /// As an HTTP request of its own. What its headers repeat of the body must be there and must agree.
    #[default]
    Request,
    /// As one of many on a stream, which has no headers for each of them: the body says everything (T-70).
    /// No HTTP request is ever taken for one.
    Stream,
}

/// The types of answer that `Accept` admits (B69). For a POST never [`AcceptedTypes::Neither`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedTypes {
    Json,
    EventStream,
    Both,
    Neither,
}

impl AcceptedTypes {
    /// Whether an answer may be an event stream.
    #[must_use]
    pub const fn takes_stream(self) -> bool {
        matches!(self, Self::EventStream | Self::Both)
    }
}

/// One path that is served.
#[async_trait]
pub trait Endpoint: Send + Sync {
    /// Answers one request. Dropped where the client leaves: whatever must survive that runs elsewhere.
    async fn serve(&self, request: Inbound) -> FaceResponse;

    /// Whether a header of a request goes on to the server behind, which tells people apart by a credential.
    fn forwards(&self, _header: &HeaderName) -> bool {
        false
    }

    /// Whether there is anything here for a principal; for others the path is like one that nobody serves.
    fn is_for(&self, _principal: &Principal) -> bool {
        true
    }

    /// Returns once there is nothing here any more for a principal, whose streams end then.
    fn withheld_from(&self, _principal: &Principal) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }

    /// Whether everybody is served, with a credential or without.
    fn is_public(&self) -> bool {
        false
    }

    /// Whether requests with this method come here.
    fn takes(&self, method: &Method) -> bool {
        [Method::POST, Method::GET, Method::DELETE].contains(method)
    }

    /// The methods named by a 405 that is given before this endpoint is asked.
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
