//! Has the writer remove what is left of lives that are long dead: a portion now and then.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::batch::{RETIRED_SUMS_MAX, WriteOutcome};
use super::columns::count;
use super::task_write::TaskWrite;
use super::writer::PendingWrite;
use crate::replica::Incarnation;
use crate::store::tasks::StoreError;

const PASS_EVERY: Duration = Duration::from_secs(60);
/// Portions of one pass.
const PORTIONS_MAX: usize = 16;

/// Makes passes until the store is closed.
pub(super) async fn run(queue: mpsc::Sender<PendingWrite>, end: CancellationToken) {
    let mut passes = tokio::time::interval(PASS_EVERY);
    passes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first comes at once, when whoever opened the store has other things to do.
    passes.reset();
    loop {
        let making = async {
            passes.tick().await;
            pass(&queue, None).await
        };
        let made = tokio::select! {
            made = making => made,
            () = end.cancelled() => return,
        };
        if let Err(error) = made {
            tracing::debug!(%error, "what is left of dead lives stays for now");
        }
    }
}

/// Portion by portion, until one is not full: of all that are long dead, or of one life that is dead.
pub(super) async fn pass(queue: &mpsc::Sender<PendingWrite>, life: Option<Incarnation>) -> Result<(), StoreError> {
    for _ in 0..PORTIONS_MAX {
        let (reply, outcome) = oneshot::channel();
        queue.send((TaskWrite::Retire { life }, reply)).await.map_err(|_| super::closed())?;
        let outcome = outcome.await.map_err(|_| super::closed())??;
        let folded = if let WriteOutcome::Folded(folded) = outcome { folded } else { 0 };
        if folded < count(RETIRED_SUMS_MAX) {
            return Ok(());
        }
    }
    Ok(())
}
