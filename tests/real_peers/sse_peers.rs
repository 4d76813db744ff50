//! Real servers over HTTP+SSE, and real clients in front of the gateway: a call, a task, a cancel, questions, a crash
//! of the server in mid-call, 50 calls at once; and the report of `taskgate probe` about each.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod peers;

use support::standalone::client;
use support::standalone::gate;

use client::{StandaloneClient, fault, text};
use futures_util::future::join_all;
use gate::{GatewayProcess, in_time};
use peers::{Peers, Server};
use serde_json::{Value, json};

/// One server: its start, and its calls.
struct Row {
    /// The program, below the folder of the peers, and its arguments; it learns its port in its own way.
    command: Vec<&'static str>,
    fast: (&'static str, Value, &'static str),
    slow: (&'static str, Value, &'static str),
    /// The arguments of a slow call that its client cancels. Some servers run it to its end nevertheless, and serve no other
    /// request of the session meanwhile.
    cancelled: Value,
    /// The arguments of a slow call whose server is killed.
    long: Value,
    /// A tool that asks, the member of the form that it reads, and the text of its answer.
    asks: Option<(&'static str, &'static str, &'static str)>,
    /// The name that a probe makes up for it.
    probed: &'static str,
}

async fn check(row: Row) {
    let Some(peers) = Peers::find() else { return };
    let mut server = Server::start(&peers, &row.command, "/sse").await;
    let upstream = format!("url = {:?}\n[upstreams.up.tasks]\ngrace = \"300ms\"\n", server.url);
    let gate = GatewayProcess::start(tempfile::tempdir().unwrap(), &upstream).await;
    let url = format!("http://{}/up/mcp", gate.address);
    real_clients(&peers, &row, &url).await;
    fifty_at_once(&row, &gate).await;
    crash(&peers, &row, &gate, &mut server).await;
    peers::probe(&server.url, &row.fast, "sse", row.probed).await;
}

/// Clients of all kinds: with tasks of the extension, without any, with sessions.
async fn real_clients(peers: &Peers, row: &Row, url: &str) {
    let (fast, fast_arguments, fast_text) = &row.fast;
    let (slow, slow_arguments, slow_text) = &row.slow;
    let arguments = (&fast_arguments.to_string(), &slow_arguments.to_string());
    let cancelled = row.cancelled.to_string();
    for driver in [["node", "client_ts.mjs"], ["py-modern/bin/python", "client_fastmcp4.py"]] {
        let facts = peers.drive(&[driver[0], driver[1], url, "call", slow, arguments.1]).await;
        assert_eq!((&facts["outcome"], &facts["task"]), (&json!("result"), &json!(true)), "{driver:?} {facts}");
        assert!(facts["text"].as_str().unwrap().contains(slow_text), "{driver:?} {facts}");
        let facts = peers.drive(&[driver[0], driver[1], url, "cancel", slow, &cancelled]).await;
        assert!(facts.to_string().contains("cancelled"), "{driver:?} {facts}");
    }
    for driver in [["node", "client_ts_plain.mjs"], ["py-modern/bin/python", "client_py2.py"]] {
        let facts = peers.drive(&[driver[0], driver[1], url, "call", fast, arguments.0]).await;
        assert_eq!(facts["outcome"], "result", "{driver:?} {facts}");
        assert!(facts["text"].as_str().unwrap().contains(fast_text), "{driver:?} {facts}");
    }
    for driver in [["node", "session_ts1.mjs"], ["py-legacy/bin/python", "session_py.py"]] {
        let case = json!({ "tool": fast, "arguments": fast_arguments }).to_string();
        let facts = peers.drive(&[driver[0], driver[1], url, "fast", &case]).await;
        assert_eq!(facts["outcome"], "ok", "{driver:?} {facts}");
        assert!(facts["text"].as_str().unwrap().contains(fast_text), "{driver:?} {facts}");
        let case = json!({ "tool": slow, "arguments": slow_arguments }).to_string();
        let facts = peers.drive(&[driver[0], driver[1], url, "progress", &case]).await;
        assert_eq!(facts["outcome"], "ok", "{driver:?} {facts}");
        assert!(facts["notified"].as_u64().unwrap() >= 1, "{driver:?} {facts}");
        let Some((asks, member, holds)) = row.asks else { continue };
        let arguments = json!({ "question": "who?" });
        let case = json!({ "tool": asks, "arguments": arguments, "answer": { member: "Ada" } }).to_string();
        let facts = peers.drive(&[driver[0], driver[1], url, "elicit", &case]).await;
        assert_eq!(facts["outcome"], "ok", "{driver:?} {facts}");
        // Some servers ask for roots as well.
        assert!(facts["asked"].as_u64().unwrap() >= 1, "{driver:?} {facts}");
        assert!(facts["text"].as_str().unwrap().contains(holds), "{driver:?} {facts}");
    }
}

async fn fifty_at_once(row: &Row, gate: &GatewayProcess) {
    let (tool, arguments, holds) = &row.fast;
    for client in [StandaloneClient::session(gate).await, StandaloneClient::stateless(gate)] {
        let client = &client;
        let calls = (1..51).map(|id| async move {
            let answer = client.call(id, tool, arguments.clone()).await;
            assert_eq!(answer["id"], id);
            assert!(text(&answer).contains(holds), "{answer}");
        });
        join_all(calls).await;
    }
}

/// A client with a call in progress learns that it is lost; the restarted server is served as before.
async fn crash(peers: &Peers, row: &Row, gate: &GatewayProcess, server: &mut Server) {
    let (fast, slow) = (&row.fast, &row.slow);
    let (session, tasks) = (StandaloneClient::session(gate).await, StandaloneClient::stateless(gate).with_tasks());
    let handle = tasks.call(1, slow.0, row.long.clone()).await;
    let id = handle["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {handle}")).to_owned();
    let params = json!({ "name": slow.0, "arguments": row.long, "_meta": { "progressToken": "p" } });
    let mut running = session.ask(2, "tools/call", params).await;
    let progress = running.next().await.unwrap();
    assert_eq!(progress["method"], "notifications/progress", "{progress}");
    server.kill().await;
    let (lost, _) = running.answer().await;
    assert_eq!((&fault(&lost)["reason"], &fault(&lost)["executed"]), (&json!("upstream_closed"), &json!("unknown")));
    let task = in_time(async {
        loop {
            let (task, _) = tasks.ask(3, "tasks/get", json!({ "taskId": id })).await.answer().await;
            if task["result"]["status"] != "working" {
                return task;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(task["result"]["status"], "failed", "{task}");
    server.restart(peers, &row.command).await;
    // Neither takes tasks: to connect again may take longer than the grace period.
    for client in [session, StandaloneClient::stateless(gate)] {
        let answer = client.call(4, fast.0, fast.1.clone()).await;
        assert!(text(&answer).contains(fast.2), "{answer}\n{}", gate.log());
    }
}

#[tokio::test]
async fn server_everything() {
    check(Row {
        command: vec!["node", "node_modules/@modelcontextprotocol/server-everything/dist/index.js", "sse"],
        fast: ("echo", json!({ "message": "hi" }), "Echo: hi"),
        slow: ("trigger-long-running-operation", json!({ "duration": 2, "steps": 4 }), "Duration: 2 seconds"),
        cancelled: json!({ "duration": 15, "steps": 60 }),
        long: json!({ "duration": 600, "steps": 2000 }),
        asks: Some(("trigger-elicitation-request", "name", "Ada")),
        probed: "everything",
    })
    .await;
}

fn python(
    command: Vec<&'static str>,
    asks: Option<(&'static str, &'static str, &'static str)>,
    probed: &'static str,
) -> Row {
    Row {
        command,
        fast: ("greet", json!({ "name": "Ada" }), "Hello, Ada!"),
        slow: ("slow", json!({ "seconds": 2, "steps": 4 }), "worked 2 s"),
        cancelled: json!({ "seconds": 15, "steps": 60 }),
        long: json!({ "seconds": 600, "steps": 2000 }),
        asks,
        probed,
    }
}

#[tokio::test]
async fn fastmcp_3() {
    let command = vec!["py-legacy/bin/python", "fastmcp_server.py", "--sse", "--port"];
    check(python(command, Some(("ask", "value", "accept")), "fastmcp-upstream")).await;
}

#[tokio::test]
async fn fastmcp_4() {
    let command = vec!["py-modern/bin/python", "fastmcp4_server.py", "--sse", "--port"];
    check(python(command, None, "fastmcp4-upstream")).await;
}

/// The Python SDK as it was when there was no other transport over HTTP.
#[tokio::test]
async fn the_python_sdk_1_2() {
    check(python(vec!["py-old/bin/python", "old_sse_server.py", "--port"], None, "old-sse-upstream")).await;
}

#[tokio::test]
async fn a_probe_knows_real_servers_over_streamable_http() {
    let Some(peers) = Peers::find() else { return };
    let everything =
        vec!["node", "node_modules/@modelcontextprotocol/server-everything/dist/index.js", "streamableHttp"];
    let greet = || ("greet", json!({ "name": "Ada" }), "Hello, Ada!");
    let server = Server::start(&peers, &everything, "/mcp").await;
    let echo = ("echo", json!({ "message": "hi" }), "Echo: hi");
    let report = peers::probe(&server.url, &echo, "streamable-http", "everything").await;
    assert_eq!(peers::served(&report), ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"], "{report}");
    let server = Server::start(&peers, &["py-legacy/bin/python", "fastmcp_server.py", "--port"], "/mcp").await;
    let report = peers::probe(&server.url, &greet(), "streamable-http", "fastmcp-upstream").await;
    assert!(!peers::served(&report).contains(&"2026-07-28".to_owned()), "{report}");
    let server = Server::start(&peers, &["py-modern/bin/python", "fastmcp4_server.py", "--port"], "/mcp").await;
    let report = peers::probe(&server.url, &greet(), "streamable-http", "fastmcp4-upstream").await;
    assert!(peers::served(&report).contains(&"2026-07-28".to_owned()), "{report}");
}

#[tokio::test]
async fn a_probe_knows_real_servers_over_stdio() {
    let Some(peers) = Peers::find() else { return };
    let everything = ["node", "node_modules/@modelcontextprotocol/server-everything/dist/index.js", "stdio"];
    let echo = ("echo", json!({ "message": "hi" }), "Echo: hi");
    let report = peers.probe_command(&everything, &echo, "everything").await;
    assert!(peers::served(&report).contains(&"2024-11-05".to_owned()), "{report}");
    let greet = ("greet", json!({ "name": "Ada" }), "Hello, Ada!");
    let server = ["py-legacy/bin/python", "fastmcp_server.py", "--stdio"];
    let report = peers.probe_command(&server, &greet, "fastmcp-upstream").await;
    assert!(peers::served(&report).contains(&"2025-11-25".to_owned()), "{report}");
}
