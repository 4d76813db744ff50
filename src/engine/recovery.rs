//! What becomes of the calls that an earlier life of the process left behind (reliability.md d.2).
//!
//! Runs once beside everything else: until it has looked at a task, the task is as it was stored. One row is judged by
//! `verdict`, which is pure; what it says is done by a runner of the row's own, or here where nothing is left to run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::{Askable, CallSpec, Questions, Rounds};
use super::runner::{self, ATTEMPTS_MAX, Way};
use super::{Engine, TaskError};
use crate::dialect::PeerDialect;
use crate::dialect::negotiate::declared_by;
use crate::failpoint;
use crate::metric;
use crate::store::Stored;
use crate::task::digest::{Named, Whose};
use crate::task::{
    Event, Executed, Failure, GatewayFault, Origin, Phase, Plan, Reason, Shown, StoredCall, Task, TaskKey, Timestamp,
    ToolPolicy, ToolRules,
};
use crate::upstream::limits::Slots;
use crate::upstream::{
    CallContext, ClientFacts, Forwarded, NativeTask, ResumeToken, Timeouts, Upstream, UpstreamRequest,
};
use crate::wire::{Payload, method};

/// Rows that are read at a time.
const PAGE: usize = 256;
/// Rows that are looked at together.
const AT_ONCE: usize = 32;
/// How often one row is looked at: to settle it, and to tell its upstream.
const LOOKS_MAX: usize = 4;
/// How soon a store that failed is asked again, first and at last.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// A call that was taken up in so many lives, each of which ended before the upstream gave a sign, is not taken up
/// again: it was in flight at three crashes in a row.
const CRASHES_MAX: u8 = 2;

/// Everything that calls of one upstream are made with, apart from what their rows say.
#[derive(Debug)]
pub struct Reach {
    pub upstream: Arc<dyn Upstream>,
    pub slots: Arc<Slots>,
    pub queue_deadline: Duration,
    pub peer: Arc<dyn PeerDialect>,
    pub rules: ToolRules,
    pub timeouts: Timeouts,
}

/// The upstreams that there are, by name.
#[derive(Debug, Default)]
pub struct Origins(HashMap<Arc<str>, Reach>);

impl Origins {
    #[must_use]
    pub fn with(mut self, reach: Reach) -> Self {
        self.0.insert(Arc::clone(reach.upstream.name()), reach);
        self
    }

    fn of(&self, origin: &Origin) -> Option<&Reach> {
        self.0.get(&origin.upstream)
    }
}

/// What is done about a row.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is done with.
    Leave,
    /// Its upstream is told that nobody wants the result, where that is known.
    Tell,
    /// Nothing can be known of it any more.
    Settle(Failure),
    /// Its time is over.
    Expire,
    Run(Way),
}

/// Judges a row that nobody runs. `policy` is that of its tool by now; `None` if its upstream is not configured any
/// more.
fn verdict(task: &Task, policy: Option<&ToolPolicy>, now: Timestamp) -> Verdict {
    let recovery = &task.recovery;
    let lost = |reason, executed| Verdict::Settle(Failure::Gateway(GatewayFault::new(reason, executed)));
    if task.is_settled() {
        return if recovery.is_untold { Verdict::Tell } else { Verdict::Leave };
    }
    if task.expires_at() <= now {
        return Verdict::Expire;
    }
    let is_queued = matches!(task.phase, Phase::Queued);
    let unknown = lost(Reason::GatewayRestart, if is_queued { Executed::No } else { Executed::Unknown });
    // Nobody holds a reference to a hidden task that this process could honour.
    let Some(policy) = policy.filter(|_| task.shown == Shown::Handle) else { return unknown };
    let sendable = recovery.call.as_ref().filter(|call| call.can_be_sent());
    if is_queued {
        return if sendable.is_some() { Verdict::Run(Way::Dispatch) } else { unknown };
    }
    if recovery.crashes >= CRASHES_MAX {
        return lost(Reason::Poison, Executed::Unknown);
    }
    if let Some(place) = &recovery.resume {
        return Verdict::Run(Way::Resume(ResumeToken(place.clone())));
    }
    match sendable {
        Some(call) if policy.after_crash.may_rerun(call.is_repeatable) && task.attempt < ATTEMPTS_MAX => {
            Verdict::Run(Way::Resend)
        }
        Some(_) | None => unknown,
    }
}

/// Looks at every row that an earlier life left behind, then returns; the calls that go on do so in runners. Ends
/// early when told to stop, or when the engine drains: what was not looked at waits for the next life.
pub async fn run(engine: Arc<Engine>, origins: Origins, stop: CancellationToken) {
    let leaving = engine.leaving.clone();
    let pass = pass(&engine, &origins);
    tokio::select! {
        () = stop.cancelled() => (),
        () = leaving.cancelled() => (),
        seen = pass => {
            if seen > 0 {
                tracing::info!(tasks = seen, "all tasks of earlier lives were looked at");
            }
        }
    }
}

async fn pass(engine: &Arc<Engine>, origins: &Origins) -> usize {
    let mut after: Option<TaskKey> = None;
    let mut pause = RETRY_FIRST;
    let mut seen = 0;
    loop {
        let rows = match engine.store.unsettled(after.as_ref(), PAGE).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(%error, "tasks of earlier lives could not be read");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_LAST);
                continue;
            }
        };
        let Some(last) = rows.last() else { return seen };
        after = Some(last.task.key.clone());
        let looked = futures_util::stream::iter(rows)
            .map(|row| async move { look(engine, origins, &row.task.key).await })
            .buffer_unordered(AT_ONCE);
        seen += looked.filter(|found| std::future::ready(*found)).count().await;
    }
}

/// Looks at one row; whether it was one of an earlier life.
async fn look(engine: &Arc<Engine>, origins: &Origins, key: &TaskKey) -> bool {
    // Claimed before it is read: what is answered or cancelled from here on becomes an order. Whoever runs a call of
    // this life entered it before there was a row.
    let Some(orders) = engine.live.claim(key) else { return false };
    let mut orders = Some(orders);
    let mut found = false;
    for _ in 0..LOOKS_MAX {
        let now = engine.clock.now();
        let task = match engine.store.load(key, now).await {
            Ok(Some(Stored { task, .. })) => task,
            Ok(None) => break,
            Err(error) => {
                tracing::error!(%error, task = %Named(key), "a task of an earlier life could not be read");
                tokio::time::sleep(RETRY_FIRST).await;
                continue;
            }
        };
        if !found && !task.is_settled() && task.shown == Shown::Handle {
            let upstream = Arc::clone(&task.origin.upstream);
            metrics::gauge!(metric::TASKS_IN_FLIGHT, "upstream" => upstream).increment(1.0);
        }
        let reach = origins.of(&task.origin);
        // A call that would now be another tool's is one of an upstream that is gone.
        let policy = reach.filter(|reach| !reach.would_send_another(&task));
        let policy = policy.map(|reach| reach.rules.policy_of(&task.origin.tool));
        let verdict = verdict(&task, policy.as_ref(), now);
        if verdict == Verdict::Leave {
            break;
        }
        found = true;
        failpoint::hit("recovering");
        record(&task, &verdict);
        if let (Verdict::Run(way), Some(reach), Some(policy)) = (&verdict, reach, policy) {
            let spec = reach.spec(&task, policy, now);
            if let Some(orders) = orders.take() {
                runner::take_up(engine, spec, (task, orders), way.clone());
            }
            return true;
        }
        if let Err(error) = finish(engine, reach, &task, verdict).await {
            tracing::error!(%error, task = %Named(key), "a task of an earlier life could not be settled");
            break;
        }
    }
    engine.live.remove(key);
    found
}

/// Does what needs no runner.
async fn finish(engine: &Arc<Engine>, reach: Option<&Reach>, task: &Task, verdict: Verdict) -> Result<(), TaskError> {
    let key = &task.key;
    match verdict {
        Verdict::Leave | Verdict::Run(_) => (),
        Verdict::Expire => {
            settle(engine, key, Event::TtlElapsed).await?;
        }
        Verdict::Settle(failure) => {
            settle(engine, key, Event::Faulted { attempt: task.attempt, failure }).await?;
            if task.shown == Shown::Hidden {
                // Nobody comes back for it, so nobody needs the call either. Best effort: no mark is kept.
                tell(reach, task).await;
            }
        }
        Verdict::Tell => {
            tell(reach, task).await;
            settle(engine, key, Event::Told).await?;
        }
    }
    Ok(())
}

/// Applies an event to its end, though the pass may be stopped at any moment.
async fn settle(engine: &Arc<Engine>, key: &TaskKey, event: Event) -> Result<(), TaskError> {
    let (own, key) = (Arc::clone(engine), key.clone());
    engine.finish(async move { own.apply(&key, event).await.map(|_| ()) }).await
}

/// Tells an upstream that nobody wants a result, where it is known how; bounded by the exchange.
async fn tell(reach: Option<&Reach>, task: &Task) {
    let (Some(reach), Some(place)) = (reach, &task.recovery.resume) else { return };
    let policy = reach.rules.policy_of(&task.origin.tool);
    let context = reach.context(task, &policy, NativeTask::Never);
    match reach.upstream.resume(ResumeToken(place.clone()), context).await {
        Ok(mut exchange) => exchange.cancel("nobody waits for this call any more").await,
        Err(error) => tracing::info!(%error, task = %Named(&task.key), "an upstream could not be told of a cancel"),
    }
}

fn record(task: &Task, verdict: &Verdict) {
    let outcome = match verdict {
        Verdict::Leave => return,
        Verdict::Tell => "told",
        Verdict::Expire => "settled",
        Verdict::Settle(_) if task.shown == Shown::Hidden => "settled",
        Verdict::Settle(Failure::Gateway(fault)) if fault.reason == Reason::Poison => {
            tracing::error!(
                task = %Named(&task.key), upstream = %task.origin.upstream, tool = %task.origin.tool,
                "the gateway ended three times in a row while this call was in flight; it is not taken up any more"
            );
            "poison"
        }
        Verdict::Settle(_) => "failed",
        Verdict::Run(Way::Dispatch) => "dispatched",
        Verdict::Run(Way::Resume(_)) => "resumed",
        Verdict::Run(Way::Resend) => "rerun",
    };
    metrics::counter!(metric::RECOVERED, "outcome" => outcome).increment(1);
    let principal = Whose(&task.key.owner);
    let (upstream, tool, crashes) = (&task.origin.upstream, &task.origin.tool, task.recovery.crashes);
    tracing::info!(task = %Named(&task.key), %principal, %upstream, %tool, crashes, outcome, "a task of an earlier life");
}

impl Reach {
    /// What is sent for a row if it has to be: nothing where it would run another tool than the one that was called.
    fn sendable(&self, task: &Task) -> Option<Payload> {
        let call = task.recovery.call.as_ref().filter(|call| call.can_be_sent())?;
        self.upstream.restored(&task.origin.tool, &call.params)
    }

    fn would_send_another(&self, task: &Task) -> bool {
        let has_call = task.recovery.call.as_ref().is_some_and(StoredCall::can_be_sent);
        task.recovery.resume.is_none() && has_call && self.sendable(task).is_none()
    }

    /// The call of a row, as its runner needs it.
    fn spec(&self, task: &Task, policy: ToolPolicy, now: Timestamp) -> CallSpec {
        let call = task.recovery.call.as_ref();
        let is_native = call.is_some_and(|call| call.is_native);
        let is_resumed = task.recovery.resume.is_some();
        // What is taken up may be a task of the upstream's, whatever the call asked for.
        let native_task = match is_native || is_resumed {
            true => NativeTask::WhereServed { deadline: left(task, &policy, now) },
            false => NativeTask::Never,
        };
        CallSpec {
            owner: task.key.owner.clone(),
            maker: task.origin.maker,
            upstream: Arc::clone(&self.upstream),
            slots: Some(Arc::clone(&self.slots)),
            queue_deadline: self.queue_deadline,
            peer: Arc::clone(&self.peer),
            request: UpstreamRequest { method: Arc::from(method::TOOLS_CALL), params: self.sendable(task) },
            context: self.context(task, &policy, native_task),
            tool: Arc::clone(&task.origin.tool),
            policy,
            plan: Plan::Task,
            idempotency: None,
            arrived: Instant::now(),
            is_repeatable: call.is_some_and(|call| call.is_repeatable),
            questions: questions(call),
            rounds: Rounds::Unknown,
            asides: None,
        }
    }

    fn context(&self, task: &Task, policy: &ToolPolicy, native_task: NativeTask) -> CallContext {
        let call = task.recovery.call.as_ref();
        CallContext {
            principal: task.key.owner.clone(),
            client: ClientFacts {
                capabilities: call.map_or_else(Payload::empty_object, |one| one.capabilities.clone()),
            },
            progress: call.is_some_and(|call| call.progress),
            log_level: call.and_then(|call| call.log_level.clone()),
            timeouts: self.timeouts.of_tool(policy.limits),
            forwarded: Forwarded::default(),
            result_bytes_max: policy.result_bytes_max,
            native_task,
        }
    }
}

/// How long a call may still run.
fn left(task: &Task, policy: &ToolPolicy, now: Timestamp) -> Duration {
    let ran = task.recovery.dispatched_at.map_or(Duration::ZERO, |at| now.since(at));
    policy.deadline.saturating_sub(ran)
}

/// What the client of a stored call can be asked: it has a handle, so what it did not declare is refused.
fn questions(call: Option<&StoredCall>) -> Questions {
    let is_declared = call.map(|call| declared_by(&call.capabilities));
    Arc::new(move |question| match &is_declared {
        Some(is_declared) if is_declared(question) => Askable::Declared,
        Some(_) | None => Askable::Undeclared,
    })
}

#[cfg(test)]
#[path = "recovery/tests.rs"]
mod tests;
