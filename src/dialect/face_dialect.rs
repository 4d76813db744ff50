//! Defines the client's side of a flavour: what its words ask for, and the words for what the engine says.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use super::RequestError;
use crate::task::{Answer, InputKey, Summary, Task, TaskId};
use crate::wire::object::ObjectWriter;
use crate::wire::{JsonPieces, Object, Payload, RpcError};

/// Longest `taskId` that is looked at (B119).
const TASK_ID_BYTES_MAX: usize = 128;

/// What a client asks of a task, whatever words it used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskCommand {
    Get(TaskId),
    Answer(TaskId, BTreeMap<InputKey, Answer>),
    Cancel(TaskId),
    /// The outcome, waited for.
    Await(TaskId),
    /// The outcome, if there is one.
    Fetch(TaskId),
    /// The end of all that is known of a task which has settled.
    Delete(TaskId),
    /// All tasks of the client, from the place on that an earlier page named.
    List(Option<String>),
}

impl TaskCommand {
    /// The task that is spoken of, if it is one.
    #[must_use]
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

/// What the engine has to say, before anyone chose the words.
#[derive(Clone, Copy, Debug)]
pub enum TaskReply<'a> {
    /// A handle was made.
    Created(&'a Task),
    /// How the task stands.
    Snapshot(&'a Task),
    /// Answers were taken.
    Answered,
    /// A cancel was taken; `was_settled` says that it came too late to change anything.
    Cancelled { task: &'a Task, was_settled: bool },
    /// What came of a settled task's call.
    Outcome(&'a Task),
    /// The same for who asks without waiting, whether or not the task has settled.
    Fetched(&'a Task),
    /// A task is gone.
    Deleted,
    /// One page of the client's tasks, and the name of the place where the next one begins.
    Listed { tasks: &'a [Summary], next: Option<&'a str> },
}

/// One flavour of task talk with clients: stateless and byte-exact.
pub trait FaceDialect: Send + Sync + std::fmt::Debug {
    /// Reads a task method.
    ///
    /// # Errors
    /// A [`RequestError`] that names the field. An id that cannot be ours is answered like an unknown one.
    fn decode(&self, method: &str, params: &Object) -> Result<TaskCommand, RequestError>;

    /// Writes the result of a task method, or the handle of a call. A large result of the task is shared, not copied.
    ///
    /// # Errors
    /// Where the flavour answers this reply with an error (2025-11-25: cancelling a settled task, the outcome
    /// of a call that failed), or has no words for it.
    fn pieces(&self, reply: TaskReply<'_>) -> Result<JsonPieces, RpcError>;

    /// The same in one piece: a large result in it is copied.
    ///
    /// # Errors
    /// As [`FaceDialect::pieces`].
    fn encode(&self, reply: TaskReply<'_>) -> Result<Payload, RpcError> {
        self.pieces(reply).map(JsonPieces::whole)
    }
}

/// The id in a task method's params.
///
/// # Errors
/// If it is no usable string; one that cannot be ours is an unknown task (B119, B120, B123).
pub(super) fn task_id(params: &Object) -> Result<TaskId, RequestError> {
    let usable =
        |text: &Cow<'_, str>| !text.is_empty() && text.len() <= TASK_ID_BYTES_MAX && !text.contains(char::is_control);
    let text = params
        .get_str("taskId")
        .filter(usable)
        .ok_or(RequestError::Params(Cow::Borrowed("taskId must be a string of 1 to 128 characters")))?;
    TaskId::parse(&text).ok_or(RequestError::UnknownTask)
}

/// The place in the params of a `tasks/list`.
///
/// # Errors
/// If it is no string.
pub(super) fn list_cursor(params: &Object) -> Result<Option<String>, RequestError> {
    match params.get_string("cursor") {
        None if params.contains("cursor") => Err(bad_cursor()),
        cursor => Ok(cursor),
    }
}

/// The complaint about a cursor that is none of ours (L25-36, D86-23).
#[must_use]
pub const fn bad_cursor() -> RequestError {
    RequestError::Params(Cow::Borrowed("cursor is not one that was given for this list"))
}

/// One page of a list (L25-33, L25-34, D86-20, D86-21).
pub(super) fn list_page(tasks: &[Payload], next: Option<&str>) -> Payload {
    let writer = ObjectWriter::new().member("tasks", &Payload::of(tasks));
    match next {
        Some(next) => writer.text("nextCursor", next),
        None => writer,
    }
    .finish()
}

/// A number of milliseconds; parts of one are left out.
pub(super) fn milliseconds(number: &Payload) -> Option<Duration> {
    let text = number.as_str();
    if let Ok(whole) = text.parse() {
        return Some(Duration::from_millis(whole));
    }
    // A text in quotes is no number, and neither is one with a sign.
    let number: f64 = text.starts_with(|c: char| c.is_ascii_digit()).then(|| text.parse().ok())??;
    Some(Duration::try_from_secs_f64(number / 1000.0).unwrap_or(Duration::MAX))
}
