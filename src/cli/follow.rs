//! Follows a call or a resumed task: shows its status, asks questions, cancels it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::call::{CallExit, CallMode, Flavour, InterruptPolicy, Wait};
use super::called_server::{CalledServer, may_pass, object};
use super::dialog::{CallDialog, Interrupted, NoResultError, after, leave, say_how_to_go_on, words};
use super::ui::{self, CallStatus, StepCount};
use crate::task::GatewayFault;
use crate::upstream::{Answer, Exchange, ExchangeEvent, Progress, TaskRequestError, UpstreamTaskEvent};
use crate::waits::at;
use crate::wire::{Object, Payload, RpcError, method, rpc_error};

/// The time limit of a call that becomes no task.
const CALL_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// How long a task may take to settle after its cancellation was requested.
const CANCEL_MAX: Duration = Duration::from_secs(30);
/// The most question rounds in one call without task; official clients have the same limit (GW-06).
const ROUNDS_MAX: usize = 10;
/// The likely meaning of a refusal to report on a task.
pub(super) const UNKNOWN_TASK: &str =
    "the server has no such task for you: it may have expired, or belong to another key, session, server or --flavour";
/// The most events that are queued while the user is asked. Beyond it, informative ones are dropped.
const LATER_MAX: usize = 256;

/// Follows a started call. Its session ends with it, unless a task may still run in it.
pub(super) async fn call(
    server: &CalledServer,
    mode: CallMode,
    begun: Box<dyn Exchange>,
    dialog: &mut CallDialog<'_>,
) -> Result<CallExit, NoResultError> {
    let ended = Follower::new(server, mode, dialog, begun).follow().await;
    let is_over = ended.as_ref().map_or(mode.flavour != Flavour::Core, |ended| ended.is_over);
    if is_over {
        server.end_session().await;
    }
    ended.map(|ended| ended.verdict)
}

/// Resumes a task by its id and follows it. The task needs no session.
pub(super) async fn task(
    server: &CalledServer,
    mode: CallMode,
    id: &str,
    dialog: &mut CallDialog<'_>,
) -> Result<CallExit, NoResultError> {
    let taken = match dialog.or_interrupt(server.take_up(mode, id)).await {
        Ok(taken) => taken?,
        Err(why) => return Ok(leave(&server.address, id, Some(mode.flavour), dialog, why)),
    };
    let task = Some(FollowedTask { id: id.to_owned(), status: None });
    let ended = Follower { task, ..Follower::new(server, mode, dialog, taken) }.follow().await;
    server.end_session().await;
    ended.map(|ended| ended.verdict)
}

/// The exit of a call, and whether it is over at the server.
struct CallConclusion {
    verdict: CallExit,
    is_over: bool,
}

impl CallConclusion {
    const fn over(verdict: CallExit) -> Self {
        Self { verdict, is_over: true }
    }

    const fn left(verdict: CallExit) -> Self {
        Self { verdict, is_over: false }
    }
}

struct FollowedTask {
    id: String,
    /// The server's status text and message; `None` before the first.
    status: Option<(Cow<'static, str>, Option<Arc<str>>)>,
}

const WORKING: Cow<'static, str> = Cow::Borrowed("working");

struct PendingQuestion {
    ask: Payload,
    method: Arc<str>,
    params: Option<Payload>,
}

struct Follower<'t, 'a> {
    server: &'t CalledServer,
    mode: CallMode,
    dialog: &'t mut CallDialog<'a>,
    exchange: Box<dyn Exchange>,
    task: Option<FollowedTask>,
    seen: SeenMessages,
    asked: VecDeque<PendingQuestion>,
    /// Events received while the user is asked.
    later: VecDeque<ExchangeEvent>,
    rounds: usize,
    /// Failed requests about the task in a row.
    failures: u32,
    /// While the server is unreachable: the deadline and the fault.
    unavailable: Option<(Instant, GatewayFault)>,
    /// The refusal of a request about the task: the task is gone, unless another event arrives.
    refused: Option<RpcError>,
    /// The user interrupted before there was a task to cancel.
    is_interrupted: bool,
    /// After an interrupt: the deadline for the server's confirmation.
    leave_at: Option<Instant>,
    late_at: Instant,
}

enum FollowEvent {
    Interrupted(Interrupted),
    GivenUp,
    Late,
    StaysUnavailable(GatewayFault),
    Event(ExchangeEvent),
}

impl<'t, 'a> Follower<'t, 'a> {
    fn new(
        server: &'t CalledServer,
        mode: CallMode,
        dialog: &'t mut CallDialog<'a>,
        exchange: Box<dyn Exchange>,
    ) -> Self {
        Self {
            server,
            mode,
            dialog,
            exchange,
            task: None,
            seen: SeenMessages::default(),
            asked: VecDeque::new(),
            later: VecDeque::new(),
            rounds: 0,
            failures: 0,
            unavailable: None,
            refused: None,
            is_interrupted: false,
            leave_at: None,
            late_at: Instant::now() + CALL_MAX,
        }
    }

    async fn follow(&mut self) -> Result<CallConclusion, NoResultError> {
        loop {
            let flow = match self.asked.pop_front() {
                Some(asked) => self.put(asked).await?,
                None => match self.step().await {
                    FollowEvent::Event(event) => self.take(event).await?,
                    FollowEvent::Interrupted(why) => self.interrupted(why).await,
                    FollowEvent::GivenUp => ControlFlow::Break(self.left()),
                    FollowEvent::StaysUnavailable(fault) => {
                        self.say_how_to_go_on();
                        return Err(self.server.lost(&fault));
                    }
                    FollowEvent::Late => {
                        return Err(NoResultError(format!(
                            "no answer within {}",
                            humantime::format_duration(CALL_MAX)
                        )));
                    }
                },
            };
            if let ControlFlow::Break(ended) = flow {
                return Ok(ended);
            }
        }
    }

    async fn step(&mut self) -> FollowEvent {
        let (leave_at, late_at, unavailable) = (self.leave_at, self.late_at, self.unavailable);
        let is_plain = self.task.is_none();
        let event = async {
            match self.later.pop_front() {
                Some(event) => event,
                None => self.exchange.next().await,
            }
        };
        tokio::select! {
            biased;
            why = self.dialog.interrupted() => FollowEvent::Interrupted(why),
            () = at(leave_at) => FollowEvent::GivenUp,
            event = event => FollowEvent::Event(event),
            fault = after(unavailable) => FollowEvent::StaysUnavailable(fault),
            () = sleep_until(late_at), if is_plain => FollowEvent::Late,
        }
    }

    async fn take(&mut self, event: ExchangeEvent) -> Result<ControlFlow<CallConclusion>, NoResultError> {
        match event {
            ExchangeEvent::Progress(progress) => self.show_progress(&progress),
            ExchangeEvent::Task(UpstreamTaskEvent::Made(handle)) => return self.made(&handle).await,
            ExchangeEvent::Task(UpstreamTaskEvent::Status { text, message }) => return Ok(self.status(text, message)),
            ExchangeEvent::Task(UpstreamTaskEvent::Unanswered(why)) => return self.unanswered(&why),
            // The user did not request them.
            ExchangeEvent::Subtasks(_) => (),
            ExchangeEvent::Asked { ask, method, params } => {
                self.rounds += usize::from(self.task.is_none() && !self.mode.in_session);
                if self.rounds == ROUNDS_MAX {
                    return Err(NoResultError::unintelligible("it asks too many rounds of questions"));
                }
                self.asked.push_back(PendingQuestion { ask, method, params });
            }
            ExchangeEvent::Withdrawn { ask } => self.asked.retain(|asked| asked.ask != ask),
            ExchangeEvent::Returned(result) => {
                return self.dialog.print(&object(&result)?).map(CallConclusion::over).map(ControlFlow::Break);
            }
            // A cancelled task has an error as its result.
            ExchangeEvent::Faulted(_) if self.leave_at.is_some() && self.mode.in_session => {
                return Ok(self.cancelled());
            }
            ExchangeEvent::Faulted(error) => {
                return Ok(ControlFlow::Break(CallConclusion::over(self.dialog.fault(&error))));
            }
            ExchangeEvent::Cancelled => return Ok(self.cancelled()),
            ExchangeEvent::Lost(lost) => match self.refused.take() {
                Some(error) => {
                    let verdict = self.dialog.fault(&error);
                    self.dialog.note(UNKNOWN_TASK);
                    return Ok(ControlFlow::Break(CallConclusion::over(verdict)));
                }
                None => return Err(self.server.lost(&lost.0)),
            },
            ExchangeEvent::Status(_) | ExchangeEvent::Notification(_) => (),
        }
        Ok(ControlFlow::Continue(()))
    }

    async fn made(&mut self, handle: &Payload) -> Result<ControlFlow<CallConclusion>, NoResultError> {
        let id = object(handle)?.get_string("taskId");
        let id = id.ok_or_else(|| NoResultError::unintelligible("the task lacks an id"))?;
        self.task = Some(FollowedTask { id, status: None });
        Ok(match self.dialog.policy.wait {
            _ if self.is_interrupted => self.cancel().await,
            Wait::ForTheHandle => {
                self.dialog.ui.output(handle.as_str());
                self.say_how_to_go_on();
                ControlFlow::Break(CallConclusion::left(CallExit::Returned))
            }
            Wait::ToTheEnd | Wait::ForNothing => ControlFlow::Continue(()),
        })
    }

    fn say_how_to_go_on(&mut self) {
        if let Some(task) = &self.task {
            say_how_to_go_on(&self.server.address, &task.id, Some(self.mode.flavour), self.dialog);
        }
    }

    fn status(&mut self, text: Cow<'static, str>, message: Option<Arc<str>>) -> ControlFlow<CallConclusion> {
        self.failures = 0;
        self.unavailable = None;
        if let Some(error) = self.refused.take() {
            // The task exists.
            self.dialog.note(&format!("the server refused the answer: {}", words(&error)));
        }
        let is_late =
            message.as_ref().is_some_and(|message| self.seen.is_late(MessageSource::Poll, message)) && text == WORKING;
        let is_shown = match &*text {
            // Without a session the result arrived with the status.
            "completed" | "failed" => self.mode.in_session && self.leave_at.is_none(),
            "cancelled" => !self.mode.in_session || self.leave_at.is_none(),
            _ => self.leave_at.is_none(),
        };
        let is_over = matches!(&*text, "completed" | "failed" | "cancelled");
        let status = Some((text, message));
        if let Some(task) = self.task.as_mut().filter(|task| task.status != status) {
            task.status = status;
            if is_shown && !is_late {
                self.show();
            }
        }
        if is_over || self.dialog.policy.wait != Wait::ForNothing {
            return ControlFlow::Continue(());
        }
        self.dialog.note("the task has no result yet");
        self.say_how_to_go_on();
        ControlFlow::Break(CallConclusion::left(CallExit::Unfinished))
    }

    /// Handles a failed request about the task. The exchange repeats it; this decides how often.
    fn unanswered(&mut self, why: &TaskRequestError) -> Result<ControlFlow<CallConclusion>, NoResultError> {
        self.failures += 1;
        let is_enough = self.failures >= self.dialog.policy.retry.attempts_max;
        match why {
            TaskRequestError::Refused(error) if error.code == rpc_error::INVALID_PARAMS => {
                self.refused = Some(error.clone());
                return Ok(ControlFlow::Continue(()));
            }
            TaskRequestError::Refused(error) if is_enough || error.code == rpc_error::METHOD_NOT_FOUND => {
                return Ok(ControlFlow::Break(CallConclusion::left(self.dialog.fault(error))));
            }
            TaskRequestError::Lost(lost) if is_enough || !may_pass(&lost.0) => return Err(self.server.lost(&lost.0)),
            TaskRequestError::Refused(_) | TaskRequestError::Lost(_) => (),
        }
        let (now, retry) = (Instant::now(), self.dialog.policy.retry);
        if let TaskRequestError::Lost(lost) = why {
            self.unavailable.get_or_insert((now + retry.outage_max, lost.0));
        }
        let until = self.unavailable.map_or_else(String::new, |(end, _)| {
            let left = end.saturating_duration_since(now) + Duration::from_millis(999);
            format!(", for {}s at most", left.as_secs())
        });
        let why = self.why(why);
        self.dialog.note(&format!("{why}; trying again{until}"));
        Ok(ControlFlow::Continue(()))
    }

    fn why(&self, why: &TaskRequestError) -> String {
        match why {
            TaskRequestError::Refused(error) => words(error),
            TaskRequestError::Lost(lost) => self.server.lost(&lost.0).0,
        }
    }

    /// Asks the user a question and sends the answer. Declines every question once the call is being cancelled.
    async fn put(&mut self, asked: PendingQuestion) -> Result<ControlFlow<CallConclusion>, NoResultError> {
        if *asked.method != *method::ELICIT {
            if !self.mode.in_session {
                return Err(NoResultError::unintelligible("it sends a request that this client does not support"));
            }
            let unknown = RpcError::new(rpc_error::METHOD_NOT_FOUND, format!("unknown method: {}", asked.method));
            let answered = self.exchange.answer(&asked.ask, Answer::Error(unknown)).await;
            if let Err(error) = answered {
                tracing::debug!(%error, "an answer was not taken");
            }
            return Ok(ControlFlow::Continue(()));
        }
        if self.leave_at.is_some() || self.is_interrupted {
            return Ok(ControlFlow::Continue(()));
        }
        let answer = match self.asking(&asked).await {
            Ok(answer) => answer,
            Err(why) => return Ok(self.interrupted(why).await),
        };
        let Some(answer) = answer else {
            self.dialog.note("the question was withdrawn");
            return Ok(ControlFlow::Continue(()));
        };
        if let Err(lost) = self.exchange.answer(&asked.ask, Answer::Result(answer)).await {
            let why = self.server.lost(&lost.0).0;
            self.dialog.note(&format!("the answer may be lost: {why}"));
        }
        if let Some(task) = &mut self.task {
            // The task is working again until a status says otherwise.
            task.status = Some((WORKING, None));
            if self.mode.in_session {
                self.show();
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Asks the user; `None` once the question is withdrawn. Other events are queued.
    async fn asking(&mut self, asked: &PendingQuestion) -> Result<Option<Payload>, Interrupted> {
        let params = asked.params.as_ref().and_then(Object::of);
        let asking = self.dialog.ask(params.as_ref());
        tokio::pin!(asking);
        loop {
            if self.later.back().is_some_and(ExchangeEvent::is_final) {
                return Ok(None);
            }
            tokio::select! {
                biased;
                event = self.exchange.next() => match event {
                    ExchangeEvent::Withdrawn { ask } if ask == asked.ask => return Ok(None),
                    ExchangeEvent::Withdrawn { ask } => self.asked.retain(|asked| asked.ask != ask),
                    ExchangeEvent::Asked { ask, method, params } => self.asked.push_back(PendingQuestion { ask, method, params }),
                    // The question remains open while the server is unreachable.
                    ExchangeEvent::Task(UpstreamTaskEvent::Unanswered(TaskRequestError::Lost(_))) | ExchangeEvent::Notification(_) => (),
                    event @ (ExchangeEvent::Progress(_)
                    | ExchangeEvent::Status(_)
                    | ExchangeEvent::Task(_)
                    | ExchangeEvent::Subtasks(_)
                    | ExchangeEvent::Returned(_)
                    | ExchangeEvent::Faulted(_)
                    | ExchangeEvent::Cancelled
                    | ExchangeEvent::Lost(_)) => {
                        if event.is_final() || self.later.len() < LATER_MAX {
                            self.later.push_back(event);
                        }
                    }
                },
                answer = &mut asking => return answer.map(|answer| Some(Payload::of(&answer))),
            }
        }
    }

    /// Cancels the call, or leaves it after a second interrupt.
    async fn interrupted(&mut self, why: Interrupted) -> ControlFlow<CallConclusion> {
        if self.leave_at.is_some() {
            return ControlFlow::Break(self.left());
        }
        let stays_out = self.dialog.policy.interrupt == InterruptPolicy::Leaves;
        if let Some(task) = self.task.as_ref().filter(|_| why == Interrupted::Late || stays_out) {
            let verdict = leave(&self.server.address, &task.id, Some(self.mode.flavour), self.dialog, why);
            return ControlFlow::Break(CallConclusion::left(verdict));
        }
        if self.task.is_some() {
            return self.cancel().await;
        }
        if self.mode.flavour == Flavour::Core && why == Interrupted::ByUser {
            // A task can only be cancelled by its id, so wait for it (UPC-06).
            if std::mem::replace(&mut self.is_interrupted, true) {
                let verdict = self.dialog.cancelled("left before the task had an id; it may still run");
                return ControlFlow::Break(CallConclusion::left(verdict));
            }
            return ControlFlow::Continue(());
        }
        // Another interrupt does not wait for the server.
        let _ = self.dialog.or_interrupt(self.exchange.cancel("the user pressed Ctrl-C")).await;
        ControlFlow::Break(CallConclusion::over(self.dialog.given_up(why)))
    }

    /// Requests the task's cancellation. Later events show whether it succeeded.
    async fn cancel(&mut self) -> ControlFlow<CallConclusion> {
        self.leave_at = Some(Instant::now() + CANCEL_MAX);
        let task_id = self.task.as_ref().map(|task| task.id.as_str());
        self.dialog.ui.status(&CallStatus { task_id, text: "cancelling", message: None, steps: None });
        let retry = self.dialog.policy.retry;
        for attempt in 1.. {
            let Ok(asked) = self.dialog.or_interrupt(self.exchange.cancel_task()).await else {
                return ControlFlow::Break(self.left());
            };
            match asked {
                Ok(()) => break,
                Err(TaskRequestError::Refused(error)) => {
                    self.dialog.note(&format!("the server refused to cancel: {}", words(&error)));
                    break;
                }
                Err(why @ TaskRequestError::Lost(lost)) => {
                    let why = self.why(&why);
                    if attempt >= retry.attempts_max || !may_pass(&lost.0) {
                        self.dialog.note(&format!("the cancellation may be lost: {why}"));
                        break;
                    }
                    self.dialog.note(&format!("{why}; trying again"));
                    if self.dialog.or_interrupt(sleep(retry.pause_after(attempt))).await.is_err() {
                        return ControlFlow::Break(self.left());
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn cancelled(&mut self) -> ControlFlow<CallConclusion> {
        ControlFlow::Break(CallConclusion::over(self.dialog.cancelled("the task was cancelled")))
    }

    fn left(&mut self) -> CallConclusion {
        let task_id = self.task.as_ref().map(|task| task.id.as_str()).unwrap_or_default();
        CallConclusion::left(self.dialog.left(task_id))
    }

    fn show(&mut self) {
        let Some(FollowedTask { id, status: Some((text, message)) }) = &self.task else { return };
        let message = message.as_deref();
        self.dialog.ui.status(&CallStatus {
            task_id: Some(id),
            text,
            message,
            steps: message.and_then(StepCount::find),
        });
    }

    fn show_progress(&mut self, received: &Progress) {
        let Some(progress) = ui::ProgressReport::of(received) else { return };
        let message = received.message.as_ref().filter(|_| self.task.is_some());
        if message.is_some_and(|message| self.seen.is_late(MessageSource::Notification, message)) {
            return;
        }
        let (task_id, text) = match &self.task {
            Some(FollowedTask { id, status: Some((text, _)) }) => (Some(id.as_str()), &**text),
            Some(FollowedTask { id, status: None }) => (Some(id.as_str()), "working"),
            None => (None, "calling"),
        };
        let (message, steps) = (progress.message.as_deref(), StepCount::of(&progress));
        self.dialog.ui.status(&CallStatus { task_id, text, message, steps });
    }
}

const MESSAGES_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageSource {
    Notification,
    Poll,
}

/// Messages from one source that the other has not repeated yet, in order. Each source repeats the other's sooner or later.
#[derive(Debug, Default)]
struct SeenMessages(VecDeque<(MessageSource, Arc<str>)>);

impl SeenMessages {
    /// Whether the other source has reported something newer than this message.
    fn is_late(&mut self, source: MessageSource, message: &Arc<str>) -> bool {
        let known = self.0.iter().position(|(other, text)| *other != source && text == message);
        if let Some(at) = known {
            self.0.remove(at);
            return at < self.0.len();
        }
        if self.0.len() == MESSAGES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((source, Arc::clone(message)));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::MessageSource::{Notification, Poll};
    use super::*;

    #[test]
    fn a_message_that_the_other_source_has_gone_beyond_is_late() {
        let mut seen = SeenMessages::default();
        for (source, message, is_late) in [
            (Poll, "5", false),
            (Poll, "6", false),
            (Notification, "5", true),
            (Notification, "6", false),
            (Notification, "7", false),
            (Notification, "8", false),
            (Poll, "7", true),
            (Poll, "8", false),
            // A source may repeat itself.
            (Notification, "7", false),
            (Notification, "9", false),
            (Notification, "7", false),
        ] {
            assert_eq!(seen.is_late(source, &Arc::from(message)), is_late, "{source:?} {message}");
        }
    }
}
