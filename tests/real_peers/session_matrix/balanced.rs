//! A row of the matrix again, before two gateways on one store behind a balancer: one of them owns the session.

use support::balancer::{BalancedGateways, BalancerMode};
use tokio::runtime::Runtime;

use super::install::Peers;
use super::run::{Crash, Row, drive_through};
use super::upstream::{PeerServer, Program};

/// The server with the most features of sessions.
const UPSTREAM: Program = Program::Everything;

/// The errors in all cases of a client, but for the crash of its only gateway.
async fn failures(client: &'static str, peers: &Peers, mode: BalancerMode) -> Result<Vec<String>, String> {
    let mut server = PeerServer::start(UPSTREAM, peers, "session-balanced").await?;
    let upstream = UPSTREAM.name();
    let gateways =
        BalancedGateways::serving(mode, &format!("[upstreams.{upstream}]\nurl = \"{}\"\n", server.url())).await;
    let url = format!("http://{}/{upstream}/mcp", gateways.address());
    let mut row = Row::new(client, UPSTREAM);
    row.run(peers, &url, Crash::None, None).await;
    drive_through(&mut [&mut row], peers, (&url, Crash::Upstream), server.restart(peers)).await?;
    let mut failures = row.failures_but_for(Some(Crash::Gateway));
    failures.extend(gateways.check_shares().err());
    Ok(failures)
}

#[track_caller]
fn check(client: &'static str, mode: BalancerMode) {
    let Some(peers) = Peers::find("real session clients before two gateways") else { return };
    let failures = Runtime::new().unwrap().block_on(failures(client, &peers, mode)).unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Most of its requests are forwarded to the session's owner.
#[test]
#[ignore = "takes minutes: part of `make peers`"]
fn the_typescript_sdk_1_has_its_sessions_at_two_gateways_in_turn() {
    check("ts1", BalancerMode::InTurn);
}

#[test]
#[ignore = "takes minutes: part of `make peers`"]
fn the_typescript_sdk_1_has_its_sessions_at_two_gateways_that_keep_them() {
    check("ts1", BalancerMode::Affine);
}
