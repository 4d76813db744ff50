//! HTTP towards one MCP endpoint: requests out, the messages of an answer in.
//!
//! Knows headers, framing and limits, and no protocol version: `stateless` and `session` say
//! what is sent.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, InvalidHeaderValue, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Http, Error as HttpError};
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;

use crate::cause::Chain;
use crate::tls;
use crate::wire::envelope::{self, Message};
use crate::wire::framing::SseDecoder;
use crate::wire::{Object, Payload, RequestId, RpcError, ScanLimits};

const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The largest answer, or event of a streamed one.
const ANSWER_BYTES_MAX: usize = 128 << 20;
/// Messages of one array, which 2025-03-26 servers may send.
const BATCH_MAX: usize = 64;
/// The longest time that a server's `Retry-After` or `retry:` makes us wait.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// One endpoint. Clones share connections.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    http: Http<HttpsConnector<HttpConnector>, Full<Bytes>>,
    uri: Uri,
    credential: Option<Credential>,
}

/// What tells the server who we are. Never printed.
#[derive(Clone, Debug)]
pub struct Credential(HeaderValue);

impl Credential {
    /// A bearer token.
    ///
    /// # Errors
    /// If it has characters that no header can carry.
    pub fn bearer(token: &str) -> Result<Self, InvalidHeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))?;
        // What is sensitive is not shown by `Debug`, and not indexed by HTTP/2.
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

/// What the server answered.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) outcome: Result<Object, RpcError>,
    /// The server refused the request for now (429 or 503), and how long it asks to be left alone.
    pub(super) busy: Option<Duration>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the system offers no way to verify certificates")]
    Tls(#[source] rustls::Error),
    #[error("the address cannot be used in a request")]
    Address(#[source] http::uri::InvalidUri),
    #[error("the server cannot be reached")]
    Unreachable(#[source] HttpError),
    #[error("the connection broke before the answer was complete")]
    Broken(#[source] Box<dyn StdError + Send + Sync>),
    #[error("no answer within {}", humantime::format_duration(*.0))]
    Late(Duration),
    #[error("the server answered {status}{}", advice(*status))]
    Status { status: StatusCode, retry_after: Duration },
    #[error("the server refused the handshake: error {code}: {message}")]
    Refused { code: i64, message: String },
    #[error("the server's answer cannot be understood: {0}")]
    Unintelligible(&'static str),
}

/// What to do about a status.
fn advice(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "; it asks for a key: put one into TASKGATE_KEY",
        StatusCode::FORBIDDEN => "; the key in TASKGATE_KEY, or the Host, is not for this",
        _ => "",
    }
}

impl ClientError {
    /// How long to wait before the same request may succeed, if it may at all.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unreachable(_) | Self::Broken(_) | Self::Late(_) => Some(Duration::ZERO),
            Self::Status { status, retry_after } => {
                (status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS).then_some(*retry_after)
            }
            Self::Tls(_) | Self::Address(_) | Self::Refused { .. } | Self::Unintelligible(_) => None,
        }
    }
}

impl Endpoint {
    /// Connects to nothing yet. With `roots`, they alone are trusted.
    ///
    /// # Errors
    /// If the system's trusted roots cannot be used, or the address is no URI for HTTP.
    pub(super) fn new(
        url: &url::Url,
        roots: Option<RootCertStore>,
        credential: Option<Credential>,
    ) -> Result<Self, ClientError> {
        // The fragment is not for servers, and no part of a URI in HTTP.
        let mut url = url.clone();
        url.set_fragment(None);
        let uri = url.as_str().parse().map_err(ClientError::Address)?;
        let builder = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .map_err(ClientError::Tls)?;
        let builder = match roots {
            Some(roots) => builder.with_root_certificates(Arc::new(roots)),
            None => builder.with_platform_verifier().map_err(ClientError::Tls)?,
        };
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_MAX));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(builder.with_no_client_auth())
            .https_or_http()
            .enable_all_versions();
        let http = Http::builder(TokioExecutor::new()).build(https.wrap_connector(tcp));
        Ok(Self { http, uri, credential })
    }

    /// POSTs a message; `headers` are added to the usual ones.
    ///
    /// # Errors
    /// If there is no answer at all.
    pub(super) async fn post(&self, headers: &HeaderMap, body: Bytes) -> Result<http::Response<Incoming>, ClientError> {
        let mut all = headers.clone();
        all.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        all.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.send(Method::POST, all, body).await
    }

    /// Opens a stream of messages that belong to no request.
    ///
    /// # Errors
    /// As [`Endpoint::post`].
    pub(super) async fn get(&self, headers: &HeaderMap) -> Result<http::Response<Incoming>, ClientError> {
        let mut all = headers.clone();
        all.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        self.send(Method::GET, all, Bytes::new()).await
    }

    /// Sends a DELETE, whatever its answer.
    ///
    /// # Errors
    /// As [`Endpoint::post`].
    pub(super) async fn delete(&self, headers: &HeaderMap) -> Result<(), ClientError> {
        self.send(Method::DELETE, headers.clone(), Bytes::new()).await.map(drop)
    }

    async fn send(
        &self,
        method: Method,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<http::Response<Incoming>, ClientError> {
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("taskgate/", env!("CARGO_PKG_VERSION"))));
        if let Some(Credential(value)) = &self.credential {
            headers.insert(AUTHORIZATION, value.clone());
        }
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = headers;
        self.http.request(request).await.map_err(ClientError::Unreachable)
    }
}

/// The messages of one HTTP answer, in order.
#[derive(Debug)]
pub(super) struct Messages {
    body: Option<Incoming>,
    kind: Kind,
    ready: VecDeque<Message>,
    head: Head,
    /// The last event id of the stream, from which it can be resumed.
    pub(super) last_event_id: Option<String>,
    /// How long the server wants a reader to wait before it resumes.
    pub(super) retry: Option<Duration>,
}

#[derive(Debug)]
enum Kind {
    Json,
    Stream(SseDecoder),
}

#[derive(Clone, Copy, Debug)]
struct Head {
    status: StatusCode,
    retry_after: Duration,
}

impl Messages {
    /// Looks at the head of an answer.
    ///
    /// # Errors
    /// If what follows are no messages.
    pub(super) fn open(response: http::Response<Incoming>) -> Result<Self, ClientError> {
        let (head, body) = response.into_parts();
        let (status, retry_after) = (head.status, retry_after(&head.headers));
        // Who may not come is told so by the status, whatever else is said.
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Err(ClientError::Status { status, retry_after });
        }
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = if kind.starts_with("text/event-stream") && status.is_success() {
            Kind::Stream(SseDecoder::new(ANSWER_BYTES_MAX))
        } else if kind.starts_with("application/json") {
            Kind::Json
        } else if status.is_success() {
            return Err(ClientError::Unintelligible("it is neither JSON nor an event stream"));
        } else {
            return Err(ClientError::Status { status, retry_after });
        };
        let head = Head { status, retry_after };
        Ok(Self { body: Some(body), kind, ready: VecDeque::new(), head, last_event_id: None, retry: None })
    }

    /// The next message, `None` once the answer has ended.
    ///
    /// # Errors
    /// If the connection breaks, or what came is no message.
    pub(super) async fn next(&mut self) -> Result<Option<Message>, ClientError> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(Some(message));
            }
            let Some(body) = &mut self.body else { return Ok(None) };
            match &mut self.kind {
                Kind::Json => {
                    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(ClientError::Broken)?;
                    self.body = None;
                    let Head { status, retry_after } = self.head;
                    // What stands between us and the server (a proxy, a login page) also answers, but not in JSON-RPC.
                    self.ready = messages(&body.to_bytes()).ok_or(match status.is_success() {
                        true => ClientError::Unintelligible("it is no JSON-RPC message"),
                        false => ClientError::Status { status, retry_after },
                    })?;
                }
                Kind::Stream(decoder) => {
                    let Some(frame) = body.frame().await else {
                        self.body = None;
                        continue;
                    };
                    let frame = frame.map_err(|error| ClientError::Broken(Box::new(error)))?;
                    let Some(bytes) = frame.data_ref() else { continue };
                    for event in decoder.feed(bytes).map_err(|error| ClientError::Broken(Box::new(error)))? {
                        self.last_event_id = event.id.or_else(|| self.last_event_id.take());
                        let retry = event.retry_ms.map(|ms| Duration::from_millis(ms).min(RETRY_AFTER_MAX));
                        self.retry = retry.or(self.retry);
                        if !event.data.is_empty() {
                            let why = "an event of the stream is no JSON-RPC message";
                            self.ready.extend(messages(&event.data).ok_or(ClientError::Unintelligible(why))?);
                        }
                    }
                }
            }
        }
    }

    /// What a request's answer is worth, if `message` is one to it. An error without an id can only be meant for us.
    pub(super) fn reply(&self, message: &Message, id: &RequestId) -> Option<Result<Reply, ClientError>> {
        let outcome = match message {
            Message::Response(response) if response.id.as_ref() == Some(id) => response.outcome.clone(),
            Message::Response(response) if response.id.is_none() && response.outcome.is_err() => {
                response.outcome.clone()
            }
            Message::Response(_) | Message::Request(_) | Message::Notification(_) => return None,
        };
        let busy = matches!(self.head.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let busy = busy.then_some(self.head.retry_after);
        Some(read(outcome).map(|outcome| Reply { outcome, busy }))
    }

    /// What the end of an answer means that answered nothing.
    pub(super) fn ended(&self) -> ClientError {
        let Head { status, retry_after } = self.head;
        match (&self.kind, status.is_success()) {
            (Kind::Stream(_), _) => ClientError::Broken(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            (Kind::Json, true) => ClientError::Unintelligible("it is no answer to this request"),
            (Kind::Json, false) => ClientError::Status { status, retry_after },
        }
    }
}

fn messages(text: &Bytes) -> Option<VecDeque<Message>> {
    let items = envelope::read_batch(text, ScanLimits::UPSTREAM, BATCH_MAX).ok()?;
    items.into_iter().collect::<Result<_, _>>().ok()
}

fn read(outcome: Result<Payload, RpcError>) -> Result<Result<Object, RpcError>, ClientError> {
    match outcome {
        Ok(result) => Object::of(&result).map(Ok).ok_or(ClientError::Unintelligible("the result is no object")),
        Err(error) => Ok(Err(error)),
    }
}

fn retry_after(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
    Duration::from_secs(seconds).min(RETRY_AFTER_MAX)
}

/// An answer's status where its body does not matter.
///
/// # Errors
/// If it is no success.
pub(super) fn accepted(response: &http::Response<Incoming>) -> Result<(), ClientError> {
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    Err(ClientError::Status { status, retry_after: retry_after(response.headers()) })
}

/// An error with all its causes, on one line.
#[must_use]
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    Chain(error).to_string()
}
