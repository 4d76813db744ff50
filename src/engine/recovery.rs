//! Decides how calls that an earlier process left unsettled continue or end (GW-39). Runs in the background; until a
//! row is handled its task remains as stored, and a row that the store fails to change is retried. `verdict` judges one
//! row, and is pure; a runner carries it out, or this module if nothing is to run.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use parking_lot::RwLock;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::{CallSpec, declared_questions};
use super::retry_delays::RetryDelays;
use super::runner::{
    self, RecoveryAction, RecoveryDecision, RunnerCommands, record, task_mode, verdict, without_credential,
};
use super::target::{CallMaker, CallTarget};
use super::{Engine, TaskError};
use crate::cause::CauseChain;
use crate::failpoint;
use crate::store::{Reach, StoreError, WriteRole, needs_holder};
use crate::task::reference::LoggedTask;
use crate::task::{CallOrigin, Event, Plan, StoredCall, Task, TaskKey, TaskVisibility, Timestamp, ToolPolicy};
use crate::upstream::{ForwardedHeaders, ResumeToken, UpstreamRequest, UpstreamTaskMode};
use crate::wire::{Payload, method};

const CLAIM_MAX: usize = 256;
/// Interval at which a shared store is searched for rows of dead replicas.
const CLAIM_EVERY: Duration = Duration::from_secs(1);
const AT_ONCE: usize = 32;
/// Rows that wait until their upstream is notified. Further ones delay other rows.
const NOTICES_MAX: usize = 10_000;
/// Attempts for one row: to settle it, and to notify its upstream.
const LOOKS_MAX: usize = 4;
/// Delay before a row is retried that the store failed to change, first and last.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LAST: Duration = Duration::from_secs(30);
const RETRIES: RetryDelays = RetryDelays::new(RETRY_FIRST, RETRY_LAST);
/// Interval of looks for rows without a runner.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Rows that are resumed after one look.
const RESUMED_MAX: usize = 1_000;

/// The configured upstreams, by name. Clones share one table.
#[derive(Clone, Debug, Default)]
pub struct CallTargets(Arc<RwLock<HashMap<Arc<str>, CallTarget>>>);

impl CallTargets {
    pub fn new(all: impl IntoIterator<Item = CallTarget>) -> Self {
        let targets = Self::default();
        targets.replace(all);
        targets
    }

    /// Replaces the table for rows that are handled from now on.
    pub fn replace(&self, all: impl IntoIterator<Item = CallTarget>) {
        *self.0.write() = all.into_iter().map(|target| (Arc::clone(target.upstream.name()), target)).collect();
    }

    fn of(&self, origin: &CallOrigin) -> Option<CallTarget> {
        self.0.read().get(&origin.upstream).cloned()
    }

    fn names(&self) -> Vec<Arc<str>> {
        self.0.read().keys().cloned().collect()
    }
}

/// Claims the rows that ended processes left at the configured upstreams, and handles each. Returns once none is left;
/// in a shared store it runs until `stop` or a drain.
pub async fn run(engine: Arc<Engine>, targets: CallTargets, stop: CancellationToken) {
    let drain_begun = engine.drain_begun.clone();
    let (notices, waiting) = mpsc::channel(NOTICES_MAX);
    let (engine, targets) = (&engine, &targets);
    let claiming = async move {
        loop {
            let seen = pass(engine, targets, &notices).await;
            if seen > 0 {
                tracing::info!(tasks = seen, "all tasks of earlier processes were handled");
            }
            if engine.store.reach() != Reach::Shared {
                return;
            }
            tokio::time::sleep(CLAIM_EVERY).await;
        }
    };
    let recovering = async { tokio::join!(claiming, notify_all(engine, targets, waiting)) };
    tokio::select! {
        () = stop.cancelled() => (),
        () = drain_begun.cancelled() => (),
        ((), ()) = recovering => (),
    }
}

/// Handles the rows whose upstreams are notified of a cancel. One that does not respond delays only these.
async fn notify_all(engine: &Arc<Engine>, targets: &CallTargets, mut waiting: mpsc::Receiver<RecoveryCandidate>) {
    let rows = futures_util::stream::poll_fn(|context| waiting.poll_recv(context));
    let handled = rows.for_each_concurrent(AT_ONCE, |mut found| async move {
        let mut pauses = RETRIES;
        while let RecoveryProgress::Again(left) = handle(engine, targets, found, None).await {
            tokio::time::sleep(pauses.take()).await;
            found = left;
        }
    });
    handled.await;
}

/// Claims and handles all rows; returns their number. Failed rows are retried at growing intervals, and delay no claim.
async fn pass(engine: &Arc<Engine>, targets: &CallTargets, notices: &Notices) -> usize {
    let handle = |found| handle(engine, targets, found, Some(notices));
    let mut left = LeftRows::new();
    let mut claim_pauses = RetryDelays::new(RETRY_FIRST, CLAIM_EVERY);
    let (mut seen, mut is_claim_failure_logged) = (0, false);
    loop {
        let pause = match engine.store.claim(CLAIM_MAX, &targets.names()).await {
            Ok(keys) if keys.is_empty() && left.rows.is_empty() => return seen,
            Ok(keys) if keys.is_empty() => CLAIM_EVERY,
            Ok(keys) => {
                // Until a row is handled, it does not count as a row without a runner.
                engine.retried.lock().extend(keys.iter().cloned());
                let rows = keys.into_iter().map(RecoveryCandidate::new).collect();
                seen += for_all(rows, handle, &mut left.rows).await;
                left.restart_pauses();
                continue;
            }
            Err(error) => {
                if std::mem::replace(&mut is_claim_failure_logged, true) {
                    tracing::debug!(error = %CauseChain(&error), "tasks of earlier processes could not be claimed again");
                } else {
                    tracing::warn!(error = %CauseChain(&error), "tasks of earlier processes could not be claimed; this is tried again");
                }
                claim_pauses.take()
            }
        };
        let claims_at = Instant::now() + pause;
        if left.rows.is_empty() || claims_at < left.due {
            tokio::time::sleep_until(claims_at).await;
            continue;
        }
        tokio::time::sleep_until(left.due).await;
        let rows = left.take();
        seen += for_all(rows, handle, &mut left.rows).await;
    }
}

/// Resumes rows of this process that have no runner, as recovery does. A row that was not resumed is found again later.
async fn resume_own(engine: &Arc<Engine>, targets: &CallTargets, rows: Vec<TaskKey>) {
    // These rows are already counted as in flight.
    let seen = |key| RecoveryCandidate { was_seen: true, is_own: true, ..RecoveryCandidate::new(key) };
    let mut left = Vec::new();
    for_all(rows.into_iter().map(seen).collect(), |found| handle(engine, targets, found, None), &mut left).await;
    let mut retried = engine.retried.lock();
    for row in left {
        retried.remove(&row.key);
    }
}

struct LeftRows {
    rows: Vec<RecoveryCandidate>,
    pauses: RetryDelays,
    due: Instant,
    is_logged: bool,
}

impl LeftRows {
    fn new() -> Self {
        let mut left = Self { rows: Vec::new(), pauses: RETRIES, due: Instant::now(), is_logged: false };
        left.restart_pauses();
        left
    }

    fn restart_pauses(&mut self) {
        self.pauses = RETRIES;
        self.due = Instant::now() + self.pauses.take();
    }

    fn take(&mut self) -> Vec<RecoveryCandidate> {
        if std::mem::replace(&mut self.is_logged, true) {
            tracing::debug!(tasks = self.rows.len(), "tasks of earlier processes are retried");
        } else {
            tracing::warn!(
                tasks = self.rows.len(),
                "tasks of earlier processes could not be handled yet; they are retried"
            );
        }
        self.due = Instant::now() + self.pauses.take();
        std::mem::take(&mut self.rows)
    }
}

/// Rows for `notify_all`.
type Notices = mpsc::Sender<RecoveryCandidate>;

struct RecoveryCandidate {
    key: TaskKey,
    /// Whether it is counted already: the first look that finds work to do sets it.
    was_seen: bool,
    /// Whether it lost its runner in this process.
    is_own: bool,
    /// A decision with an unknown commit, or one that could not be stored.
    tried: Option<(Arc<Task>, RecoveryDecision)>,
    /// Whether the log already names the error that delays it.
    is_logged: bool,
}

impl RecoveryCandidate {
    const fn new(key: TaskKey) -> Self {
        Self { key, was_seen: false, is_own: false, tried: None, is_logged: false }
    }

    /// Logs the error that delays it, once at error level: the error may last as long as the process does.
    fn log(&mut self, error: &(dyn Error + 'static), what: &'static str) {
        if std::mem::replace(&mut self.is_logged, true) {
            tracing::debug!(task = %LoggedTask(&self.key), error = %CauseChain(error), "again, {what}");
        } else {
            tracing::error!(task = %LoggedTask(&self.key), error = %CauseChain(error), "{what}");
        }
    }
}

/// Handles rows; returns how many were new and of an earlier process. Rows to retry are added to `left`.
async fn for_all<F: Future<Output = RecoveryProgress>>(
    rows: Vec<RecoveryCandidate>,
    handle: impl Fn(RecoveryCandidate) -> F,
    left: &mut Vec<RecoveryCandidate>,
) -> usize {
    let mut looked = futures_util::stream::iter(rows)
        .map(|found| {
            let was_seen = found.was_seen;
            let handled = handle(found);
            async move { (was_seen, handled.await) }
        })
        .buffer_unordered(AT_ONCE);
    let mut seen = 0;
    while let Some((was_seen, looked)) = looked.next().await {
        match looked {
            RecoveryProgress::NotOurs => (),
            RecoveryProgress::Done => seen += usize::from(!was_seen),
            RecoveryProgress::Again(found) => {
                seen += usize::from(!was_seen && found.was_seen);
                left.push(found);
            }
        }
    }
    seen
}

enum RecoveryProgress {
    /// Another runner has it, or it was removed or settled.
    NotOurs,
    Done,
    Again(RecoveryCandidate),
}

/// The decision about one row, by the policy that its tool has now.
fn decide(
    engine: &Engine,
    task: &Task,
    target: Option<&CallTarget>,
    policy: Option<&ToolPolicy>,
    now: Timestamp,
) -> RecoveryDecision {
    let verdict = verdict(task, policy, now, engine.why_lost());
    if lets_clients_in(target, task) { without_credential(verdict, task) } else { verdict }
}

/// Handles a row. After a panic, the row is found again later, as one without a runner (F64).
async fn handle(
    engine: &Arc<Engine>,
    targets: &CallTargets,
    found: RecoveryCandidate,
    notices: Option<&Notices>,
) -> RecoveryProgress {
    let key = found.key.clone();
    let handled = AssertUnwindSafe(judge_and_carry_out(engine, targets, found, notices)).catch_unwind().await;
    handled.unwrap_or_else(|_| {
        tracing::error!(task = %LoggedTask(&key), "the recovery of a task panicked");
        engine.live.remove(&key);
        RecoveryProgress::NotOurs
    })
}

/// If a row's upstream must be notified, the row goes to the channel `notices`, unless that is absent or full.
async fn judge_and_carry_out(
    engine: &Arc<Engine>,
    targets: &CallTargets,
    found: RecoveryCandidate,
    notices: Option<&Notices>,
) -> RecoveryProgress {
    let Some(mut row) = ClaimedRow::of(engine, found) else { return RecoveryProgress::NotOurs };
    loop {
        let done = match row.judge(targets).await {
            Ok(work) => {
                match notifiable(work.notifies.as_ref(), &work.task).and_then(|_| notices?.try_reserve().ok()) {
                    Some(permit) => return row.wait_in(permit),
                    None => row.carry_out(work).await,
                }
            }
            Err(end) => Err(end),
        };
        if let Err(end) = done {
            return row.end(end);
        }
    }
}

/// A row that no other runner of this process takes meanwhile.
struct ClaimedRow<'a> {
    engine: &'a Arc<Engine>,
    found: RecoveryCandidate,
    /// Answers and cancels since the claim, until its runner has them.
    commands: Option<RunnerCommands>,
    looks: usize,
}

struct RowWork {
    task: Arc<Task>,
    step: RowStep,
    notifies: Option<CallTarget>,
}

enum RowStep {
    Run {
        action: RecoveryAction,
        target: CallTarget,
        policy: Box<ToolPolicy>,
        now: Timestamp,
    },
    Finish(RecoveryDecision),
    /// A subtask without parent.
    Remove,
}

enum RowEnd {
    /// It needs nothing, or others handle it.
    Left,
    HasRunner,
    Failed(Box<dyn Error + Send + Sync>, &'static str),
}

impl RowEnd {
    fn failed(error: impl Error + Send + Sync + 'static, what: &'static str) -> Self {
        Self::Failed(Box::new(error), what)
    }
}

impl<'a> ClaimedRow<'a> {
    /// `None` if the row has a runner.
    fn of(engine: &'a Arc<Engine>, found: RecoveryCandidate) -> Option<Self> {
        // Claimed before it is read: later commands queue in `commands`. A runner here registers before its row exists.
        let claim = engine.live.claim(&found.key);
        engine.retried.lock().remove(&found.key);
        Some(Self { engine, found, commands: Some(claim?), looks: 0 })
    }

    async fn judge(&mut self, targets: &CallTargets) -> Result<RowWork, RowEnd> {
        let (engine, found) = (self.engine, &mut self.found);
        if self.looks == LOOKS_MAX {
            return Err(RowEnd::Left);
        }
        self.looks += 1;
        let now = engine.clock.now();
        let row = engine.store.load(&found.key, now).await;
        let row = row.map_err(|error| RowEnd::failed(error, "a task of an earlier process could not be read"))?;
        let task =
            row.filter(|row| row.holder.is_none_or(|holder| holder == engine.store.holder())).ok_or(RowEnd::Left)?.task;
        let parent = parent_of(engine, &task, now).await;
        match parent.map_err(|error| RowEnd::failed(error, "the parent of a subtask could not be read"))? {
            ParentState::None => (),
            // Its parent resumes it.
            ParentState::Unsettled => return Err(RowEnd::Left),
            ParentState::Gone => {
                // Cancels an element of a split call. A server's subtask is not cancelled, nor an element that lost its row in
                // this process: its exchange still serves the plain call (GW-33).
                let notifies = targets.of(&task.origin).filter(|_| task.recovery.call.is_some() && !found.is_own);
                return Ok(RowWork { task, step: RowStep::Remove, notifies });
            }
        }
        if !found.was_seen {
            engine.count_in_flight(&task);
        }
        let target = targets.of(&task.origin);
        // A call that would now reach another tool is treated as a call of a removed upstream.
        let policy = target.as_ref().filter(|target| !target.would_send_another(&task));
        let policy = policy.map(|target| target.settings.rules.policy_of(&task.origin.tool));
        let now = engine.expiry_time_of(&task, now);
        let verdict = decide(engine, &task, target.as_ref(), policy.as_ref(), now);
        let is_left = verdict == RecoveryDecision::Leave;
        let is_stored = |before: &Task| is_left || (task.is_settled() && !before.is_settled());
        if let Some((before, tried)) = found.tried.take_if(|(before, _)| is_stored(before)) {
            // The decision, with an unknown commit, was stored after all.
            record(&before, &tried);
        }
        if is_left {
            return Err(RowEnd::Left);
        }
        found.was_seen = true;
        Ok(match (verdict, target, policy) {
            (RecoveryDecision::Run(action), Some(target), Some(policy)) => {
                RowWork { task, step: RowStep::Run { action, target, policy: Box::new(policy), now }, notifies: None }
            }
            (verdict, target, _) => {
                let was_notified = matches!(found.tried, Some((_, RecoveryDecision::Notify)));
                let notifies = target.filter(|_| !was_notified && notifies(&verdict, &task));
                RowWork { task, step: RowStep::Finish(verdict), notifies }
            }
        })
    }

    /// After `Ok` the row is judged again: it was changed here, or by another writer.
    async fn carry_out(&mut self, work: RowWork) -> Result<(), RowEnd> {
        let RowWork { task, step, notifies } = work;
        match step {
            RowStep::Run { action, target, policy, now } => {
                failpoint::hit("recovering");
                self.run(&target, task, *policy, action, now);
                Err(RowEnd::HasRunner)
            }
            RowStep::Finish(verdict) => {
                failpoint::hit("recovering");
                match finish(self.engine, notifies.as_ref(), &task, &verdict).await {
                    Ok(true) => {
                        self.found.tried = None;
                        record(&task, &verdict);
                        Ok(())
                    }
                    Ok(false) => Ok(()),
                    Err(error) => {
                        self.found.tried = Some((task, verdict));
                        Err(RowEnd::failed(error, "a task of an earlier process could not be settled"))
                    }
                }
            }
            RowStep::Remove => {
                notify_upstream(notifies.as_ref(), &task).await;
                let removed = self.engine.store.remove(&self.found.key).await;
                removed.map_err(|error| RowEnd::failed(error, "a subtask without parent was not removed"))?;
                Err(RowEnd::Left)
            }
        }
    }

    fn run(
        &mut self,
        target: &CallTarget,
        task: Arc<Task>,
        policy: ToolPolicy,
        action: RecoveryAction,
        now: Timestamp,
    ) {
        let engine = self.engine;
        record(&task, &RecoveryDecision::Run(action.clone()));
        let native_task = task_mode(&task, &policy, now);
        let mut spec = target.restored_call(&task, policy, native_task);
        spec.context.share = Some(engine.share_of(&spec));
        if let Some(commands) = self.commands.take() {
            let permit = engine.admission.take_again(&task.key.owner);
            runner::take_up(engine, spec, task, commands, action, permit);
        }
    }

    fn end(mut self, end: RowEnd) -> RecoveryProgress {
        match end {
            RowEnd::Left => self.release(),
            RowEnd::HasRunner => RecoveryProgress::Done,
            // To be retried later.
            RowEnd::Failed(error, what) => {
                self.found.log(&*error, what);
                self.engine.retried.lock().insert(self.found.key.clone());
                self.engine.live.remove(&self.found.key);
                RecoveryProgress::Again(self.found)
            }
        }
    }

    /// Releases the row for `notify_all`.
    fn wait_in(self, permit: mpsc::Permit<'_, RecoveryCandidate>) -> RecoveryProgress {
        self.engine.retried.lock().insert(self.found.key.clone());
        let progress = self.release();
        permit.send(self.found);
        progress
    }

    fn release(&self) -> RecoveryProgress {
        self.engine.live.remove(&self.found.key);
        if self.found.was_seen { RecoveryProgress::Done } else { RecoveryProgress::NotOurs }
    }
}

/// Whether a call was made with its client's credential, as far as its owner or the upstream's present configuration shows.
fn lets_clients_in(target: Option<&CallTarget>, task: &Task) -> bool {
    task.key.owner.is_unchecked() || target.is_some_and(|target| target.settings.forwarding.is_per_client())
}

enum ParentState {
    /// The row has no parent, or is settled: it is judged by itself.
    None,
    Unsettled,
    /// The parent was removed, or does not list the row.
    Gone,
}

async fn parent_of(engine: &Engine, task: &Task, now: Timestamp) -> Result<ParentState, StoreError> {
    let Some(id) = task.tree.parent.filter(|_| !task.is_settled()) else { return Ok(ParentState::None) };
    let key = TaskKey { owner: task.key.owner.clone(), id };
    let parent = engine.store.load(&key, now).await?.map(|row| row.task);
    Ok(match parent.filter(|parent| parent.tree.children.contains(&task.key.id)) {
        Some(parent) if !parent.is_settled() => ParentState::Unsettled,
        Some(_) => ParentState::None,
        None => ParentState::Gone,
    })
}

fn notifies(verdict: &RecoveryDecision, task: &Task) -> bool {
    match verdict {
        RecoveryDecision::Notify => true,
        // No client returns for a hidden task, so its call is cancelled, too.
        RecoveryDecision::Settle(_) => task.visibility == TaskVisibility::Hidden,
        RecoveryDecision::Leave | RecoveryDecision::Run(_) | RecoveryDecision::Expire => false,
    }
}

/// Carries out a decision that needs no runner, and notifies `target`; whether a change was stored.
async fn finish(
    engine: &Arc<Engine>,
    target: Option<&CallTarget>,
    task: &Task,
    verdict: &RecoveryDecision,
) -> Result<bool, TaskError> {
    let key = &task.key;
    match verdict {
        RecoveryDecision::Leave | RecoveryDecision::Run(_) => Ok(false),
        RecoveryDecision::Expire => settle(engine, key, Event::TtlElapsed).await,
        RecoveryDecision::Settle(failure) => {
            let event = Event::Faulted { attempt: task.attempt, failure: failure.clone() };
            let settled = settle(engine, key, event).await?;
            if settled {
                // Best effort: nothing records it.
                notify_upstream(target, task).await;
            }
            Ok(settled)
        }
        RecoveryDecision::Notify => {
            notify_upstream(target, task).await;
            settle(engine, key, Event::Notified).await
        }
    }
}

/// Applies an event to its end, even if the pass is stopped meanwhile; whether it changed the task.
async fn settle(engine: &Arc<Engine>, key: &TaskKey, event: Event) -> Result<bool, TaskError> {
    let (own, key) = (Arc::clone(engine), key.clone());
    let applied = engine.finish(async move { own.apply(&key, WriteRole::Holder, event).await }).await;
    match applied {
        Ok(applied) => Ok(applied.changed),
        // The row was removed, which is an end too; or another replica holds it.
        Err(TaskError::Unknown | TaskError::Store(StoreError::Fenced)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Cancels a call at its upstream, if its resume data is known; bounded by the exchange.
async fn notify_upstream(target: Option<&CallTarget>, task: &Task) {
    let Some((target, position)) = notifiable(target, task) else { return };
    let policy = target.settings.rules.policy_of(&task.origin.tool);
    let call = target.restored_call(task, policy, UpstreamTaskMode::Never);
    match target.upstream.resume(ResumeToken(position.clone()), call.context).await {
        Ok(mut exchange) => exchange.cancel("no client waits for this call any more").await,
        Err(error) => {
            tracing::info!(error = %CauseChain(&error), task = %LoggedTask(&task.key), "an upstream could not be notified of a cancel")
        }
    }
}

/// The upstream at which the call can be cancelled, and the resume data for that.
fn notifiable<'a>(target: Option<&'a CallTarget>, task: &'a Task) -> Option<(&'a CallTarget, &'a Payload)> {
    let position = task.recovery.resume.as_ref()?;
    Some((target.filter(|target| !lets_clients_in(Some(target), task))?, position))
}

impl CallTarget {
    /// The params to send for a row; `None` where they would reach another tool than the call did.
    fn sendable(&self, task: &Task) -> Option<Payload> {
        let call = task.recovery.call.as_ref().filter(|call| call.can_be_sent())?;
        self.upstream.restored(&task.origin.tool, &call.params)
    }

    fn would_send_another(&self, task: &Task) -> bool {
        let has_call = task.recovery.call.as_ref().is_some_and(StoredCall::can_be_sent);
        task.recovery.resume.is_none() && has_call && self.sendable(task).is_none()
    }

    /// The call of a row, for its runner. It has a handle, so questions that its client did not declare are refused.
    fn restored_call(&self, task: &Task, policy: ToolPolicy, native_task: UpstreamTaskMode) -> CallSpec {
        let call = task.recovery.call.as_ref();
        let capabilities = call.map_or_else(Payload::empty_object, |one| one.capabilities.clone());
        let maker = CallMaker {
            principal: task.key.owner.clone(),
            kind: task.origin.client,
            questions: declared_questions(&capabilities),
            capabilities,
            forwarded: ForwardedHeaders::default(),
            arrived: Instant::now(),
        };
        let request = UpstreamRequest { method: Arc::from(method::TOOLS_CALL), params: self.sendable(task) };
        let mut spec = self.clone().plain_call(maker, request, Some((Arc::clone(&task.origin.tool), policy)));
        spec.plan = Plan::Task;
        spec.is_repeatable = call.is_some_and(|call| call.is_repeatable);
        spec.context.progress = call.is_some_and(|call| call.progress);
        spec.context.log_level = call.and_then(|call| call.log_level.clone());
        spec.context.native_task = native_task;
        spec
    }
}

/// Resumes rows of this process that have no runner, until `stop` or a drain: each row that this process holds has a
/// runner, or its parent has one, or recovery retries it (L9). A row counts only if two consecutive looks find it, since
/// one may fall between a runner's last write and its end.
pub async fn resume_rows_without_runner(engine: Arc<Engine>, targets: CallTargets, stop: CancellationToken) {
    let drain_begun = engine.drain_begun.clone();
    let looking = async {
        let mut found = BTreeSet::new();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            found = look_for_rows(&engine, &targets, found).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => (),
        () = drain_begun.cancelled() => (),
        never = looking => never,
    }
}

/// Finds rows without a runner, and resumes the rows that were also in `before`. Returns the rows found.
async fn look_for_rows(engine: &Arc<Engine>, targets: &CallTargets, before: BTreeSet<TaskKey>) -> BTreeSet<TaskKey> {
    let found = match engine.rows_without_runner().await {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(error = %CauseChain(&error), "rows without a runner could not be searched for");
            return before;
        }
    };
    let rows: Vec<_> = found.intersection(&before).take(RESUMED_MAX).cloned().collect();
    if !rows.is_empty() {
        tracing::error!(tasks = rows.len(), "tasks without a runner are resumed like tasks of an earlier process");
        resume_own(engine, targets, rows).await;
    }
    found
}

impl Engine {
    /// The rows that break the invariant now, including rows that are about to get or lose a runner.
    pub async fn rows_without_runner(&self) -> Result<BTreeSet<TaskKey>, StoreError> {
        let mut found = BTreeSet::new();
        for key in self.store.held().await?.into_iter().filter(|key| !self.is_run(key)) {
            let row = self.store.load(&key, self.clock.now()).await?;
            let Some(task) = row.map(|row| row.task).filter(|task| needs_holder(task)) else { continue };
            let parent = task.parent_key();
            if !parent.is_some_and(|parent| self.is_run(&parent)) && !self.is_run(&key) {
                found.insert(key);
            }
        }
        Ok(found)
    }

    fn is_run(&self, key: &TaskKey) -> bool {
        self.live.has(key) || self.retried.lock().contains(key)
    }
}
