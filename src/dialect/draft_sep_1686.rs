//! Encodes tasks of the SEP-1686 draft for session clients. A call has its task's id in `_meta`, chosen by the client
//! and unique in its session, and still gets its own response ([`ChosenId::task_id`]). A tool's own failure is
//! `completed` (D86-26). [`super::related_task`] writes messages.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::core_2025_11_25::RequestedTtl;
use super::face_dialect::{FaceDialect, TaskCommand, TaskReply, list_cursor, list_page};
use super::faults::{RequestError, already_settled, not_completed, not_in_flavour, session_failure_error};
use super::related_task::RelatedTask;
use super::session_results::outcome;
use crate::task::time::millis;
use crate::task::{ChosenId, Failure, GatewayFault, Outcome, Phase, Reason, SessionScope, Task, TaskId};
use crate::wire::meta::{DRAFT_TASK, META};
use crate::wire::object::ObjectWriter;
use crate::wire::one_line::status_text;
use crate::wire::{JsonPieces, Object, Payload, RpcError, envelope, method};

#[derive(Clone, Debug)]
pub struct DraftTasks {
    session: SessionScope,
    /// The id in the request, if it is usable.
    named: Option<Arc<str>>,
}

impl DraftTasks {
    pub fn for_request(session: SessionScope, params: &Object) -> Self {
        Self { session, named: chosen_text(params).ok() }
    }

    pub fn for_call(chosen: &ChosenId) -> Self {
        Self { session: chosen.session, named: Some(Arc::clone(&chosen.text)) }
    }

    /// Whether this is a method of the draft. `tasks/cancel` is not in the draft, but means the same as the draft's notification.
    pub fn is_method(name: &str) -> bool {
        matches!(
            name,
            method::TASKS_GET | method::TASKS_RESULT | method::TASKS_LIST | method::TASKS_DELETE | method::TASKS_CANCEL
        )
    }

    /// The first message on the stream of a call that became a task (D86-02).
    pub fn created(chosen: &ChosenId) -> Bytes {
        let params = ObjectWriter::new().member(META, &RelatedTask::chosen(&chosen.text).meta()).finish();
        envelope::notification(method::TASK_CREATED, Some(&params))
    }

    /// One page of a list (D86-20, D86-21), of tasks with chosen ids.
    pub fn page(&self, tasks: &[Arc<Task>], next: Option<&str>) -> Payload {
        let tasks: Vec<Payload> = tasks.iter().map(|task| self.fields(task).finish()).collect();
        list_page(&tasks, next)
    }

    fn key(&self, params: &Object) -> Result<TaskId, RequestError> {
        Ok(ChosenId { session: self.session, text: chosen_text(params)? }.task_id())
    }

    /// The id that the client chose. Read from the request if the task has lost its own to damage on the disk.
    fn text(&self, task: &Task) -> Arc<str> {
        match (&task.chosen, &self.named) {
            (Some(chosen), _) => Arc::clone(&chosen.text),
            (None, Some(named)) => Arc::clone(named),
            (None, None) => Arc::from(task.key.id.to_string()),
        }
    }

    fn related(&self, task: &Task) -> RelatedTask {
        RelatedTask::chosen(&self.text(task))
    }

    /// The members of a task (D86-13, D86-25).
    fn fields(&self, task: &Task) -> ObjectWriter {
        ObjectWriter::new()
            .text("taskId", &self.text(task))
            .text("status", status(&task.phase))
            .number("keepAlive", millis(task.keep_result_min))
            .number("pollFrequency", millis(task.poll_interval))
            .optional_text("error", error(&task.phase).as_deref())
    }

    fn snapshot(&self, task: &Task) -> Payload {
        self.fields(task).member(META, &self.related(task).meta()).finish()
    }
}

impl FaceDialect for DraftTasks {
    fn decode(&self, method: &str, params: &Object) -> Result<TaskCommand, RequestError> {
        match method {
            method::TASKS_GET => Ok(TaskCommand::Get(self.key(params)?)),
            method::TASKS_RESULT => Ok(TaskCommand::Fetch(self.key(params)?)),
            method::TASKS_DELETE => Ok(TaskCommand::Delete(self.key(params)?)),
            method::TASKS_CANCEL => Ok(TaskCommand::Cancel(self.key(params)?)),
            method::TASKS_LIST => Ok(TaskCommand::List(list_cursor(params)?)),
            other => Err(RequestError::UnknownMethod(other.to_owned().into())),
        }
    }

    fn pieces(&self, reply: TaskReply<'_>) -> Result<JsonPieces, RpcError> {
        match reply {
            TaskReply::Snapshot(task) => Ok(self.snapshot(task).into()),
            TaskReply::Cancelled { was_settled: true, .. } => Err(already_settled()),
            TaskReply::Cancelled { task, was_settled: false } => Ok(self.snapshot(task).into()),
            TaskReply::Outcome(task) => outcome(&task.phase, || self.related(task)),
            // D86-15: only a `completed` task has a result.
            TaskReply::Fetched(task) => match &task.phase {
                Phase::Settled(Outcome::Returned { .. }) => outcome(&task.phase, || self.related(task)),
                phase @ (Phase::Queued | Phase::Working | Phase::AwaitingInput(_) | Phase::Settled(_)) => {
                    Err(not_completed(status(phase)))
                }
            },
            TaskReply::Deleted => {
                let related = self.named.as_ref().map(|named| RelatedTask::chosen(named).meta());
                let related = related.unwrap_or_else(Payload::empty_object);
                Ok(ObjectWriter::new().member(META, &related).finish().into())
            }
            // The draft has no handles, and its pages have whole tasks.
            TaskReply::Created(_) | TaskReply::Answered | TaskReply::Listed { .. } => Err(not_in_flavour()),
        }
    }
}

/// The status text of a phase (D86-07 to D86-09).
const fn status(phase: &Phase) -> &'static str {
    match phase {
        Phase::Queued => "submitted",
        Phase::Working => "working",
        Phase::AwaitingInput(_) => "input_required",
        Phase::Settled(Outcome::Returned { .. }) => "completed",
        // The outcome was in the damaged record.
        Phase::Settled(Outcome::Faulted(Failure::Gateway(GatewayFault { reason: Reason::StoreCorrupt, .. }))) => {
            "unknown"
        }
        Phase::Settled(Outcome::Faulted(_)) => "failed",
        Phase::Settled(Outcome::Cancelled) => "cancelled",
    }
}

/// The error of a failed task (D86-25), as one line.
fn error(phase: &Phase) -> Option<Arc<str>> {
    match phase {
        Phase::Settled(Outcome::Faulted(failure)) => status_text(&session_failure_error(failure).message),
        Phase::Queued | Phase::Working | Phase::AwaitingInput(_) | Phase::Settled(_) => None,
    }
}

const ID_CHARS_MAX: usize = 256;

/// A call's wish for a task: the chosen id and `keepAlive`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedTask {
    pub text: Arc<str>,
    /// How long the result is kept, counted from the end of the call.
    keep_alive: RequestedTtl,
}

impl RequestedTask {
    /// Reads the member of a call's `_meta`. One without an id, or that is no object, asks for nothing (T-37).
    pub fn read(params: &Object) -> Result<Option<Self>, RequestError> {
        let wish = params.get_object(META).and_then(|meta| meta.get_object(DRAFT_TASK));
        let Some(wish) = wish.filter(|wish| wish.contains("taskId")) else { return Ok(None) };
        let text = chosen_text(&wish)?;
        let keep_alive = RequestedTtl::of(wish.get("keepAlive"))
            .ok_or_else(|| RequestError::params("keepAlive must be a number of milliseconds, 0 or more, or null"))?;
        Ok(Some(Self { text, keep_alive }))
    }

    /// How long the result is kept: the requested time, capped (D86-29).
    pub fn keep_alive(&self, default: Duration, max: Duration) -> Duration {
        self.keep_alive.ttl(default, max)
    }
}

/// The id in the params of a task method, or in a call's wish (D86-04).
pub fn chosen_text(params: &Object) -> Result<Arc<str>, RequestError> {
    let usable = |text: &String| (1..=ID_CHARS_MAX).contains(&text.chars().count()) && !text.contains(char::is_control);
    let text = params.get_string("taskId").filter(usable);
    text.map(Arc::from).ok_or_else(|| {
        RequestError::params("taskId must be a string of 1 to 256 characters without control characters")
    })
}
