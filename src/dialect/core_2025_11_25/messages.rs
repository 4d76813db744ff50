//! Writes the messages that clients of 2025-11-25 are sent about a task between their requests: its questions, status
//! and progress.
//!
//! All but the status name the task in `_meta` (L25-27, L25-31).

use std::sync::Arc;

use bytes::Bytes;

use super::{fields, related_meta, related_to, status as status_word, status_message};
use crate::dialect::faults::unusable_answer;
use crate::task::{Answer, InputKey, Question, Summary, Task, TaskId};
use crate::wire::envelope::Response;
use crate::wire::meta::{META, RELATED_TASK};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, RequestId, envelope, method};

/// A question of the upstream as a request to the client (L25-14); `None` if it is none that can be put.
///
/// An elicitation by address gets an id where it has none, as this version demands one (T-49).
#[must_use]
pub fn question(task: TaskId, key: InputKey, question: &Question, id: &RequestId) -> Option<Bytes> {
    let request = Object::of(&question.request)?;
    let name = request.get_string("method")?;
    let Some(params) = request.get_object("params") else {
        let params = ObjectWriter::new().member(META, &related_meta(task, None)).finish();
        return Some(envelope::request(id, &name, Some(&params)));
    };
    // Clients are asked for answers, never for tasks of their own (T-59).
    let edit = params.edit().remove("task").set(META, related_meta(task, params.get_object(META).as_ref()));
    let by_address = name == method::ELICIT && params.get_str("mode").is_some_and(|mode| mode == "url");
    let edit = if by_address && !params.contains("elicitationId") {
        edit.set("elicitationId", Payload::of(&format!("{task}-{}", key.0)))
    } else {
        edit
    };
    Some(envelope::request(id, &name, Some(&edit.finish())))
}

/// The end of a question that nobody waits for any more.
#[must_use]
pub fn withdrawn(task: TaskId, id: &RequestId) -> Bytes {
    let params = ObjectWriter::new()
        .member("requestId", id.payload())
        .text("reason", "the question was withdrawn")
        .member(META, &related_meta(task, None))
        .finish();
    envelope::notification(method::CANCELLED, Some(&params))
}

/// What a client says to a question, less what belongs to this hop.
#[must_use]
pub fn answer(response: Response) -> Answer {
    match (response.outcome, response.result) {
        (Err(error), _) => Answer::Error(error),
        (Ok(_), Some(result)) => Answer::Result(without_related(&result)),
        (Ok(_), None) => Answer::Error(unusable_answer()),
    }
}

fn without_related(result: &Object) -> Payload {
    let Some(meta) = result.get_object(META).filter(|meta| meta.contains(RELATED_TASK)) else {
        return result.payload().detached();
    };
    let kept = meta.edit().remove(RELATED_TASK).finish();
    let any_left = Object::of(&kept).is_some_and(|left| left.keys().next().is_some());
    let edit = if any_left { result.edit().set(META, kept) } else { result.edit().remove(META) };
    edit.finish().detached()
}

/// What of a task is worth a notification when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusNotice {
    status: &'static str,
    message: Option<Arc<str>>,
}

impl StatusNotice {
    #[must_use]
    pub fn of(task: &Task) -> Self {
        let task = Summary::of(task);
        Self { status: status_word(task.phase), message: status_message(&task) }
    }
}

/// How a task stands: all of it, and no related task (L25-31, L25-32).
#[must_use]
pub fn status(task: &Task) -> Bytes {
    envelope::notification(method::TASK_STATUS, Some(&fields(&Summary::of(task))))
}

/// The `_meta` of a message that belongs to a task, such as progress of its call (L25-46).
#[must_use]
pub fn related(task: TaskId) -> Payload {
    related_meta(task, None)
}

/// A log message of the task's call.
#[must_use]
pub fn log(task: TaskId, params: &Payload) -> Bytes {
    envelope::notification(method::LOG_MESSAGE, Some(&related_to(task, params)))
}
