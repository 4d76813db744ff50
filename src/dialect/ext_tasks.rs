//! Encodes the extension `io.modelcontextprotocol/tasks` of 2026-07-28. Task fields are flat; `tasks/get` inlines
//! outcomes. Only JSON-RPC errors are `failed`, no tool's failure (EXT-29).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::face_dialect::{FaceDialect, TaskCommand, TaskReply, task_id};
use super::faults::{RequestError, cancelled_words, failure_error, not_in_flavour};
use super::inputs;
use crate::task::time::millis;
use crate::task::{Answer, InputKey, Outcome, Phase, Task};
use crate::wire::meta::{META, SUBTASKS};
use crate::wire::object::ObjectWriter;
use crate::wire::{JsonPieces, Object, Payload, RpcError, method};

#[derive(Clone, Debug)]
pub struct ExtTasks {
    /// `_meta` of every result: the server's identity (MOD-13).
    meta: Payload,
}

impl ExtTasks {
    pub const fn new(meta: Payload) -> Self {
        Self { meta }
    }

    pub fn is_method(name: &str) -> bool {
        matches!(name, method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL)
    }

    /// The task with the outcomes of its settled subtasks by index, in `_meta`: the extension has no subtasks.
    pub fn snapshot_with(&self, task: &Task, settled: &[(usize, Arc<Task>)]) -> JsonPieces {
        if settled.is_empty() {
            return self.detailed(task);
        }
        let parts: Vec<Payload> = settled.iter().map(|(index, part)| settled_part(*index, part)).collect();
        let parts = Payload::of(&parts);
        let meta = match Object::of(&self.meta) {
            Some(meta) => meta.edit().set(SUBTASKS, parts).finish(),
            None => ObjectWriter::new().member(SUBTASKS, &parts).finish(),
        };
        Self { meta }.detailed(task)
    }

    fn envelope(&self, result_type: &str) -> ObjectWriter {
        self.begin(ObjectWriter::new(), result_type)
    }

    fn begin(&self, writer: ObjectWriter, result_type: &str) -> ObjectWriter {
        writer.text("resultType", result_type).member(META, &self.meta)
    }

    /// The Task object with the members of its status (EXT-21 to EXT-26, EXT-32).
    fn detailed(&self, task: &Task) -> JsonPieces {
        let writer = ObjectWriter::with_room(inlined_bytes(&task.phase));
        let writer = task_fields(self.begin(writer, "complete"), task);
        match &task.phase {
            Phase::Queued | Phase::Working => writer.finish_pieces(),
            Phase::AwaitingInput(open) => writer.member("inputRequests", &inputs::requests(open)).finish_pieces(),
            Phase::Settled(outcome) => with_outcome(writer, outcome).finish_pieces(),
        }
    }
}

/// The bytes of a result that is copied into the answer: larger ones are shared.
fn inlined_bytes(phase: &Phase) -> usize {
    match phase {
        Phase::Settled(Outcome::Returned { result, .. }) if result.len() < JsonPieces::SHARED_MIN => result.len(),
        Phase::Queued | Phase::Working | Phase::AwaitingInput(_) | Phase::Settled(_) => 0,
    }
}

fn with_outcome(writer: ObjectWriter, outcome: &Outcome) -> ObjectWriter {
    match outcome {
        Outcome::Cancelled => writer,
        // The inlined result is a CallToolResult of 2026-07-28, which requires its own `resultType` (T-13).
        Outcome::Returned { result, .. } => writer.member_led_by("result", "resultType", "complete", result),
        Outcome::Faulted(failure) => writer.member("error", &Payload::of(&failure_error(failure))),
    }
}

fn settled_part(index: usize, part: &Task) -> Payload {
    let writer = ObjectWriter::new().number("index", index as u64).text("status", status(&part.phase));
    match &part.phase {
        Phase::Settled(outcome) => with_outcome(writer, outcome).finish(),
        Phase::Queued | Phase::Working | Phase::AwaitingInput(_) => writer.finish(),
    }
}

impl FaceDialect for ExtTasks {
    fn decode(&self, method: &str, params: &Object) -> Result<TaskCommand, RequestError> {
        let id = task_id(params)?;
        match method {
            method::TASKS_GET => Ok(TaskCommand::Get(id)),
            method::TASKS_CANCEL => Ok(TaskCommand::Cancel(id)),
            method::TASKS_UPDATE => Ok(TaskCommand::Answer(id, answers(params)?)),
            other => Err(RequestError::UnknownMethod(other.to_owned().into())),
        }
    }

    fn pieces(&self, reply: TaskReply<'_>) -> Result<JsonPieces, RpcError> {
        Ok(match reply {
            TaskReply::Created(task) => task_fields(self.envelope("task"), task).finish_pieces(),
            TaskReply::Snapshot(task) => self.detailed(task),
            // A cancel of a settled task is acknowledged and changes nothing (T-06, EXT-71).
            TaskReply::Answered | TaskReply::Cancelled { .. } => self.envelope("complete").finish_pieces(),
            // Outcomes are inlined, and there is no list.
            TaskReply::Outcome(_) | TaskReply::Fetched(_) | TaskReply::Deleted | TaskReply::Listed { .. } => {
                return Err(not_in_flavour());
            }
        })
    }
}

/// The Task object (EXT-15). A handle carries these fields and no others (EXT-18).
fn task_fields(writer: ObjectWriter, task: &Task) -> ObjectWriter {
    writer
        .plain_text("taskId", &task.key.id.text())
        .text("status", status(&task.phase))
        .optional_text("statusMessage", status_message(task).as_deref())
        .plain_text("createdAt", &task.created_at.text())
        .plain_text("lastUpdatedAt", &task.updated_at.text())
        .number("ttlMs", millis(task.ttl))
        .number("pollIntervalMs", millis(task.poll_interval))
}

const fn status(phase: &Phase) -> &'static str {
    match phase {
        Phase::Queued | Phase::Working => "working",
        Phase::AwaitingInput(_) => "input_required",
        Phase::Settled(Outcome::Returned { .. }) => "completed",
        Phase::Settled(Outcome::Faulted(_)) => "failed",
        Phase::Settled(Outcome::Cancelled) => "cancelled",
    }
}

/// A failed task's error (EXT-27), a cancelled task's cancellation, else the upstream's last status message.
fn status_message(task: &Task) -> Option<Cow<'_, str>> {
    match &task.phase {
        Phase::Settled(Outcome::Faulted(failure)) => {
            crate::wire::one_line::status_text(&failure_error(failure).message).map(|text| Cow::Owned(text.to_string()))
        }
        Phase::Settled(Outcome::Cancelled) => Some(cancelled_words(task.status_message.as_deref())),
        Phase::Queued | Phase::Working | Phase::AwaitingInput(_) | Phase::Settled(Outcome::Returned { .. }) => {
            task.status_message.as_deref().map(Cow::Borrowed)
        }
    }
}

fn answers(params: &Object) -> Result<BTreeMap<InputKey, Answer>, RequestError> {
    if !params.contains("inputResponses") {
        return Err(RequestError::params("inputResponses must be an object"));
    }
    inputs::responses(params)
}

#[cfg(test)]
#[path = "ext_tasks/tests.rs"]
mod tests;
