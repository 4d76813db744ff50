//! Memory of the gateway alone: what one held call, one task or one session takes, and what a large answer does.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::line::Line;
use crate::load::as_float;
use crate::messages::{self, Client};
use crate::parts::Part;
use crate::plan::{LOOK_EVERY, PATIENCE, PLAIN, Size, TASKS, create, open_session};
use crate::upstream;

const HELD_TASK: &str = "held task";
const HELD_CALL: &str = "held plain call";
const HELD_PIPED_CALL: &str = "held call in the pipe";
const IDLE_SESSION: &str = "idle session";
const HUGE_ANSWER: &str = "10 MB answer in the pipe, peak while it passes";

/// The most bytes of a call in the pipe, and of a task whose call has a connection of its own, or shares one.
const PIPED_CALL_BUDGET: f64 = 48e3;
pub(crate) const TASK_BUDGET: f64 = 27e3;
pub(crate) const SHARED_TASK_BUDGET: f64 = 10e3;

/// How long a process is left alone before its memory is read.
const REST: Duration = Duration::from_millis(500);

/// What the gateway takes before and with `count` of something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) what: &'static str,
    pub(crate) count: usize,
    pub(crate) before: u64,
    pub(crate) after: u64,
    /// The most bytes for one of them, where there is such a bound.
    pub(crate) budget: Option<f64>,
}

impl Memory {
    /// Bytes for one of `count`.
    pub(crate) fn each(&self) -> f64 {
        as_float(usize::try_from(self.after.saturating_sub(self.before)).unwrap_or(usize::MAX)) / as_float(self.count)
    }
}

/// All that `wanted` asks for.
pub(crate) async fn all(config: &Path, upstream: &Part, (size, wanted): (Size, &str)) -> anyhow::Result<Vec<Memory>> {
    let mut all = Vec::new();
    if HELD_TASK.contains(wanted) {
        all.push(held_tasks(config, upstream, size.held_tasks).await?);
    }
    if HELD_CALL.contains(wanted) {
        all.push(held_calls(config, upstream, (HELD_CALL, size.held_calls)).await?);
    }
    if HELD_PIPED_CALL.contains(wanted) {
        all.push(held_calls(config, upstream, (HELD_PIPED_CALL, size.held_calls)).await?);
    }
    if IDLE_SESSION.contains(wanted) {
        all.push(idle_sessions(config, size.sessions).await?);
    }
    if HUGE_ANSWER.contains(wanted) {
        all.push(huge_answers(config, upstream, size.huge).await?);
    }
    Ok(all)
}

/// Tasks whose calls are in progress at an HTTP/1.1 upstream.
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
    Ok(Memory { what: HELD_TASK, count, before, after, budget: Some(TASK_BUDGET) })
}

/// Calls that are in progress, each with a connection on either side.
async fn held_calls(config: &Path, upstream: &Part, (what, count): (&'static str, usize)) -> anyhow::Result<Memory> {
    let gateway = Part::gateway(config).await?;
    let session = open_session(&gateway, PLAIN).await?;
    let request = |tool| match what {
        HELD_PIPED_CALL => messages::session_call(PLAIN, &session, tool),
        _ => messages::call(PLAIN, Client::Plain, tool),
    };
    Line::connect(gateway.address).await?.ask(&request(upstream::SMALL)).await?;
    let before = at_rest(&gateway).await?;
    let held = request(upstream::HOLD);
    let mut lines = Vec::with_capacity(count);
    for _ in 0..count {
        let mut line = Line::connect(gateway.address).await?;
        line.send(&held).await?;
        lines.push(line);
    }
    wait_for_held(upstream, count).await?;
    let after = at_rest(&gateway).await?;
    drop(lines);
    wait_for_held(upstream, 0).await?;
    let budget = (what == HELD_PIPED_CALL).then_some(PIPED_CALL_BUDGET);
    Ok(Memory { what, count, before, after, budget })
}

/// Sessions that were opened, over one connection, and are left alone.
async fn idle_sessions(config: &Path, count: usize) -> anyhow::Result<Memory> {
    let gateway = Part::gateway(config).await?;
    let mut line = Line::connect(gateway.address).await?;
    let opening = messages::initialize(PLAIN);
    for _ in 0..100 {
        line.ask(&opening).await?;
    }
    let before = at_rest(&gateway).await?;
    for _ in 0..count {
        line.ask(&opening).await?;
    }
    let after = at_rest(&gateway).await?;
    Ok(Memory { what: IDLE_SESSION, count, before, after, budget: None })
}

/// The most that the gateway ever takes while large answers pass, one after the other, the first of them held
/// back in the middle: its beginning must come before its end has left the upstream.
async fn huge_answers(config: &Path, upstream: &Part, count: usize) -> anyhow::Result<Memory> {
    let gateway = Part::gateway(config).await?;
    let session = open_session(&gateway, PLAIN).await?;
    let mut line = Line::connect(gateway.address).await?;
    line.ask(&messages::session_call(PLAIN, &session, upstream::SMALL)).await?;
    let before = at_rest(&gateway).await?;
    let mut held = Line::connect(gateway.address).await?;
    held.send(&messages::session_call(PLAIN, &session, upstream::HALF)).await?;
    ensure!(held.begin().await.context("an answer is held back until it is whole")? > 0, "nothing came");
    drop(held);
    wait_for_held(upstream, 0).await?;
    let request = messages::session_call(PLAIN, &session, upstream::HUGE);
    for _ in 0..count {
        line.ask(&request).await?;
    }
    Ok(Memory { what: HUGE_ANSWER, count: 1, before, after: gateway.resident_peak()?, budget: None })
}

/// Resident memory once nothing goes on any more.
pub(crate) async fn at_rest(part: &Part) -> anyhow::Result<u64> {
    tokio::time::sleep(REST).await;
    part.resident()
}

/// Waits until that many calls are in progress at the upstream.
pub(crate) async fn wait_for_held(upstream: &Part, count: usize) -> anyhow::Result<()> {
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
