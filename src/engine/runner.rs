//! Runs one upstream call: turns exchange events into task events or client events. Outlives the client's connection once the
//! call has a handle.
//!
//! Order (GW-32): `always` and `required` insert the row, send the handle, then begin; if a permit is free, the row says from the
//! start that the call may have been sent. `auto` begins, and inserts at the end of the grace period. A handle is sent only after
//! `insert` returned. If the client has left by then, no client knows the id: the row is removed and the upstream call cancelled
//! (T-27).
//!
//! The main loop is here; `row` inserts the row and writes the outcome, `questions` and `rounds` handle the upstream's questions.

mod answers;
mod bug_recipient;
mod call_state;
mod checkpoint;
mod client;
mod dispatch;
mod elements;
mod family;
mod fence;
mod idempotent_call;
mod live_runners;
mod questions;
mod resume;
mod rounds;
mod row;
mod store_wait;
mod subtasks;
#[cfg(test)]
mod tests;
mod timers;
mod url_elicitation;
mod verdict;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

pub(super) use family::TreeSizes;
pub(super) use live_runners::LiveRunners;
pub(super) use resume::start as take_up;
pub(super) use verdict::{RecoveryDecision, record, task_mode, verdict, without_credential};

use self::bug_recipient::{BugRecipient, SharedBugRecipient, spawn};
use self::call_state::{ExchangeStage, SplitPlan, StageEvent, UpstreamCall, split};
use self::checkpoint::Checkpoint;
use self::client::AttachedClients;
use self::family::{ChildEvent, Family};
use self::live_runners::RunnerCommand;
use self::questions::CallQuestions;
use self::resume::UnconfirmedCall;
use self::row::RunnerRow;
use self::store_wait::{UnstoredStep, UnstoredSteps};
use super::Engine;
use super::admission::TaskPermit;
use super::call::{CallEnd, CallEvent, CallSpec, CallStream, RoundSupport, TaskNotice};
use crate::cause::CauseChain;
use crate::dialect::split_call::question_of;
use crate::failpoint;
use crate::task::{Attempt, EarlyInput, Event, Executed, Failure, GatewayFault, Outcome, Plan, Reason, TaskVisibility};
use crate::upstream::{ExchangeError, ExchangeEvent, Progress};
use crate::wire::Payload;

/// Shortest time between two stored progress messages of a task (U25).
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

pub(super) fn start(engine: Arc<Engine>, spec: CallSpec) -> CallStream {
    let in_progress = spec.call_begins();
    let (spec, plan) = split(spec);
    let (sender, stream) = CallStream::new();
    let span =
        tracing::info_span!("call", upstream = %spec.upstream.name(), tool = %spec.tool, task = tracing::field::Empty);
    let panic_target = Arc::new(Mutex::new(BugRecipient::Client(sender.clone())));
    let call = (spec, plan);
    let mut runner = Runner::new(Arc::clone(&engine), call, AttachedClients::new(sender), Arc::clone(&panic_target));
    runner.call.list(in_progress);
    let runner = Box::new(runner);
    spawn(&engine, (span, panic_target), runner.run());
    stream
}

enum RunnerEvent {
    Upstream(StageEvent),
    Orders(RunnerCommand),
    ClientGone,
    DeadlineOver,
    TimerDue,
    Leaving,
    GatewayEnds,
}

struct Runner {
    engine: Arc<Engine>,
    spec: CallSpec,
    call: UpstreamCall,
    family: Family,
    client: AttachedClients,
    /// The end of the grace period, while it lasts.
    grace_end: Option<Instant>,
    /// Set while steps wait for the store.
    unstored: Option<Box<UnstoredSteps>>,
    /// The last progress text of the grace period: the first status message of the task.
    grace_status: Option<Arc<str>>,
    permit: Option<TaskPermit>,
    row: Option<RunnerRow>,
    inputs: CallQuestions,
    attempt: Attempt,
    checkpoint: Checkpoint,
    /// Set while the upstream has not yet confirmed a resumed or resent call.
    unconfirmed: Option<UnconfirmedCall>,
    /// Whether another replica holds the task: see `fence`.
    is_fenced: bool,
    /// The recipient of the failure if this runner panics.
    panic_target: SharedBugRecipient,
}

enum RunnerFlow {
    Continue,
    Stop,
}

impl Runner {
    fn new(
        engine: Arc<Engine>,
        (spec, split): (CallSpec, Option<SplitPlan>),
        client: AttachedClients,
        panic_target: SharedBugRecipient,
    ) -> Self {
        // Without a permit an `auto` call stays plain (T-58); a repetition under a key needs none.
        let tasks = NonZeroUsize::MIN.saturating_add(split.as_ref().map_or(0, SplitPlan::total));
        let permit = match spec.plan {
            Plan::Direct if !spec.is_held_by_key() => None,
            Plan::Refuse => None,
            Plan::Direct | Plan::Grace(_) | Plan::Task => engine.take_permits(&spec.owner, tasks).ok(),
        };
        let call = match split {
            Some(plan) => UpstreamCall::split(plan),
            None => {
                let is_plain = permit.is_none() || spec.plan == Plan::Direct;
                UpstreamCall::queued(ExchangeStage::new(&spec, is_plain.then_some(spec.queue_deadline)))
            }
        };
        let grace_end = match spec.plan {
            Plan::Grace(grace) if permit.is_some() || spec.idempotency.is_some() => Some(spec.arrived + grace),
            Plan::Grace(_) | Plan::Direct | Plan::Refuse | Plan::Task => None,
        };
        Self {
            engine,
            spec,
            call,
            family: Family::default(),
            client,
            grace_end,
            unstored: None,
            grace_status: None,
            permit,
            row: None,
            inputs: CallQuestions::default(),
            attempt: Attempt::FIRST,
            checkpoint: Checkpoint::new(),
            unconfirmed: None,
            is_fenced: false,
            panic_target,
        }
    }

    async fn run(mut self: Box<Self>) {
        let next = Box::pin(self.prepare()).await;
        if matches!(self.unless_fenced(next).await, RunnerFlow::Stop) {
            return Box::pin(self.leave()).await;
        }
        if self.row.is_some() && !self.call.is_queued() {
            self.call_sent();
            failpoint::hit("intent-durable");
        }
        self.run_loop().await;
    }

    /// Each step's future is boxed: a call spends most of its time waiting, and then holds no memory for the steps.
    async fn run_loop(mut self: Box<Self>) {
        loop {
            self.count();
            let step = self.step().await;
            let next = Box::pin(self.handle_step(step)).await;
            if matches!(self.unless_fenced(next).await, RunnerFlow::Stop) {
                return Box::pin(self.leave()).await;
            }
        }
    }

    /// Creates the task before the upstream call, where the plan requires it.
    async fn prepare(&mut self) -> RunnerFlow {
        match self.spec.plan {
            _ if self.spec.idempotency.is_some() => self.prepare_named().await,
            Plan::Grace(_) if self.permit.is_none() => {
                self.spec.plan = Plan::Direct;
                self.client.send(CallEvent::StaysPlain).await;
                RunnerFlow::Continue
            }
            Plan::Direct | Plan::Refuse | Plan::Grace(_) => RunnerFlow::Continue,
            Plan::Task if self.spec.chosen.is_some() => self.prepare_named().await,
            Plan::Task if self.permit.is_none() => self.refuse(self.engine.admission.refusal()).await,
            Plan::Task => match self.begin_task().await {
                Ok(next) => next,
                Err(fault) => self.end(Outcome::lost(fault)).await,
            },
        }
    }

    /// Creates the task of a call that is a task from the start.
    async fn begin_task(&mut self) -> Result<RunnerFlow, GatewayFault> {
        self.enter_queue()?;
        if !self.asks_first() {
            return self.promote(None).await;
        }
        self.insert(TaskVisibility::Hidden, None).await?;
        self.grace_end = Some(self.spec.arrived + self.spec.policy.grace);
        Ok(RunnerFlow::Continue)
    }

    /// Takes a permit or a queue position for a call that has its row written before it is sent.
    ///
    /// # Errors
    /// If the queue is full: then no row is written.
    fn enter_queue(&mut self) -> Result<(), GatewayFault> {
        self.call.enter_queue(&self.spec)
    }

    /// Whether a client without a handle receives the questions that precede the handle. Not for a named call: its name must find
    /// it from the start.
    fn asks_first(&self) -> bool {
        !self.spec.is_named()
            && self.spec.policy.early_input == EarlyInput::AskFirst
            && self.spec.rounds == RoundSupport::Allowed
    }

    async fn refuse(&mut self, reason: Reason) -> RunnerFlow {
        let failure = Failure::Gateway(GatewayFault::new(reason, Executed::No));
        self.end(Outcome::Faulted(failure)).await
    }

    async fn step(&mut self) -> RunnerEvent {
        let may_leave = !self.has_handle() && self.client.is_there();
        let may_be_left = !self.call.outlives_drain() && self.has_handle();
        let (next_due, deadline) = (self.next_due(), self.call.deadline());
        // A call is not sent before its mark is stored. Events after the naming of subtasks wait until these are stored, so that
        // the call's end follows theirs (SUB-13).
        let may_be_heard = !self.waits_for_store(UnstoredStep::Mark) && !self.waits_for_store(UnstoredStep::Subtasks);
        let row = &mut self.row;
        let commands = async {
            match row {
                Some(row) => row.commands.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            order = commands => RunnerEvent::Orders(order),
            () = self.client.left(), if may_leave => RunnerEvent::ClientGone,
            // Before all other events: the permit of a call that ended must not send the next one.
            () = self.engine.calls_end.token().cancelled(), if !may_be_left => RunnerEvent::GatewayEnds,
            () = at(deadline) => RunnerEvent::DeadlineOver,
            event = next_event(&mut self.call, &mut self.family), if may_be_heard => RunnerEvent::Upstream(event),
            () = at(next_due) => RunnerEvent::TimerDue,
            () = self.engine.leaving.cancelled(), if may_be_left => RunnerEvent::Leaving,
        }
    }

    async fn handle_step(&mut self, step: RunnerEvent) -> RunnerFlow {
        match step {
            RunnerEvent::Upstream(StageEvent::PermitTaken) => self.dispatched(None).await,
            RunnerEvent::Upstream(StageEvent::NotBegun(outcome)) => self.end(outcome).await,
            RunnerEvent::Upstream(StageEvent::Exchange(event)) => match self.exchange_event(event).await {
                // A constantly active upstream must not starve the timers.
                RunnerFlow::Continue => {
                    let now = Instant::now();
                    self.serve_timer(|due| due < now).await
                }
                RunnerFlow::Stop => RunnerFlow::Stop,
            },
            RunnerEvent::Orders(RunnerCommand::Fenced) => {
                self.stop_as_fenced();
                RunnerFlow::Stop
            }
            RunnerEvent::Orders(RunnerCommand::Abandon) => {
                failpoint::hit("cancel-stored");
                self.subtasks_notified().await;
                self.cancel_exchanges("the task was cancelled").await;
                self.mark_notified().await;
                RunnerFlow::Stop
            }
            RunnerEvent::Orders(RunnerCommand::Deliver(answers)) => self.deliver(answers).await,
            RunnerEvent::Orders(RunnerCommand::LookAgain) => self.deliver_rest().await,
            RunnerEvent::Orders(RunnerCommand::Retried(sender, retry)) => self.retried(sender, retry).await,
            RunnerEvent::ClientGone => self.client_left().await,
            RunnerEvent::DeadlineOver => {
                self.cancel_exchanges("the call ran longer than its deadline").await;
                self.end(Outcome::lost(GatewayFault::new(Reason::DeadlineExceeded, Executed::Unknown))).await
            }
            RunnerEvent::TimerDue => {
                let now = Instant::now();
                self.serve_timer(|due| due <= now).await
            }
            RunnerEvent::Leaving => self.leave_for_later().await,
            RunnerEvent::GatewayEnds => self.end_with_gateway().await,
        }
    }

    async fn next_event(&mut self) -> StageEvent {
        next_event(&mut self.call, &mut self.family).await
    }

    /// Releases the permit, and drops exchanges that have ended.
    fn finish_exchanges(&mut self) {
        self.family.finish();
        self.call.finish();
    }

    /// Cancels the call at the upstream, if it was sent, and drops its exchanges.
    async fn cancel_exchanges(&mut self, reason: &str) {
        self.family.finish();
        self.call.cancel(reason).await;
    }

    async fn queue_over(&mut self) -> RunnerFlow {
        let failure = GatewayFault::new(Reason::QueueDeadline, Executed::No);
        let shed = self.spec.permits.as_ref().map_or(failure, |permits| permits.shed(Reason::QueueDeadline));
        self.end(Outcome::lost(shed)).await
    }

    async fn grace_over(&mut self) -> RunnerFlow {
        self.grace_end = None;
        match self.promote(None).await {
            Ok(next) => next,
            // A later process may find the row and send the call, so this one must not send it, too.
            Err(fault) if fault.executed != Executed::No && self.call.is_unsent() => {
                self.end(Outcome::lost(fault)).await
            }
            Err(fault) => self.stay_plain(fault.reason).await,
        }
    }

    /// No task could be created: the call is held (GW-33), and events that waited may be sent now. Without a handle it waits for
    /// its permit no longer than any plain call.
    async fn stay_plain(&mut self, reason: Reason) -> RunnerFlow {
        let reason = crate::dialect::faults::reason_key(reason);
        tracing::warn!(reason, "the call could not become a task and is held");
        if self.row.is_none() {
            self.permit = None;
        }
        if self.row.is_none() || self.spec.is_held_by_key() {
            self.call.queue_until(self.spec.arrived + self.spec.queue_deadline);
        }
        self.spec.plan = Plan::Direct;
        self.client.send(CallEvent::StaysPlain).await;
        RunnerFlow::Continue
    }

    async fn exchange_event(&mut self, event: ExchangeEvent) -> RunnerFlow {
        self.call.has_event();
        failpoint::hit("event-heard");
        if let ExchangeEvent::Lost(ExchangeError(fault)) = &event
            && self.is_failed_resume(fault)
        {
            return self.resume_failed().await;
        }
        self.record_alive().await;
        if self.checkpoint.due().is_some() {
            self.checkpoint.check_soon();
        }
        match event {
            ExchangeEvent::Progress(progress) => self.progress_received(progress).await,
            ExchangeEvent::Status(text) => self.status_received(text),
            // Only subscribers of the upstream task receive it.
            ExchangeEvent::Task(_) => RunnerFlow::Continue,
            ExchangeEvent::Subtasks(named) => self.subtasks_received(named).await,
            ExchangeEvent::Log(log) => self.log_received(log).await,
            ExchangeEvent::Asked { ask, method, params } => self.question_received(ask, method, params).await,
            ExchangeEvent::Withdrawn { ask } => self.withdrawal_received(ask).await,
            ExchangeEvent::Returned(result) => {
                let outcome = match self.spec.peer.decode_result(result) {
                    Ok(returned) => Outcome::Returned { result: returned.result, is_error: returned.is_error },
                    Err(reason) => Outcome::lost(GatewayFault::new(reason, Executed::Yes)),
                };
                self.end(outcome).await
            }
            ExchangeEvent::Faulted(error) => self.faulted(error).await,
            ExchangeEvent::Cancelled => self.end(Outcome::Cancelled).await,
            ExchangeEvent::Lost(ExchangeError(fault)) => self.end(Outcome::lost(fault)).await,
        }
    }

    async fn progress_received(&mut self, progress: Progress) -> RunnerFlow {
        if let Some(row) = self.row.as_mut().filter(|row| row.shown.outlives_client()) {
            if let Some(notice_sink) = &self.spec.notice_sink {
                notice_sink(&row.key, TaskNotice::Progress(&progress));
            }
            if let Some(text) = progress.status() {
                row.progress = Some(text);
                row.progress_due.get_or_insert_with(Instant::now);
            }
        } else {
            self.grace_status = progress.status().filter(|_| self.grace_end.is_some());
            self.send_within_grace(CallEvent::Progress(progress)).await;
        }
        RunnerFlow::Continue
    }

    /// Keeps the upstream task's status text for the gateway's task. A plain call cannot show it: it is not progress, as no
    /// number grows (GW-24).
    fn status_received(&mut self, text: Arc<str>) -> RunnerFlow {
        if let Some(row) = self.row.as_mut().filter(|row| row.shown.outlives_client()) {
            row.progress = Some(text);
            row.progress_due.get_or_insert_with(Instant::now);
        } else if self.grace_end.is_some() {
            self.grace_status = Some(text);
        }
        RunnerFlow::Continue
    }

    async fn log_received(&mut self, log: Payload) -> RunnerFlow {
        if let Some(row) = self.row.as_ref().filter(|row| row.shown.outlives_client()) {
            // Log messages of tasks need a client's own stream (EXT-52).
            if let Some(notice_sink) = &self.spec.notice_sink {
                notice_sink(&row.key, TaskNotice::Log(&log));
            }
        } else {
            self.send_within_grace(CallEvent::Log(log)).await;
        }
        RunnerFlow::Continue
    }

    /// Sends an event before the response or the handle. A client that does not read does not delay the end of the grace period.
    async fn send_within_grace(&mut self, event: CallEvent) {
        let sent = self.client.send(event);
        match self.grace_end {
            Some(end) => drop(timeout_at(end, sent).await),
            None => sent.await,
        }
    }

    async fn store_progress(&mut self) -> RunnerFlow {
        let is_waiting = self.waits_for_store(UnstoredStep::Progress);
        let Some(row) = &mut self.row else { return RunnerFlow::Continue };
        if is_waiting {
            row.progress_due = None;
            return RunnerFlow::Continue;
        }
        let Some(message) = row.progress.take() else {
            row.progress_due = None;
            return RunnerFlow::Continue;
        };
        // Due again, so that messages within the interval are stored at its end.
        row.progress_due = Some(Instant::now() + PROGRESS_INTERVAL);
        let (key, event) =
            (row.key.clone(), Event::Progressed { attempt: self.attempt, message: Arc::clone(&message) });
        match self.apply(&key, event).await {
            Ok(_) => RunnerFlow::Continue,
            Err(error) if error.is_passing() => {
                if let Some(row) = &mut self.row {
                    (row.progress, row.progress_due) = (Some(message), None);
                }
                self.wait_for_store(UnstoredStep::Progress, &error)
            }
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "progress was not stored");
                RunnerFlow::Continue
            }
        }
    }
}

/// The next event of a call or its subtasks. Cancel safe.
async fn next_event(call: &mut UpstreamCall, family: &mut Family) -> StageEvent {
    loop {
        if let Some(plan) = call.begun_plan() {
            family.begin_elements(plan);
        }
        let is_idle = family.is_idle();
        if is_idle && let Some(end) = call.take_end() {
            return StageEvent::Exchange(end);
        }
        let begins_elements = !family.has_elements();
        let child = tokio::select! {
            biased;
            child = family.next() => child,
            event = call.next(begins_elements) => match event {
                StageEvent::Exchange(event) if !is_idle => match call.end_after_subtasks(event) {
                    Some(event) => return StageEvent::Exchange(event),
                    None => continue,
                },
                event @ (StageEvent::PermitTaken | StageEvent::NotBegun(_) | StageEvent::Exchange(_)) => return event,
            },
        };
        if let Some(event) = subtask_event(call, family, child) {
            return StageEvent::Exchange(event);
        }
    }
}

/// Converts a subtask's event into an event of the call.
fn subtask_event(call: &mut UpstreamCall, family: &mut Family, event: ChildEvent) -> Option<ExchangeEvent> {
    match event {
        ChildEvent::Asked { index, ask, method, params } => {
            Some(ExchangeEvent::Asked { ask: question_of(index, &ask), method, params })
        }
        ChildEvent::Withdrawn { index, ask } => Some(ExchangeEvent::Withdrawn { ask: question_of(index, &ask) }),
        ChildEvent::Status(text) => {
            call.elements_mut()?.status_received(Some(text));
            None
        }
        ChildEvent::Settled { index, task } => {
            call.elements_mut()?.settled(index, task.as_deref());
            family.element_settled();
            None
        }
    }
}

/// Sleeps until a moment, or for ever if there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
