//! Real clients over HTTP+SSE, through the gateway, to real servers over every transport: the cases of sessions, and a
//! call that is silent for longer than its client waits without progress.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so. The cases of each client are in `tests/peers/session-cases.json`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod run;

use super::session_matrix::driver;
use super::session_matrix::table;
use support::peers::cells;
use support::peers::coverage;
use support::peers::gateway;
use support::peers::install;
use support::peers::upstream;

use cells::Cells;
use run::Row;

static CELLS: Cells<Row> = Cells::new();

#[track_caller]
fn check(client: &str) {
    CELLS.check(|row| row.client == client);
}

support::rows! {
    the_typescript_sdk_1_works_over_http_and_sse: check("ts1");
    the_typescript_client_2_works_over_http_and_sse: check("ts2");
    the_python_sdk_1_works_over_http_and_sse: check("py1");
    the_python_sdk_2_works_over_http_and_sse: check("py2");
    fastmcp_3_works_over_http_and_sse: check("fastmcp3");
    fastmcp_4_works_over_http_and_sse: check("fastmcp4");
}
