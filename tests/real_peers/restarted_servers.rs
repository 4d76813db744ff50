//! Real servers that lose their sessions: killed and started again under clients of both eras, and under tasks.
//!
//! With any error for an unknown session, at most three calls of each client fail after the server listens again, none
//! runs twice, and no call that ran is reported as not executed. `make restarted-servers` runs earlier releases of the
//! SDKs too, for 45 s each.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use support::peers::install::Peers;
use support::peers::process::Child;
use support::ports::reserved_address;
use support::session_client::TestGateway;
use support::wire_client::{Flavour, WireClient};

/// Names how many seconds each server is called after it listens again; a long run sets it.
const LONG: &str = "TASKGATE_RESTARTED_SECONDS";
/// How long it is by default.
const SHORT: Duration = Duration::from_secs(8);
/// Between two calls of one client.
const PAUSE: Duration = Duration::from_secs(1);
/// Calls of one client that may fail once the server listens again.
const FAILED_MAX: usize = 3;

/// A server that is started again.
#[derive(Clone, Copy)]
struct Restarted {
    name: &'static str,
    /// In the folder of the peers.
    program: &'static str,
    arguments: &'static [&'static str],
    path: &'static str,
}

const fn of(name: &'static str, program: &'static str, arguments: &'static [&'static str]) -> Restarted {
    Restarted { name, program, arguments, path: "/mcp" }
}

const INSTALLED: [Restarted; 3] = [
    of("mcp 1", "py-legacy/bin/python", &["restarted_server.py"]),
    of("FastMCP 4", "py-modern/bin/python", &["restarted_server.py", "--fastmcp"]),
    of("TypeScript 1", "node", &["restarted_server.mjs"]),
];

const OTHERS: [Restarted; 9] = [
    // It leads from `/mcp` to `/mcp/`.
    Restarted { path: "/mcp/", ..of("mcp 1.8", "earlier/mcp-1.8/bin/python", &["restarted_server.py"]) },
    of("mcp 1.16", "earlier/mcp-1.16/bin/python", &["restarted_server.py"]),
    of("mcp 1.22", "earlier/mcp-1.22/bin/python", &["restarted_server.py"]),
    of("mcp 2", "py-modern/bin/python", &["restarted_server.py"]),
    of("FastMCP 2", "py-fastmcp2/bin/python", &["restarted_server.py", "--fastmcp"]),
    of("FastMCP 3", "py-legacy/bin/python", &["restarted_server.py", "--fastmcp"]),
    of("TypeScript 1.12", "node", &["earlier/ts-1.12/restarted_server.mjs"]),
    of("TypeScript 1.20", "node", &["earlier/ts-1.20/restarted_server.mjs"]),
    of("TypeScript 2", "node", &["asking_ts_server.mjs"]),
];

/// One client's answers to its calls, by nonce.
#[derive(Debug, Default)]
struct Told {
    answered: Vec<String>,
    /// Those that are said not to have run.
    not_run: Vec<String>,
    /// The outcomes of those that failed once the server listened again.
    failed: Vec<String>,
}

/// Calls one after the other until it is stopped; a client whose session is unknown opens another one.
async fn calls(
    (name, flavour, declares_tasks): (&'static str, Flavour, bool),
    address: SocketAddr,
    (listens, stop): (Arc<AtomicBool>, Arc<AtomicBool>),
) -> Told {
    let mut client = WireClient { path: "/mcp", ..WireClient::new(flavour) };
    assert!(opened(&mut client, address).await, "{name} has its session");
    let mut told = Told::default();
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        let nonce = format!("{name}-{count}");
        let was_up = listens.load(Ordering::Relaxed);
        let mut params = json!({"name": "count", "arguments": {"nonce": nonce}});
        if declares_tasks && client.flavour != Flavour::Extension {
            params["task"] = json!({});
        }
        let answer = client.ask(address, "tools/call", params).await;
        if answer.status == Some(404) {
            opened(&mut client, address).await;
        }
        let message = answer.json();
        let outcome =
            match message["result"]["taskId"].as_str().or_else(|| message["result"]["task"]["taskId"].as_str()) {
                Some(task) => settled(&client, address, task).await,
                None => message,
            };
        match outcome["error"]["data"]["executed"].as_str() {
            _ if outcome["result"].is_object() && outcome["result"]["isError"] != json!(true) => {
                told.answered.push(nonce)
            }
            executed => {
                if was_up {
                    told.failed.push(outcome.to_string());
                }
                if executed == Some("no") {
                    told.not_run.push(nonce);
                }
            }
        }
        sleep(PAUSE).await;
    }
    told
}

/// Opens a session, and says so: a request before that ends earlier servers of the Python SDK.
async fn opened(client: &mut WireClient, address: SocketAddr) -> bool {
    let is_open = client.open(address).await;
    if is_open && client.flavour != Flavour::Extension {
        client.ask(address, "notifications/initialized", json!({})).await;
    }
    is_open
}

/// How a task ends, as its call would have been answered.
async fn settled(client: &WireClient, address: SocketAddr, task: &str) -> Value {
    loop {
        let seen = client.ask(address, "tasks/get", json!({"taskId": task})).await.json();
        match seen["result"]["status"].as_str() {
            Some("working" | "input_required") => sleep(Duration::from_millis(20)).await,
            Some("completed") => return json!({"result": {}}),
            Some(_) if client.flavour == Flavour::Extension => return json!({"error": seen["result"]["error"]}),
            Some(_) => return client.ask(address, "tasks/result", json!({"taskId": task})).await.json(),
            None => return seen,
        }
    }
}

async fn launch(server: Restarted, peers: &Peers, address: SocketAddr, ledger: &Path) -> Child {
    let Restarted { name, program, arguments, .. } = server;
    let port = address.port().to_string();
    let ledger = ledger.display().to_string();
    let all = arguments.iter().copied().chain(["--ledger", &ledger, "--port", &port]);
    let mut child =
        Child::start(&format!("restarted-{}", name.replace(' ', "-")), peers.command(program, all)).unwrap();
    child.line("listening").await.unwrap();
    child
}

async fn check(server: Restarted, peers: &Peers, long: Duration) -> String {
    let name = server.name;
    let (folder, address) = (tempfile::tempdir().unwrap(), reserved_address());
    let ledger = folder.path().join("ledger");
    let mut child = launch(server, peers, address, &ledger).await;
    let gate = TestGateway::open("", &format!("http://{address}{}", server.path), "").await;
    let (listens, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let clients = [
        ("modern", Flavour::Extension, false),
        ("session", Flavour::Core(None), false),
        ("task", Flavour::Core(None), true),
    ];
    let names = clients.each_ref().map(|(name, ..)| *name);
    let tracker = TaskTracker::new();
    let calling: Vec<_> = clients
        .into_iter()
        .map(|client| tracker.spawn(calls(client, gate.gateway.address(), (Arc::clone(&listens), Arc::clone(&stop)))))
        .collect();
    let made = |least: usize| {
        let ledger = ledger.clone();
        async move {
            while std::fs::read_to_string(&ledger).unwrap_or_default().lines().count() < least {
                sleep(PAUSE).await;
            }
        }
    };
    support::peers::in_time(made(6)).await;
    child.kill().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let _child = launch(server, peers, address, &ledger).await;
    listens.store(true, Ordering::Relaxed);
    sleep(long).await;
    stop.store(true, Ordering::Relaxed);
    let ran = std::fs::read_to_string(&ledger).unwrap();
    let mut runs: HashMap<&str, usize> = HashMap::new();
    ran.lines().for_each(|nonce| *runs.entry(nonce).or_default() += 1);
    let twice: Vec<_> = runs.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "{name}: ran twice: {twice:?}");
    let mut line = format!("{name}:");
    for (calling, client) in calling.into_iter().zip(names) {
        let told = calling.await.unwrap();
        let ran = std::fs::read_to_string(&ledger).unwrap();
        let lied: Vec<_> = told.not_run.iter().filter(|nonce| ran.lines().any(|line| line == **nonce)).collect();
        assert!(lied.is_empty(), "{name}, {client}: ran, and is said not to have: {lied:?}");
        let missing: Vec<_> = told.answered.iter().filter(|nonce| ran.lines().all(|line| line != **nonce)).collect();
        assert!(missing.is_empty(), "{name}, {client}: answered, and did not run: {missing:?}");
        assert!(told.failed.len() <= FAILED_MAX, "{name}, {client}: {:#?}", told.failed);
        assert!(!told.answered.is_empty());
        line += &format!(" {client} {} answered, {} failed after it listened;", told.answered.len(), told.failed.len());
    }
    line
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_each_sdk_loses_at_most_three_calls_over_a_restart_and_runs_none_twice() {
    let Some(peers) = Peers::find("servers that are started again") else { return };
    for server in INSTALLED {
        check(server, &peers, SHORT).await;
    }
}

/// `make restarted-servers`.
#[tokio::test(flavor = "multi_thread")]
async fn servers_of_two_years_of_releases_lose_at_most_three_calls_over_a_restart() {
    let Ok(seconds) = std::env::var(LONG) else { return };
    let Some(peers) = Peers::find("servers of earlier releases that are started again") else { return };
    for server in OTHERS.into_iter().chain(INSTALLED) {
        let line = check(server, &peers, Duration::from_secs(seconds.parse().unwrap())).await;
        println!("{line}");
    }
}
