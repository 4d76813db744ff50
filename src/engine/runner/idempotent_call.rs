//! Runs calls with an idempotency key: a repetition finds the call of the first and is not sent again (B135, T-27).
//!
//! The row, with the key, is there before the upstream is called, and the store lets one of two concurrent inserts
//! through: so at most one call is made under a key while its task lives.
//!
//! A client that takes a handle gets that of the first call. Any other client waits for the answer: its call has a task's row
//! all the same, so that it outlives the client and the process. While the client is there the runner treats the call as one
//! without a handle: progress and questions go to the client. Once it has left the call goes on as a task. A repetition waits
//! until the row has the outcome of the call, on any gateway; one that comes while a question is open is asked it, too.
//!
//! An id that the client chose for its task is a name too (D86-06). The row's key follows from it, and a repetition is
//! refused.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::client::AttachedClients;
use super::row::not_stored;
use super::{CallEnd, CallEvent, Runner, RunnerFlow, at, lost};
use crate::cause::CauseChain;
use crate::engine::TaskError;
use crate::engine::apply::record_shown;
use crate::engine::call::{Askable, RoundRetry, RoundSupport};
use crate::store::{StoreError, StoredTask};
use crate::task::reference::{LoggedPrincipal, LoggedTask};
use crate::task::{
    ChosenId, Executed, Failure, GatewayFault, Idempotency, Outcome, Phase, Plan, Question, Reason, Task, TaskKey,
    TaskVisibility,
};

/// How often a row under a chosen id is inserted: once more where one that is gone was in the way. It may stay in the way for a while.
const INSERTS_MAX: usize = 2;

/// How often the name of a task that ends meanwhile is tried again.
const TRIES_MAX: usize = 4;

/// How often a repetition looks whether the first call still runs here, once the gateway ends.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

impl Runner {
    /// Makes the task of a named call, or hands out the one that was made under its name.
    pub(super) async fn prepare_named(&mut self) -> RunnerFlow {
        if let Some(chosen) = self.spec.chosen.clone() {
            return self.prepare_chosen(&chosen).await;
        }
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
            if let Err(full) = self.enter_queue() {
                return self.end(lost(full)).await;
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
                if self.spec.is_held_by_key() {
                    self.wait_for_first(task).await;
                } else {
                    self.client.hand_over(CallEvent::Created(task)).await;
                }
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

    /// The row is there, and the client waits for the answer.
    fn hold(&mut self) -> RunnerFlow {
        self.becomes_task();
        if let Some(row) = &mut self.row {
            row.shown = TaskVisibility::Hidden;
        }
        RunnerFlow::Continue
    }

    /// The client of a held call left: the call goes on as a task, and a repetition finds its outcome.
    pub(super) async fn go_on_unattended(&mut self) -> RunnerFlow {
        self.client = AttachedClients::nobody();
        self.grace_end = None;
        self.inputs.stop_gathering();
        if let Some(row) = &mut self.row {
            row.shown = TaskVisibility::Handle;
            row.orders.take_repetitions(true);
        }
        tracing::debug!("a call under an idempotency key goes on without its client");
        self.mirror_subtasks().await;
        RunnerFlow::Continue
    }

    /// Whether the client that the call could ask has left for good.
    pub(super) fn is_unattended(&self) -> bool {
        self.spec.is_held_by_key() && self.has_handle()
    }

    /// The handle of a held call after its grace period.
    pub(super) async fn reveal_held(&mut self, key: &TaskKey) -> Result<Arc<Task>, Reason> {
        let task = self.engine.held(key).await.map_err(|error| error.reason())?;
        // Otherwise the order that says so is on its way.
        let Some(row) = self.row.as_mut().filter(|_| !task.is_settled()) else { return Err(Reason::TtlExpired) };
        row.shown = TaskVisibility::Handle;
        Ok(task)
    }

    /// Has the client of a repetition asked what is open, where it can be asked: the one that was asked before may never come back.
    /// Whoever answers first is heard.
    fn is_asked_too(&mut self, first: &Task) -> bool {
        let Phase::AwaitingInput(open) = &first.phase else { return false };
        let may_be_asked = |question: &Question| (self.spec.questions)(&question.request) == Askable::Declared;
        let Some(seat) = self.client.first() else { return false };
        if self.spec.rounds == RoundSupport::Unknown || !open.values().all(may_be_asked) {
            return false;
        }
        let questions = Arc::clone(&self.spec.questions);
        let retry = RoundRetry { answers: BTreeMap::new(), plan: self.spec.plan, questions };
        let is_asked = self.engine.live.join(&first.key, seat, retry);
        if is_asked {
            self.client = AttachedClients::nobody();
        }
        is_asked
    }

    /// Answers a repetition with the outcome of the first call once there is one, or with its task at the end of the grace
    /// period, where the plan has any.
    async fn wait_for_first(&mut self, first: Arc<Task>) {
        // The repetition needs neither a permit nor a place of its own, and is no call at the upstream.
        self.stage.finish();
        self.place = None;
        self.in_progress = None;
        if self.is_asked_too(&first) {
            return;
        }
        let (engine, key) = (Arc::clone(&self.engine), first.key.clone());
        let unknown = |reason| lost(GatewayFault::new(reason, Executed::Unknown));
        let Ok(mut watcher) = engine.watchers().watch(&key) else {
            return self.client.end(CallEnd::Outcome(unknown(Reason::TooManyWaiters))).await;
        };
        let grace_end = self.grace_end.filter(|_| matches!(self.spec.plan, Plan::Grace(_)));
        loop {
            let task = match engine.get(&key).await {
                Ok(task) => task,
                // It was there a moment ago, and its time is over.
                Err(error) => {
                    tracing::warn!(error = %CauseChain(&error), "the outcome of a repeated call could not be read");
                    let reason = if matches!(error, TaskError::Unknown) { Reason::TtlExpired } else { error.reason() };
                    return self.client.end(CallEnd::Outcome(unknown(reason))).await;
                }
            };
            if let Phase::Settled(outcome) = &task.phase {
                record_shown(&task);
                return self.client.end(CallEnd::Outcome(outcome.clone())).await;
            }
            let is_left = engine.leaving.is_cancelled() && !engine.live.has(&key);
            tokio::select! {
                biased;
                () = self.client.left() => return,
                () = engine.calls_end.token().cancelled() => {
                    return self.client.end(CallEnd::Outcome(lost(engine.calls_end.fault(Executed::Unknown)))).await;
                }
                () = std::future::ready(()), if is_left => {
                    return self.client.end(CallEnd::Outcome(unknown(Reason::GatewayRestart))).await;
                }
                () = at(grace_end) => {
                    self.client.hand_over(CallEvent::Created(task)).await;
                    return;
                }
                () = watcher.changed() => (),
                () = sleep(LOOK_AGAIN), if engine.leaving.is_cancelled() => (),
                () = engine.leaving.cancelled(), if !engine.leaving.is_cancelled() => (),
            }
        }
    }

    /// Makes the task of a call under the id that its client chose, or says that another call has it.
    async fn prepare_chosen(&mut self, chosen: &ChosenId) -> RunnerFlow {
        let key = TaskKey { owner: self.spec.owner.clone(), id: chosen.task_id() };
        match self.made_chosen(&key).await {
            Ok(Some(next)) => next,
            Ok(None) => {
                self.client.end(CallEnd::Misnamed).await;
                RunnerFlow::Stop
            }
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "a call under a chosen id has no task");
                self.end(lost(not_stored(error))).await
            }
        }
    }

    /// `None` where another call has the id.
    ///
    /// # Errors
    /// What the store says. `Io` also where no task is there under the id, and it is not free either, as while a store on disk does
    /// not believe its clock: then nothing is freed.
    async fn made_chosen(&mut self, key: &TaskKey) -> Result<Option<RunnerFlow>, StoreError> {
        for _ in 0..INSERTS_MAX {
            // Asked before anything is claimed: a task of an earlier life is left to whoever takes it up.
            if self.engine.store.load(key, self.engine.clock.now()).await?.is_some() {
                return Ok(None);
            }
            if self.place.is_none() {
                return Ok(Some(self.refuse(self.engine.admission.refusal()).await));
            }
            if let Err(full) = self.enter_queue() {
                return Ok(Some(self.end(lost(full)).await));
            }
            match self.try_insert(TaskVisibility::Handle, None).await {
                Ok(task) => return Ok(Some(self.hand_out(task).await)),
                Err(StoreError::Exists) => (),
                Err(error) => return Err(error),
            }
            // Whoever has a claim on the key makes, runs or ends its task; or waits to know whether there is one, and runs nothing.
            let Some(claim) = self.engine.live.claim(key) else {
                let is_run = self.engine.live.hears_orders(key);
                return if is_run {
                    Ok(None)
                } else {
                    Err(StoreError::Io(io::Error::other("whether it was stored is not known yet")))
                };
            };
            let now = self.engine.clock.now();
            let freed = match self.engine.store.load(key, now).await {
                Ok(Some(_)) => Ok(false),
                // Gone, and not swept yet: nobody can ask for it any more. Another gateway may have made another one since, which stays.
                Ok(None) => self.engine.store.sweep_one(key, now).await.map(|()| true),
                Err(error) => Err(error),
            };
            self.engine.live.remove(key);
            drop(claim);
            // Whether it was freed or not, this call is not sent.
            if !freed.map_err(StoreError::without_doubt)? {
                return Ok(None);
            }
        }
        Err(StoreError::Io(io::Error::other("what had the id is gone, and has not been freed yet")))
    }
}
