//! Reads and cancels tasks of 2025-11-25 for their owner.

use std::sync::Arc;

use super::{PAGE, tokens};
use crate::dialect::core_2025_11_25::list_filter;
use crate::dialect::face_dialect::bad_cursor;
use crate::dialect::{FaceDialect, RequestError, TaskReply};
use crate::engine::TaskError;
use crate::face::session::SessionFaceState;
use crate::face::task_method_error::TaskMethodError;
use crate::task::{Draft, ListFilter, Principal, Task, TaskKey};
use crate::wire::{Object, Payload, method};

impl SessionFaceState {
    pub(super) async fn get(self: &Arc<Self>, key: &TaskKey, nonce: u128) -> Result<Payload, TaskMethodError> {
        let task = self.served.engine.get(key).await?;
        if !task.is_settled() {
            // After a restart this links the task to its client's stream again.
            self.subscribers(key, nonce, None);
        }
        self.served.engine.count_poll(&task);
        let task = self.as_seen(task).await?;
        Ok(self.tasks.codec().encode(TaskReply::Snapshot(&task))?)
    }

    /// Leaves out the parts of a tree that the owner may not see. Skipped where trees are not exposed.
    pub(super) async fn as_seen(&self, task: Arc<Task>) -> Result<Arc<Task>, TaskError> {
        match self.tasks.drafts.has(Draft::Sep2268) {
            true => self.served.engine.as_seen(task).await,
            false => Ok(task),
        }
    }

    pub(super) async fn cancel(&self, key: &TaskKey) -> Result<Payload, TaskMethodError> {
        let cancelled = self.served.engine.cancel(key).await?;
        if let Some(subscribers) = self.tasks.subscribers.get(key) {
            // Later progress of the upstream is dropped (L25-47).
            subscribers.mute();
        }
        let task = self.as_seen(cancelled.task).await?;
        let reply = TaskReply::Cancelled { task: &task, was_settled: cancelled.was_settled };
        Ok(self.tasks.codec().encode(reply)?)
    }

    pub(super) fn wanted_tasks(&self, params: &Object) -> Result<Option<ListFilter>, RequestError> {
        if self.served.settings.drafts.has(Draft::Sep1904) { list_filter(params) } else { Ok(None) }
    }

    pub(super) async fn list(
        &self,
        owner: &Principal,
        cursor: Option<String>,
        params: &Object,
    ) -> Result<Payload, TaskMethodError> {
        if !owner.is_identified() {
            return Err(TaskMethodError::Complaint(RequestError::UnknownMethod(method::TASKS_LIST.to_owned())));
        }
        let filter = self.wanted_tasks(params)?;
        let (sealer, filter) = (&self.served.sealer, filter.as_ref());
        let position = |cursor: String| {
            tokens::position(sealer, owner, filter, &cursor).ok_or(TaskMethodError::Complaint(bad_cursor()))
        };
        let after = cursor.map(position).transpose()?;
        let mut page = match filter {
            Some(filter) => self.served.engine.list_filtered(owner, filter, after, PAGE).await?,
            // Tasks with chosen ids belong to the sessions that chose them (T-66).
            None if self.served.settings.drafts.has(Draft::Sep1686) => {
                self.served.engine.list_filtered(owner, &ListFilter::of_scope(None), after, PAGE).await?
            }
            None => self.served.engine.list(owner, after, PAGE).await?,
        };
        if self.tasks.drafts.has(Draft::Sep2268) {
            for task in &mut page.tasks {
                task.tree = self.served.engine.seen_tree(owner, &task.tree).await?;
            }
        }
        let next = page.next.map(|position| tokens::cursor(sealer, owner, filter, position));
        Ok(self.tasks.codec().encode(TaskReply::Listed { tasks: &page.tasks, next: next.as_deref() })?)
    }
}
