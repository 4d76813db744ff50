//! Defines the client's side of a dialect: reads task requests, writes the engine's replies.

use std::collections::BTreeMap;
use std::time::Duration;

use super::RequestError;
use crate::task::{Answer, InputKey, Summary, Task, TaskId};
use crate::wire::list_pages::sent_cursor;
use crate::wire::object::ObjectWriter;
use crate::wire::{JsonPieces, Object, Payload, RpcError};

/// Longest `taskId` that is read (B119).
const TASK_ID_BYTES_MAX: usize = 128;

/// A client's request about a task, independent of its dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskCommand {
    Get(TaskId),
    Answer(TaskId, BTreeMap<InputKey, Answer>),
    Cancel(TaskId),
    Await(TaskId),
    /// Returns the outcome, if there is one.
    Fetch(TaskId),
    Delete(TaskId),
    /// Lists the client's tasks, from the cursor of an earlier page.
    List(Option<String>),
}

impl TaskCommand {
    pub const fn task(&self) -> Option<TaskId> {
        match self {
            Self::Get(id)
            | Self::Answer(id, _)
            | Self::Cancel(id)
            | Self::Await(id)
            | Self::Fetch(id)
            | Self::Delete(id) => Some(*id),
            Self::List(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum TaskReply<'a> {
    Created(&'a Task),
    Snapshot(&'a Task),
    Answered,
    /// A cancel was accepted; if `was_settled`, it came too late and changed nothing.
    Cancelled {
        task: &'a Task,
        was_settled: bool,
    },
    Outcome(&'a Task),
    /// The outcome, requested without waiting; the task may be unsettled.
    Fetched(&'a Task),
    Deleted,
    /// One page of the client's tasks, and the cursor of the next page.
    Listed {
        tasks: &'a [Summary],
        next: Option<&'a str>,
    },
}

/// One dialect of tasks with clients: stateless and byte-exact.
pub trait FaceDialect: Send + Sync + std::fmt::Debug {
    /// Reads a task method. The error names the field; an id that cannot be ours is an unknown task.
    fn decode(&self, method: &str, params: &Object) -> Result<TaskCommand, RequestError>;

    /// Writes the result of a task method, or the handle of a call. A large result is shared, not copied. Fails if the
    /// dialect replies with an error (2025-11-25: cancel of a settled task, outcome of a failed call), or has none.
    fn pieces(&self, reply: TaskReply<'_>) -> Result<JsonPieces, RpcError>;

    /// As [`Self::pieces`], in one piece: a large result is copied.
    fn encode(&self, reply: TaskReply<'_>) -> Result<Payload, RpcError> {
        self.pieces(reply).map(JsonPieces::whole)
    }
}

/// The id in a task method's params; one that cannot be ours is an unknown task (B119, B120, B123).
pub(super) fn task_id(params: &Object) -> Result<TaskId, RequestError> {
    let text = params.get_str("taskId");
    if let Some(id) = text.as_deref().and_then(TaskId::parse) {
        return Ok(id);
    }
    let is_usable =
        |text: &str| !text.is_empty() && text.len() <= TASK_ID_BYTES_MAX && !text.contains(char::is_control);
    Err(match text.as_deref().is_some_and(is_usable) {
        true => RequestError::UnknownTask,
        false => RequestError::params("taskId must be a string of 1 to 128 characters"),
    })
}

pub(super) fn list_cursor(params: &Object) -> Result<Option<String>, RequestError> {
    sent_cursor(params).map(|cursor| cursor.read().map_err(|_| bad_cursor())).transpose()
}

/// The error for a cursor that is not ours (L25-36, D86-23).
pub const fn bad_cursor() -> RequestError {
    RequestError::params("cursor is not one that was given for this list")
}

/// One page of a list (L25-33, L25-34, D86-20, D86-21).
pub(super) fn list_page(tasks: &[Payload], next: Option<&str>) -> Payload {
    ObjectWriter::new().member("tasks", &Payload::of(tasks)).optional_text("nextCursor", next).finish()
}

/// A number of milliseconds, rounded down.
pub(super) fn milliseconds(number: &Payload) -> Option<Duration> {
    let text = number.as_str();
    if let Ok(whole) = text.parse() {
        return Some(Duration::from_millis(whole));
    }
    // A quoted number and a signed one are refused.
    let number: f64 = text.starts_with(|c: char| c.is_ascii_digit()).then(|| text.parse().ok())??;
    Some(Duration::try_from_secs_f64(number / 1000.0).unwrap_or(Duration::MAX))
}
