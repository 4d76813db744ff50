//! A client of 2026-07-28 that listens, and a server that pushes.

use std::collections::VecDeque;
use std::sync::Arc;

use http_body_util::Full;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::client::{Reply, TestGateway};
use super::in_time;
use super::upstream::{BodySender, ScriptedReply as Pushed, ScriptedServer, SeenRequest};

pub(crate) const TAG: &str = "io.modelcontextprotocol/subscriptionId";

/// Streams that a server hands out one after the other to those who open one.
pub(crate) struct Streams(Mutex<VecDeque<Pushed>>);

impl Streams {
    pub(crate) fn new(count: usize) -> (Vec<BodySender>, Arc<Self>) {
        let (events, replies): (Vec<_>, VecDeque<_>) = (0..count).map(|_| BodySender::open()).unzip();
        (events, Arc::new(Self(Mutex::new(replies))))
    }

    pub(crate) fn take(&self) -> Option<Pushed> {
        self.0.lock().pop_front()
    }
}

pub(crate) fn is_get(seen: &SeenRequest) -> bool {
    seen.method == "GET"
}

/// A server that declares everything that can be listened to, and pushes on these streams.
pub(crate) async fn pushing(streams: Arc<Streams>) -> ScriptedServer {
    let server = ScriptedServer::start(move |seen| is_get(seen).then(|| streams.take()).flatten()).await;
    *server.world.initialize_result.lock() = json!({ "capabilities": {
        "tools": { "listChanged": true },
        "resources": { "subscribe": true, "listChanged": true },
    } });
    server
}

/// A notification as the server writes it.
pub(crate) fn push(events: &BodySender, method: &str, params: &Value) {
    events.raw(format!("data: {}\n\n", json!({ "jsonrpc": "2.0", "method": method, "params": params })));
}

/// Sends a request of a client that declares nothing.
pub(crate) async fn send(gate: &TestGateway, id: Value, method: &str, params: &Value) -> Reply {
    let mut params = params.clone();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
    let mut client = gate.client_without_session();
    client.version = Some("2026-07-28".to_owned());
    let request = client.request("POST").header("content-type", "application/json").header("mcp-method", method);
    let request = match params["name"].as_str() {
        Some(name) => request.header("mcp-name", name),
        None => request,
    };
    client.send(request.body(Full::from(body)).unwrap()).await
}

/// An open stream. Dropping it means that the client leaves.
pub(crate) struct Listener {
    reply: Reply,
    read: String,
    /// The granted part of the subscription.
    pub(crate) granted: Value,
}

impl Listener {
    pub(crate) async fn open(gate: &TestGateway, id: Value, notifications: &Value) -> Self {
        let params = json!({ "notifications": notifications });
        let reply = send(gate, id.clone(), "subscriptions/listen", &params).await;
        assert_eq!((reply.status.as_u16(), reply.header("content-type")), (200, Some("text/event-stream")));
        let mut listener = Self { reply, read: String::new(), granted: Value::Null };
        let mut first = listener.next().await.unwrap();
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "MOD-24");
        assert_eq!(first["params"]["_meta"], json!({ TAG: id }), "MOD-24");
        listener.granted = first["params"]["notifications"].take();
        listener
    }

    /// The next message; `None` at the end of the stream. Comments are no messages, and no reason to wait on.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        in_time(self.read_on()).await
    }

    async fn read_on(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let data: String = event.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
                assert!(!event.contains("\nid:"), "MOD-21: {event}");
                self.read = rest.to_owned();
                match data.as_str() {
                    "" => continue,
                    data => return Some(serde_json::from_str(data).unwrap()),
                }
            }
            self.read.push_str(&self.reply.piece().await?);
        }
    }

    /// The method of the next message, or its result type, and its subject.
    pub(crate) async fn line(&mut self) -> String {
        let Some(message) = self.next().await else { return "end".to_owned() };
        let what = message["method"].as_str().or_else(|| message["result"]["resultType"].as_str()).unwrap();
        match message["params"]["uri"].as_str() {
            Some(uri) => format!("{what} {uri}"),
            None => what.to_owned(),
        }
    }
}
