//! Clients with and without a session, that show each message as it comes.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::gate::{GatewayProcess, in_time};
use crate::hostile_twin;

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// An answer as it comes.
pub struct StreamedReply {
    response: Response<Incoming>,
    text: String,
    ids: Vec<String>,
}

impl StreamedReply {
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The ids of the events that came so far.
    pub fn ids(&self) -> &[String] {
        &self.ids
    }

    /// The next message; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        let is_json = self.response.headers()["content-type"] == "application/json";
        in_time(async {
            loop {
                if let Some((event, rest)) = self.text.split_once("\n\n").filter(|_| !is_json) {
                    let data = event.lines().find_map(|line| line.strip_prefix("data:")).map(str::to_owned);
                    self.ids.extend(event.lines().find_map(|line| line.strip_prefix("id:")).map(str::to_owned));
                    self.text = rest.to_owned();
                    match data.filter(|data| !data.trim().is_empty()) {
                        Some(data) => return Some(serde_json::from_str(&data).unwrap()),
                        None => continue,
                    }
                }
                match self.response.body_mut().frame().await {
                    Some(frame) => {
                        let Ok(data) = frame.ok()?.into_data() else { continue };
                        // Servers end lines in different ways, and their text is forwarded unchanged.
                        self.text.push_str(&std::str::from_utf8(&data).unwrap().replace('\r', ""));
                    }
                    None => return serde_json::from_str(&std::mem::take(&mut self.text)).ok(),
                }
            }
        })
        .await
    }

    /// The answer, and how many messages came before it.
    pub async fn answer(&mut self) -> (Value, usize) {
        let mut before = 0;
        loop {
            let message = self.next().await.expect("an answer comes");
            if message.get("method").is_none() {
                return (message, before);
            }
            before += 1;
        }
    }
}

/// A request that waits for the head of its answer.
pub struct PendingReply(tokio::task::JoinHandle<StreamedReply>);

impl PendingReply {
    /// Waits for the head of the answer.
    pub async fn reply(mut self) -> StreamedReply {
        in_time(&mut self.0).await.unwrap()
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> StreamedReply {
    in_time(async {
        let request = hostile_twin::addressed(request, "up").await;
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        TaskTracker::new().spawn(connection);
        let response = sender.send_request(request).await.unwrap();
        StreamedReply { response, text: String::new(), ids: Vec::new() }
    })
    .await
}

pub async fn get(address: SocketAddr, path: &str) -> String {
    let request = Request::get(path).header("host", "localhost").body(Full::default()).unwrap();
    let body = in_time(send(address, request).await.response.collect()).await.unwrap();
    String::from_utf8(body.to_bytes().into()).unwrap()
}

/// Who asks.
#[derive(Clone, Debug)]
pub struct StandaloneClient {
    address: SocketAddr,
    /// Without one the client is a stateless one.
    session: Option<String>,
    has_tasks: bool,
    key: Option<&'static str>,
    /// A value among the client's capabilities, where the test needs one.
    experimental: Option<u32>,
}

impl StandaloneClient {
    pub fn stateless(gate: &GatewayProcess) -> Self {
        Self { address: gate.address, session: None, has_tasks: false, key: None, experimental: None }
    }

    /// The same with a credential.
    pub fn with_key(self, key: &'static str) -> Self {
        Self { key: Some(key), ..self }
    }

    /// The same with a capability that no other such client has.
    pub fn with_experimental(self, number: u32) -> Self {
        Self { experimental: Some(number), ..self }
    }

    /// The same with tasks.
    pub fn with_tasks(self) -> Self {
        Self { has_tasks: true, ..self }
    }

    pub async fn session(gate: &GatewayProcess) -> Self {
        Self::try_session(gate).await.unwrap_or_else(|error| panic!("no session: {error}"))
    }

    /// Opens a session, or tells why there is none.
    pub async fn try_session(gate: &GatewayProcess) -> Result<Self, Value> {
        Self::stateless(gate).try_open().await
    }

    /// The same client in a session, or why there is none.
    pub async fn try_open(self) -> Result<Self, Value> {
        let params = json!({
            "protocolVersion": LEGACY,
            "capabilities": { "elicitation": {} },
            "clientInfo": { "name": "test", "version": "1" },
        });
        let body = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let request = self.head(Request::post("/up/mcp")).body(Full::new(body.to_string().into())).unwrap();
        let mut reply = send(self.address, request).await;
        let session = reply.response.headers().get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned());
        let (answer, _) = reply.answer().await;
        let Some(session) = session else { return Err(answer) };
        let client = Self { session: Some(session), ..self };
        client.note("notifications/initialized", json!({})).await;
        Ok(client)
    }

    fn head(&self, request: http::request::Builder) -> http::request::Builder {
        self.authorized(request)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
    }

    fn authorized(&self, request: http::request::Builder) -> http::request::Builder {
        match self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// Opens the session's own stream.
    pub async fn listen(&self) -> StreamedReply {
        let session = self.session.as_deref().unwrap();
        let request = Request::get("/up/mcp").header("host", "localhost").header("accept", "text/event-stream");
        let request = request.header("mcp-protocol-version", LEGACY).header("mcp-session-id", session);
        send(self.address, self.authorized(request).body(Full::default()).unwrap()).await
    }

    /// Makes a request whose answer no task reads yet. Dropping it disconnects.
    pub async fn start(&self, id: u32, method: &str, params: Value) -> PendingReply {
        let (client, method) = (self.clone(), method.to_owned());
        let asking = async move { client.ask(id, &method, params).await };
        PendingReply(TaskTracker::new().spawn(asking))
    }

    /// Makes a request.
    pub async fn ask(&self, id: u32, method: &str, mut params: Value) -> StreamedReply {
        let mut request = self.head(Request::post("/up/mcp"));
        match &self.session {
            Some(session) => {
                request = request.header("mcp-protocol-version", LEGACY).header("mcp-session-id", session);
            }
            None => {
                let extensions = if self.has_tasks { json!({ TASKS: {} }) } else { json!({}) };
                let mut capabilities = json!({ "elicitation": { "form": {} }, "extensions": extensions });
                if let Some(number) = self.experimental {
                    capabilities["experimental"] = json!({ "number": { "is": number } });
                }
                let mut meta = params["_meta"].as_object().cloned().unwrap_or_default();
                meta.insert("io.modelcontextprotocol/protocolVersion".to_owned(), json!(MODERN));
                meta.insert("io.modelcontextprotocol/clientCapabilities".to_owned(), capabilities);
                params["_meta"] = meta.into();
                request = request.header("mcp-protocol-version", MODERN).header("mcp-method", method);
                if let Some(name) = ["name", "taskId"].iter().find_map(|key| params[key].as_str()) {
                    request = request.header("mcp-name", name);
                }
            }
        }
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        send(self.address, request.body(Full::new(body.to_string().into())).unwrap()).await
    }

    /// Calls a tool and waits for its answer.
    pub async fn call(&self, id: u32, tool: &str, arguments: Value) -> Value {
        let params = json!({ "name": tool, "arguments": arguments });
        self.ask(id, "tools/call", params).await.answer().await.0
    }

    /// Calls a tool; returns its answer verbatim.
    pub async fn call_verbatim(&self, id: u32, tool: &str, arguments: Value) -> String {
        self.ask_verbatim(id, "tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// Makes a request; returns its answer verbatim, but for bytes that are no text.
    pub async fn ask_verbatim(&self, id: u32, method: &str, params: Value) -> String {
        let reply = self.ask(id, method, params).await;
        let body = in_time(reply.response.collect()).await.unwrap();
        String::from_utf8_lossy(&body.to_bytes()).into_owned()
    }

    /// Calls a tool as a task: its id.
    pub async fn task(&self, id: u32, tool: &str, arguments: Value) -> String {
        let handle = self.clone().with_tasks().call(id, tool, arguments).await;
        handle["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {handle}")).to_owned()
    }

    /// The task once it is settled.
    pub async fn settled(&self, task: &str) -> Value {
        let client = self.clone().with_tasks();
        in_time(async {
            loop {
                let mut reply = client.ask(9, "tasks/get", json!({ "taskId": task })).await;
                let (mut found, _) = reply.answer().await;
                if found["result"]["status"] != "working" {
                    return found["result"].take();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
    }

    /// Sends a notification.
    pub async fn note(&self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    /// Sends a notification or an answer.
    pub async fn send(&self, message: &Value) {
        let session = self.session.as_deref().unwrap();
        let request = self.head(Request::post("/up/mcp")).header("mcp-session-id", session);
        let request = request.header("mcp-protocol-version", LEGACY);
        let reply = send(self.address, request.body(Full::new(message.to_string().into())).unwrap()).await;
        assert_eq!(reply.status(), 202, "{message}");
    }

    /// Takes a stream up behind this event.
    pub async fn take_up(&self, event: &str) -> StreamedReply {
        let session = self.session.as_deref().unwrap();
        let request = Request::get("/up/mcp").header("host", "localhost").header("accept", "text/event-stream");
        let request = request.header("mcp-protocol-version", LEGACY).header("mcp-session-id", session);
        send(self.address, request.header("last-event-id", event).body(Full::default()).unwrap()).await
    }

    /// Ends the session.
    pub async fn leave(&self) {
        let session = self.session.as_deref().unwrap();
        let request = self.head(Request::delete("/up/mcp")).header("mcp-session-id", session);
        let request = request.header("mcp-protocol-version", LEGACY);
        let status = send(self.address, request.body(Full::default()).unwrap()).await.status();
        assert!((200..300).contains(&status), "{status}");
    }
}

/// The text of a tool's result.
pub fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no result: {answer}"))
}

/// The gateway's data in an error.
pub fn fault(answer: &Value) -> &Value {
    assert_eq!(answer["error"]["data"]["source"], "gateway", "{answer}");
    &answer["error"]["data"]
}
