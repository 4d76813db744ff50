//! Drives one stateless request to its result: answered rounds, or a polled task (UPC-01). The exchange's owner polls
//! one future. Events go into one queue; answers come from another one.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{SetOnce, mpsc};
use tokio::time::Instant;

use super::input_requests::InputRequests;
use super::stateless_sender::{DraftRequest, ExchangeEventSender, RequestFailure, StatelessSender, malformed};
use crate::dialect::relay_ext_tasks::{
    self as peer, ExtensionTask, ExtensionTaskHandle, ExtensionTaskState, StatelessResult,
};
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::http::task_follower::{TaskEnds, dice};
use crate::upstream::outgoing::HandedOver;
use crate::upstream::{
    Answer, AnsweredBy, ExchangeError, ExchangeEvent, ResumeToken, TaskRequestError, UpstreamTaskEvent,
};
use crate::wire::object::ObjectWriter;
use crate::wire::one_line::status_text;
use crate::wire::rpc_error::METHOD_NOT_FOUND;
use crate::wire::{Object, Payload, method};

/// Most rounds in a row that no client sees, and the pause after the first, which doubles.
const SILENT_ROUNDS_MAX: u32 = 8;
const SILENT_PAUSE: Duration = Duration::from_millis(250);
const UNSERVED_MAX: u16 = 5;
/// The poll interval if the upstream names none, and its bounds.
const POLL_DEFAULT: Duration = Duration::from_secs(1);
const POLL_MIN: Duration = Duration::from_millis(50);
const POLL_MAX: Duration = Duration::from_secs(5 * 60);
/// The longest pause after failures, unless the interval is longer.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
const REQUEST_MAX: Duration = Duration::from_secs(30);
const CANCEL_MAX: Duration = Duration::from_secs(5);

pub(super) struct QuestionAnswer {
    pub(super) ask: Payload,
    pub(super) answer: Answer,
    pub(super) by: AnsweredBy,
}

pub(super) struct StatelessCall {
    pub(super) sender: StatelessSender,
    pub(super) events: ExchangeEventSender,
    pub(super) answers: mpsc::Receiver<Box<QuestionAnswer>>,
    pub(super) questions: InputRequests,
    pub(super) has_client_answer: bool,
    pub(super) task: UpstreamTaskCell,
    /// Whether the upstream has yet to accept answers.
    pub(super) untaken: Arc<AtomicBool>,
}

impl StatelessCall {
    pub(super) async fn run(mut self, request: DraftRequest, handed_over: HandedOver) -> ExchangeEvent {
        self.rounds(request, &handed_over).await.map_or_else(|end| end, ExchangeEvent::Returned)
    }

    async fn rounds(&mut self, request: DraftRequest, handed_over: &HandedOver) -> Result<Payload, ExchangeEvent> {
        let mut draft = request.clone();
        let (mut unseen, mut is_begun) = (UnseenRounds(0), false);
        loop {
            let answered = self.sender.call(&draft, Some(&self.events), handed_over).await;
            let result = answered.map_err(|failure| if is_begun { failure.of_begun_call() } else { failure })?;
            is_begun = true;
            let round = match peer::answered(&request.method, &result) {
                StatelessResult::Complete => return Ok(result),
                // The request did not declare the extension (UPC-09).
                StatelessResult::Task(_) if !self.sender.takes_tasks => return Err(malformed(Executed::Yes).into()),
                StatelessResult::Task(handle) => return Box::pin(self.follow(handle)).await,
                StatelessResult::Round(round) => {
                    self.sender.asked_in_result();
                    round
                }
                StatelessResult::Misplaced => {
                    let (method, reason) = (&*request.method, Reason::UpstreamMalformed.key());
                    tracing::warn!(method, reason, "invalid type of a result for its method");
                    return Err(malformed(Executed::Yes).into());
                }
                StatelessResult::Malformed => return Err(malformed(Executed::Yes).into()),
            };
            let responses = match &round.requests {
                Some(asked) => {
                    let responses = self.run_round(asked).await?;
                    match self.has_client_answer {
                        true => unseen = UnseenRounds(0),
                        // Most servers go on without an answer, so the first one is sent at once.
                        false if unseen.0 == 0 => unseen = UnseenRounds(1),
                        false => unseen.pause().await?,
                    }
                    responses
                }
                None if round.state.is_none() => return Err(malformed(Executed::Unknown).into()),
                None => {
                    unseen.pause().await?;
                    None
                }
            };
            draft.params = peer::repeated(request.params.as_ref(), responses, round.state);
        }
    }

    /// Sends a round's questions and waits for all answers: after a partial retry the upstream asks again (UPC-14).
    async fn run_round(&mut self, asked: &Object) -> Result<Option<Payload>, RequestFailure> {
        self.questions.next_round();
        self.has_client_answer = false;
        self.queue_questions(asked).await?;
        while !self.questions.is_complete() {
            self.receive_answer().await?;
        }
        Ok(self.questions.responses())
    }

    async fn queue_questions(&mut self, asked: &Object) -> Result<(), RequestFailure> {
        for event in self.questions.take(asked)? {
            self.queue(event).await;
        }
        Ok(())
    }

    /// Queues an event; drops it if its owner is gone.
    async fn queue(&self, event: ExchangeEvent) {
        let _ = self.events.send(Box::new(event)).await;
    }

    /// Cancel safe.
    async fn receive_answer(&mut self) -> Result<(), RequestFailure> {
        let Some(answered) = self.answers.recv().await else {
            // The exchange is gone; this future goes with it.
            return std::future::pending().await;
        };
        let QuestionAnswer { ask, answer, by } = *answered;
        self.has_client_answer |= by == AnsweredBy::Client;
        let taken = self.questions.answer(&ask, answer).map_err(RequestFailure::Faulted);
        self.note_untaken();
        taken
    }

    fn note_untaken(&self) {
        self.untaken.store(self.questions.has_untaken(), Ordering::Relaxed);
    }
}

/// Counts rounds in a row that no client sees: without questions, or with answers of the gateway alone (U59).
struct UnseenRounds(u32);

impl UnseenRounds {
    async fn pause(&mut self) -> Result<(), RequestFailure> {
        if self.0 == SILENT_ROUNDS_MAX {
            return Err(malformed(Executed::Unknown));
        }
        tokio::time::sleep(SILENT_PAUSE * 2_u32.pow(self.0)).await;
        self.0 += 1;
        Ok(())
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct UpstreamTaskCell(Arc<SetOnce<Arc<str>>>);

impl UpstreamTaskCell {
    pub(super) fn get(&self) -> Option<Arc<str>> {
        self.0.get().cloned()
    }

    pub(super) async fn wait(&self) {
        self.0.wait().await;
    }

    pub(super) fn set(&self, id: &Arc<str>) {
        let _ = self.0.set(Arc::clone(id));
    }
}

/// The token with which another process, or a program with the handle, polls the task.
pub(crate) fn token(id: &str, open: &[Payload]) -> ResumeToken {
    let token = ObjectWriter::new().text("task", id);
    let open: Vec<String> = open.iter().filter_map(|ask| ask.read().ok()).collect();
    ResumeToken(if open.is_empty() { token } else { token.member("open", &Payload::of(&open)) }.finish())
}

/// `None` for a foreign token. Tokens of sessions name their request, and may name a task too.
pub(super) fn resumed(token: &ResumeToken) -> Option<(Arc<str>, Vec<Payload>)> {
    let token = Object::of(&token.0).filter(|token| !token.contains("request"))?;
    let open: Vec<String> = token.get("open").and_then(|open| open.read().ok()).unwrap_or_default();
    Some((Arc::from(token.get_string("task")?), open.iter().map(Payload::of).collect()))
}

/// Best effort, within five seconds (UPC-06).
pub(super) async fn cancel(sender: &StatelessSender, id: &str) {
    let cancelled = tokio::time::timeout(CANCEL_MAX, request_cancel(sender, id)).await;
    if !matches!(cancelled, Ok(Ok(()))) {
        sender.link.dropped("cancel_failed");
    }
}

/// As [`cancel`], with the outcome.
pub(super) async fn request_cancel(sender: &StatelessSender, id: &str) -> Result<(), TaskRequestError> {
    let draft = DraftRequest::new(method::TASKS_CANCEL, Some(peer::params_of(id)));
    send_request(sender, &draft).await.map(drop)
}

/// Sends a request in a separate tokio task: it ends and frees its permit even if a slow client's call is not polled.
/// Dropping the future drops the request.
async fn send_request(sender: &StatelessSender, draft: &DraftRequest) -> Result<Payload, TaskRequestError> {
    let (owned_sender, draft) = (sender.clone(), draft.clone());
    let asking = async move {
        // Only polls take permits.
        let is_poll = &*draft.method == method::TASKS_GET;
        let StatelessSender { link, principal, .. } = &owned_sender;
        let _turn = if is_poll { link.polls.acquire_again(principal).await.ok() } else { None };
        owned_sender.answer(&draft, None).await
    };
    let asking = async move {
        let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::Unknown);
        tokio::time::timeout(REQUEST_MAX, asking).await.unwrap_or(Err(RequestFailure::Lost(late)))
    };
    let answer = sender.link.in_own_task(asking).await.unwrap_or_else(|fault| Err(RequestFailure::Lost(fault)));
    answer.map_err(|ending| match ending {
        RequestFailure::Faulted(error) => TaskRequestError::Refused(error),
        RequestFailure::Lost(fault) => TaskRequestError::Lost(ExchangeError(fault)),
    })
}

struct TaskPoller {
    id: Arc<str>,
    interval: Duration,
    ends: TaskEnds,
    /// Consecutive failures of polls, and of updates.
    failures: u32,
    update_failures: u32,
    /// Polls for which the server had no method, since the last successful one (U99).
    unserved: u16,
    /// When a failed update may be repeated.
    update_due: Option<Instant>,
    message: Option<String>,
    /// The last reported status and message; `None` after a failed request.
    shown: Option<(String, Option<String>)>,
}

impl StatelessCall {
    async fn follow(&mut self, made: ExtensionTaskHandle) -> Result<Payload, ExchangeEvent> {
        // A task's keys are unrelated to earlier rounds; the upstream has accepted their answers.
        self.questions.of_task();
        self.note_untaken();
        let mut watch = TaskPoller::new(&made.id, TaskEnds::new(Instant::now(), self.sender.deadline));
        self.task.set(&made.id);
        if self.sender.is_watched {
            self.queue(ExchangeEvent::Task(UpstreamTaskEvent::Made(made.payload))).await;
        }
        watch.note(&made.task, self).await;
        self.watch(watch, made.has_news).await
    }

    /// Polls a task that an earlier process began.
    pub(super) async fn take_up(&mut self, id: Arc<str>, open: &[Payload]) -> Result<Payload, ExchangeEvent> {
        self.questions.of_task();
        self.questions.reopen(open);
        let watch = TaskPoller::new(&id, TaskEnds::new(self.sender.began, self.sender.deadline));
        self.watch(watch, true).await
    }

    async fn watch(&mut self, mut watch: TaskPoller, at_once: bool) -> Result<Payload, ExchangeEvent> {
        let mut due = if at_once { Instant::now() } else { watch.due() };
        loop {
            self.wait(due).await?;
            // The next questions depend on the answers.
            if let Some(responses) =
                self.questions.responses().filter(|_| watch.update_due.is_none_or(|due| due <= Instant::now()))
            {
                match watch.request(self, method::TASKS_UPDATE, peer::update_of(&watch.id, &responses)).await {
                    // A refused answer is useless, or the task is gone: the poll shows which.
                    Ok(Some(_)) | Err(_) => {
                        self.questions.taken();
                        self.note_untaken();
                    }
                    // It is sent again after a separate pause, unless the task ends before.
                    Ok(None) => (),
                }
            }
            if let Some(result) = watch.request(self, method::TASKS_GET, peer::params_of(&watch.id)).await?
                && let Some(settled) = self.look(&mut watch, &result).await?
            {
                return Ok(settled);
            }
            self.note_untaken();
            due = watch.due();
        }
    }

    async fn wait(&mut self, due: Instant) -> Result<(), RequestFailure> {
        loop {
            tokio::select! {
                biased;
                received = self.receive_answer() => {
                    received?;
                    if self.questions.responses().is_some() {
                        return Ok(());
                    }
                }
                () = tokio::time::sleep_until(due) => return Ok(()),
            }
        }
    }

    async fn look(&mut self, watch: &mut TaskPoller, result: &Payload) -> Result<Option<Payload>, ExchangeEvent> {
        let (task, state) = peer::polled(result).ok_or(malformed(Executed::Unknown))?;
        watch.note(&task, self).await;
        match state {
            ExtensionTaskState::Returned(result) => return Ok(Some(result)),
            ExtensionTaskState::Faulted(error) => return Err(RequestFailure::Faulted(error).into()),
            // By the upstream: the gateway stops polling a task that it cancels.
            ExtensionTaskState::Cancelled => return Err(ExchangeEvent::Cancelled),
            ExtensionTaskState::Malformed(executed) => return Err(malformed(executed).into()),
            ExtensionTaskState::Asking(asked) => {
                self.queue_questions(&asked).await?;
                return Ok(None);
            }
            ExtensionTaskState::Working => (),
            ExtensionTaskState::Unknown => self.sender.link.dropped("unknown_status"),
        }
        for event in self.questions.withdraw_all_but(None) {
            self.queue(event).await;
        }
        Ok(None)
    }
}

impl TaskPoller {
    fn new(id: &Arc<str>, ends: TaskEnds) -> Self {
        let (failures, update_failures, update_due) = (0, 0, None);
        let (id, interval) = (Arc::clone(id), POLL_DEFAULT);
        Self { id, interval, ends, failures, update_failures, unserved: 0, update_due, message: None, shown: None }
    }

    async fn note(&mut self, task: &ExtensionTask, course: &StatelessCall) {
        if let Some(interval) = task.poll_interval {
            self.interval = kept_interval(interval);
        }
        self.ends.note_ttl(task.ttl);
        let shown_message = || task.message.as_deref().and_then(status_text);
        if course.sender.is_watched {
            let shown = (task.status_text.clone(), task.message.clone());
            if self.shown.as_ref() != Some(&shown) {
                let (text, message) = (Cow::Owned(task.status_text.clone()), shown_message());
                self.shown = Some(shown);
                course.queue(ExchangeEvent::Task(UpstreamTaskEvent::Status { text, message })).await;
            }
        }
        if task.message.is_some() && task.message != self.message {
            self.message.clone_from(&task.message);
            if let Some(text) = shown_message() {
                course.queue(ExchangeEvent::Status(text)).await;
            }
        }
    }

    /// Slightly more than the upstream's interval from now, so that polls spread; doubled for each failure (UPC-01).
    fn due(&self) -> Instant {
        let pause = self.backoff(self.failures);
        self.ends.next(Instant::now(), pause + pause / 10 * u32::from(dice()) / u32::from(u8::MAX))
    }

    fn backoff(&self, doublings: u32) -> Duration {
        self.interval.saturating_mul(2_u32.saturating_pow(doublings.min(16))).min(BACKOFF_MAX.max(self.interval))
    }

    /// Counts a failure of a poll or an update, or the end of its failures.
    fn count(&mut self, name: &str, has_failed: bool) {
        let next = |failures: u32| if has_failed { failures.saturating_add(1) } else { 0 };
        if name == method::TASKS_UPDATE {
            // The first repetition is due with the next poll.
            self.update_due = has_failed.then(|| Instant::now() + self.backoff(self.update_failures));
            self.update_failures = next(self.update_failures);
        } else {
            self.failures = next(self.failures);
            self.unserved *= u16::from(has_failed);
        }
    }

    /// `None` if it may pass. An error if the task is unknown or the credential rejected: the outcome is lost.
    async fn request(
        &mut self,
        course: &StatelessCall,
        name: &str,
        params: Payload,
    ) -> Result<Option<Payload>, RequestFailure> {
        let why = match send_request(&course.sender, &DraftRequest::new(name, Some(params))).await {
            Ok(result) => {
                self.count(name, false);
                return Ok(Some(result));
            }
            Err(why) => why,
        };
        let refused = match &why {
            TaskRequestError::Lost(ExchangeError(fault)) if course.sender.outlives_credential(fault) => Some(*fault),
            TaskRequestError::Lost(_) | TaskRequestError::Refused(_) => None,
        };
        let error = if let TaskRequestError::Refused(error) = &why { Some(error) } else { None };
        let is_unserved = name == method::TASKS_GET && error.is_some_and(|error| error.code == METHOD_NOT_FOUND);
        self.unserved += u16::from(is_unserved);
        let is_unknown = error.is_some_and(peer::is_of_an_unknown_task) || self.unserved >= UNSERVED_MAX;
        tracing::debug!(%why, method = name, "a request about an upstream task failed");
        self.count(name, true);
        if course.sender.is_watched {
            self.shown = None;
            course.queue(ExchangeEvent::Task(UpstreamTaskEvent::Unanswered(why))).await;
        }
        let lost = GatewayFault::new(Reason::UpstreamSessionLost, Executed::Unknown);
        refused.or_else(|| is_unknown.then_some(lost)).map_or(Ok(None), |fault| Err(RequestFailure::Lost(fault)))
    }
}

fn kept_interval(named: Duration) -> Duration {
    named.clamp(POLL_MIN, POLL_MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// U59.
    #[tokio::test(start_paused = true)]
    async fn rounds_that_no_client_sees_end_after_eight_in_a_row() {
        let began = Instant::now();
        let mut unseen = UnseenRounds(0);
        for _ in 0..SILENT_ROUNDS_MAX {
            assert!(unseen.pause().await.is_ok());
        }
        assert_eq!(began.elapsed(), SILENT_PAUSE * (2_u32.pow(SILENT_ROUNDS_MAX) - 1));
        assert!(unseen.pause().await.is_err());
    }

    /// UPC-01: within the bounds of tasks of 2025-11-25.
    #[test]
    fn upc_01_an_interval_of_minutes_is_kept_and_failures_do_not_stretch_it() {
        let seconds = Duration::from_secs;
        for (interval, doublings, pause) in
            [(1, 0, 1), (1, 3, 8), (1, 20, 60), (45, 1, 60), (240, 0, 240), (240, 3, 240)]
        {
            let ends = TaskEnds::new(Instant::now(), None);
            let poller = TaskPoller { interval: seconds(interval), ..TaskPoller::new(&Arc::from("t"), ends) };
            assert_eq!(poller.backoff(doublings), seconds(pause), "{interval} s after {doublings}");
        }
        assert_eq!([0, 240, 3_600].map(|named| kept_interval(seconds(named))), [POLL_MIN, seconds(240), seconds(300)]);
    }

    /// Both halves of an upstream are offered a token.
    #[test]
    fn a_token_of_a_task_in_a_session_is_none_of_ours() {
        for open in [vec![], vec![Payload::of("0/a"), Payload::of("0/b")]] {
            assert_eq!(resumed(&token("up", &open)), Some((Arc::from("up"), open)));
        }
        let in_session = json!({ "request": "tg:1", "session": "s-1", "version": null, "task": "up" });
        assert_eq!(resumed(&ResumeToken(Payload::of(&in_session))), None);
    }
}
