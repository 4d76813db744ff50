//! Sends one task's questions and status to its client. A question goes out on one stream only (T-32): the newest that
//! waits for the task's result, or after a grace period the session's own. If that stream ends before the answer has
//! arrived, the next one gets the question under a new id. Streams of a session may have callers with different rights:
//! a stream gets no message of a task that its caller may not read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select_all;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::task_subscribers::SubscriberList;
use super::tokens;
use crate::cause::CauseChain;
use crate::dialect::core_2025_11_25::StatusNotice;
use crate::dialect::related_task::RelatedTask;
use crate::engine::TaskError;
use crate::engine::retry_delays::RetryDelays;
use crate::face::session::SessionFaceState;
use crate::task::reference::LoggedTask;
use crate::task::{CallOrigin, Caller, InputKey, Phase, Question, Task, TaskKey};
use crate::waits::at;
use crate::wire::RequestId;

/// A question's longest wait for a stream of `tasks/result` before it uses the session's own (T-32).
const GRACE: Duration = Duration::from_secs(1);
/// The pause before a stream with a slow reader is tried again.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) struct TaskNotifier {
    shared: Arc<SessionFaceState>,
    key: TaskKey,
    subscribers: Arc<SubscriberList>,
    shown: Option<StatusNotice>,
    put: BTreeMap<InputKey, DeliveredQuestion>,
    waiting: BTreeMap<InputKey, UndeliveredQuestion>,
}

struct DeliveredQuestion {
    id: RequestId,
    stream: mpsc::Sender<Bytes>,
}

struct UndeliveredQuestion {
    /// From then on it may use any stream.
    any_from: Instant,
    /// Its id on a stream that has ended.
    old: Option<RequestId>,
}

impl TaskNotifier {
    /// `shown` is the state that the client knows.
    pub(super) fn new(
        shared: Arc<SessionFaceState>,
        key: TaskKey,
        subscribers: Arc<SubscriberList>,
        shown: Option<&Task>,
    ) -> Self {
        let shown = shown.map(|task| shared.tasks.codec().notice(&shared.listed_summary(task)));
        Self { shared, key, subscribers, shown, put: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        if let Ok(mut watcher) = shared.served.engine.watchers().watch(&self.key) {
            let mut pauses = RetryDelays::of_readers();
            loop {
                // A stream that is opened after this is seen below.
                let last = shared.open.streams.last_number();
                let task = match shared.served.engine.load_visible(&self.key).await {
                    Ok(task) => task,
                    Err(TaskError::Unknown) => break,
                    Err(error) => {
                        tracing::debug!(error = %CauseChain(&error), "a notifier could not read its task, and reads it again");
                        pauses.wait().await;
                        continue;
                    }
                };
                pauses = RetryDelays::of_readers();
                let task = shared.as_seen(Arc::clone(&task)).await.unwrap_or(task);
                let due = self.send_due(&task);
                if task.is_settled() {
                    break;
                }
                tokio::select! {
                    () = watcher.changed() => (),
                    () = self.subscribers.bell.notified() => (),
                    () = shared.open.streams.opened_after(self.subscribers.nonce(), last), if !self.waiting.is_empty() => (),
                    () = ended(&self.put) => (),
                    () = at(due) => (),
                }
            }
        } else {
            tracing::warn!(task = %LoggedTask(&self.key), "a task has too many watchers: its questions are not sent to this client");
        }
        shared.tasks.subscribers.close(&self.key, &self.subscribers);
    }

    /// Sends all due messages; returns the time of the next attempt, if one is needed.
    fn send_due(&mut self, task: &Task) -> Option<Instant> {
        let none = BTreeMap::new();
        let open = match &task.phase {
            Phase::AwaitingInput(open) => open,
            Phase::Queued | Phase::Working | Phase::Settled(_) => &none,
        };
        let related = self.shared.tasks.codec().related(task);
        self.subscribers.relate_to(&related);
        self.withdraw(open, &related);
        self.send_status(task);
        open.iter().filter_map(|(key, question)| self.ask(*key, question, &related, &task.origin)).min()
    }

    /// Withdraws questions that need no answer any more, except answered ones.
    fn withdraw(&mut self, open: &BTreeMap<InputKey, Question>, related: &RelatedTask) {
        self.waiting.retain(|key, _| open.contains_key(key));
        let subscribers = &self.subscribers;
        self.put.retain(|key, put| {
            let is_open = open.contains_key(key);
            if !is_open && !subscribers.take_answer(*key) {
                let _ = put.stream.try_send(related.withdrawn(&put.id));
            }
            is_open
        });
    }

    /// Sends a changed status to the session (L25-32). Clients that chose the task's id do not know this message.
    fn send_status(&mut self, task: &Task) {
        if task.chosen.is_some() {
            return;
        }
        let codec = self.shared.tasks.codec();
        let summary = self.shared.listed_summary(task);
        let notice = codec.notice(&summary);
        let is_news = self.shown.as_ref().is_some_and(|shown| *shown != notice);
        if is_news
            && let Some(stream) = self.shared.open.streams.newest(self.subscribers.nonce(), self.may_have(&task.origin))
        {
            let _ = stream.try_send(codec.status_notification(&summary));
        }
        self.shown = Some(notice);
    }

    /// Whether a stream's caller may have messages of the task.
    fn may_have(&self, origin: &CallOrigin) -> impl Fn(&Caller) -> bool {
        move |caller| self.shared.served.engine.may_read(caller, origin)
    }

    /// Does nothing if the question is on an open stream.
    fn ask(
        &mut self,
        key: InputKey,
        question: &Question,
        related: &RelatedTask,
        origin: &CallOrigin,
    ) -> Option<Instant> {
        let now = Instant::now();
        let old = match self.put.get(&key) {
            Some(put) if !put.stream.is_closed() => return None,
            Some(_) => self.put.remove(&key).map(|put| put.id),
            None => None,
        };
        let fresh = UndeliveredQuestion { any_from: now + GRACE, old };
        let any_from = self.waiting.entry(key).or_insert(fresh).any_from;
        let own = || self.shared.open.streams.newest(self.subscribers.nonce(), self.may_have(origin));
        let own = || own().filter(|_| now >= any_from);
        let Some(stream) = self.subscribers.newest_result(self.may_have(origin)).or_else(own) else {
            return Some(any_from).filter(|any_from| *any_from > now);
        };
        let id = tokens::question_id(&self.shared.served.sealer, self.key.id, key);
        let Some(message) = related.question(key, question, &id) else {
            tracing::warn!(task = %LoggedTask(&self.key), "the client cannot be asked; the question stays open until the task ends");
            return None;
        };
        let old = self.waiting.get(&key).and_then(|waiting| waiting.old.clone());
        let Ok(mut room) = stream.try_reserve_many(1 + usize::from(old.is_some())) else {
            return Some(now + AGAIN);
        };
        let withdrawn = old.as_ref().map(|old| related.withdrawn(old));
        let share = self.shared.served.engine.limits().answers_to(&self.key.owner);
        for (permit, message) in room.by_ref().zip(withdrawn.into_iter().chain([share.rehold(message)])) {
            permit.send(message);
        }
        drop(room);
        self.waiting.remove(&key);
        self.put.insert(key, DeliveredQuestion { id, stream });
        None
    }
}

/// Returns once a stream with a question on it has ended.
async fn ended(put: &BTreeMap<InputKey, DeliveredQuestion>) {
    if put.is_empty() {
        return std::future::pending().await;
    }
    select_all(put.values().map(|put| Box::pin(put.stream.closed()))).await;
}
