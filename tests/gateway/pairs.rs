//! Every kind of client in front of every kind of server, in every case: what each may expect of the gateway between
//! them, on the wire.
//!
//! `server` is one scripted server in six kinds, `speaker` one client in seven; `cases` says what must come of a pair.
//! The table goes to `target/reports/pairs.md` and stands in `docs/compatibility.md`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cases;
mod server;

use support::pair_client as speaker;
use support::peers::report;
use support::scripted as upstream;
use support::served;
use support::session_client as client;

use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cases::{Case, Cell};
use client::TestGateway;
use futures_util::StreamExt as _;
use served::Served;
use speaker::PairClient;
use tokio::runtime::Runtime;

const KEYS: &str = "[upstreams.up.tasks]\ngrace = \"2s\"\npoll_interval = \"100ms\"\ninput_deadline = \"4s\"\n";

const SPLIT: &str = "[[upstreams.up.tools]]\nmatch = \"*\"\nsplit = { argument = \"items\" }\n";

/// Pairs that are gone through side by side: so few that none waits long for its turn on the processor.
const AT_ONCE: usize = 18;

/// What came of one case of a pair.
struct Row {
    client: speaker::Kind,
    server: server::Kind,
    cells: Vec<(Case, Cell)>,
}

async fn row(client: speaker::Kind, kind: server::Kind) -> Row {
    let mut cells = Vec::new();
    for case in Case::ALL {
        let cell = match cases::why_not(client, kind, case) {
            Some(why) => Cell::NotApplicable(why),
            None => {
                // A gateway of its own, so that no case sees another's.
                let (upstream, ledger) = server::start(kind).await;
                let is_queued = case == Case::CancelQueued;
                let drafts = client.draft().map(|draft| format!("drafts = [\"{draft}\"]\n")).unwrap_or_default();
                // No server has subtasks of its own: those that there are come of a call that is split.
                let split = if client == speaker::Kind::Subtasks { SPLIT } else { "" };
                let keys = format!("{}{KEYS}{drafts}{split}", if is_queued { "in_flight_max = 1\n" } else { "" });
                let url = format!("http://{}/mcp", upstream.address);
                let is_gateway = kind == server::Kind::Gateway;
                let inner = if is_gateway { Some(Served::before(&url, KEYS).await) } else { None };
                let gate = TestGateway::open("", inner.as_ref().map_or(&url, |inner| &inner.url), &keys).await;
                let run = async {
                    let begun = Arc::clone(&ledger);
                    let mut speaker = PairClient::new(client, &gate, move |tool| begun.runs(tool)).await?;
                    if is_queued {
                        let mut blocker = PairClient::new(client, &gate, |_| 0).await?;
                        return cases::run_queued(client, kind, (&mut speaker, &mut blocker), &ledger).await;
                    }
                    cases::run(case, client, kind, &mut speaker, &ledger, &upstream).await
                };
                match tokio::time::timeout(Duration::from_secs(60), run).await {
                    Ok(Ok(way)) => Cell::Right(way),
                    Ok(Err(why)) => Cell::Wrong(why),
                    Err(_) => Cell::Wrong("it took too long".to_owned()),
                }
            }
        };
        cells.push((case, cell));
    }
    Row { client, server: kind, cells }
}

/// All rows. They are run once, by whichever test comes first.
fn rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        Runtime::new().unwrap().block_on(async {
            let pairs = speaker::Kind::ALL.into_iter().flat_map(|client| server::Kind::ALL.map(|kind| (client, kind)));
            futures_util::stream::iter(pairs).map(|(client, kind)| row(client, kind)).buffered(AT_ONCE).collect().await
        })
    })
}

#[track_caller]
fn check(client: speaker::Kind) {
    let mut wrong = Vec::new();
    for row in rows().iter().filter(|row| row.client == client) {
        for (case, cell) in &row.cells {
            if let Cell::Wrong(why) = cell {
                wrong.push(format!("{} × {} × {}: {why}", row.client.title(), row.server.title(), case.title()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_session_client_is_served_by_every_kind_of_server() {
    check(speaker::Kind::Session);
}

#[test]
fn a_stateless_client_is_served_by_every_kind_of_server() {
    check(speaker::Kind::Stateless);
}

#[test]
fn a_client_with_tasks_of_2025_11_25_is_served_by_every_kind_of_server() {
    check(speaker::Kind::CoreTasks);
}

#[test]
fn a_client_with_the_tasks_extension_is_served_by_every_kind_of_server() {
    check(speaker::Kind::ExtensionTasks);
}

/// SEP-1686.
#[test]
fn a_client_that_chooses_ids_is_served_by_every_kind_of_server() {
    check(speaker::Kind::ChosenIds);
}

/// SEP-1904.
#[test]
fn a_client_that_filters_its_list_is_served_by_every_kind_of_server() {
    check(speaker::Kind::FilteredTasks);
}

/// SEP-2268.
#[test]
fn a_client_that_reads_subtasks_is_served_by_every_kind_of_server() {
    check(speaker::Kind::Subtasks);
}

#[test]
fn the_pairs_are_reported_and_the_page_shows_them() {
    let titles: String = Case::ALL.iter().map(|case| format!(" {} |", case.title())).collect();
    let mut table = format!("| client | server |{titles}\n|---|---|{}\n", "---|".repeat(Case::ALL.len()));
    for row in rows() {
        let _ = write!(table, "| {} | {} |", row.client.title(), row.server.title());
        for (_, cell) in &row.cells {
            let _ = write!(table, " {} |", cell.text());
        }
        table.push('\n');
    }
    report::publish("pairs", &table);
}
