//! Follows a call's task at the upstream: polls it, then fetches its outcome (UPC-01). The owner receives the events of
//! an ordinary call. Polls decide; notifications only cause an earlier poll (UPC-02). A `tasks/result` stream is held
//! open during questions, because some servers send them nowhere else (UPC-07).

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::BuildHasher as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::drive::response_reader::RpcResult;
use super::drive::{AnswerWait, HttpCall, last};
use crate::dialect::relay_core_2025_11_25::{self as peer, TaskCallResult, UpstreamTask, UpstreamTaskStatus};
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::{ExchangeError, ExchangeEvent, TaskRequestError, UpstreamTaskEvent};
use crate::waits::or_pending;
use crate::wire::rpc_error::METHOD_NOT_FOUND;
use crate::wire::{Object, Payload, RpcError, method};

/// Consecutive invalid responses before the task is lost.
const MALFORMED_MAX: u16 = 5;
/// How long an existing outcome may take on its open stream.
const HELD_MAX: Duration = Duration::from_secs(5);
/// The poll interval if the upstream names none.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// Bounds on the upstream's interval, against floods of polls and outcomes that are found hours late.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(5 * 60);
/// Shortest time between two polls caused by hints: some upstreams hint at every step.
const HINT_INTERVAL: Duration = Duration::from_millis(250);
const BACKOFF_MIN: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How long a poll keeps its permit.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Subtasks that one poll reports; the next one reports others.
const SUBTASKS_AT_ONCE: usize = 64;
/// How long before the call's deadline its task is polled a last time.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// The stream held open during questions.
type HeldResult<'a> = Option<Pin<Box<dyn Future<Output = Result<RpcResult, GatewayFault>> + Send + 'a>>>;

type TaskPollResult = Result<Result<UpstreamTask, RpcError>, GatewayFault>;

enum TaskFollowEvent {
    Held(Result<RpcResult, GatewayFault>),
    Polled(TaskPollResult),
}

struct TaskFollower<'a> {
    http_call: &'a Arc<HttpCall>,
    id: Arc<str>,
    params: Payload,
    pace: PollSchedule,
    is_hinted: AtomicBool,
    message: Option<Arc<str>>,
    /// The last reported status and message; `None` after a failed poll.
    shown: Option<(Cow<'static, str>, Option<Arc<str>>)>,
    /// Hashes of reported subtasks.
    children: HashSet<u64>,
    /// Consecutive invalid responses to polls, and to requests for the outcome.
    odd_polls: u16,
    odd_outcomes: u16,
    /// `Yes` once the upstream's task has ended.
    executed: Executed,
}

impl HttpCall {
    /// Continues after the response to a call that asked for a task.
    pub(super) async fn maybe_relay(self: &Arc<Self>, answer: RpcResult) -> Result<ExchangeEvent, GatewayFault> {
        match answer.as_ref().map(peer::created) {
            Ok(TaskCallResult::Task(task)) => {
                if self.is_watched
                    && let Some(handle) =
                        answer.ok().as_ref().and_then(Object::of).and_then(|result| result.get("task"))
                {
                    self.call.queue(ExchangeEvent::Task(UpstreamTaskEvent::Made(handle))).await;
                }
                self.relay(Some(task)).await
            }
            Ok(TaskCallResult::Malformed) => Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown)),
            // A server may ignore the request for a task (T-46).
            Ok(TaskCallResult::Plain) | Err(_) => last(answer),
        }
    }

    /// Follows the task to its end; polls it at once without a description `made`.
    pub(super) async fn relay(self: &Arc<Self>, made: Option<UpstreamTask>) -> Result<ExchangeEvent, GatewayFault> {
        if let Some(made) = &made {
            let _ = self.call.task.set(Arc::clone(&made.id));
        }
        let Some(id) = self.call.task.get().cloned() else { return Err(lost(Executed::Unknown)) };
        let params = peer::params_of(&id);
        let pace = PollSchedule::new(self.began, self.deadline);
        TaskFollower {
            http_call: self,
            id,
            params,
            pace,
            is_hinted: AtomicBool::new(false),
            message: None,
            shown: None,
            children: HashSet::new(),
            odd_polls: 0,
            odd_outcomes: 0,
            executed: Executed::Unknown,
        }
        .run(made)
        .await
    }

    /// Best effort, if the upstream supports it (UPC-06).
    pub(super) async fn cancel_task(&self, task: &str) {
        if self.session().tasks.cancel
            && self.request_beside_call(method::TASKS_CANCEL, &peer::params_of(task), AnswerWait::Short).await.is_err()
        {
            self.session().link.dropped("cancel_failed");
        }
    }
}

impl TaskFollower<'_> {
    async fn run(mut self, made: Option<UpstreamTask>) -> Result<ExchangeEvent, GatewayFault> {
        let http_call = self.http_call;
        let result_params = self.params.clone();
        let listen = || http_call.request_beside_call(method::TASKS_RESULT, &result_params, AnswerWait::Endless);
        let mut held: HeldResult<'_> = None;
        let mut status = match made {
            Some(made) => self.record(&made).await,
            None => self.look().await?,
        };
        loop {
            match status {
                Some(UpstreamTaskStatus::Done) => {
                    if let Some(end) = self.fetch(held.take()).await? {
                        return Ok(end);
                    }
                }
                Some(UpstreamTaskStatus::Cancelled) => return Ok(ExchangeEvent::Cancelled),
                Some(UpstreamTaskStatus::Asking) if held.is_none() => held = Some(Box::pin(listen())),
                Some(UpstreamTaskStatus::Working | UpstreamTaskStatus::Asking | UpstreamTaskStatus::Unknown) | None => {
                }
            }
            let news = tokio::select! {
                biased;
                answer = or_pending(held.as_mut()) => TaskFollowEvent::Held(answer),
                polled = self.next_poll() => TaskFollowEvent::Polled(polled),
            };
            status = match news {
                TaskFollowEvent::Held(Ok(Ok(result))) => return Ok(ExchangeEvent::Returned(result)),
                // Either the call's own error, or a `tasks/result` that does not wait (T-45): the next poll decides.
                TaskFollowEvent::Held(Ok(Err(_)) | Err(_)) => {
                    held = None;
                    None
                }
                TaskFollowEvent::Polled(polled) => self.judge(polled).await?,
            };
        }
    }

    async fn look(&mut self) -> Result<Option<UpstreamTaskStatus>, GatewayFault> {
        let polled = self.get().await;
        self.judge(polled).await
    }

    /// Dropped if the held stream ends first: then the hint that caused the poll counts for the next one.
    async fn next_poll(&self) -> TaskPollResult {
        let hinted = async {
            sleep_until(self.pace.last + HINT_INTERVAL).await;
            if !self.is_hinted.load(Ordering::Relaxed) {
                self.http_call.call.hint.notified().await;
                self.is_hinted.store(true, Ordering::Relaxed);
            }
        };
        tokio::select! {
            () = sleep_until(self.pace.next(dice())) => (),
            () = hinted => (),
        }
        let polled = self.get().await;
        self.is_hinted.store(false, Ordering::Relaxed);
        polled
    }

    /// Polls in its own tokio task. The poll may bring events that wait for the client: it then gives its permit up.
    async fn get(&self) -> TaskPollResult {
        let link = Arc::clone(&self.http_call.session().link);
        let (link_of_poll, http_call, params) = (Arc::clone(&link), Arc::clone(self.http_call), self.params.clone());
        let polling = async move {
            let turn = link_of_poll.polls.acquire_again(http_call.source.owner()).await;
            let mut polled = pin!(http_call.request_beside_call(method::TASKS_GET, &params, AnswerWait::Short));
            match timeout(TURN_MAX, polled.as_mut()).await {
                Ok(polled) => polled,
                Err(_) => {
                    drop(turn);
                    polled.await
                }
            }
        };
        let answer = link.in_own_task(polling).await??;
        let malformed = GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown);
        match answer {
            Ok(result) => peer::polled(&result).filter(|task| task.id == self.id).map(Ok).ok_or(malformed),
            Err(error) => Ok(Err(error)),
        }
    }

    /// The polled status; `None` if unknown for now. An error if polling is pointless, as when the upstream has no such task.
    async fn judge(&mut self, polled: TaskPollResult) -> Result<Option<UpstreamTaskStatus>, GatewayFault> {
        match polled {
            Ok(Ok(task)) => Ok(self.record(&task).await),
            Ok(Err(error)) => {
                // A server that no longer has the method may be replaced by one that has it (U99).
                self.odd_polls += u16::from(error.code == METHOD_NOT_FOUND);
                let is_lost = peer::is_about_the_task(&error) || self.odd_polls >= MALFORMED_MAX;
                self.failed(TaskRequestError::Refused(error)).await;
                if is_lost { Err(lost(self.executed)) } else { Ok(None) }
            }
            Err(fault) => {
                self.odd_polls += u16::from(fault.reason == Reason::UpstreamMalformed);
                self.survive(fault, self.odd_polls).await
            }
        }
    }

    async fn record(&mut self, task: &UpstreamTask) -> Option<UpstreamTaskStatus> {
        self.odd_polls = 0;
        if task.status == UpstreamTaskStatus::Done {
            self.executed = Executed::Yes;
        }
        self.pace.note_poll(Instant::now(), task.poll_interval, task.ttl);
        if task.message != self.message {
            self.message.clone_from(&task.message);
            if let Some(message) = &task.message {
                self.http_call.call.queue(ExchangeEvent::Status(Arc::clone(message))).await;
            }
        }
        let is_cut = self.report_children(task).await;
        if self.http_call.is_watched {
            let shown = (task.status_text.clone(), task.message.clone());
            if self.shown.as_ref() != Some(&shown) {
                let (text, message) = shown.clone();
                self.shown = Some(shown);
                self.http_call.call.queue(ExchangeEvent::Task(UpstreamTaskEvent::Status { text, message })).await;
            }
        }
        if task.status == UpstreamTaskStatus::Unknown {
            self.http_call.session().link.dropped("unknown_status");
        }
        if is_cut {
            self.http_call.call.hint.notify_one();
            return None;
        }
        Some(task.status)
    }

    /// Reports new subtasks, not missing ones (SUB-03); whether the next poll reports more of thousands (SUB-19).
    async fn report_children(&mut self, task: &UpstreamTask) -> bool {
        let http_call = self.http_call;
        let hashing = self.children.hasher().clone();
        let children = &mut self.children;
        let room = http_call.subtasks.max().saturating_sub(children.len()).min(SUBTASKS_AT_ONCE);
        let mut fresh = task.children(room, |id| children.insert(hashing.hash_one(id)));
        let named = fresh.len();
        fresh.retain(|id| *id != self.id && !http_call.above.contains(id));
        if fresh.len() < named {
            let session = http_call.session();
            session.link.dropped("subtask_cycle");
            tracing::warn!(upstream = %session.link.name, "a task of the server names itself or a parent as its subtask; the entry is ignored");
        }
        if !fresh.is_empty() {
            http_call.call.queue(ExchangeEvent::Subtasks(fresh)).await;
        }
        named == SUBTASKS_AT_ONCE
    }

    async fn failed(&mut self, why: TaskRequestError) {
        self.pace.failed(Instant::now());
        if self.http_call.is_watched {
            self.shown = None;
            self.http_call.call.queue(ExchangeEvent::Task(UpstreamTaskEvent::Unanswered(why))).await;
        }
    }

    /// Tolerates a failure unless a repetition would fail too; `odd` counts invalid responses. After the end of the
    /// task the fault is returned before the deadline: the deadline's fault would not say that the call was executed (GW-38).
    async fn survive<T>(&mut self, fault: GatewayFault, odd: u16) -> Result<Option<T>, GatewayFault> {
        let fault = GatewayFault { executed: self.executed, ..fault };
        self.failed(TaskRequestError::Lost(ExchangeError(fault))).await;
        // The other reasons may pass before the deadline, or never occur here.
        let is_final = matches!(
            fault.reason,
            Reason::UpstreamAuth
                | Reason::CredentialMissing
                | Reason::CredentialBound
                | Reason::CredentialRefused
                | Reason::ResultTooLarge
                | Reason::InitializeResultTooLarge
        ) || (fault.reason == Reason::UpstreamMalformed && odd >= MALFORMED_MAX)
            || (fault.executed == Executed::Yes && self.pace.is_over());
        if is_final { Err(fault) } else { Ok(None) }
    }

    /// The outcome of an ended task (T-03); `None`: fetch again. An open stream comes first: some return it only once.
    async fn fetch(&mut self, held: HeldResult<'_>) -> Result<Option<ExchangeEvent>, GatewayFault> {
        if let Some(held) = held
            && let Ok(Ok(Ok(result))) = timeout(HELD_MAX, held).await
        {
            return Ok(Some(ExchangeEvent::Returned(result)));
        }
        match self.http_call.request_beside_call(method::TASKS_RESULT, &self.params, AnswerWait::Short).await {
            // The call's own error, or the task is gone, or it has not ended after all (T-45).
            Ok(Err(error)) if peer::is_about_the_task(&error) => match self.look().await? {
                Some(UpstreamTaskStatus::Done) => Ok(Some(ExchangeEvent::Faulted(error))),
                Some(
                    UpstreamTaskStatus::Working
                    | UpstreamTaskStatus::Asking
                    | UpstreamTaskStatus::Cancelled
                    | UpstreamTaskStatus::Unknown,
                )
                | None => Ok(None),
            },
            Ok(answer) => last(answer).map(Some),
            Err(fault) => {
                self.odd_outcomes += u16::from(fault.reason == Reason::UpstreamMalformed);
                self.survive(fault, self.odd_outcomes).await
            }
        }
    }
}

const fn lost(executed: Executed) -> GatewayFault {
    GatewayFault::new(Reason::UpstreamSessionLost, executed)
}

/// The times after which a task's outcome may be lost. Pure.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskEnds {
    /// The call's start, before its task was made.
    began: Instant,
    deadline: Option<Instant>,
    /// When the upstream may remove the task, if before the deadline.
    expires: Option<Instant>,
}

impl TaskEnds {
    pub(super) const fn new(began: Instant, deadline: Option<Instant>) -> Self {
        Self { began, deadline, expires: None }
    }

    /// `ttl` counts from the task's creation.
    pub(super) fn note_ttl(&mut self, ttl: Option<Duration>) {
        let expires = ttl.and_then(|ttl| self.began.checked_add(ttl));
        self.expires = expires.filter(|expires| self.deadline.is_none_or(|deadline| *expires < deadline));
    }

    /// The time of the poll that is due `pause` after the last one: sooner before expiry or the deadline.
    pub(super) fn next(&self, last: Instant, pause: Duration) -> Instant {
        let mut next = last + pause;
        if let Some(left) = self.expires.and_then(|expires| expires.checked_duration_since(last)) {
            next = next.min(last + (left / 2).max(INTERVAL_MIN));
        }
        if let Some(look) = self.deadline.and_then(|deadline| deadline.checked_sub(LAST_LOOK))
            && look > last
        {
            next = next.min(look);
        }
        next
    }
}

/// Schedules the polls of one task. Pure.
#[derive(Debug)]
struct PollSchedule {
    ends: TaskEnds,
    interval: Duration,
    failures: u32,
    last: Instant,
}

impl PollSchedule {
    const fn new(began: Instant, deadline: Option<Instant>) -> Self {
        Self { ends: TaskEnds::new(began, deadline), interval: INTERVAL_DEFAULT, failures: 0, last: began }
    }

    fn note_poll(&mut self, now: Instant, interval: Option<Duration>, ttl: Option<Duration>) {
        self.interval = interval.unwrap_or(INTERVAL_DEFAULT).clamp(INTERVAL_MIN, INTERVAL_MAX);
        self.ends.note_ttl(ttl);
        self.failures = 0;
        self.last = now;
    }

    const fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.last = now;
    }

    /// Whether no poll follows before the deadline.
    fn is_over(&self) -> bool {
        self.ends.deadline.is_some_and(|deadline| self.next(u8::MAX) >= deadline)
    }

    /// The next poll: after the interval and some jitter by `dice` (UPC-01).
    fn next(&self, dice: u8) -> Instant {
        let base = match self.failures {
            0 => self.interval,
            failures => {
                let backoff = self.interval.max(BACKOFF_MIN) * 2_u32.pow(failures.min(16) - 1);
                backoff.min(BACKOFF_MAX.max(self.interval))
            }
        };
        self.ends.next(self.last, base + base / 10 * u32::from(dice) / u32::from(u8::MAX))
    }
}

/// Jitter, so that tasks of one moment are not polled at one moment.
pub(super) fn dice() -> u8 {
    let mut byte = [0];
    // Without randomness all tasks are polled together.
    let _ = getrandom::fill(&mut byte);
    byte[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn pace(deadline: Option<u64>) -> (Instant, PollSchedule) {
        let start = Instant::now();
        (start, PollSchedule::new(start, deadline.map(|deadline| start + s(deadline))))
    }

    #[track_caller]
    fn check(pace: &PollSchedule, dice: u8, from: Instant, expected: Duration) {
        assert_eq!(pace.next(dice).duration_since(from), expected);
    }

    #[test]
    fn upc_01_the_upstreams_interval_is_kept_within_bounds() {
        for (asked, kept) in [
            (None, s(1)),
            (Some(s(5)), s(5)),
            (Some(Duration::ZERO), Duration::from_millis(100)),
            (Some(s(3_600)), s(300)),
        ] {
            let (start, mut pace) = pace(None);
            pace.note_poll(start, asked, None);
            check(&pace, 0, start, kept);
            assert_eq!(pace.next(u8::MAX).duration_since(start), kept + kept / 10, "at most a tenth later");
        }
    }

    #[test]
    fn polls_that_fail_back_off_to_half_a_minute() {
        let (start, mut pace) = pace(None);
        pace.note_poll(start, Some(Duration::from_millis(200)), None);
        let mut waits = Vec::new();
        for _ in 0..40 {
            pace.failed(start);
            waits.push(u64::try_from(pace.next(0).duration_since(start).as_millis()).unwrap());
        }
        assert_eq!(waits[..9], [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        assert_eq!(waits.last(), Some(&30_000));
        pace.note_poll(start, Some(s(60)), None);
        pace.failed(start);
        check(&pace, 0, start, s(60));
    }

    #[test]
    fn a_task_that_the_upstream_will_forget_before_the_deadline_is_polled_faster_near_its_end() {
        let (start, mut pace) = pace(Some(1_800));
        pace.note_poll(start, Some(s(5)), Some(s(60)));
        check(&pace, 0, start, s(5));
        pace.note_poll(start + s(55), Some(s(5)), Some(s(60)));
        check(&pace, 0, start + s(55), Duration::from_millis(2_500));
        pace.note_poll(start + s(59), Some(s(5)), Some(s(60)));
        check(&pace, 0, start + s(59), Duration::from_millis(500));
        pace.note_poll(start + Duration::from_millis(59_999), Some(s(5)), Some(s(60)));
        check(&pace, 0, start + Duration::from_millis(59_999), Duration::from_millis(100));
        // Some count the time to live from the end (T-68): then the task is still there, and there is no hurry.
        pace.note_poll(start + s(61), Some(s(5)), Some(s(60)));
        check(&pace, 0, start + s(61), s(5));
        pace.note_poll(start + s(1_000), Some(s(5)), Some(s(1_800)));
        check(&pace, 0, start + s(1_000), s(5));
    }

    #[test]
    fn the_last_poll_is_a_second_before_the_deadline() {
        let (start, mut pace) = pace(Some(10));
        pace.note_poll(start + s(4), Some(s(60)), None);
        check(&pace, u8::MAX, start, s(9));
        pace.failed(start + s(4));
        check(&pace, 0, start, s(9));
        pace.note_poll(start + s(9), Some(s(60)), None);
        check(&pace, 0, start, s(69));
    }
}
