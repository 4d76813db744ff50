//! Real clients with a session through the gateway to real servers: each client with each upstream in each case,
//! the gateway and the upstream crashing in between too.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so. What each client is asked stands in `tests/peers/session-cases.json`. The table goes to
//! `target/reports/session-matrix.md` and stands in `docs/compatibility.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "peers/support/bridge.rs"]
mod bridge;
#[path = "peers/support/cells.rs"]
mod cells;
#[path = "session_matrix/driver.rs"]
mod driver;
#[allow(dead_code, reason = "metrics are read by the matrix of task clients")]
#[path = "peers/support/gateway.rs"]
mod gateway;
#[allow(dead_code, reason = "other tests name other packages")]
#[path = "peers/support/install.rs"]
mod install;
#[path = "peers/support/process.rs"]
mod process;
#[path = "peers/support/report.rs"]
mod report;
#[path = "session_matrix/run.rs"]
mod run;
#[allow(deprecated, reason = "sessions need what 2026-07-28 goes without")]
#[path = "session_matrix/rust_client.rs"]
mod rust_client;
#[allow(deprecated, reason = "sessions need what 2026-07-28 goes without")]
#[path = "session_matrix/rust_host.rs"]
mod rust_host;
#[path = "session_matrix/table.rs"]
mod table;
#[allow(dead_code, reason = "other tests have other upstreams")]
#[path = "peers/support/upstream.rs"]
mod upstream;

use cells::Cells;
use run::Row;

static CELLS: Cells<Row> = Cells::new();

#[track_caller]
fn check(client: &str) {
    CELLS.check(|row| row.client == client);
}

#[test]
fn the_typescript_sdk_1_has_its_sessions() {
    check("ts1");
}

#[test]
fn the_typescript_client_2_has_its_sessions() {
    check("ts2");
}

#[test]
fn the_python_sdk_1_has_its_sessions() {
    check("py1");
}

#[test]
fn the_python_sdk_2_has_its_sessions() {
    check("py2");
}

#[test]
fn fastmcp_2_has_its_sessions() {
    check("fastmcp2");
}

#[test]
fn fastmcp_3_has_its_sessions() {
    check("fastmcp3");
}

#[test]
fn fastmcp_4_has_its_sessions() {
    check("fastmcp4");
}

#[test]
fn rmcp_has_its_sessions() {
    check("rmcp");
}

#[test]
fn the_inspector_has_its_sessions() {
    check("inspector");
}

#[test]
fn the_session_matrix_is_reported_and_the_page_shows_it() {
    let Some(rows) = CELLS.rows() else { return };
    report::publish("session-matrix", &run::report(rows));
}
