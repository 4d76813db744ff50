//! Tasks that are made: with a durable store next to one in memory, and many clients next to one.
//!
//! Each task settles soon after, beside the next ones: a task is two durable writes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use futures_util::future::try_join_all;
use taskgate::store::{DiskSettings, DiskStore, TaskStore};
use taskgate::task::{Attempt, InputKey, Origin, Phase, Principal, Recovery, Shown, Task, TaskId, TaskKey, Timestamp};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::line::Line;
use crate::load::{Round, as_float, microseconds, percentile};
use crate::messages::{self, Client};
use crate::parts::Part;
use crate::plan::{Comparison, Size, TASKS, config_with, median, typical};
use crate::upstream::SMALL;

const CLIENTS: usize = 64;
/// Writes that are under way at the same time while a store is filled.
const AT_ONCE: usize = 500;

const DURABLE: &str = "create a task, 64 clients";
const GROUPED: &str = "create a task, 64 clients against one";
const OPENED: &str = "open a store";

/// The comparisons whose name contains `wanted`. The bare side is the store in memory, then the single client.
pub(crate) async fn compare(upstream: SocketAddr, (size, wanted): (Size, &str)) -> anyhow::Result<Vec<Comparison>> {
    if !DURABLE.contains(wanted) && !GROUPED.contains(wanted) {
        return Ok(Vec::new());
    }
    let folder = TempDir::new()?;
    let on_disk = format!("store.path = \"{}\"\nstore.ephemeral = true", folder.path().join("data").display());
    let (in_memory, on_disk) = (config_with(upstream, "store.kind = \"memory\"")?, config_with(upstream, &on_disk)?);
    let (memory, disk) = (Part::gateway(in_memory.path()).await?, Part::gateway(on_disk.path()).await?);
    let (mut of_memory, mut of_disk, mut of_one) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        of_memory.push(round(&memory, CLIENTS, size.creates).await?);
        of_disk.push(round(&disk, CLIENTS, size.creates).await?);
        of_one.push(round(&disk, 1, size.creates / CLIENTS * 4).await?);
    }
    let compared = |what, (peer, bare): (_, &[Round]), server| Comparison {
        what,
        peer,
        server,
        bare: typical(bare),
        measured: typical(&of_disk),
        ratio: median(of_disk.iter().zip(bare).map(|(disk, bare)| disk.cpu / bare.cpu)),
    };
    Ok(vec![
        compared(DURABLE, ("store in memory", &of_memory), "store on disk"),
        compared(GROUPED, ("store on disk, one client", &of_one), "store on disk"),
    ])
}

/// Makes `creates` tasks in all, each client the next one as soon as it has a handle.
async fn round(part: &Part, clients: usize, creates: usize) -> anyhow::Result<Round> {
    let request: Arc<[u8]> = messages::call(TASKS, Client::OfTasks, SMALL).into();
    let mut lines = Vec::with_capacity(clients);
    for _ in 0..clients {
        lines.push(Line::connect(part.address).await?);
    }
    let tracker = TaskTracker::new();
    let (before, began) = (part.cpu()?, Instant::now());
    let making: Vec<_> =
        lines.into_iter().map(|line| tracker.spawn(make(line, Arc::clone(&request), creates / clients))).collect();
    let mut latencies = Vec::with_capacity(creates);
    for client in making {
        latencies.extend(client.await??);
    }
    let (took, cpu) = (began.elapsed(), part.cpu()? - before);
    latencies.sort_unstable();
    let count = as_float(latencies.len());
    Ok(Round {
        cpu: microseconds(cpu) / count,
        p50: percentile(&latencies, 50),
        p99: percentile(&latencies, 99),
        rate: count / took.as_secs_f64(),
    })
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

/// How long it takes to open a store that is full of unsettled tasks.
pub(crate) async fn open_full(size: Size, wanted: &str) -> anyhow::Result<Option<(usize, Duration)>> {
    if !OPENED.contains(wanted) {
        return Ok(None);
    }
    let folder = TempDir::new()?;
    let mut settings = DiskSettings::new(folder.path().join("data"), usize::MAX);
    settings.is_ephemeral = true;
    let store = DiskStore::open(settings.clone()).await?;
    let tasks: Vec<Task> = (1..=size.rows).map(task).collect();
    for together in tasks.chunks(AT_ONCE) {
        try_join_all(together.iter().map(|task| store.insert(task))).await?;
    }
    store.close().await;
    let began = Instant::now();
    let again = DiskStore::open(settings).await?;
    let took = began.elapsed();
    ensure!(again.usage().unsettled == size.rows, "rows are missing: {:?}", again.usage());
    again.close().await;
    Ok(Some((size.rows, took)))
}

fn task(number: usize) -> Task {
    let bits = (number as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let now = Timestamp::from_millis(1_000_000);
    Task {
        key: TaskKey { owner: Principal::local(), id: TaskId::from_bits(bits) },
        shown: Shown::Handle,
        origin: Origin { upstream: Arc::from("demo"), tool: Arc::from("slow"), maker: taskgate::task::Maker::Session },
        created_at: now,
        updated_at: now,
        ttl: Duration::from_secs(86_400),
        keep_result_min: Duration::from_secs(900),
        poll_interval: Duration::from_secs(1),
        attempt: Attempt::FIRST,
        phase: Phase::Working,
        next_key: InputKey::default(),
        status_message: Some("x".repeat(600).into()),
        recovery: Recovery::default(),
        idempotency: None,
    }
}
