//! A whole gateway in front of one server, and a client with a session that shows what it gets as it comes.

use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use ::bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use taskgate::app::Gateway;
use taskgate::config;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;
use tokio_util::task::TaskTracker;

use crate::hostile_twin;
use crate::scripted::{ScriptedServer, in_time};

/// The line of every gateway's key file: a restarted gateway opens the ids that an earlier one sealed.
pub const KEY: &str = "0707070707070707070707070707070707070707070707070707070707070707";
pub const BOTH: &str = "application/json, text/event-stream";

/// The header fields of a request to an upstream, in order: no others come through.
pub const UPSTREAM_FIELDS: [&str; 9] = [
    "accept",
    "accept-encoding",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "mcp-protocol-version",
    "mcp-session-id",
    "user-agent",
];

/// A gateway in front of one server.
pub struct TestGateway {
    pub gateway: Gateway,
    _folder: TempDir,
    /// The other server of an endpoint, where the test runs at one.
    _hostile: Option<ScriptedServer>,
}

impl TestGateway {
    pub async fn before(server: &ScriptedServer) -> Self {
        Self::with(server.address, "").await
    }

    /// `keys` stand in the upstream's section.
    pub async fn with(upstream: SocketAddr, keys: &str) -> Self {
        Self::open("", &format!("http://{upstream}/mcp"), keys).await
    }

    /// `listen` stands in the section of the listener, and may open others behind it.
    pub async fn open(listen: &str, url: &str, keys: &str) -> Self {
        // The text behind the upstream's section may hold any other section.
        let (section, _hostile) = hostile_twin::section("up", "/mcp", url).await;
        Self { _hostile, ..Self::serving(&format!("{listen}\n{section}{keys}\n")).await }
    }

    /// `served` begins within the section of the listener, and has upstreams behind it.
    pub async fn serving(served: &str) -> Self {
        let text = format!(
            "[store]\nkind = \"memory\"\n[admin]\naddress = \"127.0.0.1:0\"\n[listen]\naddress = \"127.0.0.1:0\"\n{served}\n"
        );
        let mut loaded = config::parse("test", &text, &|_| None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("seal.key");
        fs::write(&key, KEY).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        loaded.config.folder = folder.path().to_path_buf();
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let gateway = in_time(Gateway::start(loaded.config, metrics)).await.unwrap();
        Self { gateway, _folder: folder, _hostile: None }
    }

    /// A client whose session is open, at the newest version.
    pub async fn client(&self) -> Client {
        self.client_of("2025-11-25").await
    }

    pub async fn client_of(&self, version: &str) -> Client {
        self.client_over(HttpOptions::default(), version).await
    }

    pub async fn client_over(&self, over: HttpOptions, version: &str) -> Client {
        Client { over, ..self.client_without_session() }.opened(version).await
    }

    pub fn client_without_session(&self) -> Client {
        Client {
            address: self.gateway.address(),
            session: None,
            version: None,
            accept: BOTH,
            over: HttpOptions::default(),
            connections: TaskTracker::new(),
        }
    }
}

pub fn initialize(version: &str, capabilities: &Value) -> String {
    let params = json!({
        "protocolVersion": version,
        "capabilities": capabilities,
        "clientInfo": {"name": "raw", "version": "1"},
    });
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string()
}

pub fn call(id: u32) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t","arguments":{{"n":{id}}}}}}}"#)
}

/// How a client speaks HTTP.
#[derive(Clone)]
pub struct HttpOptions {
    pub version: Version,
    /// Agrees on that version and no other.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The host that it asks for, wherever it connects to.
    pub host: &'static str,
    /// The address that it comes from.
    pub from: IpAddr,
}

/// HTTP/1.1 without TLS, to and from this machine.
impl Default for HttpOptions {
    fn default() -> Self {
        Self { version: Version::default(), tls: None, host: "localhost", from: Ipv4Addr::LOCALHOST.into() }
    }
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

impl HttpOptions {
    async fn connect(&self, address: SocketAddr) -> TokioIo<Box<dyn Socket>> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((self.from, 0).into()).unwrap();
        let socket = in_time(socket.connect(address)).await.unwrap();
        let Some(tls) = &self.tls else { return TokioIo::new(Box::new(socket)) };
        let connecting = TlsConnector::from(Arc::clone(tls)).connect(self.host.try_into().unwrap(), socket);
        TokioIo::new(Box::new(in_time(connecting).await.unwrap()))
    }
}

#[derive(Clone)]
pub struct Client {
    pub address: SocketAddr,
    pub session: Option<String>,
    pub version: Option<String>,
    pub accept: &'static str,
    pub over: HttpOptions,
    pub connections: TaskTracker,
}

impl Client {
    /// With a session of its own.
    pub async fn opened(self, version: &str) -> Self {
        let reply = self.post(initialize(version, &json!({"roots": {}, "sampling": {}, "elicitation": {}}))).await;
        assert_eq!(reply.status, StatusCode::OK);
        let session = Some(reply.header("mcp-session-id").unwrap().to_owned());
        let version = Some(reply.json().await["result"]["protocolVersion"].as_str().unwrap().to_owned());
        Self { session, version, ..self }
    }

    pub async fn post(&self, body: impl Into<Bytes>) -> Reply {
        let request = self.request("POST").header("content-type", "application/json");
        self.send(request.body(Full::new(body.into())).unwrap()).await
    }

    pub async fn get(&self, last_event: Option<&str>) -> Reply {
        let mut request = self.request("GET");
        if let Some(event) = last_event {
            request = request.header("last-event-id", event);
        }
        self.send(request.body(Full::default()).unwrap()).await
    }

    pub async fn delete(&self) -> Reply {
        self.send(self.request("DELETE").body(Full::default()).unwrap()).await
    }

    pub fn request(&self, method: &str) -> http::request::Builder {
        let mut request =
            Request::builder().method(method).uri("/mcp").header("host", self.over.host).header("accept", self.accept);
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
        }
        if let Some(version) = &self.version {
            request = request.header("mcp-protocol-version", version);
        }
        request
    }

    /// Sends a request on a connection of its own; returns with the head of the answer.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Reply {
        in_time(Box::pin(self.send_patiently(request))).await.unwrap()
    }

    /// The same, however long the head takes.
    ///
    /// # Errors
    /// If the connection ends before it.
    pub async fn send_patiently(&self, request: Request<Full<Bytes>>) -> Result<Reply, hyper::Error> {
        let mut request = hostile_twin::addressed(request, "up").await;
        let socket = self.over.connect(self.address).await;
        // How a connection ends says nothing: tests drop answers on purpose.
        let response = if self.over.version == Version::HTTP_2 {
            let scheme = if self.over.tls.is_some() { "https" } else { "http" };
            let target = request.uri().to_string();
            *request.uri_mut() =
                Uri::builder().scheme(scheme).authority(self.over.host).path_and_query(target).build().unwrap();
            request.headers_mut().remove("host");
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), socket).await.unwrap();
            self.connections.spawn(connection);
            sender.send_request(request).await?
        } else {
            let (mut sender, connection) = http1::handshake(socket).await.unwrap();
            self.connections.spawn(connection);
            sender.send_request(request).await?
        };
        let (head, body) = response.into_parts();
        Ok(Reply { status: head.status, headers: head.headers, body })
    }
}

/// An answer whose body is still to be read. Dropping it closes the connection.
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The next bytes; `None` at the end.
    pub async fn piece(&mut self) -> Option<String> {
        in_time(self.next_piece()).await.expect("the body goes on")
    }

    /// The same, however long it takes.
    ///
    /// # Errors
    /// If the body breaks off.
    pub async fn next_piece(&mut self) -> Result<Option<String>, hyper::Error> {
        let Some(frame) = self.body.frame().await.transpose()? else { return Ok(None) };
        Ok(Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()))
    }

    /// Reads until the read text ends in `text`.
    pub async fn until(&mut self, text: &str) -> String {
        let mut read = String::new();
        while !read.ends_with(text) {
            read.push_str(&self.piece().await.expect("more is to come"));
        }
        read
    }

    /// All of it; `None` if it breaks off.
    pub async fn try_text(self) -> Option<String> {
        let bytes = in_time(self.body.collect()).await.ok()?.to_bytes();
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    pub async fn text(self) -> String {
        self.try_text().await.expect("the body is complete")
    }

    pub async fn json(self) -> Value {
        let text = self.text().await;
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"))
    }

    /// The code of the error that it holds, as `status code`.
    pub async fn verdict(self) -> String {
        let status = self.status.as_u16();
        let text = self.text().await;
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        match body["error"]["code"].as_i64() {
            Some(code) if body.get("id").is_some() => format!("{status} {code} id {}", body["id"]),
            Some(code) => format!("{status} {code}"),
            None => format!("{status} {text}"),
        }
    }
}
