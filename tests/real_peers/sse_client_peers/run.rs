//! Runs cases of every client with every server once, through one gateway.

use std::fmt::Write as _;
use std::path::Path;

use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::{Value, json};

use super::cells;
use super::coverage::{CellIndex, Coverage, Sizes};
use super::driver::{Driven, Pair};
use super::gateway::Gateway;
use super::install::Peers;
use super::table::table;
use super::upstream::{PeerServer, Program};

const CLIENTS: [&str; 6] = ["ts1", "ts2", "py1", "py2", "fastmcp3", "fastmcp4"];

/// How many clients are driven at the same time; most of their time they wait.
const CLIENTS_AT_ONCE: usize = 8;

/// A call that is silent for longer than the gateway.
const HELD: &str = "held";

const CASES: [&str; 15] = [
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
    HELD,
];

/// The cases for servers that are started for each session.
const CASES_OF_PROGRAMS: [&str; 6] = ["fast", "progress", "elicit", "sample", "cancel", "task"];

/// A server, by its name at the gateway.
#[derive(Clone, Copy, Debug)]
struct Upstream {
    name: &'static str,
    program: Program,
    is_stdio: bool,
}

const UPSTREAMS: [Upstream; 5] = [
    Upstream { name: "everything", program: Program::Everything, is_stdio: false },
    Upstream { name: "fastmcp", program: Program::FastMcp, is_stdio: false },
    Upstream { name: "ts_store", program: Program::TypeScript, is_stdio: false },
    Upstream { name: "everything-stdio", program: Program::Everything, is_stdio: true },
    Upstream { name: "fastmcp-stdio", program: Program::FastMcp, is_stdio: true },
];

/// Longer than the gateway is silent, and shorter than the call.
const PATIENCE_MS: u64 = 17_000;
/// Cases that each client has with each server, at least.
const CASES_MIN: usize = 5;

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

/// A driver's arguments for a call with one message, and nothing for 20 s.
fn held() -> Value {
    let arguments = json!({ "seconds": 20, "steps": 1 });
    let expect = json!({ "outcome": "ok", "text": "worked 20 s in 1 steps", "notified": 2 });
    json!({ "tool": "slow", "arguments": arguments, "timeout_ms": PATIENCE_MS, "expect": expect })
}

/// The case without the events that a client loses over this transport, without a gateway in between either: the
/// TypeScript clients lose progress that comes along with its call's answer.
fn shown(client: &str, case: &str, given: &Value) -> Value {
    let mut given = given.clone();
    if case == "progress" && client.starts_with("ts") {
        given["expect"].as_object_mut().expect("every case expects something").remove("last");
    }
    given
}

/// The case as its driver is given it; `None` where the client or the server has no such case.
fn given(client: &str, upstream: Upstream, case: &str) -> Option<Value> {
    match case {
        HELD => (upstream.program == Program::FastMcp).then(held),
        _ if upstream.is_stdio && !CASES_OF_PROGRAMS.contains(&case) => None,
        _ => table().case(client, upstream.program.name(), case).ok().cloned(),
    }
}

/// The cells that run.
fn coverage() -> Coverage {
    let sizes = Sizes { clients: CLIENTS.len(), servers: UPSTREAMS.len(), cases: CASES.len() };
    for (client, upstream) in
        CLIENTS.iter().flat_map(|client| UPSTREAMS.iter().map(move |upstream| (*client, *upstream)))
    {
        let possible = CASES.iter().filter(|case| given(client, upstream, case).is_some()).count();
        assert!(possible >= CASES_MIN, "{client} has {possible} cases with {}", upstream.name);
    }
    Coverage::of(sizes, |cell| given(CLIENTS[cell.client], UPSTREAMS[cell.server], CASES[cell.case]).is_some())
}

/// Drives the client with this index through its cases at the server with that index.
async fn drive(peers: &Peers, url: &str, client: usize, server: usize, coverage: &Coverage) -> Row {
    let included = |case: &usize| coverage.includes(CellIndex { client, server, case: *case });
    let (client, upstream) = (CLIENTS[client], UPSTREAMS[server]);
    let cases = CASES.into_iter().enumerate().filter(|(case, _)| included(case));
    let given: Vec<_> = cases.filter_map(|(_, case)| Some((case, given(client, upstream, case)?))).collect();
    let cases: Vec<_> = given.iter().map(|(case, given)| (*case, given)).collect();
    let driven = Pair { client, name: &format!("sse-{}", upstream.name), url }.drive(peers, &cases, None).await;
    let judge = |(case, given): (&'static str, &Value), driven: Driven| {
        let given = shown(client, case, given);
        let judged = driven.and_then(|facts| table().judge(client, case, &given, &facts));
        judged.err().map(|why| format!("{case}: {why}"))
    };
    let failures = cases.into_iter().zip(driven).filter_map(|(case, driven)| judge(case, driven)).collect();
    Row { client, upstream: upstream.name, failures }
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
        let words = peers.words(command[0], &command[1..]);
        let folder = peers.command("", [""; 0]).as_std().get_current_dir().map(Path::to_owned);
        let folder = folder.ok_or("the peers have a folder")?;
        let _ = write!(config, "[upstreams.{name}]\ncommand = {words:?}\ncwd = {folder:?}\n\n");
    }
    let gateway = Gateway::start("sse-gateway", &config, UPSTREAMS.len()).await?;
    let url = |upstream: &str| {
        let stem = gateway.url(upstream).strip_suffix("mcp").map(str::to_owned);
        format!("{}sse", stem.expect("the path ends with mcp"))
    };
    let coverage = &coverage();
    let pairs = (0..CLIENTS.len() * UPSTREAMS.len()).map(|pair| (pair / UPSTREAMS.len(), pair % UPSTREAMS.len()));
    let runs = pairs.map(|(client, server)| {
        let url = url(UPSTREAMS[server].name);
        async move { drive(peers, &url, client, server, coverage).await }
    });
    Ok(stream::iter(runs).buffered(CLIENTS_AT_ONCE).collect().await)
}
