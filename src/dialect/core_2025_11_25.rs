//! Encodes tasks of 2025-11-25 for clients. A handle has the task's fields in `task`, other results have them at their
//! top; `tasks/result` returns the outcome. A tool's own failure is `failed` here (L25-44), with its text as the status
//! message. [`super::related_task`] writes the messages between requests.

pub mod hybrid;
mod list_params;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::face_dialect::{FaceDialect, TaskCommand, TaskReply, list_cursor, list_page, milliseconds, task_id};
use super::faults::{
    RequestError, already_settled, cancelled_words, not_in_flavour, not_settled, session_failure_error, was_cancelled,
};
use super::related_task::RelatedTask;
use super::session_results::without_odd_content;
use crate::task::time::millis;
use crate::task::{
    Draft, Drafts, Failure, Outcome, Phase, PhaseKind, Summary, SummaryPhase, Task, TaskId, TaskMode, TreeLinks,
};
use crate::wire::meta::{IMMEDIATE_RESPONSE, META};
use crate::wire::object::ObjectWriter;
use crate::wire::one_line::status_text;
use crate::wire::{JsonPieces, Object, Payload, ProtocolVersion, RpcError, envelope, method};
pub use list_params::{LIST_VALUES_MAX, list_filter};

#[derive(Clone, Debug, Default)]
pub struct CoreTasks {
    immediate_response: Option<Arc<str>>,
    /// Whether tasks name their parents and children (SEP-2268).
    names_tree: bool,
}

impl CoreTasks {
    pub fn with_drafts(drafts: Drafts) -> Self {
        Self { immediate_response: None, names_tree: drafts.has(Draft::Sep2268) }
    }

    /// Adds `text` to its handles, for the client's model (GW-09).
    #[must_use]
    pub fn with_immediate_response(self, text: Option<Arc<str>>) -> Self {
        Self { immediate_response: text, ..self }
    }

    /// The `_meta` of a task's messages: with the parent of a child (SUB-09).
    pub fn related(&self, task: &Task) -> RelatedTask {
        RelatedTask::of(task.key.id, task.chosen.as_ref()).under(self.parent(task))
    }

    fn parent(&self, task: &Task) -> Option<TaskId> {
        task.tree.parent.filter(|_| self.names_tree)
    }

    /// Whether clients of a version are offered tasks: only 2025-11-25 has them.
    pub fn are_offered_in(version: ProtocolVersion) -> bool {
        version.traits().has_session_tasks
    }

    pub fn is_method(name: &str) -> bool {
        matches!(name, method::TASKS_GET | method::TASKS_RESULT | method::TASKS_LIST | method::TASKS_CANCEL)
    }

    /// The gateway's `capabilities.tasks`: the served methods (L25-01, L25-02), lists if authenticated (L25-54).
    pub fn capability(lists: ListSupport) -> Payload {
        let none = Payload::empty_object();
        let nested = |name: &'static str, value: &Payload| ObjectWriter::new().member(name, value).finish();
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
    pub const fn support(mode: TaskMode) -> &'static str {
        match mode {
            TaskMode::Never => "forbidden",
            TaskMode::Auto | TaskMode::Always => "optional",
            TaskMode::Required => "required",
        }
    }

    /// The time to live that a call asks for; `None` if it asks for no task. Fails if the tool's rules exclude it (L25-04, L25-05), or it cannot be read.
    pub fn wish(params: &Object, mode: TaskMode) -> Result<Option<RequestedTtl>, RequestError> {
        match (RequestedTtl::read(params)?, mode) {
            (Some(_), TaskMode::Never) => Err(RequestError::TakesNoTask),
            (None, TaskMode::Required) => Err(RequestError::NeedsTask),
            (wish, TaskMode::Never | TaskMode::Auto | TaskMode::Always | TaskMode::Required) => Ok(wish),
        }
    }

    fn created(&self, task: &Task) -> Payload {
        let writer = ObjectWriter::new().member("task", &self.fields(&Summary::of(task)));
        match &self.immediate_response {
            Some(text) => writer.member(META, &ObjectWriter::new().text(IMMEDIATE_RESPONSE, text).finish()),
            None => writer,
        }
        .finish()
    }

    /// The Task object (L25-16 to L25-18).
    fn fields(&self, task: &Summary) -> Payload {
        let writer =
            ObjectWriter::new().plain_text("taskId", &task.key.id.text()).text("status", status(task.phase.kind()));
        let writer = match status_message(task) {
            Some(message) => writer.text("statusMessage", &message),
            None => writer,
        };
        let writer = writer
            .plain_text("createdAt", &task.created_at.text())
            .plain_text("lastUpdatedAt", &task.updated_at.text())
            .number("ttl", millis(task.ttl))
            .number("pollInterval", millis(task.poll_interval));
        if self.names_tree { tree_fields(writer, &task.tree) } else { writer }.finish()
    }

    /// The call's own result or error (L25-22, L25-24 to L25-28).
    fn outcome(&self, task: &Task) -> Result<JsonPieces, RpcError> {
        match &task.phase {
            Phase::Settled(Outcome::Returned { result, .. }) => {
                Ok(RelatedTask::of(task.key.id, None).under(self.parent(task)).on_shared(&without_odd_content(result)))
            }
            Phase::Settled(Outcome::Faulted(failure)) => Err(session_failure_error(failure)),
            Phase::Settled(Outcome::Cancelled) => Err(was_cancelled()),
            Phase::Queued | Phase::Working | Phase::AwaitingInput(_) => Err(not_settled()),
        }
    }

    /// One page of a list (L25-33, L25-34).
    fn page(&self, tasks: &[Summary], next: Option<&str>) -> Payload {
        let tasks: Vec<Payload> = tasks.iter().map(|task| self.fields(task)).collect();
        list_page(&tasks, next)
    }
}

/// Adds a task's parent and children, by the ids that `tasks/get` takes (SEP-2268).
fn tree_fields(writer: ObjectWriter, tree: &TreeLinks) -> ObjectWriter {
    let writer = match tree.parent {
        Some(parent) => writer.plain_text("parentTaskId", &parent.text()),
        None => writer,
    };
    if tree.children.is_empty() {
        return writer;
    }
    let children: Vec<String> = tree.children.iter().map(ToString::to_string).collect();
    writer.member("childTaskIds", &Payload::of(&children))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListSupport {
    Served,
    /// With filters (SEP-1904).
    Filtered,
    Withheld,
}

impl FaceDialect for CoreTasks {
    /// Reads only `taskId` and `cursor`: a related task in `_meta` (L25-29) and a `task` have no meaning in them.
    fn decode(&self, method: &str, params: &Object) -> Result<TaskCommand, RequestError> {
        match method {
            method::TASKS_GET => Ok(TaskCommand::Get(task_id(params)?)),
            method::TASKS_RESULT => Ok(TaskCommand::Await(task_id(params)?)),
            method::TASKS_CANCEL => Ok(TaskCommand::Cancel(task_id(params)?)),
            method::TASKS_LIST => Ok(TaskCommand::List(list_cursor(params)?)),
            other => Err(RequestError::UnknownMethod(other.to_owned().into())),
        }
    }

    fn pieces(&self, reply: TaskReply<'_>) -> Result<JsonPieces, RpcError> {
        match reply {
            TaskReply::Created(task) => Ok(self.created(task).into()),
            TaskReply::Snapshot(task) => Ok(self.fields(&Summary::of(task)).into()),
            TaskReply::Cancelled { was_settled: true, .. } => Err(already_settled()),
            TaskReply::Cancelled { task, was_settled: false } => Ok(self.fields(&Summary::of(task)).into()),
            TaskReply::Outcome(task) => self.outcome(task),
            TaskReply::Listed { tasks, next } => Ok(self.page(tasks, next).into()),
            TaskReply::Answered | TaskReply::Fetched(_) | TaskReply::Deleted => Err(not_in_flavour()),
        }
    }
}

/// The status text of a phase (T-01).
const fn status(phase: PhaseKind) -> &'static str {
    match phase {
        PhaseKind::Queued | PhaseKind::Working => "working",
        PhaseKind::AwaitingInput => "input_required",
        PhaseKind::Returned => "completed",
        PhaseKind::ReturnedError | PhaseKind::Refused | PhaseKind::Faulted => "failed",
        PhaseKind::Cancelled => "cancelled",
    }
}

/// A failed task's status message is its error (L25-45): clients stop at `failed` and never fetch the result (T-02).
fn status_message(task: &Summary) -> Option<Arc<str>> {
    let message = match task.phase {
        SummaryPhase::Faulted(fault) => status_text(&session_failure_error(&Failure::Gateway(fault)).message),
        SummaryPhase::Cancelled => Some(Arc::from(cancelled_words(task.status_message.as_deref()))),
        SummaryPhase::Returned { .. }
        | SummaryPhase::Refused
        | SummaryPhase::Queued
        | SummaryPhase::Working
        | SummaryPhase::AwaitingInput => task.failure.clone(),
    };
    message.or_else(|| task.status_message.clone())
}

/// The time to live of the task that a client asks for (L25-57).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedTtl {
    Default,
    /// For this long after the task's creation.
    For(Duration),
    /// For the longest time to live of the gateway (`ttl: null`, T-69).
    Longest,
}

impl RequestedTtl {
    /// Reads `params.task`. A value that is no object asks for nothing (GW-10). `ttl` is null or milliseconds.
    pub fn read(params: &Object) -> Result<Option<Self>, RequestError> {
        params.get_object("task").map(|task| Self::of(&task)).transpose()
    }

    fn of(task: &Object) -> Result<Self, RequestError> {
        match task.get("ttl") {
            None => Ok(Self::Default),
            Some(ttl) if ttl.as_str() == "null" => Ok(Self::Longest),
            Some(ttl) => match milliseconds(&ttl) {
                Some(span) => Ok(Self::For(span)),
                None => {
                    Err(RequestError::Params(Cow::Borrowed("task.ttl must be a number of milliseconds, 0 or more")))
                }
            },
        }
    }

    /// How long the task is kept: the requested time, capped.
    pub fn ttl(self, default: Duration, max: Duration) -> Duration {
        match self {
            Self::Default => default,
            Self::For(span) => span.min(max),
            Self::Longest => max,
        }
    }
}

/// The parts of a task that cause a notification when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusNotice {
    status: &'static str,
    message: Option<Arc<str>>,
    /// The number of children that the client can see.
    children: usize,
}

impl CoreTasks {
    pub fn notice(&self, task: &Summary) -> StatusNotice {
        let children = if self.names_tree { task.tree.children.len() } else { 0 };
        StatusNotice { status: status(task.phase.kind()), message: status_message(task), children }
    }

    /// `notifications/tasks/status`: the whole Task, and no related task (L25-31, L25-32).
    pub fn status_notification(&self, task: &Summary) -> Bytes {
        envelope::notification(method::TASK_STATUS, Some(&self.fields(task)))
    }
}
