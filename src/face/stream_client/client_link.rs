//! Connects one client with its endpoint: its messages become HTTP requests in memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{ClientMessage, ParsedMessage, StreamClient};
use crate::face::arrival::Arrival;
use crate::face::headers;
use crate::face::http::{AcceptedTypes, FaceResponse, Inbound, MessageChannel};
use crate::upstream::reply::ReadLimits;

const END_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientDisconnected;

#[derive(Clone, Debug)]
pub(super) struct StreamClientSession {
    id: HeaderValue,
    /// The headers of the latest message in the session, for the gateway's own requests in it (U91).
    with: HeaderMap,
}

pub(super) struct ClientLink {
    client: StreamClient,
    outgoing: mpsc::Sender<Bytes>,
    session: Mutex<Option<StreamClientSession>>,
}

impl ClientLink {
    pub(super) fn new(client: StreamClient, outgoing: mpsc::Sender<Bytes>) -> Arc<Self> {
        Arc::new(Self { client, outgoing, session: Mutex::default() })
    }

    pub(super) fn read_limits(&self) -> ReadLimits {
        let StreamClient { limits, caller, message_bytes_max, .. } = &self.client;
        ReadLimits::within(*message_bytes_max, limits.answers_to(&caller.principal))
    }

    pub(super) const fn upstream(&self) -> &Arc<str> {
        &self.client.upstream
    }

    pub(super) fn is_open(&self) -> bool {
        self.session.lock().is_some()
    }

    pub(super) fn open(&self, id: HeaderValue, with: HeaderMap) {
        *self.session.lock() = Some(StreamClientSession { id, with });
    }

    pub(super) async fn gone(&self) {
        self.outgoing.closed().await;
    }

    /// If the future is dropped, the message is sent completely or not at all.
    pub(super) async fn send(&self, message: Bytes) -> Result<(), ClientDisconnected> {
        self.outgoing.send(message).await.map_err(|_| ClientDisconnected)
    }

    /// A message of a stateless client, or the one that opens a session.
    pub(super) fn outside(&self, received: ParsedMessage) -> Inbound {
        let ParsedMessage { message, received: ClientMessage { text, headers, caller }, arrived } = received;
        let caller = caller.unwrap_or_else(|| self.client.caller.clone());
        Inbound { message, caller, ..self.inbound(Method::POST, text, cleaned(headers), arrived) }
    }

    pub(super) fn inside(&self, received: ParsedMessage) -> Inbound {
        let mut inbound = self.outside(received);
        if let Some(session) = self.session.lock().as_mut() {
            session.with.clone_from(&inbound.headers);
            inbound.headers.insert(headers::SESSION_ID, session.id.clone());
        }
        inbound
    }

    pub(super) fn by_itself(&self, text: Bytes) -> Option<Inbound> {
        Some(self.inbound(Method::POST, text, self.session_headers()?, Instant::now()))
    }

    /// The GET of the session's own stream, or of the rest of a stream.
    pub(super) fn get(&self, last_event: Option<&str>) -> Option<Inbound> {
        let mut headers = self.session_headers()?;
        if let Some(event) = last_event {
            headers.insert(headers::LAST_EVENT_ID, HeaderValue::from_bytes(event.as_bytes()).ok()?);
        }
        let inbound = self.inbound(Method::GET, Bytes::new(), headers, Instant::now());
        Some(Inbound { accepted: AcceptedTypes::EventStream, ..inbound })
    }

    /// Closes the session if the endpoint does not know it any more: its client may open another one.
    pub(super) async fn serve(&self, inbound: Inbound) -> FaceResponse {
        let asked = inbound.headers.get(headers::SESSION_ID).filter(|_| inbound.method == Method::POST).cloned();
        let response = self.client.endpoint.serve(Box::new(inbound)).await;
        if let (StatusCode::NOT_FOUND, Some(asked)) = (response.status(), asked) {
            self.session.lock().take_if(|session| session.id == asked);
        }
        response
    }

    pub(super) fn session_id(&self) -> Option<HeaderValue> {
        self.session.lock().as_ref().map(|session| session.id.clone())
    }

    pub(super) async fn end(&self) {
        let Some(headers) = self.session_headers() else { return };
        let delete = self.inbound(Method::DELETE, Bytes::new(), headers, Instant::now());
        let _ = tokio::time::timeout(END_MAX, self.serve(delete)).await;
    }

    fn session_headers(&self) -> Option<HeaderMap> {
        let session = self.session.lock().clone()?;
        let mut headers = cleaned(session.with);
        headers.insert(headers::SESSION_ID, session.id);
        Some(headers)
    }

    fn inbound(&self, method: Method, body: Bytes, headers: HeaderMap, received_at: Instant) -> Inbound {
        let arrival = Arrival::of(&method, &headers);
        Inbound {
            headers,
            body,
            client: self.client.address,
            received_at,
            carriage: MessageChannel::Stream,
            arrival,
            ..Inbound::new(method, self.client.path.clone(), self.client.caller.clone())
        }
    }
}

/// Removes headers that select a session or version: here the stream and the body do.
fn cleaned(mut headers: HeaderMap) -> HeaderMap {
    for name in [headers::SESSION_ID, headers::PROTOCOL_VERSION, headers::LAST_EVENT_ID, headers::METHOD, headers::NAME]
    {
        headers.remove(name);
    }
    headers
}
