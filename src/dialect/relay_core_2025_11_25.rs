//! Encodes calls to upstreams that run their own 2025-11-25 tasks (UPC-01 to UPC-08). No status text leaves this
//! module: callers read [`UpstreamTaskStatus`].

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::task::Answer;
use crate::task::time::millis;
use crate::wire::meta::{IMMEDIATE_RESPONSE, META, RELATED_TASK};
use crate::wire::object::ObjectWriter;
use crate::wire::one_line::status_text;
use crate::wire::{Message, Object, Payload, ProtocolVersion, RpcError, ScanLimits, method, rpc_error};

/// Longest accepted id of an upstream's task, in bytes.
const TASK_ID_BYTES_MAX: usize = 1024;
/// Most subtasks that are read from one task.
const CHILDREN_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTaskSupport {
    /// `tools/call` may carry `task`.
    pub calls: bool,
    pub cancel: bool,
}

impl UpstreamTaskSupport {
    /// Reads `ServerCapabilities` from a session of this version.
    pub fn of(version: ProtocolVersion, capabilities: &Payload) -> Self {
        Self::declared(capabilities).within(version)
    }

    /// The support within a session of this version. Only 2025-11-25 has this dialect.
    #[must_use]
    pub fn within(self, version: ProtocolVersion) -> Self {
        if version.traits().has_session_tasks { self } else { Self::default() }
    }

    /// Reads `ServerCapabilities` of any version: many servers declare the same in all.
    pub fn declared(capabilities: &Payload) -> Self {
        let tasks = Object::of(capabilities).and_then(|capabilities| capabilities.get_object("tasks"));
        let Some(tasks) = tasks else { return Self::default() };
        let requests = tasks.get_object("requests").and_then(|requests| requests.get_object("tools"));
        Self { calls: requests.is_some_and(|tools| declares(&tools, "call")), cancel: declares(&tasks, "cancel") }
    }
}

/// Present and not `false`: values are empty objects, and the prose calls them booleans (GW-07).
fn declares(object: &Object, key: &str) -> bool {
    object.get(key).is_some_and(|value| !matches!(value.as_str(), "false" | "null"))
}

/// A tool's declaration of task support (UPC-05).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolTaskSupport {
    #[default]
    Forbidden,
    Optional,
    Required,
}

impl ToolTaskSupport {
    /// Reads an entry of `tools/list`. An unknown status means none.
    pub fn of(tool: &Object) -> Self {
        let execution = tool.get_object("execution");
        match execution.and_then(|execution| execution.get_string("taskSupport")).as_deref() {
            Some("optional") => Self::Optional,
            Some("required") => Self::Required,
            _ => Self::Forbidden,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTask {
    /// The upstream's own id, never sent to clients (T-67).
    pub id: Arc<str>,
    pub status: UpstreamTaskStatus,
    /// The upstream's status text, for display.
    pub status_text: Cow<'static, str>,
    /// The upstream's status message, sanitised.
    pub message: Option<Arc<str>>,
    /// Its time to live from its creation; `None` for unlimited.
    pub ttl: Option<Duration>,
    pub poll_interval: Option<Duration>,
    /// The list of its subtasks, unread (SEP-2268).
    children: Option<Box<Payload>>,
}

impl UpstreamTask {
    /// The first `max` valid ids of its subtasks that `is_new` accepts, in order.
    pub fn children(&self, max: usize, mut is_new: impl FnMut(&str) -> bool) -> Vec<Arc<str>> {
        let Some(named) = self.children.as_ref().filter(|_| max > 0) else { return Vec::new() };
        let Ok(named) = named.read::<Vec<Box<serde_json::value::RawValue>>>() else { return Vec::new() };
        let ids = named.iter().take(CHILDREN_MAX).filter_map(|id| serde_json::from_str::<String>(id.get()).ok());
        ids.filter(|id| (1..=TASK_ID_BYTES_MAX).contains(&id.len()) && is_new(id)).take(max).map(Arc::from).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamTaskStatus {
    Working,
    /// Its questions may come only on a stream of `tasks/result`.
    Asking,
    /// `tasks/result` has the outcome: the status alone does not distinguish an error from `isError` (T-03).
    Done,
    /// The upstream ended it without an outcome.
    Cancelled,
    /// An unknown status: treated as work (GW-14).
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskCallResult {
    Task(UpstreamTask),
    /// An ordinary result: a server may ignore `task` (T-46).
    Plain,
    Malformed,
}

/// The params of a call that asks for a task with this `ttl`, the longest run time of the call; without one the upstream chooses.
pub fn augmented(params: &Object, ttl: Option<Duration>) -> Payload {
    let wish = ttl.iter().fold(ObjectWriter::new(), |wish, ttl| wish.number("ttl", millis(*ttl)));
    params.edit().set("task", wish.finish()).finish()
}

pub fn created(result: &Payload) -> TaskCallResult {
    let Some(object) = Object::of(result).filter(|object| !object.contains("content")) else {
        return TaskCallResult::Plain;
    };
    if !object.contains("task") {
        return TaskCallResult::Plain;
    }
    let Some(mut task) = object.get_object("task").as_ref().and_then(described) else {
        return TaskCallResult::Malformed;
    };
    let meanwhile = || object.get_object(META)?.get_string(IMMEDIATE_RESPONSE);
    task.message = task.message.or_else(|| status_text(&meanwhile()?));
    TaskCallResult::Task(task)
}

/// Reads the result of `tasks/get` or `tasks/cancel`; `None` if it describes no task.
pub fn polled(result: &Payload) -> Option<UpstreamTask> {
    described(&Object::of(result)?)
}

fn described(task: &Object) -> Option<UpstreamTask> {
    let id = task.get_string("taskId").filter(|id| (1..=TASK_ID_BYTES_MAX).contains(&id.len()))?;
    let text = task.get_string("status")?;
    let (status, text) = match text.as_str() {
        "working" => (UpstreamTaskStatus::Working, Cow::Borrowed("working")),
        "input_required" => (UpstreamTaskStatus::Asking, Cow::Borrowed("input_required")),
        "completed" => (UpstreamTaskStatus::Done, Cow::Borrowed("completed")),
        "failed" => (UpstreamTaskStatus::Done, Cow::Borrowed("failed")),
        "cancelled" => (UpstreamTaskStatus::Cancelled, Cow::Borrowed("cancelled")),
        _ => (UpstreamTaskStatus::Unknown, Cow::Owned(text)),
    };
    Some(UpstreamTask {
        id: Arc::from(id),
        status,
        status_text: text,
        message: task.get_lossy("statusMessage").and_then(|message| status_text(&message)),
        ttl: span(task, "ttl"),
        poll_interval: span(task, "pollInterval"),
        children: task.get("childTaskIds").map(Box::new),
    })
}

/// A member in milliseconds. Fractions are accepted (GW-08).
fn span(task: &Object, key: &str) -> Option<Duration> {
    let millis: f64 = task.get(key)?.read().ok()?;
    Duration::try_from_secs_f64(millis / 1_000.0).ok()
}

/// The params of every request about a task. None has a related task (UPC-03, T-34).
pub fn params_of(task: &str) -> Payload {
    ObjectWriter::new().text("taskId", task).finish()
}

/// The task of a status notification. Its other members are not read (UPC-02).
pub fn changed(params: &Object) -> Option<String> {
    params.get_string("taskId")
}

/// The recipient of a message on a session's own stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageConcern {
    Client,
    /// A task of the upstream, unknown to the client.
    Task,
    /// It names a request or a progress token, which only a running call can recognise.
    Unsure,
}

pub fn concern(message: &Message) -> MessageConcern {
    let (name, params) = match message {
        Message::Request(request) => (&*request.method, &request.params),
        Message::Notification(notification) => (notification.method.as_str(), &notification.params),
        Message::Response(_) => return MessageConcern::Client,
    };
    let meta = || params.object()?.get_object(META);
    match name {
        method::TASK_STATUS => MessageConcern::Task,
        _ if meta().is_some_and(|meta| meta.contains(RELATED_TASK)) => MessageConcern::Task,
        method::PROGRESS | method::CANCELLED => MessageConcern::Unsure,
        _ => MessageConcern::Client,
    }
}

/// Whether a text that is no message refers to a task: `FastMCP` puts `_meta` beside `params`.
pub fn concerns_a_task(text: &Bytes) -> bool {
    let object = Payload::parse(text, ScanLimits::UPSTREAM).ok().as_ref().and_then(Object::of);
    object.is_some_and(|object| {
        object.get_str("method").is_some_and(|name| name == method::TASK_STATUS)
            || object.get_object(META).is_some_and(|meta| meta.contains(RELATED_TASK))
    })
}

pub fn related_task(params: &Object) -> Option<String> {
    params.get_object(META)?.get_object(RELATED_TASK)?.get_string("taskId")
}

/// Whether an error means that the task is unknown, or not in the right state (L25-37, L25-41).
pub const fn is_about_the_task(error: &RpcError) -> bool {
    error.code == rpc_error::INVALID_PARAMS
}

/// Adds the related task to an answer to its question (UPC-08). Errors have no member for it.
pub fn related(answer: Answer, task: &str) -> Answer {
    match answer {
        Answer::Result(result) => match Object::of(&result) {
            Some(object) => {
                let related = params_of(task);
                let meta = object.get_object(META).map_or_else(
                    || ObjectWriter::new().member(RELATED_TASK, &related).finish(),
                    |meta| meta.edit().set(RELATED_TASK, related.clone()).finish(),
                );
                Answer::Result(object.edit().set(META, meta).finish())
            }
            None => Answer::Result(result),
        },
        Answer::Error(error) => Answer::Error(error),
    }
}

/// Removes the upstream's task id from a message's params: it belongs to this hop (T-67).
pub fn unrelated(params: &Object) -> Payload {
    params.edit().remove_within(META, &[RELATED_TASK]).finish()
}

#[cfg(test)]
#[path = "relay_core_2025_11_25/tests.rs"]
mod tests;
