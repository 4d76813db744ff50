//! A desktop host: starts `taskgate wrap` and speaks to it over pipes, a message a line.

use std::fs;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::processes::{self, marked};

/// The longest that anything may take.
const WAIT_MAX: Duration = Duration::from_secs(60);
const MODERN: &str = "2026-07-28";

pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT_MAX, future).await.expect("it takes too long")
}

/// The wrapped program, as arguments of a command line.
fn demo() -> Vec<String> {
    ["--", env!("CARGO_BIN_EXE_taskgate"), "demo-server"].map(str::to_owned).to_vec()
}

/// The same as a bad server, with the faults named.
pub(crate) fn faulty_demo(faults: &str) -> Vec<String> {
    ["--", support::faulty_demo(), &format!("--faults={faults}")].map(str::to_owned).to_vec()
}

/// Killed when dropped.
pub(crate) struct Host {
    pub(crate) child: Child,
    to: Option<ChildStdin>,
    from: Option<BufReader<ChildStdout>>,
    /// Messages that came while another one was awaited.
    aside: Vec<Value>,
    /// How many lines were arrays.
    pub(crate) arrays: usize,
    dir: TempDir,
}

impl Host {
    pub(crate) fn new(options: &[&str]) -> Self {
        Self::with(options, &demo(), &[])
    }

    pub(crate) fn with(options: &[&str], wrapped: &[String], env: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        Self::launch(options, wrapped, env, dir, log.into())
    }

    /// One that writes all log lines to this output, and not into its folder.
    pub(crate) fn tracing_to(options: &[&str], log: Stdio) -> Self {
        Self::launch(options, &demo(), &[("TASKGATE_LOG", "trace")], tempfile::tempdir().unwrap(), log)
    }

    fn launch(options: &[&str], wrapped: &[String], env: &[(&str, &str)], dir: TempDir, log: Stdio) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
        command.env_remove("TASKGATE_LOG").envs(env.iter().copied()).env("MARK", dir.path());
        command.arg("wrap").args(options).args(wrapped);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let (to, from) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        Self { child, to, from, aside: Vec::new(), arrays: 0, dir }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub(crate) async fn write(&mut self, text: &str) {
        self.write_bytes(text.as_bytes()).await;
    }

    pub(crate) async fn write_bytes(&mut self, bytes: &[u8]) {
        in_time(self.to.as_mut().unwrap().write_all(bytes)).await.unwrap();
    }

    /// The same, to one that may have gone.
    pub(crate) async fn try_write(&mut self, text: &str) {
        let _ = in_time(self.to.as_mut().unwrap().write_all(text.as_bytes())).await;
    }

    pub(crate) async fn send(&mut self, message: &Value) {
        self.write(&format!("{message}\n")).await;
    }

    /// The next line. Any other output is no message, and a mistake.
    pub(crate) async fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = in_time(self.from.as_mut().unwrap().read_line(&mut line)).await.unwrap();
        if read == 0 {
            return None;
        }
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        self.arrays += usize::from(message.is_array());
        let mut messages = if let Value::Array(messages) = message { messages } else { vec![message] };
        assert!(messages.iter().all(|message| message["jsonrpc"] == "2.0"), "{line}");
        let first = messages.swap_remove(0);
        self.aside.extend(messages);
        Some(first)
    }

    /// The next message that `wanted` is about; others are kept.
    pub(crate) async fn find(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            if let Some(at) = self.aside.iter().position(&wanted) {
                return self.aside.remove(at);
            }
            let Some(message) = self.line().await else { panic!("it ended: {}", self.log()) };
            if wanted(&message) {
                return message;
            }
            self.aside.push(message);
        }
    }

    /// Messages that came beside those that were waited for.
    pub(crate) fn aside(&self) -> &[Value] {
        &self.aside
    }

    /// The answer to the request `id`.
    pub(crate) async fn answer(&mut self, id: u64) -> Value {
        self.find(|message| message["id"] == id && message.get("method").is_none()).await
    }

    /// Asks in the session.
    pub(crate) async fn ask(&mut self, id: u64, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
    }

    pub(crate) async fn result(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.ask(id, method, params).await;
        let mut answer = self.answer(id).await;
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].take()
    }

    pub(crate) async fn note(&mut self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    pub(crate) async fn initialize(&mut self) -> Value {
        let capabilities = json!({ "elicitation": {}, "sampling": {} });
        let who = json!({ "name": "host", "version": "1" });
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": who });
        let result = self.result(0, "initialize", params).await;
        self.note("notifications/initialized", json!({})).await;
        result
    }

    /// Closes the standard input.
    pub(crate) fn leave(&mut self) {
        self.to = None;
    }

    /// Stops to read.
    pub(crate) fn deafen(&mut self) {
        self.from = None;
    }

    pub(crate) fn signal(&self, name: &str) {
        assert!(processes::signal(self.child.id().unwrap(), name));
    }

    /// Waits for its end; returns the rest of its output.
    pub(crate) async fn ended(&mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        if let Some(from) = &mut self.from {
            in_time(from.read_to_string(&mut rest)).await.unwrap();
        }
        (in_time(self.child.wait()).await.unwrap(), rest)
    }

    /// Its descendants that run, without itself.
    pub(crate) fn processes(&self) -> Vec<u32> {
        marked(self.dir.path()).into_iter().filter(|id| Some(*id) != self.child.id()).collect()
    }

    /// Waits until its log holds a text.
    pub(crate) async fn until_it_says(&self, text: &str) {
        in_time(async {
            while !self.log().contains(text) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    }

    /// Waits until nothing is left of the server.
    pub(crate) async fn until_nothing_is_left(&self) {
        in_time(async {
            while !self.processes().is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    }

    pub(crate) fn has_a_server(&self) -> bool {
        !self.processes().is_empty()
    }

    /// Memory that it has in use, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }
}

/// Parameters of a request without a session.
pub(crate) fn alone(mut params: Value, has_tasks: bool) -> Value {
    let mut capabilities = json!({ "elicitation": {}, "sampling": {} });
    if has_tasks {
        capabilities["extensions"] = json!({ "io.modelcontextprotocol/tasks": {} });
    }
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    params
}

pub(crate) fn greet() -> Value {
    json!({ "name": "greet", "arguments": { "name": "Ada" } })
}

pub(crate) fn slow(seconds: f64) -> Value {
    json!({ "name": "slow_report", "arguments": { "seconds": seconds, "steps": 2 } })
}

pub(crate) fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}"))
}
