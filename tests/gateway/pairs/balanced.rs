//! The pairs again, before two gateways on one store behind a balancer: each cell is as with one gateway.
//!
//! `BALANCED_PAIRS` is how many pairs (7) each balancer has; 42 are all. Any 7 that follow each other have every kind of client
//! and every kind of server.

use std::fmt::Write as _;

use futures_util::StreamExt as _;
use support::balancer::BalancerMode;
use tokio::runtime::Runtime;

use super::front::FrontKind;
use super::speaker;
use super::{AT_ONCE, row, rows, server};

/// The numbers of kinds have no common divisor, so that each pair comes once before one comes again.
fn pair(at: usize) -> (speaker::Kind, server::Kind) {
    let (clients, servers) = (speaker::Kind::ALL, server::Kind::ALL);
    (clients[at % clients.len()], servers[at % servers.len()])
}

/// Goes through pairs from the one at `first` on.
#[track_caller]
fn check(mode: BalancerMode, first: usize) {
    let count = std::env::var("BALANCED_PAIRS");
    let count: usize = count.map_or(7, |count| count.parse().expect("BALANCED_PAIRS is a number"));
    let pairs = (first..first + count).map(pair);
    let balanced: Vec<_> = Runtime::new().unwrap().block_on(async {
        let rows = pairs.map(|(client, kind)| row(client, kind, FrontKind::Balanced(mode)));
        futures_util::stream::iter(rows).buffered(AT_ONCE).collect().await
    });
    let mut unlike = String::new();
    let mut cells = 0;
    for row in &balanced {
        let alone = rows().iter().find(|alone| (alone.client, alone.server) == (row.client, row.server));
        let alone = alone.expect("there is one for each pair");
        for ((case, cell), (_, expected)) in row.cells.iter().zip(&alone.cells) {
            cells += 1;
            let (cell, expected) = (cell.text(), expected.text());
            if cell != expected || cell.starts_with("FAIL") {
                let (client, server) = (row.client.title(), row.server.title());
                let _ = writeln!(unlike, "{client} × {server} × {}: {cell}, alone {expected}", case.title());
            }
        }
    }
    assert!(unlike.is_empty(), "{mode:?}, of {cells} cells:\n{unlike}");
}

#[test]
fn pairs_are_the_same_behind_a_balancer_that_sends_each_request_to_another_gateway() {
    check(BalancerMode::InTurn, 0);
}

#[test]
fn pairs_are_the_same_behind_a_balancer_that_keeps_sessions_at_one_gateway() {
    check(BalancerMode::Affine, 7);
}
