//! Serves 2025-11-25 tasks to clients that read handles as results, such as FastMCP 2.14. Such a client asks for a task
//! as others do, in every version's sessions, or in `_meta` like SEP-1686 without an id. It reads the id in `_meta` of
//! a result with `content`, others read `task`: one handle serves both.

use super::{CoreTasks, RequestedTtl, status};
use crate::dialect::face_dialect::{FaceDialect, TaskCommand, TaskReply};
use crate::dialect::faults::RequestError;
use crate::task::{Summary, Task, TaskMode};
use crate::wire::meta::{DRAFT_TASK, META};
use crate::wire::object::ObjectWriter;
use crate::wire::{JsonPieces, Object, Payload, ProtocolVersion, RpcError};

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
        Some(task) if task.contains("ttl") && !task.contains("taskId") => RequestedTtl::of(&task).map(Some),
        Some(_) | None => Ok(None),
    }
}

impl FaceDialect for HybridTasks {
    fn decode(&self, method: &str, params: &Object) -> Result<TaskCommand, RequestError> {
        self.core.decode(method, params)
    }

    fn pieces(&self, reply: TaskReply<'_>) -> Result<JsonPieces, RpcError> {
        match reply {
            TaskReply::Created(task) => self.created(task).map(JsonPieces::from),
            TaskReply::Snapshot(_)
            | TaskReply::Answered
            | TaskReply::Cancelled { .. }
            | TaskReply::Outcome(_)
            | TaskReply::Fetched(_)
            | TaskReply::Deleted
            | TaskReply::Listed { .. } => self.core.pieces(reply),
        }
    }
}
