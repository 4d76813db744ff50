//! Ends refused tasks with an unknown insert that were stored after all.

use std::sync::Arc;

use super::retry_delays::RetryDelays;
use super::{Engine, TaskError};
use crate::cause::CauseChain;
use crate::store::{StoreError, StoredTask, WriteRole};
use crate::task::{Attempt, Event, Executed, Failure, GatewayFault, Reason, Task, TaskKey};

impl Engine {
    /// Ends the task of a refused call with an unknown insert, once the store confirms its row: other replicas may have
    /// seen it. Until then no other runner takes the task. `executed` says whether the call was sent.
    pub(super) fn end_refused(self: &Arc<Self>, key: TaskKey, executed: Executed) {
        let (engine, leaving) = (Arc::clone(self), self.leaving.clone());
        self.changes.tracker.spawn(async move {
            let mut pauses = RetryDelays::of_writers();
            let mut found = None;
            // The wait may be dropped; the effects of a row's end must complete.
            while let Some(Some(row)) = leaving.run_until_cancelled(engine.found_refused(&key, &mut pauses)).await {
                if engine.ends_refused(found.get_or_insert_with(|| row.task.clone()), row.task.attempt, executed).await
                {
                    break;
                }
            }
            engine.live.remove(&key);
        });
    }

    /// The row of such an insert, once the store confirms whether it exists.
    async fn found_refused(&self, key: &TaskKey, pauses: &mut RetryDelays) -> Option<StoredTask> {
        loop {
            pauses.wait().await;
            match self.store.resolve_write(key, self.clock.now()).await {
                Ok(found) => return found,
                Err(error) => {
                    tracing::debug!(error = %CauseChain(&error), "whether a task was stored is not known yet");
                }
            }
        }
    }

    /// Settles such a task; whether nothing is left to do. `found` is the task at the first read. Not cancel safe.
    async fn ends_refused(self: &Arc<Self>, found: &Task, attempt: Attempt, executed: Executed) -> bool {
        let failure = Failure::Gateway(GatewayFault::new(Reason::StoreFailed, executed));
        let event = Event::Faulted { attempt, failure };
        match self.apply(&found.key, WriteRole::Holder, event).await {
            Ok(_) => {
                // Its end was counted, perhaps by an attempt with an unknown commit, but its beginning was not.
                self.count_in_flight(found);
                true
            }
            Err(TaskError::Unknown | TaskError::Store(StoreError::Fenced)) => true,
            Err(error) => {
                tracing::debug!(error = %CauseChain(&error), "a refused task that was stored after all has not ended yet");
                false
            }
        }
    }
}
