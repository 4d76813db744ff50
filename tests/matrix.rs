//! Real clients through the gateway to real servers: each client with each upstream in each case.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so. The table goes to `target/reports/matrix.md` and stands in the README.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[allow(dead_code, reason = "other tests read along")]
#[path = "peers/support/bridge.rs"]
mod bridge;
#[path = "matrix/cases.rs"]
mod cases;
#[path = "matrix/client.rs"]
mod client;
#[allow(dead_code, reason = "other tests restart it")]
#[path = "peers/support/gateway.rs"]
mod gateway;
#[path = "peers/support/install.rs"]
mod install;
#[allow(dead_code, reason = "other tests talk to their children, or kill them")]
#[path = "peers/support/process.rs"]
mod process;
#[path = "peers/support/report.rs"]
mod report;
#[path = "matrix/run.rs"]
mod run;
#[path = "matrix/rust_client.rs"]
mod rust_client;
#[path = "matrix/tap.rs"]
mod tap;
#[allow(dead_code, reason = "other tests have other upstreams, or restart them")]
#[path = "peers/support/upstream.rs"]
mod upstream;

use std::sync::OnceLock;

use client::Client;
use install::Peers;
use run::Row;
use tokio::runtime::Runtime;

/// All cells. They are run once, by whichever test comes first.
#[track_caller]
fn rows() -> Option<&'static [Row]> {
    static ROWS: OnceLock<Option<Result<Vec<Row>, String>>> = OnceLock::new();
    let run = || {
        let peers = Peers::find("the matrix of real clients and servers")?;
        Some(Runtime::new().unwrap().block_on(run::run(&peers)))
    };
    ROWS.get_or_init(run).as_ref().map(|rows| rows.as_deref().unwrap_or_else(|error| panic!("{error}")))
}

#[track_caller]
fn check(client: Client) {
    let Some(rows) = rows() else { return };
    let rows: Vec<_> = rows.iter().filter(|row| row.client == client).collect();
    assert_eq!(rows.len(), run::UPSTREAMS.len());
    let failures: Vec<_> = rows.iter().flat_map(|row| row.failures()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn fastmcp_4_drives_tasks_of_every_upstream() {
    check(Client::FastMcp4);
}

#[test]
fn the_typescript_client_with_ext_tasks_drives_tasks_of_every_upstream() {
    check(Client::TypeScript);
}

#[test]
fn rmcp_drives_tasks_of_every_upstream() {
    check(Client::Rust);
}

#[test]
fn the_python_sdk_calls_every_upstream_without_tasks() {
    check(Client::Python);
}

#[test]
fn the_matrix_is_reported_and_the_readme_shows_it() {
    let Some(rows) = rows() else { return };
    report::publish("matrix", &run::table(rows));
}
