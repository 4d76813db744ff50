//! Real clients with a session through the gateway to real servers: each client with each upstream in cases that [`coverage`]
//! chooses, the gateway and the upstream crashing in between too.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the output
//! says so. The cases of each client are in `tests/peers/session-cases.json`. The table goes to
//! `target/reports/session-matrix.md` and stands in `docs/compatibility.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod balanced;
pub(crate) mod driver;
mod run;
#[allow(deprecated, reason = "sessions need what 2026-07-28 goes without")]
pub(crate) mod rust_client;
#[allow(deprecated, reason = "sessions need what 2026-07-28 goes without")]
pub(crate) mod rust_host;
pub(crate) mod table;

use support::peers::bridge;
use support::peers::cells;
use support::peers::coverage;
use support::peers::gateway;
use support::peers::install;
use support::peers::process;
use support::peers::report;
use support::peers::upstream;

use cells::Cells;
use run::Row;

static CELLS: Cells<Row> = Cells::new();

#[track_caller]
fn check(client: &str) {
    CELLS.check(|row| row.client == client);
}

support::rows! {
    the_typescript_sdk_1_has_its_sessions: check("ts1");
    the_typescript_client_2_has_its_sessions: check("ts2");
    the_python_sdk_1_has_its_sessions: check("py1");
    the_python_sdk_2_has_its_sessions: check("py2");
    fastmcp_2_has_its_sessions: check("fastmcp2");
    fastmcp_3_has_its_sessions: check("fastmcp3");
    fastmcp_4_has_its_sessions: check("fastmcp4");
    rmcp_has_its_sessions: check("rmcp");
    the_inspector_has_its_sessions: check("inspector");
}

#[test]
#[ignore = "needs every cell: part of `make peers`"]
fn the_session_matrix_is_reported_and_the_page_shows_it() {
    let Some(rows) = CELLS.rows() else { return };
    report::publish_every_cell("session-matrix", &run::report(rows));
}
