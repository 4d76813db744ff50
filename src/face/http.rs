//! Defines the faces' HTTP types: checked requests, and responses with any body.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::StreamBody;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::arrival::Arrival;
use crate::dialect::faults::gateway_error;
use crate::task::{Caller, Principal, WithheldBy};
use crate::upstream::answer_body::fault_in;
use crate::upstream::body::PartlyReadBody;
use crate::upstream::raw_channel::RawBody;
use crate::upstream::{ForwardedHeaders, spare_headers};
use crate::wire::framing::{BodyPart, INCOMPLETE_EVENT_END, StreamEvent};
use crate::wire::{Message, MessageText, RequestId, envelope};

/// A complete body, or an event stream. An error aborts the connection.
pub type ResponseBody = RawBody;

pub type FaceResponse = http::Response<ResponseBody>;

pub fn empty_body() -> ResponseBody {
    ResponseBody::whole(Bytes::new())
}

pub(crate) fn broken_body(error: io::Error) -> ResponseBody {
    ResponseBody::new(StreamBody::new(stream::iter([Err::<Frame<BodyPart>, _>(error)])))
}

pub fn full_body(part: impl Into<BodyPart>) -> ResponseBody {
    match part.into() {
        BodyPart::Bytes(bytes) => ResponseBody::whole(bytes),
        event @ BodyPart::Event(_) => parts_body(VecDeque::from([event])),
    }
}

pub fn events_body<T: Into<MessageText>>(messages: impl IntoIterator<Item = T>) -> ResponseBody {
    parts_body(messages.into_iter().map(BodyPart::message).collect())
}

/// Avoids a copy of a large text together with short ones.
pub fn joined_body(pieces: impl IntoIterator<Item = Bytes>) -> ResponseBody {
    parts_body(pieces.into_iter().map(BodyPart::Bytes).collect())
}

#[must_use]
pub fn typed_response(body: ResponseBody, kind: &'static str) -> FaceResponse {
    let mut response = FaceResponse::new(body);
    let mut headers = spare_headers::take();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    *response.headers_mut() = headers;
    response
}

fn parts_body(parts: VecDeque<BodyPart>) -> ResponseBody {
    ResponseBody::new(PartlyReadBody { parts, rest: empty_body() })
}

/// A request past the HTTP guards: valid path, host and origin. A POST's body is complete, unencoded `application/json`
/// within limits, and not empty; GET, DELETE and HEAD (if the endpoint accepts it) have none; no other method arrives.
#[derive(Clone, Debug)]
pub struct Inbound {
    pub method: Method,
    pub path: Arc<str>,
    /// The undecoded query. It selects no path (B57); with HTTP+SSE it selects a message's stream.
    pub query: Option<String>,
    /// Contains hop-by-hop fields: an allow-list selects the forwarded ones.
    pub headers: http::HeaderMap,
    pub body: Bytes,
    /// The message in the body, if the caller has parsed it.
    pub message: Option<Message>,
    pub caller: Caller,
    /// An IPv4 address, or a /64 of IPv6, if known.
    pub client: Option<IpAddr>,
    pub accepted: AcceptedTypes,
    /// The headers to forward, once the endpoint has selected them.
    pub forwarded: ForwardedHeaders,
    /// The time at which the head had been read.
    pub received_at: Instant,
    pub carriage: MessageChannel,
    /// A counted request takes no rate and no stream permit.
    pub is_counted: bool,
    /// The nonce of the client's session at an endpoint of several upstreams; its sessions at these have the same.
    pub endpoint_session: Option<u128>,
    pub arrival: Arrival,
    /// For a message of an array: the tools that its calls share.
    pub array_tools: Option<Arc<ArrayTools>>,
}

impl Inbound {
    /// A request over HTTP, without query, headers and body.
    pub fn new(method: Method, path: impl Into<Arc<str>>, caller: Caller) -> Self {
        Self {
            method,
            path: path.into(),
            query: None,
            headers: http::HeaderMap::new(),
            body: Bytes::new(),
            message: None,
            caller,
            client: None,
            accepted: AcceptedTypes::Both,
            forwarded: ForwardedHeaders::default(),
            received_at: Instant::now(),
            carriage: MessageChannel::Request,
            is_counted: false,
            endpoint_session: None,
            arrival: Arrival::default(),
            array_tools: None,
        }
    }

    pub fn counted_as(&self) -> Principal {
        self.caller.principal.counted_at(self.client)
    }

    /// Drops the request; its header map serves another head.
    pub(super) fn finish(self: Box<Self>) {
        spare_headers::keep(self.headers);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageChannel {
    /// An HTTP request: headers that repeat parts of the body are required and must agree.
    #[default]
    Request,
    /// One of many on a stream: only the body counts (T-70). An HTTP request is never read as such a message.
    Stream,
}

/// The response types of `Accept` (B69). For a POST never [`AcceptedTypes::Neither`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedTypes {
    Json,
    EventStream,
    Both,
    Neither,
}

impl AcceptedTypes {
    pub const fn takes_stream(self) -> bool {
        matches!(self, Self::EventStream | Self::Both)
    }
}

#[async_trait]
pub trait Endpoint: Send + Sync {
    /// Dropped with its client: work that must continue runs in another task. Boxed, as futures hold requests twice.
    async fn serve(&self, request: Box<Inbound>) -> FaceResponse;

    /// Whether a header is forwarded to the upstream, which identifies clients by it.
    fn forwards(&self, _header: &HeaderName) -> bool {
        false
    }

    /// Whether an upstream gets a credential in exchange for its clients' tokens.
    fn exchanges_tokens(&self) -> bool {
        false
    }

    /// Why a caller may not use the path, which it sees as an unknown one unless scopes would help.
    fn withheld_by(&self, _caller: &Caller) -> Option<WithheldBy> {
        None
    }

    /// The upstreams that the path serves: a token for the path is for these.
    fn upstreams(&self) -> Arc<Vec<Arc<str>>> {
        Arc::default()
    }

    /// Returns once the caller loses its right, which ends its streams.
    fn withheld_from(&self, _caller: &Caller) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }

    fn is_public(&self) -> bool {
        false
    }

    /// Whether it is only read, by GET and HEAD.
    fn is_page(&self) -> bool {
        false
    }

    fn takes(&self, method: &Method) -> bool {
        let methods = if self.is_page() {
            &[Method::GET, Method::HEAD][..]
        } else {
            &[Method::POST, Method::GET, Method::DELETE]
        };
        methods.contains(method)
    }

    /// The methods in a 405 that is sent without this endpoint.
    fn allow(&self) -> HeaderValue {
        HeaderValue::from_static(if self.is_page() { "GET, HEAD" } else { "POST" })
    }
}

/// Whether a stream is refused for a while only: its position remains valid.
pub(crate) const fn is_passing(status: StatusCode) -> bool {
    matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)
}

pub(crate) fn is_event_stream(response: &FaceResponse) -> bool {
    // A response has few fields: a walk costs less than a lookup.
    let is_stream = |value: &HeaderValue| value.as_bytes().starts_with(b"text/event-stream");
    response.headers().iter().any(|(name, value)| *name == CONTENT_TYPE && is_stream(value))
}

/// Ends an event stream once `ended` returns, as when a credential or right is withdrawn. Other responses stay.
pub(crate) fn ending_with<E>(response: FaceResponse, ended: impl FnOnce() -> E) -> FaceResponse
where
    E: Future<Output = ()> + Send + 'static,
{
    match is_event_stream(&response) {
        true => response.map(|body| ResponseBody::new(RevocableBody { body, ended: ended().boxed() })),
        false => response,
    }
}

struct RevocableBody {
    body: ResponseBody,
    ended: BoxFuture<'static, ()>,
}

debug_members!(RevocableBody, |body| body: body.body);

impl Body for RevocableBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<BodyPart>>>> {
        let this = self.get_mut();
        if this.ended.as_mut().poll(context).is_ready() {
            // Releases the body now, not when the client has read the end; `ended` is not polled again.
            this.ended = std::future::pending().boxed();
            this.body = empty_body();
        }
        Pin::new(&mut this.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The longest part with line ends that is rewritten at once.
const LINES_MAX: usize = 64 << 10;

/// A JSON body as one event, without copying large payloads. Line ends in whitespace become data lines: equal JSON.
pub(super) struct SingleEventBody {
    source: ResponseBody,
    /// The request that gets an error if the source breaks.
    id: Option<RequestId>,
    at: SingleEventPart,
    /// The rest of a frame, or the prefix of the event.
    left: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SingleEventPart {
    Head,
    Data,
    Over,
}

impl SingleEventBody {
    pub(super) const fn new(source: ResponseBody, id: Option<RequestId>) -> Self {
        Self { source, id, at: SingleEventPart::Head, left: Bytes::from_static(b"event: message\ndata: ") }
    }

    pub(super) fn named(self, id: Option<String>) -> Self {
        let Some(id) = id else { return self };
        Self { left: [format!("id: {id}\n").as_bytes(), &self.left].concat().into(), ..self }
    }

    /// `left` is not empty.
    fn next_part(&mut self) -> Bytes {
        let Some(first) = memchr::memchr2(b'\r', b'\n', &self.left) else { return std::mem::take(&mut self.left) };
        if first > LINES_MAX {
            return self.left.split_to(first);
        }
        let part = self.left.split_to(self.left.len().min(LINES_MAX));
        let mut out = BytesMut::with_capacity(part.len() + 32);
        for (at, line) in part.split(|byte| matches!(byte, b'\r' | b'\n')).enumerate() {
            if at > 0 {
                out.extend_from_slice(b"\ndata: ");
            }
            out.extend_from_slice(line);
        }
        out.freeze()
    }
}

impl Body for SingleEventBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        let this = self.get_mut();
        let part = |bytes: Bytes| Poll::Ready(Some(Ok(Frame::data(BodyPart::Bytes(bytes)))));
        match this.at {
            SingleEventPart::Over => return Poll::Ready(None),
            SingleEventPart::Head => {
                this.at = SingleEventPart::Data;
                return part(std::mem::take(&mut this.left));
            }
            SingleEventPart::Data if !this.left.is_empty() => return part(this.next_part()),
            SingleEventPart::Data => (),
        }
        match ready!(Pin::new(&mut this.source).poll_frame(cx)) {
            Some(Ok(frame)) => {
                this.left = frame.into_data().unwrap_or_default().into_bytes();
                part(if this.left.is_empty() { Bytes::new() } else { this.next_part() })
            }
            Some(Err(error)) => {
                this.at = SingleEventPart::Over;
                let Some(id) = &this.id else { return Poll::Ready(Some(Err(error))) };
                let error = StreamEvent::message(envelope::error(Some(id), &gateway_error(&fault_in(&error))));
                Poll::Ready(Some(Ok(Frame::data(BodyPart::Event(error.after(INCOMPLETE_EVENT_END))))))
            }
            None => {
                this.at = SingleEventPart::Over;
                part(Bytes::from_static(b"\n\n"))
            }
        }
    }
}

/// The tools of each server that the calls of an array name, listed once. At an endpoint the calls have several servers.
#[derive(Debug, Default)]
pub struct ArrayTools(Mutex<HashMap<Arc<str>, Arc<ServerTools>>>);

impl ArrayTools {
    pub(super) fn of(&self, upstream: &Arc<str>) -> Arc<ServerTools> {
        Arc::clone(self.0.lock().entry(Arc::clone(upstream)).or_default())
    }
}

pub(super) type ServerTools = OnceCell<ListedNames>;

/// Empty if the server returns no list.
#[derive(Debug, Default)]
pub(super) struct ListedNames {
    pub(super) names: HashSet<String>,
    pub(super) is_whole: bool,
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::wire::framing::SseDecoder;

    #[tokio::test]
    async fn u22_an_error_follows_json_that_breaks_in_an_event() {
        let begun: Result<_, io::Error> = Ok(Frame::data(BodyPart::from(Bytes::from_static(b"{\"jsonrpc\":"))));
        let source = RawBody::new(StreamBody::new(stream::iter([begun, Err(io::Error::other("reset"))])));
        let body = SingleEventBody::new(source, Some(RequestId::number(1)));
        let text = body.collect().await.unwrap().to_bytes();
        let events = SseDecoder::new(1_000).feed(&text).unwrap();
        let messages: Vec<_> = events.iter().filter(|event| event.is_message()).collect();
        assert_eq!(messages.len(), 1, "{events:?}");
        assert!(memchr::memmem::find(&messages[0].data, b"\"reason\":\"upstream_closed\"").is_some(), "{events:?}");
    }

    #[tokio::test]
    async fn a_body_in_pieces_announces_its_whole_length() {
        let body = joined_body([Bytes::from_static(b"{\"result\":"), Bytes::from_static(b"{}}")]);
        assert_eq!(body.size_hint().exact(), Some(13));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "{\"result\":{}}");
    }
}
