//! Resumes a call that an earlier life of the process left behind: its runner begins with the row (GW-39).
//!
//! What counts against a call: a life that ends before it took the call up leaves no trace on it, however often that
//! happens. `crashes` moves with the commit before the upstream can hear of the call, and back to zero with the first
//! sign from the upstream, or once the call was up for longer than any resumption takes. `attempt` moves with the
//! commit right before the call is sent again, so a life that sent nothing takes no attempt away (F23).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::checkpoint::Checkpoint;
use super::client::{AttachedClients, GraceBuffer};
use super::exchange_stage::ExchangeStage;
use super::live_runners::RunnerCommands;
use super::questions::CallQuestions;
use super::row::RunnerRow;
use super::{BugRecipient, Runner, RunnerFlow, SharedBugRecipient, lost, spawn, split};
use crate::cause::CauseChain;
use crate::dialect::upstream_dialect::question_method;
use crate::engine::Engine;
use crate::engine::call::CallSpec;
use crate::task::reference::LoggedTask;
use crate::task::{Attempt, Event, Executed, GatewayFault, Phase, Reason, Task};
use crate::upstream::ResumeToken;

/// How often one call is sent, all lives together.
pub(in crate::engine) const ATTEMPTS_MAX: Attempt = Attempt(3);

/// A call that is up for this long was not what ended the lives before: longer than the window in which a stream is
/// taken up again (U24).
const STEADY_AFTER: Duration = Duration::from_secs(35);

/// How a call goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) enum RecoveryAction {
    /// It was certainly not sent, and is.
    Dispatch,
    /// Its exchange is taken up; if that fails it is sent again where it may be.
    Resume(ResumeToken),
    /// It is sent again.
    Resend,
}

/// What a runner knows of a call that was in flight, until the upstream gives a sign of it.
pub(super) struct UnconfirmedCall {
    what: ResumeMethod,
    since: Instant,
    /// Whether the row says that this life took the call up.
    is_counted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResumeMethod {
    Up,
    Again,
}

/// Starts a runner for a row. Its place among the live ones must be claimed.
pub(in crate::engine) fn start(
    engine: &Arc<Engine>,
    spec: CallSpec,
    (task, orders): (Arc<Task>, RunnerCommands),
    way: RecoveryAction,
) {
    let spec = split::split(spec);
    let concerned = Arc::new(Mutex::new(BugRecipient::Task(task.key.clone())));
    let runner = Box::new(Runner::of_row(Arc::clone(engine), spec, (&task, orders), Arc::clone(&concerned)));
    let span = tracing::info_span!("call", upstream = %task.origin.upstream, tool = %task.origin.tool, task = %LoggedTask(&task.key));
    spawn(engine, (span, concerned), runner.run_again(task, way));
}

impl Runner {
    fn of_row(
        engine: Arc<Engine>,
        spec: CallSpec,
        (task, orders): (&Task, RunnerCommands),
        concerned: SharedBugRecipient,
    ) -> Self {
        let mut checkpoint = Checkpoint::new();
        checkpoint.is_written(task.recovery.resume.clone());
        checkpoint.stirred();
        let inputs = match &task.phase {
            Phase::AwaitingInput(open) => {
                let due = Instant::now() + spec.policy.input_deadline;
                let questions = open.values().map(|one| (one.ask.clone(), question_method(&one.request)));
                CallQuestions::reopened(questions, &task.recovery.undelivered, due)
            }
            Phase::Queued | Phase::Working | Phase::Settled(_) => {
                CallQuestions::reopened([], &task.recovery.undelivered, Instant::now())
            }
        };
        let row = RunnerRow { key: task.key.clone(), shown: task.shown, orders, progress: None, progress_due: None };
        Self {
            place: Some(engine.admission.take_again(&spec.owner)),
            stage: ExchangeStage::again(&spec),
            engine,
            spec,
            client: AttachedClients::nobody(),
            grace_end: None,
            queue_end: None,
            dispatched: None,
            deadline: None,
            held: GraceBuffer::default(),
            row: Some(row),
            inputs,
            demand: None,
            attempt: task.attempt,
            checkpoint,
            unproven: None,
            stays: false,
            concerned,
        }
    }

    async fn run_again(mut self: Box<Self>, task: Arc<Task>, way: RecoveryAction) {
        let next = match way {
            RecoveryAction::Dispatch => RunnerFlow::Continue,
            RecoveryAction::Resend => {
                self.unproven =
                    Some(UnconfirmedCall { what: ResumeMethod::Again, since: Instant::now(), is_counted: false });
                RunnerFlow::Continue
            }
            RecoveryAction::Resume(token) => Box::pin(self.resume(&task, token)).await,
        };
        match next {
            RunnerFlow::Continue => self.go_on().await,
            RunnerFlow::Stop => Box::pin(self.leave()).await,
        }
    }

    /// Takes the exchange up, and hands over what was answered meanwhile.
    async fn resume(&mut self, task: &Task, token: ResumeToken) -> RunnerFlow {
        self.unproven = Some(UnconfirmedCall { what: ResumeMethod::Up, since: Instant::now(), is_counted: true });
        // An event that no longer applies has an order behind it that says why.
        if let Err(error) = self.engine.apply(&task.key, Event::TakenUp { attempt: self.attempt }).await {
            tracing::warn!(error = %CauseChain(&error), "that a call is taken up was not stored");
        }
        let since = task.recovery.dispatched_at.unwrap_or(task.created_at);
        let ran = self.engine.clock.now().since(since);
        self.dispatched = Some(Instant::now());
        self.deadline = Some(Instant::now() + self.spec.policy.deadline.saturating_sub(ran));
        match self.stage.resume(&self.spec, token).await {
            Ok(()) => self.deliver(task.recovery.undelivered.clone()).await,
            Err(error) => {
                tracing::info!(error = %CauseChain(&error), "a call could not be taken up");
                self.not_taken_up().await
            }
        }
    }

    /// Whether a loss is that of an exchange that could not be taken up.
    pub(super) fn is_untaken(&self, fault: &GatewayFault) -> bool {
        let is_taking_up = self.unproven.as_ref().is_some_and(|unproven| unproven.what == ResumeMethod::Up);
        is_taking_up && fault.executed != Executed::Yes
    }

    /// The exchange is gone: the call is sent again where it may be, else nobody knows how it ended.
    pub(super) async fn not_taken_up(&mut self) -> RunnerFlow {
        let may_rerun = self.spec.policy.after_crash.may_rerun(self.spec.is_repeatable);
        if may_rerun && self.attempt < ATTEMPTS_MAX && self.spec.request.params.is_some() {
            self.stage = ExchangeStage::again(&self.spec);
            self.deadline = None;
            self.unproven =
                Some(UnconfirmedCall { what: ResumeMethod::Again, since: Instant::now(), is_counted: true });
            return RunnerFlow::Continue;
        }
        self.end(lost(GatewayFault::new(Reason::GatewayRestart, Executed::Unknown))).await
    }

    /// What is certain of a call that is not sent.
    pub(super) const fn executed_so_far(&self) -> Executed {
        if self.unproven.is_some() { Executed::Unknown } else { Executed::No }
    }

    /// What is stored before the call's first byte goes out.
    pub(super) fn sending(&self) -> Vec<Event> {
        let attempt = self.attempt;
        match &self.unproven {
            Some(UnconfirmedCall { is_counted: true, .. }) => vec![Event::Resent { attempt }],
            Some(_) => vec![Event::TakenUp { attempt }, Event::Resent { attempt }],
            None => vec![Event::Dispatched { attempt, call: self.stored_call() }],
        }
    }

    /// The row says that the call is about to be sent.
    pub(super) fn is_sending(&mut self) {
        if let Some(unproven) = &mut self.unproven {
            *unproven = UnconfirmedCall { what: ResumeMethod::Again, since: Instant::now(), is_counted: true };
            self.attempt.0 += 1;
            self.inputs = CallQuestions::default();
            self.checkpoint.is_written(None);
            tracing::warn!(attempt = self.attempt.0, "a call is sent again");
        }
    }

    /// The upstream gave a sign: what ended the lives before was not this call.
    pub(super) async fn is_alive(&mut self) {
        if self.unproven.take().is_some()
            && let Some(key) = self.row_key()
            && let Err(error) = self.engine.apply(&key, Event::Alive { attempt: self.attempt }).await
        {
            tracing::warn!(error = %CauseChain(&error), "that a call is alive was not stored");
        }
    }

    /// The same once the call was up for long enough.
    pub(super) async fn is_steady(&mut self) {
        let is_up = !self.stage.is_waiting();
        if is_up && self.unproven.as_ref().is_some_and(|unproven| unproven.since.elapsed() >= STEADY_AFTER) {
            self.is_alive().await;
        }
    }

    /// This life ends as it should, and lets go of the call: that is no crash.
    pub(super) async fn is_let_go(&mut self) {
        if self.unproven.as_ref().is_some_and(|unproven| unproven.is_counted) {
            self.is_alive().await;
        }
    }
}
