//! Real clients through the gateway to real servers: each client with each upstream in each case.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so. The table goes to `target/reports/matrix.md` and stands in `docs/compatibility.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[allow(dead_code, reason = "other tests read along")]
#[path = "peers/support/bridge.rs"]
mod bridge;
#[path = "matrix/cases.rs"]
mod cases;
#[path = "peers/support/cells.rs"]
mod cells;
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

use cells::Cells;
use client::Client;
use run::Row;

static CELLS: Cells<Row> = Cells::new();

#[track_caller]
fn check(client: Client) {
    CELLS.check(|row| row.client == client);
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
fn the_typescript_sdk_calls_every_upstream_without_tasks() {
    check(Client::TypeScriptPlain);
}

#[test]
fn the_matrix_is_reported_and_the_page_shows_it() {
    let Some(rows) = CELLS.rows() else { return };
    report::publish("matrix", &run::table(rows));
}
