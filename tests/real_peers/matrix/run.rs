//! Runs the whole matrix once: each client has a gateway of its own, so that its metrics tell of it alone.

use std::fmt::Write as _;
use std::time::Duration;

use support::scripted::WAIT_MAX;
use tokio::time::{interval, timeout};

use super::cases::{Case, Expected, NO_TOOL, Way, call, tasks};
use super::cells;
use super::client::Client;
use super::coverage::{CellIndex, Coverage, Sizes};
use super::gateway::Gateway;
use super::install::Peers;
use super::tap::Tap;
use super::upstream::{PeerServer, Program};

/// How long a cancellation may take to reach the upstream.
const CANCEL_MAX: Duration = WAIT_MAX;
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Members of 2026-07-28 that no upstream in sessions may get: all clients here can be asked, so those of both eras
/// are, too. The one request that discovers the era may contain them, so often.
const FOREIGN: [(&str, usize); 2] = [("io.modelcontextprotocol/", 4), ("mcp-method", 1)];
/// That request.
const PROBE: &str = "\"server/discover\"";

/// The text of a call that asks for a task of the upstream's own. The first is the member's name alone, so that no
/// other form of it is sent either.
const ASKS_FOR_TASK: [&str; 2] = ["\"task\"", "\"task\":{\"ttl\":"];

/// The upstreams, in the order of the report.
const UPSTREAMS: [Program; 7] = [
    Program::Demo,
    Program::Everything,
    Program::FastMcp,
    Program::FastMcpTasks,
    Program::FastMcp4,
    Program::Listened,
    Program::TypeScript2,
];

/// The result of one case; its path, if it is as expected. `None` if the upstream has no such tool.
pub(super) type Cell = Result<Option<Way>, String>;

/// The cells of one client with one upstream that ran.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) client: Client,
    upstream: String,
    cells: Vec<(Case, Cell)>,
}

impl cells::Row for Row {
    const MATRIX: &'static str = "the matrix of real clients and servers";
    const UPSTREAMS: usize = UPSTREAMS.len();

    async fn run(peers: &Peers) -> Result<Vec<Self>, String> {
        Box::pin(run(peers)).await
    }

    fn failures(&self) -> Vec<String> {
        let place = format!("{} × {}", self.client.title(), self.upstream);
        let wrong = |(case, cell): &(Case, Cell)| Some((*case, cell.as_ref().err()?.clone()));
        self.cells
            .iter()
            .filter_map(wrong)
            .map(move |(case, why)| format!("{place} × {}: {why}", case.title()))
            .collect()
    }
}

/// The cells that run.
fn coverage() -> Coverage {
    let sizes = Sizes { clients: Client::ALL.len(), servers: UPSTREAMS.len(), cases: Case::ALL.len() };
    Coverage::of(sizes, |CellIndex { client, server, case }| {
        Client::ALL[client].call(UPSTREAMS[server].name(), Case::ALL[case]).is_some()
    })
}

/// Runs the cases of every client with every upstream.
///
/// # Errors
/// If an upstream or a gateway cannot be started.
async fn run(peers: &Peers) -> Result<Vec<Row>, String> {
    let coverage = coverage();
    let starting = UPSTREAMS.map(|program| PeerServer::start(program, peers, "matrix"));
    let servers = futures_util::future::try_join_all(starting).await?;
    let rows = (0..Client::ALL.len()).map(|client| rows_of(client, &coverage, peers, &servers));
    Ok(futures_util::future::try_join_all(rows).await?.into_iter().flatten().collect())
}

/// The rows of the client with this index.
async fn rows_of(index: usize, coverage: &Coverage, peers: &Peers, servers: &[PeerServer]) -> Result<Vec<Row>, String> {
    let client = Client::ALL[index];
    let mut taps = Vec::with_capacity(servers.len());
    let mut config = String::new();
    for server in servers {
        let tap = Tap::start(server.address).await?;
        config += &section(server.program.name(), &tap);
        taps.push(tap);
    }
    let gateway = Gateway::start(&format!("matrix-gateway-{}", client.name()), &config, servers.len()).await?;
    let mut rows = Vec::with_capacity(servers.len());
    for (server, (program, tap)) in UPSTREAMS.into_iter().zip(&taps).enumerate() {
        let mut cells = Vec::with_capacity(Case::ALL.len());
        for (at, case) in Case::ALL.into_iter().enumerate() {
            let is_possible = client.call(program.name(), case).is_some();
            if is_possible && !coverage.includes(CellIndex { client: index, server, case: at }) {
                continue;
            }
            let (upstream, url) = (program.name(), gateway.url(program.name()));
            let bench = Bench { url, gateways: 1, metrics: Some(&gateway), tap, upstream };
            cells.push((case, cell(client, peers, &bench, case).await));
        }
        rows.push(Row { client, upstream: program.title(), cells });
    }
    Ok(rows)
}

/// The section of an upstream behind a tap.
pub(super) fn section(name: &str, tap: &Tap) -> String {
    let url = format!("http://{}/mcp", tap.address());
    let mut section = format!("[upstreams.{name}]\nurl = \"{url}\"\n\n{}\n", tasks(name, name));
    if let Some(sampling) = call(name, Case::Sampling) {
        // The first call of an upstream also opens its session: the grace is that of calls that are answered at once.
        let (tool, key) = (sampling.tool, "early_input = \"ask-first\"\ngrace = \"30s\"");
        let _ = write!(section, "[[upstreams.{name}.tools]]\nmatch = \"{tool}\"\n{key}\n\n");
    }
    section
}

/// The environment of a case.
pub(super) struct Bench<'a> {
    pub(super) url: &'a str,
    /// How many there are.
    pub(super) gateways: usize,
    /// Whose metrics tell of tasks; gateways within this process have none.
    pub(super) metrics: Option<&'a Gateway>,
    pub(super) tap: &'a Tap,
    pub(super) upstream: &'static str,
}

impl Bench<'_> {
    /// The sum of a metric of this upstream over the samples that have `label`: 0 where there are none.
    async fn metric(&self, name: &str, label: &str) -> Result<f64, String> {
        let Some(gateway) = self.metrics else { return Ok(0.0) };
        let (page, upstream) = (gateway.metrics().await?, format!("upstream=\"{}\"", self.upstream));
        let samples = page.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')));
        let ours = samples.filter(|line| line.contains(&upstream) && line.contains(label));
        Ok(ours.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
    }

    async fn cancelled_tasks(&self) -> Result<f64, String> {
        self.metric("taskgate_tasks_settled_total", "outcome=\"cancelled\"").await
    }

    /// The number of cancels at the upstream: of a plain call, and of a task of its own.
    fn cancellations(&self) -> [usize; 2] {
        [self.tap.count("notifications/cancelled"), self.tap.count("\"tasks/cancel\"")]
    }

    fn tasks_asked_for(&self) -> [usize; 2] {
        ASKS_FOR_TASK.map(|text| self.tap.count(text))
    }

    /// Waits for one more cancel at the upstream, and until no task of it is left.
    async fn told(&self, before: [usize; 2]) -> Result<(), String> {
        let mut looks = interval(LOOK_PERIOD);
        let told = async {
            while self.cancellations() == before || self.metric("taskgate_tasks_in_flight", "").await? > 0.0 {
                looks.tick().await;
            }
            Ok(())
        };
        timeout(CANCEL_MAX, told).await.unwrap_or_else(|_| Err("the upstream was not told to stop".to_owned()))
    }
}

pub(super) async fn cell(client: Client, peers: &Peers, bench: &Bench<'_>, case: Case) -> Cell {
    let Some(call) = client.call(bench.upstream, case) else { return Ok(None) };
    let (told_before, cancelled_before) = (bench.cancellations(), bench.cancelled_tasks().await?);
    let asked_before = bench.tasks_asked_for();
    let called_before = bench.tap.count("\"tools/call\"");
    client.make(peers, bench.url, call).await?;
    let is_cancel = call.expected == Expected::Cancelled;
    if is_cancel {
        bench.told(told_before).await?;
    }
    let cancelled = bench.cancelled_tasks().await? - cancelled_before;
    let told = grown(told_before, bench.cancellations());
    let expected = if is_cancel { [usize::from(!call.native), usize::from(call.native)] } else { [0; 2] };
    let counted = if is_cancel && bench.metrics.is_some() { 1.0 } else { 0.0 };
    #[allow(clippy::float_cmp, reason = "metrics count in whole numbers")]
    if cancelled != counted || told != expected {
        return Err(format!("{cancelled} tasks were cancelled, the upstream was told of {told:?}, not {expected:?}"));
    }
    let asked = grown(asked_before, bench.tasks_asked_for());
    if asked != [usize::from(call.native); 2] {
        return Err(format!("the upstream was asked for {asked:?} tasks of its own"));
    }
    // The gateway itself answers a call of a tool that is hidden.
    if bench.tap.count("\"tools/call\"") == called_before && call.tool != NO_TOOL {
        return Err("the upstream was not called".to_owned());
    }
    let probes = bench.tap.count(PROBE);
    if probes > bench.gateways {
        return Err(format!("the upstream was asked for its era {probes} times"));
    }
    match FOREIGN.into_iter().find(|(text, allowed)| bench.tap.count(text) > allowed * probes) {
        Some((text, _)) => Err(format!("the upstream was sent `{text}`")),
        None => Ok(Some(call.way)),
    }
}

fn grown(before: [usize; 2], after: [usize; 2]) -> [usize; 2] {
    [after[0] - before[0], after[1] - before[1]]
}

/// The report: a row for each client and upstream, a column for each case.
pub(crate) fn table(rows: &[Row]) -> String {
    let titles: String = Case::ALL.iter().map(|case| format!(" {} |", case.title())).collect();
    let mut table = format!("| client | upstream |{titles}\n|---|---|{}\n", "---|".repeat(Case::ALL.len()));
    for row in rows {
        let _ = write!(table, "| {} | {} |", row.client.title(), row.upstream);
        for (_, cell) in &row.cells {
            let _ = match cell {
                Ok(None) => write!(table, " - |"),
                Ok(Some(Way::Plain)) => write!(table, " ok (plain) |"),
                Ok(Some(Way::Task)) => write!(table, " ok (task) |"),
                Err(why) => write!(table, " FAIL {} |", why.replace(['|', '\n'], " ")),
            };
        }
        table.push('\n');
    }
    table
}
