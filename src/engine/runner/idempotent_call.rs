//! Runs calls with an idempotency key: a repetition is not sent (B135, T-27). The row with the key is inserted before
//! the upstream is called, and the store accepts only one of two concurrent inserts.
//!
//! A client that accepts a handle gets the first call's handle. Any other client waits for the outcome: its call has a
//! row, too, so it outlives the client and the process. While the client is connected, progress and questions go to it.
//! A repetition waits until the row has the outcome, in any replica; its client receives open questions, too.
//!
//! A task id that the client chose is a name, too (D86-06): the row's key derives from it, and repetitions are refused.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::row::{end_without_row, not_stored, outcome_for_client};
use super::{CallEnd, CallEvent, Runner, RunnerFlow, at};
use crate::cause::CauseChain;
use crate::engine::call::{Askable, RoundRetry, RoundSupport};
use crate::engine::{Engine, TaskError};
use crate::store::{StoreError, StoredTask};
use crate::task::reference::{LoggedPrincipal, LoggedTask};
use crate::task::{
    ChosenId, Executed, Failure, GatewayFault, Idempotency, Outcome, Phase, Plan, Question, Reason, Task, TaskId,
    TaskKey, TaskVisibility,
};

/// Inserts of a row under a chosen id: a second one if an expired row was in the way. Its removal may be delayed.
const INSERTS_MAX: usize = 2;

/// Tries for a name if its task ends meanwhile.
const TRIES_MAX: usize = 4;

/// Interval at which a repetition checks, during shutdown, whether the first call still runs here.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

impl Runner {
    /// Creates the task of a named call, or returns the task that already has the name.
    pub(super) async fn prepare_named(&mut self) -> RunnerFlow {
        if let Some(chosen) = self.spec.chosen.clone() {
            return self.prepare_chosen(&chosen).await;
        }
        let Some(named) = self.spec.idempotency else { return RunnerFlow::Continue(()) };
        for _ in 0..TRIES_MAX {
            let now = self.engine.clock.now();
            match self.engine.store.find_idempotent(&self.spec.owner, &named.key, now).await {
                Ok(Some(row)) => match self.repeat(named, row).await {
                    Some(next) => return next,
                    None => continue,
                },
                Ok(None) if !self.recorder.has_permit() => return self.refuse_unpermitted().await,
                Ok(None) => (),
                Err(error) => return self.not_stored(error).await,
            }
            if let Err(full) = self.enter_queue() {
                return self.end(Outcome::lost(full)).await;
            }
            match self.try_insert(TaskVisibility::Handle, None).await {
                Ok(_) if self.spec.is_held_by_key() => return self.hold(),
                Ok(task) => return self.hand_out(task).await,
                // Another request under this name was first.
                Err(StoreError::Exists) => (),
                Err(error) => return self.not_stored(error).await,
            }
        }
        self.refuse(Reason::StoreFailed).await
    }

    async fn not_stored(&mut self, error: StoreError) -> RunnerFlow {
        let fault = not_stored(&self.engine, error);
        self.end(Outcome::lost(fault)).await
    }

    /// Responds with the task that has the name; `None` if it ended meanwhile.
    async fn repeat(&mut self, named: Idempotency, row: StoredTask) -> Option<RunnerFlow> {
        // A damaged row has lost its call's hash, and has failed.
        if row.task.idempotency.is_some_and(|first| first.call != named.call) {
            self.dialog.clients_mut().end(CallEnd::IdempotencyMismatch).await;
            return Some(RunnerFlow::Break(()));
        }
        // Drops the row, so that a large result is in memory once, in the shared buffer.
        let key = row.task.key.clone();
        drop(row);
        match self.engine.load_visible(&key).await {
            Ok(task) => {
                tracing::info!(task = %LoggedTask(&task.key), principal = %LoggedPrincipal(&task.key.owner), "a repeated call found its task");
                if self.spec.is_held_by_key() {
                    self.wait_for_first(task).await;
                } else {
                    self.dialog.clients_mut().hand_over(CallEvent::Created(task)).await;
                }
                Some(RunnerFlow::Break(()))
            }
            Err(TaskError::Unknown) => None,
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "the task of a repeated call could not be read");
                // The first call may have run; this one certainly did not.
                let fault = GatewayFault::new(error.reason(), Executed::Unknown);
                Some(self.end(Outcome::Faulted(Failure::Gateway(fault))).await)
            }
        }
    }

    /// Holds a call that has its row, while the client waits for the outcome.
    fn hold(&mut self) -> RunnerFlow {
        self.becomes_task();
        self.recorder.set_visibility(TaskVisibility::Hidden);
        RunnerFlow::Continue(())
    }

    /// The client of a held call left: the call continues as a task, and a repetition finds its outcome.
    pub(super) async fn continue_unattended(&mut self) -> RunnerFlow {
        self.dialog.detach();
        self.dialog.set_grace_end(None);
        self.dialog.questions_mut().stop_gathering();
        self.recorder.set_visibility(TaskVisibility::Handle);
        self.recorder.take_repetitions(true);
        tracing::debug!("a call under an idempotency key continues without its client");
        self.mirror_subtasks().await;
        RunnerFlow::Continue(())
    }

    /// Whether the client that could receive questions has left for good.
    pub(super) fn is_unattended(&self) -> bool {
        self.spec.is_held_by_key() && self.recorder.has_handle()
    }

    pub(super) async fn reveal_held(&mut self, key: &TaskKey) -> Result<Arc<Task>, Reason> {
        let task = self.engine.load_any(key).await.map_err(|error| error.reason())?;
        // Otherwise the task's command for this runner is already queued.
        if task.is_settled() || !self.recorder.has_row() {
            return Err(Reason::TtlExpired);
        }
        self.recorder.set_visibility(TaskVisibility::Handle);
        Ok(task)
    }

    /// Offers open questions to a repetition's client, if it supports them: the first client may never return.
    fn joins_first_call(&mut self, first: &Task) -> bool {
        let Phase::AwaitingInput(open) = &first.phase else { return false };
        let may_be_asked = |question: &Question| (self.spec.questions)(&question.request) == Askable::Declared;
        let Some(sender) = self.dialog.clients().first() else { return false };
        if self.spec.rounds == RoundSupport::Unknown || !open.values().all(may_be_asked) {
            return false;
        }
        let questions = Arc::clone(&self.spec.questions);
        let retry = RoundRetry { answers: BTreeMap::new(), plan: self.spec.plan, questions };
        let is_asked = self.engine.live.join(&first.key, sender, retry);
        if is_asked {
            self.dialog.detach();
        }
        is_asked
    }

    /// Answers a repetition with the first call's outcome, or with its task when the plan's grace period ends.
    async fn wait_for_first(&mut self, first: Arc<Task>) {
        // The repetition needs no permits, and is not a call at the upstream.
        self.finish_exchanges();
        self.recorder.set_permit(None);
        self.call.set_in_progress(None);
        if let Some(audited) = &self.audited {
            audited.note("repeated");
        }
        if self.joins_first_call(&first) {
            return;
        }
        let (engine, key) = (Arc::clone(&self.engine), first.key.clone());
        if first.is_settled() {
            let end = recorded_outcome(&engine, first).await;
            return self.dialog.clients_mut().end(end).await;
        }
        drop(first);
        let unknown = |reason| Outcome::lost(GatewayFault::new(reason, Executed::Unknown));
        let Ok(mut watcher) = engine.watchers().watch(&key) else {
            return self.dialog.clients_mut().end(CallEnd::Outcome(unknown(Reason::TooManyWaiters))).await;
        };
        let grace_end = self.dialog.grace_end().filter(|_| matches!(self.spec.plan, Plan::Grace(_)));
        loop {
            let task = match engine.load_visible(&key).await {
                Ok(task) => task,
                Err(error) => return self.dialog.clients_mut().end(end_without_row(&error)).await,
            };
            if task.is_settled() {
                let end = recorded_outcome(&engine, task).await;
                return self.dialog.clients_mut().end(end).await;
            }
            let is_left = engine.drain_begun.is_cancelled() && !engine.live.has(&key);
            tokio::select! {
                biased;
                () = self.dialog.clients().left() => return,
                () = engine.calls_end.token().cancelled() => {
                    return self.dialog.clients_mut().end(CallEnd::Outcome(Outcome::lost(engine.calls_end.fault(Executed::Unknown)))).await;
                }
                () = std::future::ready(()), if is_left => {
                    return self.dialog.clients_mut().end(CallEnd::Outcome(unknown(Reason::GatewayRestart))).await;
                }
                () = at(grace_end) => {
                    self.dialog.clients_mut().hand_over(CallEvent::Created(task)).await;
                    return;
                }
                () = watcher.changed() => (),
                () = sleep(LOOK_AGAIN), if engine.drain_begun.is_cancelled() => (),
                () = engine.drain_begun.cancelled(), if !engine.drain_begun.is_cancelled() => (),
            }
        }
    }

    /// Creates the task of a call under the id that its client chose, unless another call has the id.
    async fn prepare_chosen(&mut self, chosen: &ChosenId) -> RunnerFlow {
        let key = TaskKey { owner: self.spec.owner.clone(), id: chosen.task_id() };
        match self.made_chosen(&key, chosen).await {
            Ok(Some(next)) => next,
            Ok(None) => {
                self.dialog.clients_mut().end(CallEnd::IdempotencyMismatch).await;
                RunnerFlow::Break(())
            }
            Err(error) => self.not_stored(error).await,
        }
    }

    /// Returns `None` if another call has the id. Fails with `Io` if no task with the id can be read, but the id is not
    /// free either: a disk store that distrusts its clock removes no rows.
    async fn made_chosen(&mut self, key: &TaskKey, chosen: &ChosenId) -> Result<Option<RunnerFlow>, StoreError> {
        // The session's methods would find this task in place of the one that has the text as its id.
        let other = TaskId::parse(&chosen.text).map(|id| TaskKey { owner: key.owner.clone(), id });
        for _ in 0..INSERTS_MAX {
            // Read before the claim: a task of an earlier process is left to recovery.
            for known in other.iter().chain([key]) {
                if self.engine.store.load(known, self.engine.clock.now()).await?.is_some() {
                    return Ok(None);
                }
            }
            if !self.recorder.has_permit() {
                return Ok(Some(self.refuse_unpermitted().await));
            }
            if let Err(full) = self.enter_queue() {
                return Ok(Some(self.end(Outcome::lost(full)).await));
            }
            match self.try_insert(TaskVisibility::Handle, None).await {
                Ok(task) => return Ok(Some(self.hand_out(task).await)),
                Err(StoreError::Exists) => (),
                Err(error) => return Err(error),
            }
            // The holder of a claim creates, runs or ends the task; or it waits for an unknown insert, and runs nothing.
            let Some(claim) = self.engine.live.claim(key) else {
                let is_run = self.engine.live.receives_commands(key);
                return if is_run {
                    Ok(None)
                } else {
                    Err(StoreError::Io(io::Error::other("whether the task was stored is not known yet")))
                };
            };
            let now = self.engine.clock.now();
            let freed = match self.engine.store.load(key, now).await {
                Ok(Some(_)) => Ok(false),
                // Expired, not removed yet: no client can read it. A row made by another replica since then remains.
                Ok(None) => self.engine.store.sweep_one(key, now).await.map(|()| true),
                Err(error) => Err(error),
            };
            self.engine.live.remove(key);
            drop(claim);
            // Whether the row was removed or not, this call is not sent.
            if !freed.map_err(StoreError::as_failed)? {
                return Ok(None);
            }
        }
        Err(StoreError::Io(io::Error::other("the id is not free yet: its expired task was not removed")))
    }
}

/// The outcome of a settled task for a client, which the audit names as its reader.
async fn recorded_outcome(engine: &Arc<Engine>, task: Arc<Task>) -> CallEnd {
    match engine.record_shown(&task) {
        Ok(()) => outcome_for_client(engine, task).await,
        Err(fault) => CallEnd::Outcome(Outcome::lost(fault)),
    }
}
