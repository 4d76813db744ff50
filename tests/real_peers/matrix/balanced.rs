//! Rows of the matrix again, before two gateways on one store behind a balancer.

use support::balancer::{BalancedGateways, BalancerMode};
use tokio::runtime::Runtime;

use super::cases::Case;
use super::client::Client;
use super::install::Peers;
use super::run::{Bench, cell, section};
use super::tap::Tap;
use super::upstream::{PeerServer, Program};

/// It has tools for every case that the matrix has for a server with sessions.
const UPSTREAM: Program = Program::Everything;

/// The errors in all cases of a client.
async fn failures(client: Client, peers: &Peers, mode: BalancerMode) -> Result<Vec<String>, String> {
    let server = PeerServer::start(UPSTREAM, peers, "matrix-balanced").await?;
    let (tap, upstream) = (Tap::start(server.address).await?, UPSTREAM.name());
    let gateways = BalancedGateways::serving(mode, &section(upstream, &tap)).await;
    let url = format!("http://{}/{upstream}/mcp", gateways.address());
    let bench = Bench { url: &url, gateways: gateways.replicas.all.len(), metrics: None, tap: &tap, upstream };
    let mut failures = Vec::new();
    for case in Case::ALL {
        let made = cell(client, peers, &bench, case).await;
        failures.extend(made.err().map(|why| format!("{} × {}: {why}", client.title(), case.title())));
    }
    failures.extend(gateways.check_shares().err());
    Ok(failures)
}

#[track_caller]
fn check(client: Client, mode: BalancerMode) {
    let Some(peers) = Peers::find("real clients before two gateways") else { return };
    let failures = Runtime::new().unwrap().block_on(failures(client, &peers, mode)).unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// F52.
#[test]
#[ignore = "takes minutes: part of `make peers`"]
fn the_typescript_client_with_ext_tasks_is_served_by_two_gateways_in_turn() {
    check(Client::TypeScript, BalancerMode::InTurn);
}

/// GW-20: its answers to questions come to another gateway than the one that asked.
#[test]
#[ignore = "takes minutes: part of `make peers`"]
fn the_python_sdk_is_served_by_two_gateways_in_turn_without_tasks() {
    check(Client::Python, BalancerMode::InTurn);
}

#[test]
#[ignore = "takes minutes: part of `make peers`"]
fn the_typescript_client_with_ext_tasks_is_served_by_two_gateways_that_keep_its_connections() {
    check(Client::TypeScript, BalancerMode::Affine);
}
