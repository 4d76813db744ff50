//! Real clients of 2026-07-28 through the gateway to a real server of the same, without tasks and with tasks of its
//! own.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use super::matrix::cases;
use super::matrix::client;
use super::matrix::tap;
use support::balancer::{BalancedGateways, BalancerMode};
use support::peers::coverage::{CellIndex, Coverage, Sizes};
use support::peers::gateway;
use support::peers::install;
use support::peers::upstream;

use cases::Case;
use client::Client;
use gateway::Gateway;
use install::Peers;
use tap::Tap;
use tokio::runtime::Runtime;
use upstream::{PeerServer, Program};

/// The servers, of which each test has one.
const SERVERS: [Program; 2] = [Program::FastMcp4, Program::FastMcp4Tasks];

/// Their tools ask nothing.
const CASES: [Case; 5] = [Case::Fast, Case::Slow, Case::Cancel, Case::ToolError, Case::ProtocolError];

/// The gateway or gateways of the clients.
enum Front {
    One(Box<Gateway>),
    Balanced(BalancedGateways),
}

impl Front {
    async fn start(balanced: Option<BalancerMode>, name: &str, config: &str) -> Result<Self, String> {
        Ok(match balanced {
            None => Self::One(Box::new(Gateway::start(name, config, 1).await?)),
            Some(mode) => Self::Balanced(BalancedGateways::serving(mode, config).await),
        })
    }

    fn url(&self) -> String {
        match self {
            Self::One(gateway) => gateway.url("up").to_owned(),
            Self::Balanced(gateways) => format!("http://{}/up/mcp", gateways.address()),
        }
    }
}

/// Cases of every client with one server, which has the same tools as the FastMCP server of the matrix.
async fn failures(peers: &Peers, program: Program, balanced: Option<BalancerMode>) -> Result<Vec<String>, String> {
    let server = PeerServer::start(program, peers, "stateless-matrix").await?;
    let tap = Tap::start(server.address).await?;
    let tasks = cases::tasks("up", "fastmcp");
    // The gateway uses 2026-07-28 for all clients of a server with native tasks; at another server some clients would have sessions (UPC-28).
    let protocol = if program == Program::FastMcp4Tasks { "auto" } else { "2026-07-28" };
    let config =
        format!("[upstreams.up]\nurl = \"http://{}/mcp\"\nprotocol = \"{protocol}\"\n\n{tasks}", tap.address());
    let front = Front::start(balanced, &format!("stateless-matrix-{}", program.name()), &config).await?;
    let url = front.url();
    let mut failures = Vec::new();
    let sizes = Sizes { clients: Client::ALL.len(), servers: SERVERS.len(), cases: CASES.len() };
    let call = |cell: CellIndex| Client::ALL[cell.client].call("fastmcp", CASES[cell.case]);
    let coverage = Coverage::of(sizes, |cell| call(cell).is_some());
    let server = SERVERS.iter().position(|server| *server == program).expect("it is one of the servers");
    for (index, client) in Client::ALL.into_iter().enumerate() {
        for (at, case) in CASES.into_iter().enumerate() {
            let cell = CellIndex { client: index, server, case: at };
            let Some(call) = call(cell).filter(|_| coverage.includes(cell)) else { continue };
            let made = client.make(peers, &url, call).await;
            let place = format!("{} × {} × {}", client.title(), program.title(), case.title());
            failures.extend(made.err().map(|why| format!("{place}: {why}")));
        }
    }
    if tap.count("\"tools/call\"") == 0 || tap.count("\"initialize\"") > 0 || tap.count("mcp-session-id") > 0 {
        failures.push("the upstream was not spoken to in its era".to_owned());
    }
    if (tap.count("\"tasks/cancel\"") > 0) != (program == Program::FastMcp4Tasks) {
        failures.push("a task of the upstream's is cancelled by its name, and only that".to_owned());
    }
    if let Front::Balanced(gateways) = &front {
        failures.extend(gateways.check_shares().err());
    }
    Ok(failures)
}

#[track_caller]
fn check(program: Program, balanced: Option<BalancerMode>) {
    let Some(peers) = Peers::find("real clients and a real server of 2026-07-28") else { return };
    let failures = Runtime::new().unwrap().block_on(failures(&peers, program, balanced)).unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// GW-30: before servers without tasks.
#[test]
fn every_client_is_served_in_front_of_a_server_without_tasks() {
    check(Program::FastMcp4, None);
}

/// GW-11: before servers with the extension.
#[test]
fn every_client_is_served_in_front_of_a_server_with_tasks_of_its_own() {
    check(Program::FastMcp4Tasks, None);
}

/// F52: tasks that the gateways make are polled at each in turn.
#[test]
#[ignore = "takes minutes: part of `make peers`"]
fn every_client_is_served_by_two_gateways_in_turn() {
    check(Program::FastMcp4, Some(BalancerMode::InTurn));
}

#[test]
#[ignore = "takes minutes: part of `make peers`"]
fn every_client_is_served_by_two_gateways_in_turn_before_a_server_with_tasks_of_its_own() {
    check(Program::FastMcp4Tasks, Some(BalancerMode::InTurn));
}

#[test]
#[ignore = "takes minutes: part of `make peers`"]
fn every_client_is_served_by_two_gateways_that_keep_its_connections() {
    check(Program::FastMcp4, Some(BalancerMode::Affine));
}
