//! Implements HTTP+SSE, the transport of 2024-11-05: an event stream and POSTs beside it.
//! The GET's event stream is the session, and ends with it: nothing can be resumed. Its first event names the address
//! for POSTs, which must be of the configured origin: a server cannot send credentials elsewhere (U41). Messages come
//! over the stream; a POST's response says whether the message was accepted, and a refusal may hold the response.

use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Response, StatusCode};
use hyper::body::Body;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::adapter::{ConnectionEnds, MessageReceiver, MessageRoom, MessageSender, MessageTransport};
use super::http_client::{HttpClient, PooledBody};
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::answer_body::{AnswerBody, BodyKind};
use crate::upstream::outgoing::{HandedOver, OutgoingRequest, SessionHeaders};
use crate::upstream::reply::{self, BodyReadError, ErrorAddressee, EventStream, JudgedResponse, ReadLimits};
use crate::upstream::{ForwardedHeaders, TaskScope};
use crate::wire::framing::{BodyPart, SseEvent};
use crate::wire::{Message, ScanLimits, envelope};

/// Most streams at one server.
pub(crate) const SESSIONS_MAX: NonZeroUsize = NonZeroUsize::new(4_096).unwrap();
/// How long a server may take to name the address, connecting included.
const ENDPOINT_WAIT: Duration = Duration::from_secs(10);
const ENDPOINT_BYTES_MAX: usize = 8 * 1024;
/// Limits on reading a POST's response, so that its connection can be reused.
const REST_BYTES_MAX: usize = 64 * 1024;
const REST_WAIT: Duration = Duration::from_secs(5);
/// How long the response to a POST may take once its request is over: some servers send it only then, or never.
const LATE_MAX: Duration = Duration::from_secs(1);
/// An unreachable server is tried again as soon as over streamable HTTP.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Whether a server last spoke HTTP+SSE: set by a first event, reset when opening fails. Both transports share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SseDetected(Arc<AtomicBool>);

impl SseDetected {
    pub(crate) fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, speaks_sse: bool) {
        self.0.store(speaks_sse, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct SseTransport {
    pub(crate) name: Arc<str>,
    pub(crate) url: Url,
    /// Made for `url`.
    pub(crate) client: HttpClient,
    pub(crate) event_bytes_max: usize,
    pub(crate) seen: SseDetected,
    pub(crate) scope: TaskScope,
}

impl SseTransport {
    /// Returns after the first event.
    async fn stream(&self, forwarded: &ForwardedHeaders) -> Result<(EventStream, Url), GatewayFault> {
        let get = SessionHeaders::default().get(None).forwarding(forwarded.clone());
        let response = self.client.send(&get, &HandedOver::default()).await?;
        if !response.status().is_success() {
            let (status, fault) = (response.status(), reply::status_fault(&response));
            if status.is_client_error() && fault.reason == Reason::UpstreamHttpStatus && fault.retry_after.is_none() {
                self.seen.set(false);
            }
            return Err(fault);
        }
        if reply::content_of(response.headers()) != BodyKind::Events {
            self.seen.set(false);
            return Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::No));
        }
        let limits = ReadLimits::of_bytes(self.event_bytes_max);
        let mut events = EventStream::new(response.into_body().reporting_to(None), limits);
        loop {
            match events.next().await.map_err(BodyReadError::into_fault)? {
                Some(event) if event.name.as_deref() == Some("endpoint") => {
                    self.seen.set(true);
                    let endpoint = self.endpoint(&event)?;
                    return Ok((events, endpoint));
                }
                Some(_) => (),
                None => {
                    self.seen.set(false);
                    return Err(BodyReadError::Closed.into_fault());
                }
            }
        }
    }

    fn endpoint(&self, event: &SseEvent) -> Result<Url, GatewayFault> {
        endpoint_of(&self.url, &event.data).map_err(|refusal| {
            let upstream = &self.name;
            match &refusal {
                // Not path and query, which may hold a secret.
                EndpointError::Elsewhere(origin) => {
                    tracing::warn!(%upstream, origin, "the server's `endpoint` event names another origin; nothing is sent there");
                }
                EndpointError::NoAddress => tracing::warn!(%upstream, "the server's `endpoint` event names no address"),
            }
            refusal.into_fault()
        })
    }
}

#[async_trait]
impl MessageTransport for SseTransport {
    async fn open(&self, forwarded: &ForwardedHeaders) -> Result<ConnectionEnds, GatewayFault> {
        let unsent = |fault| GatewayFault { executed: Executed::No, ..fault };
        let Ok(opened) = tokio::time::timeout(ENDPOINT_WAIT, self.stream(forwarded)).await else {
            self.seen.set(false);
            return Err(GatewayFault::new(Reason::UpstreamTimeout, Executed::No));
        };
        let (events, endpoint) = opened.map_err(unsent)?;
        let client = self.client.at(&endpoint).map_err(|_| EndpointError::NoAddress.into_fault())?;
        let posts = SsePosts { client: Arc::new(client), scope: self.scope.clone(), closing: CancellationToken::new() };
        Ok(ConnectionEnds { sender: Arc::new(posts), receiver: Box::new(SseReceiver(events)) })
    }

    fn pause_max(&self) -> Duration {
        PAUSE_MAX
    }
}

#[derive(Debug, PartialEq, Eq)]
enum EndpointError {
    NoAddress,
    Elsewhere(String),
}

impl EndpointError {
    fn into_fault(self) -> GatewayFault {
        let reason = match self {
            Self::NoAddress => Reason::UpstreamMalformed,
            Self::Elsewhere(_) => Reason::UpstreamRedirect,
        };
        GatewayFault::new(reason, Executed::No)
    }
}

/// Resolves the address against the stream's own.
fn endpoint_of(stream: &Url, data: &[u8]) -> Result<Url, EndpointError> {
    let text = std::str::from_utf8(data).ok().filter(|text| (1..=ENDPOINT_BYTES_MAX).contains(&text.len()));
    let mut endpoint = text.and_then(|text| stream.join(text).ok()).ok_or(EndpointError::NoAddress)?;
    let names_somebody = !endpoint.username().is_empty() || endpoint.password().is_some();
    if endpoint.origin() != stream.origin() || names_somebody {
        return Err(EndpointError::Elsewhere(endpoint.origin().ascii_serialization()));
    }
    endpoint.set_fragment(None);
    Ok(endpoint)
}

#[derive(Debug)]
struct SsePosts {
    client: Arc<HttpClient>,
    scope: TaskScope,
    closing: CancellationToken,
}

#[async_trait]
impl MessageSender for SsePosts {
    async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
        request_ended: Option<&CancellationToken>,
    ) -> Result<Option<Bytes>, GatewayFault> {
        let (judge, judged) = oneshot::channel();
        let post = SsePost {
            client: Arc::clone(&self.client),
            outgoing: outgoing.clone().without_session(),
            handed_over: Arc::clone(handed_over),
            request_ended: request_ended.cloned(),
        };
        // In its own task: the caller may be gone with the response, but closing may abort a POST's work.
        self.scope.tracker.spawn(self.closing.clone().run_until_cancelled_owned(Box::pin(post.run(judge))));
        let closed = || {
            let executed = if handed_over.initialized() { Executed::Unknown } else { Executed::No };
            GatewayFault::new(Reason::UpstreamClosed, executed)
        };
        judged.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn close(&self) {
        self.closing.cancel();
    }
}

struct SsePost {
    client: Arc<HttpClient>,
    outgoing: OutgoingRequest,
    handed_over: HandedOver,
    /// Set for a request.
    request_ended: Option<CancellationToken>,
}

impl SsePost {
    async fn run(self, mut judge: oneshot::Sender<Result<Option<Bytes>, GatewayFault>>) {
        let answer = tokio::select! {
            answer = self.client.try_send(&self.outgoing, &self.handed_over) => answer,
            () = self.unwanted(&mut judge) => return,
        };
        if let Ok(response) = &answer {
            // Accepting a message is no response, and may be read after the stream has failed.
            self.client.note_failure(&self.outgoing, response);
        }
        let (verdict, rest) = match answer {
            Ok(response) if response.status().is_success() => (Ok(None), Some(response.into_body())),
            Ok(response) => (self.judged(response).await, None),
            Err(fault) => (Err(fault), None),
        };
        let _ = judge.send(verdict);
        if let Some(body) = rest {
            let _ = reply::read_whole(body.reporting_to(None), &rest_limits()).await;
        }
    }

    /// A body that names the request is its response under any status (U04). Other refused requests may have run (U01).
    async fn judged(&self, response: Response<PooledBody>) -> Result<Option<Bytes>, GatewayFault> {
        let fault = reply::status_fault(&response);
        let message = self.outgoing.message().and_then(|text| text.read(ScanLimits::UPSTREAM).ok());
        let Some(Message::Request(request)) = message.as_deref() else {
            return Err(fault);
        };
        let response = response.map(|body| body.reporting_to(None));
        match reply::judge(response.into(), ErrorAddressee::RequestInSession(&request.id)).await {
            JudgedResponse::Fine(response) => reply::read_whole(response.body, &rest_limits()).await.map(Some),
            JudgedResponse::Refused { error: Some(error), .. } => Ok(Some(envelope::error(Some(&request.id), &error))),
            JudgedResponse::Refused { fault, error: None, .. } => Err(fault),
            JudgedResponse::SessionLost => {
                Err(GatewayFault { http_status: Some(StatusCode::NOT_FOUND.as_u16()), ..fault })
            }
        }
    }

    /// Returns once the POST can be dropped: abandoned unsent, or [`LATE_MAX`] after its request's end.
    async fn unwanted(&self, judge: &mut oneshot::Sender<Result<Option<Bytes>, GatewayFault>>) {
        judge.closed().await;
        if !self.handed_over.initialized() {
            return;
        }
        if let Some(request_ended) = &self.request_ended {
            request_ended.cancelled().await;
        }
        tokio::time::sleep(LATE_MAX).await;
    }
}

fn rest_limits() -> ReadLimits {
    ReadLimits { idle: Some(REST_WAIT), ..ReadLimits::of_bytes(REST_BYTES_MAX) }
}

pub(super) struct SseReceiver<B = AnswerBody>(pub(super) EventStream<B>);

#[async_trait]
impl<B: Body<Data = BodyPart, Error = io::Error> + Send + Unpin> MessageReceiver for SseReceiver<B> {
    async fn next(&mut self, room: &mut MessageRoom) -> Result<Bytes, GatewayFault> {
        loop {
            while let Some(event) = self.0.ready.pop_front() {
                if let Some(text) = reply::message_in(&event) {
                    return Ok(Bytes::clone(text));
                }
            }
            room.grow(self.0.pending()).await;
            if !room.wait(self.0.read_more()).await.map_err(BodyReadError::into_fault)? {
                return Err(BodyReadError::Closed.into_fault());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U41, SEC-09.
    #[test]
    fn u41_an_endpoint_is_of_the_streams_own_origin() {
        let stream = Url::parse("http://mcp.example:9000/api/sse?tenant=a").unwrap();
        for (data, expected) in [
            ("/message?sessionId=1", Ok("http://mcp.example:9000/message?sessionId=1")),
            ("message?sessionId=1", Ok("http://mcp.example:9000/api/message?sessionId=1")),
            ("?sessionId=1", Ok("http://mcp.example:9000/api/sse?sessionId=1")),
            ("http://mcp.example:9000/m#part", Ok("http://mcp.example:9000/m")),
            ("HTTP://MCP.EXAMPLE:9000/m", Ok("http://mcp.example:9000/m")),
            ("http://mcp.example/m", Err("http://mcp.example")),
            ("https://mcp.example:9000/m", Err("https://mcp.example:9000")),
            ("http://evil.example:9000/m", Err("http://evil.example:9000")),
            ("//evil.example/m", Err("http://evil.example")),
            ("\\\\evil.example/m", Err("http://evil.example")),
            ("http://mcp.example:9000@evil.example/m", Err("http://evil.example")),
            ("http://user:secret@mcp.example:9000/m", Err("http://mcp.example:9000")),
            ("file:///etc/passwd", Err("null")),
            ("javascript:alert(1)", Err("null")),
        ] {
            let found = endpoint_of(&stream, data.as_bytes());
            let expected =
                expected.map(|url| Url::parse(url).unwrap()).map_err(|at| EndpointError::Elsewhere(at.to_owned()));
            assert_eq!(found, expected, "{data}");
        }
        for data in ["", "http://", "http://[::1/m"] {
            assert_eq!(endpoint_of(&stream, data.as_bytes()), Err(EndpointError::NoAddress), "{data}");
        }
        let long = format!("/{}", "m".repeat(ENDPOINT_BYTES_MAX));
        assert_eq!(endpoint_of(&stream, long.as_bytes()), Err(EndpointError::NoAddress));
        assert_eq!(endpoint_of(&stream, b"/m\xff"), Err(EndpointError::NoAddress));
    }
}
