//! Real clients through the gateway to real servers: each client with each upstream in cases that [`coverage`] chooses.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so. The table goes to `target/reports/matrix.md` and stands in `docs/compatibility.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod balanced;
pub(crate) mod cases;
pub(crate) mod client;
mod run;
pub(crate) mod rust_client;
pub(crate) mod tap;

use support::peers::bridge;
use support::peers::cells;
use support::peers::coverage;
use support::peers::gateway;
use support::peers::install;
use support::peers::process;
use support::peers::report;
use support::peers::upstream;

use cells::Cells;
use client::Client;
use run::Row;

static CELLS: Cells<Row> = Cells::new();

#[track_caller]
fn check(client: Client) {
    CELLS.check(|row| row.client == client);
}

support::rows! {
    fastmcp_4_drives_tasks_of_every_upstream: check(Client::FastMcp4);
    the_typescript_client_with_ext_tasks_drives_tasks_of_every_upstream: check(Client::TypeScript);
    rmcp_drives_tasks_of_every_upstream: check(Client::Rust);
    the_python_sdk_calls_every_upstream_without_tasks: check(Client::Python);
    the_typescript_sdk_calls_every_upstream_without_tasks: check(Client::TypeScriptPlain);
    the_ai_sdk_calls_every_upstream_without_tasks: check(Client::AiSdk);
}

#[test]
#[ignore = "needs every cell: part of `make peers`"]
fn the_matrix_is_reported_and_the_page_shows_it() {
    let Some(rows) = CELLS.rows() else { return };
    report::publish_every_cell("matrix", &run::table(rows));
}
