//! Encodes tasks for clients without tasks: a result that names the task, and three tools. Every response is a result
//! of `tools/call`: a task's outcome verbatim, other replies as text and structured content.

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde_json::json;

use super::face_dialect::{FaceDialect, TaskCommand, TaskReply};
use super::faults::{RequestError, not_in_flavour, session_failure_error};
use super::lifecycle::{completed_result, stateless_result};
use super::session_results::{STRUCTURED_CONTENT, failed_result, session_result};
use crate::task::time::millis;
use crate::task::{Outcome, Phase, Question, Task, TaskId};
use crate::wire::object::ObjectWriter;
use crate::wire::{JsonPieces, Object, Payload, RpcError, method};

/// Prefix of the three names, repeated as needed, if the upstream has a tool of such a name.
const PREFIX: &str = "taskgate_";
/// Most repetitions: an upstream with more such names has them on purpose.
pub const LEVELS: usize = 4;
/// How long `task_result` waits by default: well under the 60 s after which many clients time out.
pub const WAIT_DEFAULT: Duration = Duration::from_secs(30);
/// Longest wait; a longer wish is capped.
pub const WAIT_MAX: Duration = Duration::from_secs(50);
/// Longest id that is read (B119).
const ID_BYTES_MAX: usize = 128;
/// The text for an unknown task, equal for all clients.
const UNKNOWN: &str = "There is no such task. Its id may be mistyped, or its time to live may be over.";

named_variants! {
    pub enum FallbackTool, base {
        Status = "task_status",
        Result = "task_result",
        Cancel = "task_cancel",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackToolName {
    pub tool: FallbackTool,
    /// How often the prefix is repeated: less than [`LEVELS`].
    pub level: usize,
}

impl FallbackTool {
    /// Its name with the prefix repeated `level` times.
    pub fn name(self, level: usize) -> String {
        [&PREFIX.repeat(level), self.base()].concat()
    }

    /// The tool that a name means, unless the upstream has a tool of that name.
    pub fn named(name: &str) -> Option<FallbackToolName> {
        let (mut rest, mut level) = (name, 0);
        while let Some(shorter) = rest.strip_prefix(PREFIX) {
            (rest, level) = (shorter, level + 1);
        }
        let tool = Self::ALL.into_iter().find(|tool| tool.base() == rest)?;
        (level < LEVELS).then_some(FallbackToolName { tool, level })
    }

    /// Whether an item of a tool list is the gateway's own, not an upstream's tool with such a name.
    pub fn is_definition(item: &Payload) -> bool {
        let named = Object::of(item).and_then(|item| Self::named(&item.get_str("name")?));
        named.is_some_and(|named| named.tool.definition(named.level).as_str() == item.as_str())
    }

    pub fn definition(self, level: usize) -> Payload {
        let [status, result, cancel] = Self::ALL.map(|tool| tool.name(level));
        let (title, description) = match self {
            Self::Status => (
                "Task status",
                format!(
                    "Reports the state of a task: a call of another tool that takes long and continues in the background. Once it is completed, {result} gives its result."
                ),
            ),
            Self::Result => (
                "Task result",
                format!(
                    "Waits until a task ends, and returns the result of its call. If it still runs after wait_seconds, the answer says so: call {result} again then. {status} does not wait."
                ),
            ),
            Self::Cancel => (
                "Cancel task",
                format!(
                    "Stops a task that is not wanted any more. {cancel} cannot be undone, and changes nothing about a task that has ended."
                ),
            ),
        };
        let id = json!({ "type": "string", "description": "The id that the result of the call gave." });
        let wait = json!({
            "type": "number", "minimum": 0, "maximum": WAIT_MAX.as_secs(), "default": WAIT_DEFAULT.as_secs(),
            "description": "How many seconds to wait at most.",
        });
        let properties = match self {
            Self::Status | Self::Cancel => json!({ "id": id }),
            Self::Result => json!({ "id": id, "wait_seconds": wait }),
        };
        let reads = self != Self::Cancel;
        let definition = json!({
            "name": self.name(level),
            "title": title,
            "description": description,
            "inputSchema": { "type": "object", "properties": properties, "required": ["id"], "additionalProperties": false },
            "annotations": {
                "title": title, "readOnlyHint": reads, "destructiveHint": !reads,
                "idempotentHint": true, "openWorldHint": false,
            },
        });
        match self {
            // It returns the result of any tool, so it has no output schema.
            Self::Result => Payload::of(&definition),
            Self::Status | Self::Cancel => with_output_schema(&Payload::of(&definition)),
        }
    }
}

fn with_output_schema(definition: &Payload) -> Payload {
    let text = || json!({ "type": "string" });
    let schema = json!({
        "type": "object",
        "properties": {
            "taskId": text(), "tool": text(),
            "status": { "type": "string", "enum": ["working", "input_required", "completed", "failed", "cancelled"] },
            "statusMessage": text(), "createdAt": text(), "lastUpdatedAt": text(),
            "ttl": { "type": "integer" }, "pollInterval": { "type": "integer" },
            "questions": { "type": "array", "items": text() },
        },
        "required": ["taskId", "tool", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"],
    });
    match Object::of(definition) {
        Some(object) => object.edit().set("outputSchema", Payload::of(&schema)).finish(),
        None => definition.clone(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackToolArguments {
    /// `None` for an id that cannot be ours: an unknown task.
    pub id: Option<TaskId>,
    pub wait: Duration,
}

impl FallbackToolArguments {
    /// The error is a sentence for the model about the fault in the arguments.
    pub fn read(tool: FallbackTool, arguments: Option<&Object>) -> Result<Self, &'static str> {
        let id = arguments.and_then(|arguments| arguments.get_string("id"));
        let id = id.filter(|id| !id.is_empty() && id.len() <= ID_BYTES_MAX && !id.contains(char::is_control));
        let id = id.ok_or("id must be a string: the id that the result of the call gave.")?;
        let wait = match arguments.and_then(|arguments| arguments.get("wait_seconds")) {
            Some(seconds) if tool == FallbackTool::Result => {
                let seconds = seconds.as_str().parse::<f64>().ok().filter(|seconds| *seconds >= 0.0);
                let seconds = seconds.ok_or("wait_seconds must be a number that is not negative.")?;
                Duration::from_secs_f64(seconds.min(WAIT_MAX.as_secs_f64()))
            }
            Some(_) | None => WAIT_DEFAULT,
        };
        Ok(Self { id: TaskId::parse(&id), wait })
    }
}

#[derive(Clone, Debug)]
pub struct FallbackTools {
    /// The prefix repetitions in this client's tool names.
    level: usize,
    /// The server's identity, which results of 2026-07-28 carry.
    identity: Option<Payload>,
}

impl FallbackTools {
    pub const fn for_session(level: usize) -> Self {
        Self { level, identity: None }
    }

    /// For stateless clients, with the server's identity in results.
    pub const fn for_stateless(level: usize, server_info: Payload) -> Self {
        Self { level, identity: Some(server_info) }
    }

    /// The result for an unknown task: the same for another client's task.
    pub fn unknown(&self) -> Payload {
        self.failed(UNKNOWN)
    }

    pub fn failed(&self, why: &str) -> Payload {
        self.finished(&failed_result(why))
    }

    fn finished(&self, result: &Payload) -> Payload {
        match &self.identity {
            Some(server_info) => stateless_result(method::TOOLS_CALL, result, server_info),
            None => session_result(method::TOOLS_CALL, result).whole(),
        }
    }

    fn text_result(&self, text: &str, task: &Task) -> Payload {
        let block = ObjectWriter::new().text("type", "text").text("text", text).finish();
        let writer = ObjectWriter::new().member("content", &Payload::of(&[block]));
        self.finished(&writer.member(STRUCTURED_CONTENT, &status_content(task)).finish())
    }

    /// The response to a call that outlived its grace period.
    fn notice(&self, task: &Task) -> Payload {
        let [status, result, cancel] = FallbackTool::ALL.map(|tool| tool.name(self.level));
        let (tool, id) = (&task.origin.tool, task.key.id);
        self.text_result(
            &format!("{tool} takes longer and goes on in the background as task {id}. This is not its result yet, and there is no need to call {tool} again. Call {result} with {{\"id\": \"{id}\"}} to wait for the result, {status} to see how it stands, or {cancel} to stop it."),
            task,
        )
    }

    fn snapshot(&self, task: &Task) -> Payload {
        let (tool, id) = (&task.origin.tool, task.key.id);
        let result = FallbackTool::Result.name(self.level);
        let state = match &task.phase {
            Phase::Queued => "waits for its turn".to_owned(),
            Phase::Working => format!("is still running. Call {result} to wait for its result"),
            Phase::AwaitingInput(open) => {
                let questions: Vec<_> = open.values().map(asked).collect();
                format!(
                    "waits for an answer that only the user can give, where the client asks for it: {}",
                    questions.join(" / ")
                )
            }
            Phase::Settled(Outcome::Returned { is_error: false, .. }) => {
                format!("is completed. Call {result} for its result")
            }
            Phase::Settled(Outcome::Returned { is_error: true, .. } | Outcome::Faulted(_)) => {
                format!("has failed. Call {result} to learn why")
            }
            Phase::Settled(Outcome::Cancelled) => "was cancelled".to_owned(),
        };
        let message = task.status_message.as_deref().filter(|_| !task.is_settled());
        let message = message.map_or_else(String::new, |message| format!(" It says: {message}"));
        self.text_result(&format!("Task {id} ({tool}) {state}.{message}"), task)
    }

    fn outcome(&self, task: &Task) -> JsonPieces {
        let (tool, id) = (&task.origin.tool, task.key.id);
        match &task.phase {
            Phase::Settled(Outcome::Returned { result, .. }) => return self.returned(result),
            Phase::Settled(Outcome::Faulted(failure)) => {
                let error = session_failure_error(failure);
                self.failed(&format!("The call of {tool} failed: {} ({})", error.message, error.code))
            }
            Phase::Settled(Outcome::Cancelled) => {
                self.failed(&format!("Task {id} ({tool}) was cancelled and has no result."))
            }
            Phase::Queued | Phase::Working | Phase::AwaitingInput(_) => self.snapshot(task),
        }
        .into()
    }

    /// Encodes a task's result for this client's version, without copying a large payload.
    fn returned(&self, result: &Payload) -> JsonPieces {
        match &self.identity {
            Some(server_info) => completed_result(method::TOOLS_CALL, result, server_info),
            None => session_result(method::TOOLS_CALL, result),
        }
    }

    fn cancelled(&self, task: &Task, was_settled: bool) -> Payload {
        let (tool, id) = (&task.origin.tool, task.key.id);
        let text = if was_settled {
            format!("Task {id} ({tool}) had ended before ({}); nothing was changed.", status(&task.phase))
        } else {
            format!("Task {id} ({tool}) was cancelled.")
        };
        self.text_result(&text, task)
    }
}

impl FaceDialect for FallbackTools {
    fn decode(&self, _: &str, params: &Object) -> Result<TaskCommand, RequestError> {
        let named = params.get_str("name").and_then(|name| FallbackTool::named(&name));
        let tool = named.ok_or_else(|| RequestError::unknown_tool(Some(params)))?.tool;
        let asked = FallbackToolArguments::read(tool, params.get_object("arguments").as_ref());
        let id = asked.map_err(RequestError::params)?.id.ok_or(RequestError::UnknownTask)?;
        Ok(match tool {
            FallbackTool::Status => TaskCommand::Get(id),
            FallbackTool::Result => TaskCommand::Await(id),
            FallbackTool::Cancel => TaskCommand::Cancel(id),
        })
    }

    fn pieces(&self, reply: TaskReply<'_>) -> Result<JsonPieces, RpcError> {
        match reply {
            TaskReply::Created(task) => Ok(self.notice(task).into()),
            TaskReply::Snapshot(task) => Ok(self.snapshot(task).into()),
            TaskReply::Outcome(task) => Ok(self.outcome(task)),
            TaskReply::Cancelled { task, was_settled } => Ok(self.cancelled(task, was_settled).into()),
            TaskReply::Fetched(_) | TaskReply::Deleted | TaskReply::Answered | TaskReply::Listed { .. } => {
                Err(not_in_flavour())
            }
        }
    }
}

fn status_content(task: &Task) -> Payload {
    let writer = ObjectWriter::new()
        .plain_text("taskId", &task.key.id.text())
        .text("tool", &task.origin.tool)
        .text("status", status(&task.phase))
        .optional_text("statusMessage", task.status_message.as_deref())
        .plain_text("createdAt", &task.created_at.text())
        .plain_text("lastUpdatedAt", &task.updated_at.text())
        .number("ttl", millis(task.ttl))
        .number("pollInterval", millis(task.poll_interval));
    match &task.phase {
        Phase::AwaitingInput(open) => {
            let questions: Vec<_> = open.values().map(asked).collect();
            writer.member("questions", &Payload::of(&questions))
        }
        Phase::Queued | Phase::Working | Phase::Settled(_) => writer,
    }
    .finish()
}

fn asked(question: &Question) -> String {
    let request = Object::of(&question.request);
    let message = request.as_ref().and_then(|request| request.get_object("params"));
    let message = message.and_then(|params| params.get_lossy("message"));
    let kind = || request.as_ref().and_then(|request| request.get_string("method")).unwrap_or_default();
    message.unwrap_or_else(kind)
}

const fn status(phase: &Phase) -> &'static str {
    match phase {
        Phase::Queued | Phase::Working => "working",
        Phase::AwaitingInput(_) => "input_required",
        Phase::Settled(Outcome::Returned { is_error: false, .. }) => "completed",
        Phase::Settled(Outcome::Returned { is_error: true, .. } | Outcome::Faulted(_)) => "failed",
        Phase::Settled(Outcome::Cancelled) => "cancelled",
    }
}
