//! Inserts a call's row, sends its handle, marks it as sent, and writes its outcome.

use std::io;
use std::sync::Arc;

use super::call_state::UpstreamCall;
use super::family::AdoptedElement;
use super::recorder::UnstoredStep;
use super::resume::{AdoptedCall, adopt, begin_child};
use super::{CallEnd, CallEvent, Runner, RunnerFlow};
use crate::cause::CauseChain;
use crate::engine::apply::outcome_label;
use crate::engine::retry_delays::RetryDelays;
use crate::engine::task_metrics::GraceEnd;
use crate::engine::{Engine, TaskError};
use crate::failpoint;
use crate::metric;
use crate::store::StoreError;
use crate::task::reference::{LoggedPrincipal, LoggedTask};
use crate::task::{
    Attempt, Event, Executed, Failure, GatewayFault, Outcome, Phase, Plan, Question, Reason, Recovery, StoredCall,
    Task, TaskId, TaskKey, TaskVisibility, Timestamp, transition,
};

impl Runner {
    /// Creates the task, or reveals the hidden one, and sends its handle.
    pub(super) async fn promote(&mut self, first: Option<Question>) -> Result<RunnerFlow, GatewayFault> {
        let not_sent = |reason| GatewayFault::new(reason, Executed::No);
        let task = match self.recorder.key() {
            Some(key) => Box::pin(self.reveal(&key)).await.map_err(not_sent)?,
            None => self.insert(TaskVisibility::Handle, first).await?,
        };
        Ok(self.hand_out(task).await)
    }

    pub(super) async fn hand_out(&mut self, task: Arc<Task>) -> RunnerFlow {
        // A client that knows the call's name can find the task (T-27).
        if !self.dialog.clients_mut().hand_over(CallEvent::Created(task)).await && !self.spec.is_named() {
            return Box::pin(self.drop_orphan()).await;
        }
        self.becomes_task();
        if matches!(self.spec.plan, Plan::Grace(_)) {
            self.engine.metrics.grace_ended(self.spec.upstream.name(), GraceEnd::Over);
        }
        tracing::debug!(principal = %LoggedPrincipal(&self.spec.owner), "a call became a task");
        self.dialog.set_grace_status(None);
        if self.family.has_waiting() {
            Box::pin(self.mirror_subtasks()).await;
        }
        RunnerFlow::Continue(())
    }

    pub(super) fn becomes_task(&mut self) {
        if self.recorder.mark_counted() {
            self.adopt_elements();
            self.engine.metrics.created(self.spec.upstream.name());
            if let (Some(audited), Some(key)) = (self.audited.take(), self.recorder.key()) {
                audited.becomes_task(&key);
            }
        }
    }

    pub(super) async fn insert(
        &mut self,
        visibility: TaskVisibility,
        first: Option<Question>,
    ) -> Result<Arc<Task>, GatewayFault> {
        self.try_insert(visibility, first).await.map_err(|error| not_stored(&self.engine, error))
    }

    pub(super) async fn try_insert(
        &mut self,
        visibility: TaskVisibility,
        first: Option<Question>,
    ) -> Result<Arc<Task>, StoreError> {
        let key = match &self.spec.chosen {
            Some(chosen) => TaskKey { owner: self.spec.owner.clone(), id: chosen.task_id() },
            None => self.engine.mint_key(&self.spec.owner),
        };
        // One commit creates the task and, if the call has its permit, marks it as possibly sent. Nothing is sent before
        // this commit. Nothing is sent after a cancel: the runner receives the cancel's command first.
        let now = self.engine.clock.now();
        let position = self.new_position();
        let mut task = Task {
            attempt: self.recorder.attempt(),
            phase: if self.call.is_queued() { Phase::Queued } else { Phase::Working },
            status_message: self.dialog.grace_status(),
            recovery: Recovery {
                call: self.stored_call(),
                resume: position.clone(),
                dispatched_at: self.call.sent_at().map(|at| now.before(at.elapsed())),
                ..Recovery::default()
            },
            idempotency: self.spec.idempotency,
            chosen: self.spec.chosen.clone(),
            ..self.spec.new_task(key.clone(), visibility, now)
        };
        if let Some(question) = first {
            task = transition(task, Event::QuestionReceived { attempt: self.recorder.attempt(), question }, now).0;
        }
        // Commands may arrive as soon as the row exists. Of two calls under one id, the second stops here.
        let commands = self.engine.live.claim(&key).ok_or(StoreError::Exists)?;
        failpoint::hit("admitted");
        if let Some(permit) = self.recorder.permit_mut() {
            permit.begin_storing();
        }
        let task = match self.store_tree(Box::new(task), now).await {
            Ok(task) => task,
            Err(error) => {
                if matches!(error, StoreError::UnknownCommit(_)) {
                    // A call with its row written first is not sent before the row exists.
                    let is_unsent = self.spec.plan == Plan::Task || self.spec.is_held_by_key() || self.call.is_queued();
                    self.engine.end_refused(key, if is_unsent { Executed::No } else { Executed::Unknown });
                } else {
                    self.engine.live.remove(&key);
                }
                return Err(error);
            }
        };
        self.engine.unstored.stored();
        failpoint::hit("handle-durable");
        tracing::Span::current().record("task", tracing::field::display(LoggedTask(&key)));
        self.recorder.record_inserted(key, visibility, commands);
        if self.is_kept() {
            self.recorder.position_written(position);
            self.recorder.check_soon();
        }
        Ok(task)
    }

    /// Stores a new task, after the rows of its elements if its call is split and it has a handle.
    async fn store_tree(&mut self, mut task: Box<Task>, now: Timestamp) -> Result<Arc<Task>, StoreError> {
        if task.visibility == TaskVisibility::Handle && self.call.elements().is_some() {
            task.tree.children = Box::pin(self.insert_elements(&task.key, now)).await?;
            if !task.tree.children.is_empty() {
                // The rows of its elements have the params.
                task.recovery.call = task.recovery.call.map(StoredCall::without_params);
            }
        }
        let task = Arc::new(task.exact());
        let stored = match self.engine.has_room_for(&self.spec.owner, task.stored_bytes()) {
            true => self.engine.insert_row(&task).await,
            false => Err(StoreError::OwnerFull),
        };
        let stored = match stored {
            Err(StoreError::UnknownCommit(cause)) => Box::pin(resolve_insert(&self.engine, &task.key, cause)).await,
            stored => stored.map(|()| task),
        };
        if stored.is_err() {
            self.family.remove_elements().await;
        }
        stored
    }

    /// Turns the hidden task into one with a handle: same row, same id.
    async fn reveal(&mut self, key: &TaskKey) -> Result<Arc<Task>, Reason> {
        if self.spec.idempotency.is_some() {
            return self.reveal_held(key).await;
        }
        let elements = self.insert_elements(key, self.engine.clock.now()).await;
        let children = elements.map_err(|error| TaskError::from(error).reason())?.to_vec();
        let added = (!children.is_empty()).then_some(Event::ChildrenAdded { children });
        let applied = self.write(key, added.into_iter().chain([Event::Revealed]).collect()).await;
        let refused = match applied {
            Ok(applied) if applied.changed => {
                self.recorder.set_visibility(TaskVisibility::Handle);
                return Ok(applied.task);
            }
            // It settled in between: the command that says so is already queued.
            Ok(_) => Reason::TtlExpired,
            Err(error) => error.reason(),
        };
        self.family.remove_elements().await;
        Err(refused)
    }

    /// Removes a task with an id that its client never received: no client will ever read it (T-27).
    async fn drop_orphan(&mut self) -> RunnerFlow {
        if let Some(key) = self.recorder.take_row() {
            // The row goes first, since a child without a parent is invisible.
            let mut pauses = RetryDelays::of_writers();
            while let Err(error) = self.engine.store.remove(&key).await {
                tracing::warn!(error = %CauseChain(&error), "a task that no client knows is not removed yet");
                // The cancel does not wait for the store. The row must still go: a later process could send the call.
                self.cancel_exchanges("the client left").await;
                if !self.engine.pauses_for_store(&mut pauses).await {
                    break;
                }
            }
            // After the row: recovery takes a row without a runner for one of an earlier process.
            self.engine.live.remove(&key);
            self.family.remove_elements().await;
        }
        self.cancel_exchanges("the client left").await;
        RunnerFlow::Break(())
    }

    /// Cancels the call of a client without a handle that left (MOD-20).
    pub(super) async fn client_left(&mut self) -> RunnerFlow {
        if self.spec.idempotency.is_some() && self.recorder.has_row() {
            return Box::pin(self.continue_unattended()).await;
        }
        // Before the slower writes to the store: the call has no client, and no process resumes a hidden task.
        self.cancel_exchanges("the client left").await;
        self.settle_cancelled().await;
        self.mark_notified().await;
        RunnerFlow::Break(())
    }

    pub(super) async fn settle_cancelled(&mut self) {
        if let Some(key) = self.recorder.key()
            && let Err(error) = self.write_outcome(&key, Event::CancelRequested).await
        {
            tracing::error!(error = %CauseChain(&error), "a cancel could not be stored");
        }
    }

    /// Records that a cancelled call's upstream was notified, or cannot be: else a later process notifies it again.
    pub(super) async fn mark_notified(&mut self) {
        if let Some(key) = self.recorder.key()
            && let Err(error) = self.write(&key, vec![Event::Notified]).await
        {
            tracing::warn!(error = %CauseChain(&error), "an upstream's notification was not stored");
        }
    }

    pub(super) async fn end(&mut self, outcome: Outcome) -> RunnerFlow {
        if self.recorder.is_fenced() {
            return RunnerFlow::Break(());
        }
        let outcome = self.of_all_attempts(outcome);
        if let Some(audited) = &self.audited {
            audited.note(outcome_label(&outcome));
        }
        // Before the slower writes to the store: the call has ended at the upstream.
        self.finish_exchanges();
        if self.spec.plan == Plan::Task && self.asks_first() && self.recorder.has_row() && self.is_waited_for() {
            // `always` and `required` end in a handle, however quickly the call ended after its questions.
            match Box::pin(self.promote(None)).await {
                Ok(next) => next?,
                Err(_) => tracing::warn!("a call that should get a handle got none"),
            }
        }
        if self.dialog.end_grace() && matches!(self.spec.plan, Plan::Grace(_)) {
            self.engine.metrics.grace_ended(self.spec.upstream.name(), GraceEnd::Answered);
        }
        let awaited = self.dialog.clients().is_there().then(|| outcome.clone());
        let agrees_with_row = match self.recorder.key() {
            Some(key) => Box::pin(self.settle(&key, outcome)).await,
            None => true,
        };
        // Repetitions get the row's outcome, so this client gets it, too, when the runner ends (GW-46).
        if let Some(outcome) = awaited.filter(|_| agrees_with_row || self.spec.idempotency.is_none()) {
            self.dialog.clients_mut().end(CallEnd::Outcome(outcome)).await;
        }
        RunnerFlow::Break(())
    }

    /// Keeps `executed` unknown if the call was sent before.
    fn of_all_attempts(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Faulted(Failure::Gateway(fault))
                if (self.recorder.attempt() > Attempt::FIRST || self.call.repeats() > 0)
                    && fault.executed == Executed::No =>
            {
                Outcome::lost(GatewayFault { executed: Executed::Unknown, ..fault })
            }
            Outcome::Returned { .. } | Outcome::Faulted(_) | Outcome::Cancelled => outcome,
        }
    }

    /// Stores the outcome; false if the row has another one, or another replica decides about it.
    async fn settle(&mut self, key: &TaskKey, outcome: Outcome) -> bool {
        failpoint::hit("outcome-heard");
        // Stores the last status message even if it arrived too early to be stored separately.
        if let Some(message) = self.recorder.take_progress() {
            let said = Event::Progressed { attempt: self.recorder.attempt(), message };
            let _ = Box::pin(self.write(key, vec![said])).await;
        }
        let attempt = self.recorder.attempt();
        let is_cancelled = outcome == Outcome::Cancelled;
        // Until the copy is stored it is memory of a response as well.
        let copy_bytes = if outcome.is_exact() { 0 } else { outcome.bytes() };
        let _copied = self.spec.context.share.as_ref().map(|share| share.of_copy(copy_bytes));
        let outcome = outcome.exact();
        let event = match outcome {
            Outcome::Returned { result, is_error } => Event::Returned { attempt, result, is_error },
            Outcome::Faulted(failure) => Event::Faulted { attempt, failure },
            Outcome::Cancelled => Event::CancelRequested,
        };
        let written = self.write_outcome(key, event).await;
        match &written {
            Ok(applied) if !applied.changed => {
                metric::count_dropped(self.spec.upstream.name(), "settled");
                tracing::info!("a late outcome was dropped");
                // The upstream has ended the call, so it needs no cancel.
                Box::pin(self.mark_notified()).await;
            }
            // The upstream cancelled it, and needs no cancel either.
            Ok(_) if is_cancelled => Box::pin(self.mark_notified()).await,
            // The replica that holds the task stores its outcome.
            Ok(_) | Err(TaskError::Store(StoreError::Fenced)) => (),
            Err(error) => tracing::error!(error = %CauseChain(error), "an outcome could not be stored"),
        }
        written.map_or_else(|error| !matches!(error, TaskError::Store(StoreError::Fenced)), |applied| applied.changed)
    }

    /// Ends the runner. A client that still waits receives the state of its call.
    pub(super) async fn leave(mut self: Box<Self>) {
        let Some(key) = self.recorder.key() else { return };
        self.engine.live.remove(&key);
        while let Some(sender) = self.recorder.late_client() {
            self.dialog.clients_mut().attach(sender);
        }
        if self.dialog.clients().is_there() {
            let end = match self.engine.load_any(&key).await {
                Ok(task) if self.recorder.is_fenced() && !task.is_settled() => {
                    CallEnd::Outcome(Outcome::lost(GatewayFault::new(self.engine.why_lost(), Executed::Unknown)))
                }
                Ok(task) => outcome_for_client(&self.engine, task).await,
                Err(error) => end_without_row(&error),
            };
            self.dialog.clients_mut().end(end).await;
        }
    }
}

impl Runner {
    /// Sends a call that has its permit, once its row says so (GW-37). It keeps the permit while the store confirms the
    /// mark: waiting tasks could not begin either, though plain calls could. `certain` is the confirmed task.
    pub(super) async fn dispatched(&mut self, certain: Option<&Task>) -> RunnerFlow {
        let Some(key) = self.recorder.key() else {
            self.call_sent();
            return RunnerFlow::Continue(());
        };
        match Box::pin(self.mark(&key, certain)).await {
            Ok(true) => {
                self.call_sent();
                if let Some(attempt) = self.recorder.record_sending() {
                    self.dialog.clear_questions();
                    tracing::warn!(attempt = attempt.0, "a call is sent again");
                }
                failpoint::hit("intent-durable");
                RunnerFlow::Continue(())
            }
            // It settled while it waited: nothing is sent after an acknowledged cancel.
            Ok(false) => {
                Box::pin(self.mark_notified()).await;
                RunnerFlow::Break(())
            }
            Err(error) if error.is_passing() => self.wait_for_store(UnstoredStep::Mark, &error),
            Err(TaskError::Store(StoreError::Fenced)) => RunnerFlow::Break(()),
            Err(error) => {
                tracing::error!(error = %CauseChain(&error), "the task could not be marked as sent and is not sent");
                let fault = GatewayFault::new(error.reason(), self.recorder.executed_so_far());
                Box::pin(self.end(Outcome::lost(fault))).await
            }
        }
    }

    /// Marks in the row that this process is about to send the call; false if the task has settled.
    async fn mark(&mut self, key: &TaskKey, certain: Option<&Task>) -> Result<bool, TaskError> {
        // The write that failed was committed.
        if certain.is_some_and(|task| self.recorder.is_sending_stored(task)) {
            return Ok(true);
        }
        let events = self.recorder.sending(|| self.stored_call());
        Ok(self.write(key, events).await?.changed)
    }

    pub(super) fn call_sent(&mut self) {
        self.call.mark_sent(self.spec.policy.deadline);
    }
}

impl Runner {
    /// Inserts rows for a split call's elements; returns their ids in order, if any. Never fails with `UnknownCommit`.
    pub(super) async fn insert_elements(
        &mut self,
        parent: &TaskKey,
        now: Timestamp,
    ) -> Result<Arc<[TaskId]>, StoreError> {
        let Some(split) = self.call.elements().filter(|_| !self.call.is_over() && !self.family.has_elements()) else {
            return Ok(Arc::default());
        };
        let tasks = split.tasks(parent, || self.engine.mint_key(&parent.owner), now, self.is_kept());
        let ids = tasks.iter().map(|task| task.key.id).collect();
        if !self.engine.has_room_for(&self.spec.owner, tasks.iter().map(|task| task.stored_bytes()).sum()) {
            return Err(StoreError::OwnerFull);
        }
        let logs = self.spec.notice_sink.clone();
        self.family.insert_elements(&self.engine, begin_child, parent, tasks, logs).await?;
        Ok(ids)
    }

    /// Starts runners for the elements in progress, once their parent has a handle.
    pub(super) fn adopt_elements(&mut self) {
        let Some(split) = self.call.elements_mut() else { return };
        for adopted in self.family.adopt_elements(&self.engine, split, self.recorder.permit_mut()) {
            let AdoptedElement { spec, task, commands, call, permit } = adopted;
            let call = match call.sent_at {
                Some(at) => UpstreamCall::sent(call.exchange, at, spec.policy.deadline),
                None => UpstreamCall::queued(call.exchange),
            };
            adopt(&self.engine, spec, task, commands, AdoptedCall::of(call, permit));
        }
    }
}

/// The task of an unknown insert, if it exists and this process still holds it. If the store cannot confirm it now, the
/// error stays `UnknownCommit`, because a later process could find the row and send the call.
async fn resolve_insert(engine: &Engine, key: &TaskKey, cause: io::Error) -> Result<Arc<Task>, StoreError> {
    match engine.store.resolve_write(key, engine.clock.now()).await {
        // Other replicas may have seen it, so it remains.
        Ok(Some(row)) if row.holder == Some(engine.store.holder()) && !row.task.is_settled() => Ok(row.task),
        Ok(Some(_)) => Err(StoreError::UnknownCommit(cause)),
        Ok(None) => Err(StoreError::Io(cause)),
        Err(failed) => {
            tracing::warn!(error = %CauseChain(&failed), "it is unknown whether a task was stored");
            Err(StoreError::UnknownCommit(cause))
        }
    }
}

/// Logs and counts a task that could not be created (B255). Only if the row certainly does not exist is the call certainly not sent.
pub(super) fn not_stored(engine: &Engine, error: StoreError) -> GatewayFault {
    engine.unstored.refused(&error);
    let executed = if matches!(error, StoreError::UnknownCommit(_)) { Executed::Unknown } else { Executed::No };
    let reason = TaskError::from(error).reason();
    if reason == Reason::StoreFull {
        metrics::counter!(metric::QUOTA_REFUSED, "limit" => "all_bytes").increment(1);
    }
    GatewayFault::new(reason, executed)
}

pub(super) async fn outcome_for_client(engine: &Arc<Engine>, task: Arc<Task>) -> CallEnd {
    match engine.share_outcome(task).await {
        Ok(task) => end_of(&task),
        Err(fault) => CallEnd::Outcome(Outcome::lost(fault)),
    }
}

/// The end for a waiting client if its call's row cannot be read: it may have run (GW-38). A missing row has expired.
pub(super) fn end_without_row(error: &TaskError) -> CallEnd {
    tracing::warn!(error = %CauseChain(error), "the outcome of a call could not be read");
    let reason = if matches!(error, TaskError::Unknown) { Reason::TtlExpired } else { error.reason() };
    CallEnd::Outcome(Outcome::lost(GatewayFault::new(reason, Executed::Unknown)))
}

fn end_of(task: &Task) -> CallEnd {
    match &task.phase {
        Phase::Settled(Outcome::Cancelled) if task.idempotency.is_none() => CallEnd::CallLost,
        Phase::Settled(outcome) => CallEnd::Outcome(outcome.clone()),
        Phase::Queued | Phase::Working | Phase::AwaitingInput(_) => {
            CallEnd::Outcome(Outcome::Faulted(Failure::Gateway(GatewayFault::new(Reason::Internal, Executed::Unknown))))
        }
    }
}
