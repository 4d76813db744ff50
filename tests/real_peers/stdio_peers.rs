//! Unmodified servers, over the transports that they speak: a fast call, 50 calls at once, a slow call as a task, a
//! cancel, a crash in mid-call; by clients that write their own messages, with a session and without, by the client of
//! the TypeScript SDK 1 (sessions, tasks of 2025-11-25), and by the one of the Python SDK 2 (2026-07-28).
//!
//! Servers that have no slow tool are slow behind `slow_stdio.py`, which hands calls on later. Each row has one gateway.
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use support::peers::install;
use support::peers::process;
use support::peers::upstream;
use support::processes;
use support::standalone::client;
use support::standalone::gate;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use client::{StandaloneClient, StreamedReply, fault, text};
use futures_util::future::join_all;
use gate::{GatewayProcess, in_time};
use install::Peers;
use process::Child;
use serde_json::{Value, json};
use tempfile::TempDir;
use upstream::{PeerServer, Program};

/// The seconds by which calls are delayed on their way to a slow server, and to a server whose calls are cancelled or lost, even on a
/// busy machine.
const SLOWER_BY: u64 = 2;
const HELD_FOR: u64 = 600;
/// The longest time that a client of an SDK may take for its row.
const ROW_MAX: Duration = Duration::from_secs(100);

/// One server: its address, a fast call and the text of its answer, a slow call if it has any.
struct Row {
    name: &'static str,
    server: Reached,
    tool: &'static str,
    arguments: Value,
    holds: &'static str,
    slow: Option<Slow>,
}

/// A slow tool of the server, which reports its progress.
struct Slow {
    tool: &'static str,
    arguments: Value,
    /// The arguments of a call that is cancelled or lost.
    held: Value,
}

enum Reached {
    Stdio(Vec<String>),
    Http(Program),
}

impl Reached {
    /// Whether broken streams can be resumed by their event ids.
    const fn resumable(&self) -> bool {
        matches!(self, Self::Http(Program::Everything))
    }
}

/// `None`, with a line about it, if they are not installed.
fn folder() -> Option<Peers> {
    Peers::find("real servers over stdio and streamable HTTP")
}

fn node(peers: &Path, package: &str, arguments: &[&str]) -> Reached {
    let script = peers.join("node_modules/@modelcontextprotocol").join(package).join("dist/index.js");
    let words = [peers.join("node").display().to_string(), script.display().to_string()];
    Reached::Stdio(words.into_iter().chain(arguments.iter().map(|word| (*word).to_owned())).collect())
}

fn python(peers: &Peers, venv: &str, arguments: &[&str]) -> Reached {
    Reached::Stdio(peers.words(&format!("{venv}/bin/python"), arguments))
}

/// A gateway in front of a server, and how that is made slow, and lost.
struct Table {
    row: Row,
    peers: Peers,
    gate: GatewayProcess,
    server: Option<PeerServer>,
    /// While this file exists, calls are delayed by the seconds in it.
    switch: Option<PathBuf>,
    _files: TempDir,
}

impl Table {
    async fn set(folder: &Path, row: Row) -> Self {
        let peers = Peers::find("a table").unwrap();
        let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let switch = row.slow.is_none().then(|| files.path().join("slow"));
        let (reached, server) = match &row.server {
            Reached::Stdio(command) => {
                let mut words = Vec::new();
                if let Some(switch) = &switch {
                    let python = folder.join("py-modern/bin/python");
                    let script = folder.join("slow_stdio.py");
                    words.extend([&python, &script, switch].map(|path| path.display().to_string()));
                }
                words.extend(command.clone());
                let memory = files.path().join("memory.json");
                let env = format!("{{ MARK = {:?}, MEMORY_FILE_PATH = {memory:?} }}", dir.path());
                (format!("command = {words:?}\ncwd = {folder:?}\nenv = {env}\n"), None)
            }
            Reached::Http(program) => {
                let server = PeerServer::start(*program, &peers, row.name).await.unwrap();
                (format!("url = {:?}\n", server.url()), Some(server))
            }
        };
        let gate = GatewayProcess::start(dir, &format!("{reached}[upstreams.up.tasks]\nmode = \"always\"\n")).await;
        Self { row, peers, gate, server, switch, _files: files }
    }

    fn make_slow(&self, seconds: Option<u64>) {
        let Some(switch) = &self.switch else { return };
        match seconds {
            Some(seconds) => fs::write(switch, format!("{seconds}\n")).unwrap(),
            None => fs::remove_file(switch).unwrap(),
        }
    }

    /// The slow call: one of the server's own, or the fast one while it is made slow.
    fn slow(&self) -> (&'static str, &Value) {
        self.row.slow.as_ref().map_or((self.row.tool, &self.row.arguments), |slow| (slow.tool, &slow.arguments))
    }

    /// The same for a call that is cancelled or lost.
    fn held(&self) -> (&'static str, &Value) {
        self.row.slow.as_ref().map_or((self.row.tool, &self.row.arguments), |slow| (slow.tool, &slow.held))
    }

    /// Makes such a call, and returns once it has begun: the server reports progress, or the delay has begun.
    async fn hold(&self, client: &StandaloneClient, id: u32) -> StreamedReply {
        self.make_slow(Some(HELD_FOR));
        let (tool, arguments) = self.held();
        let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": "p" } });
        let mut running = client.ask(id, "tools/call", params).await;
        let Some(switch) = &self.switch else {
            let step = running.next().await.unwrap();
            assert_eq!(step["method"], "notifications/progress", "{step}");
            return running;
        };
        in_time(async {
            while !fs::read_to_string(switch).unwrap().contains("waits") {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        running
    }

    async fn call(&self, client: &StandaloneClient, id: u32) {
        let answer = client.call(id, self.row.tool, self.row.arguments.clone()).await;
        assert!(answer["result"]["isError"] != true, "{answer}");
        assert!(text(&answer).contains(self.row.holds), "{answer}\n{client:?}");
    }

    async fn crash(&mut self) {
        if let Some(server) = &mut self.server {
            return server.restart(&self.peers).await.unwrap();
        }
        let programs = self.gate.programs();
        assert!(!programs.is_empty());
        for program in programs {
            processes::signal(program, "KILL");
        }
    }

    /// A slow call as a task of the extension.
    async fn task(&self) {
        let client = StandaloneClient::stateless(&self.gate).with_tasks();
        let (tool, arguments) = self.slow();
        let handle = client.call(70, tool, arguments.clone()).await;
        let id = handle["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {handle}")).to_owned();
        let poll = async || client.ask(71, "tasks/get", json!({ "taskId": id })).await.answer().await.0;
        assert_eq!(handle["result"]["status"], "working", "{handle}");
        let task = in_time(async {
            loop {
                let answer = poll().await;
                if answer["result"]["status"] != "working" {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        assert_eq!(task.await["result"]["status"], "completed");
    }

    async fn cancel(&self, client: &StandaloneClient) {
        let mut cancelled = self.hold(client, 60).await;
        client.note("notifications/cancelled", json!({ "requestId": 60 })).await;
        // Some servers leave the stream open, or continue the call.
        let rest = async {
            while let Some(message) = cancelled.next().await {
                assert!(message.get("result").is_none(), "{message}");
            }
        };
        let _ = tokio::time::timeout(Duration::from_millis(500), rest).await;
    }

    async fn lose(&mut self, client: &StandaloneClient) {
        let mut running = self.hold(client, 62).await;
        let mut last = None;
        self.crash().await;
        while let Some(message) = running.next().await {
            last = Some(message);
        }
        let lost = match last {
            Some(lost) if lost.get("method").is_none() => lost,
            // The stream has event ids, so the gateway leaves it to the client to take it up.
            last => return assert!(self.row.server.resumable(), "{last:?}"),
        };
        assert_eq!(
            (&fault(&lost)["reason"], &fault(&lost)["executed"]),
            (&json!("upstream_closed"), &json!("unknown"))
        );
        if self.server.is_none() {
            assert_eq!(fault(&lost)["exitSignal"], 9, "{lost}");
        }
    }

    /// The whole row with a client of an SDK.
    async fn drive(&mut self, program: &str, script: &str, expected: &Value) {
        let ((tool, slow), (_, held)) = (self.slow(), self.held());
        let row = json!({
            "fast": { "tool": self.row.tool, "arguments": self.row.arguments, "holds": self.row.holds },
            "slow": { "tool": tool, "arguments": slow, "seconds": SLOWER_BY },
            "held": { "tool": tool, "arguments": held, "seconds": HELD_FOR },
            "is_resumable": self.row.server.resumable(),
            "switch": self.switch,
        });
        let command =
            self.peers.command(program, [script, &format!("http://{}/up/mcp", self.gate.address), &row.to_string()]);
        let mut driver = Child::start_talking(&format!("table-{}-{script}", self.row.name), command).unwrap();
        loop {
            let line = driver.next_line(ROW_MAX).await.unwrap().expect("the driver ends with its facts");
            if line == "READY" {
                self.crash().await;
                driver.send("").await.unwrap();
            } else if let Ok(facts) = serde_json::from_str::<Value>(&line)
                && facts.get("client").is_some()
            {
                assert_eq!(&facts, expected, "{}\n{}", self.row.name, self.gate.log());
                return;
            }
        }
    }
}

async fn check(folder: &Path, row: Row) {
    let mut table = Table::set(folder, row).await;
    let client = StandaloneClient::session(&table.gate).await;
    for client in [&client, &StandaloneClient::stateless(&table.gate)] {
        table.call(client, 1).await;
        join_all((2..52).map(|id| table.call(client, id))).await;
    }
    table.make_slow(Some(SLOWER_BY));
    table.task().await;
    table.cancel(&client).await;
    table.lose(&client).await;
    table.make_slow(None);
    table.call(&client, 63).await;
    client.leave().await;
    let facts = json!({ "fast": true, "many": 50, "cancel": "cancelled", "crash": "upstream_closed", "after": true });
    let with = |client: &str, task: Option<&str>| {
        let mut facts = facts.clone();
        facts["client"] = json!(client);
        task.iter().for_each(|task| facts["task"] = json!(task));
        facts
    };
    let mut ts1 = with("ts1", Some("working, completed"));
    if table.row.server.resumable() {
        ts1["crash"] = json!("McpError: MCP error -32001: Request timed out");
    }
    table.drive("node", "table_ts1.mjs", &ts1).await;
    table.drive("py-modern/bin/python", "table_py2.py", &with("py2", None)).await;
}

#[tokio::test]
async fn server_everything_over_stdio() {
    let Some(peers) = folder() else { return };
    let server = node(&peers, "server-everything", &["stdio"]);
    check(&peers, everything("everything-stdio", server)).await;
}

#[tokio::test]
async fn server_everything_over_http() {
    let Some(peers) = folder() else { return };
    check(&peers, everything("everything-http", Reached::Http(Program::Everything))).await;
}

fn everything(name: &'static str, server: Reached) -> Row {
    Row {
        name,
        server,
        tool: "echo",
        arguments: json!({ "message": "hi" }),
        holds: "Echo: hi",
        slow: Some(Slow {
            tool: "trigger-long-running-operation",
            arguments: json!({ "duration": 3, "steps": 3 }),
            held: json!({ "duration": HELD_FOR, "steps": 4 * HELD_FOR }),
        }),
    }
}

#[tokio::test]
async fn server_filesystem() {
    let Some(peers) = folder() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().canonicalize().unwrap().join("file.txt");
    fs::write(&file, "hello from a file").unwrap();
    let row = Row {
        name: "filesystem",
        server: node(&peers, "server-filesystem", &[dir.path().to_str().unwrap()]),
        tool: "read_text_file",
        arguments: json!({ "path": file }),
        holds: "hello from a file",
        slow: None,
    };
    check(&peers, row).await;
}

#[tokio::test]
async fn server_memory() {
    let Some(peers) = folder() else { return };
    let row = Row {
        name: "memory",
        server: node(&peers, "server-memory", &[]),
        tool: "search_nodes",
        arguments: json!({ "query": "Ada" }),
        holds: "entities",
        slow: None,
    };
    check(&peers, row).await;
}

#[tokio::test]
async fn server_sequential_thinking() {
    let Some(peers) = folder() else { return };
    let row = Row {
        name: "sequential-thinking",
        server: node(&peers, "server-sequential-thinking", &[]),
        tool: "sequentialthinking",
        arguments: json!({ "thought": "so", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1 }),
        holds: "thoughtHistoryLength",
        slow: None,
    };
    check(&peers, row).await;
}

#[tokio::test]
async fn mcp_server_time() {
    let Some(peers) = folder() else { return };
    let row = Row {
        name: "time",
        server: python(&peers, "py-modern", &["-m", "mcp_server_time"]),
        tool: "convert_time",
        arguments: json!({ "source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo" }),
        holds: "21:00:00+09:00",
        slow: None,
    };
    check(&peers, row).await;
}

#[tokio::test]
async fn mcp_server_git() {
    let Some(peers) = folder() else { return };
    let dir = tempfile::tempdir().unwrap();
    let who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"];
    let commit = [&who[..], &["commit", "-q", "--allow-empty", "-m", "first commit"]].concat();
    for arguments in [vec!["init", "-q"], commit] {
        let done = std::process::Command::new("git").args(arguments).current_dir(dir.path()).status().unwrap();
        assert!(done.success());
    }
    let row = Row {
        name: "git",
        server: python(&peers, "py-modern", &["-m", "mcp_server_git"]),
        tool: "git_log",
        arguments: json!({ "repo_path": dir.path() }),
        holds: "first commit",
        slow: None,
    };
    check(&peers, row).await;
}

async fn fastmcp(name: &'static str, server: impl FnOnce(&Peers) -> Reached) {
    let Some(peers) = folder() else { return };
    let row = Row {
        name,
        server: server(&peers),
        tool: "greet",
        arguments: json!({ "name": "Ada" }),
        holds: "Hello, Ada!",
        slow: Some(Slow {
            tool: "slow",
            arguments: json!({ "seconds": 3 }),
            held: json!({ "seconds": HELD_FOR, "steps": 4 * HELD_FOR }),
        }),
    };
    check(&peers, row).await;
}

support::async_rows! {
    fastmcp_3_over_stdio:
        fastmcp("fastmcp3-stdio", |peers| python(peers, "py-legacy", &["fastmcp_server.py", "--stdio"]));
    fastmcp_3_over_http: fastmcp("fastmcp3-http", |_| Reached::Http(Program::FastMcp));
    fastmcp_4_over_stdio:
        fastmcp("fastmcp4-stdio", |peers| python(peers, "py-modern", &["fastmcp4_server.py", "--stdio"]));
    fastmcp_4_over_http: fastmcp("fastmcp4-http", |_| Reached::Http(Program::FastMcp4));
}
