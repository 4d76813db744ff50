//! A gateway with API keys in front of a scripted server, and a client that speaks in bytes.

use std::fmt::Write as _;
use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use support::hostile_twin;
use taskgate::app::Gateway;
use taskgate::app::sockets::Sockets;
use taskgate::config;
use taskgate::server::api_keys::AuthSettings;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::upstream::{
    BodySender, ScriptedReply, ScriptedServer, ScriptedState, SeenRequest, answer, in_time, polite, status,
};

pub(crate) const ADA: &str = "tg_ada1_0011223344556677889900aabbccddee";
/// A second key of the same person.
pub(crate) const ADA_TOO: &str = "tg_ada2_ffeeddccbbaa00998877665544332211";
pub(crate) const BOB: &str = "tg_bob1_a1b2c3d4e5f60718293a4b5c6d7e8f90";
/// A key that is not configured.
pub(crate) const EVE: &str = "tg_eve1_a1b2c3d4e5f60718293a4b5c6d7e8f90";

/// The path of the server.
const PATH: &str = "/mcp";

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

pub(crate) struct Gate {
    pub(crate) server: ScriptedServer,
    pub(crate) gateway: Gateway,
    config: config::Config,
    _folder: TempDir,
    _hostile: Option<ScriptedServer>,
}

/// A server whose tool `quick` returns its arguments at once, `held` never returns, and `ask` asks first. Each session has one
/// further tool, with the session's name.
pub(super) async fn server() -> ScriptedServer {
    ScriptedServer::slow(async |seen: SeenRequest, world: Arc<ScriptedState>| Some(act(&seen, &world).await)).await
}

pub(crate) async fn act(seen: &SeenRequest, world: &Arc<ScriptedState>) -> ScriptedReply {
    match (seen.rpc(), seen.body["params"]["name"].as_str()) {
        ("tools/list", _) => {
            let own = format!("of-{}", seen.header("mcp-session-id").unwrap_or_default());
            let tools = ["quick", "held", "ask", "task", &own].map(|name| json!({ "name": name, "inputSchema": {} }));
            answer(seen, &json!({ "tools": tools }))
        }
        ("tools/call", Some("held")) => std::future::pending().await,
        ("tools/call", Some(name)) if name.starts_with("ask") => {
            let (events, reply) = BodySender::open();
            let params = json!({ "message": "Sure?", "requestedSchema": { "type": "object", "properties": {} } });
            events.message(&json!({ "jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params }));
            let about = seen.header("mcp-session-id").unwrap_or_default().to_owned();
            let (seen, world) = (seen.clone(), Arc::clone(world));
            TaskTracker::new().spawn(async move {
                let told = world.first(|other| {
                    other.body.get("result").is_some() && other.header("mcp-session-id") == Some(about.as_str())
                });
                let said = told.await.body["result"]["action"].clone();
                events.result(&seen, &json!({ "content": [], "structuredContent": { "said": said } }));
            });
            reply
        }
        ("tools/call", _) => {
            answer(seen, &json!({ "content": [], "structuredContent": seen.body["params"]["arguments"] }))
        }
        ("prompts/list", _) => answer(seen, &json!({ "prompts": [{ "name": "read_a" }, { "name": "write_b" }] })),
        ("prompts/get", _) => answer(seen, &json!({ "messages": [] })),
        ("resources/list", _) => {
            let resources = ["file:///public/a", "file:///secret/b"].map(|uri| json!({ "uri": uri, "name": "r" }));
            answer(seen, &json!({ "resources": resources }))
        }
        ("resources/templates/list", _) => {
            let templates = ["file:///public/{x}", "file:///secret/{x}"];
            let templates = templates.map(|template| json!({ "uriTemplate": template, "name": "t" }));
            answer(seen, &json!({ "resourceTemplates": templates }))
        }
        ("completion/complete", _) => answer(seen, &json!({ "completion": { "values": ["v"] } })),
        ("resources/subscribe", _) => answer(seen, &json!({})),
        ("resources/read", _) if seen.body["params"]["uri"].as_str().is_some_and(|uri| uri.starts_with("file:")) => {
            answer(seen, &json!({ "contents": [] }))
        }
        ("resources/read", _) => status(404),
        _ => polite(seen, world),
    }
}

impl Gate {
    pub(crate) async fn start() -> Self {
        Self::with("").await
    }

    /// A gateway with these keys of `[limits]`.
    pub(crate) async fn with(limits: &str) -> Self {
        let mut auth = "mode = \"api_keys\"\n".to_owned();
        for (id, key) in [("ada", ADA), ("ada", ADA_TOO), ("bob", BOB)] {
            write!(auth, "[[auth.api_keys]]\nid = \"{id}\"\nkey = \"{key}\"\n").unwrap();
        }
        Self::of("", &format!("{auth}[limits]\n{limits}\n"), "").await
    }

    /// A gateway with these keys of `[listen]`, `[auth]` and the upstream's section.
    pub(crate) async fn of(listen: &str, auth: &str, upstream: &str) -> Self {
        Self::on(listen, auth, upstream, Sockets::default()).await
    }

    /// A gateway on sockets that listen already.
    pub(crate) async fn on(listen: &str, auth: &str, upstream: &str, sockets: Sockets) -> Self {
        Self::before(server().await, (listen, auth, upstream), sockets).await
    }

    /// A gateway in front of a server whose `initialize` result has these members.
    pub(crate) async fn with_initialize_result(auth: &str, initialize_result: Value) -> Self {
        let server = server().await;
        *server.world.initialize_result.lock() = initialize_result;
        Self::before(server, ("", auth, ""), Sockets::default()).await
    }

    /// A gateway in front of another server.
    pub(crate) async fn behind(server: ScriptedServer, listen: &str, auth: &str, upstream: &str) -> Self {
        Self::before(server, (listen, auth, upstream), Sockets::default()).await
    }

    async fn before(server: ScriptedServer, (listen, auth, upstream): (&str, &str, &str), sockets: Sockets) -> Self {
        let (section, hostile) = hostile_twin::section("up", PATH, server.url().as_str()).await;
        let text = format!(
            "[store]\nkind = \"memory\"\n[listen]\naddress = \"127.0.0.1:0\"\n{listen}\n[admin]\naddress = \"127.0.0.1:0\"\n\
             [auth]\n{auth}\n{section}{upstream}\n\
             [[upstreams.up.tools]]\nmatch = \"held\"\nmode = \"always\"\n\
             [[upstreams.up.tools]]\nmatch = \"task\"\nmode = \"always\"\n\
             [[upstreams.up.tools]]\nmatch = \"quick\"\nmode = \"never\"\n"
        );
        let mut config = config::parse("test.toml", &text, &|_| None).unwrap().config;
        let folder = tempfile::tempdir().unwrap();
        config.folder = folder.path().to_path_buf();
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let gateway = in_time(Gateway::start_on(config.clone(), metrics, sockets)).await.unwrap();
        Self { server, gateway, config, _folder: folder, _hostile: hostile }
    }

    /// Reloads with other keys.
    pub(crate) fn reload(&mut self, auth: AuthSettings) -> anyhow::Result<()> {
        self.reload_with(|config| config.auth = auth)
    }

    /// Reloads with a changed configuration.
    pub(crate) fn reload_with(&mut self, change: impl FnOnce(&mut config::Config)) -> anyhow::Result<()> {
        change(&mut self.config);
        self.gateway.reload(self.config.clone()).map(drop)
    }

    pub(crate) async fn send(&self, ask: &Ask) -> Answer {
        let read = async {
            let mut stream = TcpStream::connect(self.gateway.address()).await.unwrap();
            stream.write_all(&ask.bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer
        };
        Answer::of(&in_time(read).await)
    }

    /// Sends all requests before it reads the first answer.
    pub(crate) async fn burst(&self, asks: &[Ask]) -> Vec<Answer> {
        let mut streams = Vec::new();
        for _ in asks {
            streams.push(in_time(TcpStream::connect(self.gateway.address())).await.unwrap());
        }
        for (stream, ask) in streams.iter_mut().zip(asks) {
            stream.write_all(&ask.bytes()).await.unwrap();
        }
        let mut answers = Vec::new();
        for mut stream in streams {
            let mut answer = Vec::new();
            in_time(stream.read_to_end(&mut answer)).await.unwrap();
            answers.push(Answer::of(&answer));
        }
        answers
    }

    /// The first bytes of an answer that does not end, with its connection.
    pub(crate) async fn open(&self, ask: &Ask) -> (String, TcpStream) {
        let mut stream = TcpStream::connect(self.gateway.address()).await.unwrap();
        stream.write_all(&ask.bytes()).await.unwrap();
        let mut text = String::new();
        while !text.contains("\n\n") && !text.contains("\r\n0\r\n") && !text.contains("content-length") {
            let mut piece = vec![0; 4096];
            let read = in_time(stream.read(&mut piece)).await.unwrap();
            assert!(read > 0, "it ended: {text}");
            text.push_str(std::str::from_utf8(&piece[..read]).unwrap());
        }
        (text, stream)
    }

    /// Makes a task with the key `key`; returns its id.
    pub(crate) async fn task(&self, key: &'static str, tool: &str) -> String {
        let made = self.send(&Ask::call(key, tool, &json!({}))).await;
        made.json()["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{}", made.text())).to_owned()
    }

    pub(crate) async fn session(&self, key: &'static str) -> String {
        self.session_of(key).await
    }

    /// Opens a session of 2025-11-25; returns its id.
    pub(crate) async fn session_of(&self, key: &str) -> String {
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" },
        });
        let opened = self.send(&Ask::session(key, None, "initialize", &params)).await;
        opened.header("mcp-session-id").unwrap_or_else(|| panic!("{opened:?}")).to_owned()
    }
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) verb: &'static str,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Ask {
    fn of(key: &str, headers: &[(&str, &str)], body: String) -> Self {
        let usual = [
            ("Host", "localhost"),
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
        ];
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut headers: Vec<_> = usual.iter().chain(headers).map(own).collect();
        headers.push(("Authorization".to_owned(), format!("Bearer {key}")));
        Self { verb: "POST", target: PATH.to_owned(), headers, body }
    }

    /// A request of 2026-07-28 whose client takes tasks.
    pub(crate) fn new(key: &str, method: &str, params: Value) -> Self {
        Self::declaring(key, method, params, &json!({ "elicitation": {}, "extensions": { EXTENSION: {} } }))
    }

    pub(crate) fn declaring(key: &str, method: &str, mut params: Value, capabilities: &Value) -> Self {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        });
        let name = ["name", "uri", "taskId"].into_iter().find_map(|key| params[key].as_str().map(str::to_owned));
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string();
        let mut ask = Self::of(key, &[("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method)], body);
        ask.headers.extend(name.map(|name| ("Mcp-Name".to_owned(), name)));
        ask
    }

    pub(crate) fn call(key: &str, tool: &str, arguments: &Value) -> Self {
        Self::new(key, "tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    /// A request of 2025-11-25.
    pub(crate) fn session(key: &str, session: Option<&str>, method: &str, params: &Value) -> Self {
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string();
        let session: Vec<_> = session.iter().map(|id| ("Mcp-Session-Id", *id)).collect();
        Self::of(key, &session, body)
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends it to another target.
    pub(crate) fn at(self, target: &str) -> Self {
        Self { target: target.to_owned(), ..self }
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(found, _)| !found.eq_ignore_ascii_case(name));
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\nConnection: close\r\n", self.verb, self.target);
        let (mut headers, mut body) = (self.headers.clone(), self.body.clone().into());
        if self.target == PATH {
            (headers, body) = hostile_twin::written(&headers, body, "up");
        }
        for (name, value) in headers {
            write!(text, "{name}: {value}\r\n").unwrap();
        }
        write!(text, "Content-Length: {}\r\n\r\n", body.len()).unwrap();
        [text.as_bytes(), &body].concat()
    }
}

/// An answer as it came, but for the time of day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("a whole head");
        let head = head.lines().filter(|line| !line.starts_with("date:")).collect::<Vec<_>>().join("\n");
        Self { head, body: body.to_owned() }
    }

    pub(crate) fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find_map(|(found, value)| (found == name).then_some(value))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        format!("{}\n\n{}", self.head, self.body)
    }

    /// `200 -32603 rate_limited`, `401∅`.
    pub(crate) fn summary(&self) -> String {
        if self.body.is_empty() {
            return format!("{}∅", self.status());
        }
        let json = self.json();
        let error = &json["error"];
        match (error["code"].as_i64(), error["data"]["reason"].as_str()) {
            (Some(code), Some(reason)) => format!("{} {code} {reason}", self.status()),
            (Some(code), None) => format!("{} {code}", self.status()),
            (None, _) => format!("{} ok", self.status()),
        }
    }
}
