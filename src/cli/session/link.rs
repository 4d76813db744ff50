//! The HTTP of a session: the handshake, the headers that name it, streams that break and are resumed.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::Event;
use crate::cli::client::{ClientError, Endpoint, Messages, Reply, accepted};
use crate::cli::talk::REQUEST_MAX;
use crate::face::headers;
use crate::wire::envelope::{self, Message};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, ProtocolVersion, RequestId, RpcError, method};

/// How long to wait before a stream is resumed, where the server does not say.
const RESUME_PAUSE: Duration = Duration::from_secs(1);
/// How often in a row a stream is resumed without a message that comes of it.
const RESUMES_MAX: u32 = 10;

/// What the streams of one session share.
#[derive(Debug)]
pub(super) struct Link {
    endpoint: Endpoint,
    /// The session's id, if it has one, and its version.
    headers: HeaderMap,
}

impl Link {
    /// Shakes hands. Also returns the server's capabilities.
    ///
    /// # Errors
    /// See [`super::Session::open`].
    pub(super) async fn open(
        endpoint: Endpoint,
        id: &RequestId,
        capabilities: &Payload,
    ) -> Result<(Self, Option<Object>), ClientError> {
        let client = json!({ "name": "taskgate", "version": env!("CARGO_PKG_VERSION") });
        let params = ObjectWriter::new()
            .text("protocolVersion", ProtocolVersion::NEWEST_SESSION.as_str())
            .member("capabilities", capabilities)
            .member("clientInfo", &Payload::of(&client))
            .finish();
        let body = envelope::request(id, method::INITIALIZE, Some(&params));
        let shake = async {
            let response = endpoint.post(&HeaderMap::new(), body).await?;
            let session = response.headers().get(headers::SESSION_ID).cloned();
            let mut messages = Messages::open(response)?;
            loop {
                let Some(message) = messages.next().await? else { return Err(messages.ended()) };
                if let Some(reply) = messages.reply(&message, id) {
                    return reply.map(|reply| (reply, session));
                }
            }
        };
        let late = Err(ClientError::Late(REQUEST_MAX));
        let (reply, session) = tokio::time::timeout(REQUEST_MAX, shake).await.unwrap_or(late)?;
        let refused = |error: RpcError| ClientError::Refused { code: error.code, message: error.message };
        let result = reply.outcome.map_err(refused)?;
        let version = result.get_string("protocolVersion").and_then(|version| ProtocolVersion::parse(&version));
        let version = version.filter(|version| !version.is_stateless());
        let version = version.ok_or(ClientError::Unintelligible("it names no version that has sessions"))?;
        let mut all = HeaderMap::new();
        all.insert(headers::PROTOCOL_VERSION, HeaderValue::from_static(version.as_str()));
        all.extend(session.map(|session| (headers::SESSION_ID, session)));
        let link = Self { endpoint, headers: all };
        link.notify(method::INITIALIZED, None).await?;
        Ok((link, result.get_object("capabilities")))
    }

    /// # Errors
    /// If the server does not take it.
    pub(super) async fn notify(&self, method: &str, params: Option<&Payload>) -> Result<(), ClientError> {
        self.deliver(envelope::notification(method, params)).await
    }

    /// Answers a request of the server.
    ///
    /// # Errors
    /// If the server does not take it.
    pub(super) async fn answer(&self, id: &RequestId, outcome: Result<&Payload, &RpcError>) -> Result<(), ClientError> {
        let body = match outcome {
            Ok(result) => envelope::result(id, result),
            Err(error) => envelope::error(Some(id), error),
        };
        self.deliver(body).await
    }

    /// Ends the session, if it has an id.
    ///
    /// # Errors
    /// If the server cannot be reached.
    pub(super) async fn end(&self) -> Result<(), ClientError> {
        match self.headers.contains_key(headers::SESSION_ID) {
            true => self.endpoint.delete(&self.headers).await,
            false => Ok(()),
        }
    }

    async fn deliver(&self, body: bytes::Bytes) -> Result<(), ClientError> {
        let delivery = async { accepted(&self.endpoint.post(&self.headers, body).await?) };
        tokio::time::timeout(REQUEST_MAX, delivery).await.unwrap_or(Err(ClientError::Late(REQUEST_MAX)))
    }

    async fn get(&self, last_event_id: Option<&str>) -> Result<Messages, ClientError> {
        let mut all = self.headers.clone();
        // An id that no header can hold cannot be resumed from; the stream starts anew.
        let last = last_event_id.and_then(|id| HeaderValue::from_str(id).ok());
        all.extend(last.map(|id| (headers::LAST_EVENT_ID, id)));
        Messages::open(self.endpoint.get(&all).await?)
    }

    /// Sends a request and reads its answer, from a further stream if the first one ends early but can be resumed.
    async fn exchange(
        &self,
        body: bytes::Bytes,
        id: &RequestId,
        events: &mpsc::Sender<Event>,
    ) -> Result<Reply, ClientError> {
        let mut messages = Messages::open(self.endpoint.post(&self.headers, body).await?)?;
        let (mut last, mut pause, mut resumes) = (None, RESUME_PAUSE, 0);
        loop {
            let ended = loop {
                match messages.next().await {
                    Ok(Some(message)) => match messages.reply(&message, id) {
                        Some(reply) => return reply,
                        None => {
                            resumes = 0;
                            forward(message, events).await;
                        }
                    },
                    Ok(None) => break messages.ended(),
                    Err(error) => break error,
                }
            };
            last = messages.last_event_id.take().or(last);
            pause = messages.retry.unwrap_or(pause);
            // Without an id the answer went down with the stream (T-29).
            if last.is_none() || !matches!(ended, ClientError::Broken(_)) || resumes == RESUMES_MAX {
                return Err(ended);
            }
            messages = loop {
                resumes += 1;
                tokio::time::sleep(pause).await;
                match self.get(last.as_deref()).await {
                    Ok(messages) => break messages,
                    Err(error) if error.retry_after().is_none() || resumes >= RESUMES_MAX => return Err(error),
                    Err(_) => (),
                }
            };
        }
    }
}

/// Sends a request and reports its end as an event.
pub(super) fn send(
    link: &Arc<Link>,
    events: &mpsc::Sender<Event>,
    readers: &mut JoinSet<()>,
    (id, method, params): (&RequestId, &'static str, &Payload),
    within: Duration,
) {
    // Those that have ended take no room any more.
    while readers.try_join_next().is_some() {}
    let (link, events, id) = (Arc::clone(link), events.clone(), id.clone());
    let body = envelope::request(&id, method, Some(params));
    readers.spawn(async move {
        let exchange = tokio::time::timeout(within, link.exchange(body, &id, &events));
        let reply = exchange.await.unwrap_or(Err(ClientError::Late(within)));
        // Fails only if the session is gone.
        let _ = events.send(Event::Answered { id, reply }).await;
    });
}

/// Reads the session's own stream as long as the server has one. The receiver hears when that is known.
pub(super) fn listen(
    link: &Arc<Link>,
    events: &mpsc::Sender<Event>,
    readers: &mut JoinSet<()>,
) -> oneshot::Receiver<()> {
    let (link, events) = (Arc::clone(link), events.clone());
    let (opened, is_open) = oneshot::channel();
    readers.spawn(async move {
        let (mut opened, mut last, mut pause, mut failures) = (Some(opened), None, RESUME_PAUSE, 0);
        while failures < RESUMES_MAX {
            match link.get(last.as_deref()).await {
                Ok(mut messages) => {
                    failures = 0;
                    let _ = opened.take().map(|opened| opened.send(()));
                    while let Ok(Some(message)) = messages.next().await {
                        forward(message, &events).await;
                    }
                    last = messages.last_event_id.take().or(last);
                    pause = messages.retry.unwrap_or(pause);
                }
                Err(error) if error.retry_after().is_none() => return,
                Err(_) => failures += 1,
            }
            tokio::time::sleep(pause).await;
        }
    });
    is_open
}

async fn forward(message: Message, events: &mpsc::Sender<Event>) {
    let event = match message {
        Message::Request(request) => Event::Asked(request),
        Message::Notification(notification) => Event::Told(notification),
        // An answer to nothing that was asked on this stream.
        Message::Response(_) => return,
    };
    let _ = events.send(event).await;
}
