//! Tasks that are made by many clients at once: on disk next to in memory, and next to bare commits of the same store.
//!
//! Each task settles soon after, beside the next ones: a task is two durable writes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use taskgate::store::{DiskStore, TaskStore};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::line::Line;
use crate::load::{Round, as_float};
use crate::messages::{self, Client};
use crate::parts::Part;
use crate::plan::{Comparison, Size, TASKS, config_with, median, typical};
use crate::report::{Figure, Must};
use crate::rows;
use crate::upstream::SMALL;

const CLIENTS: usize = 64;

const CREATES: &str = "create a task on disk, 64 clients";

/// The least rate next to that of the store in memory, and next to commits one after the other.
const OF_MEMORY_MIN: f64 = 0.3;
const OF_COMMITS_MIN: f64 = 4.0;
/// The most that a disk may add to the typical wait, in microseconds.
const ADDED_MAX: f64 = 5_000.0;

/// Everything about creates, if `wanted` is part of their name.
pub(crate) async fn compare(
    upstream: SocketAddr,
    (size, wanted): (Size, &str),
) -> anyhow::Result<(Vec<Comparison>, Vec<Figure>)> {
    if !CREATES.contains(wanted) {
        return Ok((Vec::new(), Vec::new()));
    }
    let folder = TempDir::new()?;
    let on_disk = rows::store_in(&folder.path().join("served"));
    let (in_memory, on_disk) = (config_with(upstream, "store.kind = \"memory\"")?, config_with(upstream, &on_disk)?);
    let (memory, disk) = (Part::gateway(in_memory.path()).await?, Part::gateway(on_disk.path()).await?);
    let bare = DiskStore::open(rows::settings(&folder.path().join("bare"))).await?;
    for part in [&memory, &disk] {
        round(part, size.creates.div_ceil(4).max(CLIENTS)).await?;
    }
    let (mut of_memory, mut of_disk, mut of_commits) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..size.rounds {
        of_memory.push(round(&memory, size.creates).await?);
        of_disk.push(round(&disk, size.creates).await?);
        of_commits.push(commits(&bare, number, size.commits).await?);
    }
    bare.close().await;
    let (at_memory, at_disk) = (typical(&of_memory), typical(&of_disk));
    let over = |others: &[f64]| median(of_disk.iter().zip(others).map(|(disk, other)| disk.rate / other));
    let memory_rates: Vec<f64> = of_memory.iter().map(|round| round.rate).collect();
    let (of_memory_rate, of_commit_rate) = (over(&memory_rates), over(&of_commits));
    let figures = vec![
        Figure {
            what: format!("{CREATES}: rate next to the store in memory"),
            found: format!("{of_memory_rate:.2} ({:.0}/s next to {:.0}/s)", at_disk.rate, at_memory.rate),
            must: Must::of(format!(">= {OF_MEMORY_MIN}"), of_memory_rate >= OF_MEMORY_MIN),
        },
        Figure {
            what: format!("{CREATES}: rate next to single commits"),
            found: format!(
                "{of_commit_rate:.2} ({:.0}/s next to {:.0}/s)",
                at_disk.rate,
                median(of_commits.iter().copied())
            ),
            must: Must::of(format!(">= {OF_COMMITS_MIN}"), of_commit_rate >= OF_COMMITS_MIN),
        },
        Figure {
            what: format!("{CREATES}: p50 beyond that of the store in memory"),
            found: format!("{:.2} ms", (at_disk.p50 - at_memory.p50) / 1e3),
            must: Must::of(format!("<= {:.0} ms", ADDED_MAX / 1e3), at_disk.p50 - at_memory.p50 <= ADDED_MAX),
        },
    ];
    let comparison = Comparison {
        what: CREATES,
        peer: "taskgate, store in memory",
        server: "taskgate",
        bare: at_memory,
        measured: at_disk,
        ratio: median(of_disk.iter().zip(&of_memory).map(|(disk, memory)| disk.cpu / memory.cpu)),
    };
    Ok((vec![comparison], figures))
}

/// Inserts one row after the other, each once the one before is on the disk; returns how many in a second.
async fn commits(store: &DiskStore, round: usize, count: usize) -> anyhow::Result<f64> {
    let before = store.commits();
    let began = Instant::now();
    for number in 0..count {
        store.insert(&rows::live(round * count + number)).await?;
    }
    let took = began.elapsed();
    ensure!(store.commits() - before == count as u64, "not every row had a commit of its own");
    Ok(as_float(count) / took.as_secs_f64())
}

/// Makes `creates` tasks in all, each client the next one as soon as it has a handle.
async fn round(part: &Part, creates: usize) -> anyhow::Result<Round> {
    let request: Arc<[u8]> = messages::call(TASKS, Client::OfTasks, SMALL).into();
    let mut lines = Vec::with_capacity(CLIENTS);
    for _ in 0..CLIENTS {
        lines.push(Line::connect(part.address).await?);
    }
    let tracker = TaskTracker::new();
    let (before, began) = (part.cpu()?, Instant::now());
    let making: Vec<_> =
        lines.into_iter().map(|line| tracker.spawn(make(line, Arc::clone(&request), creates / CLIENTS))).collect();
    let mut latencies = Vec::with_capacity(creates);
    for client in making {
        latencies.extend(client.await??);
    }
    let took = began.elapsed();
    Ok(Round::of(latencies, part.cpu()? - before, took))
}

async fn make(mut line: Line, request: Arc<[u8]>, times: usize) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::with_capacity(times);
    for _ in 0..times {
        let began = Instant::now();
        let answer = line.ask(&request).await?;
        let is_handle = answer.windows(8).any(|window| window == b"\"taskId\"");
        ensure!(is_handle, "no handle: {}", String::from_utf8_lossy(answer));
        latencies.push(began.elapsed());
    }
    Ok(latencies)
}
