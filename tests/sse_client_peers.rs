//! Real clients over HTTP+SSE, through the gateway, to real servers over every transport: the cases of sessions, and a
//! call that is silent for longer than its client waits without a sign of life.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so. What each client is asked stands in `tests/peers/session-cases.json`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "peers/support/bridge.rs"]
mod bridge;
#[path = "peers/support/cells.rs"]
mod cells;
#[allow(dead_code, reason = "nothing crashes here")]
#[path = "session_matrix/driver.rs"]
mod driver;
#[allow(dead_code, reason = "other tests look at metrics, and restart it")]
#[path = "peers/support/gateway.rs"]
mod gateway;
#[allow(dead_code, reason = "other tests name other packages")]
#[path = "peers/support/install.rs"]
mod install;
#[allow(dead_code, reason = "other tests ask processes to end")]
#[path = "peers/support/process.rs"]
mod process;
#[path = "sse_client_peers/run.rs"]
mod run;
#[allow(dead_code, reason = "its transport is another one")]
#[allow(deprecated, reason = "sessions need what 2026-07-28 goes without")]
#[path = "session_matrix/rust_client.rs"]
mod rust_client;
#[allow(dead_code, reason = "its transport is another one")]
#[allow(deprecated, reason = "sessions need what 2026-07-28 goes without")]
#[path = "session_matrix/rust_host.rs"]
mod rust_host;
#[allow(dead_code, reason = "other tests run more clients")]
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
fn the_typescript_sdk_1_works_over_http_and_sse() {
    check("ts1");
}

#[test]
fn the_typescript_client_2_works_over_http_and_sse() {
    check("ts2");
}

#[test]
fn the_python_sdk_1_works_over_http_and_sse() {
    check("py1");
}

#[test]
fn the_python_sdk_2_works_over_http_and_sse() {
    check("py2");
}

#[test]
fn fastmcp_3_works_over_http_and_sse() {
    check("fastmcp3");
}

#[test]
fn fastmcp_4_works_over_http_and_sse() {
    check("fastmcp4");
}
