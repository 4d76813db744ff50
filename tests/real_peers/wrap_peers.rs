//! Real hosts over stdio, each in front of real servers that `taskgate wrap` stands before: the tools, a fast call, a slow
//! one, which is a task where the host knows tasks and held where it does not.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use support::peers::WAIT_MAX;
use support::peers::install::Peers;
use support::processes;

use std::process::Stdio;
use std::time::Duration;

use processes::marked;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

/// `None`, with a message, where they are not installed.
fn peers() -> Option<Peers> {
    Peers::find("real hosts in front of `taskgate wrap`")
}

/// One server, and its tools.
struct Server {
    command: Vec<String>,
    fast: (&'static str, Value, &'static str),
    slow: (&'static str, Value, &'static str),
}

fn servers(peers: &Peers) -> Vec<Server> {
    let path = |parts: &str| peers.join(parts).display().to_string();
    let everything = Server {
        command: vec![
            path("node"),
            path("node_modules/@modelcontextprotocol/server-everything/dist/index.js"),
            "stdio".to_owned(),
        ],
        fast: ("echo", json!({ "message": "hi" }), "Echo: hi"),
        slow: ("trigger-long-running-operation", json!({ "duration": 3, "steps": 3 }), "Steps: 3."),
    };
    let fastmcp = |venv: &str, script: &str| Server {
        command: peers.words(&format!("{venv}/bin/python"), [path(script).as_str(), "--stdio"]),
        fast: ("greet", json!({ "name": "Ada" }), "Hello, Ada!"),
        slow: ("slow", json!({ "seconds": 3 }), ""),
    };
    vec![everything, fastmcp("py-legacy", "fastmcp_server.py"), fastmcp("py-modern", "fastmcp4_server.py")]
}

/// `taskgate wrap` with a server, as a host's configuration has it.
fn wrapped(server: &Server) -> Vec<String> {
    let own = [support::taskgate(), "wrap", "--grace", "500ms", "--"].map(str::to_owned);
    own.into_iter().chain(server.command.iter().cloned()).collect()
}

/// Runs a host to its end; returns its output.
async fn run(peers: &Peers, mark: &TempDir, program: &str, arguments: &[String]) -> Value {
    let mut command = peers.command(program, arguments);
    command.env("MARK", mark.path()).env("HOME", mark.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = timeout(WAIT_MAX, command.output()).await.expect("the host takes too long").unwrap();
    let (said, log) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {said}\n{log}");
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}\n{log}"))
}

/// No process that a host started outlives it for long.
async fn is_clean(mark: &TempDir) {
    let gone = async {
        while !marked(mark.path()).is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(WAIT_MAX, gone).await.expect("a process is left");
}

/// One host in front of each server.
async fn drive(program: &str, script: &str, kind: &str, knows_tasks: bool) {
    let Some(peers) = peers() else { return };
    for server in servers(&peers) {
        let mark = tempfile::tempdir().unwrap();
        let mut arguments = vec![script.to_owned(), kind.to_owned()];
        for (tool, with, _) in [&server.fast, &server.slow] {
            arguments.extend([(*tool).to_owned(), with.to_string()]);
        }
        arguments.extend(wrapped(&server));
        let facts = run(&peers, &mark, program, &arguments).await;
        assert!(facts["tools"].as_u64().unwrap() > 0, "{facts}");
        assert!(facts["fast"].as_str().unwrap().contains(server.fast.2), "{facts}");
        assert!(facts["slow"].as_str().unwrap().contains(server.slow.2), "{facts}");
        assert_eq!(facts["task"].is_string(), knows_tasks, "{facts}");
        if knows_tasks {
            assert!(facts["as_task"].as_str().unwrap().contains(server.slow.2), "{facts}");
        }
        is_clean(&mark).await;
    }
}

support::async_rows! {
    python_sdk_1_has_its_tasks: drive("py-legacy/bin/python", "wrap_py.py", "sdk", true);
    python_sdk_2_is_held: drive("py-modern/bin/python", "wrap_py.py", "sdk", false);
    fastmcp_4_has_the_extension: drive("py-modern/bin/python", "wrap_py.py", "fastmcp", true);
    typescript_sdk_1_has_its_tasks: drive("node", "wrap_ts.mjs", "ts1", true);
    typescript_sdk_2_is_held: drive("node", "wrap_ts.mjs", "ts2", false);
}

#[tokio::test]
async fn the_inspector_lists_and_calls() {
    let Some(peers) = peers() else { return };
    for server in servers(&peers) {
        let mark = tempfile::tempdir().unwrap();
        let config = mark.path().join("servers.json");
        let command = wrapped(&server);
        let env = json!({ "MARK": mark.path() });
        let peer = json!({ "type": "stdio", "command": command[0], "args": command[1..], "env": env });
        std::fs::write(&config, json!({ "mcpServers": { "peer": peer } }).to_string()).unwrap();
        let launcher = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js";
        let ask = async |what: &[&str]| {
            let config = config.display().to_string();
            let all =
                [&[launcher, "--cli", "--config", &config, "--server", "peer", "--format", "json"], what].concat();
            let arguments: Vec<_> = all.into_iter().map(str::to_owned).collect();
            run(&peers, &mark, "node", &arguments).await["result"].take()
        };
        let tools = ask(&["--method", "tools/list"]).await;
        assert!(!tools["tools"].as_array().unwrap().is_empty(), "{tools}");
        for (tool, with, says) in [&server.fast, &server.slow] {
            let with = with.to_string();
            let call = ask(&["--method", "tools/call", "--tool-name", tool, "--tool-args-json", &with]).await;
            assert!(call["content"][0]["text"].as_str().unwrap().contains(says), "{call}");
        }
        is_clean(&mark).await;
    }
}
