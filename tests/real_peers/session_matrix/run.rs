//! Runs the whole matrix once, through one gateway: first the cases without crashes, then the sessions whose gateway or
//! upstream crashes between two calls.

use std::fmt::Write as _;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream;

use super::cells;
use super::coverage::{CellIndex, Coverage, Sizes};
use super::driver::{Given, Meeting, Pair, Seat};
use super::gateway::Gateway;
use super::install::Peers;
use super::table::{CLIENTS, table};
use super::upstream::{PeerServer, Program};

/// The upstreams, in the order of the report.
const UPSTREAMS: [Program; 3] = [Program::Everything, Program::FastMcp, Program::TypeScript];

/// How many clients are driven at the same time; most of their time they wait.
const CLIENTS_AT_ONCE: usize = 4;

/// The process that crashes between two calls, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crash {
    None,
    Gateway,
    Upstream,
}

/// The columns of the report: the case, its title, and the crash.
pub(crate) const COLUMNS: [(&str, &str, Crash); 18] = [
    ("fast", "fast", Crash::None),
    ("progress", "progress", Crash::None),
    ("tool_error", "tool error", Crash::None),
    ("protocol_error", "protocol error", Crash::None),
    ("elicit", "elicitation", Crash::None),
    ("sample", "sampling", Crash::None),
    ("roots", "roots", Crash::None),
    ("subscribe", "subscription", Crash::None),
    ("list_changed", "list changes", Crash::None),
    ("log", "log level", Crash::None),
    ("cancel", "cancel", Crash::None),
    ("task", "task result", Crash::None),
    ("task_ask", "task with question", Crash::None),
    ("task_cancel", "task cancel", Crash::None),
    ("delete", "DELETE", Crash::None),
    ("resume", "resume", Crash::None),
    ("two_calls", "gateway restart", Crash::Gateway),
    ("two_calls", "upstream restart", Crash::Upstream),
];

#[derive(Debug)]
enum Cell {
    Fine,
    /// Why there is no such thing.
    NotApplicable(&'static str),
    /// Only `make peers` runs it.
    LeftOut,
    Failed(String),
}

/// One client's cells with one upstream, in the order of [`COLUMNS`].
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) client: &'static str,
    upstream: Program,
    cells: Vec<Cell>,
}

impl Row {
    pub(super) fn new(client: &'static str, upstream: Program) -> Self {
        let cell = |(case, _, _): &(&str, &str, Crash)| match table().case(client, upstream.name(), case) {
            Ok(_) => Cell::Failed("it was not run".to_owned()),
            Err(why) => Cell::NotApplicable(why),
        };
        Self { client, upstream, cells: COLUMNS.iter().map(cell).collect() }
    }

    /// Leaves out the cells that `coverage` does not have.
    fn covering(mut self, client: usize, server: usize, coverage: &Coverage) -> Self {
        for (case, cell) in self.cells.iter_mut().enumerate() {
            if matches!(cell, Cell::Failed(_)) && !coverage.includes(CellIndex { client, server, case }) {
                *cell = Cell::LeftOut;
            }
        }
        self
    }

    /// The cells to be run with that crash: their indices, and their drivers' arguments.
    fn cases(&self, crash: Crash) -> (Vec<usize>, Vec<Given<'static>>) {
        let is_run = |at: usize| !matches!(self.cells[at], Cell::LeftOut);
        let places = COLUMNS.iter().enumerate().filter(|(at, column)| column.2 == crash && is_run(*at));
        places
            .filter_map(|(at, (case, _, _))| {
                Some((at, (*case, table().case(self.client, self.upstream.name(), case).ok()?)))
            })
            .unzip()
    }

    pub(super) async fn run(&mut self, peers: &Peers, url: &str, crash: Crash, seat: Option<Seat>) {
        let (places, cases) = self.cases(crash);
        let name = format!("{}-{crash:?}", self.upstream.name()).to_lowercase();
        let pair = Pair { client: self.client, name: &name, url };
        let driven = pair.drive(peers, &cases, seat).await;
        for ((at, (case, given)), driven) in places.into_iter().zip(cases).zip(driven) {
            let judge = |facts| table().judge(self.client, case, given, &facts);
            self.cells[at] = driven.and_then(judge).map_or_else(Cell::Failed, |()| Cell::Fine);
        }
    }

    /// The errors, one line each; `left_out` is the crash of cells that were not run.
    pub(super) fn failures_but_for(&self, left_out: Option<Crash>) -> Vec<String> {
        let place = format!("{} × {}", table().client(self.client).what, self.upstream.title());
        let columns = self.cells.iter().zip(COLUMNS).filter(|(_, (_, _, crash))| Some(*crash) != left_out);
        let failed = columns.filter_map(|(cell, (_, title, _))| match cell {
            Cell::Failed(why) => Some(format!("{place} × {title}: {why}")),
            Cell::Fine | Cell::NotApplicable(_) | Cell::LeftOut => None,
        });
        failed.collect()
    }
}

impl cells::Row for Row {
    const MATRIX: &'static str = "the matrix of real session clients and servers";
    const UPSTREAMS: usize = UPSTREAMS.len();

    async fn run(peers: &Peers) -> Result<Vec<Self>, String> {
        run(peers).await
    }

    fn failures(&self) -> Vec<String> {
        self.failures_but_for(None)
    }
}

/// The cells that run.
fn coverage() -> Coverage {
    let sizes = Sizes { clients: CLIENTS.len(), servers: UPSTREAMS.len(), cases: COLUMNS.len() };
    Coverage::of(sizes, |CellIndex { client, server, case }| {
        table().case(CLIENTS[client], UPSTREAMS[server].name(), COLUMNS[case].0).is_ok()
    })
}

/// Runs the cases of every client with every upstream.
///
/// # Errors
/// If an upstream or a gateway cannot be started, or not again.
async fn run(peers: &Peers) -> Result<Vec<Row>, String> {
    let [first, second, third] = UPSTREAMS.map(|program| PeerServer::start(program, peers, "session"));
    let mut servers: [PeerServer; 3] = tokio::try_join!(first, second, third)?.into();
    let mut config = String::new();
    for server in &servers {
        let _ = write!(config, "[upstreams.{}]\nurl = \"{}\"\n\n", server.program.name(), server.url());
    }
    let mut gateway = Gateway::start("session-gateway", &config, servers.len()).await?;
    let coverage = coverage();
    let rows = CLIENTS.into_iter().enumerate().flat_map(|(index, client)| {
        let row = |at: usize| Row::new(client, UPSTREAMS[at]).covering(index, at, &coverage);
        (0..UPSTREAMS.len()).map(row).collect::<Vec<_>>()
    });
    let runs = rows.map(|mut row| {
        let url = gateway.url(row.upstream.name());
        async move {
            row.run(peers, url, Crash::None, None).await;
            row
        }
    });
    let mut rows: Vec<Row> = stream::iter(runs).buffered(CLIENTS_AT_ONCE).collect().await;
    for server in &mut servers {
        let mut ours: Vec<_> = rows.iter_mut().filter(|row| row.upstream == server.program).collect();
        let url = gateway.url(server.program.name()).to_owned();
        drive_through(&mut ours, peers, (&url, Crash::Gateway), gateway.restart()).await?;
        drive_through(&mut ours, peers, (&url, Crash::Upstream), server.restart(peers)).await?;
    }
    Ok(rows)
}

/// Drives the clients of `rows` up to their first answers, then lets `crash` happen, then lets them go on.
pub(super) async fn drive_through(
    rows: &mut [&mut Row],
    peers: &Peers,
    (url, kind): (&str, Crash),
    crash: impl Future<Output = Result<(), String>>,
) -> Result<(), String> {
    let mut driven: Vec<_> = rows.iter_mut().filter(|row| !row.cases(kind).0.is_empty()).collect();
    let (mut meeting, seats) = Meeting::of(driven.len());
    let runs = join_all(driven.iter_mut().zip(seats).map(|(row, seat)| row.run(peers, url, kind, Some(seat))));
    let crash = async {
        meeting.is_complete().await;
        let crashed = crash.await;
        meeting.end();
        crashed
    };
    tokio::join!(runs, crash).1
}

/// The report: a row for each client and upstream, a column for each case, and why some have none.
pub(crate) fn report(rows: &[Row]) -> String {
    let titles: String = COLUMNS.iter().map(|(_, title, _)| format!(" {title} |")).collect();
    let mut report = format!("| client | upstream |{titles}\n|---|---|{}\n", "---|".repeat(COLUMNS.len()));
    let mut reasons = Vec::new();
    for row in rows {
        let (client, upstream) = (&table().client(row.client).what, row.upstream.title());
        let _ = write!(report, "| {client} | {upstream} |");
        for (cell, (_, title, _)) in row.cells.iter().zip(COLUMNS) {
            let _ = match cell {
                Cell::Fine => write!(report, " ok |"),
                Cell::NotApplicable(why) => {
                    let reason = format!("- {title}: {why}\n");
                    if !reasons.contains(&reason) {
                        reasons.push(reason);
                    }
                    write!(report, " - |")
                }
                Cell::LeftOut => write!(report, " left out |"),
                Cell::Failed(why) => write!(report, " FAIL {} |", why.replace(['|', '\n'], " ")),
            };
        }
        report.push('\n');
    }
    let _ = write!(report, "\nWhere there is no such thing:\n\n{}", reasons.concat());
    report
}

#[test]
fn every_case_is_given_or_has_a_reason() {
    for upstream in UPSTREAMS {
        for (case, _, _) in COLUMNS {
            let _ = table().case("ts1", upstream.name(), case);
        }
    }
}
