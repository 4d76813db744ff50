//! Requests to a 2026-07-28 server over streamable HTTP, one at a time.
//!
//! Knows headers, framing and limits; what an answer means for a call is decided in [`super::call::run`].

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Http, Error as HttpError};
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls_platform_verifier::BuilderVerifierExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::wire::envelope::{self, Message};
use crate::wire::framing::SseDecoder;
use crate::wire::{Object, Payload, ProtocolVersion, RequestId, RpcError, ScanLimits, meta, method};

const VERSION: ProtocolVersion = ProtocolVersion::V2026_07_28;
const MCP_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const MCP_METHOD: HeaderName = HeaderName::from_static("mcp-method");
const MCP_NAME: HeaderName = HeaderName::from_static("mcp-name");

const CONNECT_MAX: Duration = Duration::from_secs(10);
/// The largest answer, or event of a streamed one.
const ANSWER_BYTES_MAX: usize = 128 << 20;
/// The longest time that a server's `Retry-After` makes us wait.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Whether this client says that it can handle task handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskSupport {
    /// `io.modelcontextprotocol/tasks` is declared on every request.
    Extension,
    Undeclared,
}

/// Speaks to one endpoint.
#[derive(Debug)]
pub struct Client {
    http: Http<HttpsConnector<HttpConnector>, Full<Bytes>>,
    uri: Uri,
    tasks: TaskSupport,
    next_id: AtomicI64,
}

/// What the server answered.
#[derive(Debug)]
pub struct Reply {
    pub outcome: Result<Object, RpcError>,
    /// The server refused the request for now (429 or 503), and how long it asks to be left alone.
    pub busy: Option<Duration>,
}

/// Progress of a plain call, as its stream reports it.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Progress {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
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
    #[error("the server answered {status}")]
    Status { status: StatusCode, retry_after: Duration },
    #[error("the server's answer cannot be understood: {0}")]
    Unintelligible(&'static str),
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
            Self::Tls(_) | Self::Address(_) | Self::Unintelligible(_) => None,
        }
    }
}

/// The parameters of `tools/call`.
#[derive(Serialize)]
struct CallParams<'a> {
    name: &'a str,
    arguments: &'a Payload,
    _meta: Value,
}

/// The parameters of `tasks/get` and `tasks/cancel`.
#[derive(Serialize)]
struct TaskParams<'a> {
    #[serde(rename = "taskId")]
    task_id: &'a str,
    _meta: Value,
}

/// A request on its way: what the headers repeat, and how long the answer may take.
struct Outgoing<'a> {
    method: &'static str,
    name: &'a str,
    id: RequestId,
    params: Payload,
    within: Duration,
}

type OnProgress<'a> = &'a mut (dyn FnMut(Progress) + Send);

impl Client {
    /// Connects to nothing yet.
    ///
    /// # Errors
    /// If the system's trusted roots cannot be used, or the address is no URI for HTTP.
    pub fn new(url: &url::Url, tasks: TaskSupport) -> Result<Self, ClientError> {
        let uri = url.as_str().parse().map_err(ClientError::Address)?;
        let tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_platform_verifier())
            .map_err(ClientError::Tls)?
            .with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_MAX));
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_all_versions();
        let http = Http::builder(TokioExecutor::new()).build(https.wrap_connector(tcp));
        Ok(Self { http, uri, tasks, next_id: AtomicI64::new(1) })
    }

    /// Sends `tools/call`. Dropping the future closes the stream, which cancels a plain call.
    ///
    /// # Errors
    /// See [`ClientError`]. Whether the tool ran is then unknown.
    pub async fn call(
        &self,
        tool: &str,
        arguments: &Payload,
        within: Duration,
        on_progress: OnProgress<'_>,
    ) -> Result<Reply, ClientError> {
        let id = self.mint_id();
        let mut meta = self.meta();
        meta[meta::PROGRESS_TOKEN] = json!(id);
        let params = Payload::of(&CallParams { name: tool, arguments, _meta: meta });
        let request = Outgoing { method: method::TOOLS_CALL, name: tool, id, params, within };
        self.send(request, on_progress).await
    }

    /// Sends `tasks/get` or `tasks/cancel`; both may be repeated.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ask(&self, method: &'static str, task_id: &str, within: Duration) -> Result<Reply, ClientError> {
        let params = Payload::of(&TaskParams { task_id, _meta: self.meta() });
        let request = Outgoing { method, name: task_id, id: self.mint_id(), params, within };
        self.send(request, &mut |_| ()).await
    }

    fn mint_id(&self) -> RequestId {
        RequestId::number(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// What every request says about its sender, for there is no session that could know (UPC-15).
    fn meta(&self) -> Value {
        let capabilities = match self.tasks {
            TaskSupport::Extension => json!({ "extensions": { (meta::TASKS_EXTENSION): {} } }),
            TaskSupport::Undeclared => json!({}),
        };
        json!({
            (meta::PROTOCOL_VERSION): VERSION.as_str(),
            (meta::CLIENT_INFO): { "name": "taskgate", "version": env!("CARGO_PKG_VERSION") },
            (meta::CLIENT_CAPABILITIES): capabilities,
        })
    }

    async fn send(&self, outgoing: Outgoing<'_>, on_progress: OnProgress<'_>) -> Result<Reply, ClientError> {
        let within = outgoing.within;
        let exchange = async {
            let response = self.http.request(self.encode(&outgoing)).await.map_err(ClientError::Unreachable)?;
            receive(response, &outgoing.id, on_progress).await
        };
        tokio::time::timeout(within, exchange).await.unwrap_or(Err(ClientError::Late(within)))
    }

    fn encode(&self, outgoing: &Outgoing<'_>) -> Request<Full<Bytes>> {
        let body = envelope::request(&outgoing.id, outgoing.method, Some(&outgoing.params));
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("taskgate/", env!("CARGO_PKG_VERSION"))));
        headers.insert(MCP_VERSION, HeaderValue::from_static(VERSION.as_str()));
        headers.insert(MCP_METHOD, HeaderValue::from_static(outgoing.method));
        headers.insert(MCP_NAME, header_value(outgoing.name));
        request
    }
}

/// A name as a header value: as it is where that is unambiguous, else in the base64 wrapper (protocol.md 1.6).
fn header_value(name: &str) -> HeaderValue {
    let printable = name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let bare = printable && name.trim() == name && !(name.starts_with("=?base64?") && name.ends_with("?="));
    let text = if bare { name.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(name)) };
    HeaderValue::try_from(text).expect("only printable ASCII is left")
}

async fn receive(
    response: http::Response<Incoming>,
    id: &RequestId,
    on_progress: OnProgress<'_>,
) -> Result<Reply, ClientError> {
    let (head, body) = response.into_parts();
    let status = head.status;
    let retry_after = retry_after(&head.headers);
    let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let outcome = if kind.starts_with("text/event-stream") && status.is_success() {
        read_stream(body, id, on_progress).await?
    } else if kind.starts_with("application/json") {
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(ClientError::Broken)?.to_bytes();
        let answer = envelope::read(&body, ScanLimits::UPSTREAM).ok().and_then(|message| answer_to(message, id));
        // What stands between us and the server (a proxy, a login page) also answers, but not in JSON-RPC.
        answer.ok_or(match status.is_success() {
            true => ClientError::Unintelligible("it is no JSON-RPC answer to this request"),
            false => ClientError::Status { status, retry_after },
        })?
    } else if status.is_success() {
        return Err(ClientError::Unintelligible("it is neither JSON nor an event stream"));
    } else {
        return Err(ClientError::Status { status, retry_after });
    };
    let outcome = match outcome {
        Ok(result) => Ok(Object::of(&result).ok_or(ClientError::Unintelligible("the result is no object"))?),
        Err(error) => Err(error),
    };
    let busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    Ok(Reply { outcome, busy: busy.then_some(retry_after) })
}

fn retry_after(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
    Duration::from_secs(seconds).min(RETRY_AFTER_MAX)
}

type Outcome = Result<Payload, RpcError>;

/// The answer, if the message is one to this request; an error without an id can only be meant for us.
fn answer_to(message: Message, id: &RequestId) -> Option<Outcome> {
    match message {
        Message::Response(response) if response.id.as_ref() == Some(id) => Some(response.outcome),
        Message::Response(response) if response.id.is_none() && response.outcome.is_err() => Some(response.outcome),
        Message::Response(_) | Message::Request(_) | Message::Notification(_) => None,
    }
}

/// Reads an event stream up to the answer.
async fn read_stream(mut body: Incoming, id: &RequestId, on_progress: OnProgress<'_>) -> Result<Outcome, ClientError> {
    let mut decoder = SseDecoder::new(ANSWER_BYTES_MAX);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ClientError::Broken(Box::new(error)))?;
        let Some(bytes) = frame.data_ref() else { continue };
        let events = decoder.feed(bytes).map_err(|error| ClientError::Broken(Box::new(error)))?;
        for event in events.into_iter().filter(|event| !event.data.is_empty()) {
            let message = envelope::read(&event.data, ScanLimits::UPSTREAM)
                .map_err(|_| ClientError::Unintelligible("an event of the stream is no JSON-RPC message"))?;
            if let Message::Notification(notification) = &message
                && notification.method == method::PROGRESS
                && let Some(Ok(progress)) = notification.params.object().map(|params| params.payload().read())
            {
                on_progress(progress);
            }
            if let Some(outcome) = answer_to(message, id) {
                return Ok(outcome);
            }
        }
    }
    Err(ClientError::Broken(io::Error::from(io::ErrorKind::UnexpectedEof).into()))
}

/// An error with all its causes, on one line.
#[must_use]
pub fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a string cannot fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_header_cannot_hold_are_wrapped() {
        for (name, value) in [
            ("greet", "greet"),
            ("two words", "two words"),
            ("", ""),
            ("größe", "=?base64?Z3LDtsOfZQ==?="),
            (" a", "=?base64?IGE=?="),
            ("a\r\nb", "=?base64?YQ0KYg==?="),
            ("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?="),
        ] {
            assert_eq!(header_value(name), value, "{name:?}");
        }
    }
}
