//! The client's side of a flavour: what its words ask for, and the words for what the engine says.

use std::collections::BTreeMap;

use super::Complaint;
use crate::task::{Answer, InputKey, Task, TaskId};
use crate::wire::{Object, Payload};

/// What a client asks of a task, whatever words it used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Get(TaskId),
    Answer(TaskId, BTreeMap<InputKey, Answer>),
    Cancel(TaskId),
}

impl Command {
    /// The task that is spoken of.
    #[must_use]
    pub const fn task(&self) -> TaskId {
        match self {
            Self::Get(id) | Self::Answer(id, _) | Self::Cancel(id) => *id,
        }
    }
}

/// What the engine has to say, before anyone chose the words.
#[derive(Clone, Copy, Debug)]
pub enum Reply<'a> {
    /// A handle was made.
    Created(&'a Task),
    /// How the task stands.
    Snapshot(&'a Task),
    /// Answers were taken.
    Answered,
    /// A cancel was taken; `was_settled` says that it came too late to change anything.
    Cancelled { task: &'a Task, was_settled: bool },
}

/// One flavour of task talk with clients: stateless and byte-exact.
pub trait FaceDialect: Send + Sync + std::fmt::Debug {
    /// Reads a task method.
    ///
    /// # Errors
    /// A [`Complaint`] that names the field. An id that cannot be ours is answered like an unknown one.
    fn decode(&self, method: &str, params: &Object) -> Result<Command, Complaint>;

    /// Writes the result of a task method, or the handle of a call.
    ///
    /// # Errors
    /// Where the flavour answers this reply with an error (2025-11-25: cancelling a settled task).
    fn encode(&self, reply: Reply<'_>) -> Result<Payload, Complaint>;
}
