//! Real servers over stdio, each as it comes: a call, a task, a cancel, a crash in mid-call, 50 calls at once; by clients
//! with a session and without.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "other tests do more with their clients")]
#[path = "stdio/client.rs"]
mod client;
#[allow(dead_code, reason = "other tests look closer at the processes")]
#[path = "stdio/gate.rs"]
mod gate;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use client::{Client, fault, text};
use futures_util::future::join_all;
use gate::{Gate, in_time};
use serde_json::{Value, json};

/// One server: how it is started, a fast call and what its answer holds, a slow call if it has any.
struct Row {
    command: Vec<String>,
    tool: &'static str,
    arguments: Value,
    holds: &'static str,
    slow: Option<(&'static str, Value)>,
}

/// Where the peers are; `None`, with a word about it, where nobody installed them.
fn peers() -> Option<PathBuf> {
    let found = std::env::var_os("TASKGATE_PEERS").map(PathBuf::from);
    if found.is_none() {
        // Past the harness, which shows nothing of tests that pass.
        let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("SKIPPED: TASKGATE_PEERS is not set\n"));
    }
    found.map(|folder| folder.canonicalize().unwrap())
}

fn node(peers: &Path, package: &str, arguments: &[&str]) -> Vec<String> {
    let script = peers.join("node_modules/@modelcontextprotocol").join(package).join("dist/index.js");
    let words = [peers.join("node").display().to_string(), script.display().to_string()];
    words.into_iter().chain(arguments.iter().map(|word| (*word).to_owned())).collect()
}

fn python(peers: &Path, venv: &str, arguments: &[&str]) -> Vec<String> {
    let program = peers.join(venv).join("bin/python").display().to_string();
    std::iter::once(program).chain(arguments.iter().map(|word| (*word).to_owned())).collect()
}

async fn start(peers: &Path, row: &Row) -> Gate {
    let dir = tempfile::tempdir().unwrap();
    let memory = dir.path().join("memory.json");
    let upstream = format!(
        "command = {:?}\ncwd = {peers:?}\nenv = {{ MARK = {:?}, MEMORY_FILE_PATH = {memory:?} }}\n\
         [upstreams.up.tasks]\nmode = \"always\"\n",
        row.command,
        dir.path(),
    );
    Gate::start(dir, &upstream).await
}

async fn check(row: Row) {
    let Some(peers) = peers() else { return };
    let gate = start(&peers, &row).await;
    let call = |client: Client, id: u32| {
        let row = &row;
        async move {
            let answer = client.call(id, row.tool, row.arguments.clone()).await;
            assert!(text(&answer).contains(row.holds), "{answer}\n{client:?}");
        }
    };
    for client in [Client::session(&gate).await, Client::stateless(&gate)] {
        call(client.clone(), 1).await;
        join_all((2..52).map(|id| call(client.clone(), id))).await;
    }
    check_task(&gate, row.tool, &row.arguments, row.holds).await;
    let Some((tool, arguments)) = &row.slow else { return };
    check_task(&gate, tool, arguments, "").await;
    let client = Client::session(&gate).await;
    let params = json!({ "name": tool, "arguments": arguments });
    let mut cancelled = client.ask(60, "tools/call", params.clone()).await;
    client.note("notifications/cancelled", json!({ "requestId": 60 })).await;
    let rest = in_time(cancelled.next()).await;
    assert!(rest.as_ref().is_none_or(|message| message.get("result").is_none()), "{rest:?}");
    call(client.clone(), 61).await;
    let mut running = client.ask(62, "tools/call", params).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    for program in gate.programs() {
        std::process::Command::new("kill").args(["-KILL", &program.to_string()]).status().unwrap();
    }
    let (lost, _) = running.answer().await;
    assert_eq!(fault(&lost)["exitSignal"], 9, "{lost}");
    call(client, 63).await;
}

async fn check_task(gate: &Gate, tool: &str, arguments: &Value, holds: &str) {
    let client = Client::stateless(gate).with_tasks();
    let handle = client.call(70, tool, arguments.clone()).await;
    let id = handle["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {handle}")).to_owned();
    let task = in_time(async {
        loop {
            let (answer, _) = client.ask(71, "tasks/get", json!({ "taskId": id })).await.answer().await;
            if answer["result"]["status"] != "working" {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(task["result"]["status"], "completed", "{task}");
    assert!(task["result"]["result"]["content"][0]["text"].as_str().unwrap().contains(holds), "{task}");
}

#[tokio::test]
async fn server_everything() {
    let Some(peers) = peers() else { return };
    check(Row {
        command: node(&peers, "server-everything", &["stdio"]),
        tool: "echo",
        arguments: json!({ "message": "hi" }),
        holds: "Echo: hi",
        slow: Some(("trigger-long-running-operation", json!({ "duration": 3, "steps": 3 }))),
    })
    .await;
}

#[tokio::test]
async fn server_filesystem() {
    let Some(peers) = peers() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().canonicalize().unwrap().join("file.txt");
    fs::write(&file, "hello from a file").unwrap();
    check(Row {
        command: node(&peers, "server-filesystem", &[dir.path().to_str().unwrap()]),
        tool: "read_text_file",
        arguments: json!({ "path": file }),
        holds: "hello from a file",
        slow: None,
    })
    .await;
}

#[tokio::test]
async fn server_memory() {
    let Some(peers) = peers() else { return };
    let entity = json!({ "name": "Ada", "entityType": "person", "observations": ["counts"] });
    check(Row {
        command: node(&peers, "server-memory", &[]),
        tool: "create_entities",
        arguments: json!({ "entities": [entity] }),
        holds: "",
        slow: None,
    })
    .await;
}

#[tokio::test]
async fn server_sequential_thinking() {
    let Some(peers) = peers() else { return };
    check(Row {
        command: node(&peers, "server-sequential-thinking", &[]),
        tool: "sequentialthinking",
        arguments: json!({ "thought": "so", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1 }),
        holds: "thoughtHistoryLength",
        slow: None,
    })
    .await;
}

#[tokio::test]
async fn mcp_server_time() {
    let Some(peers) = peers() else { return };
    check(Row {
        command: python(&peers, "py-modern", &["-m", "mcp_server_time"]),
        tool: "convert_time",
        arguments: json!({ "source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo" }),
        holds: "21:00:00+09:00",
        slow: None,
    })
    .await;
}

#[tokio::test]
async fn mcp_server_git() {
    let Some(peers) = peers() else { return };
    let dir = tempfile::tempdir().unwrap();
    let who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"];
    let commit = [&who[..], &["commit", "-q", "--allow-empty", "-m", "first commit"]].concat();
    for arguments in [vec!["init", "-q"], commit] {
        let done = std::process::Command::new("git").args(arguments).current_dir(dir.path()).status().unwrap();
        assert!(done.success());
    }
    check(Row {
        command: python(&peers, "py-modern", &["-m", "mcp_server_git"]),
        tool: "git_log",
        arguments: json!({ "repo_path": dir.path() }),
        holds: "",
        slow: None,
    })
    .await;
}

async fn fastmcp(venv: &str, script: &str) {
    let Some(peers) = peers() else { return };
    check(Row {
        command: python(&peers, venv, &[script, "--stdio"]),
        tool: "greet",
        arguments: json!({ "name": "Ada" }),
        holds: "Hello, Ada!",
        slow: Some(("slow", json!({ "seconds": 3 }))),
    })
    .await;
}

#[tokio::test]
async fn fastmcp_3() {
    fastmcp("py-legacy", "fastmcp_server.py").await;
}

#[tokio::test]
async fn fastmcp_4() {
    fastmcp("py-modern", "fastmcp4_server.py").await;
}
