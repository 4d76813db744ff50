//! Tasks that are made by many clients at once: on disk next to in memory, and next to one client alone.
//!
//! Each task settles soon after, beside the next ones, so a task is several durable writes. What one commit for many
//! writes is worth shows at the store itself, without HTTP and an upstream: rows of many writers next to those of one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use taskgate::store::{DiskStore, TaskStore};
use taskgate::task::Task;
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::line::Line;
use crate::load::{Round, as_float, cpu};
use crate::messages::{self, Client};
use crate::parts::Part;
use crate::plan::{Comparison, Size, TASKS, config_with, median, typical};
use crate::report::{Figure, Must};
use crate::rows;
use crate::upstream::SMALL;

const CLIENTS: usize = 64;

const CREATES: &str = "create a task on disk, 64 clients";
const INSERTS: &str = "insert a row at the store on disk, 64 writers";

/// The least rate next to that of the store in memory.
const OF_MEMORY_MIN: f64 = 0.3;
/// The least rate of many next to that of one who makes them one after the other.
const OF_ONE_MIN: f64 = 4.0;
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
        round(&[part], CLIENTS, size.creates.div_ceil(4).max(CLIENTS)).await?;
    }
    let mut found = Found::default();
    let mut numbers = 0..;
    for _ in 0..size.rounds {
        found.of_memory.push(round(&[&memory], CLIENTS, size.creates).await?);
        found.of_disk.push(round(&[&disk], CLIENTS, size.creates).await?);
        found.of_one_client.push(round(&[&disk], 1, size.commits).await?);
        let mut rows = |count| numbers.by_ref().take(count).map(rows::live).collect();
        let (alone, together) = (rows(size.commits), rows(size.creates));
        found.of_one_writer.push(inserts(&bare, alone, 1).await?);
        found.of_writers.push(inserts(&bare, together, CLIENTS).await?);
    }
    bare.close().await;
    Ok((vec![found.comparison()], found.figures()))
}

/// Rounds over HTTP, and rates at the store, all in turn.
#[derive(Debug, Default)]
struct Found {
    of_memory: Vec<Round>,
    of_disk: Vec<Round>,
    of_one_client: Vec<Round>,
    of_one_writer: Vec<f64>,
    of_writers: Vec<f64>,
}

impl Found {
    fn figures(&self) -> Vec<Figure> {
        let (at_memory, at_disk) = (typical(&self.of_memory), typical(&self.of_disk));
        let rates = |rounds: &[Round]| -> Vec<f64> { rounds.iter().map(|round| round.rate).collect() };
        let (memory, disk, one) = (rates(&self.of_memory), rates(&self.of_disk), rates(&self.of_one_client));
        let (writers, writer) = (&self.of_writers, &self.of_one_writer);
        let added = at_disk.p50 - at_memory.p50;
        vec![
            ratio(format!("{CREATES}: rate next to the store in memory"), (&disk, &memory), OF_MEMORY_MIN),
            ratio(format!("{CREATES}: rate next to one client"), (&disk, &one), OF_ONE_MIN),
            ratio(format!("{CREATES}: rate next to one writer at the store itself"), (&disk, writer), OF_ONE_MIN),
            ratio(format!("{INSERTS}: rate next to one writer"), (writers, writer), OF_ONE_MIN),
            Figure {
                what: format!("{CREATES}: p50 beyond the store in memory"),
                found: format!("{:.2} ms", added / 1e3),
                must: Must::of(format!("<= {:.0} ms", ADDED_MAX / 1e3), added <= ADDED_MAX),
            },
        ]
    }

    fn comparison(&self) -> Comparison {
        let sides = [("taskgate, store in memory", self.of_memory.as_slice()), ("taskgate", &self.of_disk)];
        Comparison::of(CREATES, sides)
    }
}

/// The median over the rounds of one rate next to another.
fn ratio(what: String, (rates, others): (&[f64], &[f64]), min: f64) -> Figure {
    let found = median(rates.iter().zip(others).map(|(rate, other)| rate / other));
    let [rate, other] = [rates, others].map(|rates| median(rates.iter().copied()));
    Figure {
        what,
        found: format!("{found:.2} ({rate:.0}/s next to {other:.0}/s)"),
        must: Must::of(format!(">= {min}"), found >= min),
    }
}

/// Inserts rows, each writer the next one once the one before is on the disk; returns how many in a second.
async fn inserts(store: &Arc<DiskStore>, rows: Vec<Task>, writers: usize) -> anyhow::Result<f64> {
    let tracker = TaskTracker::new();
    let (count, before) = (rows.len(), store.commits());
    let shares: Vec<Vec<Task>> = rows.chunks(count.div_ceil(writers)).map(<[Task]>::to_vec).collect();
    let began = Instant::now();
    let insert_all = |share: Vec<Task>| {
        let store = Arc::clone(store);
        async move {
            for row in &share {
                store.insert(row).await?;
            }
            anyhow::Ok(())
        }
    };
    let inserting: Vec<_> = shares.into_iter().map(|share| tracker.spawn(insert_all(share))).collect();
    for writer in inserting {
        writer.await??;
    }
    let took = began.elapsed();
    let commits = store.commits() - before;
    ensure!(writers > 1 || commits == count as u64, "not every row of a lone writer had a commit of its own");
    Ok(as_float(count) / took.as_secs_f64())
}

/// Makes `creates` tasks in all, each client the next one as soon as it has a handle; the clients share the parts.
pub(crate) async fn round(parts: &[&Part], clients: usize, creates: usize) -> anyhow::Result<Round> {
    let request: Arc<[u8]> = messages::call(TASKS, Client::OfTasks, SMALL).into();
    let mut lines = Vec::with_capacity(clients);
    for part in parts.iter().cycle().take(clients) {
        lines.push(Line::connect(part.address).await?);
    }
    let tracker = TaskTracker::new();
    let (before, began) = (cpu(parts)?, Instant::now());
    let making: Vec<_> =
        lines.into_iter().map(|line| tracker.spawn(make(line, Arc::clone(&request), creates / clients))).collect();
    let mut latencies = Vec::with_capacity(creates);
    for client in making {
        latencies.extend(client.await??);
    }
    let took = began.elapsed();
    Ok(Round::of(latencies, cpu(parts)? - before, took))
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
