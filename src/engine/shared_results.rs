//! Shares a stored result's buffer among its responses, and charges it to the owner once.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::Engine;
use super::call::CallSpec;
use crate::answer_budget::{AnswerPermit, AnswerShare};
use crate::cause::CauseChain;
use crate::shared_limits::SharedLimits;
use crate::task::reference::LoggedTask;
use crate::task::{Executed, GatewayFault, Outcome, Phase, Plan, Principal, Reason, Task, TaskKey, Timestamp};
use crate::wire::{JsonPieces, Payload};

/// How long a poll waits for room for its result: shorter than any client waits for a response.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct SharedResults {
    limits: SharedLimits,
    /// By creation, too: an id may be used again. Bounded by the bytes of all responses, since each result is large.
    shown: Mutex<HashMap<(TaskKey, Timestamp), Weak<Bytes>>>,
}

struct SharedText(Arc<Bytes>);

impl AsRef<[u8]> for SharedText {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl SharedResults {
    pub(super) fn new(limits: SharedLimits) -> Self {
        Self { limits, shown: Mutex::default() }
    }

    /// The buffer of a task's result that other responses use, or a new one if `new` has room for it.
    fn text(&self, task: &Task, bytes: usize, new: impl FnOnce() -> Option<Bytes>) -> Option<Bytes> {
        let result = (task.key.clone(), task.created_at);
        let mut shown = self.shown.lock();
        if let Some(text) = shown.get(&result).and_then(Weak::upgrade).filter(|text| text.len() == bytes) {
            return Some(Bytes::from_owner(SharedText(text)));
        }
        let text = Arc::new(new()?);
        shown.retain(|_, text| text.strong_count() > 0);
        shown.insert(result, Arc::downgrade(&text));
        Some(Bytes::from_owner(SharedText(text)))
    }
}

fn large_result(task: &Task) -> Option<LargeResult<'_>> {
    let Some(Outcome::Returned { result, is_error }) = task.outcome() else { return None };
    (result.len() >= JsonPieces::SHARED_MIN).then_some(LargeResult { result, is_error: *is_error })
}

struct LargeResult<'a> {
    result: &'a Payload,
    is_error: bool,
}

impl LargeResult<'_> {
    fn in_buffer(&self, text: Bytes) -> Phase {
        let result = self.result.clone().held_by(|_| text);
        Phase::Settled(Outcome::Returned { result, is_error: self.is_error })
    }
}

impl Engine {
    /// Puts a task's large result into the one buffer of all responses. Without room, drops it until there is room, and
    /// rereads it. Fails with `TooMuchUnread` or `AnswersFull` after 20 s, `StoreFailed` if unreadable. Cancel safe.
    pub async fn share(self: &Arc<Self>, task: Arc<Task>) -> Result<Arc<Task>, GatewayFault> {
        let Some(large) = large_result(&task) else { return Ok(task) };
        let own = || self.limits().answers_to(&task.key.owner).hold_now(large.result.bytes().clone());
        match self.results.text(&task, large.result.len(), own) {
            Some(text) => Ok(Arc::new(Task { phase: large.in_buffer(text), ..Task::clone(&task) })),
            // Boxed: few results wait, and each poll has this future.
            None => Box::pin(self.share_with_room(task)).await,
        }
    }

    /// As [`Engine::share`], for the answer to the call itself, which has run.
    pub async fn share_outcome(self: &Arc<Self>, task: Arc<Task>) -> Result<Arc<Task>, GatewayFault> {
        self.share(task).await.map_err(|fault| GatewayFault { executed: Executed::Yes, ..fault })
    }

    async fn share_with_room(self: &Arc<Self>, task: Arc<Task>) -> Result<Arc<Task>, GatewayFault> {
        let (key, bytes) = (task.key.clone(), large_result(&task).map_or(0, |large| large.result.len()));
        let shown = Task { phase: Phase::Working, ..Task::clone(&task) };
        drop(task);
        let share = self.limits().answers_to(&key.owner).in_store(ROOM_WAIT_MAX);
        let mut permit = AnswerPermit::default();
        share.grow(&mut permit, bytes).await.map_err(|fault| GatewayFault::new(fault.reason, Executed::No))?;
        let read = self.load_any(&key).await.map_err(|error| {
            tracing::warn!(task = %LoggedTask(&key), error = %CauseChain(&error), "a result could not be read");
            GatewayFault::new(error.reason(), Executed::No)
        })?;
        if read.created_at != shown.created_at {
            return Err(GatewayFault::new(Reason::StoreFailed, Executed::No));
        }
        // A settled result never changes.
        let Some(large) = large_result(&read) else { return Ok(read) };
        let text = self.results.text(&read, bytes, || Some(permit.attach(large.result.bytes().clone())));
        let phase = text.map_or_else(|| read.phase.clone(), |text| large.in_buffer(text));
        Ok(Arc::new(Task { phase, ..shown }))
    }

    /// Charges a response to its principal if it is large and shares no buffer. Fails as [`Engine::share`].
    pub fn within_budget(&self, principal: &Principal, answer: JsonPieces) -> Result<JsonPieces, GatewayFault> {
        match answer {
            JsonPieces::Whole(text) if text.len() >= JsonPieces::SHARED_MIN => {
                let held = self.results.limits.answers_to(principal).hold(text.bytes().clone())?;
                Ok(text.held_by(|_| held).into())
            }
            answer @ (JsonPieces::Whole(_) | JsonPieces::Text(_) | JsonPieces::Pieces(_)) => Ok(answer),
        }
    }

    /// The call's share of its owner's answer bytes. A response with a stored outcome waits as long as the call may run.
    pub(super) fn share_of(&self, call: &CallSpec) -> AnswerShare {
        // A split call holds the responses of its elements until all have ended.
        let share = self.limits().answers_to(&call.owner).of_one_request();
        if call.plan == Plan::Direct { share } else { share.until_deadline() }
    }

    pub const fn limits(&self) -> &SharedLimits {
        &self.results.limits
    }
}
