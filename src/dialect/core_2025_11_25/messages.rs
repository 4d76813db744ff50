//! Writes what clients of 2025-11-25 are told of a task's status between their requests.

use std::sync::Arc;

use bytes::Bytes;

use super::{CoreTasks, status as status_word, status_message};
use crate::task::{Summary, Task};
use crate::wire::{envelope, method};

/// What of a task is worth a notification when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusNotice {
    status: &'static str,
    message: Option<Arc<str>>,
    /// How many children the client can see of it.
    children: usize,
}

impl CoreTasks {
    /// What of a task its client is told when it changes.
    #[must_use]
    pub fn notice(&self, task: &Task) -> StatusNotice {
        let task = Summary::of(task);
        let children = if self.names_tree { task.tree.children.len() } else { 0 };
        StatusNotice { status: status_word(task.phase.kind()), message: status_message(&task), children }
    }

    /// How a task stands: all of it, and no related task (L25-31, L25-32).
    #[must_use]
    pub fn status_notification(&self, task: &Task) -> Bytes {
        envelope::notification(method::TASK_STATUS, Some(&self.fields(&Summary::of(task))))
    }
}
