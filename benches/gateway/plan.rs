//! What is measured, in order: polls and plain calls next to bare servers, then memory.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::load::{Crowd, Line, Question, Round, as_float};
use crate::messages::{self, Client};
use crate::parts::Part;
use crate::{bare, upstream};

/// Paths at the gateway: one whose tools are plain until they are slow, one whose calls are tasks at once.
const PLAIN: &str = "/plain/mcp";
const TASKS: &str = "/tasks/mcp";

const HELD_TASK: &str = "held task";
const HELD_CALL: &str = "held plain call";

/// How long anything that is waited for may take.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a process is left alone before its memory is read.
const REST: Duration = Duration::from_millis(500);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    rounds: usize,
    clients: usize,
    /// Requests of one round where answers are small, and where they are large.
    small: usize,
    large: usize,
    held_tasks: usize,
    held_calls: usize,
}

impl Size {
    pub(crate) const FULL: Self =
        Self { rounds: 7, clients: 8, small: 20_000, large: 4_000, held_tasks: 1_000, held_calls: 400 };
    pub(crate) const TRIAL: Self =
        Self { rounds: 1, clients: 2, small: 200, large: 40, held_tasks: 20, held_calls: 20 };
}

/// One comparison: medians over the rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comparison {
    pub(crate) what: &'static str,
    pub(crate) peer: &'static str,
    pub(crate) bare: Round,
    pub(crate) gateway: Round,
    /// The gateway's CPU per request over the bare server's: the median of each round's ratio.
    pub(crate) ratio: f64,
}

/// Memory of the gateway alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) what: &'static str,
    pub(crate) count: usize,
    pub(crate) before: u64,
    pub(crate) after: u64,
}

impl Memory {
    /// Bytes for one of `count`.
    pub(crate) fn each(&self) -> f64 {
        as_float(usize::try_from(self.after.saturating_sub(self.before)).unwrap_or(usize::MAX)) / as_float(self.count)
    }
}

/// Everything that a run found out.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) comparisons: Vec<Comparison>,
    pub(crate) memory: Vec<Memory>,
}

/// Runs all of it whose name contains `wanted`.
///
/// # Errors
/// If a part does not start, or an answer is wrong.
pub(crate) async fn run(size: Size, wanted: &str) -> anyhow::Result<Measured> {
    let upstream = Part::own(&[upstream::NAME]).await?;
    let config = config(upstream.address)?;
    let comparisons = compare_all(config.path(), &upstream, (size, wanted)).await?;
    let mut memory = Vec::new();
    if HELD_TASK.contains(wanted) {
        memory.push(held_tasks(config.path(), &upstream, size.held_tasks).await?);
    }
    if HELD_CALL.contains(wanted) {
        memory.push(held_calls(config.path(), &upstream, size.held_calls).await?);
    }
    Ok(Measured { comparisons, memory })
}

async fn compare_all(config: &Path, upstream: &Part, (size, wanted): (Size, &str)) -> anyhow::Result<Vec<Comparison>> {
    let mut comparisons = Vec::new();
    let gateway = Part::gateway(config).await?;
    let tasks = Part::own(&[bare::TASKS]).await?;
    let polls = [
        ("tasks/get, small result", upstream::SMALL, size.small),
        ("tasks/get, 100 kB result", upstream::LARGE, size.large),
    ];
    for (what, tool, requests) in polls.into_iter().filter(|(what, ..)| what.contains(wanted)) {
        let (at_bare, at_gateway) = polls_of(tool, &tasks, &gateway).await?;
        let sides = [(&tasks, at_bare), (&gateway, at_gateway)];
        comparisons.push(compare((what, "bare task server"), sides, (size, requests)).await?);
    }
    let proxy = Part::own(&[bare::PROXY, &upstream.address.to_string()]).await?;
    let calls = [
        ("plain call, small answer", upstream::SMALL, size.small),
        ("plain call, 100 kB answer", upstream::LARGE, size.large),
    ];
    for (what, tool, requests) in calls.into_iter().filter(|(what, ..)| what.contains(wanted)) {
        let request = messages::call(PLAIN, Client::Plain, tool);
        let (at_bare, at_gateway) = (call_of(tool, &request, &proxy).await?, call_of(tool, &request, &gateway).await?);
        let sides = [(&proxy, at_bare), (&gateway, at_gateway)];
        comparisons.push(compare((what, "bare proxy"), sides, (size, requests)).await?);
    }
    let piped = [
        ("session call in the pipe, small answer", upstream::SMALL, size.small),
        ("session call in the pipe, 100 kB answer", upstream::LARGE, size.large),
    ];
    for (what, tool, requests) in piped.into_iter().filter(|(what, ..)| what.contains(wanted)) {
        let request = messages::session_call(PLAIN, &open_session(&gateway).await?, tool);
        let (at_bare, at_gateway) = (call_of(tool, &request, &proxy).await?, call_of(tool, &request, &gateway).await?);
        ensure!(at_bare.answer == at_gateway.answer, "the pipe changed an answer");
        let sides = [(&proxy, at_bare), (&gateway, at_gateway)];
        comparisons.push(compare((what, "bare proxy"), sides, (size, requests)).await?);
    }
    Ok(comparisons)
}

/// Opens a session at the gateway; returns its id.
async fn open_session(gateway: &Part) -> anyhow::Result<String> {
    let mut line = Line::connect(gateway.address).await?;
    line.ask(&messages::initialize(PLAIN)).await?;
    line.header("mcp-session-id").context("no session was given out")
}

fn config(upstream: SocketAddr) -> anyhow::Result<NamedTempFile> {
    let mut file = NamedTempFile::with_suffix(".toml").context("no room for a configuration")?;
    write!(
        file,
        r#"listen.address = "127.0.0.1:0"
admin.address = "127.0.0.1:0"
store.kind = "memory"
limits.tasks_per_principal_max = 10_000

[upstreams.plain]
url = "http://{upstream}/mcp"
in_flight_max = 10_000

[upstreams.tasks]
url = "http://{upstream}/mcp"
in_flight_max = 10_000
tasks.mode = "always"
"#
    )?;
    Ok(file)
}

/// Warms both sides up, then lets them take turns, so that whatever else happens on the machine meets both.
async fn compare(
    (what, peer): (&'static str, &'static str),
    [bare, gateway]: [(&Part, Question); 2],
    (size, requests): (Size, usize),
) -> anyhow::Result<Comparison> {
    let (bare, at_bare) = bare;
    let (gateway, at_gateway) = gateway;
    let mut bare_crowd = Crowd::connect(bare.address, size.clients, at_bare).await?;
    let mut gateway_crowd = Crowd::connect(gateway.address, size.clients, at_gateway).await?;
    bare_crowd.round(bare, requests / 4).await?;
    gateway_crowd.round(gateway, requests / 4).await?;
    let (mut of_bare, mut of_gateway) = (Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        of_bare.push(bare_crowd.round(bare, requests).await?);
        of_gateway.push(gateway_crowd.round(gateway, requests).await?);
    }
    let ratios = of_gateway.iter().zip(&of_bare).map(|(gateway, bare)| gateway.cpu / bare.cpu);
    Ok(Comparison { what, peer, ratio: median(ratios), bare: typical(&of_bare), gateway: typical(&of_gateway) })
}

fn typical(rounds: &[Round]) -> Round {
    let of = |field: fn(&Round) -> f64| median(rounds.iter().map(field));
    Round {
        cpu: of(|round| round.cpu),
        p50: of(|round| round.p50),
        p99: of(|round| round.p99),
        rate: of(|round| round.rate),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A settled task at the gateway, and the same answer in the bare server: both then say the same bytes.
async fn polls_of(tool: &str, tasks: &Part, gateway: &Part) -> anyhow::Result<(Question, Question)> {
    let mut line = Line::connect(gateway.address).await?;
    let task = create(&mut line, tool).await?;
    let poll = messages::poll(TASKS, &task);
    let ends_at = tokio::time::Instant::now() + PATIENCE;
    let answer = loop {
        let answer = line.ask(&poll).await?.to_vec();
        let seen: Value = serde_json::from_slice(&answer)?;
        if seen["result"]["status"] == "completed" {
            check_text(&seen["result"]["result"], tool)?;
            break answer;
        }
        ensure!(tokio::time::Instant::now() < ends_at, "never settled: {seen}");
        tokio::time::sleep(LOOK_EVERY).await;
    };
    let result = std::str::from_utf8(&answer)?
        .strip_prefix(r#"{"jsonrpc":"2.0","id":1,"result":"#)
        .and_then(|rest| rest.strip_suffix('}'))
        .context("the gateway writes its envelopes in another way")?;
    let mut line = Line::connect(tasks.address).await?;
    line.ask(&messages::put(&format!("/{task}"), result.as_bytes())).await?;
    let question = Question { request: poll, answer };
    Ok((question.clone(), question))
}

/// Calls a tool that becomes a task; returns the task's id.
async fn create(line: &mut Line, tool: &str) -> anyhow::Result<String> {
    let handle: Value = serde_json::from_slice(line.ask(&messages::call(TASKS, Client::OfTasks, tool)).await?)?;
    handle["result"]["taskId"].as_str().map(str::to_owned).with_context(|| format!("no handle: {handle}"))
}

/// What a plain call is answered with by one side, once it has been found right.
async fn call_of(tool: &str, request: &[u8], part: &Part) -> anyhow::Result<Question> {
    let mut line = Line::connect(part.address).await?;
    let answer = line.ask(request).await?.to_vec();
    let seen: Value = serde_json::from_slice(&answer)?;
    ensure!(seen["id"] == 1, "an answer to nobody: {seen}");
    check_text(&seen["result"], tool)?;
    Ok(Question { request: request.to_vec(), answer })
}

fn check_text(result: &Value, tool: &str) -> anyhow::Result<()> {
    ensure!(result["content"][0]["text"] == upstream::text_of(tool), "a wrong result: {result}");
    Ok(())
}

/// Memory of tasks whose calls are in progress at an HTTP/1.1 upstream.
async fn held_tasks(config: &Path, upstream: &Part, count: usize) -> anyhow::Result<Memory> {
    let gateway = Part::gateway(config).await?;
    let mut line = Line::connect(gateway.address).await?;
    create(&mut line, upstream::SMALL).await?;
    let before = at_rest(&gateway).await?;
    let mut task = String::new();
    for _ in 0..count {
        task = create(&mut line, upstream::HOLD).await?;
    }
    wait_for_held(upstream, count).await?;
    let after = at_rest(&gateway).await?;
    let seen: Value = serde_json::from_slice(line.ask(&messages::poll(TASKS, &task)).await?)?;
    ensure!(seen["result"]["status"] == "working", "a held task is not working: {seen}");
    drop(gateway);
    wait_for_held(upstream, 0).await?;
    Ok(Memory { what: HELD_TASK, count, before, after })
}

/// Memory of plain calls that are in progress, each with a connection on either side.
async fn held_calls(config: &Path, upstream: &Part, count: usize) -> anyhow::Result<Memory> {
    let gateway = Part::gateway(config).await?;
    let mut line = Line::connect(gateway.address).await?;
    line.ask(&messages::call(PLAIN, Client::Plain, upstream::SMALL)).await?;
    let before = at_rest(&gateway).await?;
    let request = messages::call(PLAIN, Client::Plain, upstream::HOLD);
    let mut lines = Vec::with_capacity(count);
    for _ in 0..count {
        let mut line = Line::connect(gateway.address).await?;
        line.send(&request).await?;
        lines.push(line);
    }
    wait_for_held(upstream, count).await?;
    let after = at_rest(&gateway).await?;
    drop(lines);
    wait_for_held(upstream, 0).await?;
    Ok(Memory { what: HELD_CALL, count, before, after })
}

async fn at_rest(part: &Part) -> anyhow::Result<u64> {
    tokio::time::sleep(REST).await;
    part.resident()
}

/// Waits until that many calls are in progress at the upstream.
async fn wait_for_held(upstream: &Part, count: usize) -> anyhow::Result<()> {
    let mut line = Line::connect(upstream.address).await?;
    let ends_at = tokio::time::Instant::now() + PATIENCE;
    loop {
        let held: usize = serde_json::from_slice(line.ask(&messages::get(upstream::HELD_PATH)).await?)?;
        if held == count {
            return Ok(());
        }
        ensure!(tokio::time::Instant::now() < ends_at, "{held} calls in progress instead of {count}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
