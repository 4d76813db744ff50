//! Keeps the subscribers of each unsettled task, and the requests that became tasks.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::dialect::related_task::RelatedTask;
use crate::engine::change_subscribers::WAITERS_MAX;
use crate::face::call_stream::progress::MonotonicProgress;
use crate::face::session::session_streams::{MESSAGES_MAX, SessionStreams, StreamSender, newest};
use crate::task::{Caller, InputKey, TaskKey};
use crate::wire::RequestId;

#[derive(Debug, Default)]
pub(super) struct TaskSubscribers {
    by_task: Mutex<HashMap<TaskKey, Arc<SubscriberList>>>,
}

/// The subscribers of one task. Closed when its notifier ends.
#[derive(Debug)]
pub(super) struct SubscriberList {
    state: Mutex<TaskSubscriberState>,
    /// Notified when a request begins or stops waiting.
    pub(super) bell: Notify,
}

#[derive(Debug)]
struct TaskSubscriberState {
    /// The session that last referred to the task.
    nonce: u128,
    /// Oldest first; requests without messages are only counted.
    results: Vec<StreamSender>,
    quiet: Vec<StreamSender>,
    next: u64,
    /// The call's request, which can be cancelled while the task runs.
    request: Option<Arc<TaskRequestEntry>>,
    /// Questions that a client has answered, but that are still open in the task.
    answered: BTreeSet<InputKey>,
    related: Option<RelatedTask>,
    rising: Option<SharedProgress>,
    /// Whether progress is no longer sent (L25-47).
    is_muted: bool,
    is_closed: bool,
}

pub(super) type SharedProgress = Arc<Mutex<MonotonicProgress>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultStreamError {
    /// Read the task again.
    Closed,
    TooMany,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultStreamKind {
    Messages,
    OutcomeAlone,
}

#[derive(Debug)]
pub(super) struct ResultSubscriber {
    messages: mpsc::Receiver<Bytes>,
    number: u64,
    subscribers: Arc<SubscriberList>,
}

impl TaskSubscribers {
    pub(super) fn get(&self, key: &TaskKey) -> Option<Arc<SubscriberList>> {
        self.by_task.lock().get(key).cloned()
    }

    /// Drops later progress of the upstream (L25-47).
    pub(super) fn mute(&self, key: &TaskKey) {
        self.get(key).iter().for_each(|subscribers| subscribers.state.lock().is_muted = true);
    }

    /// Sets the nonce of the task's session; returns `true` for a new list, which needs a notifier.
    pub(super) fn open(&self, key: &TaskKey, nonce: u128) -> (Arc<SubscriberList>, bool) {
        let mut by_task = self.by_task.lock();
        if let Some(subscribers) = by_task.get(key) {
            subscribers.state.lock().nonce = nonce;
            return (Arc::clone(subscribers), false);
        }
        let subscribers = Arc::new(SubscriberList::new(nonce));
        by_task.insert(key.clone(), Arc::clone(&subscribers));
        (subscribers, true)
    }

    /// Releases all waiting requests (L25-67).
    pub(super) fn close(&self, key: &TaskKey, subscribers: &Arc<SubscriberList>) {
        let mut by_task = self.by_task.lock();
        if by_task.get(key).is_some_and(|other| Arc::ptr_eq(other, subscribers)) {
            by_task.remove(key);
        }
        let mut state = subscribers.state.lock();
        state.is_closed = true;
        state.results.clear();
        state.quiet.clear();
        state.request = None;
    }
}

impl SubscriberList {
    const fn new(nonce: u128) -> Self {
        let state = TaskSubscriberState {
            nonce,
            results: Vec::new(),
            quiet: Vec::new(),
            next: 0,
            request: None,
            answered: BTreeSet::new(),
            related: None,
            rising: None,
            is_muted: false,
            is_closed: false,
        };
        Self { state: Mutex::new(state), bell: Notify::const_new() }
    }

    pub(super) fn nonce(&self) -> u128 {
        self.state.lock().nonce
    }

    pub(super) fn listen(
        self: &Arc<Self>,
        kind: ResultStreamKind,
        caller: &Caller,
    ) -> Result<ResultSubscriber, ResultStreamError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(ResultStreamError::Closed);
        }
        if state.results.len() + state.quiet.len() >= WAITERS_MAX {
            return Err(ResultStreamError::TooMany);
        }
        let (sender, messages) = mpsc::channel(MESSAGES_MAX);
        let number = state.next;
        state.next += 1;
        let stream = StreamSender { number, sender, caller: caller.clone() };
        match kind {
            ResultStreamKind::Messages => state.results.push(stream),
            ResultStreamKind::OutcomeAlone => state.quiet.push(stream),
        }
        self.bell.notify_one();
        Ok(ResultSubscriber { messages, number, subscribers: Arc::clone(self) })
    }

    /// The newest stream of `tasks/result` (T-33) whose caller may have a message.
    pub(super) fn newest_result(&self, may_have: impl Fn(&Caller) -> bool) -> Option<mpsc::Sender<Bytes>> {
        newest(&self.state.lock().results, may_have).map(|stream| stream.sender.clone())
    }

    /// Sends a message that may be missed, on one stream (LEG-08) whose caller may have it.
    pub(super) fn mention(&self, streams: &SessionStreams, may_have: impl Fn(&Caller) -> bool, message: Bytes) {
        if !self.state.lock().is_muted
            && let Some(stream) = self.newest_result(&may_have).or_else(|| streams.newest(self.nonce(), &may_have))
        {
            // A slow reader misses notifications, never questions.
            let _ = stream.try_send(message);
        }
    }

    pub(super) fn wants_progress(&self, rising: Option<SharedProgress>) {
        self.state.lock().rising = rising;
    }

    /// `None` until the notifier has read the task.
    pub(super) fn related(&self) -> Option<RelatedTask> {
        self.state.lock().related.clone()
    }

    pub(super) fn relate_to(&self, related: &RelatedTask) {
        self.state.lock().related.get_or_insert_with(|| related.clone());
    }

    /// Keeps the call's request until the list is closed, so that it can be cancelled.
    pub(super) fn answers(&self, request: Arc<TaskRequestEntry>) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.request = Some(request);
        }
    }

    /// An answered question is not withdrawn.
    pub(super) fn note_answer(&self, key: InputKey) {
        self.state.lock().answered.insert(key);
    }

    /// Whether a client has answered a question that is no longer open.
    pub(super) fn take_answer(&self, key: InputKey) -> bool {
        self.state.lock().answered.remove(&key)
    }
}

impl ResultSubscriber {
    /// `None` once the list is closed. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        self.messages.recv().await
    }

    /// `None` if another stream sends the progress (LEG-08), or the task was cancelled.
    pub(super) fn rising(&self) -> Option<SharedProgress> {
        let state = self.subscribers.state.lock();
        let newest = newest(&state.results, |_| true)?;
        if state.is_muted || newest.number != self.number { None } else { state.rising.clone() }
    }
}

impl Drop for ResultSubscriber {
    fn drop(&mut self) {
        // Closed first: a search for a stream must not find this one.
        self.messages.close();
        let mut state = self.subscribers.state.lock();
        state.results.retain(|tap| tap.number != self.number);
        state.quiet.retain(|tap| tap.number != self.number);
        drop(state);
        self.subscribers.bell.notify_one();
    }
}

type SessionRequest = (u128, RequestId);

/// Finds the requests that `notifications/cancelled` names: calls with chosen ids (D86-18), waits for outcomes (LEG-14).
#[derive(Debug, Default)]
pub(super) struct TaskRequests {
    /// The newest request under an id, which a client may not reuse concurrently.
    by_id: Mutex<HashMap<SessionRequest, Arc<RequestState>>>,
}

#[derive(Debug, Default)]
struct RequestState {
    task: Mutex<Option<TaskKey>>,
    withdrawn: CancellationToken,
}

#[derive(Debug)]
pub(super) struct TaskRequestEntry {
    requests: Arc<TaskRequests>,
    request: SessionRequest,
    state: Arc<RequestState>,
}

impl TaskRequests {
    pub(super) fn enter(self: &Arc<Self>, nonce: u128, id: &RequestId) -> TaskRequestEntry {
        let (request, state) = ((nonce, id.clone()), Arc::default());
        self.by_id.lock().insert(request.clone(), Arc::clone(&state));
        TaskRequestEntry { requests: Arc::clone(self), request, state }
    }

    pub(super) fn knows(&self, nonce: u128, id: &RequestId) -> bool {
        self.by_id.lock().contains_key(&(nonce, id.clone()))
    }

    /// Returns the task to cancel, if there is one yet.
    pub(super) fn withdraw(&self, nonce: u128, id: &RequestId) -> Option<TaskKey> {
        let state = self.by_id.lock().get(&(nonce, id.clone())).cloned()?;
        let task = state.task.lock();
        state.withdrawn.cancel();
        task.clone()
    }
}

impl TaskRequestEntry {
    /// Returns true if the request was cancelled before.
    pub(super) fn became(&self, task: &TaskKey) -> bool {
        let mut called = self.state.task.lock();
        *called = Some(task.clone());
        self.state.withdrawn.is_cancelled()
    }

    pub(super) fn withdrawn(&self) -> &CancellationToken {
        &self.state.withdrawn
    }
}

impl Drop for TaskRequestEntry {
    fn drop(&mut self) {
        let mut by_id = self.requests.by_id.lock();
        if by_id.get(&self.request).is_some_and(|state| Arc::ptr_eq(state, &self.state)) {
            by_id.remove(&self.request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Principal, TaskId};

    #[test]
    fn a_request_is_taken_back_in_its_own_session_before_or_after_it_became_a_task() {
        let requests = Arc::<TaskRequests>::default();
        let (id, key) = (RequestId::number(1), TaskKey { owner: Principal::local(), id: TaskId::from_bits(1) });
        let [early, late] = [1, 2].map(|nonce| requests.enter(nonce, &id));
        assert_eq!(requests.withdraw(1, &id), None, "there is no task yet");
        assert!(early.became(&key), "and there is to be none");
        assert!(!late.became(&key) && !late.withdrawn().is_cancelled());
        assert_eq!(requests.withdraw(2, &id), Some(key));
        assert!(late.withdrawn().is_cancelled());
        let newest = requests.enter(2, &id);
        drop(late);
        assert!(requests.knows(2, &id), "the older one took only its own entry along");
        drop((early, newest));
        assert!(requests.by_id.lock().is_empty());
    }
}
