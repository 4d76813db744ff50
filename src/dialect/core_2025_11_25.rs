//! Encodes tasks of 2025-11-25 for clients: nested in a handle, flat elsewhere; outcomes by a method of their own.
//!
//! A tool's own failure is `failed` here (L25-44), with its words as the status message. What is said about a
//! task between methods is in [`messages`] and [`super::related_task`].

pub mod hybrid;
mod instant;
mod list_params;
pub mod messages;
mod task_param;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use super::face_dialect::{FaceDialect, TaskCommand, TaskReply, task_id};
use super::faults::{RequestError, already_settled, not_in_flavour, not_settled, session_failure_error, was_cancelled};
use super::related_task::RelatedTask;
use super::session_results::{STRUCTURED_CONTENT, has_odd_content};
use crate::task::time::millis;
use crate::task::{Failure, Outcome, Phase, PhaseKind, Summary, SummaryPhase, Task, TaskMode};
use crate::wire::meta::{IMMEDIATE_RESPONSE, META};
use crate::wire::object::ObjectWriter;
use crate::wire::one_line::status_text;
use crate::wire::{Object, Payload, ProtocolVersion, RpcError, method};
pub use list_params::{LIST_VALUES_MAX, list_filter};
pub use task_param::RequestedTtl;

/// The flavour's codec.
#[derive(Clone, Debug, Default)]
pub struct CoreTasks {
    /// What goes with a handle for the client's model.
    immediate_response: Option<Arc<str>>,
}

impl CoreTasks {
    /// A codec whose handles carry `text` for the client's model (GW-09).
    #[must_use]
    pub const fn with_immediate_response(text: Option<Arc<str>>) -> Self {
        Self { immediate_response: text }
    }

    /// Whether clients of a version are offered tasks: this one alone has them.
    #[must_use]
    pub fn are_offered_in(version: ProtocolVersion) -> bool {
        version.traits().has_session_tasks
    }

    /// Whether this is a method of the flavour.
    #[must_use]
    pub fn is_method(name: &str) -> bool {
        matches!(name, method::TASKS_GET | method::TASKS_RESULT | method::TASKS_LIST | method::TASKS_CANCEL)
    }

    /// `capabilities.tasks` of the gateway: all that it serves, and nothing else (L25-01, L25-02). Lists are
    /// for clients that are somebody in particular (L25-54).
    #[must_use]
    pub fn capability(lists: ListSupport) -> Payload {
        let none = Payload::empty_object();
        let nested = |name: &str, value: &Payload| ObjectWriter::new().member(name, value).finish();
        let requests = nested("tools", &nested("call", &none));
        let writer = ObjectWriter::new().member("requests", &requests).member("cancel", &none);
        match lists {
            ListSupport::Served => writer.member("list", &none),
            ListSupport::Filtered => writer.member("list", &list_params::capability()),
            ListSupport::Withheld => writer,
        }
        .finish()
    }

    /// `execution.taskSupport` of a tool (L25-65).
    #[must_use]
    pub const fn support(mode: TaskMode) -> &'static str {
        match mode {
            TaskMode::Never => "forbidden",
            TaskMode::Auto | TaskMode::Always => "optional",
            TaskMode::Required => "required",
        }
    }

    /// What a call may be, given what it asks for and what the tool's rules say.
    ///
    /// # Errors
    /// If the tool runs only the other way (L25-04, L25-05), or the wish cannot be read.
    pub fn wish(params: &Object, mode: TaskMode) -> Result<Option<RequestedTtl>, RequestError> {
        match (RequestedTtl::read(params)?, mode) {
            (Some(_), TaskMode::Never) => Err(RequestError::TakesNoTask),
            (None, TaskMode::Required) => Err(RequestError::NeedsTask),
            (wish, TaskMode::Never | TaskMode::Auto | TaskMode::Always | TaskMode::Required) => Ok(wish),
        }
    }

    fn created(&self, task: &Task) -> Payload {
        let writer = ObjectWriter::new().member("task", &fields(&Summary::of(task)));
        match &self.immediate_response {
            Some(text) => writer.member(META, &ObjectWriter::new().text(IMMEDIATE_RESPONSE, text).finish()),
            None => writer,
        }
        .finish()
    }
}

/// Whether a client may list its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListSupport {
    Served,
    /// And by what it asks for (SEP-1904).
    Filtered,
    Withheld,
}

impl FaceDialect for CoreTasks {
    /// Of the params of task methods `taskId` and `cursor` alone are read: neither a related task in `_meta`
    /// (L25-29) nor a `task` that some clients repeat there says anything.
    fn decode(&self, method: &str, params: &Object) -> Result<TaskCommand, RequestError> {
        match method {
            method::TASKS_GET => Ok(TaskCommand::Get(task_id(params)?)),
            method::TASKS_RESULT => Ok(TaskCommand::Await(task_id(params)?)),
            method::TASKS_CANCEL => Ok(TaskCommand::Cancel(task_id(params)?)),
            method::TASKS_LIST if !params.contains("cursor") => Ok(TaskCommand::List(None)),
            method::TASKS_LIST => match params.get_string("cursor") {
                Some(cursor) => Ok(TaskCommand::List(Some(cursor))),
                None => Err(bad_cursor()),
            },
            other => Err(RequestError::UnknownMethod(other.to_owned())),
        }
    }

    fn encode(&self, reply: TaskReply<'_>) -> Result<Payload, RpcError> {
        match reply {
            TaskReply::Created(task) => Ok(self.created(task)),
            TaskReply::Snapshot(task) => Ok(fields(&Summary::of(task))),
            TaskReply::Cancelled { was_settled: true, .. } => Err(already_settled()),
            TaskReply::Cancelled { task, was_settled: false } => Ok(fields(&Summary::of(task))),
            TaskReply::Outcome(task) => outcome(task),
            TaskReply::Listed { tasks, next } => Ok(page(tasks, next)),
            TaskReply::Answered | TaskReply::Fetched(_) | TaskReply::Deleted => Err(not_in_flavour()),
        }
    }
}

/// The complaint about a cursor that is none of ours (L25-36).
#[must_use]
pub const fn bad_cursor() -> RequestError {
    RequestError::Params(Cow::Borrowed("cursor is not one that was given for this list"))
}

/// The Task object (L25-16 to L25-18).
fn fields(task: &Summary) -> Payload {
    let writer = ObjectWriter::new().text("taskId", &task.key.id.to_string()).text("status", status(task.phase.kind()));
    let writer = match status_message(task) {
        Some(message) => writer.text("statusMessage", &message),
        None => writer,
    };
    writer
        .text("createdAt", &task.created_at.to_string())
        .text("lastUpdatedAt", &task.updated_at.to_string())
        .number("ttl", millis(task.ttl))
        .number("pollInterval", millis(task.poll_interval))
        .finish()
}

/// The word for how a task stands (T-01).
const fn status(phase: PhaseKind) -> &'static str {
    match phase {
        PhaseKind::Queued | PhaseKind::Working => "working",
        PhaseKind::AwaitingInput => "input_required",
        PhaseKind::Returned => "completed",
        PhaseKind::ReturnedError | PhaseKind::Refused | PhaseKind::Faulted => "failed",
        PhaseKind::Cancelled => "cancelled",
    }
}

/// A failed task says why (L25-45): clients stop at `failed` and never fetch the result (T-02).
fn status_message(task: &Summary) -> Option<Arc<str>> {
    let message = match task.phase {
        SummaryPhase::Faulted(fault) => status_text(&session_failure_error(&Failure::Gateway(fault)).message),
        SummaryPhase::Returned { .. }
        | SummaryPhase::Refused
        | SummaryPhase::Queued
        | SummaryPhase::Working
        | SummaryPhase::AwaitingInput
        | SummaryPhase::Cancelled => task.failure.clone(),
    };
    message.or_else(|| task.status_message.clone())
}

/// What the call itself would have been answered with (L25-22, L25-24 to L25-28).
fn outcome(task: &Task) -> Result<Payload, RpcError> {
    match &task.phase {
        Phase::Settled(Outcome::Returned { result, .. }) => Ok(RelatedTask::of(task.key.id, None).on(&known(result))),
        Phase::Settled(Outcome::Faulted(failure)) => Err(session_failure_error(failure)),
        Phase::Settled(Outcome::Cancelled) => Err(was_cancelled()),
        Phase::Queued | Phase::Working | Phase::AwaitingInput(_) => Err(not_settled()),
    }
}

/// A result less what this version gives no meaning (T-77): a server without sessions may have given it.
fn known(result: &Payload) -> Cow<'_, Payload> {
    match Object::of(result).filter(has_odd_content) {
        Some(object) => Cow::Owned(object.edit().remove(STRUCTURED_CONTENT).finish()),
        None => Cow::Borrowed(result),
    }
}

/// One page of a list (L25-33, L25-34).
fn page(tasks: &[Summary], next: Option<&str>) -> Payload {
    let tasks: Vec<Payload> = tasks.iter().map(fields).collect();
    let writer = ObjectWriter::new().member("tasks", &Payload::of(&tasks));
    match next {
        Some(next) => writer.text("nextCursor", next),
        None => writer,
    }
    .finish()
}
