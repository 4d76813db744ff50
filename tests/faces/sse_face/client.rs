//! A gateway with two principals in front of one server, and a client of HTTP+SSE that shows each event as it comes.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use support::hostile_twin;
use taskgate::app::Gateway;
use taskgate::config;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;

use super::upstream::{ScriptedServer, in_time};

pub(crate) const ADA: &str = "tg_ada1_0011223344556677889900aabbccddee";
pub(crate) const BOB: &str = "tg_bob1_a1b2c3d4e5f60718293a4b5c6d7e8f90";

/// A gateway in front of one server, served at `/up/mcp` and `/up/sse`.
pub(crate) struct Gate {
    pub(crate) server: ScriptedServer,
    pub(crate) gateway: Gateway,
    pub(crate) config: config::Config,
    _folder: TempDir,
    /// The other server of an endpoint, where the test runs at one.
    _hostile: Option<ScriptedServer>,
}

impl Gate {
    pub(crate) async fn before(server: ScriptedServer) -> Self {
        Self::with(server, "").await
    }

    /// `keys` stand in the upstream's section.
    pub(crate) async fn with(server: ScriptedServer, keys: &str) -> Self {
        Self::limited(server, "", keys).await
    }

    /// The same; `limits` stand in the section of limits.
    pub(crate) async fn limited(server: ScriptedServer, limits: &str, keys: &str) -> Self {
        let mut auth = "[auth]\nmode = \"api_keys\"\n".to_owned();
        for (id, key) in [("ada", ADA), ("bob", BOB)] {
            write!(auth, "[[auth.api_keys]]\nid = \"{id}\"\nkey = \"{key}\"\n").unwrap();
        }
        Self::start(server, keys, &auth, limits).await
    }

    /// The same for one principal alone, who needs no key and has no rate.
    pub(crate) async fn open(server: ScriptedServer, keys: &str) -> Self {
        Self::start(server, keys, "", "").await
    }

    async fn start(server: ScriptedServer, keys: &str, auth: &str, limits: &str) -> Self {
        let (section, _hostile) = hostile_twin::section("up", "/up/mcp", server.url().as_str()).await;
        let text = format!(
            "[store]\nkind = \"memory\"\n[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
             {auth}[limits]\nbody_bytes_max = \"64KiB\"\ndrain_max = \"10s\"\n{limits}\n\
             {section}{keys}\n"
        );
        let mut config = config::parse("test.toml", &text, &|_| None).unwrap().config;
        let folder = tempfile::tempdir().unwrap();
        config.folder = folder.path().to_path_buf();
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let gateway = in_time(Gateway::start(config.clone(), metrics)).await.unwrap();
        Self { server, gateway, config, _folder: folder, _hostile }
    }

    pub(crate) async fn stream(&self, key: &'static str) -> Stream {
        Stream::open(self.gateway.address(), key).await
    }

    /// A client that has shaken hands at a version.
    pub(crate) async fn client(&self, version: &str) -> Stream {
        let mut stream = self.stream(ADA).await;
        let result = stream.initialize(version).await;
        assert_eq!(result["protocolVersion"], version);
        stream
    }
}

/// One HTTP exchange on a connection of its own, which ends with the handle.
pub(crate) async fn exchange(address: SocketAddr, request: Request<Full<Bytes>>) -> (Response<Incoming>, Connection) {
    in_time(async {
        let request = hostile_twin::addressed(request, "up").await;
        let socket = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.unwrap();
        let running = TaskTracker::new().spawn(connection);
        let response = sender.send_request(request).await.unwrap();
        (response, Connection(running.abort_handle()))
    })
    .await
}

/// Dropped, the connection is cut.
pub(crate) struct Connection(AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) fn request(verb: &str, target: &str, key: &str) -> http::request::Builder {
    Request::builder()
        .method(verb)
        .uri(target)
        .header("host", "localhost")
        .header("authorization", format!("Bearer {key}"))
}

/// The status and the body of an exchange that ends.
pub(crate) async fn whole(address: SocketAddr, request: Request<Full<Bytes>>) -> (u16, String) {
    let (response, _connection) = exchange(address, request).await;
    let status = response.status().as_u16();
    let body = in_time(response.into_body().collect()).await.unwrap().to_bytes();
    (status, String::from_utf8(body.into()).unwrap())
}

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Endpoint(String),
    Message(String),
    Comment,
}

/// An open stream, and whose it is.
pub(crate) struct Stream {
    pub(crate) address: SocketAddr,
    pub(crate) key: &'static str,
    pub(crate) headers: HeaderMap,
    /// Where its messages are sent.
    pub(crate) endpoint: String,
    body: Incoming,
    text: String,
    _connection: Connection,
}

impl Stream {
    pub(crate) async fn open(address: SocketAddr, key: &'static str) -> Self {
        let request = request("GET", "/up/sse", key).header("accept", "text/event-stream");
        let (response, connection) = exchange(address, request.body(Full::default()).unwrap()).await;
        assert_eq!(response.status(), 200);
        let (head, body) = response.into_parts();
        let mut stream = Self {
            address,
            key,
            headers: head.headers,
            endpoint: String::new(),
            body,
            text: String::new(),
            _connection: connection,
        };
        match stream.event().await {
            Some(Event::Endpoint(endpoint)) => stream.endpoint = endpoint,
            other => panic!("{other:?} comes before the endpoint"),
        }
        stream
    }

    /// The next event; `None` at the end, and where the connection was cut.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        in_time(self.next_event()).await
    }

    async fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                return Some(read(&event));
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.text.push_str(std::str::from_utf8(&data).unwrap());
            }
        }
    }

    /// The text of the next message, comments aside; `None` at the end.
    pub(crate) async fn text(&mut self) -> Option<String> {
        loop {
            match self.event().await? {
                Event::Message(text) => return Some(text),
                Event::Comment => (),
                Event::Endpoint(again) => panic!("the endpoint is told again: {again}"),
            }
        }
    }

    pub(crate) async fn message(&mut self) -> Value {
        let text = self.text().await.expect("a message comes");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The next response, and the messages that came before it.
    pub(crate) async fn response(&mut self) -> (Value, Vec<Value>) {
        let mut before = Vec::new();
        loop {
            let message = self.message().await;
            if message.get("method").is_none() {
                return (message, before);
            }
            before.push(message);
        }
    }

    /// Whether nothing comes for a while.
    pub(crate) async fn is_silent(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(300), self.next_event()).await.is_err()
    }

    /// Sends a message by a POST; its status and body.
    pub(crate) async fn post(&self, message: impl Into<String>) -> (u16, String) {
        self.post_as(self.key, message).await
    }

    /// The same with the key of another principal.
    pub(crate) async fn post_as(&self, key: &str, message: impl Into<String>) -> (u16, String) {
        let request = request("POST", &self.endpoint, key).header("content-type", "application/json");
        whole(self.address, request.body(Full::new(message.into().into())).unwrap()).await
    }

    /// Sends a message that is taken.
    pub(crate) async fn send(&self, message: &Value) {
        assert_eq!(self.post(message.to_string()).await, (202, String::new()), "{message}");
    }

    pub(crate) async fn note(&self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    pub(crate) async fn ask(&self, id: u32, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
    }

    pub(crate) async fn call(&self, id: u32, tool: &str, arguments: Value) {
        self.ask(id, "tools/call", json!({ "name": tool, "arguments": arguments })).await;
    }

    /// Shakes hands; the result.
    pub(crate) async fn initialize(&mut self, version: &str) -> Value {
        let params = json!({
            "protocolVersion": version,
            "capabilities": { "sampling": {}, "elicitation": {}, "roots": {} },
            "clientInfo": { "name": "raw", "version": "1" },
        });
        self.ask(0, "initialize", params).await;
        let (answer, before) = self.response().await;
        assert!(before.is_empty(), "{before:?}");
        self.note("notifications/initialized", json!({})).await;
        answer["result"].clone()
    }
}

fn read(event: &str) -> Event {
    let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    match (field("event"), field("data")) {
        (Some("endpoint"), Some(address)) => Event::Endpoint(address.to_owned()),
        (Some("message"), Some(text)) => Event::Message(text.to_owned()),
        (None, None) if event.starts_with(':') => Event::Comment,
        _ => panic!("an event of another kind: {event:?}"),
    }
}
