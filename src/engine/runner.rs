//! Runs one upstream call: turns exchange events into task events or client events.
//! Order (GW-32): with `always` and `required`, the row is inserted, the handle sent, then the call; with a free permit
//! the row says `Working` at once. With `auto`, the call is sent, and the row inserted at the end of the grace period. A
//! handle is sent only after `insert` returned; if its client has left, the row is removed, the call cancelled (T-27).

mod answers;
mod bug_recipient;
mod call_state;
mod checkpoint;
mod dialog;
mod family;
mod idempotent_call;
mod live_runners;
mod questions;
mod recorder;
mod resume;
mod rounds;
mod row;
mod state;
mod store_wait;
mod subtasks;
mod tree_sizes;
mod verdict;

use std::num::NonZeroUsize;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

pub(super) use live_runners::{LiveRunners, RunnerCommands};
pub(super) use resume::start as take_up;
pub(super) use tree_sizes::TreeSizes;
pub(super) use verdict::{RecoveryAction, RecoveryDecision, record, task_mode, verdict, without_credential};

use self::bug_recipient::{BugRecipient, SharedBugRecipient, spawn};
use self::call_state::{ExchangeStage, SplitPlan, StageEvent, UpstreamCall, outcome_of, split};
use self::dialog::{AttachedClients, Dialog};
use self::family::Family;
use self::live_runners::RunnerCommand;
use self::recorder::{Recorder, UnstoredStep};
use self::state::{Runner, RunnerFlow, next_event};
use super::Engine;
use super::call::{CallEnd, CallEvent, CallSpec, CallStream, RetryRefusal, RoundRetry, RoundSupport, TaskNotice};
use crate::audit::{AuditAct, AuditEvent, AuditedCall, arguments_of};
use crate::cause::CauseChain;
use crate::failpoint;
use crate::task::{EarlyInput, Event, Executed, Failure, GatewayFault, Outcome, Plan, Reason, TaskKey, TaskVisibility};
use crate::upstream::{ExchangeError, ExchangeEvent, Progress, ServerNotification};
use crate::waits::at;
use crate::wire::Object;

impl Engine {
    /// Runs one call, as its [`crate::task::Plan`] says. Dropping the stream before there is a handle cancels the call
    /// at the upstream; later only a cancel of the task does. An anonymous principal's task is kept for a shorter time.
    pub fn call(self: &Arc<Self>, mut spec: CallSpec) -> CallStream {
        spec.policy = spec.policy.for_owner(&spec.owner);
        spec.context.share = Some(self.share_of(&spec));
        let in_progress = spec.call_begins();
        let audited = self.audited(&spec);
        let plan = split(&mut spec);
        let (sender, stream) = CallStream::new();
        let (upstream, tool) = (spec.upstream.name(), &spec.tool);
        // The fields are written when the span begins: for a plain call, as for one in the pipe, only to debug.
        let span = match spec.plan == Plan::Direct && !spec.is_held_by_key() {
            true => tracing::debug_span!("call", %upstream, %tool, task = tracing::field::Empty),
            false => tracing::info_span!("call", %upstream, %tool, task = tracing::field::Empty),
        };
        let bug_recipient = Arc::new(Mutex::new(BugRecipient::Client(sender.clone())));
        let clients = AttachedClients::new(sender);
        let mut runner = Box::new(Runner::new(Arc::clone(self), spec, plan, clients, Arc::clone(&bug_recipient)));
        runner.call.set_in_progress(in_progress);
        runner.audited = audited;
        spawn(self, span, bug_recipient, runner.run());
        stream
    }

    /// Resumes a held call with the client's answers; fails if this process does not run it, or too many clients resume
    /// it at once. Dropping the stream before a final event cancels the call, unless another client also waits for it.
    pub fn retry(&self, key: &TaskKey, retry: RoundRetry) -> Result<CallStream, RetryRefusal> {
        let (sender, stream) = CallStream::new();
        let answers = !retry.answers.is_empty();
        self.live.retry(key, sender, retry)?;
        if let Some(audit) = self.audit().filter(|_| answers) {
            audit.record(&AuditEvent::of_task(AuditAct::CallAnswered, key));
        }
        Ok(stream)
    }

    fn audited(&self, spec: &CallSpec) -> Option<Box<AuditedCall>> {
        let audit = self.audit().filter(|_| spec.permits.is_some())?;
        let arguments = || arguments_of(spec.request.params.as_ref().and_then(Object::of).as_ref());
        let may_become_task = spec.plan != Plan::Direct;
        Some(audit.call(&spec.owner, spec.upstream.name(), &spec.tool, arguments, may_become_task))
    }
}

enum RunnerEvent {
    Upstream(StageEvent),
    Command(RunnerCommand),
    ClientGone,
    DeadlineOver,
    TimerDue,
    SubtasksWait,
    DrainBegun,
    GatewayEnds,
}

impl Runner {
    fn new(
        engine: Arc<Engine>,
        spec: CallSpec,
        split: Option<SplitPlan>,
        client: AttachedClients,
        bug_recipient: SharedBugRecipient,
    ) -> Self {
        // Without a permit an `auto` call stays plain (T-58); a repetition under a key needs none.
        let tasks = NonZeroUsize::MIN.saturating_add(split.as_ref().map_or(0, SplitPlan::total));
        let permit = match spec.plan {
            Plan::Direct if !spec.is_held_by_key() => None,
            Plan::Refuse => None,
            Plan::Direct | Plan::Grace(_) | Plan::Task => {
                engine.admission.take_beside(&spec.owner, tasks, engine.unsettled_rows(&spec.owner)).ok()
            }
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
        let (recorder, dialog) = (Recorder::new(permit, bug_recipient), Dialog::new(client, grace_end));
        Self { engine, spec, call, family: Family::default(), recorder, dialog, audited: None }
    }

    async fn run(mut self: Box<Self>) {
        // Boxed, and left out for most calls.
        let next = if self.needs_preparation() { Box::pin(self.prepare()).await } else { RunnerFlow::Continue(()) };
        if self.unless_fenced(next).is_break() {
            return Box::pin(self.leave()).await;
        }
        if self.recorder.has_row() && !self.call.is_queued() {
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
            if matches!(step, RunnerEvent::Upstream(StageEvent::PermitTaken)) && !self.recorder.has_row() {
                // Nothing is stored before the call is sent, so this needs no future.
                self.call_sent();
                continue;
            }
            let next = Box::pin(self.handle_step(step)).await;
            if self.unless_fenced(next).is_break() {
                return Box::pin(self.leave()).await;
            }
        }
    }

    /// Whether a record, a row, a refusal or a message to the client comes before the upstream call.
    const fn needs_preparation(&self) -> bool {
        let is_plain = match self.spec.plan {
            Plan::Direct | Plan::Refuse => true,
            Plan::Grace(_) => self.recorder.has_permit(),
            Plan::Task => false,
        };
        self.audited.is_some() || self.spec.idempotency.is_some() || !is_plain
    }

    /// Creates the task before the upstream call, where the plan requires it.
    async fn prepare(&mut self) -> RunnerFlow {
        if let Some(audited) = &self.audited
            && let Err(fault) = audited.begin().await
        {
            return self.end(Outcome::lost(fault)).await;
        }
        match self.spec.plan {
            _ if self.spec.idempotency.is_some() => self.prepare_named().await,
            Plan::Grace(_) if !self.recorder.has_permit() => {
                self.spec.plan = Plan::Direct;
                self.dialog.clients().send(CallEvent::StaysPlain).await;
                RunnerFlow::Continue(())
            }
            Plan::Direct | Plan::Refuse | Plan::Grace(_) => RunnerFlow::Continue(()),
            Plan::Task if self.spec.chosen.is_some() => self.prepare_named().await,
            Plan::Task if !self.recorder.has_permit() => self.refuse_unpermitted().await,
            Plan::Task => match self.begin_task().await {
                Ok(next) => next,
                Err(fault) => self.end(Outcome::lost(fault)).await,
            },
        }
    }

    async fn begin_task(&mut self) -> Result<RunnerFlow, GatewayFault> {
        self.enter_queue()?;
        if !self.asks_first() {
            return self.promote(None).await;
        }
        self.insert(TaskVisibility::Hidden, None).await?;
        self.dialog.set_grace_end(Some(self.spec.arrived + self.spec.policy.grace));
        Ok(RunnerFlow::Continue(()))
    }

    /// Takes a permit, or a queue position, before the row is written; fails if the queue is full.
    fn enter_queue(&mut self) -> Result<(), GatewayFault> {
        self.call.enter_queue(&self.spec.owner)
    }

    /// Whether questions precede the handle. Not for a named call: its name must find it from the start.
    fn asks_first(&self) -> bool {
        !self.spec.is_named()
            && self.spec.policy.early_input == EarlyInput::AskFirst
            && self.spec.rounds == RoundSupport::Allowed
    }

    /// Refuses a call that needs a permit for its task, and got none.
    async fn refuse_unpermitted(&mut self) -> RunnerFlow {
        let reason = self.engine.refuse_permits(&self.spec.owner, self.call.tasks());
        self.refuse(reason).await
    }

    async fn refuse(&mut self, reason: Reason) -> RunnerFlow {
        let failure = Failure::Gateway(GatewayFault::new(reason, Executed::No));
        self.end(Outcome::Faulted(failure)).await
    }

    async fn step(&mut self) -> RunnerEvent {
        let may_leave = !self.recorder.has_handle() && self.dialog.clients().is_there();
        let may_be_left = !self.call.outlives_drain() && self.recorder.has_handle();
        // Only the first of both has a timer, which costs more than the other parts of a wait.
        let (deadline, next_due) = match (self.call.deadline(), self.next_due()) {
            (Some(deadline), Some(due)) if due < deadline => (None, Some(due)),
            (Some(deadline), _) => (Some(deadline), None),
            (None, due) => (None, due),
        };
        // A call is not sent before its mark is stored. Events after the naming of subtasks wait until these are
        // stored, so that the call's end follows theirs (SUB-13).
        let may_receive =
            !self.recorder.waits_for(UnstoredStep::Mark) && !self.recorder.waits_for(UnstoredStep::Subtasks);
        let may_mirror = self.may_mirror();
        tokio::select! {
            biased;
            command = self.recorder.next_command() => RunnerEvent::Command(command),
            () = self.dialog.clients().left(), if may_leave => RunnerEvent::ClientGone,
            // Before all other events: the permit of a call that ended must not send the next one.
            () = self.engine.calls_end.ended(), if !may_be_left => RunnerEvent::GatewayEnds,
            () = at(deadline) => RunnerEvent::DeadlineOver,
            () = std::future::ready(()), if may_mirror => RunnerEvent::SubtasksWait,
            event = next_event(&self.engine, &mut self.call, &mut self.family), if may_receive => RunnerEvent::Upstream(event),
            () = at(next_due) => RunnerEvent::TimerDue,
            () = self.engine.drain_begun.cancelled(), if may_be_left => RunnerEvent::DrainBegun,
        }
    }

    /// Writes are boxed, here and below: each of these futures would have the size of the largest one, and be copied.
    async fn handle_step(&mut self, step: RunnerEvent) -> RunnerFlow {
        match step {
            RunnerEvent::Upstream(StageEvent::PermitTaken) => self.dispatched(None).await,
            RunnerEvent::Upstream(StageEvent::NotBegun(outcome)) => Box::pin(self.end(outcome)).await,
            RunnerEvent::Upstream(StageEvent::Exchange(event)) => {
                self.exchange_event(event).await?;
                // A constantly active upstream must not starve the timers.
                let now = Instant::now();
                self.serve_timer(|due| due < now).await
            }
            RunnerEvent::Command(RunnerCommand::Fenced) => {
                self.stop_as_fenced();
                RunnerFlow::Break(())
            }
            RunnerEvent::Command(RunnerCommand::Abandon) => {
                Box::pin(self.abandoned()).await;
                RunnerFlow::Break(())
            }
            RunnerEvent::Command(RunnerCommand::Deliver(answers)) => Box::pin(self.deliver(answers)).await,
            RunnerEvent::Command(RunnerCommand::LookAgain) => Box::pin(self.deliver_rest()).await,
            RunnerEvent::Command(RunnerCommand::Retried(sender, retry)) => Box::pin(self.retried(sender, retry)).await,
            RunnerEvent::ClientGone => Box::pin(self.client_left()).await,
            RunnerEvent::DeadlineOver => Box::pin(self.deadline_over()).await,
            RunnerEvent::TimerDue => {
                let now = Instant::now();
                self.serve_timer(|due| due <= now).await
            }
            RunnerEvent::SubtasksWait => {
                Box::pin(self.mirror_subtasks()).await;
                // Only the earliest time has a timer, so another one may be due, too.
                let now = Instant::now();
                self.serve_timer(|due| due < now).await
            }
            RunnerEvent::DrainBegun => Box::pin(self.leave_for_later()).await,
            RunnerEvent::GatewayEnds => Box::pin(self.end_with_gateway()).await,
        }
    }

    async fn abandoned(&mut self) {
        failpoint::hit("cancel-stored");
        self.subtasks_notified().await;
        self.cancel_exchanges("the task was cancelled").await;
        self.mark_notified().await;
    }

    async fn deadline_over(&mut self) -> RunnerFlow {
        // The result came in time, and waits for its subtasks. They end with the call.
        if let Some(end) = self.call.take_end() {
            return self.exchange_event(end).await;
        }
        self.cancel_exchanges("the call ran longer than its deadline").await;
        self.end(Outcome::lost(GatewayFault::new(Reason::DeadlineExceeded, Executed::Unknown))).await
    }

    async fn queue_over(&mut self) -> RunnerFlow {
        let failure = GatewayFault::new(Reason::QueueDeadline, Executed::No);
        let shed = self.spec.permits.as_ref().map_or(failure, |permits| permits.waited_too_long(&self.spec.owner));
        self.end(Outcome::lost(shed)).await
    }

    async fn grace_over(&mut self) -> RunnerFlow {
        self.dialog.set_grace_end(None);
        match self.promote(None).await {
            Ok(next) => next,
            // A later process may find the row and send the call, so this one must not send it, too.
            Err(fault) if fault.executed != Executed::No && self.call.is_unsent() => {
                self.end(Outcome::lost(fault)).await
            }
            Err(fault) => self.stay_plain(fault.reason).await,
        }
    }

    /// Holds a call without a task (GW-33): events that waited may be sent; its permit is awaited as for a plain call.
    async fn stay_plain(&mut self, reason: Reason) -> RunnerFlow {
        let reason = reason.key();
        tracing::warn!(reason, "the call could not become a task and is held");
        if !self.recorder.has_row() {
            self.recorder.set_permit(None);
        }
        if !self.recorder.has_row() || self.spec.is_held_by_key() {
            self.call.queue_until(self.spec.arrived + self.spec.queue_deadline);
        }
        self.spec.plan = Plan::Direct;
        self.dialog.clients().send(CallEvent::StaysPlain).await;
        RunnerFlow::Continue(())
    }

    async fn exchange_event(&mut self, event: ExchangeEvent) -> RunnerFlow {
        self.call.record_event();
        failpoint::hit("event-heard");
        if let ExchangeEvent::Lost(ExchangeError(fault)) = &event
            && self.recorder.is_resuming()
            && fault.executed != Executed::Yes
        {
            return Box::pin(self.resume_failed()).await;
        }
        self.record_alive().await;
        if self.recorder.check_due().is_some() {
            self.recorder.check_soon();
        }
        match event {
            ExchangeEvent::Progress(progress) => Box::pin(self.progress_received(progress)).await,
            ExchangeEvent::Status(text) => self.status_received(text),
            // Only subscribers of the upstream task receive it.
            ExchangeEvent::Task(_) => RunnerFlow::Continue(()),
            ExchangeEvent::Subtasks(named) => Box::pin(self.subtasks_received(named)).await,
            ExchangeEvent::Notification(received) => Box::pin(self.notification_received(received)).await,
            ExchangeEvent::Asked { ask, method, params } => Box::pin(self.question_received(ask, method, params)).await,
            ExchangeEvent::Withdrawn { ask } => Box::pin(self.withdrawal_received(ask)).await,
            ExchangeEvent::Returned(result) => {
                let outcome = outcome_of(result, self.spec.context.share.as_ref());
                Box::pin(self.end(outcome)).await
            }
            ExchangeEvent::Faulted(error) => Box::pin(self.faulted(error)).await,
            ExchangeEvent::Cancelled => Box::pin(self.end(Outcome::Cancelled)).await,
            ExchangeEvent::Lost(ExchangeError(fault)) => Box::pin(self.end(Outcome::lost(fault))).await,
        }
    }

    async fn progress_received(&mut self, progress: Progress) -> RunnerFlow {
        if let Some(key) = self.recorder.handle() {
            if let Some(notice_sink) = &self.spec.notice_sink {
                notice_sink(key, TaskNotice::Progress(&progress));
            }
            if let Some(text) = progress.status() {
                self.recorder.keep_progress(text);
            }
        } else {
            self.dialog.set_grace_status(progress.status().filter(|_| self.dialog.grace_end().is_some()));
            self.dialog.send_within_grace(CallEvent::Progress(progress)).await;
        }
        RunnerFlow::Continue(())
    }

    /// Keeps the upstream task's status text. A plain call cannot show it as progress: no number grows (GW-24).
    fn status_received(&mut self, text: Arc<str>) -> RunnerFlow {
        if self.recorder.has_handle() {
            self.recorder.keep_progress(text);
        } else if self.dialog.grace_end().is_some() {
            self.dialog.set_grace_status(Some(text));
        }
        RunnerFlow::Continue(())
    }

    async fn notification_received(&mut self, received: ServerNotification) -> RunnerFlow {
        if let Some(key) = self.recorder.handle() {
            // Notifications of tasks need a client's own stream (EXT-52).
            if let Some(notice_sink) = &self.spec.notice_sink {
                notice_sink(key, TaskNotice::Notification(&received));
            }
        } else {
            self.dialog.send_within_grace(CallEvent::Notification(received)).await;
        }
        RunnerFlow::Continue(())
    }

    async fn store_progress(&mut self) -> RunnerFlow {
        let Some(key) = self.recorder.key() else { return RunnerFlow::Continue(()) };
        if self.recorder.waits_for(UnstoredStep::Progress) {
            self.recorder.progress_waits(None);
            return RunnerFlow::Continue(());
        }
        let Some(message) = self.recorder.next_progress() else { return RunnerFlow::Continue(()) };
        let event = Event::Progressed { attempt: self.recorder.attempt(), message: Arc::clone(&message) };
        match self.apply(&key, event).await {
            Ok(_) => RunnerFlow::Continue(()),
            Err(error) if error.is_passing() => {
                self.recorder.progress_waits(Some(message));
                self.wait_for_store(UnstoredStep::Progress, &error)
            }
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "progress was not stored");
                RunnerFlow::Continue(())
            }
        }
    }
}

#[derive(Clone, Copy)]
enum RunnerTimer {
    Store,
    Queue,
    Round,
    Grace,
    Input,
    Progress,
    Checkpoint,
}

impl Runner {
    /// In order of priority if several are due. All share one sleep, which takes much of the memory of a call's wait.
    fn timers(&self) -> [(Option<Instant>, RunnerTimer); 7] {
        [
            (self.recorder.store_due(), RunnerTimer::Store),
            (self.call.queue_end(), RunnerTimer::Queue),
            (self.dialog.questions().round_due(), RunnerTimer::Round),
            (self.dialog.grace_end(), RunnerTimer::Grace),
            (self.dialog.questions().overdue_at(), RunnerTimer::Input),
            (self.recorder.progress_due(), RunnerTimer::Progress),
            (self.recorder.check_due(), RunnerTimer::Checkpoint),
        ]
    }

    fn next_due(&self) -> Option<Instant> {
        self.timers().into_iter().filter_map(|(due, _)| due).min()
    }

    /// Boxed, as most steps end without a timer.
    async fn serve_timer(&mut self, is_due: impl Fn(Instant) -> bool) -> RunnerFlow {
        match self.timers().into_iter().find(|(due, _)| due.is_some_and(&is_due)) {
            Some((_, RunnerTimer::Store)) => Box::pin(self.try_again()).await,
            Some((_, RunnerTimer::Queue)) => Box::pin(self.queue_over()).await,
            Some((_, RunnerTimer::Round)) => Box::pin(self.ask_client()).await,
            Some((_, RunnerTimer::Grace)) => Box::pin(self.grace_over()).await,
            Some((_, RunnerTimer::Input)) => Box::pin(self.expire_inputs()).await,
            Some((_, RunnerTimer::Progress)) => Box::pin(self.store_progress()).await,
            Some((_, RunnerTimer::Checkpoint)) => Box::pin(self.checkpoint_due()).await,
            None => RunnerFlow::Continue(()),
        }
    }
}

#[cfg(test)]
mod tests;
