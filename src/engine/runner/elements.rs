//! Makes the elements of a split call child tasks, once the call becomes a task.

use std::sync::Arc;

use super::Runner;
use super::call_state::UpstreamCall;
use super::family::AdoptedElement;
use super::resume::{AdoptedCall, adopt, begin_child};
use crate::store::StoreError;
use crate::task::{TaskId, TaskKey, Timestamp};

impl Runner {
    /// Inserts rows for the elements of a split call; returns their ids in order. Empty for a call that is not split,
    /// is over, or has rows for its elements. Never fails with `UnknownCommit`.
    pub(super) async fn insert_elements(
        &mut self,
        parent: &TaskKey,
        now: Timestamp,
    ) -> Result<Arc<[TaskId]>, StoreError> {
        let Some(split) = self.call.elements().filter(|_| !self.call.is_over() && !self.family.has_elements()) else {
            return Ok(Arc::default());
        };
        let tasks = split.tasks(parent, || self.engine.mint_key(&parent.owner), now, self.is_kept());
        let ids = tasks.iter().map(|task| task.key.id).collect();
        if !self.engine.has_room_for(&self.spec.owner, tasks.iter().map(|task| task.stored_bytes()).sum()) {
            return Err(StoreError::OwnerFull);
        }
        let logs = self.spec.notice_sink.clone();
        self.family.insert_elements(&self.engine, begin_child, parent, tasks, logs).await?;
        Ok(ids)
    }

    /// Starts runners for the elements in progress, once their parent has a handle.
    pub(super) fn adopt_elements(&mut self) {
        let Some(split) = self.call.elements_mut() else { return };
        for adopted in self.family.adopt_elements(&self.engine, split, self.recorder.permit_mut()) {
            let AdoptedElement { spec, row, call, permit } = adopted;
            let call = match call.sent_at {
                Some(at) => UpstreamCall::sent(call.exchange, at, spec.policy.deadline),
                None => UpstreamCall::queued(call.exchange),
            };
            adopt(&self.engine, spec, row, AdoptedCall::of(call, permit));
        }
    }
}
