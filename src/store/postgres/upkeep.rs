//! Periodically removes the remains of long-dead incarnations, and sums that cancel out, in portions.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::batch::{RETIRED_SUMS_MAX, WriteOutcome};
use super::columns::count;
use super::state::StoreState;
use super::sums::StoreSums;
use super::task_write::TaskWrite;
use super::writer::PendingWrite;
use crate::replica::Incarnation;
use crate::store::clock_trust::ClockTrust;
use crate::store::tasks::StoreError;

const PASS_EVERY: Duration = Duration::from_secs(60);
const PORTIONS_MAX: usize = 16;

pub(super) async fn run(
    queue: mpsc::Sender<PendingWrite>,
    state: Arc<StoreState>,
    trust: ClockTrust,
    end: CancellationToken,
) {
    let mut passes = tokio::time::interval(PASS_EVERY);
    passes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first interval ends at once, while the caller of `open` is still busy.
    passes.reset();
    loop {
        let making = async {
            passes.tick().await;
            // The server's clock decides when rows of dead replicas are deleted, and they record when the store was last used.
            if trust.is_distrusted() {
                return Ok(());
            }
            pass(&queue, None).await?;
            merge(&queue, &state.sums).await
        };
        let made = tokio::select! {
            made = making => made,
            () = end.cancelled() => return,
        };
        if let Err(error) = made {
            tracing::debug!(%error, "the rows of dead incarnations, and the sums of owners without tasks, stay for now");
        }
    }
}

/// Until a portion is not full. Of all long-dead incarnations, or of one dead incarnation.
pub(super) async fn pass(
    queue: &mpsc::Sender<PendingWrite>,
    incarnation: Option<Incarnation>,
) -> Result<(), StoreError> {
    for _ in 0..PORTIONS_MAX {
        if write(queue, TaskWrite::Retire { incarnation }).await? < count(RETIRED_SUMS_MAX) {
            return Ok(());
        }
    }
    Ok(())
}

pub(super) async fn merge(queue: &mpsc::Sender<PendingWrite>, sums: &StoreSums) -> Result<(), StoreError> {
    for _ in 0..PORTIONS_MAX {
        let even = sums.even(count(RETIRED_SUMS_MAX));
        let is_last = even.len() < count(RETIRED_SUMS_MAX);
        if !even.is_empty() {
            let owners = even.iter().map(|owner| owner.as_str().as_bytes().to_vec()).collect();
            write(queue, TaskWrite::Merge { owners }).await?;
        }
        if is_last {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the number of affected sums.
async fn write(queue: &mpsc::Sender<PendingWrite>, write: TaskWrite) -> Result<usize, StoreError> {
    let (reply, outcome) = oneshot::channel();
    queue.send((write, reply)).await.map_err(|_| super::closed())?;
    let outcome = outcome.await.map_err(|_| super::closed())??;
    if let WriteOutcome::Folded(folded) = outcome { Ok(folded) } else { Err(super::unreachable_outcome()) }
}
