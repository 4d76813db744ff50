//! Writes the changes of tasks, and is the only one that does: load, decide, store, then perform the effects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};

use super::Engine;
use super::retry_delays::RetryDelays;
use super::unknown_commits::UnknownCommit;
use crate::audit::{AuditAct, AuditEvent};
use crate::cause::CauseChain;
use crate::died_programs;
use crate::failpoint;
use crate::store::{StoreError, StoredTask, WriteRole};
use crate::task::reference::{LoggedPrincipal, LoggedTask};
use crate::task::{
    Attempt, Effect, Event, Executed, Failure, GatewayFault, Outcome, Phase, Reason, Task, TaskKey, TaskVisibility,
    Timestamp, transition,
};

/// Retries after a lost race. In each round another writer succeeded, so reaching this limit means a bug.
const CONFLICTS_MAX: usize = 64;

/// Retries of a failed write, and the pause between them: a store that reopens its file needs a moment.
const FAILURES_MAX: usize = 3;
const FAILURE_PAUSE: Duration = Duration::from_millis(50);

/// Children of one task that are settled together, so that the store can merge their commits.
const CHILDREN_AT_ONCE: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("no such task")]
    Unknown,
    #[error("too many writers at once")]
    Contended,
    #[error("a store operation failed")]
    Store(#[from] StoreError),
}

impl TaskError {
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Store(StoreError::Full | StoreError::NoRoom) => Reason::StoreFull,
            Self::Store(StoreError::OwnerFull) => Reason::TooMuchStored,
            Self::Store(
                StoreError::Io(_)
                | StoreError::UnknownCommit(_)
                | StoreError::Conflict
                | StoreError::Fenced
                | StoreError::Exists,
            )
            | Self::Contended
            | Self::Unknown => Reason::StoreFailed,
        }
    }

    /// Whether a retry of the same change may succeed. The insert of a new task is refused nevertheless.
    pub(super) const fn is_passing(&self) -> bool {
        use StoreError::{Io, NoRoom, UnknownCommit};
        matches!(self, Self::Contended | Self::Store(NoRoom | Io(_) | UnknownCommit(_)))
    }
}

#[derive(Clone, Debug)]
pub(super) struct AppliedEvent {
    pub(super) task: Arc<Task>,
    pub(super) changed: bool,
}

/// A write of [`Engine::apply_all`] with an unknown commit.
struct OwnWrite {
    is_committed: Arc<AtomicBool>,
    changed: bool,
}

impl Engine {
    /// Applies one event and performs its effects. An outcome without room in the store settles the task with a fault
    /// that says so: it is never lost silently. Not cancel safe: a dropped call may have stored the event without its
    /// effects, which only the next process would find. Engine tasks await it, requests within [`Engine::finish`].
    pub(super) async fn apply(
        self: &Arc<Self>,
        key: &TaskKey,
        role: WriteRole,
        event: Event,
    ) -> Result<AppliedEvent, TaskError> {
        self.apply_all(key, role, vec![event]).await
    }

    /// Applies events in one commit; `changed` says whether the last one had effects. If the store has no room, the others
    /// are left out. After an unknown commit, effects follow once it is known (`unknown_commits`). `Fenced` stops the runner.
    pub(super) async fn apply_all(
        self: &Arc<Self>,
        key: &TaskKey,
        role: WriteRole,
        events: Vec<Event>,
    ) -> Result<AppliedEvent, TaskError> {
        let applied = self.try_all(key, role, events).await;
        match &applied {
            Ok(_) => (),
            Err(TaskError::Store(StoreError::Fenced)) => self.fenced(key),
            Err(_) => self.resolve_in_background(key),
        }
        applied
    }

    async fn try_all(
        self: &Arc<Self>,
        key: &TaskKey,
        role: WriteRole,
        mut events: Vec<Event>,
    ) -> Result<AppliedEvent, TaskError> {
        let (mut failures, mut unknown_write) = (0, None::<OwnWrite>);
        for _ in 0..CONFLICTS_MAX {
            let now = self.clock.now();
            let stored = match self.load_resolved(key, now, unknown_write.is_some()).await {
                Err(StoreError::Io(_)) if unknown_write.is_some() && failures < FAILURES_MAX => {
                    failures += 1;
                    tokio::time::sleep(FAILURE_PAUSE).await;
                    continue;
                }
                stored => stored?.ok_or(TaskError::Unknown)?,
            };
            // Another change of the task may have found that the write was committed.
            if let Some(write) = unknown_write.as_ref().filter(|write| write.is_committed.load(Ordering::Relaxed)) {
                return Ok(AppliedEvent { task: stored.task, changed: write.changed });
            }
            // Checked even with nothing to write: another replica's row is not for this process to judge.
            if role == WriteRole::Holder && stored.holder.is_some_and(|holder| holder != self.store.holder()) {
                return Err(StoreError::Fenced.into());
            }
            let StoredTask { task: before, revision, .. } = stored;
            let (task, effects, changed) = decided(&before, &events, now);
            if effects.is_empty() {
                return Ok(AppliedEvent { task: before, changed: false });
            }
            let settles = task.is_settled() && !before.is_settled();
            if settles && role == WriteRole::Holder && self.live.has_waiting_cancel(key) {
                return Err(TaskError::Contended);
            }
            if settles && !before.tree.children.is_empty() {
                self.settle_children(&before, &task, role).await?;
            }
            // Shared: the futures of a write would hold the whole task, and be copied with it.
            let task = Arc::new(task);
            match self.store.replace(revision, role, &task).await {
                Ok(_) => {
                    self.unstored.changed();
                    self.resolve_at(key, revision);
                    self.follow(key, &before, &task, effects);
                    return Ok(AppliedEvent { task, changed });
                }
                // Another writer was first: decide again from its state.
                Err(StoreError::Conflict) => (),
                Err(full @ StoreError::Full) => {
                    let Some(smaller) = shrink(events) else { return Err(full.into()) };
                    events = smaller;
                }
                Err(error @ (StoreError::NoRoom | StoreError::Io(_) | StoreError::UnknownCommit(_))) => {
                    if matches!(error, StoreError::UnknownCommit(_)) {
                        let (written, is_committed) = (Task::clone(&task), Arc::<AtomicBool>::default());
                        unknown_write = Some(OwnWrite { is_committed: Arc::clone(&is_committed), changed });
                        let write = UnknownCommit { before, base: revision, written, effects, is_committed };
                        self.unknown_commits.add(key, write);
                    }
                    if failures == FAILURES_MAX {
                        return Err(error.into());
                    }
                    self.unstored.refused(&error);
                    tracing::debug!(task = %LoggedTask(key), "a change of a task was not stored; it is tried again");
                    failures += 1;
                    tokio::time::sleep(FAILURE_PAUSE).await;
                }
                Err(error @ (StoreError::OwnerFull | StoreError::Exists | StoreError::Fenced)) => {
                    return Err(error.into());
                }
            }
        }
        Err(TaskError::Contended)
    }

    /// Inserts the row of a new task; returns once it is durable, unless a test breaks that on purpose.
    pub(super) async fn insert_row(&self, task: &Task) -> Result<(), StoreError> {
        if failpoint::is_sabotaged("handle-before-commit") { Ok(()) } else { self.store.insert(task).await.map(|_| ()) }
    }

    /// Settles the unsettled children of a task before the task itself settles (SUB-13, SUB-15, SUB-16).
    fn settle_children(
        self: &Arc<Self>,
        before: &Task,
        after: &Task,
        role: WriteRole,
    ) -> BoxFuture<'static, Result<(), TaskError>> {
        let is_expiry = matches!(
            &after.phase,
            Phase::Settled(Outcome::Faulted(Failure::Gateway(GatewayFault { reason: Reason::TtlExpired, .. })))
        );
        let event = if is_expiry { Event::TtlElapsed } else { Event::CancelRequested };
        let (engine, owner, children) = (Arc::clone(self), before.key.owner.clone(), Arc::clone(&before.tree.children));
        Box::pin(async move {
            for some in children.chunks(CHILDREN_AT_ONCE) {
                let settled = some.iter().map(|child| {
                    let (engine, event) = (Arc::clone(&engine), event.clone());
                    let key = TaskKey { owner: owner.clone(), id: *child };
                    async move {
                        // Most have settled, with results that need not be read.
                        if engine.store.settled_bytes(&key).await?.is_some() {
                            return Ok(());
                        }
                        match engine.apply(&key, role, event).await {
                            Ok(_) | Err(TaskError::Unknown) => Ok(()),
                            Err(error) => Err(error),
                        }
                    }
                });
                // Each to its end, also if one fails: a dropped write may be stored without its effects.
                join_all(settled).await.into_iter().collect::<Result<(), _>>()?;
            }
            Ok(())
        })
    }

    pub(super) fn follow(&self, key: &TaskKey, before: &Task, after: &Task, effects: Vec<Effect>) {
        self.record(before, after);
        visit_stored(before, after);
        self.perform(key, effects);
        if before.recovery.must_notify_upstream() && !after.recovery.must_notify_upstream() {
            self.notified.wake(key);
        }
    }

    /// Counts and logs a committed change; never payloads (SEC-12).
    fn record(&self, before: &Task, after: &Task) {
        let Phase::Settled(outcome) = &after.phase else { return };
        if before.is_settled() {
            return;
        }
        if let Outcome::Faulted(Failure::Gateway(GatewayFault { process: Some(process), .. })) = outcome {
            died_programs::note(&after.key, *process);
        }
        let label = outcome_label(outcome);
        if after.visibility == TaskVisibility::Hidden {
            tracing::debug!(task = %LoggedTask(&after.key), outcome = label, "a held call ended");
            return;
        }
        // Metrics count only tasks that clients requested.
        if after.tree.parent.is_some() {
            tracing::debug!(task = %LoggedTask(&after.key), outcome = label, "a subtask settled");
            return;
        }
        let (upstream, tool) = (&after.origin.upstream, &after.origin.tool);
        let age = after.updated_at.since(after.began_at());
        self.metrics.settled(upstream, label, age);
        let (task, principal) = (LoggedTask(&after.key), LoggedPrincipal(&after.key.owner));
        let (id, polls) = (&after.key.id, self.live.polls(&after.key));
        let (seconds, bytes) = (age.as_secs_f64(), after.stored_bytes());
        if let Some(audit) = self.audit() {
            let (upstream, tool) = (Some(&**upstream), Some(&**tool));
            let (outcome, duration) = (Some(label), Some(age));
            let settled = AuditEvent::of_task(AuditAct::TaskSettled, &after.key);
            audit.record(&AuditEvent { upstream, tool, outcome, duration, ..settled });
        }
        // Without the call's span, which has the same fields.
        tracing::info!(parent: None, %task, ?id, %principal, %upstream, %tool, outcome = label, seconds, bytes, polls, "task settled");
    }

    /// Counts and logs a client's poll of its task. Fails as [`Engine::record_shown`].
    pub fn count_poll(&self, task: &Task) -> Result<(), GatewayFault> {
        self.metrics.polled();
        self.record_shown(task)?;
        if !task.is_settled() {
            self.live.polled(&task.key);
        }
        Ok(())
    }

    /// Logs that a client read a task (L25-61). An outcome is audited: fails while that event cannot be kept (SEC-57).
    pub fn record_shown(&self, task: &Task) -> Result<(), GatewayFault> {
        let principal = LoggedPrincipal(&task.key.owner);
        if !task.is_settled() {
            tracing::debug!(task = %LoggedTask(&task.key), %principal, "a task's state was read");
            return Ok(());
        }
        if self.audit().is_some_and(|audit| !audit.is_available()) {
            return Err(GatewayFault::new(Reason::AuditUnavailable, Executed::Unknown));
        }
        tracing::debug!(task = %LoggedTask(&task.key), %principal, "an outcome was read");
        self.audit_task(AuditAct::TaskRead, task);
        Ok(())
    }

    pub(super) fn audit_task(&self, act: AuditAct, task: &Task) {
        if let Some(audit) = self.audit() {
            let (upstream, tool) = (Some(&*task.origin.upstream), Some(&*task.origin.tool));
            audit.record(&AuditEvent { upstream, tool, ..AuditEvent::of_task(act, &task.key) });
        }
    }

    pub(super) fn count_in_flight(&self, task: &Task) {
        if !task.is_settled() && task.visibility == TaskVisibility::Handle && task.tree.parent.is_none() {
            self.metrics.taken_over(&task.origin.upstream);
        }
    }

    /// Stops the runner of a task that another replica has taken over. The upstream is not notified.
    pub(super) fn fenced(&self, key: &TaskKey) {
        tracing::warn!(task = %LoggedTask(key), "another replica took over a task; its call here is dropped");
        self.live.fence(key);
    }

    fn perform(&self, key: &TaskKey, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::StoreOnly => (),
                Effect::NotifyWatchers => self.watchers.wake(key),
                Effect::Deliver(answers) => self.live.deliver(key, answers),
                Effect::Abandon => self.live.abandon(key),
            }
        }
    }
}

fn decided(before: &Task, events: &[Event], now: Timestamp) -> (Task, Vec<Effect>, bool) {
    let (mut task, mut effects, mut changed) = (before.clone(), Vec::new(), false);
    for event in events {
        let (next, more) = transition(task, event.clone(), now);
        task = next;
        changed = !more.is_empty();
        effects.extend(more);
    }
    // Copies buffers that are larger than their counted bytes, so that an event keeps no more memory alive.
    (task.exact(), effects, changed)
}

/// The events to try if the store has no room for all of them.
fn shrink(mut events: Vec<Event>) -> Option<Vec<Event>> {
    let last = events.pop()?;
    match without_payload(&last) {
        Some(smaller) => Some(vec![smaller]),
        None if events.is_empty() => None,
        None => Some(vec![last]),
    }
}

/// The fault to store in place of an outcome that exceeds the store's room.
fn without_payload(event: &Event) -> Option<Event> {
    let (Event::Returned { attempt, .. } | Event::Faulted { attempt, failure: Failure::Upstream(_) }) = event else {
        return None;
    };
    let fault = GatewayFault::new(Reason::StoreFull, Executed::Yes);
    Some(Event::Faulted { attempt: *attempt, failure: Failure::Gateway(fault) })
}

/// Failpoints between a commit and its effects: a kill here leaves effects for the next process to find.
fn visit_stored(before: &Task, after: &Task) {
    match &after.phase {
        Phase::Settled(_) if !before.is_settled() => failpoint::hit("outcome-stored"),
        Phase::AwaitingInput(_) => failpoint::hit("question-stored"),
        Phase::Settled(_) | Phase::Queued | Phase::Working => (),
    }
}

pub(super) const fn outcome_label(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Returned { is_error: false, .. } => "returned",
        Outcome::Returned { is_error: true, .. } => "tool_error",
        Outcome::Faulted(Failure::Upstream(_)) => "upstream_error",
        Outcome::Faulted(Failure::Gateway(fault)) => fault.reason.key(),
        Outcome::Cancelled => "cancelled",
    }
}

impl Engine {
    /// Ends the task of a refused call with an unknown insert, once the store confirms its row: other replicas may have
    /// seen it. Until then no other runner takes the task. `executed` says whether the call was sent.
    pub(super) fn end_refused(self: &Arc<Self>, key: TaskKey, executed: Executed) {
        let (engine, drain_begun) = (Arc::clone(self), self.drain_begun.clone());
        self.changes.tracker.spawn(async move {
            let mut pauses = RetryDelays::of_writers();
            let mut found = None;
            // The wait may be dropped; the effects of a row's end must complete.
            while let Some(Some(row)) = drain_begun.run_until_cancelled(engine.found_refused(&key, &mut pauses)).await {
                if engine.ends_refused(found.get_or_insert_with(|| row.task.clone()), row.task.attempt, executed).await
                {
                    break;
                }
            }
            engine.live.remove(&key);
        });
    }

    /// The row of a refused call, once the store confirms whether it exists.
    async fn found_refused(&self, key: &TaskKey, pauses: &mut RetryDelays) -> Option<StoredTask> {
        loop {
            pauses.wait().await;
            match self.store.resolve_write(key, self.clock.now()).await {
                Ok(found) => return found,
                Err(error) => {
                    tracing::debug!(error = %CauseChain(&error), "it is still unknown whether a task was stored");
                }
            }
        }
    }

    /// Settles the task of a refused call; whether nothing is left to do. `found` is the task at the first read. Not cancel safe.
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
