//! Encodes tasks of 2025-11-25 for clients. A handle has the task's fields in `task`, other results have them at their
//! top; `tasks/result` returns the outcome. A tool's own failure is `failed` here (L25-44), with its text as the status
//! message. [`super::related_task`] writes the messages between requests.

mod list_params;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::face_dialect::{FaceDialect, TaskCommand, TaskReply, list_cursor, list_page, milliseconds, task_id};
use super::faults::{RequestError, already_settled, cancelled_words, not_in_flavour, session_failure_error};
use super::related_task::RelatedTask;
use super::session_results::outcome;
use crate::task::time::millis;
use crate::task::{Draft, Drafts, Failure, PhaseKind, Summary, SummaryPhase, Task, TaskId, TaskMode, TreeLinks};
use crate::wire::meta::{DRAFT_TASK, IMMEDIATE_RESPONSE, META};
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
        let immediate = self.immediate_response.as_deref();
        let meta = immediate.map(|text| ObjectWriter::new().text(IMMEDIATE_RESPONSE, text).finish());
        ObjectWriter::new().member("task", &self.fields(&Summary::of(task))).optional(META, meta.as_ref()).finish()
    }

    /// The Task object (L25-16 to L25-18).
    fn fields(&self, task: &Summary) -> Payload {
        let writer = ObjectWriter::new()
            .plain_text("taskId", &task.key.id.text())
            .text("status", status(task.phase.kind()))
            .optional_text("statusMessage", status_message(task).as_deref())
            .plain_text("createdAt", &task.created_at.text())
            .plain_text("lastUpdatedAt", &task.updated_at.text())
            .number("ttl", millis(task.ttl))
            .number("pollInterval", millis(task.poll_interval));
        if self.names_tree { tree_fields(writer, &task.tree) } else { writer }.finish()
    }

    /// One page of a list (L25-33, L25-34).
    fn page(&self, tasks: &[Summary], next: Option<&str>) -> Payload {
        let tasks: Vec<Payload> = tasks.iter().map(|task| self.fields(task)).collect();
        list_page(&tasks, next)
    }
}

/// Adds a task's parent and children, by the ids that `tasks/get` takes (SEP-2268).
fn tree_fields(writer: ObjectWriter, tree: &TreeLinks) -> ObjectWriter {
    let parent = tree.parent.as_ref().map(ToString::to_string);
    let writer = writer.optional_text("parentTaskId", parent.as_deref());
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
            TaskReply::Outcome(task) => {
                outcome(&task.phase, || RelatedTask::of(task.key.id, None).under(self.parent(task)))
            }
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
        params.get_object("task").map(|task| Self::of_task(&task)).transpose()
    }

    fn of_task(task: &Object) -> Result<Self, RequestError> {
        let wrong = RequestError::params("task.ttl must be a number of milliseconds, 0 or more");
        Self::of(task.get("ttl")).ok_or(wrong)
    }

    /// Reads null or milliseconds; `None` for anything else.
    pub(super) fn of(written: Option<Payload>) -> Option<Self> {
        match written {
            None => Some(Self::Default),
            Some(span) if span.as_str() == "null" => Some(Self::Longest),
            Some(span) => milliseconds(&span).map(Self::For),
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

/// Serves 2025-11-25 tasks to clients that read handles as results, such as FastMCP 2.14. Such a client asks for a task
/// as others do, in every version's sessions, or in `_meta` like SEP-1686 without an id. It reads the id in `_meta` of
/// a result with `content`, others read `task`: one handle serves both.
#[derive(Clone, Debug, Default)]
pub struct HybridTasks {
    core: CoreTasks,
}

impl HybridTasks {
    pub const fn over(core: CoreTasks) -> Self {
        Self { core }
    }

    /// Reads a call's wish in a session of `version`; fails as [`CoreTasks::wish`], about the tool in sessions with
    /// tasks only. A wish in another form than 2025-11-25's, at a tool that takes no task, gets a plain response.
    pub fn wish(
        params: &Object,
        mode: TaskMode,
        version: ProtocolVersion,
    ) -> Result<Option<RequestedTtl>, RequestError> {
        let asked = match (mode, RequestedTtl::read(params)) {
            (TaskMode::Never, _) => None,
            (_, Ok(None)) => in_meta(params)?,
            (_, asked) => asked?,
        };
        match asked {
            None if CoreTasks::are_offered_in(version) => CoreTasks::wish(params, mode),
            asked => Ok(asked),
        }
    }

    fn created(&self, task: &Task) -> Result<Payload, RpcError> {
        let handle = self.core.encode(TaskReply::Created(task))?;
        let Some(handle) = Object::of(&handle) else { return Ok(handle) };
        let task = Summary::of(task);
        let named = ObjectWriter::new()
            .text("taskId", &task.key.id.to_string())
            .text("status", status(task.phase.kind()))
            .finish();
        let meta = match handle.get_object(META) {
            Some(meta) => meta.edit().set(DRAFT_TASK, named).finish(),
            None => ObjectWriter::new().member(DRAFT_TASK, &named).finish(),
        };
        Ok(handle.edit().set("content", Payload::of::<[Payload; 0]>(&[])).set(META, meta).finish())
    }
}

/// The wish of a call with the draft's key, a `ttl` in it and no id (T-37).
fn in_meta(params: &Object) -> Result<Option<RequestedTtl>, RequestError> {
    match params.get_object(META).and_then(|meta| meta.get_object(DRAFT_TASK)) {
        Some(task) if task.contains("ttl") && !task.contains("taskId") => RequestedTtl::of_task(&task).map(Some),
        Some(_) | None => Ok(None),
    }
}

impl FaceDialect for HybridTasks {
    fn decode(&self, method: &str, params: &Object) -> Result<TaskCommand, RequestError> {
        self.core.decode(method, params)
    }

    fn pieces(&self, reply: TaskReply<'_>) -> Result<JsonPieces, RpcError> {
        if let TaskReply::Created(task) = reply {
            return self.created(task).map(JsonPieces::from);
        }
        self.core.pieces(reply)
    }
}

#[cfg(test)]
mod tests;
