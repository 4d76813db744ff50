//! Resumes a call that an earlier process left: its runner starts from the row (GW-39).
//! `crashes` is incremented in the commit before the upstream can receive the call, and reset with its first event, or
//! once the call was up longer than any resumption takes; a process that ends before it resumed the call leaves no
//! trace. `attempt` is incremented in the commit before a resend, so a process that sent nothing uses none (F23).

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::call_state::{ExchangeStage, UpstreamCall, split_again};
use super::dialog::{CallQuestions, Dialog};
use super::family::{ElementRows, Family};
use super::live_runners::RunnerCommands;
use super::recorder::Recorder;
use super::verdict::{ATTEMPTS_MAX, RecoveryAction, RecoveryDecision, record, resend_mode, task_mode, verdict};
use super::{BugRecipient, Runner, RunnerFlow, SharedBugRecipient, spawn};
use crate::cause::CauseChain;
use crate::dialect::plain::question_method;
use crate::engine::admission::TaskPermit;
use crate::engine::call::CallSpec;
use crate::engine::retry_delays::RetryDelays;
use crate::engine::{Engine, TaskError};
use crate::store::{StoreError, StoredTask, WriteRole};
use crate::task::reference::LoggedTask;
use crate::task::{Event, Executed, GatewayFault, Outcome, Phase, Task, TaskKey};
use crate::upstream::ResumeToken;
use crate::waits::unless_cancelled;

/// Reads of a subtask's row before its parent only watches it.
const LOOKS_MAX: usize = 4;

/// Starts a runner for a row. The row's key must be claimed.
pub(in crate::engine) fn start(
    engine: &Arc<Engine>,
    mut spec: CallSpec,
    task: Arc<Task>,
    commands: RunnerCommands,
    action: RecoveryAction,
    permit: TaskPermit,
) {
    let in_progress = spec.call_begins();
    let (mut call, family) = match action {
        RecoveryAction::Watch => {
            let plan = split_again(&mut spec, task.tree.children.len());
            let elements = ElementRows::of_earlier(Arc::clone(engine), &task, begin_child);
            (UpstreamCall::split(plan), Family::of_earlier(elements, engine))
        }
        RecoveryAction::Dispatch | RecoveryAction::Resume(_) | RecoveryAction::Resend => {
            (UpstreamCall::queued(ExchangeStage::again(&spec)), Family::default())
        }
    };
    call.set_in_progress(in_progress);
    let (bug_recipient, span) = row_context(&task);
    let call = AdoptedCall { call, family, permit: Some(permit) };
    let runner = Runner::of_row(Arc::clone(engine), spec, &task, commands, call, Arc::clone(&bug_recipient));
    spawn(engine, span, bug_recipient, Box::new(runner).run_row(task, action));
}

pub(super) struct AdoptedCall {
    call: UpstreamCall,
    family: Family,
    permit: Option<TaskPermit>,
}

impl AdoptedCall {
    pub(super) fn of(call: UpstreamCall, permit: Option<TaskPermit>) -> Self {
        Self { call, family: Family::default(), permit }
    }
}

/// Starts a runner for a row with a call in progress. The row's key must be claimed.
pub(super) fn adopt(
    engine: &Arc<Engine>,
    spec: CallSpec,
    task: Arc<Task>,
    commands: RunnerCommands,
    mut adopted: AdoptedCall,
) {
    let (bug_recipient, span) = row_context(&task);
    adopted.call.set_in_progress(spec.call_begins());
    let runner = Runner::of_row(Arc::clone(engine), spec, &task, commands, adopted, Arc::clone(&bug_recipient));
    spawn(engine, span, bug_recipient, Box::new(runner).run_loop());
}

fn row_context(task: &Task) -> (SharedBugRecipient, tracing::Span) {
    let span = tracing::info_span!("call", upstream = %task.origin.upstream, tool = %task.origin.tool, task = %LoggedTask(&task.key));
    (Arc::new(Mutex::new(BugRecipient::Task(task.key.clone()))), span)
}

impl Runner {
    fn of_row(
        engine: Arc<Engine>,
        spec: CallSpec,
        task: &Task,
        commands: RunnerCommands,
        AdoptedCall { call, family, permit }: AdoptedCall,
        bug_recipient: SharedBugRecipient,
    ) -> Self {
        let due = Instant::now() + spec.policy.input_deadline;
        let open = task.open_questions().map(|(_, one)| (one.ask.clone(), question_method(&one.request)));
        let questions = CallQuestions::reopened(open, &task.recovery.undelivered, due, call.is_queued());
        Self {
            recorder: Recorder::of_row(task, commands, permit, bug_recipient),
            dialog: Dialog::of_row(questions),
            call,
            family,
            engine,
            spec,
            audited: None,
        }
    }

    async fn run_row(mut self: Box<Self>, task: Arc<Task>, action: RecoveryAction) {
        let next = match action {
            RecoveryAction::Dispatch => RunnerFlow::Continue(()),
            RecoveryAction::Resend => {
                self.recorder.will_resend(false);
                RunnerFlow::Continue(())
            }
            RecoveryAction::Resume(token) => Box::pin(self.resume(&task, token)).await,
            RecoveryAction::Watch => {
                if !matches!(task.phase, Phase::Queued) {
                    self.continue_deadline(&task);
                }
                self.deliver(task.recovery.undelivered.clone()).await
            }
        };
        if self.unless_fenced(next).is_break() {
            Box::pin(self.leave()).await;
        } else {
            self.run_loop().await;
        }
    }

    /// Resumes the exchange, and delivers the answers that were given meanwhile.
    async fn resume(&mut self, task: &Task, token: ResumeToken) -> RunnerFlow {
        self.recorder.will_resume();
        // If the event no longer applies, a command with the reason is queued.
        if let Err(error) = self.write(&task.key, vec![Event::TakenUp { attempt: self.recorder.attempt() }]).await {
            if self.recorder.is_fenced() {
                return RunnerFlow::Break(());
            }
            tracing::warn!(error = %CauseChain(&error), "a call's resumption was not stored");
        }
        self.continue_deadline(task);
        self.resume_subtasks(task);
        let resumed = self.call.resume(&self.spec, token).await;
        self.spec.context.native_task = resend_mode(task, &self.spec.policy);
        match resumed {
            Ok(()) => self.deliver(task.recovery.undelivered.clone()).await,
            Err(error) => {
                tracing::info!(error = %CauseChain(&error), "a call could not be resumed");
                self.resume_failed().await
            }
        }
    }

    fn continue_deadline(&mut self, task: &Task) {
        let since = task.recovery.dispatched_at.unwrap_or(task.created_at);
        let ran = self.engine.expiry_time_of(task, self.engine.clock.now()).since(since);
        self.call.mark_sent(self.spec.policy.deadline.saturating_sub(ran));
    }

    /// Handles an exchange that cannot be resumed: resends the call if allowed, else its outcome is unknown.
    pub(super) async fn resume_failed(&mut self) -> RunnerFlow {
        let may_rerun = self.spec.policy.after_crash.may_rerun(self.spec.is_repeatable);
        if may_rerun && self.recorder.attempt() < ATTEMPTS_MAX && self.spec.request.params.is_some() {
            self.family.finish();
            self.call.requeue(ExchangeStage::again(&self.spec));
            self.recorder.will_resend(true);
            return RunnerFlow::Continue(());
        }
        self.end(Outcome::lost(GatewayFault::new(self.engine.why_lost(), Executed::Unknown))).await
    }

    /// Records a sign of the upstream: this call did not cause the earlier crashes.
    pub(super) async fn record_alive(&mut self) {
        if self.recorder.confirm()
            && let Some(key) = self.recorder.key()
            && let Err(error) = self.write(&key, vec![Event::Alive { attempt: self.recorder.attempt() }]).await
        {
            tracing::warn!(error = %CauseChain(&error), "an upstream's sign of a resumed call was not stored");
        }
    }

    pub(super) async fn record_orderly_end(&mut self) {
        if self.recorder.is_resumption_counted() {
            self.record_alive().await;
        }
    }
}

/// Spawns a task that begins or resumes a subtask's call for its parent. `spec` has params where this process knows them.
pub(super) fn begin_child(engine: &Arc<Engine>, spec: CallSpec, key: TaskKey, permit: TaskPermit) {
    let own = Arc::clone(engine);
    engine.runners.spawn(async move {
        let mut pauses = RetryDelays::of_writers();
        loop {
            // Recovery holds a claim while it looks at a row.
            if let Some(commands) = own.live.claim(&key) {
                match judge_child(&own, &spec, &key).await {
                    Ok(Some((task, spec, action))) => return start(&own, spec, task, commands, action, permit),
                    // The child has settled, or another replica holds it by now.
                    Ok(None) | Err(TaskError::Store(StoreError::Fenced)) => return own.live.remove(&key),
                    Err(error) => {
                        tracing::warn!(task = %LoggedTask(&key), error = %CauseChain(&error), "a subtask could not begin yet");
                        own.live.remove(&key);
                    }
                }
            }
            if unless_cancelled(&own.drain_begun, pauses.wait()).await.is_none() {
                return;
            }
        }
    });
}

async fn judge_child(
    engine: &Arc<Engine>,
    spec: &CallSpec,
    key: &TaskKey,
) -> Result<Option<(Arc<Task>, CallSpec, RecoveryAction)>, TaskError> {
    for _ in 0..LOOKS_MAX {
        let now = engine.clock.now();
        let Some(StoredTask { task, .. }) = engine.store.load(key, now).await? else { return Ok(None) };
        if task.is_settled() {
            return Ok(None);
        }
        // A row of this process: its params are at hand.
        if matches!(task.phase, Phase::Queued) && spec.request.params.is_some() {
            return Ok(Some((task, spec.clone(), RecoveryAction::Dispatch)));
        }
        let now = engine.expiry_time_of(&task, now);
        let verdict = verdict(&task, Some(&spec.policy), now, engine.why_lost());
        if let RecoveryDecision::Run(action) = &verdict {
            record(&task, &verdict);
            let (mut spec, call) = (spec.clone(), task.recovery.call.as_ref());
            let sendable = call.filter(|call| call.can_be_sent());
            spec.request.params = sendable.and_then(|call| spec.upstream.restored(&task.origin.tool, &call.params));
            spec.is_repeatable = call.is_some_and(|call| call.is_repeatable);
            spec.context.native_task = task_mode(&task, &spec.policy, now);
            return Ok(Some((task, spec, action.clone())));
        }
        let event = match &verdict {
            RecoveryDecision::Expire => Event::TtlElapsed,
            RecoveryDecision::Settle(failure) => Event::Faulted { attempt: task.attempt, failure: failure.clone() },
            RecoveryDecision::Leave | RecoveryDecision::Notify | RecoveryDecision::Run(_) => return Ok(None),
        };
        if engine.apply(key, WriteRole::Holder, event).await?.changed {
            record(&task, &verdict);
        }
    }
    Ok(None)
}
