//! A gateway in front of the demo server and of an odd one, and a client that speaks in bytes.

use std::net::{Ipv4Addr, SocketAddr};

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use support::hostile_twin;
use support::scripted::{ScriptedServer, WAIT_MAX};
use taskgate::app::Gateway;
use taskgate::config;
use taskgate::demo::DemoServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::odd::Odd;

pub(crate) struct Gate {
    pub(crate) odd: Odd,
    gateway: Gateway,
    _folder: tempfile::TempDir,
    _stop: DropGuard,
    /// The other servers of endpoints, where the test runs at one.
    _hostile: [Option<ScriptedServer>; 2],
}

impl Gate {
    /// Serves the demo server at `/demo/mcp` and the odd one at `/odd/mcp`. Only calls of `slow_report` become tasks, and
    /// `confirm_delete` is only run as a task: the response to any other tool's call does not depend on the machine's speed.
    pub(crate) async fn start() -> Self {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let demo = DemoServer::start(anywhere, &tracker, stop.clone()).await.unwrap();
        let odd = Odd::start(&tracker, stop.clone()).await;
        let (demo_section, hostile) = hostile_twin::section("demo", "/demo/mcp", &demo.url()).await;
        let (odd_section, other) = hostile_twin::section("odd", "/odd/mcp", &odd.url).await;
        let text = format!(
            "[store]\nkind = \"memory\"\n[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
             {demo_section}[upstreams.demo.tasks]\ngrace = \"30s\"\n\
             [[upstreams.demo.tools]]\nmatch = \"confirm_delete\"\nmode = \"required\"\n\
             [[upstreams.demo.tools]]\nmatch = \"greet\"\nmode = \"never\"\n\
             [[upstreams.demo.tools]]\nmatch = \"crash\"\nmode = \"never\"\n\
             [[upstreams.demo.tools]]\nmatch = \"slow_report\"\ngrace = \"50ms\"\n\
             {odd_section}[[upstreams.odd.tools]]\nmatch = \"late*\"\nmode = \"always\"\n"
        );
        let mut config = config::parse("test.toml", &text, &|_| None).unwrap().config;
        let folder = tempfile::tempdir().unwrap();
        config.folder = folder.path().to_path_buf();
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let gateway = Gateway::start(config, metrics).await.unwrap();
        Self { odd, gateway, _folder: folder, _stop: stop.drop_guard(), _hostile: [hostile, other] }
    }

    /// Sends bytes on a connection of their own and reads the answer to its end.
    pub(crate) async fn exchange(&self, bytes: &[u8]) -> Answer {
        let address = self.gateway.address();
        let read = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer
        };
        Answer::of(&tokio::time::timeout(WAIT_MAX, read).await.expect("an answer"))
    }

    pub(crate) async fn send(&self, ask: &Ask) -> Answer {
        self.exchange(&ask.bytes()).await
    }

    /// The result of a request that succeeds.
    pub(crate) async fn result(&self, ask: &Ask) -> Value {
        let answer = self.send(ask).await;
        let mut message: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer.status, 200, "{message}");
        assert!(message["result"].is_object(), "{message}");
        message["result"].take()
    }
}

/// One request: header lines and a body.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) path: &'static str,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

const VERSION: &str = "MCP-Protocol-Version";
const METHOD: &str = "Mcp-Method";
const NAME: &str = "Mcp-Name";

/// The version's text, and the capabilities of a client that takes tasks.
pub(crate) const MODERN: &str = "2026-07-28";

pub(crate) fn with_tasks() -> Value {
    json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } })
}

/// `_meta` of a well-made request.
pub(crate) fn meta(capabilities: &Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    })
}

impl Ask {
    /// A request with id 7 of a client that takes tasks; `params` gain `_meta` where they have none.
    pub(crate) fn new(method: &str, mut params: Value) -> Self {
        if params.get("_meta").is_none() {
            params["_meta"] = meta(&with_tasks());
        }
        let name = ["name", "uri", "taskId"].into_iter().find_map(|key| params[key].as_str().map(str::to_owned));
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        let ask = Self::raw(method, body.to_string());
        match name.filter(|name| !name.is_empty() && name.bytes().all(|byte| (b' '..=b'~').contains(&byte))) {
            Some(name) => ask.with(NAME, &name),
            None => ask,
        }
    }

    /// The headers of a request for `method` around a body that is up to the test.
    pub(crate) fn raw(method: &str, body: impl Into<Vec<u8>>) -> Self {
        let usual = [
            ("Host", "localhost"),
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            (VERSION, MODERN),
            (METHOD, method),
        ];
        let headers = usual.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        Self { path: "/demo/mcp", headers, body: body.into() }
    }

    pub(crate) fn call(tool: &str, arguments: Value) -> Self {
        Self::new("tools/call", json!({ "name": tool, "arguments": arguments }))
    }

    pub(crate) fn at_odd(self) -> Self {
        Self { path: "/odd/mcp", ..self }
    }

    /// Adds a header line, beside any of the same name.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(found, _)| !found.eq_ignore_ascii_case(name));
        self
    }

    /// Replaces a header line.
    pub(crate) fn set(self, name: &str, value: &str) -> Self {
        self.without(name).with(name, value)
    }

    /// Replaces text in the body; it must be there.
    pub(crate) fn edit(self, from: &str, to: &str) -> Self {
        let text = String::from_utf8(self.body).unwrap();
        assert!(text.contains(from), "{from} is not in {text}");
        Self { body: text.replacen(from, to, 1).into_bytes(), ..self }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("POST {} HTTP/1.1\r\nConnection: close\r\n", self.path).into_bytes();
        let upstream = self.path.trim_matches('/').trim_end_matches("/mcp");
        let (headers, body) = hostile_twin::written(&self.headers, self.body.clone().into(), upstream);
        for (name, value) in headers {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// A message as it stands on the wire; `deny_unknown_fields` is half of the check.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Reply<'a> {
    jsonrpc: &'a str,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<ErrorObject>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ErrorObject {
    code: i64,
    message: String,
    #[serde(rename = "data")]
    _data: Option<Value>,
}

impl Answer {
    fn of(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head") + 4;
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if is_chunked { dechunked(&bytes[end..]) } else { bytes[end..].to_vec() };
        Self { status, head, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find_map(|(found, value)| found.eq_ignore_ascii_case(name).then_some(value.trim()))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// `200 ok id=7`, `400 -32600`, `202∅`: status, code and id, where the answer has the shape it must have.
    pub(crate) fn summary(&self) -> String {
        assert!(self.header("mcp-session-id").is_none(), "MOD-21: no session is given out");
        if self.body.is_empty() {
            return format!("{}∅", self.status);
        }
        assert_eq!(self.header("content-type"), Some("application/json"), "{}", self.head);
        let reply: Reply<'_> = serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert_eq!(reply.jsonrpc, "2.0");
        assert!(!self.text().contains(r#""id":null"#), "MCP has no null id");
        let what = match (&reply.result, &reply.error) {
            (Some(_), None) => "ok".to_owned(),
            (None, Some(error)) => {
                assert!(!error.message.is_empty());
                error.code.to_string()
            }
            _ => panic!("neither result nor error: {}", self.text()),
        };
        let id = reply.id.map_or_else(String::new, |id| format!(" id={}", id.get()));
        format!("{} {what}{id}", self.status)
    }
}

fn dechunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        body.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 2 + size + 2..];
    }
    body
}

/// The name of a row, its request, its answer.
pub(crate) type Row<'a> = (&'a str, Ask, &'a str);

/// Sends all rows to one gateway and reports every one that is wrong.
pub(crate) async fn check_rows(rows: &[Row<'_>]) {
    let gate = Gate::start().await;
    // Opens the server's session, so that no row's call waits for it and becomes a task.
    gate.send(&Ask::new("tools/list", json!({}))).await;
    let mut wrong = Vec::new();
    for (name, ask, expected) in rows {
        let answer = gate.send(ask).await;
        let found = answer.summary();
        if found != *expected {
            wrong.push(format!("{name}: {found}, not {expected}: {}", answer.text()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
