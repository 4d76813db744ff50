//! Every kind of client in front of every kind of server, in every case: the outcome through the gateway between them,
//! on the wire.
//!
//! `server` is one scripted server in six kinds, `speaker` one client in seven; `cases` has the expected outcome of a
//! pair. `balanced` puts two gateways behind a balancer, `mixed` servers of five kinds behind one path. The tables go
//! to `target/reports` and stand in `docs/compatibility.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod balanced;
mod cases;
mod front;
mod mixed;
mod server;

use support::pair_client as speaker;
use support::peers::report;
use support::scripted as upstream;
use support::served;
use support::session_client as client;

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use cases::{Case, Cell};
use front::{Front, FrontKind};
use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use served::Served;
use speaker::PairClient;
use tokio::runtime::Runtime;

/// The text behind the keys of an upstream's own section. A time limit that a case does not wait for is never reached,
/// so that its cell does not depend on the machine's speed.
fn task_keys(upstream: &str, case: Case) -> String {
    let grace = if case.is_quick() { "30s" } else { "500ms" };
    let input_deadline = if case == Case::TimedOut { "4s" } else { "60s" };
    format!(
        "[upstreams.{upstream}.tasks]\ngrace = \"{grace}\"\npoll_interval = \"100ms\"\ninput_deadline = \"{input_deadline}\"\n"
    )
}

const SPLIT: &str = "[[upstreams.up.tools]]\nmatch = \"*\"\nsplit = { argument = \"items\" }\n";

/// Pairs that are gone through side by side: so few that none waits long for its turn on the processor.
const AT_ONCE: usize = 18;

/// The result of one case of a pair.
struct Row {
    client: speaker::Kind,
    server: server::Kind,
    cells: Vec<(Case, Cell)>,
}

async fn row(client: speaker::Kind, kind: server::Kind, front: FrontKind) -> Row {
    let mut cells = Vec::new();
    for case in Case::ALL {
        let cell = match cases::why_not(client, kind, case) {
            Some(why) => Cell::NotApplicable(why),
            None => Box::pin(cell(client, kind, case, front)).await,
        };
        cells.push((case, cell));
    }
    Row { client, server: kind, cells }
}

/// One case at gateways of its own, so that none sees another's.
async fn cell(client: speaker::Kind, kind: server::Kind, case: Case, front: FrontKind) -> Cell {
    let (upstream, ledger) = server::start(kind).await;
    let is_queued = case == Case::CancelQueued;
    let drafts = client.draft().map(|draft| format!("drafts = [\"{draft}\"]\n")).unwrap_or_default();
    // No server has subtasks of its own: those that there are come of a call that is split.
    let split = if client == speaker::Kind::Subtasks { SPLIT } else { "" };
    let task_keys = task_keys("up", case);
    let keys = format!("{}{task_keys}{drafts}{split}", if is_queued { "in_flight_max = 1\n" } else { "" });
    let url = format!("http://{}/mcp", upstream.address);
    let is_gateway = kind == server::Kind::Gateway;
    let inner = if is_gateway { Some(Served::before(&url, &task_keys).await) } else { None };
    let front = Front::before(front, inner.as_ref().map_or(&url, |inner| &inner.url), &keys).await;
    let run = async {
        let begun = Arc::clone(&ledger);
        let mut speaker = PairClient::new(client, front.client_without_session(), move |tool| begun.runs(tool)).await?;
        if is_queued {
            let blockers = front.one_at_each().into_iter().map(|stranger| PairClient::new(client, stranger, |_| 0));
            let mut blockers = try_join_all(blockers).await?;
            let held = async || front::held_calls(&front.gateways(), "up").await;
            return Box::pin(cases::run_queued(client, (&mut speaker, &mut blockers), &ledger, held)).await;
        }
        cases::run(case, client, kind, &mut speaker, &ledger, &upstream).await
    };
    let shared = async {
        let way = run.await?;
        front.check_shares().map(|()| way)
    };
    Cell::of(Box::pin(shared)).await
}

/// All rows. The first test that asks runs them, once.
fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        Runtime::new().unwrap().block_on(async {
            let pairs = speaker::Kind::ALL.into_iter().flat_map(|client| server::Kind::ALL.map(|kind| (client, kind)));
            let rows = futures_util::stream::iter(pairs).map(|(client, kind)| row(client, kind, FrontKind::OneGateway));
            rows.buffered(AT_ONCE).collect().await
        })
    })
}

/// The wrong outcomes, a line for each case.
fn mistakes<'a>(rows: impl Iterator<Item = &'a Row>) -> String {
    let mut wrong = Vec::new();
    for row in rows {
        for (case, cell) in &row.cells {
            if let Cell::Wrong(why) = cell {
                wrong.push(format!("{} × {} × {}: {why}", row.client.title(), row.server.title(), case.title()));
            }
        }
    }
    wrong.join("\n")
}

fn table(rows: &[Row]) -> String {
    let titles: String = Case::ALL.iter().map(|case| format!(" {} |", case.title())).collect();
    let mut table = format!("| client | server |{titles}\n|---|---|{}\n", "---|".repeat(Case::ALL.len()));
    for row in rows {
        let _ = write!(table, "| {} | {} |", row.client.title(), row.server.title());
        for (_, cell) in &row.cells {
            let _ = write!(table, " {} |", cell.text());
        }
        table.push('\n');
    }
    table
}

#[track_caller]
fn check(client: speaker::Kind) {
    let wrong = mistakes(rows().iter().filter(|row| row.client == client));
    assert!(wrong.is_empty(), "{wrong}");
}

support::rows! {
    a_session_client_is_served_by_every_kind_of_server: check(speaker::Kind::Session);
    a_stateless_client_is_served_by_every_kind_of_server: check(speaker::Kind::Stateless);
    a_client_with_tasks_of_2025_11_25_is_served_by_every_kind_of_server: check(speaker::Kind::CoreTasks);
    a_client_with_the_tasks_extension_is_served_by_every_kind_of_server: check(speaker::Kind::ExtensionTasks);
    /// SEP-1686.
    a_client_that_chooses_ids_is_served_by_every_kind_of_server: check(speaker::Kind::ChosenIds);
    /// SEP-1904.
    a_client_that_filters_its_list_is_served_by_every_kind_of_server: check(speaker::Kind::FilteredTasks);
    /// SEP-2268.
    a_client_that_reads_subtasks_is_served_by_every_kind_of_server: check(speaker::Kind::Subtasks);
    the_pairs_are_reported_and_the_page_shows_them: report::publish("pairs", &table(rows()));
}

#[test]
fn every_kind_of_client_is_served_by_servers_of_five_kinds_at_one_path() {
    let rows = Runtime::new().unwrap().block_on(mixed::rows());
    report::publish("pairs-at-one-path", &table(&rows));
    let wrong = mistakes(rows.iter());
    assert!(wrong.is_empty(), "{wrong}");
}
