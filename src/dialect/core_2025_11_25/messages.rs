//! Writes status notifications for clients of 2025-11-25.

use std::sync::Arc;

use bytes::Bytes;

use super::{CoreTasks, status as status_word, status_message};
use crate::task::{Summary, Task};
use crate::wire::{envelope, method};

/// The parts of a task that cause a notification when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusNotice {
    status: &'static str,
    message: Option<Arc<str>>,
    /// The number of children that the client can see.
    children: usize,
}

impl CoreTasks {
    #[must_use]
    pub fn notice(&self, task: &Task) -> StatusNotice {
        let task = Summary::of(task);
        let children = if self.names_tree { task.tree.children.len() } else { 0 };
        StatusNotice { status: status_word(task.phase.kind()), message: status_message(&task), children }
    }

    /// `notifications/tasks/status`: the whole Task, and no related task (L25-31, L25-32).
    #[must_use]
    pub fn status_notification(&self, task: &Task) -> Bytes {
        envelope::notification(method::TASK_STATUS, Some(&self.fields(&Summary::of(task))))
    }
}
