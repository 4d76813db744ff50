//! Settles overdue tasks and removes expired ones, in batches.

use std::collections::BTreeSet;
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
/// Tasks that could not be settled and that the next sweeps skip.
const STUCK_MAX: usize = 10_000;

const INTERVAL: Duration = Duration::from_secs(1);

pub async fn run(engine: Arc<Engine>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut stuck = StuckTasks::default();
    // One line for an outage of the store, however long it lasts.
    let mut is_failing = false;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let swept = sweep_beside(&engine, &mut stuck).await;
        match (&swept, is_failing) {
            (Err(error), false) => {
                tracing::warn!(error = %CauseChain(error), "overdue tasks cannot be settled or removed")
            }
            (Ok(()), true) => tracing::info!("overdue tasks are settled and removed again"),
            (Err(_), true) | (Ok(()), false) => (),
        }
        is_failing = swept.is_err();
    }
}

/// Overdue tasks that could not be settled. They are tried again after all others: else they would fill each list.
#[derive(Debug, Default)]
struct StuckTasks(BTreeSet<TaskKey>);

impl StuckTasks {
    /// How many overdue tasks must be read to find others.
    fn limit(&self) -> usize {
        BATCH + self.0.len()
    }

    /// The tasks to settle now, of the overdue ones that were read.
    fn others(&self, mut overdue: Vec<TaskKey>) -> Vec<TaskKey> {
        overdue.retain(|key| !self.0.contains(key));
        overdue.truncate(BATCH);
        overdue
    }

    fn tried(&mut self, tried: usize) {
        if tried < BATCH || self.0.len() + BATCH > STUCK_MAX {
            self.0.clear();
        }
    }
}

/// Settles overdue tasks and removes expired ones, side by side; a stuck one delays no other. Completed changes remain.
pub async fn sweep(engine: &Arc<Engine>) -> Result<(), TaskError> {
    sweep_beside(engine, &mut StuckTasks::default()).await
}

async fn sweep_beside(engine: &Arc<Engine>, stuck: &mut StuckTasks) -> Result<(), TaskError> {
    let now = engine.clock.now();
    let (mut is_overdue, mut is_gone, mut failed) = (true, true, None);
    while is_overdue || is_gone {
        let overdue = if is_overdue { engine.store.overdue(now, stuck.limit()).await? } else { Vec::new() };
        let overdue = stuck.others(overdue);
        let found = overdue.len();
        let ended = futures_util::stream::iter(overdue)
            .map(|key| async move { expire(engine, &key).await.map_err(|error| (key, error)) })
            .buffer_unordered(AT_ONCE)
            .fold((0, None), |(done, failed), one| {
                std::future::ready(match one {
                    Ok(()) => (done + 1, failed),
                    Err((key, error)) => {
                        stuck.0.insert(key);
                        (done, failed.or(Some(error)))
                    }
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
        if is_overdue {
            stuck.tried(found);
        }
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
            tracing::debug!(task = %LoggedTask(key), error = %CauseChain(&error), "an overdue task could not be settled");
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Principal, TaskId};

    /// F98: each sweep reads the oldest ones first.
    #[test]
    fn f98_tasks_that_cannot_be_settled_keep_no_later_one_from_it() {
        let key = |number: usize| TaskKey { owner: Principal::local(), id: TaskId::from_bits(number as u128) };
        for later in [0, 1, BATCH - 1, BATCH, 3 * BATCH, STUCK_MAX - 2 * BATCH] {
            let (mut stuck, mut tries) = (StuckTasks::default(), vec![0; later + 1]);
            for _ in 0..4 * STUCK_MAX / BATCH {
                let overdue = stuck.others((0..=later).map(key).take(stuck.limit()).collect());
                for found in &overdue {
                    tries[usize::try_from(found.id.bits()).unwrap()] += 1;
                }
                let tried = overdue.len();
                stuck.0.extend(overdue);
                stuck.tried(tried);
                assert!(stuck.0.len() <= STUCK_MAX);
            }
            assert!(tries.iter().all(|tries| *tries > 1), "{later} before one: {tries:?}");
        }
    }
}
