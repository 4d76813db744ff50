//! Shares a stored result's buffer among its responses, and charges it to the owner once.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use super::Engine;
use super::call::CallSpec;
use crate::answer_budget::AnswerShare;
use crate::shared_limits::SharedLimits;
use crate::task::{GatewayFault, Outcome, Phase, Plan, Principal, Task, TaskKey};
use crate::wire::{JsonPieces, Payload};

#[derive(Debug)]
pub(super) struct SharedResults {
    limits: SharedLimits,
    /// As many as the bytes of all responses allow, since each is large.
    shown: Mutex<HashMap<TaskKey, Weak<Bytes>>>,
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

    /// The buffer of a settled task's result that other responses use, or a new one.
    fn text(&self, key: &TaskKey, result: &Payload) -> Result<Bytes, GatewayFault> {
        let mut shown = self.shown.lock();
        if let Some(text) = shown.get(key).and_then(Weak::upgrade).filter(|text| text.len() == result.len()) {
            return Ok(Bytes::from_owner(SharedText(text)));
        }
        let text = Arc::new(self.limits.answers_to(&key.owner).hold(result.bytes().clone())?);
        shown.retain(|_, text| text.strong_count() > 0);
        shown.insert(key.clone(), Arc::downgrade(&text));
        Ok(Bytes::from_owner(SharedText(text)))
    }
}

impl Engine {
    /// Puts a task's large result into the one buffer that all responses share. Fails with `TooMuchUnread` or
    /// `AnswersFull`.
    pub fn share(&self, task: Arc<Task>) -> Result<Arc<Task>, GatewayFault> {
        let Phase::Settled(Outcome::Returned { result, is_error }) = &task.phase else { return Ok(task) };
        if result.len() < JsonPieces::SHARED_MIN {
            return Ok(task);
        }
        let result = result.clone().in_buffer(self.results.text(&task.key, result)?);
        let phase = Phase::Settled(Outcome::Returned { result, is_error: *is_error });
        Ok(Arc::new(Task { phase, ..Task::clone(&task) }))
    }

    /// Charges a response to its principal if it is large and shares no buffer. Fails as [`Engine::share`].
    pub fn within_budget(&self, principal: &Principal, answer: JsonPieces) -> Result<JsonPieces, GatewayFault> {
        match answer {
            JsonPieces::Whole(text) if text.len() >= JsonPieces::SHARED_MIN => {
                let held = self.results.limits.answers_to(principal).hold(text.bytes().clone())?;
                Ok(text.in_buffer(held).into())
            }
            answer @ (JsonPieces::Whole(_) | JsonPieces::Pieces(_)) => Ok(answer),
        }
    }

    /// The call's share of its owner's answer bytes. A response with a stored outcome waits as long as the call may run.
    pub(super) fn share_of(&self, call: &CallSpec) -> AnswerShare {
        // A split call holds the responses of its elements until all have ended.
        let share = self.limits().answers_to(&call.owner).of_one_request();
        if call.plan == Plan::Direct { share } else { share.until_deadline() }
    }

    #[must_use]
    pub const fn limits(&self) -> &SharedLimits {
        &self.results.limits
    }
}
