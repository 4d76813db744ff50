//! One request at a time to a gateway that may be killed in the middle of it: each received part of the response is kept.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::hostile_twin;

/// The longest that one request may take where nothing else is said: a gateway that is stopped answers nothing.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Where [`hostile_twin`] serves an endpoint.
const ENDPOINTS: [&str; 2] = ["/mcp", "/up/mcp"];

pub const MODERN: &str = "2026-07-28";
pub const LEGACY: &str = "2025-11-25";

/// The response to one request.
#[derive(Debug, Default)]
pub struct Answer {
    /// `None` where no head came.
    pub status: Option<u16>,
    pub session: Option<String>,
    /// When it may be asked again.
    pub retry_after: Option<String>,
    pub text: String,
    /// The body ended in order.
    pub is_whole: bool,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

impl Answer {
    /// The JSON-RPC message, out of an event stream too: the last one there.
    pub fn message(&self) -> &str {
        let last = self.text.lines().filter_map(|line| line.strip_prefix("data:")).next_back();
        last.unwrap_or(&self.text).trim()
    }

    /// The bytes of its result.
    pub fn result(&self) -> Option<&str> {
        serde_json::from_str::<Message<'_>>(self.message()).ok()?.result.map(RawValue::get)
    }

    /// The bytes of its error.
    pub fn error(&self) -> Option<&str> {
        serde_json::from_str::<Message<'_>>(self.message()).ok()?.error.map(RawValue::get)
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(self.message()).unwrap_or_default()
    }
}

/// Who asks, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Tasks by the extension, without a session.
    Extension,
    /// Tasks of 2025-11-25, in a session.
    Core(Option<String>),
}

/// A client of one principal.
#[derive(Clone, Debug)]
pub struct WireClient {
    pub flavour: Flavour,
    pub path: &'static str,
    /// Whole header lines of a client with credentials.
    pub headers: Vec<(&'static str, String)>,
    /// The longest that one request may take.
    pub patience: Duration,
}

fn meta() -> Value {
    let capabilities = json!({"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
    json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    })
}

impl WireClient {
    pub fn new(flavour: Flavour) -> Self {
        Self { flavour, path: "/up/mcp", headers: Vec::new(), patience: ANSWER_MAX }
    }

    /// Opens a session where the flavour has one; whether it did.
    pub async fn open(&mut self, address: SocketAddr) -> bool {
        if self.flavour == Flavour::Extension {
            return true;
        }
        let params = json!({
            "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "crowd", "version": "1"},
        });
        self.flavour = Flavour::Core(None);
        let answer = self.ask(address, "initialize", params).await;
        let is_open = answer.session.is_some();
        self.flavour = Flavour::Core(answer.session);
        is_open
    }

    /// Makes a request, or sends a notification; `params` gain the flavour's metadata.
    pub async fn ask(&self, address: SocketAddr, method: &str, mut params: Value) -> Answer {
        let mut request = Request::post(self.path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        match &self.flavour {
            Flavour::Extension => {
                let name = ["name", "taskId"].into_iter().find_map(|key| params[key].as_str().map(str::to_owned));
                params["_meta"] = meta();
                params["_meta"]["progressToken"] = json!("p");
                request = request.header("mcp-protocol-version", MODERN).header("mcp-method", method);
                if let Some(name) = name {
                    request = request.header("mcp-name", name);
                }
            }
            Flavour::Core(Some(session)) => {
                request = request.header("mcp-protocol-version", LEGACY).header("mcp-session-id", session);
            }
            Flavour::Core(None) => (),
        }
        let mut message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        if !method.starts_with("notifications/") {
            message["id"] = json!(7);
        }
        let Ok(request) = request.body(Full::new(Bytes::from(message.to_string()))) else { return Answer::default() };
        let request = match ENDPOINTS.contains(&self.path) {
            true => hostile_twin::addressed(request, "up").await,
            false => request,
        };
        send_within(self.patience, address, request).await
    }
}

/// Sends a request on a connection of its own, and reads until it ends or breaks.
pub async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    send_within(ANSWER_MAX, address, request).await
}

async fn send_within(patience: Duration, address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    let mut answer = Answer::default();
    // The part that came within the time is kept.
    let _ = timeout(patience, read(address, request, &mut answer)).await;
    answer
}

async fn read(address: SocketAddr, request: Request<Full<Bytes>>, answer: &mut Answer) -> Option<()> {
    let stream = TcpStream::connect(address).await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    tracker.spawn(stop.clone().run_until_cancelled_owned(connection));
    let _stop = stop.drop_guard();
    let response = sender.send_request(request).await.ok()?;
    answer.status = Some(response.status().as_u16());
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    (answer.session, answer.retry_after) = (header("mcp-session-id"), header("retry-after"));
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.ok()?.into_data() {
            answer.text.push_str(&String::from_utf8_lossy(&data));
        }
    }
    answer.is_whole = true;
    Some(())
}
