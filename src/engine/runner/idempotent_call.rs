//! Runs calls with an idempotency key: a repetition finds the task of the first and is not sent again (B135, T-27).
//!
//! The row, with the name, is there before the upstream is called, and the store lets one of two concurrent inserts
//! through: so at most one call is made under a name while its task lives.

use super::row::not_stored;
use super::{CallEnd, CallEvent, Runner, RunnerFlow, lost};
use crate::cause::CauseChain;
use crate::engine::TaskError;
use crate::store::{StoreError, StoredTask};
use crate::task::reference::{LoggedPrincipal, LoggedTask};
use crate::task::{Executed, Failure, GatewayFault, Idempotency, Outcome, Reason, TaskVisibility};

/// How often the name of a task that ends meanwhile is tried again.
const TRIES_MAX: usize = 4;

impl Runner {
    /// Makes the task of a named call, or hands out the one that was made under its name.
    pub(super) async fn prepare_named(&mut self) -> RunnerFlow {
        let Some(named) = self.spec.idempotency else { return RunnerFlow::Continue };
        for _ in 0..TRIES_MAX {
            let now = self.engine.clock.now();
            match self.engine.store.find_idempotent(&self.spec.owner, &named.key, now).await {
                Ok(Some(row)) => match self.repeat(named, row).await {
                    Some(next) => return next,
                    None => continue,
                },
                Ok(None) if self.place.is_none() => return self.refuse(self.engine.admission.refusal()).await,
                Ok(None) => (),
                Err(error) => return self.not_stored(error).await,
            }
            match self.try_insert(TaskVisibility::Handle, None).await {
                Ok(task) => return self.hand_out(task).await,
                // Another request under this name was first.
                Err(StoreError::Exists) => (),
                Err(error) => return self.not_stored(error).await,
            }
        }
        self.refuse(Reason::StoreFailed).await
    }

    async fn not_stored(&mut self, error: StoreError) -> RunnerFlow {
        tracing::warn!(error = %CauseChain(&error), "a named call has no task");
        self.end(lost(not_stored(error))).await
    }

    /// Answers with the task that has the name; `None` if it is gone meanwhile.
    async fn repeat(&mut self, named: Idempotency, row: StoredTask) -> Option<RunnerFlow> {
        // A row that was damaged does not know its call any more, and has failed.
        if row.task.idempotency.is_some_and(|first| first.call != named.call) {
            self.client.end(CallEnd::Misnamed).await;
            return Some(RunnerFlow::Stop);
        }
        match self.engine.get(&row.task.key).await {
            Ok(task) => {
                tracing::info!(task = %LoggedTask(&task.key), principal = %LoggedPrincipal(&task.key.owner), "a repeated call found its task");
                self.client.hand_over(CallEvent::Created(task)).await;
                Some(RunnerFlow::Stop)
            }
            Err(TaskError::Unknown) => None,
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "the task of a repeated call could not be read");
                // The first one may have run; this one certainly did not.
                let fault = GatewayFault::new(error.reason(), Executed::Unknown);
                Some(self.end(Outcome::Faulted(Failure::Gateway(fault))).await)
            }
        }
    }
}
