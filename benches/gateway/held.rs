//! Many calls that are in progress at once: what they take, and how well polls go beside them.
//!
//! Two gateways stand in front of one upstream, both with a store on disk: one holds all calls, the other a few.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tempfile::{NamedTempFile, TempDir};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::line::Line;
use crate::load::Round;
use crate::memory::{Memory, SHARED_TASK_BUDGET, TASK_BUDGET, at_rest, wait_for_held};
use crate::messages;
use crate::parts::Part;
use crate::plan::{Comparison, Size, TASKS, create, typical};
use crate::report::{Figure, Must};
use crate::{rows, secure, upstream};

const POLLS: &str = "tasks/get beside calls in progress, store on disk";
const HELD: &str = "held task, store on disk";
const HELD_HTTP2: &str = "held task, store on disk, HTTP/2 upstream";

/// Clients that make the tasks, and that poll.
const MAKERS: usize = 64;
const POLLERS: usize = 8;
/// Calls that the other gateway holds.
const FEW: usize = 64;

/// The most memory of all tasks together.
const MEMORY_MAX: u64 = 400 << 20;

/// What was found out about the calls, if `wanted` asks for it.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) comparisons: Vec<Comparison>,
    pub(crate) memory: Vec<Memory>,
    pub(crate) figures: Vec<Figure>,
}

pub(crate) async fn all(
    upstream: &Part,
    (address, certificates): (SocketAddr, &Path),
    (size, wanted): (Size, &str),
) -> anyhow::Result<Found> {
    if !POLLS.contains(wanted) && !HELD.contains(wanted) {
        return Ok(Found::default());
    }
    let mut found = Found::default();
    beside(upstream, size, &mut found).await?;
    let ca = certificates.join(secure::CERTIFICATE);
    let upstream_lines = format!("url = \"https://{address}/mcp\"\ntls.ca = \"{}\"", ca.display());
    over_http2(upstream, &upstream_lines, size, &mut found).await?;
    Ok(found)
}

/// Over HTTP/1.1 each call has a connection of its own.
async fn beside(upstream: &Part, size: Size, found: &mut Found) -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let lines = format!("url = \"http://{}/mcp\"", upstream.address);
    let configs = [config(&lines, &folder.path().join("all"))?, config(&lines, &folder.path().join("few"))?];
    let (with_all, with_few) = (Part::gateway(configs[0].path()).await?, Part::gateway(configs[1].path()).await?);
    let few = hold(&with_few, FEW).await?;
    wait_for_held(upstream, FEW).await?;
    let (all, memory) = fill(&with_all, upstream, (HELD, FEW, TASK_BUDGET), size.live_tasks).await?;
    found.memory.push(memory);
    let (all, few) = (requests(&all), requests(&few));
    for (part, requests) in [(&with_all, &all), (&with_few, &few)] {
        poll_all(part, requests, size.small / 4).await?;
    }
    let (mut of_all, mut of_few) = (Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        of_few.push(poll_all(&with_few, &few, size.small).await?);
        of_all.push(poll_all(&with_all, &all, size.small).await?);
    }
    found.figures.push(within(&with_all, size, "over HTTP/1.1")?);
    drop((with_all, with_few));
    wait_for_held(upstream, 0).await?;
    found.figures.push(Figure {
        what: format!("{} calls in progress: polls of their tasks", size.live_tasks),
        found: format!("{:.0}/s", typical(&of_all).rate),
        must: Must::None,
    });
    let sides = [("taskgate, few in progress", of_few.as_slice()), ("taskgate", &of_all)];
    found.comparisons.push(Comparison::of(POLLS, sides));
    Ok(())
}

/// Over HTTP/2 all calls share a connection.
async fn over_http2(upstream: &Part, lines: &str, size: Size, found: &mut Found) -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let config = config(lines, &folder.path().join("data"))?;
    let gateway = Part::gateway(config.path()).await?;
    let (_, memory) = fill(&gateway, upstream, (HELD_HTTP2, 0, SHARED_TASK_BUDGET), size.live_tasks).await?;
    found.memory.push(memory);
    found.figures.push(within(&gateway, size, "over HTTP/2")?);
    drop(gateway);
    wait_for_held(upstream, 0).await
}

/// Makes tasks beside `others` that the upstream has; returns their ids and what they take.
async fn fill(
    gateway: &Part,
    upstream: &Part,
    (what, others, budget): (&'static str, usize, f64),
    count: usize,
) -> anyhow::Result<(Vec<String>, Memory)> {
    create(&mut Line::connect(gateway.address).await?, upstream::SMALL).await?;
    let before = at_rest(gateway).await?;
    let tasks = hold(gateway, count).await?;
    wait_for_held(upstream, others + count).await?;
    let after = at_rest(gateway).await?;
    Ok((tasks, Memory { what, count, before, after, budget: Some(budget) }))
}

fn within(gateway: &Part, size: Size, how: &str) -> anyhow::Result<Figure> {
    let peak = gateway.resident_peak()?;
    Ok(Figure {
        what: format!("{} calls in progress {how}: memory, at most", size.live_tasks),
        found: format!("{} MiB", peak >> 20),
        must: Must::of(format!("<= {} MiB", MEMORY_MAX >> 20), peak <= MEMORY_MAX),
    })
}

/// One upstream and few clients, so that as many calls as possible fit under the limit on open files.
fn config(upstream: &str, folder: &Path) -> anyhow::Result<NamedTempFile> {
    let mut file = NamedTempFile::with_suffix(".toml").context("no room for a configuration")?;
    write!(
        file,
        r#"listen.address = "127.0.0.1:0"
admin.address = "127.0.0.1:0"
{store}
limits.tasks_per_principal_max = 20_000
limits.connections_max = 128

[upstreams.tasks]
{upstream}
in_flight_max = 10_001
tasks.mode = "always"
"#,
        store = rows::store_in(folder),
    )?;
    Ok(file)
}

/// Makes tasks whose calls end only with the gateway; returns their ids.
async fn hold(part: &Part, count: usize) -> anyhow::Result<Vec<String>> {
    let tracker = TaskTracker::new();
    let mut making = Vec::with_capacity(MAKERS);
    for number in 0..MAKERS {
        let mut line = Line::connect(part.address).await?;
        let own = count / MAKERS + usize::from(number < count % MAKERS);
        making.push(tracker.spawn(async move {
            let mut tasks = Vec::with_capacity(own);
            for _ in 0..own {
                tasks.push(create(&mut line, upstream::HOLD).await?);
            }
            anyhow::Ok(tasks)
        }));
    }
    let mut tasks = Vec::with_capacity(count);
    for maker in making {
        tasks.extend(maker.await??);
    }
    Ok(tasks)
}

/// A poll of a task, and the id that its answer names.
type Poll = (Vec<u8>, String);

/// The tasks of each poller.
fn requests(tasks: &[String]) -> Vec<Arc<[Poll]>> {
    let poll = |task: &String| (messages::poll(TASKS, task), task.clone());
    (0..POLLERS).map(|number| tasks.iter().skip(number).step_by(POLLERS).map(poll).collect()).collect()
}

/// Polls all tasks in turn, `count` times in all.
async fn poll_all(part: &Part, polls: &[Arc<[Poll]>], count: usize) -> anyhow::Result<Round> {
    let tracker = TaskTracker::new();
    let mut lines = Vec::with_capacity(POLLERS);
    for _ in 0..POLLERS {
        lines.push(Line::connect(part.address).await?);
    }
    let (before, began) = (part.cpu()?, Instant::now());
    let asking: Vec<_> = lines
        .into_iter()
        .zip(polls)
        .map(|(line, own)| tracker.spawn(poll_repeatedly(line, Arc::clone(own), count / POLLERS)))
        .collect();
    let mut latencies = Vec::with_capacity(count);
    for poller in asking {
        latencies.extend(poller.await??);
    }
    let took = began.elapsed();
    Ok(Round::of(latencies, part.cpu()? - before, took))
}

async fn poll_repeatedly(mut line: Line, own: Arc<[Poll]>, times: usize) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::with_capacity(times);
    for (request, task) in own.iter().cycle().take(times) {
        let began = Instant::now();
        let answer = String::from_utf8_lossy(line.ask(request).await?);
        ensure!(answer.contains(task) && answer.contains("\"working\""), "a call in progress is not: {answer}");
        latencies.push(began.elapsed());
    }
    Ok(latencies)
}
