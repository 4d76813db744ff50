//! The program in a process of its own, and plain requests to it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use support::processes;
use support::standalone::gate::StartedProgram;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::upstream::{BodySender, ScriptedServer, SeenRequest, answer, in_time};

/// The program, started with a file. Killed when dropped.
pub(crate) struct Program {
    child: Child,
    pub(crate) clients: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) metrics: Option<SocketAddr>,
    log: watch::Receiver<String>,
}

/// A folder with a configuration in it.
pub(crate) struct Folder {
    dir: TempDir,
    head: String,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// `head` stands in the section of the clients' listener, and may open others behind it.
    pub(crate) fn with(head: &str) -> Self {
        Self::of("memory", head)
    }

    /// A gateway that keeps its tasks on disk.
    pub(crate) fn on_disk() -> Self {
        Self::of("disk", "")
    }

    fn of(kind: &str, head: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let head = format!(
            "[store]\nkind = \"{kind}\"\npath = \"{}\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
             [listen]\naddress = \"127.0.0.1:0\"\n{head}\n",
            dir.path().join("data").display()
        );
        Self { dir, head }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes the configuration as an editor does: a new file takes the place of the old.
    pub(crate) fn write(&self, upstreams: &str) {
        self.write_whole(&self.text(upstreams));
    }

    /// The whole configuration.
    pub(crate) fn text(&self, upstreams: &str) -> String {
        format!("{}{upstreams}", self.head)
    }

    pub(crate) fn write_whole(&self, text: &str) {
        let draft = self.dir.path().join("draft");
        fs::write(&draft, text).unwrap();
        fs::rename(draft, self.dir.path().join("taskgate.toml")).unwrap();
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
        command.env_remove("TASKGATE_LOG").args(["serve", "--config"]).arg(self.dir.path().join("taskgate.toml"));
        command
    }
}

/// A block of the configuration that serves `server` at `/NAME/mcp`.
pub(crate) fn block(name: &str, server: &ScriptedServer) -> String {
    format!("[upstreams.{name}]\nurl = \"http://{}/mcp\"\n", server.address)
}

impl Program {
    pub(crate) async fn serve(folder: &Folder) -> Self {
        Self::launch(folder.command()).await
    }

    pub(crate) async fn launch(command: Command) -> Self {
        let StartedProgram { child, clients, admin, metrics, log } = StartedProgram::launch(command).await;
        Self { child, clients, admin, metrics, log }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id().unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        assert!(processes::signal(self.id(), name));
    }

    /// Waits until the log holds a text `count` times.
    pub(crate) async fn says(&self, text: &str, count: usize) {
        let mut log = self.log.clone();
        in_time(async {
            while log.borrow_and_update().matches(text).count() < count {
                log.changed().await.unwrap_or_else(|_| panic!("ended without {text:?}: {}", *self.log.borrow()));
            }
        })
        .await;
    }

    pub(crate) fn log(&self) -> String {
        self.log.borrow().clone()
    }

    /// Waits for the end; the exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        in_time(self.child.wait()).await.unwrap().code()
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        send(self.admin, "GET", target, &[], "").await
    }

    /// The value of a counter; 0 where it was never counted.
    pub(crate) async fn counted(&self, name: &str) -> u64 {
        let page = self.get("/metrics").await.body;
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
    }

    /// Polls a counter until it is so high.
    pub(crate) async fn until_counted(&self, name: &str, count: u64) {
        in_time(async {
            while self.counted(name).await < count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    /// Calls a tool as a client that takes tasks, under a name of its own: the answer is a handle.
    pub(crate) async fn task(&self, path: &str, key: &str) -> Value {
        let mut call = Call::new("tools/call", &json!({"name": "work", "arguments": {"secret": key}}));
        call.headers.push(("idempotency-key", key.to_owned()));
        let answer = call.send(self.clients, path).await;
        answer.json()["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {}", answer.body)).into()
    }

    /// Runs an operator's command: exit code, standard output, standard error.
    pub(crate) async fn operate(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
        command.args(arguments).args(["--admin", &format!("http://{}", self.admin)]).kill_on_drop(true);
        let output = in_time(command.output()).await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// The state of a task.
    pub(crate) async fn status(&self, path: &str, id: &Value) -> Value {
        let call = Call::new("tasks/get", &json!({"taskId": id}));
        call.send(self.clients, path).await.json()["result"]["status"].take()
    }

    /// Polls a task until it stands so.
    pub(crate) async fn until(&self, path: &str, id: &Value, status: &str) {
        in_time(async {
            while self.status(path, id).await != status {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

/// One request of 2026-07-28 by a client that takes tasks, JSON alone for an answer.
pub(crate) struct Call {
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
}

impl Call {
    pub(crate) fn new(method: &str, params: &Value) -> Self {
        Self::declaring(method, params, &json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}))
    }

    /// A call whose client can have no task: it is held.
    pub(crate) fn plain(arguments: &Value) -> Self {
        Self::declaring("tools/call", &json!({"name": "work", "arguments": arguments}), &json!({}))
    }

    pub(crate) fn declaring(method: &str, params: &Value, capabilities: &Value) -> Self {
        let mut params = params.clone();
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        });
        let mut headers = vec![
            ("content-type", "application/json".to_owned()),
            ("accept", "application/json".to_owned()),
            ("mcp-protocol-version", "2026-07-28".to_owned()),
            ("mcp-method", method.to_owned()),
        ];
        let name = params["name"].as_str().or_else(|| params["taskId"].as_str());
        headers.extend(name.map(|name| ("mcp-name", name.to_owned())));
        Self { headers, body: json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string() }
    }

    pub(crate) async fn send(&self, address: SocketAddr, path: &str) -> Answer {
        let headers: Vec<_> = self.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        send(address, "POST", path, &headers, &self.body).await
    }

    /// The whole request as it is sent.
    pub(crate) fn bytes(&self, path: &str) -> Vec<u8> {
        let headers: Vec<_> = self.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        request("POST", path, &headers, &self.body).into_bytes()
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

fn request(method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut request = format!("{method} {target} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "host") {
        request.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    request.push_str(body);
    request
}

/// One request on a connection of its own.
pub(crate) async fn send(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let request = request(method, target, headers, body);
    in_time(async {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    })
    .await
}

/// A server with the one tool `work`, whose calls are the test's to answer.
pub(crate) struct Worker {
    pub(crate) server: ScriptedServer,
    held: Arc<Mutex<Vec<(SeenRequest, BodySender)>>>,
}

impl Worker {
    pub(crate) async fn start() -> Self {
        let held: Arc<Mutex<Vec<(SeenRequest, BodySender)>>> = Arc::default();
        let kept = Arc::clone(&held);
        let tools = json!({"tools": [{"name": "work", "inputSchema": {"type": "object"}}]});
        let server = ScriptedServer::start(move |seen| match seen.rpc() {
            "tools/list" => Some(answer(seen, &tools)),
            "tools/call" => {
                let (events, reply) = BodySender::open();
                kept.lock().push((seen.clone(), events));
                Some(reply)
            }
            _ => None,
        })
        .await;
        Self { server, held }
    }

    /// Waits until so many calls have come, answered ones included.
    pub(crate) async fn calls(&self, count: usize) {
        self.server.world.nth(count - 1, SeenRequest::is_call).await;
    }

    /// Has all calls that wait ask this.
    pub(crate) fn ask_all(&self, params: &Value) {
        for (n, (_, events)) in self.held.lock().iter().enumerate() {
            let id = format!("ask-{n}");
            events.message(&json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params}));
        }
    }

    /// Answers all calls that wait.
    pub(crate) fn answer_all(&self) {
        for (seen, events) in self.held.lock().drain(..) {
            events.result(&seen, &json!({"content": [{"type": "text", "text": "done"}]}));
        }
    }

    pub(crate) fn sessions_opened(&self) -> usize {
        self.server.world.count("initialize")
    }
}
