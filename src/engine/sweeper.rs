//! Settles overdue tasks and removes expired ones, in batches.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use super::{Engine, TaskError};
use crate::cause::CauseChain;
use crate::metric;
use crate::store::WriteRole;
use crate::task::reference::LoggedTask;
use crate::task::{Event, TaskKey};

/// Rows read before other tasks may run.
const BATCH: usize = 1_000;
/// Tasks settled together, so that the store can merge their commits.
const AT_ONCE: usize = 64;

const INTERVAL: Duration = Duration::from_secs(1);

pub async fn run(engine: Arc<Engine>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Err(error) = sweep(&engine).await {
            tracing::warn!(error = %CauseChain(&error), "the sweep did not finish");
        }
    }
}

/// Settles overdue tasks as faults and removes expired ones, side by side; a task that cannot be settled delays no
/// other. If the store fails, completed changes remain.
pub async fn sweep(engine: &Arc<Engine>) -> Result<(), TaskError> {
    let now = engine.clock.now();
    let (mut is_overdue, mut is_gone, mut failed) = (true, true, None);
    while is_overdue || is_gone {
        let overdue = if is_overdue { engine.store.overdue(now, BATCH).await? } else { Vec::new() };
        let found = overdue.len();
        let ended = futures_util::stream::iter(overdue)
            .map(|key| async move { expire(engine, &key).await })
            .buffer_unordered(AT_ONCE)
            .fold((0, None), |(done, failed), one| {
                std::future::ready(match one {
                    Ok(()) => (done + 1, failed),
                    Err(error) => (done, failed.or(Some(error))),
                })
            });
        crate::failpoint::hit("sweeping");
        let freeing = async { if is_gone { engine.store.sweep(now, BATCH).await } else { Ok(0) } };
        let ((done, why), freed) = tokio::join!(ended, freeing);
        let freed = freed?;
        let usage = engine.store.usage();
        metrics::gauge!(metric::STORE_ROWS).set(usage.tasks as f64);
        metrics::gauge!(metric::STORE_BYTES).set(usage.bytes as f64);
        metrics::gauge!(metric::STORE_BYTES_ABOVE).set(usage.bytes.saturating_sub(engine.store.bytes_max()) as f64);
        failed = failed.or(why);
        // Without progress, the next sweep tries again. The store decides how many rows it removes at a time.
        (is_overdue, is_gone) = (found >= BATCH && done > 0, freed > 0);
        tokio::task::yield_now().await;
    }
    failed.map_or(Ok(()), Err)
}

async fn expire(engine: &Arc<Engine>, key: &TaskKey) -> Result<(), TaskError> {
    match engine.apply(key, WriteRole::Command, Event::TtlElapsed).await {
        // Another writer settled and removed it in between.
        Ok(_) | Err(TaskError::Unknown) => Ok(()),
        Err(error) => {
            tracing::warn!(task = %LoggedTask(key), error = %CauseChain(&error), "an overdue task could not be settled");
            Err(error)
        }
    }
}
