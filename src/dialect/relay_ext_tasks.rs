//! Encodes calls to upstreams of 2026-07-28 that may make tasks of them (UPC-09 to UPC-14). No status text leaves this
//! module: callers read [`ExtensionTaskState`].

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::task::{Answer, Executed};
use crate::wire::meta::{HOP_BY_HOP, META};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, RpcError, method, rpc_error};

const TASK_ID_BYTES_MAX: usize = 1024;
/// Longest accepted key of a question, in bytes.
const KEY_BYTES_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub enum StatelessResult {
    Complete,
    /// Asks for input, after which the request is repeated.
    Round(InputRound),
    Task(ExtensionTaskHandle),
    /// Of a type that this request may not have.
    Misplaced,
    Malformed,
}

/// A request for input before the request is repeated.
#[derive(Clone, Debug)]
pub struct InputRound {
    /// The questions, by the upstream's keys; `None` without questions.
    pub requests: Option<Object>,
    /// The state to send back verbatim, if there is one (UPC-14).
    pub state: Option<Payload>,
}

#[derive(Clone, Debug)]
pub struct ExtensionTaskHandle {
    /// The upstream's own id, never sent to clients (T-67).
    pub id: Arc<str>,
    pub task: ExtensionTask,
    /// Whether its status is not `working`. Handles hold neither questions nor a result, so the task must be polled.
    pub has_news: bool,
    /// The handle verbatim, for display.
    pub payload: Payload,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionTask {
    /// The upstream's status text, for display; empty without one.
    pub status_text: String,
    /// The upstream's status message, never empty. Not yet sanitised.
    pub message: Option<String>,
    /// The minimum interval between polls: more than zero, unless it rounds to zero.
    pub poll_interval: Option<Duration>,
    pub ttl: Option<Duration>,
}

#[derive(Clone, Debug)]
pub enum ExtensionTaskState {
    Working,
    /// The open questions, by the upstream's keys.
    Asking(Object),
    Returned(Payload),
    Faulted(RpcError),
    Cancelled,
    /// An unknown status: treated as work (GW-14).
    Unknown,
    /// A member that the status requires is missing.
    Malformed(Executed),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionQuestion {
    pub method: Arc<str>,
    /// Without members of this hop or of other versions.
    pub params: Option<Payload>,
}

/// Classifies a result: only a `tools/call` may get a task, and only some methods questions.
pub fn answered(request: &str, result: &Payload) -> StatelessResult {
    let Some(object) = Object::of(result) else { return StatelessResult::Malformed };
    // Some readers ignore the case of a name.
    if object.case_variant(&["resultType"]).is_some() {
        return StatelessResult::Malformed;
    }
    if !object.contains("resultType") {
        return StatelessResult::Complete;
    }
    match object.get_string("resultType").unwrap_or_default().as_str() {
        "complete" => StatelessResult::Complete,
        "input_required" if method::may_ask(request) => StatelessResult::Round(InputRound {
            requests: object.get_object("inputRequests").filter(|requests| requests.keys().next().is_some()),
            state: object.get("requestState"),
        }),
        "task" if request == method::TOOLS_CALL => {
            handle(&object).map_or(StatelessResult::Malformed, StatelessResult::Task)
        }
        _ => StatelessResult::Misplaced,
    }
}

fn handle(object: &Object) -> Option<ExtensionTaskHandle> {
    let id = object.get_string("taskId").filter(|id| (1..=TASK_ID_BYTES_MAX).contains(&id.len()))?;
    Some(ExtensionTaskHandle {
        id: Arc::from(id),
        task: described(object),
        has_news: object.get_string("status").is_some_and(|status| status != "working"),
        payload: object.payload().clone(),
    })
}

/// Reads the result of `tasks/get`; `None` if it describes no task.
pub fn polled(result: &Payload) -> Option<(ExtensionTask, ExtensionTaskState)> {
    let object = Object::of(result)?;
    let task = described(&object);
    let state = match task.status_text.as_str() {
        "working" => ExtensionTaskState::Working,
        "input_required" => object
            .get_object("inputRequests")
            .map_or(ExtensionTaskState::Malformed(Executed::Unknown), ExtensionTaskState::Asking),
        "completed" => object
            .get("result")
            .filter(|result| matches!(answered(method::TOOLS_CALL, result), StatelessResult::Complete))
            .map_or(ExtensionTaskState::Malformed(Executed::Yes), ExtensionTaskState::Returned),
        "failed" => object
            .get_object("error")
            .and_then(|error| RpcError::from_object(&error))
            .map_or(ExtensionTaskState::Malformed(Executed::Yes), |error| ExtensionTaskState::Faulted(error.bounded())),
        "cancelled" => ExtensionTaskState::Cancelled,
        _ => ExtensionTaskState::Unknown,
    };
    Some((task, state))
}

fn described(object: &Object) -> ExtensionTask {
    ExtensionTask {
        status_text: object.get_string("status").unwrap_or_default(),
        message: object.get_lossy("statusMessage").filter(|message| !message.is_empty()),
        poll_interval: span(object, "pollIntervalMs"),
        ttl: span(object, "ttlMs"),
    }
}

/// A member in milliseconds; fractions are accepted (GW-08). One beyond the range of `Duration` is the longest.
fn span(object: &Object, key: &str) -> Option<Duration> {
    let millis = object.get(key)?.as_str().parse::<f64>().ok().filter(|millis| *millis > 0.0)?;
    Some(Duration::try_from_secs_f64(millis / 1_000.0).unwrap_or(Duration::MAX))
}

/// Reads an entry of `inputRequests` under its key; `None` if it is no question.
pub fn question(key: &str, entry: &Payload) -> Option<ExtensionQuestion> {
    let entry = Object::of(entry)?;
    let is_question = |name: &String| [method::ELICIT, method::SAMPLE, method::ROOTS].contains(&name.as_str());
    let method = entry.get_string("method").filter(|name| is_question(name) && key.len() <= KEY_BYTES_MAX)?;
    Some(ExtensionQuestion {
        method: Arc::from(method),
        params: entry.get_object("params").map(|params| of_this_hop(&params)),
    })
}

fn of_this_hop(params: &Object) -> Payload {
    let mut edit = params.edit().remove("task").remove("elicitationId");
    if let Some(meta) = params.get_object(META) {
        let kept = HOP_BY_HOP.iter().fold(meta.edit(), |kept, key| kept.remove(key)).finish();
        edit = edit.set(META, kept);
    }
    edit.finish().detached()
}

/// An entry of `inputResponses`; an error that cannot be expressed as one ends the call (T-48).
pub fn response(question: &str, answer: Answer) -> Result<Payload, RpcError> {
    match answer {
        Answer::Result(result) => Ok(result),
        Answer::Error(error) => match question {
            method::ELICIT => Ok(Payload::of(&json!({ "action": "cancel" }))),
            method::ROOTS => Ok(Payload::of(&json!({ "roots": [] }))),
            _ => Err(error),
        },
    }
}

/// `inputResponses` from these answers by the upstream's keys; `None` without answers.
pub fn responses<'a>(mut answered: impl Iterator<Item = (&'a str, &'a Payload)>) -> Option<Payload> {
    let (first_key, first) = answered.next()?;
    let writer = ObjectWriter::new().any_member(first_key, first);
    Some(answered.fold(writer, |writer, (key, answer)| writer.any_member(key, answer)).finish())
}

/// The params of a repeated request, with the input that its [`InputRound`] asked for (UPC-14).
pub fn repeated(params: Option<&Payload>, responses: Option<Payload>, state: Option<Payload>) -> Option<Payload> {
    let params = params.cloned().unwrap_or_else(Payload::empty_object);
    let params = Object::of(&params)?;
    let mut edit = params.edit();
    if let Some(responses) = responses {
        edit = edit.set("inputResponses", responses);
    }
    if let Some(state) = state {
        edit = edit.set("requestState", state);
    }
    Some(edit.finish())
}

pub fn params_of(task: &str) -> Payload {
    ObjectWriter::new().text("taskId", task).finish()
}

pub fn update_of(task: &str, responses: &Payload) -> Payload {
    ObjectWriter::new().text("taskId", task).member("inputResponses", responses).finish()
}

/// Whether an error means that the upstream does not know the task: its outcome is then lost.
pub const fn is_of_an_unknown_task(error: &RpcError) -> bool {
    error.code == rpc_error::INVALID_PARAMS
}

#[cfg(test)]
#[path = "relay_ext_tasks/tests.rs"]
mod tests;
