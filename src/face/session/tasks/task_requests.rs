//! Maps open requests to the tasks of their calls, for `notifications/cancelled` (D86-18).
//!
//! Only calls with chosen ids have an entry, until the task has settled or the response is gone.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::task::TaskKey;
use crate::wire::RequestId;

type SessionRequest = (u128, RequestId);

#[derive(Debug, Default)]
pub(super) struct TaskRequests {
    /// The newest request under an id, which a client may not reuse concurrently.
    by_id: Mutex<HashMap<SessionRequest, Arc<Mutex<RequestState>>>>,
}

#[derive(Debug, Default)]
struct RequestState {
    task: Option<TaskKey>,
    is_withdrawn: bool,
}

#[derive(Debug)]
pub(super) struct TaskRequestEntry {
    requests: Arc<TaskRequests>,
    request: SessionRequest,
    state: Arc<Mutex<RequestState>>,
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
        let mut state = state.lock();
        state.is_withdrawn = true;
        state.task.clone()
    }
}

impl TaskRequestEntry {
    /// Returns true if the request was cancelled before.
    pub(super) fn became(&self, task: &TaskKey) -> bool {
        let mut state = self.state.lock();
        state.task = Some(task.clone());
        state.is_withdrawn
    }

    pub(super) fn is_withdrawn(&self) -> bool {
        self.state.lock().is_withdrawn
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
        assert!(!late.became(&key) && !late.is_withdrawn());
        assert_eq!(requests.withdraw(2, &id), Some(key));
        assert!(late.is_withdrawn());
        let newest = requests.enter(2, &id);
        drop(late);
        assert!(requests.knows(2, &id), "the older one took only its own entry along");
        drop((early, newest));
        assert!(requests.by_id.lock().is_empty());
    }
}
