//! Decides what becomes of the calls that an earlier life of the process left behind (GW-39).
//!
//! Runs beside everything else until it is done with all of them: until it has looked at a task, the task is as it was
//! stored, and one that the store does not let go is looked at again. One row is judged by
//! `verdict`, which is pure; what it says is done by a runner of the row's own, or here where nothing is left to run.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use http::header::AUTHORIZATION;
use parking_lot::RwLock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::{CallSpec, declared_questions};
use super::retry_delays::RetryDelays;
use super::runner::{self, RecoveryDecision, record, task_mode, verdict, without_credential};
use super::target::{CallMaker, CallTarget};
use super::{Engine, TaskError};
use crate::cause::CauseChain;
use crate::failpoint;
use crate::store::{Reach, StoreError, StoredTask, WriteRole};
use crate::task::reference::LoggedTask;
use crate::task::{CallOrigin, Event, Plan, StoredCall, Task, TaskKey, TaskVisibility, Timestamp, ToolPolicy};
use crate::upstream::{ForwardedHeaders, ResumeToken, UpstreamRequest, UpstreamTaskMode};
use crate::wire::{Payload, method};

/// Rows that are claimed at a time.
const CLAIM_MAX: usize = 256;
/// How often a store that others have open is asked what they left.
const CLAIM_EVERY: Duration = Duration::from_secs(1);
/// Rows that are looked at together.
const AT_ONCE: usize = 32;
/// How often one row is looked at: to settle it, and to tell its upstream.
const LOOKS_MAX: usize = 4;
/// How soon a row is looked at again that the store keeps from being done with, first and at last.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LAST: Duration = Duration::from_secs(30);
const RETRIES: RetryDelays = RetryDelays::new(RETRY_FIRST, RETRY_LAST);

/// The upstreams that there are, by name. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct CallTargets(Arc<RwLock<HashMap<Arc<str>, CallTarget>>>);

impl CallTargets {
    #[must_use]
    pub fn new(all: impl IntoIterator<Item = CallTarget>) -> Self {
        let targets = Self::default();
        targets.replace(all);
        targets
    }

    /// Holds for rows that are looked at from now on.
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

/// Claims the rows that ended lives left behind at the upstreams that there are, and looks at each until it is done with; the calls that go on do so in
/// runners. Returns once nothing is left, unless others have the store open too: then it goes on until it is told to stop, or
/// the engine drains. What was not looked at waits for the next life.
pub async fn run(engine: Arc<Engine>, origins: CallTargets, stop: CancellationToken) {
    let leaving = engine.leaving.clone();
    let recovering = async {
        loop {
            let seen = pass(&engine, &origins).await;
            if seen > 0 {
                tracing::info!(tasks = seen, "all tasks of earlier lives were looked at");
            }
            if engine.store.reach() != Reach::Shared {
                return;
            }
            tokio::time::sleep(CLAIM_EVERY).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => (),
        () = leaving.cancelled() => (),
        () = recovering => (),
    }
}

/// Takes over what there is, and returns when it is done with all of it: how many tasks that were. What is not done with keeps
/// nothing from being claimed, and is looked at again ever more rarely.
async fn pass(engine: &Arc<Engine>, origins: &CallTargets) -> usize {
    let mut left = LeftRows::new();
    let mut claim_pauses = RetryDelays::new(RETRY_FIRST, CLAIM_EVERY);
    let (mut seen, mut claims_told) = (0, false);
    loop {
        let pause = match engine.store.claim(CLAIM_MAX, &origins.names()).await {
            Ok(keys) if keys.is_empty() && left.rows.is_empty() => return seen,
            Ok(keys) if keys.is_empty() => CLAIM_EVERY,
            Ok(keys) => {
                // Until each is looked at: it is not without a runner, it waits for one.
                engine.retried.lock().extend(keys.iter().cloned());
                let rows = keys.into_iter().map(RecoveryCandidate::new).collect();
                seen += look_at_all(engine, origins, rows, &mut left.rows).await;
                left.begin_anew();
                continue;
            }
            Err(error) => {
                if std::mem::replace(&mut claims_told, true) {
                    tracing::debug!(error = %CauseChain(&error), "tasks of earlier lives could not be claimed again");
                } else {
                    tracing::warn!(error = %CauseChain(&error), "tasks of earlier lives could not be claimed; this is tried again");
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
        seen += look_at_all(engine, origins, rows, &mut left.rows).await;
    }
}

/// Takes up rows of this process that have no runner, by the code of recovery. A row that could not be taken up is found again.
pub(super) async fn take_up_own(engine: &Arc<Engine>, origins: &CallTargets, rows: Vec<TaskKey>) {
    // Each is counted among the tasks at work already.
    let seen = |key| RecoveryCandidate { was_seen: true, ..RecoveryCandidate::new(key) };
    let mut left = Vec::new();
    look_at_all(engine, origins, rows.into_iter().map(seen).collect(), &mut left).await;
    let mut retried = engine.retried.lock();
    for row in left {
        retried.remove(&row.key);
    }
}

/// Rows that the store keeps from being done with.
struct LeftRows {
    rows: Vec<RecoveryCandidate>,
    pauses: RetryDelays,
    /// When they are looked at again.
    due: Instant,
    is_told: bool,
}

impl LeftRows {
    fn new() -> Self {
        let mut left = Self { rows: Vec::new(), pauses: RETRIES, due: Instant::now(), is_told: false };
        left.begin_anew();
        left
    }

    /// There are others among them.
    fn begin_anew(&mut self) {
        self.pauses = RETRIES;
        self.due = Instant::now() + self.pauses.take();
    }

    /// Those that are to be looked at now.
    fn take(&mut self) -> Vec<RecoveryCandidate> {
        if std::mem::replace(&mut self.is_told, true) {
            tracing::debug!(tasks = self.rows.len(), "tasks of earlier lives are looked at again");
        } else {
            tracing::warn!(
                tasks = self.rows.len(),
                "tasks of earlier lives are not done with yet; they are looked at again"
            );
        }
        self.due = Instant::now() + self.pauses.take();
        std::mem::take(&mut self.rows)
    }
}

/// A row that may be one of an earlier life.
struct RecoveryCandidate {
    key: TaskKey,
    /// Whether it was found to be one.
    was_seen: bool,
    /// What was to be done and could not be stored, as far as anybody knows.
    tried: Option<(Arc<Task>, RecoveryDecision)>,
    /// Whether the log has it that the store keeps it from being done with.
    is_told: bool,
}

impl RecoveryCandidate {
    const fn new(key: TaskKey) -> Self {
        Self { key, was_seen: false, tried: None, is_told: false }
    }

    /// Tells of what keeps it from being done with, once: it may last for as long as the process does.
    fn tell(&mut self, error: &(dyn Error + 'static), what: &'static str) {
        if std::mem::replace(&mut self.is_told, true) {
            tracing::debug!(task = %LoggedTask(&self.key), error = %CauseChain(error), "again, {what}");
        } else {
            tracing::error!(task = %LoggedTask(&self.key), error = %CauseChain(error), "{what}");
        }
    }

    /// Lets go of it, to look at it again later.
    fn put_back(mut self, engine: &Engine, error: &(dyn Error + 'static), what: &'static str) -> RecoveryProgress {
        self.tell(error, what);
        engine.retried.lock().insert(self.key.clone());
        engine.live.remove(&self.key);
        RecoveryProgress::Again(self)
    }

    /// Whether its upstream was told already.
    fn was_told(&self) -> bool {
        matches!(self.tried, Some((_, RecoveryDecision::Tell)))
    }
}

/// Looks at rows; how many were new and of an earlier life. `left` gains those that are to be looked at again.
async fn look_at_all(
    engine: &Arc<Engine>,
    origins: &CallTargets,
    rows: Vec<RecoveryCandidate>,
    left: &mut Vec<RecoveryCandidate>,
) -> usize {
    let mut looked = futures_util::stream::iter(rows)
        .map(|found| async move { (found.was_seen, look(engine, origins, found).await) })
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

/// What came of a look at a row.
enum RecoveryProgress {
    /// Somebody runs it, or it is gone or done with.
    NotOurs,
    Done,
    /// The store kept it from being done with.
    Again(RecoveryCandidate),
}

/// Whether a settlement that was tried and not acknowledged is over: the task needs none, or was settled since.
fn is_decided(verdict: &RecoveryDecision, task: &Task, before: &Task) -> bool {
    *verdict == RecoveryDecision::Leave || (task.is_settled() && !before.is_settled())
}

async fn look(engine: &Arc<Engine>, origins: &CallTargets, mut found: RecoveryCandidate) -> RecoveryProgress {
    // Claimed before it is read: what is answered or cancelled from here on becomes an order. Whoever runs a call of
    // this life entered it before there was a row.
    let claim = engine.live.claim(&found.key);
    engine.retried.lock().remove(&found.key);
    let Some(orders) = claim else { return RecoveryProgress::NotOurs };
    let mut orders = Some(orders);
    for _ in 0..LOOKS_MAX {
        let now = engine.clock.now();
        // One that another gateway has by now is none of ours.
        let task = match engine.store.load(&found.key, now).await.map(|row| row.filter(|row| is_ours(engine, row))) {
            Ok(Some(StoredTask { task, .. })) => task,
            Ok(None) => break,
            Err(error) => return found.put_back(engine, &error, "a task of an earlier life could not be read"),
        };
        match parent_of(engine, &task, now).await {
            Ok(ParentState::None) => (),
            // Its parent takes it up.
            Ok(ParentState::Unsettled) => break,
            Ok(ParentState::Gone) => {
                // What a server made goes on there with what it is below.
                if task.recovery.call.is_some() {
                    tell(origins.of(&task.origin).as_ref(), &task).await;
                }
                match engine.store.remove(&found.key).await {
                    Ok(()) => break,
                    Err(error) => return found.put_back(engine, &error, "a subtask without parent was not removed"),
                }
            }
            Err(error) => return found.put_back(engine, &error, "the parent of a subtask could not be read"),
        }
        if !found.was_seen {
            count_in_flight(engine, &task);
        }
        let reach = origins.of(&task.origin);
        let reach = reach.as_ref();
        // A call that would now be another tool's is one of an upstream that is gone.
        let policy = reach.filter(|reach| !reach.would_send_another(&task));
        let policy = policy.map(|reach| reach.settings.rules.policy_of(&task.origin.tool));
        let now = engine.time_of(&task, now);
        let verdict = verdict(&task, policy.as_ref(), (now, engine.why_lost()));
        let verdict = if lets_clients_in(reach, &task) { without_credential(verdict, &task) } else { verdict };
        if let Some((before, tried)) = found.tried.take_if(|(before, _)| is_decided(&verdict, &task, before)) {
            // It was stored after all.
            record(&before, &tried);
        }
        if verdict == RecoveryDecision::Leave {
            break;
        }
        found.was_seen = true;
        failpoint::hit("recovering");
        if let (RecoveryDecision::Run(way), Some(reach), Some(policy)) = (&verdict, reach, policy) {
            record(&task, &verdict);
            let native_task = task_mode(&task, &policy, now);
            let spec = reach.restored_call(&task, policy, native_task);
            if let Some(orders) = orders.take() {
                let place = engine.admission.take_again(&task.key.owner);
                runner::take_up(engine, spec, (task, orders), (way.clone(), place));
            }
            return RecoveryProgress::Done;
        }
        let told = reach.filter(|_| !found.was_told());
        match finish(engine, told, &task, &verdict).await {
            Ok(true) => {
                found.tried = None;
                record(&task, &verdict);
            }
            // Somebody else changed it meanwhile: it is judged anew.
            Ok(false) => (),
            Err(error) => {
                found.tried = Some((task, verdict));
                return found.put_back(engine, &error, "a task of an earlier life could not be settled");
            }
        }
    }
    engine.live.remove(&found.key);
    if found.was_seen { RecoveryProgress::Done } else { RecoveryProgress::NotOurs }
}

/// Whether no other gateway has a row.
fn is_ours(engine: &Engine, row: &StoredTask) -> bool {
    row.holder.is_none_or(|holder| holder == engine.store.holder())
}

/// Whether a call was made with its client's own credential, as far as that is known by its owner, or by what the operator
/// says of its upstream by now.
fn lets_clients_in(reach: Option<&CallTarget>, task: &Task) -> bool {
    task.key.owner.is_unchecked() || reach.is_some_and(|reach| reach.settings.forwarding.has(&AUTHORIZATION))
}

/// Counts what clients asked for and is not done.
pub(super) fn count_in_flight(engine: &Engine, task: &Task) {
    if !task.is_settled() && task.shown == TaskVisibility::Handle && task.tree.parent.is_none() {
        engine.metrics.taken_over(&task.origin.upstream);
    }
}

/// How the parent of a row stands.
enum ParentState {
    /// The row has none, or is settled: it is judged by itself.
    None,
    Unsettled,
    /// It is not there, or does not name the row.
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

/// Does what needs no runner; whether that was stored.
async fn finish(
    engine: &Arc<Engine>,
    reach: Option<&CallTarget>,
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
            if settled && task.shown == TaskVisibility::Hidden {
                // Nobody comes back for it, so nobody needs the call either. Best effort: no mark is kept.
                tell(reach, task).await;
            }
            Ok(settled)
        }
        RecoveryDecision::Tell => {
            tell(reach, task).await;
            settle(engine, key, Event::Told).await
        }
    }
}

/// Applies an event to its end, though the pass may be stopped at any moment; whether it changed anything.
async fn settle(engine: &Arc<Engine>, key: &TaskKey, event: Event) -> Result<bool, TaskError> {
    let (own, key) = (Arc::clone(engine), key.clone());
    let applied = engine.finish(async move { own.apply(&key, WriteRole::Holder, event).await }).await;
    match applied {
        Ok(applied) => Ok(applied.changed),
        // It is gone, which is an end too; or another gateway has it.
        Err(TaskError::Unknown | TaskError::Store(StoreError::Fenced)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Tells an upstream that nobody wants a result, where it is known how; bounded by the exchange.
async fn tell(reach: Option<&CallTarget>, task: &Task) {
    let (Some(reach), Some(place)) = (reach, &task.recovery.resume) else { return };
    if lets_clients_in(Some(reach), task) {
        return;
    }
    let policy = reach.settings.rules.policy_of(&task.origin.tool);
    let call = reach.restored_call(task, policy, UpstreamTaskMode::Never);
    match reach.upstream.resume(ResumeToken(place.clone()), call.context).await {
        Ok(mut exchange) => exchange.cancel("nobody waits for this call any more").await,
        Err(error) => {
            tracing::info!(error = %CauseChain(&error), task = %LoggedTask(&task.key), "an upstream could not be told of a cancel")
        }
    }
}

impl CallTarget {
    /// What is sent for a row if it has to be: nothing where it would run another tool than the one that was called.
    fn sendable(&self, task: &Task) -> Option<Payload> {
        let call = task.recovery.call.as_ref().filter(|call| call.can_be_sent())?;
        self.upstream.restored(&task.origin.tool, &call.params)
    }

    fn would_send_another(&self, task: &Task) -> bool {
        let has_call = task.recovery.call.as_ref().is_some_and(StoredCall::can_be_sent);
        task.recovery.resume.is_none() && has_call && self.sendable(task).is_none()
    }

    /// The call of a row, as its runner needs it. It has a handle, so what its client did not declare is refused.
    fn restored_call(&self, task: &Task, policy: ToolPolicy, native_task: UpstreamTaskMode) -> CallSpec {
        let call = task.recovery.call.as_ref();
        let capabilities = call.map_or_else(Payload::empty_object, |one| one.capabilities.clone());
        let maker = CallMaker {
            principal: task.key.owner.clone(),
            kind: task.origin.maker,
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
