//! Runs every case of every client with every server once, through one gateway.

use std::fmt::Write as _;
use std::path::Path;

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::{Value, json};

use super::cells;
use super::driver::{Driven, Pair};
use super::gateway::Gateway;
use super::install::Peers;
use super::table::table;
use super::upstream::{PeerServer, Program};

const CLIENTS: [&str; 6] = ["ts1", "ts2", "py1", "py2", "fastmcp3", "fastmcp4"];

/// How many clients are driven at the same time; most of what they do is to wait.
const CLIENTS_AT_ONCE: usize = 8;

const CASES: [&str; 14] = [
    "fast",
    "progress",
    "tool_error",
    "protocol_error",
    "elicit",
    "sample",
    "roots",
    "subscribe",
    "list_changed",
    "log",
    "cancel",
    "task",
    "task_ask",
    "task_cancel",
];

/// Those for servers that are started anew for each session.
const CASES_OF_PROGRAMS: [&str; 6] = ["fast", "progress", "elicit", "sample", "cancel", "task"];

/// Servers by their name at the gateway, and what the table calls them.
const UPSTREAMS: [(&str, Program); 5] = [
    ("everything", Program::Everything),
    ("fastmcp", Program::FastMcp),
    ("ts_store", Program::TypeScript),
    ("everything-stdio", Program::Everything),
    ("fastmcp-stdio", Program::FastMcp),
];

/// Longer than the gateway is silent, and shorter than the call.
const PATIENCE_MS: u64 = 17_000;

/// One client's cases with one upstream.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) client: &'static str,
    upstream: &'static str,
    failures: Vec<String>,
}

impl cells::Row for Row {
    const MATRIX: &'static str = "real clients over HTTP+SSE";
    const UPSTREAMS: usize = UPSTREAMS.len();

    async fn run(peers: &Peers) -> Result<Vec<Self>, String> {
        run(peers).await
    }

    fn failures(&self) -> Vec<String> {
        self.failures.iter().map(|why| format!("{} × {}: {why}", self.client, self.upstream)).collect()
    }
}

/// What a driver is given for a call that says something once, and nothing for 20 s.
fn held() -> Value {
    let arguments = json!({ "seconds": 20, "steps": 1 });
    let expect = json!({ "outcome": "ok", "text": "worked 20 s in 1 steps", "notified": 2 });
    json!({ "tool": "slow", "arguments": arguments, "timeout_ms": PATIENCE_MS, "expect": expect })
}

/// The case less what a client does not show over this transport, without a gateway in between either: the TypeScript
/// clients lose progress that comes along with its call's answer.
fn shown(client: &str, case: &str, given: &Value) -> Value {
    let mut given = given.clone();
    if case == "progress" && client.starts_with("ts") {
        given["expect"].as_object_mut().expect("every case expects something").remove("last");
    }
    given
}

async fn drive(peers: &Peers, url: &str, client: &'static str, (upstream, program): (&'static str, Program)) -> Row {
    let held = held();
    let is_program = upstream.ends_with("-stdio");
    let chosen = if is_program { &CASES_OF_PROGRAMS[..] } else { &CASES[..] };
    let given = |case: &&'static str| table().case(client, program.name(), case).ok().map(|given| (*case, given));
    let mut cases: Vec<_> = chosen.iter().filter_map(given).collect();
    assert!(cases.len() >= 5, "{client} × {upstream} has few cases: {cases:?}");
    if program == Program::FastMcp {
        cases.push(("held", &held));
    }
    let driven = Pair { client, name: &format!("sse-{upstream}"), url }.drive(peers, &cases, None).await;
    let judge = |(case, given): (&'static str, &Value), driven: Driven| {
        let given = shown(client, case, given);
        let judged = driven.and_then(|facts| table().judge(client, case, &given, &facts));
        judged.err().map(|why| format!("{case}: {why}"))
    };
    let failures = cases.into_iter().zip(driven).filter_map(|(case, driven)| judge(case, driven)).collect();
    Row { client, upstream, failures }
}

async fn run(peers: &Peers) -> Result<Vec<Row>, String> {
    let start = |program| PeerServer::start(program, peers, "sse");
    let servers = tokio::try_join!(start(Program::Everything), start(Program::FastMcp), start(Program::TypeScript))?;
    let mut config = String::new();
    for server in [&servers.0, &servers.1, &servers.2] {
        let _ = write!(config, "[upstreams.{}]\nurl = \"{}\"\n\n", server.program.name(), server.url());
    }
    let everything = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
    for (name, command) in [
        ("everything-stdio", ["node", everything, "stdio"]),
        ("fastmcp-stdio", ["py-legacy/bin/python", "fastmcp_server.py", "--stdio"]),
    ] {
        let [program, script, word] = command;
        let folder = peers.command("", [""; 0]).as_std().get_current_dir().map(Path::to_owned);
        let folder = folder.ok_or("the peers have a folder")?;
        let _ = write!(
            config,
            "[upstreams.{name}]\ncommand = [{:?}, {script:?}, {word:?}]\ncwd = {folder:?}\n\n",
            folder.join(program)
        );
    }
    let gateway = Gateway::start("sse-gateway", &config, UPSTREAMS.len()).await?;
    let url = |upstream: &str| {
        let stem = gateway.url(upstream).strip_suffix("mcp").map(str::to_owned);
        format!("{}sse", stem.expect("the path ends with mcp"))
    };
    let pairs = CLIENTS.into_iter().flat_map(|client| UPSTREAMS.map(|upstream| (client, upstream)));
    let runs = pairs.map(|(client, upstream)| {
        let url = url(upstream.0);
        async move { drive(peers, &url, client, upstream).await }
    });
    Ok(stream::iter(runs).buffered(CLIENTS_AT_ONCE).collect().await)
}
