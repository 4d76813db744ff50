//! Prints the events of a server under development, a line each, for `taskgate dev`. Lines hold arguments and results:
//! no log level turns them on, only [`install`]. Foreign texts and floods are cut.

pub mod client;

use std::collections::VecDeque;
use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::sync::OnceLock;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing_appender::non_blocking::WorkerGuard;

use crate::console;
use crate::line_budget::LineBudget;
use crate::line_queue::LineQueue;
use crate::wire::meta::{META, PROGRESS_TOKEN};
use crate::wire::{
    Message, Notification, Object, Payload, Request, RequestId, Response, ScanLimits, envelope, method, one_line,
};
use client::ClientTasks;

/// Longest line, without its label.
const LINE_BYTES_MAX: usize = 1024;
/// Longest argument or result in a line.
const VALUE_BYTES_MAX: usize = 200;

static OUTPUT: OnceLock<DevOutput> = OnceLock::new();

#[derive(Debug)]
struct DevOutput {
    lines: LineQueue,
    began: Instant,
    clients: LineBudget,
    messages: LineBudget,
    calls: Mutex<ProgramCalls>,
    tasks: Mutex<ClientTasks>,
}

named_variants! {
    pub enum DevSource, label {
        Files = "files",
        Gateway = "gateway",
        /// The start, the end and the state of the program.
        Program = "program",
        Stderr = "stderr",
        /// A line of standard output that is no message.
        Stdout = "stdout",
        /// A message of the program.
        Server = "server",
        Client = "client",
    }
}

/// Turns the output on, for the rest of the process. Lines that wait are written when the guard is dropped.
pub fn install() -> WorkerGuard {
    let (lines, guard) = LineQueue::start(console::stdout(), "standard output");
    let _ = OUTPUT.set(DevOutput {
        lines,
        began: Instant::now(),
        clients: LineBudget::new(),
        messages: LineBudget::new(),
        calls: Mutex::default(),
        tasks: Mutex::default(),
    });
    guard
}

pub fn is_on() -> bool {
    OUTPUT.get().is_some()
}

/// Prints a line, unless too many of its source came before.
pub fn show(source: DevSource, text: impl Display) {
    let Some(output) = OUTPUT.get() else { return };
    let left_out = match source {
        DevSource::Client => output.clients.admit(),
        DevSource::Server => output.messages.admit(),
        // These lines are rare, or their reader limits them.
        DevSource::Files | DevSource::Gateway | DevSource::Program | DevSource::Stderr | DevSource::Stdout => Some(0),
    };
    if let Some(left_out) = left_out {
        output.print(source, left_out, &text);
    }
}

/// Prints a line of the program's output after `left_out` others that were not printed.
pub fn show_output(source: DevSource, left_out: u64, text: &str) {
    if let Some(output) = OUTPUT.get() {
        output.print(source, left_out, &text);
    }
}

impl DevOutput {
    fn print(&self, source: DevSource, left_out: u64, text: &dyn Display) {
        let mut line = format!("{:>8.1}s {:<8}", self.began.elapsed().as_secs_f64(), source.label());
        if left_out > 0 {
            let _ = write!(line, "({left_out} lines left out) ");
        }
        line.push_str(&one_line::shown(&text.to_string(), LINE_BYTES_MAX));
        line.push('\n');
        // If the terminal is gone, its signal ends the command.
        let _ = self.lines.clone().write_all(line.as_bytes());
    }
}

fn value(text: &str) -> String {
    one_line::shown(text, VALUE_BYTES_MAX)
}

/// The first text of a tool's result, or its JSON.
fn result_text(result: &Payload) -> String {
    one_line::first_text(result).map_or_else(|| value(result.as_str()), |text| format!("{:?}", value(&text)))
}

fn seconds_since(began: Instant) -> String {
    format!("{:.1} s", began.elapsed().as_secs_f64())
}

/// A longer message is shown by its size.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Calls that wait for their results; beyond that the oldest is dropped.
const CALLS_MAX: usize = 256;

#[derive(Debug, Default)]
struct ProgramCalls(VecDeque<ProgramCall>);

#[derive(Debug)]
struct ProgramCall {
    process: u64,
    id: RequestId,
    tool: String,
    token: Option<Payload>,
    began: Instant,
}

impl ProgramCalls {
    fn add(&mut self, call: ProgramCall) {
        if self.0.len() == CALLS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(call);
    }

    fn tool_of(&self, process: u64, token: &Payload) -> Option<String> {
        let is_it = |call: &&ProgramCall| call.process == process && call.token.as_ref() == Some(token);
        self.0.iter().rev().find(is_it).map(|call| call.tool.clone())
    }

    fn take(&mut self, process: u64, id: &RequestId) -> Option<ProgramCall> {
        let at = self.0.iter().position(|call| call.process == process && call.id == *id)?;
        self.0.remove(at)
    }
}

/// Notes a call that was sent to a program. `process` identifies one of the program's processes.
pub fn sent(process: u64, message: &Bytes) {
    let Some(output) = OUTPUT.get() else { return };
    let Ok(Message::Request(request)) = envelope::read(message, ScanLimits::UPSTREAM) else { return };
    if request.method != method::TOOLS_CALL {
        return;
    }
    let params = request.params.object();
    let meta = params.and_then(|params| params.get_object(META));
    output.calls.lock().add(ProgramCall {
        process,
        id: request.id,
        tool: params.and_then(|params| params.get_lossy("name")).unwrap_or_default(),
        token: meta.and_then(|meta| meta.get(PROGRESS_TOKEN)).map(|token| token.detached()),
        began: Instant::now(),
    });
}

pub fn received(process: u64, message: &Bytes) {
    let Some(output) = OUTPUT.get() else { return };
    if message.len() > MESSAGE_BYTES_MAX {
        return show(DevSource::Server, format_args!("a message of {} bytes", message.len()));
    }
    match envelope::read(message, ScanLimits::UPSTREAM) {
        Ok(Message::Notification(notification)) => show_notification(process, &notification),
        Ok(Message::Request(request)) => show_question(&request),
        Ok(Message::Response(response)) => {
            let call = response.id.as_ref().and_then(|id| output.calls.lock().take(process, id));
            if let Some(call) = call {
                show_result(&call, &response);
            }
        }
        Err(error) => show(DevSource::Server, format_args!("an invalid message: {error}")),
    }
}

fn show_notification(process: u64, notification: &Notification) {
    let Some(params) = notification.params.object() else {
        return show(DevSource::Server, format_args!("sent {}", notification.method));
    };
    let text = |name: &str| params.get(name).map(|member| member.as_str().to_owned());
    match notification.method.as_str() {
        method::PROGRESS => {
            let token = params.get("progressToken");
            let tool = OUTPUT.get().zip(token).and_then(|(output, token)| output.calls.lock().tool_of(process, &token));
            let (tool, done) = (tool.unwrap_or_else(|| "a call".to_owned()), text("progress").unwrap_or_default());
            let total = text("total").map(|total| format!("/{total}")).unwrap_or_default();
            let message = params.get_lossy("message").unwrap_or_default();
            show(DevSource::Server, format_args!("{} progress {done}{total} {}", value(&tool), value(&message)));
        }
        method::LOG_MESSAGE => {
            let level = params.get_lossy("level").unwrap_or_default();
            let data = params.get_lossy("data").or_else(|| text("data")).unwrap_or_default();
            show(DevSource::Server, format_args!("log {}: {}", value(&level), value(&data)));
        }
        other => show(DevSource::Server, format_args!("sent {}", value(other))),
    }
}

fn show_question(request: &Request) {
    if request.method == method::PING {
        return;
    }
    let params = request.params.object();
    let message =
        params.and_then(|params| params.get_lossy("message")).map(|message| format!(": {:?}", value(&message)));
    show(DevSource::Server, format_args!("asks {}{}", value(&request.method), message.unwrap_or_default()));
}

fn show_result(call: &ProgramCall, response: &Response) {
    let (tool, after) = (value(&call.tool), seconds_since(call.began));
    match &response.outcome {
        Ok(result)
            if Object::of(result)
                .is_some_and(|result| result.get("isError").is_some_and(|is| is.as_str() == "true")) =>
        {
            show(DevSource::Server, format_args!("{tool} failed after {after}: {}", result_text(result)));
        }
        Ok(result) => show(DevSource::Server, format_args!("{tool} returned after {after}: {}", result_text(result))),
        Err(error) => {
            let message = value(&error.message);
            show(DevSource::Server, format_args!("{tool} returned error {} after {after}: {message}", error.code));
        }
    }
}
