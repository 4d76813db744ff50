//! Writes what clients of 2025-11-25 are told of a task's status between their requests.

use std::sync::Arc;

use bytes::Bytes;

use super::{fields, status as status_word, status_message};
use crate::task::{Summary, Task};
use crate::wire::{envelope, method};

/// What of a task is worth a notification when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusNotice {
    status: &'static str,
    message: Option<Arc<str>>,
}

impl StatusNotice {
    #[must_use]
    pub fn of(task: &Task) -> Self {
        let task = Summary::of(task);
        Self { status: status_word(task.phase.kind()), message: status_message(&task) }
    }
}

/// How a task stands: all of it, and no related task (L25-31, L25-32).
#[must_use]
pub fn status(task: &Task) -> Bytes {
    envelope::notification(method::TASK_STATUS, Some(&fields(&Summary::of(task))))
}
