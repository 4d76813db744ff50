//! What is measured, in order: polls and calls next to bare servers, the durable stores, and memory.
//!
//! [`ROWS`] is the plan: a call that is to be measured is one line more.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use crate::line::{Line, Protocol};
use crate::load::{Crowd, Question, Round};
use crate::memory::{self, Memory};
use crate::messages::{self, Client};
use crate::parts::{Part, Proxy};
use crate::report::{Figure, Must};
use crate::upstream::{EVENTS, HUGE, LARGE, SMALL, text_of};
use crate::{
    bare, bare_tasks, creates, credentials, endpoints, fairness, held, kept, lists, lives, row_lives, shared, splits,
    starts, upstream,
};

/// Paths at the gateway: one whose tools are plain until they are slow, one whose calls are tasks at once.
pub(crate) const PLAIN: &str = "/plain/mcp";
pub(crate) const TASKS: &str = "/tasks/mcp";
/// The same upstream as a server without sessions.
const STATELESS: &str = "/stateless/mcp";

/// How long anything that is waited for may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The most CPU of a poll, next to the bare task server's.
const POLL_BUDGET: f64 = 1.25;
/// The most connections of a load with large answers.
const LARGE_CLIENTS_MAX: usize = 8;
/// How much later than the bare proxy's the median answer of the gateway may come over a single connection.
const LATENCY_BUDGET: f64 = 25.0;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) rounds: usize,
    /// Connections of a load with small answers.
    pub(crate) clients: usize,
    /// Requests of one round where answers are small, where they are large, and where they are huge.
    pub(crate) small: usize,
    pub(crate) large: usize,
    pub(crate) huge: usize,
    pub(crate) held_tasks: usize,
    pub(crate) held_calls: usize,
    pub(crate) sessions: usize,
    /// Tasks made in one round.
    pub(crate) creates: usize,
    /// Tasks made, and rows inserted, one after the other in one round.
    pub(crate) commits: usize,
    /// Pages of lists in one round.
    pub(crate) pages: usize,
    /// Calls of 100 elements in one round.
    pub(crate) splits: usize,
    /// Calls that are in progress while tasks are polled.
    pub(crate) live_tasks: usize,
    /// Rows of a store that a gateway starts with.
    pub(crate) rows: usize,
    /// Calls that are held beside others.
    pub(crate) held: usize,
    /// Questions of a client that asks now and then, in one round.
    pub(crate) now_and_then: usize,
    /// Settled rows of stores that are polled.
    pub(crate) kept: [usize; 3],
}

impl Size {
    pub(crate) const FULL: Self = Self {
        rounds: 3,
        clients: 32,
        small: 20_000,
        large: 4_000,
        huge: 64,
        held_tasks: 1_000,
        held_calls: 400,
        sessions: 10_000,
        creates: 6_400,
        commits: 1_000,
        pages: 1_000,
        splits: 50,
        live_tasks: 10_000,
        rows: 100_000,
        held: 5_000,
        now_and_then: 1_000,
        kept: [1_000, 100_000, 1_000_000],
    };
    /// What a compiler has to see of each load.
    pub(crate) const TRAINING: Self = Self {
        rounds: 1,
        clients: 8,
        small: 6_000,
        large: 600,
        huge: 8,
        held_tasks: 200,
        held_calls: 100,
        sessions: 500,
        creates: 1_600,
        commits: 200,
        pages: 200,
        splits: 10,
        live_tasks: 800,
        rows: 2_000,
        held: 200,
        now_and_then: 200,
        kept: [200, 1_000, 4_000],
    };
    pub(crate) const TRIAL: Self = Self {
        rounds: 1,
        clients: 2,
        small: 200,
        large: 40,
        huge: 4,
        held_tasks: 20,
        held_calls: 20,
        sessions: 50,
        creates: 128,
        commits: 20,
        pages: 20,
        splits: 2,
        live_tasks: 80,
        rows: 500,
        held: 40,
        now_and_then: 20,
        kept: [50, 200, 500],
    };
}

/// One comparison: medians over the rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparison {
    pub(crate) what: &'static str,
    pub(crate) peer: &'static str,
    pub(crate) server: &'static str,
    pub(crate) bare: Round,
    pub(crate) measured: Round,
    /// The measured server's CPU per request over the bare one's: the median of each round's ratio, and the least and the
    /// greatest of them.
    pub(crate) ratio: f64,
    pub(crate) spread: [f64; 2],
    /// The most that it may be, where there is such a bound.
    pub(crate) budget: Option<f64>,
}

impl Comparison {
    /// Of rounds that took turns: the bare server's, then the measured one's.
    pub(crate) fn of(what: &'static str, sides: [(&'static str, &[Round]); 2]) -> Self {
        let [(peer, of_bare), (server, of_measured)] = sides;
        let ratios = || of_measured.iter().zip(of_bare).map(|(measured, bare)| measured.cpu / bare.cpu);
        Self {
            what,
            peer,
            server,
            bare: typical(of_bare),
            measured: typical(of_measured),
            ratio: median(ratios()),
            spread: [ratios().fold(f64::INFINITY, f64::min), ratios().fold(f64::NEG_INFINITY, f64::max)],
            budget: None,
        }
    }

    pub(crate) fn within(self, budget: Option<f64>) -> Self {
        Self { budget, ..self }
    }
}

/// Everything that a run found out.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) comparisons: Vec<Comparison>,
    pub(crate) memory: Vec<Memory>,
    /// Single numbers, each with what it must be.
    pub(crate) figures: Vec<Figure>,
}

/// Whose call it is, and so what becomes of it at the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    /// A client of 2026-07-28 whose calls are bridged to the upstream's sessions.
    Stateless,
    /// A client of 2026-07-28 in the pipe: the upstream has no sessions either.
    Piped,
    /// A client of 2025-11-25 in the pipe: the answer is the upstream's, byte for byte.
    Session,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Gateway,
    /// Measured where it is on `PATH`.
    Other(Proxy),
}

/// A `tools/call` through a server, next to the same through the bare proxy.
pub(crate) struct Row {
    pub(crate) what: &'static str,
    server: Server,
    caller: Caller,
    protocol: Protocol,
    pub(crate) tool: &'static str,
    budget: Option<f64>,
    /// Whether its requests come over a single connection, which shows the latency of an idle gateway.
    is_alone: bool,
    /// The tool that answers with as much text as its argument has, if it has one.
    argument: Option<&'static str>,
}

impl Row {
    const fn of(what: &'static str, caller: Caller, tool: &'static str) -> Self {
        let (server, protocol) = (Server::Gateway, Protocol::Http1);
        Self { what, server, caller, protocol, tool, budget: None, is_alone: false, argument: None }
    }

    const fn within(self, budget: f64) -> Self {
        Self { budget: Some(budget), ..self }
    }

    const fn alone(self) -> Self {
        Self { is_alone: true, ..self }
    }

    const fn with_argument(self, as_long_as: &'static str) -> Self {
        Self { argument: Some(as_long_as), ..self }
    }

    const fn over(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    const fn at(self, server: Server) -> Self {
        Self { server, ..self }
    }

    /// The request for the gateway, and the one for the bare proxy: that one passes it on to the path that it names.
    pub(crate) async fn requests(&self, gateway: &Part) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
        let same = |request: Vec<u8>| (request.clone(), request);
        let arguments = self.argument.map_or_else(|| json!({}), |tool| json!({"text": text_of(tool)}));
        let call = |path| messages::call_with(path, Client::Plain, self.tool, &arguments);
        Ok(match self.caller {
            Caller::Stateless => same(call(PLAIN)),
            Caller::Session => {
                let session = open_session(gateway, PLAIN).await?;
                same(messages::session_call_with(PLAIN, &session, self.tool, &arguments))
            }
            Caller::Piped => (call(STATELESS), call(upstream::STATELESS)),
        })
    }
}

/// The rows whose instructions are counted: those of the gateway over HTTP/1.1 with answers of a common size.
pub(crate) fn counted_rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(|row| {
        row.server == Server::Gateway && row.protocol == Protocol::Http1 && row.tool != HUGE && !row.is_alone
    })
}

const ROWS: [Row; 14] = [
    Row::of("plain call, small answer", Caller::Stateless, SMALL).within(1.7),
    Row::of("plain call, 100 kB answer", Caller::Stateless, LARGE).within(1.7),
    Row::of("session call in the pipe, small answer", Caller::Session, SMALL).within(1.25),
    Row::of("session call in the pipe, small answer over one connection", Caller::Session, SMALL).alone(),
    Row::of("session call in the pipe, small answer as an event", Caller::Session, EVENTS).within(1.4),
    Row::of("session call in the pipe, small answer over HTTP/2", Caller::Session, SMALL).over(Protocol::Http2),
    Row::of("session call in the pipe, 100 kB answer", Caller::Session, LARGE).within(1.08),
    Row::of("session call in the pipe, 100 kB request and answer", Caller::Session, LARGE)
        .with_argument(LARGE)
        .within(1.2),
    Row::of("session call in the pipe, 10 MB answer", Caller::Session, HUGE).within(1.05),
    Row::of("2026-07-28 call in the pipe, small answer", Caller::Piped, SMALL).within(1.4),
    Row::of("2026-07-28 call in the pipe, 100 kB answer", Caller::Piped, LARGE),
    Row::of("2026-07-28 call in the pipe, 100 kB request and answer", Caller::Piped, LARGE)
        .with_argument(LARGE)
        .within(1.35),
    Row::of("call through nginx, small answer", Caller::Session, SMALL).at(Server::Other(Proxy::Nginx)),
    Row::of("call through HAProxy, small answer", Caller::Session, SMALL).at(Server::Other(Proxy::Haproxy)),
];

/// Runs all of it whose name contains `wanted`.
///
/// # Errors
/// If a part does not start, or an answer is wrong.
pub(crate) async fn run(size: Size, wanted: &str) -> anyhow::Result<Measured> {
    let folder = TempDir::new()?;
    let at = folder.path().to_str().context("the folder for temporary files has a strange name")?;
    let mut upstream = Part::own(&[upstream::NAME, at]).await?;
    let secure = upstream.printed(upstream::SECURE).await?;
    let config = config(upstream.address)?;
    let gateways = Part::gateways([config.path(); 2]).await?;
    let mut comparisons = compare_polls(&gateways, upstream.address, (size, wanted)).await?;
    let (calls, latencies) = compare_calls(&gateways, &upstream, (size, wanted)).await?;
    comparisons.extend(calls);
    drop(gateways);
    comparisons.extend(credentials::compare_all(upstream.address, (size, wanted)).await?);
    let (creates, mut figures) = creates::compare(upstream.address, (size, wanted)).await?;
    comparisons.extend(creates);
    figures.extend(latencies);
    comparisons.extend(lives::compare(upstream.address, (size, wanted)).await?);
    let (on_database, of_database) = shared::all(upstream.address, (size, wanted)).await?;
    comparisons.extend(on_database);
    figures.extend(of_database);
    figures.extend(row_lives::all((size, wanted)).await?);
    comparisons.extend(lists::compare(upstream.address, (size, wanted)).await?);
    comparisons.extend(splits::compare(upstream.address, (size, wanted)).await?);
    let (at_endpoints, of_lists) = endpoints::all(upstream.address, (size, wanted)).await?;
    comparisons.extend(at_endpoints);
    figures.extend(of_lists);
    let mut memory = memory::all(config.path(), &upstream, (size, wanted)).await?;
    let held = held::all(&upstream, (secure, folder.path()), (size, wanted)).await?;
    comparisons.extend(held.comparisons);
    memory.extend(held.memory);
    figures.extend(held.figures);
    figures.extend(fairness::all(&upstream, (size, wanted)).await?);
    figures.extend(kept::all(upstream.address, (size, wanted)).await?);
    figures.extend(starts::all(upstream.address, (size, wanted)).await?);
    Ok(Measured { comparisons, memory, figures })
}

async fn compare_polls(
    gateways: &[(&'static str, Part)],
    upstream: SocketAddr,
    (size, wanted): (Size, &str),
) -> anyhow::Result<Vec<Comparison>> {
    let tasks = Part::own(&[bare_tasks::TASKS, &upstream.to_string()]).await?;
    let mut comparisons = Vec::new();
    for (what, tool) in [("tasks/get, small result", SMALL), ("tasks/get, 100 kB result", LARGE)] {
        if !what.contains(wanted) {
            continue;
        }
        let mut sides = Vec::new();
        for (name, gateway) in gateways {
            let (at_bare, at_gateway) = polls_of(tool, &tasks, gateway).await?;
            if sides.is_empty() {
                sides.push(("bare task server", &tasks, at_bare));
            }
            sides.push((*name, gateway, at_gateway));
        }
        let load = (connections(size, tool), requests(size, tool), Protocol::Http1);
        let found = compare_all(what, sides, size.rounds, load).await?;
        comparisons.extend(found.into_iter().map(|one| one.within(Some(POLL_BUDGET))));
    }
    Ok(comparisons)
}

async fn compare_calls(
    gateways: &[(&'static str, Part)],
    upstream: &Part,
    (size, wanted): (Size, &str),
) -> anyhow::Result<(Vec<Comparison>, Vec<Figure>)> {
    let upstream = upstream.address.to_string();
    let proxy = Part::own(&[bare::PROXY, &upstream]).await?;
    let proxy_http2 = Part::own(&[bare::PROXY_HTTP2, &upstream]).await?;
    let (mut comparisons, mut latencies) = (Vec::new(), Vec::new());
    for row in ROWS.iter().filter(|row| row.what.contains(wanted)) {
        let other;
        let servers = match row.server {
            Server::Gateway => gateways,
            Server::Other(proxy) => match Part::proxy(proxy, upstream.parse()?).await? {
                Some(part) => {
                    other = [(proxy.program(), part)];
                    &other
                }
                None => continue,
            },
        };
        let peer = match row.protocol {
            Protocol::Http1 => &proxy,
            Protocol::Http2 => &proxy_http2,
        };
        let mut sides = Vec::new();
        for (at, (name, server)) in servers.iter().enumerate() {
            // Another proxy passes on a session that the gateway opened.
            let gateway = if row.server == Server::Gateway { server } else { &gateways[at].1 };
            let (request, to_peer) = row.requests(gateway).await?;
            let at_peer = call_of(row, &to_peer, peer).await?;
            let at_server = call_of(row, &request, server).await?;
            ensure!(
                row.caller == Caller::Stateless || at_peer.answer == at_server.answer,
                "the pipe changed an answer"
            );
            if sides.is_empty() {
                sides.push(("bare proxy", peer, at_peer));
            }
            sides.push((*name, server, at_server));
        }
        let connections = if row.is_alone { 1 } else { connections(size, row.tool) };
        let load = (connections, requests(size, row.tool), row.protocol);
        let found = compare_all(row.what, sides, size.rounds, load).await?;
        latencies.extend(found.iter().filter(|_| row.is_alone).map(latency));
        comparisons.extend(found.into_iter().map(|one| one.within(row.budget)));
    }
    Ok((comparisons, latencies))
}

/// How much later the median answer comes than the bare server's.
fn latency(one: &Comparison) -> Figure {
    let later = one.measured.p50 - one.bare.p50;
    Figure {
        what: format!("{}, {}: p50 beyond the bare proxy's", one.what, one.server),
        found: format!("{later:.0} us"),
        must: Must::of(format!("<= {LATENCY_BUDGET:.0} us"), later <= LATENCY_BUDGET),
    }
}

fn connections(size: Size, tool: &str) -> usize {
    if matches!(tool, LARGE | HUGE) { size.clients.min(LARGE_CLIENTS_MAX) } else { size.clients }
}

/// How often a tool is called in one round.
fn requests(size: Size, tool: &str) -> usize {
    match tool {
        HUGE => size.huge,
        LARGE => size.large,
        _ => size.small,
    }
}

/// Opens a session at a path of the gateway; returns its id.
pub(crate) async fn open_session(gateway: &Part, path: &str) -> anyhow::Result<String> {
    let mut line = Line::connect(gateway.address).await?;
    line.ask(&messages::initialize(path)).await?;
    line.header("mcp-session-id").context("no session was given out")
}

fn config(upstream: SocketAddr) -> anyhow::Result<NamedTempFile> {
    config_with(upstream, r#"store.kind = "memory""#)
}

/// The same with another store.
pub(crate) fn config_with(upstream: SocketAddr, store: &str) -> anyhow::Result<NamedTempFile> {
    config_of(&config_text(upstream, store))
}

pub(crate) fn config_of(text: &str) -> anyhow::Result<NamedTempFile> {
    let mut file = NamedTempFile::with_suffix(".toml").context("no room for a configuration")?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}

pub(crate) fn config_text(upstream: SocketAddr, store: &str) -> String {
    format!(
        r#"listen.address = "127.0.0.1:0"
admin.address = "127.0.0.1:0"
{store}
limits.tasks_per_principal_max = 10_000

[upstreams.plain]
url = "http://{upstream}/mcp"
in_flight_max = 10_000

[upstreams.tasks]
url = "http://{upstream}/mcp"
in_flight_max = 10_000
tasks.mode = "always"

[upstreams.stateless]
url = "http://{upstream}{stateless}"
protocol = "2026-07-28"
in_flight_max = 10_000
"#,
        stateless = upstream::STATELESS,
    )
}

pub(crate) async fn compare(
    what: &'static str,
    sides: [(&'static str, &Part, Question); 2],
    size: Size,
    (requests, protocol): (usize, Protocol),
) -> anyhow::Result<Comparison> {
    let found = compare_all(what, sides.into(), size.rounds, (size.clients, requests, protocol)).await?;
    found.into_iter().next().context("one side is measured")
}

/// Compares every further server with the first. Warms all of them up, then lets them take turns, so that other load on the
/// machine slows all of them.
async fn compare_all(
    what: &'static str,
    sides: Vec<(&'static str, &Part, Question)>,
    rounds: usize,
    (connections, requests, protocol): (usize, usize, Protocol),
) -> anyhow::Result<Vec<Comparison>> {
    let warming = requests.div_ceil(4).max(connections);
    let mut crowds = Vec::with_capacity(sides.len());
    for (server, part, question) in sides {
        let mut crowd = Crowd::connect(part.address, (connections, protocol), question).await?;
        crowd.round(&[part], warming).await?;
        crowds.push((server, part, crowd, Vec::with_capacity(rounds)));
    }
    for _ in 0..rounds {
        for (_, part, crowd, found) in &mut crowds {
            found.push(crowd.round(&[part], requests).await?);
        }
    }
    let Some(((peer, _, _, of_bare), measured)) = crowds.split_first() else { return Ok(Vec::new()) };
    let compared = |(server, _, _, found): &(&'static str, &Part, Crowd, Vec<Round>)| {
        Comparison::of(what, [(*peer, of_bare), (*server, found)])
    };
    Ok(measured.iter().map(compared).collect())
}

pub(crate) fn typical(rounds: &[Round]) -> Round {
    let of = |field: fn(&Round) -> f64| median(rounds.iter().map(field));
    Round {
        cpu: of(|round| round.cpu),
        p50: of(|round| round.p50),
        p99: of(|round| round.p99),
        rate: of(|round| round.rate),
    }
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A settled task at the gateway, and the same answer in the bare server: both then say the same bytes.
pub(crate) async fn polls_of(tool: &str, tasks: &Part, gateway: &Part) -> anyhow::Result<(Question, Question)> {
    let mut line = Line::connect(gateway.address).await?;
    let task = create(&mut line, tool).await?;
    let poll = messages::poll(TASKS, &task);
    let answer = settled(&mut line, &poll, tool).await?;
    let result = std::str::from_utf8(&answer)?
        .strip_prefix(r#"{"jsonrpc":"2.0","id":1,"result":"#)
        .and_then(|rest| rest.strip_suffix('}'))
        .context("the gateway writes its envelopes in another way")?;
    let mut line = Line::connect(tasks.address).await?;
    line.ask(&messages::put(&format!("/{task}"), result.as_bytes())).await?;
    let question = Question::of(poll, answer);
    Ok((question.clone(), question))
}

/// Polls a task until it has settled with what its tool answers with; returns the answer that says so.
pub(crate) async fn settled(line: &mut Line, poll: &[u8], tool: &str) -> anyhow::Result<Vec<u8>> {
    let ends_at = tokio::time::Instant::now() + PATIENCE;
    loop {
        let answer = line.ask(poll).await?.to_vec();
        let seen: Value = serde_json::from_slice(&answer)?;
        if seen["result"]["status"] == "completed" {
            check_text(&seen["result"]["result"], tool)?;
            return Ok(answer);
        }
        ensure!(tokio::time::Instant::now() < ends_at, "never settled: {seen}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Calls a tool that becomes a task; returns the task's id.
pub(crate) async fn create(line: &mut Line, tool: &str) -> anyhow::Result<String> {
    let handle: Value = serde_json::from_slice(line.ask(&messages::call(TASKS, Client::OfTasks, tool)).await?)?;
    handle["result"]["taskId"].as_str().map(str::to_owned).with_context(|| format!("no handle: {handle}"))
}

/// What a call is answered with by one side, once it has been found right.
pub(crate) async fn call_of(row: &Row, request: &[u8], part: &Part) -> anyhow::Result<Question> {
    answer_of(part, row.protocol, request, row.tool).await
}

/// The same of a call of a tool.
pub(crate) async fn answer_of(part: &Part, protocol: Protocol, request: &[u8], tool: &str) -> anyhow::Result<Question> {
    let mut line = Line::connect_with(part.address, protocol).await?;
    let answer = line.ask(request).await?.to_vec();
    let message = answer.strip_prefix(b"event: message\ndata: ").unwrap_or(&answer);
    let seen: Value = serde_json::from_slice(message)?;
    ensure!(seen["id"] == 1, "an answer to nobody: {seen}");
    check_text(&seen["result"], tool)?;
    Ok(Question::of(request.to_vec(), answer))
}

fn check_text(result: &Value, tool: &str) -> anyhow::Result<()> {
    ensure!(result["content"][0]["text"] == text_of(tool), "a wrong result: {result}");
    Ok(())
}
