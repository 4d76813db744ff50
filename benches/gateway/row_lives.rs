//! Whole lives of rows at the stores themselves, without HTTP and an upstream: what a life costs the database, and how many there
//! are in a second next to the store on disk.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use taskgate::store::postgres::PostgresStore;
use taskgate::store::{DiskStore, Revision, TaskStore, WriteRole};
use taskgate::task::{Attempt, Event, Task, transition};
use taskgate::wire::Payload;
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::database::Database;
use crate::load::as_float;
use crate::plan::{Size, median};
use crate::report::{Figure, Must};
use crate::rows;

const WRITERS: usize = 64;
const LIVES: &str = "life of a task's row on a database, 64 at once";
/// The most CPU of the database and its standby for a life, in microseconds.
const CPU_MAX: f64 = 300.0;
/// How much later each change of a task is, by its own times: a list is ordered by them.
const PROGRESS_EVERY: Duration = Duration::from_secs(40);
/// What a result holds.
const TEXT_BYTES: usize = 400;

/// All that `wanted` asks for; nothing where PostgreSQL is missing.
pub(crate) async fn all((size, wanted): (Size, &str)) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    if !LIVES.contains(wanted) {
        return Ok(figures);
    }
    let folder = TempDir::new()?;
    let disk = DiskStore::open(rows::settings(&folder.path().join("data"))).await?;
    let mut numbers = 0..;
    let mut next = |count: usize| numbers.by_ref().take(count).map(rows::live).collect::<Vec<_>>();
    for has_standby in [false, true] {
        let Some(database) = Database::start(has_standby).await? else { break };
        let store = PostgresStore::open(database.settings("lives")).await?;
        let (mut on_disk, mut shared, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
        live(&store, next(size.creates.div_ceil(4))).await?;
        for _ in 0..size.rounds {
            on_disk.push(live(&disk, next(size.creates)).await?);
            let (before, lives) = (database.cpu()?, next(size.creates));
            let count = as_float(lives.len());
            shared.push(live(&store, lives).await?);
            cpu.push((database.cpu()? - before).as_secs_f64() * 1e6 / count);
        }
        TaskStore::close(&*store).await;
        let of = format!("{LIVES}{}", database.name());
        let cpu = median(cpu.into_iter());
        let must = if has_standby { Must::of(format!("<= {CPU_MAX} us"), cpu <= CPU_MAX) } else { Must::None };
        figures.push(Figure { what: format!("{of}: CPU of the database"), found: format!("{cpu:.0} us"), must });
        let (rate, of_disk) = (median(shared.iter().copied()), median(on_disk.iter().copied()));
        let ratio = median(shared.iter().zip(&on_disk).map(|(one, other)| one / other));
        let found = format!("{ratio:.2} ({rate:.0}/s next to {of_disk:.0}/s)");
        figures.push(Figure { what: format!("{of}: rate next to the store on disk"), found, must: Must::None });
    }
    disk.close().await;
    Ok(figures)
}

/// Has each task made, sent, moved on twice, settled, polled twice and removed; how many in a second.
async fn live<S: TaskStore + 'static>(store: &Arc<S>, tasks: Vec<Task>) -> anyhow::Result<f64> {
    let (tracker, count) = (TaskTracker::new(), tasks.len());
    let shares: Vec<Vec<Task>> = tasks.chunks(count.div_ceil(WRITERS)).map(<[Task]>::to_vec).collect();
    let began = Instant::now();
    let living = shares.into_iter().map(|share| {
        let store = Arc::clone(store);
        tracker.spawn(async move {
            for task in share {
                live_once(&*store, task).await?;
            }
            anyhow::Ok(())
        })
    });
    for one in living.collect::<Vec<_>>() {
        one.await??;
    }
    Ok(as_float(count) / began.elapsed().as_secs_f64())
}

async fn live_once(store: &dyn TaskStore, mut task: Task) -> anyhow::Result<()> {
    let now = task.created_at;
    let mut revision = store.insert(&task).await?;
    let put = async |task: &Task, at: Revision| store.replace(at, WriteRole::Holder, task).await;
    task.recovery.dispatched_at = Some(now);
    revision = put(&task, revision).await?;
    store.load(&task.key, now).await?.context("it is gone")?;
    let (attempt, result) = (Attempt::FIRST, Payload::of(&"x".repeat(TEXT_BYTES)));
    for (message, at) in [("1 of 3", PROGRESS_EVERY), ("2 of 3", PROGRESS_EVERY * 2)] {
        task = transition(task, Event::Progressed { attempt, message: message.into() }, now.after(at)).0;
        revision = put(&task, revision).await?;
    }
    let event = Event::Returned { attempt, result, is_error: false };
    let task = transition(task, event, now.after(PROGRESS_EVERY * 3)).0;
    put(&task, revision).await?;
    store.load(&task.key, now).await?.context("it is gone")?;
    Ok(store.remove(&task.key).await?)
}
