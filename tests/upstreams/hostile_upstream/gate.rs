//! A gateway with one upstream for each act, and the three kinds of clients.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};
use support::hostile_twin;
use support::scripted::{ScriptedServer, WAIT_MAX, in_time};
use taskgate::app::Gateway;
use taskgate::config;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::server::{Act, Server};

/// The most of a result that is kept.
pub(crate) const RESULT_BYTES_MAX: usize = 64 << 10;

/// How the server of each act is configured.
struct ServerEra {
    prefix: &'static str,
    version: &'static str,
    tasks: &'static str,
}

const IN_SESSIONS: ServerEra = ServerEra { prefix: "u", version: "2025-11-25", tasks: "always" };
const STATELESS: ServerEra = ServerEra { prefix: "m", version: "2026-07-28", tasks: "never" };
/// The gateway makes each call itself: for tasks, and for clients with sessions.
const STATELESS_TASKS: ServerEra = ServerEra { prefix: "x", version: "2026-07-28", tasks: "always" };

pub(crate) struct Gate {
    pub(crate) server: Server,
    pub(crate) gateway: Gateway,
    _folder: TempDir,
    _hostile: Vec<ScriptedServer>,
}

impl Gate {
    /// Calls of clients with tasks become tasks at once, and run so long at most.
    pub(crate) async fn with(acts: Vec<Act>, deadline: &str) -> Self {
        Self::set(acts, &format!("deadline = \"{deadline}\"")).await
    }

    /// The same by a server of each era. The course over time is the same at both.
    pub(crate) async fn of_each_era(acts: &[Act], deadline: &str) -> [Self; 2] {
        let keys = format!("deadline = \"{deadline}\"");
        let stateless = ServerEra { prefix: IN_SESSIONS.prefix, ..STATELESS_TASKS };
        [Self::open(acts.to_vec(), &keys, &[IN_SESSIONS]).await, Self::open(acts.to_vec(), &keys, &[stateless]).await]
    }

    /// `keys` stand in the section of each upstream.
    pub(crate) async fn set(acts: Vec<Act>, keys: &str) -> Self {
        Self::open(acts, keys, &[IN_SESSIONS]).await
    }

    /// The same acts by servers without sessions, too.
    pub(crate) async fn of_both_eras(acts: Vec<Act>, deadline: &str) -> Self {
        Self::open(acts, &format!("deadline = \"{deadline}\""), &[IN_SESSIONS, STATELESS, STATELESS_TASKS]).await
    }

    async fn open(acts: Vec<Act>, keys: &str, eras: &[ServerEra]) -> Self {
        let count = acts.len();
        let server = Server::start(acts).await;
        let mut text = format!(
            "[store]\nkind = \"memory\"\n[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
             [limits]\nresult_bytes_max = \"{RESULT_BYTES_MAX}\"\n"
        );
        let mut hostile = Vec::new();
        for (n, ServerEra { prefix, version, tasks }) in (0..count).flat_map(|n| eras.iter().map(move |era| (n, era))) {
            let (name, url) = (format!("{prefix}{n}"), format!("http://{}/{n}", server.address));
            let (section, other) = hostile_twin::section(&name, &format!("/{name}"), &url).await;
            hostile.extend(other);
            let fixed = format!("protocol = \"{version}\"\n{keys}\n[upstreams.{name}.tasks]\nmode = \"{tasks}\"\n");
            write!(text, "{section}{fixed}").unwrap();
        }
        let mut config = config::parse("test.toml", &text, &|_| None).unwrap().config;
        let folder = tempfile::tempdir().unwrap();
        config.folder = folder.path().to_path_buf();
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let gateway = in_time(Gateway::start(config, metrics)).await.unwrap();
        Self { server, gateway, _folder: folder, _hostile: hostile }
    }

    pub(crate) async fn connect(&self, ask: &Ask) -> TcpStream {
        let mut stream = TcpStream::connect(self.gateway.address()).await.unwrap();
        stream.write_all(ask.0.as_bytes()).await.unwrap();
        stream
    }

    pub(crate) async fn send(&self, ask: &Ask) -> Answer {
        let mut stream = self.connect(ask).await;
        let mut bytes = Vec::new();
        // A connection that is cut may end in any way.
        let _ = in_time(stream.read_to_end(&mut bytes)).await;
        Answer::of(&bytes)
    }

    /// The response to a client without tasks.
    pub(crate) async fn plain(&self, row: usize) -> Answer {
        self.send(&Ask::modern(row, "tools/call", json!({ "name": "t", "arguments": {} }), &json!({}))).await
    }

    /// The same of a server without sessions: nothing is kept of the answer.
    pub(crate) async fn stateless_pipe(&self, row: usize) -> Answer {
        let (params, upstream) = (json!({ "name": "t", "arguments": {} }), format!("{}{row}", STATELESS.prefix));
        self.send(&Ask::modern_at(&upstream, "tools/call", params, &json!({}))).await
    }

    /// The outcome of a client's task at such a server.
    pub(crate) async fn stateless_task(&self, row: usize) -> String {
        self.task_at(&format!("{}{row}", STATELESS_TASKS.prefix), WAIT_MAX).await
    }

    /// The response to a session client at such a server.
    pub(crate) async fn bridged(&self, row: usize) -> Answer {
        self.piped_at(&format!("{}{row}", STATELESS_TASKS.prefix)).await
    }

    /// The outcome of a session client's task.
    pub(crate) async fn core_task(&self, row: usize) -> Answer {
        let session = match self.session(row).await {
            Ok(session) => session,
            Err(answer) => return answer,
        };
        let ask = async |method: &str, params: Value| {
            let message = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
            self.send(&Ask::session(row, Some(&session), &message)).await
        };
        let handle = ask("tools/call", json!({ "name": "t", "arguments": {}, "task": {} })).await;
        match handle.json()["result"]["task"]["taskId"].as_str() {
            None => handle,
            Some(id) => ask("tasks/result", json!({ "taskId": id })).await,
        }
    }

    /// The first response to a client with tasks.
    pub(crate) async fn handle(&self, row: usize) -> Answer {
        self.send(&Ask::modern(row, "tools/call", json!({ "name": "t", "arguments": {} }), &with_tasks())).await
    }

    pub(crate) async fn get(&self, row: usize, id: &str) -> Value {
        let seen = self.send(&Ask::modern(row, "tasks/get", json!({ "taskId": id }), &with_tasks())).await;
        seen.json()["result"].clone()
    }

    /// The final state of such a client's task.
    pub(crate) async fn task(&self, row: usize) -> String {
        self.task_within(row, WAIT_MAX).await
    }

    pub(crate) async fn task_within(&self, row: usize, patience: Duration) -> String {
        self.task_at(&format!("{}{row}", IN_SESSIONS.prefix), patience).await
    }

    async fn task_at(&self, upstream: &str, patience: Duration) -> String {
        let ask = |method, params| Ask::modern_at(upstream, method, params, &with_tasks());
        let handle = self.send(&ask("tools/call", json!({ "name": "t", "arguments": {} }))).await;
        let Some(id) = handle.json()["result"]["taskId"].as_str().map(str::to_owned) else { return handle.summary() };
        let settled = async {
            loop {
                let task = self.send(&ask("tasks/get", json!({ "taskId": id }))).await.json()["result"].take();
                if task["status"] != "working" {
                    return task;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let task = tokio::time::timeout(patience, settled).await.expect("it settles in time");
        let status = task["status"].as_str().unwrap();
        match task.get("error") {
            Some(error) => format!("{status} {}", words(error)),
            None => format!("{status} {}", task["result"]["structuredContent"]),
        }
    }

    /// The response to a session client, in a session of its own.
    pub(crate) async fn piped(&self, row: usize) -> Answer {
        self.piped_at(&format!("{}{row}", IN_SESSIONS.prefix)).await
    }

    async fn piped_at(&self, upstream: &str) -> Answer {
        let session = match self.session_at(upstream).await {
            Ok(session) => session,
            Err(answer) => return answer,
        };
        let call =
            json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": { "name": "t", "arguments": {} } });
        self.send(&Ask::session_at(upstream, Some(&session), &call)).await
    }

    pub(crate) async fn session(&self, row: usize) -> Result<String, Answer> {
        self.session_at(&format!("{}{row}", IN_SESSIONS.prefix)).await
    }

    async fn session_at(&self, upstream: &str) -> Result<String, Answer> {
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" },
        });
        let initialize = json!({ "jsonrpc": "2.0", "id": 7, "method": "initialize", "params": params });
        let opened = self.send(&Ask::session_at(upstream, None, &initialize)).await;
        opened.header("mcp-session-id").map(str::to_owned).ok_or(opened)
    }
}

fn with_tasks() -> Value {
    json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } })
}

/// One request, as it is written.
pub(crate) struct Ask(String);

impl Ask {
    fn new(upstream: &str, headers: &[(&str, &str)], body: &Value) -> Self {
        let headers: Vec<_> = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (headers, body) = hostile_twin::written(&headers, Bytes::from(body.to_string()), upstream);
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        Self(format!(
            "POST /{upstream} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{headers}Content-Length: {}\r\n\r\n{}",
            body.len(),
            std::str::from_utf8(&body).unwrap()
        ))
    }

    pub(crate) fn modern(row: usize, method: &str, params: Value, capabilities: &Value) -> Self {
        Self::modern_at(&format!("{}{row}", IN_SESSIONS.prefix), method, params, capabilities)
    }

    fn modern_at(upstream: &str, method: &str, mut params: Value, capabilities: &Value) -> Self {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        });
        let name = params["name"].as_str().or_else(|| params["taskId"].as_str()).unwrap_or_default();
        let headers = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method), ("Mcp-Name", name)];
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        Self::new(upstream, &headers, &body)
    }

    pub(crate) fn session(row: usize, session: Option<&str>, body: &Value) -> Self {
        Self::session_at(&format!("{}{row}", IN_SESSIONS.prefix), session, body)
    }

    fn session_at(upstream: &str, session: Option<&str>, body: &Value) -> Self {
        let session: Vec<_> = session.iter().map(|id| ("Mcp-Session-Id", *id)).collect();
        Self::new(upstream, &session, body)
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Whether it ended as its head announced.
    is_whole: bool,
}

impl Answer {
    fn of(bytes: &[u8]) -> Self {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            return Self { head: String::new(), body: bytes.to_vec(), is_whole: false };
        };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut answer = Self { head, body: bytes[end + 4..].to_vec(), is_whole: true };
        if answer.header("transfer-encoding") == Some("chunked") {
            (answer.body, answer.is_whole) = dechunked(&answer.body);
        } else if let Some(length) = answer.header("content-length") {
            answer.is_whole = length.parse() == Ok(answer.body.len());
        }
        answer
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find_map(|(found, value)| (found == name).then_some(value))
    }

    /// The message, or the last one of a stream.
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        let last = text.rsplit("data: ").next().unwrap_or_default();
        serde_json::from_str(last.trim()).unwrap_or_default()
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }

    /// `200 fine {"a":1}`, `200 -32603 upstream_closed unknown`, `cut`; `as it came` where there is no message in it.
    pub(crate) fn summary(&self) -> String {
        if !self.is_whole {
            return "cut".to_owned();
        }
        let status = self.head.split(' ').nth(1).unwrap_or_default();
        let message = self.json();
        let member = |name: &str| message.get(name).filter(|value| !value.is_null());
        match (member("error"), member("result")) {
            (Some(error), None) => format!("{status} {}", words(error)),
            (None, Some(result)) => format!("{status} fine {}", result["structuredContent"]),
            (Some(_), Some(_)) | (None, None) => format!("{status} as it came"),
        }
    }
}

/// `-32603 upstream_http_status unknown 503 7000ms`.
fn words(error: &Value) -> String {
    let data = &error["data"];
    let mut words = error["code"].to_string();
    for member in ["reason", "executed"] {
        words += &data[member].as_str().map(|word| format!(" {word}")).unwrap_or_default();
    }
    words += &data["httpStatus"].as_u64().map(|status| format!(" {status}")).unwrap_or_default();
    words + &data["retryAfterMs"].as_u64().map(|wait| format!(" {wait}ms")).unwrap_or_default()
}

/// The body, and whether its last chunk came.
fn dechunked(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let Ok(size) = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap_or_default(), 16) else { break };
        if size == 0 {
            return (body, true);
        }
        let Some(chunk) = bytes.get(end + 2..end + 2 + size) else { break };
        body.extend_from_slice(chunk);
        bytes = bytes.get(end + 2 + size + 2..).unwrap_or_default();
    }
    (body, false)
}
