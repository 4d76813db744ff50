//! Encodes calls at upstreams of 2026-07-28 that make tasks of them (UPC-09 to UPC-14): what is sent, and what results,
//! tasks and questions mean.
//!
//! The wire's words end here: whoever drives such a call reads [`ExtensionTaskState`] and never a status. Questions are the
//! same in a task and between two rounds of a plain call.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::task::{Answer, Executed};
use crate::wire::meta::{HOP_BY_HOP, META};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, RpcError, method, rpc_error};

/// Longest id of an upstream's task that is taken, in bytes.
const TASK_ID_BYTES_MAX: usize = 1024;
/// Longest key of a question that is taken, in bytes.
const KEY_BYTES_MAX: usize = 1024;

/// What the result of a request is (UPC-09).
#[derive(Clone, Debug)]
pub enum StatelessResult {
    /// The request's own result.
    Complete,
    /// The request is to be made again.
    Round(InputRound),
    Task(ExtensionTaskHandle),
    /// Of a type that a result of this request may not have.
    Misplaced,
    /// No object, or a handle that cannot be used.
    Malformed,
}

/// What a request that is to be made again has to say.
#[derive(Clone, Debug)]
pub struct InputRound {
    /// The questions, each by the upstream's key for it; `None` if nothing is asked.
    pub requests: Option<Object>,
    /// What goes back as it came, escapes and all; nothing where there is none (UPC-14).
    pub state: Option<Payload>,
}

/// A task that a call was answered with.
#[derive(Clone, Debug)]
pub struct ExtensionTaskHandle {
    /// The upstream's own id, never shown to clients (T-67).
    pub id: Arc<str>,
    pub task: ExtensionTask,
    /// Whether its status is another than work. Handles hold neither questions nor a result, so they are to be fetched.
    pub has_news: bool,
    /// As it came, for whoever shows it.
    pub payload: Payload,
}

/// A task as its upstream describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionTask {
    /// The upstream's word for how it stands, for whoever shows it; empty where there is none.
    pub word: String,
    /// What the upstream says about it, never empty. Not yet fit to be shown.
    pub message: Option<String>,
    /// How often it may be asked for: more than zero, unless it is next to nothing.
    pub poll_interval: Option<Duration>,
}

/// How a task stands, with what its status brings.
#[derive(Clone, Debug)]
pub enum ExtensionTaskState {
    Working,
    /// The questions that are open, each by the upstream's key for it.
    Asking(Object),
    Returned(Payload),
    Faulted(RpcError),
    /// The upstream ended it without an outcome.
    Cancelled,
    /// A word that nobody knows: taken for work (GW-14).
    Unknown,
    /// What the status has to bring is not there.
    Malformed(Executed),
}

/// A question of the upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionQuestion {
    pub method: Arc<str>,
    /// Without what belongs to this hop or to other versions.
    pub params: Option<Payload>,
}

/// Tells results apart: a task is an answer to a call alone, questions to those that may ask.
#[must_use]
pub fn answered(request: &str, result: &Payload) -> StatelessResult {
    let Some(object) = Object::of(result) else { return StatelessResult::Malformed };
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
#[must_use]
pub fn polled(result: &Payload) -> Option<(ExtensionTask, ExtensionTaskState)> {
    let object = Object::of(result)?;
    let task = described(&object);
    let state = match task.word.as_str() {
        "working" => ExtensionTaskState::Working,
        "input_required" => object
            .get_object("inputRequests")
            .map_or(ExtensionTaskState::Malformed(Executed::Unknown), ExtensionTaskState::Asking),
        "completed" => object.get_object("result").map_or(ExtensionTaskState::Malformed(Executed::Yes), |result| {
            ExtensionTaskState::Returned(result.payload().clone())
        }),
        "failed" => object
            .get_object("error")
            .as_ref()
            .and_then(RpcError::from_object)
            .map_or(ExtensionTaskState::Malformed(Executed::Yes), ExtensionTaskState::Faulted),
        "cancelled" => ExtensionTaskState::Cancelled,
        _ => ExtensionTaskState::Unknown,
    };
    Some((task, state))
}

fn described(object: &Object) -> ExtensionTask {
    ExtensionTask {
        word: object.get_string("status").unwrap_or_default(),
        message: object.get_lossy("statusMessage").filter(|message| !message.is_empty()),
        poll_interval: poll_interval(object),
    }
}

/// Whole numbers are the rule, others are understood (GW-08). What is longer than any time is as long as can be.
fn poll_interval(object: &Object) -> Option<Duration> {
    let millis = object.get("pollIntervalMs")?.as_str().parse::<f64>().ok().filter(|millis| *millis > 0.0)?;
    Some(Duration::try_from_secs_f64(millis / 1_000.0).unwrap_or(Duration::MAX))
}

/// Reads an entry of `inputRequests` under its key; `None` if it is no question.
#[must_use]
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

/// An answer to a question as `inputResponses` have it.
///
/// # Errors
/// The error, where it is one that cannot be expressed as an answer: it ends the call (T-48).
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

/// `inputResponses` of these, each under the upstream's own key; `None` of none.
#[must_use]
pub fn responses<'a>(mut answered: impl Iterator<Item = (&'a str, &'a Payload)>) -> Option<Payload> {
    let (first_key, first) = answered.next()?;
    let writer = ObjectWriter::new().member(first_key, first);
    Some(answered.fold(writer, |writer, (key, answer)| writer.member(key, answer)).finish())
}

/// The params of a request that is made again with what its [`InputRound`] asked for (UPC-14).
#[must_use]
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

/// The params of `tasks/get` and `tasks/cancel`.
#[must_use]
pub fn params_of(task: &str) -> Payload {
    ObjectWriter::new().text("taskId", task).finish()
}

/// The params of `tasks/update`.
#[must_use]
pub fn update_of(task: &str, responses: &Payload) -> Payload {
    ObjectWriter::new().text("taskId", task).member("inputResponses", responses).finish()
}

/// Whether an error says that the upstream does not know the task: then nobody ever learns how it ended.
#[must_use]
pub const fn is_of_an_unknown_task(error: &RpcError) -> bool {
    error.code == rpc_error::INVALID_PARAMS
}

#[cfg(test)]
#[path = "relay_ext_tasks/tests.rs"]
mod tests;
