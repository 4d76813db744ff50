//! Tracks the calls of one upstream session, and each call's open questions. Does no I/O.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, SetOnce, mpsc};

use crate::upstream::ExchangeEvent;
use crate::upstream::reply::ReadLimits;
use crate::wire::{Payload, RequestId};

/// A full queue blocks the call's own stream; events of the session's stream are refused instead.
const EVENTS_MAX: usize = 64;
/// Most open questions of one call, and most in all (U29).
const OPEN_MAX: usize = 32;
const ASKED_MAX: usize = 1_000;

#[derive(Debug)]
pub(crate) struct SessionCall {
    /// Serves as the progress token too.
    pub(crate) id: RequestId,
    /// The task that the upstream made of the call, which its questions may name.
    pub(crate) task: SetOnce<Arc<str>>,
    /// Whether the call was sent so that the upstream may make a task of it.
    pub(crate) may_be_task: bool,
    /// The upstream notified that the task changed: only a hint (UPC-02).
    pub(crate) hint: Notify,
    pub(crate) limits: ReadLimits,
    /// The queue holds pointers: it has dozens of slots, and most calls send no event.
    events: mpsc::Sender<Box<ExchangeEvent>>,
    /// Events that were queued, and those about to be: for a moment, more than there are.
    queued: AtomicU64,
    received: Notify,
    questions: Mutex<AskedQuestions>,
}

#[derive(Debug, Default)]
struct AskedQuestions {
    /// By the upstream's id. Closed ones stay, so that a replay is not asked again.
    asked: HashMap<Payload, QuestionState>,
    open: usize,
    /// The tasks that open ones named as their cause, which their answers name too.
    related: HashMap<Payload, Arc<str>>,
}

#[derive(Clone, Copy, Debug)]
struct QuestionState {
    /// Whether the upstream waits for an answer.
    is_open: bool,
    /// Whether the call's owner sees it as open: questions and withdrawals wait in the queue first.
    is_shown: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum UpstreamTaskState {
    Never,
    Asked,
    /// The upstream made this task of the call for another process.
    Made(Arc<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskRefusal {
    /// The question was asked before: each message counts once (UPC-24).
    Again,
    TooMany,
}

impl SessionCall {
    pub(crate) fn new(
        id: RequestId,
        native: UpstreamTaskState,
        limits: ReadLimits,
    ) -> (Arc<Self>, mpsc::Receiver<Box<ExchangeEvent>>) {
        let (events, queue) = mpsc::channel(EVENTS_MAX);
        let may_be_task = matches!(native, UpstreamTaskState::Asked);
        let task = match native {
            UpstreamTaskState::Made(task) => SetOnce::new_with(Some(task)),
            UpstreamTaskState::Asked | UpstreamTaskState::Never => SetOnce::new(),
        };
        let (hint, queued, received, questions) = (Notify::new(), AtomicU64::new(0), Notify::new(), Mutex::default());
        (Arc::new(Self { id, task, may_be_task, hint, limits, events, queued, received, questions }), queue)
    }

    /// Queues an event, waiting for room: a large one until the queue is empty. Without a receiver it is dropped.
    pub(crate) async fn queue(&self, event: ExchangeEvent) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        if event.is_large() {
            // Boxed: few events are large.
            Box::pin(self.emptied()).await;
        }
        let _ = self.events.send(Box::new(event)).await;
    }

    /// Waits until the owner has received all events. Reserves no room, which events of the session's stream need.
    async fn emptied(&self) {
        let mut received = pin!(self.received.notified());
        while self.events.capacity() < EVENTS_MAX {
            received.as_mut().await;
            received.set(self.received.notified());
        }
    }

    pub(crate) fn try_queue(&self, event: ExchangeEvent) -> bool {
        self.queued.fetch_add(1, Ordering::Relaxed);
        let is_queued = self.events.try_send(Box::new(event)).is_ok();
        if !is_queued {
            self.queued.fetch_sub(1, Ordering::Relaxed);
        }
        is_queued
    }

    /// The number of events queued so far. Never too low: another may be on its way into the queue just now.
    pub(crate) fn queued(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    pub(crate) fn open_question(&self, id: &RequestId) -> Result<(), AskRefusal> {
        let mut questions = self.questions.lock();
        if questions.asked.contains_key(&id.payload()) {
            return Err(AskRefusal::Again);
        }
        if questions.open >= OPEN_MAX || questions.asked.len() >= ASKED_MAX {
            return Err(AskRefusal::TooMany);
        }
        questions.asked.insert(id.payload(), QuestionState { is_open: true, is_shown: false });
        questions.open += 1;
        Ok(())
    }

    /// Adopts an open question of an earlier process: it was within the limits when it was asked.
    pub(crate) fn adopt_question(&self, id: &RequestId) {
        let mut questions = self.questions.lock();
        let known = questions.asked.insert(id.payload(), QuestionState { is_open: true, is_shown: true });
        questions.open += usize::from(known.is_none());
    }

    pub(crate) fn received(&self, event: &ExchangeEvent) {
        self.received.notify_waiters();
        let (ExchangeEvent::Asked { ask, .. } | ExchangeEvent::Withdrawn { ask }) = event else { return };
        if let Some(question) = self.questions.lock().asked.get_mut(ask) {
            question.is_shown = matches!(event, ExchangeEvent::Asked { .. });
        }
    }

    pub(crate) fn relate(&self, ask: &Payload, task: Arc<str>) {
        self.questions.lock().related.insert(ask.clone(), task);
    }

    pub(crate) fn related(&self, ask: &Payload) -> Option<Arc<str>> {
        self.questions.lock().related.get(ask).cloned()
    }

    pub(crate) fn is_open(&self, ask: &Payload) -> bool {
        self.questions.lock().asked.get(ask).is_some_and(|question| question.is_open)
    }

    /// Closes a question that its owner has answered, or never receives.
    pub(crate) fn close(&self, ask: &Payload) {
        let mut questions = self.questions.lock();
        questions.end(ask);
        if let Some(question) = questions.asked.get_mut(ask) {
            question.is_shown = false;
        }
    }

    /// Withdraws a question for the upstream, before the call's owner knows; returns whether it was open.
    pub(crate) fn withdraw(&self, ask: &Payload) -> bool {
        self.questions.lock().end(ask)
    }

    /// Questions that the owner sees as open, sorted: later processes get the others again on the call's own stream.
    pub(crate) fn shown(&self) -> Vec<Payload> {
        let questions = self.questions.lock();
        let shown = questions.asked.iter().filter(|(_, question)| question.is_shown);
        let mut shown: Vec<_> = shown.map(|(ask, _)| ask.clone()).collect();
        shown.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        shown
    }

    /// Drops all questions, for a session in which the upstream restarts its ids; returns the open ones.
    pub(crate) fn take_open_questions(&self) -> Vec<Payload> {
        let asked = std::mem::take(&mut *self.questions.lock()).asked;
        asked.into_iter().filter(|(_, question)| question.is_open).map(|(ask, _)| ask).collect()
    }
}

impl AskedQuestions {
    /// Records that the upstream no longer waits for a question; returns whether it did.
    fn end(&mut self, ask: &Payload) -> bool {
        self.related.remove(ask);
        let was_open = self.asked.get_mut(ask).is_some_and(|question| std::mem::replace(&mut question.is_open, false));
        self.open -= usize::from(was_open);
        was_open
    }
}

#[derive(Debug, Default)]
pub(crate) struct SessionCalls(Mutex<HashMap<RequestId, Arc<SessionCall>>>);

impl SessionCalls {
    pub(crate) fn enter(&self, call: &Arc<SessionCall>) {
        self.0.lock().insert(call.id.clone(), Arc::clone(call));
    }

    pub(crate) fn leave(&self, call: &SessionCall) {
        self.0.lock().remove(&call.id);
    }

    pub(crate) fn by_token(&self, token: &RequestId) -> Option<Arc<SessionCall>> {
        self.0.lock().get(token).cloned()
    }

    /// The call of an upstream task. An unknown task may be the only call's, if that call still waits for its task.
    pub(crate) fn by_task(&self, task: &str) -> Option<Arc<SessionCall>> {
        let known = self.0.lock().values().find(|call| call.task.get().is_some_and(|own| **own == *task)).cloned();
        known.or_else(|| self.only().filter(|call| call.may_be_task && !call.task.initialized()))
    }

    pub(crate) fn by_question(&self, ask: &Payload) -> Option<Arc<SessionCall>> {
        self.0.lock().values().find(|call| call.is_open(ask)).cloned()
    }

    /// The only call, if there is exactly one (T-20).
    pub(crate) fn only(&self) -> Option<Arc<SessionCall>> {
        let calls = self.0.lock();
        let mut running = calls.values();
        running.next().filter(|_| running.len() == 0).cloned()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::answer_budget::FREE_BYTES;

    fn call(id: &str) -> Arc<SessionCall> {
        SessionCall::new(RequestId::text(id), UpstreamTaskState::Never, ReadLimits::of_bytes(0)).0
    }

    #[test]
    fn a_call_has_at_most_32_questions_open_and_1000_in_all() {
        let call = call("tg:1");
        for n in 0..1_000 {
            let id = RequestId::number(n);
            assert_eq!(call.open_question(&id), Ok(()), "question {n}");
            if n >= 31 {
                assert!(call.withdraw(&RequestId::number(n - 31).payload()), "question {} was open", n - 31);
            }
        }
        assert_eq!(call.open_question(&RequestId::number(1_000)), Err(AskRefusal::TooMany), "U29");
    }

    /// B190: one call may exceed the answer budget.
    #[tokio::test]
    async fn b190_a_large_message_waits_until_the_queue_is_empty() {
        let (call, mut queue) =
            SessionCall::new(RequestId::text("tg:1"), UpstreamTaskState::Never, ReadLimits::of_bytes(0));
        let log = |bytes| ExchangeEvent::Notification((Arc::from("log"), Some(Payload::text(&"x".repeat(bytes)))));
        call.queue(log(2 * FREE_BYTES)).await;
        call.queue(log(1)).await;
        let mut second = pin!(call.queue(log(2 * FREE_BYTES)));
        assert!(second.as_mut().now_or_never().is_none());
        assert!(call.try_queue(log(1)), "an event of the session's stream finds room");
        for _ in 0..3 {
            assert!(second.as_mut().now_or_never().is_none());
            call.received(&queue.recv().await.unwrap());
        }
        second.await;
        assert!(queue.recv().await.unwrap().is_large());
    }

    /// U29, UPC-24: a replay does not count.
    #[test]
    fn the_33rd_open_question_is_refused_until_one_is_answered() {
        let call = call("tg:1");
        for n in 0..32 {
            assert_eq!(call.open_question(&RequestId::number(n)), Ok(()));
        }
        assert_eq!(call.open_question(&RequestId::number(32)), Err(AskRefusal::TooMany), "U29");
        assert_eq!(
            call.open_question(&RequestId::number(0)),
            Err(AskRefusal::Again),
            "a replay is told from a new question"
        );
        assert!(call.withdraw(&RequestId::number(0).payload()));
        assert!(!call.withdraw(&RequestId::number(0).payload()), "closed once");
        assert_eq!(call.open_question(&RequestId::number(32)), Ok(()));
        assert_eq!(
            call.open_question(&RequestId::number(0)),
            Err(AskRefusal::Again),
            "an answered question is not asked again"
        );
    }

    #[test]
    fn a_message_without_a_name_belongs_to_the_only_call() {
        let calls = SessionCalls::default();
        let (first, second) = (call("tg:1"), call("tg:2"));
        assert!(calls.only().is_none());
        calls.enter(&first);
        assert_eq!(calls.only().map(|call| call.id.clone()), Some(first.id.clone()), "T-20");
        calls.enter(&second);
        assert!(calls.only().is_none(), "with two it belongs to no call");
        calls.leave(&first);
        assert_eq!(calls.only().map(|call| call.id.clone()), Some(second.id.clone()));
        assert_eq!(calls.count(), 1);
    }

    #[test]
    fn a_message_that_names_a_task_goes_to_no_other_tasks_call() {
        let call_of = |id, native| SessionCall::new(RequestId::text(id), native, ReadLimits::of_bytes(0)).0;
        let calls = SessionCalls::default();
        let waiting = call_of("tg:1", UpstreamTaskState::Asked);
        calls.enter(&waiting);
        assert_eq!(
            calls.by_task("u-1").map(|call| call.id.clone()),
            Some(waiting.id.clone()),
            "its handle is on the way"
        );
        waiting.task.set(Arc::from("u-1")).unwrap();
        assert!(calls.by_task("u-2").is_none(), "T-20: a released task asks no other call's client");
        let other = call_of("tg:2", UpstreamTaskState::Made(Arc::from("u-2")));
        calls.enter(&other);
        assert_eq!(calls.by_task("u-2").map(|call| call.id.clone()), Some(other.id.clone()));
        calls.enter(&call_of("tg:3", UpstreamTaskState::Asked));
        assert!(calls.by_task("u-3").is_none(), "with several calls its call is unknown");
        calls.leave(&waiting);
        calls.leave(&other);
        calls.enter(&call("tg:3"));
        assert!(calls.by_task("u-3").is_none(), "a plain call has no task");
    }

    #[test]
    fn a_new_session_counts_its_questions_anew() {
        let call = call("tg:1");
        for n in 0..2 {
            assert_eq!(call.open_question(&RequestId::number(n)), Ok(()));
        }
        call.close(&RequestId::number(0).payload());
        assert_eq!(call.take_open_questions(), [RequestId::number(1).payload().clone()], "the open questions");
        assert_eq!(call.open_question(&RequestId::number(0)), Ok(()), "the same id is another question now");
        assert!(!call.is_open(&RequestId::number(1).payload()));
    }
}
