//! The tasks of 2025-11-25, a client's side: a call with `task` is answered by a handle, which is polled; the result
//! comes from `tasks/result`, and so may questions.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::cli::call::{Verdict, Wait};
use crate::cli::client::{ClientError, Reply, chain};
use crate::cli::session::{Event, Session, progress_of};
use crate::cli::talk::{
    CALL_MAX, CANCEL_MAX, Failed, Interrupted, REQUEST_MAX, Talk, interrupted, poll_interval, words,
};
use crate::cli::ui::{Status, Steps};
use crate::wire::object::ObjectWriter;
use crate::wire::{Notification, Object, Payload, Request, RequestId, meta, method};

/// Tells of a task's change; only a hint (UPC-02).
const STATUS: &str = "notifications/tasks/status";

/// Whether a call of this tool may become a task (UPC-05).
///
/// # Errors
/// See [`ClientError`].
pub(super) async fn is_offered(session: &mut Session, tool: &str) -> Result<bool, ClientError> {
    if !session.offers(&["tasks", "requests", "tools", "call"]) {
        return Ok(false);
    }
    Ok(session.tool(tool).await?.is_some_and(|tool| tool.takes_tasks))
}

/// Calls the tool as a task and follows it. The session ends with the task, and not before it.
///
/// # Errors
/// See [`ClientError`].
pub(super) async fn run(mut session: Session, talk: &mut Talk<'_>) -> Result<Verdict, ClientError> {
    talk.calling();
    let call = session.mint_id();
    let mut meta = json!({ (meta::PROGRESS_TOKEN): call });
    talk.call.mark(&mut meta);
    let params = ObjectWriter::new()
        .text("name", &talk.call.tool)
        .member("arguments", &talk.call.arguments)
        .member("task", &Payload::empty_object())
        .member(meta::META, &Payload::of(&meta))
        .finish();
    session.send(&call, method::TOOLS_CALL, &params, CALL_MAX);
    let mut wants_out = false;
    let reply = loop {
        match session.converse(talk, &call).await {
            Ok(reply) => break reply?,
            // A task is cancelled by its id alone, so that is waited for (UPC-06).
            Err(Interrupted) if !wants_out => wants_out = true,
            Err(Interrupted) => return Ok(talk.cancelled("left before the task had an id; it may still run")),
        }
    };
    let result = match reply.outcome {
        Ok(result) => result,
        Err(error) => {
            session.end().await;
            return Ok(talk.fault(&error));
        }
    };
    let Some(handle) = result.get_object("task") else {
        // A server may answer plainly all the same.
        session.end().await;
        return talk.print(&result);
    };
    let task = Task::read(&handle)?;
    if talk.call.wait == Wait::ForTheHandle && !wants_out {
        talk.ui.output(handle.payload().as_str());
        return Ok(Verdict::Returned);
    }
    let mut follower = Follower::new(&mut session, talk, call, task);
    let (verdict, is_over) = follower.follow(wants_out).await?;
    if is_over {
        session.end().await;
    }
    Ok(verdict)
}

/// A task as the server describes it; what this client has no use for is not read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Task {
    task_id: String,
    status: String,
    status_message: Option<String>,
    /// Milliseconds; the schema of the time allowed fractions.
    poll_interval: Option<f64>,
}

impl Task {
    fn read(result: &Object) -> Result<Self, ClientError> {
        result.payload().read().map_err(|_| ClientError::Unintelligible("the task lacks an id or a status"))
    }

    fn poll_interval(&self) -> Duration {
        // The cast saturates.
        poll_interval(self.poll_interval.map(|asked| asked as u64))
    }

    fn has_result(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed")
    }

    fn is_cancelled(&self) -> bool {
        self.status == "cancelled"
    }
}

/// A request that is repeated until it is answered.
#[derive(Debug)]
struct Repeated {
    /// The one under way.
    id: Option<RequestId>,
    /// Not before.
    due: Instant,
    attempt: u32,
}

impl Repeated {
    const fn new(due: Instant) -> Self {
        Self { id: None, due, attempt: 1 }
    }

    /// An answer came: the next one is due then.
    fn next(&mut self, due: Instant) {
        *self = Self::new(due);
    }

    fn is(&self, id: &RequestId) -> bool {
        self.id.as_ref() == Some(id)
    }

    /// No answer came: either the next try is due, or there is none.
    fn failed(&mut self, talk: &mut Talk<'_>, failed: Result<Reply, ClientError>) -> Result<(), Failed> {
        self.due = Instant::now() + talk.again(self.attempt, failed)?;
        self.id = None;
        self.attempt += 1;
        Ok(())
    }
}

struct Follower<'t, 'a> {
    session: &'t mut Session,
    talk: &'t mut Talk<'a>,
    call: RequestId,
    task: Task,
    poll: Repeated,
    result: Repeated,
    cancel: Option<RequestId>,
    /// Once the user wants to leave: when to give up waiting for the server's word.
    leave_at: Option<Instant>,
}

/// What ends a wait of the loop.
enum Step {
    Interrupted,
    GivenUp,
    Poll,
    Result,
    Event(Event),
}

type Ended = (Verdict, bool);

impl<'t, 'a> Follower<'t, 'a> {
    fn new(session: &'t mut Session, talk: &'t mut Talk<'a>, call: RequestId, task: Task) -> Self {
        let now = Instant::now();
        let (poll, result) = (Repeated::new(now + task.poll_interval()), Repeated::new(now));
        Self { session, talk, call, task, poll, result, cancel: None, leave_at: None }
    }

    /// Follows the task to its end. Also says whether the task is over, so that its session may be too.
    async fn follow(&mut self, wants_out: bool) -> Result<Ended, ClientError> {
        self.show();
        if wants_out {
            self.cancel();
        }
        loop {
            if self.task.is_cancelled() {
                return Ok((self.talk.cancelled("the task was cancelled"), true));
            }
            match self.step().await {
                Step::Interrupted if self.leave_at.is_none() => self.cancel(),
                Step::Interrupted | Step::GivenUp => return Ok((self.talk.left(&self.task.task_id), false)),
                Step::Poll => self.poll.id = Some(self.ask(method::TASKS_GET, REQUEST_MAX)),
                Step::Result => self.result.id = Some(self.ask(method::TASKS_RESULT, CALL_MAX)),
                Step::Event(event) => {
                    if let Some(ended) = self.take(event).await? {
                        return Ok(ended);
                    }
                }
            }
        }
    }

    async fn step(&mut self) -> Step {
        // The server asks on the stream of `tasks/result`, if on any, so that has to be open (UPC-07).
        let wants_result = self.task.has_result() || self.task.status == "input_required";
        let leave_at = self.leave_at;
        let given_up = async {
            match leave_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = interrupted(self.talk.interrupts) => Step::Interrupted,
            () = given_up => Step::GivenUp,
            event = self.session.next() => Step::Event(event),
            () = sleep_until(self.result.due), if wants_result && self.result.id.is_none() => Step::Result,
            () = sleep_until(self.poll.due), if self.may_poll() => Step::Poll,
        }
    }

    /// A cancellation under way says how the task stands, so polls wait for it.
    fn may_poll(&self) -> bool {
        !self.task.has_result() && self.poll.id.is_none() && self.cancel.is_none()
    }

    async fn take(&mut self, event: Event) -> Result<Option<Ended>, ClientError> {
        match event {
            Event::Answered { id, reply } if self.poll.is(&id) => self.polled(reply),
            Event::Answered { id, reply } if self.result.is(&id) => self.has_result(reply),
            Event::Answered { id, reply } if self.cancel.as_ref() == Some(&id) => {
                self.cancel = None;
                self.poll.due = Instant::now();
                match reply {
                    Ok(Reply { outcome: Ok(task), .. }) => self.task = Task::read(&task)?,
                    Ok(Reply { outcome: Err(error), .. }) => {
                        self.talk.note(&format!("the server refused to cancel: {}", words(&error)));
                    }
                    Err(error) => self.talk.note(&format!("the cancellation may be lost: {}", chain(&error))),
                }
                Ok(None)
            }
            Event::Answered { .. } => Ok(None),
            Event::Asked(request) => {
                self.serve(request).await;
                Ok(None)
            }
            Event::Told(told) => {
                self.told(&told);
                Ok(None)
            }
        }
    }

    fn polled(&mut self, reply: Result<Reply, ClientError>) -> Result<Option<Ended>, ClientError> {
        match reply {
            Ok(Reply { outcome: Ok(task), .. }) => {
                self.task = Task::read(&task)?;
                self.poll.next(Instant::now() + self.task.poll_interval());
                if self.leave_at.is_none() {
                    self.show();
                }
                Ok(None)
            }
            failed @ (Ok(Reply { busy: Some(_), .. }) | Err(_)) => ended(self.poll.failed(self.talk, failed))
                .map(|ended| ended.map(|error| (self.talk.fault(&error), true))),
            Ok(Reply { outcome: Err(error), .. }) => Ok(Some((self.talk.fault(&error), true))),
        }
    }

    fn has_result(&mut self, reply: Result<Reply, ClientError>) -> Result<Option<Ended>, ClientError> {
        match reply {
            Ok(Reply { outcome: Ok(result), .. }) => self.talk.print(&result).map(|verdict| Some((verdict, true))),
            failed @ (Ok(Reply { busy: Some(_), .. }) | Err(_)) => {
                let failed = self.result.failed(self.talk, failed);
                ended(failed).map(|ended| ended.map(|error| (self.talk.fault(&error), true)))
            }
            // The error that a cancelled task has for a result.
            Ok(Reply { outcome: Err(_), .. }) if self.leave_at.is_some() => {
                Ok(Some((self.talk.cancelled("the task was cancelled"), true)))
            }
            Ok(Reply { outcome: Err(error), .. }) => Ok(Some((self.talk.fault(&error), true))),
        }
    }

    /// Passes a question on. Ctrl-C cancels the task, of which the question is a part.
    async fn serve(&mut self, request: Request) {
        if self.leave_at.is_some() {
            return;
        }
        let ends: Vec<_> = self.result.id.iter().collect();
        if let Err(Interrupted) = self.session.serve(self.talk, request, &ends).await {
            self.cancel();
        }
    }

    fn told(&mut self, told: &Notification) {
        if let Some(progress) = progress_of(told, &self.call) {
            let (message, steps) = (progress.message.as_deref(), Steps::of(&progress));
            let Task { task_id, status, .. } = &self.task;
            self.talk.ui.status(&Status { task_id: Some(task_id), word: status, message, steps });
            return;
        }
        let Some(params) = told.params.object().filter(|_| told.method == STATUS) else { return };
        if params.get_str("taskId").as_deref() == Some(&self.task.task_id) && self.poll.id.is_none() {
            // Looked into at once: what a notification says is not relied on.
            self.poll.due = Instant::now();
        }
    }

    fn cancel(&mut self) {
        self.leave_at = Some(Instant::now() + CANCEL_MAX);
        let task_id = Some(self.task.task_id.as_str());
        self.talk.ui.status(&Status { task_id, word: "cancelling", message: None, steps: None });
        self.cancel = Some(self.ask(method::TASKS_CANCEL, REQUEST_MAX));
    }

    fn ask(&mut self, method: &'static str, within: Duration) -> RequestId {
        let id = self.session.mint_id();
        let params = ObjectWriter::new().text("taskId", &self.task.task_id).finish();
        self.session.send(&id, method, &params, within);
        id
    }

    fn show(&mut self) {
        let Task { task_id, status, status_message, .. } = &self.task;
        let message = status_message.as_deref();
        let steps = message.and_then(Steps::find);
        self.talk.ui.status(&Status { task_id: Some(task_id), word: status, message, steps });
    }
}

/// The error that ends the call, if one does.
fn ended(failed: Result<(), Failed>) -> Result<Option<crate::wire::RpcError>, ClientError> {
    match failed {
        Ok(()) => Ok(None),
        Err(Failed::Answered(Err(error))) => Ok(Some(error)),
        Err(Failed::Answered(Ok(_))) => Err(ClientError::Unintelligible("a result with the status of a refusal")),
        Err(Failed::Lost(error)) => Err(error),
    }
}
