//! `taskgate call`: calls a tool and sees it through, as a plain answer or as a task.
//!
//! The driver here decides; it shows through [`Ui`] and hears of Ctrl-C through a channel, so it needs no
//! terminal. Requests are made by [`super::client`].

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::client::{Client, ClientError, Progress, Reply, TaskSupport, chain};
use crate::wire::{Object, Payload, RpcError, method};

/// The longest that a plain call is waited for. A task is waited for as long as the server keeps it.
const CALL_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// The longest that one `tasks/get` or `tasks/cancel` may take.
const POLL_MAX: Duration = Duration::from_secs(30);
/// How long a task may take to settle once its cancellation was asked for.
const CANCEL_MAX: Duration = Duration::from_secs(30);
/// Between two polls, where the server does not say.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// What a server may ask for between two polls; outside of it the nearer end counts.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(20);
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// One call to make.
#[derive(Debug)]
pub struct Call {
    pub tool: String,
    /// An object.
    pub arguments: Payload,
    pub tasks: TaskSupport,
    pub wait: Wait,
    pub retry: Retry,
}

/// How long to stay with a call that became a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    ToTheEnd,
    /// Print the handle and leave.
    ForTheHandle,
}

/// How often to try again when the server cannot be reached: the task outlives a restart, so does the wait.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    pub attempts_max: u32,
    /// The first pause; each further one is twice as long.
    pub pause: Duration,
    pub pause_max: Duration,
}

impl Default for Retry {
    /// Gives a restarting server about half a minute.
    fn default() -> Self {
        Self { attempts_max: 9, pause: Duration::from_millis(250), pause_max: Duration::from_secs(8) }
    }
}

/// How the call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A result, or a handle where only that was wanted.
    Returned,
    /// A result that says it failed, or a question that nobody can answer.
    ToolFailed,
    /// A JSON-RPC error.
    Faulted,
    Cancelled,
    /// The server could not be reached or not be understood.
    Lost,
}

impl Verdict {
    /// The exit code of the process.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Returned => 0,
            Self::ToolFailed => 1,
            Self::Faulted => 2,
            Self::Cancelled => 3,
            Self::Lost => 69,
        }
    }
}

/// Where the user looks.
pub trait Ui: Send {
    /// How the call stands; replaces what was shown before.
    fn status(&mut self, status: &Status<'_>);
    /// Something worth a line of its own.
    fn note(&mut self, text: &str);
    /// A part of the result.
    fn output(&mut self, text: &str);
}

/// How a call stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Status<'a> {
    /// The task, once there is one.
    pub task_id: Option<&'a str>,
    pub word: &'a str,
    pub message: Option<&'a str>,
    pub steps: Option<Steps>,
}

/// So many of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    pub done: u64,
    pub total: u64,
}

impl Steps {
    /// Finds "3/10" in a text. Progress of a task has no other way to the client (protocol.md 5.12).
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        text.match_indices('/').find_map(|(at, _)| {
            let (before, after) = (text[..at].trim_end(), text[at + 1..].trim_start());
            let done = before.bytes().rev().take_while(u8::is_ascii_digit).count();
            let total = after.bytes().take_while(u8::is_ascii_digit).count();
            Self::new(before[before.len() - done..].parse().ok()?, after[..total].parse().ok()?)
        })
    }

    fn of(progress: &Progress) -> Option<Self> {
        let (done, total) = (progress.progress, progress.total.filter(|&total| total > 0.0)?);
        // Fractions of one are common; they are shown as percents. The casts saturate.
        let scale = if total.fract() == 0.0 && total > 1.0 { 1.0 } else { 100.0 / total };
        Self::new((done * scale) as u64, (total * scale).round() as u64)
    }

    fn new(done: u64, total: u64) -> Option<Self> {
        (done <= total && total > 0).then_some(Self { done, total })
    }
}

/// A task as the server describes it; what this client has no use for is not read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Task {
    task_id: String,
    status: String,
    status_message: Option<String>,
    poll_interval_ms: Option<u64>,
}

impl Task {
    fn read(result: &Object) -> Result<Self, ClientError> {
        result.payload().read().map_err(|_| ClientError::Unintelligible("the task lacks an id or a status"))
    }

    fn poll_interval(&self) -> Duration {
        let asked = self.poll_interval_ms.map_or(POLL_INTERVAL, Duration::from_millis);
        asked.clamp(POLL_INTERVAL_MIN, POLL_INTERVAL_MAX)
    }
}

/// Makes the call and stays with it as long as `call` says.
///
/// The first message of `interrupts` cancels the call, a second one leaves without waiting for the server. What
/// goes wrong is said through `ui`. Dropping the future cancels a plain call and leaves a task running.
pub async fn run(url: &url::Url, call: &Call, ui: &mut dyn Ui, interrupts: &mut mpsc::Receiver<()>) -> Verdict {
    let driven = match Client::new(url, call.tasks) {
        Ok(client) => Driver { client, call, ui: &mut *ui }.drive(interrupts).await,
        Err(error) => Err(error),
    };
    driven.unwrap_or_else(|error| {
        ui.note(&chain(&error));
        Verdict::Lost
    })
}

struct Driver<'a> {
    client: Client,
    call: &'a Call,
    ui: &'a mut dyn Ui,
}

/// Ends a wait: the user wants to leave.
struct Interrupted;

impl Driver<'_> {
    async fn drive(&mut self, interrupts: &mut mpsc::Receiver<()>) -> Result<Verdict, ClientError> {
        self.ui.status(&Status { task_id: None, word: "calling", message: None, steps: None });
        let ui = &mut *self.ui;
        let mut on_progress = |progress: Progress| {
            let steps = Steps::of(&progress);
            ui.status(&Status { task_id: None, word: "calling", message: progress.message.as_deref(), steps });
        };
        let calling = self.client.call(&self.call.tool, &self.call.arguments, CALL_MAX, &mut on_progress);
        let Ok(reply) = or_interrupt(calling, interrupts).await else {
            // Nothing more to send: on 2026-07-28 the closed stream is the cancellation.
            self.ui.note("cancelled");
            return Ok(Verdict::Cancelled);
        };
        let result = match reply?.outcome {
            Ok(result) => result,
            Err(error) => return Ok(self.fault(&error)),
        };
        match (result.get_string("resultType").as_deref(), self.call.tasks) {
            (None | Some("complete"), _) => self.print(&result),
            (Some("task"), TaskSupport::Extension) => self.handle(&result, interrupts).await,
            (Some("input_required"), _) => {
                self.ui.note("the tool asks for input, and this version cannot answer");
                Ok(Verdict::ToolFailed)
            }
            // UPC-09: also a handle that nobody said we could use.
            (Some(_), _) => Err(ClientError::Unintelligible("its resultType was not to be expected")),
        }
    }

    async fn handle(&mut self, result: &Object, interrupts: &mut mpsc::Receiver<()>) -> Result<Verdict, ClientError> {
        let task = Task::read(result)?;
        match self.call.wait {
            Wait::ForTheHandle => {
                self.ui.output(result.payload().as_str());
                Ok(Verdict::Returned)
            }
            Wait::ToTheEnd => self.follow(task, interrupts).await,
        }
    }

    /// Polls until the task settles. The handle itself is never final: only `tasks/get` carries an outcome.
    async fn follow(&mut self, mut task: Task, interrupts: &mut mpsc::Receiver<()>) -> Result<Verdict, ClientError> {
        let mut leave_at = None;
        loop {
            if leave_at.is_none() {
                self.show(&task);
            }
            let step = async {
                tokio::time::sleep(task.poll_interval()).await;
                self.ask(method::TASKS_GET, &task.task_id).await
            };
            let outcome = match or_interrupt(step, interrupts).await {
                Ok(outcome) => outcome?,
                Err(Interrupted) if leave_at.is_none() => {
                    leave_at = Some(Instant::now() + CANCEL_MAX);
                    if or_interrupt(self.cancel(&task), interrupts).await.is_err() {
                        return Ok(self.left(&task));
                    }
                    continue;
                }
                Err(Interrupted) => return Ok(self.left(&task)),
            };
            let result = match outcome {
                Ok(result) => result,
                Err(error) => return Ok(self.fault(&error)),
            };
            task = Task::read(&result)?;
            if let Some(verdict) = self.settled(&task, &result).await? {
                return Ok(verdict);
            }
            if leave_at.is_some_and(|at| Instant::now() >= at) {
                return Ok(self.left(&task));
            }
        }
    }

    /// The verdict, once the task's state allows one.
    async fn settled(&mut self, task: &Task, result: &Object) -> Result<Option<Verdict>, ClientError> {
        let verdict = match task.status.as_str() {
            "completed" => {
                let inner = result.get_object("result");
                self.print(&inner.ok_or(ClientError::Unintelligible("a completed task without a result"))?)?
            }
            "failed" => {
                let error = result.get_object("error").and_then(|error| RpcError::from_object(&error));
                self.fault(&error.ok_or(ClientError::Unintelligible("a failed task without an error"))?)
            }
            "cancelled" => {
                self.show(task);
                self.ui.note("the task was cancelled");
                Verdict::Cancelled
            }
            "input_required" => {
                self.show(task);
                self.ui.note("the task asks for input, which this version cannot answer; cancelling it");
                self.cancel(task).await;
                Verdict::ToolFailed
            }
            // An unknown word is read as working (protocol.md 5.6).
            _ => return Ok(None),
        };
        Ok(Some(verdict))
    }

    /// Asks for the task's cancellation. Whether that worked shows in the next polls.
    async fn cancel(&mut self, task: &Task) {
        self.ui.status(&Status { task_id: Some(&task.task_id), word: "cancelling", message: None, steps: None });
        match self.ask(method::TASKS_CANCEL, &task.task_id).await {
            Ok(Ok(_)) => (),
            Ok(Err(error)) => self.ui.note(&format!("the server refused to cancel: {}", words(&error))),
            Err(error) => self.ui.note(&format!("the cancellation may be lost: {}", chain(&error))),
        }
    }

    /// Sends a request that may be repeated, again and again while the server is away or busy.
    async fn ask(&mut self, method: &'static str, task_id: &str) -> Result<Result<Object, RpcError>, ClientError> {
        let Retry { attempts_max, mut pause, pause_max } = self.call.retry;
        let mut attempt = 1;
        loop {
            let (wait, why) = match self.client.ask(method, task_id, POLL_MAX).await {
                Ok(Reply { outcome, busy: None }) => return Ok(outcome),
                Ok(Reply { outcome, .. }) if attempt >= attempts_max => return Ok(outcome),
                Ok(Reply { busy: Some(wait), .. }) => (wait, "the server is busy".to_owned()),
                Err(error) => match error.retry_after() {
                    Some(wait) if attempt < attempts_max => (wait, chain(&error)),
                    Some(_) | None => return Err(error),
                },
            };
            self.ui.note(&format!("{why}; trying again"));
            tokio::time::sleep(pause.max(wait)).await;
            pause = (pause * 2).min(pause_max);
            attempt += 1;
        }
    }

    fn show(&mut self, task: &Task) {
        let message = task.status_message.as_deref();
        let steps = message.and_then(Steps::find);
        self.ui.status(&Status { task_id: Some(&task.task_id), word: &task.status, message, steps });
    }

    fn left(&mut self, task: &Task) -> Verdict {
        self.ui.note(&format!("task {} has not confirmed its cancellation and may still run", task.task_id));
        Verdict::Cancelled
    }

    fn fault(&mut self, error: &RpcError) -> Verdict {
        self.ui.note(&words(error));
        Verdict::Faulted
    }

    /// Prints a tool's result: text as text, anything else as the JSON it is.
    fn print(&mut self, result: &Object) -> Result<Verdict, ClientError> {
        let content = result.get("content");
        let blocks: Vec<&RawValue> = match &content {
            Some(content) => content.read().map_err(|_| ClientError::Unintelligible("content is no list"))?,
            None => Vec::new(),
        };
        for block in &blocks {
            match serde_json::from_str(block.get()) {
                Ok(TextBlock { kind: Kind::Text, text }) => self.ui.output(&text),
                Err(_) => self.ui.output(block.get()),
            }
        }
        if blocks.is_empty()
            && let Some(structured) = result.get("structuredContent")
        {
            self.ui.output(structured.as_str());
        }
        let is_error = result.get("isError").is_some_and(|flag| flag.as_str() == "true");
        Ok(if is_error { Verdict::ToolFailed } else { Verdict::Returned })
    }
}

/// A content block that is text; any other fails to be read.
#[derive(Deserialize)]
struct TextBlock {
    #[serde(rename = "type")]
    kind: Kind,
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Text,
}

fn words(error: &RpcError) -> String {
    let data = error.data.as_ref().map(|data| format!(" {}", data.as_str())).unwrap_or_default();
    format!("error {}: {}{data}", error.code, error.message)
}

/// Waits for `what`, unless the user interrupts it.
async fn or_interrupt<F: Future>(what: F, interrupts: &mut mpsc::Receiver<()>) -> Result<F::Output, Interrupted> {
    let interrupt = async {
        // Where nobody can interrupt any more, that is no interrupt.
        if interrupts.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = interrupt => Err(Interrupted),
        output = what => Ok(output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_found_in_status_messages() {
        for (text, steps) in [
            ("3/10", Some((3, 10))),
            ("section 3/10 written", Some((3, 10))),
            ("step 3 / 10", Some((3, 10))),
            ("and/or 2/4", Some((2, 4))),
            ("é7/8", Some((7, 8))),
            ("11/10", None),
            ("0/0", None),
            ("/10", None),
            ("3/", None),
            ("99999999999999999999999/1", None),
            ("working", None),
            ("", None),
        ] {
            let found = Steps::find(text).map(|steps| (steps.done, steps.total));
            assert_eq!(found, steps, "{text:?}");
        }
    }

    #[test]
    fn progress_becomes_steps_or_percents() {
        for (progress, total, steps) in [
            (3.0, Some(10.0), Some((3, 10))),
            (0.25, Some(1.0), Some((25, 100))),
            (0.5, Some(2.5), Some((20, 100))),
            (3.0, None, None),
            (1.0, Some(0.0), None),
            (1.0, Some(-4.0), None),
            (5.0, Some(4.0), None),
        ] {
            let found = Steps::of(&Progress { progress, total, message: None });
            assert_eq!(found.map(|steps| (steps.done, steps.total)), steps, "{progress} of {total:?}");
        }
    }
}
