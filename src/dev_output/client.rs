//! Shows the calls of clients, with their arguments and the response.

use std::collections::VecDeque;
use std::fmt::Display;

use tokio::time::Instant;

use super::{DevSource, OUTPUT, result_text, seconds_since, show, value};
use crate::wire::meta::{CLIENT_CAPABILITIES, META, PROTOCOL_VERSION, TASKS_EXTENSION};
use crate::wire::{Object, Payload, Request, Response, method};

/// Tasks of earlier calls; beyond that the oldest is dropped.
const TASKS_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct ClientTasks {
    calls: u64,
    tasks: VecDeque<(String, u64)>,
}

impl ClientTasks {
    const fn next(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    fn add(&mut self, task: String, call: u64) {
        if self.tasks.len() == TASKS_MAX {
            self.tasks.pop_front();
        }
        self.tasks.push_back((task, call));
    }

    fn call_of(&self, task: &str) -> Option<u64> {
        self.tasks.iter().find(|(known, _)| known == task).map(|(_, call)| *call)
    }
}

/// A client's request, shown as it begins and as it ends.
#[derive(Debug)]
pub struct ClientRequest {
    kind: ShownRequest,
    /// The client's version, and whether it takes tasks.
    client: String,
    began: Instant,
    is_answered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShownRequest {
    /// With the number of the call.
    Call(u64),
    Task(Option<u64>, TaskRequest),
    /// Shown only if it fails.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskRequest {
    Get,
    Result,
    Cancel,
    Update,
}

impl ClientRequest {
    /// Shows a request, if the output is on. `version` is the protocol version of its session.
    pub fn begin(request: &Request, version: Option<&str>) -> Option<Self> {
        let output = OUTPUT.get()?;
        let params = request.params.object();
        let task = |of| {
            let id = params.and_then(|params| params.get_str("taskId"));
            ShownRequest::Task(id.and_then(|id| output.tasks.lock().call_of(&id)), of)
        };
        let asked = params.and_then(|params| params.get_lossy("protocolVersion"));
        let client = client(request, version.or(asked.as_deref()));
        let kind = match &*request.method {
            method::TOOLS_CALL => {
                let number = output.tasks.lock().next();
                let tool = params.and_then(|params| params.get_lossy("name")).unwrap_or_default();
                let arguments = params.and_then(|params| params.get("arguments")).unwrap_or_else(Payload::empty_object);
                let (tool, arguments) = (value(&tool), value(arguments.as_str()));
                show(DevSource::Client, format_args!("#{number} calls {tool} {arguments} ({client})"));
                ShownRequest::Call(number)
            }
            method::TASKS_GET => task(TaskRequest::Get),
            method::TASKS_RESULT => task(TaskRequest::Result),
            method::TASKS_CANCEL => task(TaskRequest::Cancel),
            method::TASKS_UPDATE => task(TaskRequest::Update),
            method::INITIALIZE => {
                let info = params.and_then(|params| params.get_object("clientInfo"));
                let of_info = |name| info.as_ref().and_then(|info| info.get_lossy(name)).unwrap_or_default();
                let (name, own) = (value(&of_info("name")), value(&of_info("version")));
                let asked = value(&asked.unwrap_or_default());
                show(DevSource::Client, format_args!("{name} {own} opens a session of {asked}"));
                ShownRequest::Other
            }
            _ => ShownRequest::Other,
        };
        Some(Self { kind, client, began: Instant::now(), is_answered: false })
    }

    pub fn answered(&mut self, response: &Response) {
        self.is_answered = true;
        let got = match (self.kind, &response.outcome) {
            (_, Err(error)) => format!("error {}: {}", error.code, value(&error.message)),
            (ShownRequest::Call(number), Ok(result)) => self.result_of_call(number, result),
            (ShownRequest::Task(_, of), Ok(result)) => match result_of_task_request(of, result) {
                Some(got) => got,
                None => return,
            },
            (ShownRequest::Other, Ok(_)) => return,
        };
        self.show_end(format_args!("got {got}"));
    }

    fn show_end(&self, got: impl Display) {
        let call = match self.kind {
            ShownRequest::Call(number) | ShownRequest::Task(Some(number), _) => format!("#{number}"),
            ShownRequest::Task(None, _) | ShownRequest::Other => "a client".to_owned(),
        };
        let (client, after) = (&self.client, seconds_since(self.began));
        show(DevSource::Client, format_args!("{call} {got} (after {after}; {client})"));
    }

    fn result_of_call(&self, number: u64, result: &Payload) -> String {
        let Some(object) = Object::of(result) else { return result_text(result) };
        let kind = object.get_str("resultType");
        let of_extension = (kind.as_deref() == Some("task")).then(|| object.clone());
        if let Some(task) = of_extension.clone().or_else(|| object.get_object("task")) {
            if let (Some(output), Some(id)) = (OUTPUT.get(), task.get_string("taskId")) {
                output.tasks.lock().add(id, number);
            }
            let flavour = if of_extension.is_some() { "the extension" } else { "2025-11-25" };
            return format!("a task of {flavour}");
        }
        if kind.as_deref() == Some("input_required") {
            return "a question".to_owned();
        }
        format!("its {}", outcome(&object))
    }

    /// Shows that a response is too large to be read.
    pub fn answered_at_length(&mut self, bytes: usize) {
        self.is_answered = true;
        if matches!(self.kind, ShownRequest::Call(_)) {
            self.show_end(format_args!("got a result of {bytes} bytes"));
        }
    }
}

impl Drop for ClientRequest {
    /// The client has disconnected, or its response was no message.
    fn drop(&mut self) {
        if matches!(self.kind, ShownRequest::Call(_)) && !self.is_answered {
            self.show_end("got no answer");
        }
    }
}

/// `None` for a task that still runs.
fn result_of_task_request(of: TaskRequest, result: &Payload) -> Option<String> {
    let object = Object::of(result)?;
    match of {
        TaskRequest::Get => {
            let result = object.get_object("result").map(|result| format!("its task's {}", outcome(&result)));
            result.or_else(|| {
                let error = object.get_object("error")?;
                Some(format!("its task's error: {}", value(&error.get_lossy("message").unwrap_or_default())))
            })
        }
        TaskRequest::Result => Some(format!("its task's {}", outcome(&object))),
        TaskRequest::Cancel => Some("its cancel acknowledged".to_owned()),
        TaskRequest::Update => None,
    }
}

fn outcome(result: &Object) -> String {
    let is_error = result.get("isError").is_some_and(|is| is.as_str() == "true");
    let word = if is_error { "error result" } else { "result" };
    format!("{word}: {}", result_text(result.payload()))
}

fn client(request: &Request, version: Option<&str>) -> String {
    let params = request.params.object();
    let meta = params.and_then(|params| params.get_object(META));
    let of_request = meta.as_ref().and_then(|meta| meta.get_lossy(PROTOCOL_VERSION));
    let capabilities = meta.and_then(|meta| meta.get_object(CLIENT_CAPABILITIES));
    let extensions = capabilities.and_then(|capabilities| capabilities.get_object("extensions"));
    let has_extension = extensions.is_some_and(|extensions| extensions.has_object(TASKS_EXTENSION));
    let names_task = params.is_some_and(|params| params.has_object("task") || params.contains("taskId"));
    let has_tasks = has_extension || names_task;
    let version = of_request.as_deref().or(version).unwrap_or("unknown version");
    format!("{}, {} tasks", value(version), if has_tasks { "with" } else { "without" })
}
