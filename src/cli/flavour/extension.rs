//! The tasks extension of 2026-07-28 (`io.modelcontextprotocol/tasks`), a client's side: a call may become a
//! handle, which is polled; questions stand in the task and are answered by `tasks/update`.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::cli::call::{Verdict, Wait};
use crate::cli::client::{ClientError, Endpoint, Reply, chain};
use crate::cli::stateless::{Outgoing, Stateless, elicitation};
use crate::cli::talk::{CANCEL_MAX, Failed, Interrupted, REQUEST_MAX, Talk, poll_interval, words};
use crate::cli::ui::{Status, Steps};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, RpcError, meta, method};

/// What is declared on every request.
pub(super) fn client(endpoint: Endpoint) -> Stateless {
    Stateless::new(endpoint, Some(json!({ (meta::TASKS_EXTENSION): {} })))
}

/// Whether a `DiscoverResult` offers the extension.
pub(super) fn is_offered(discovered: &Object) -> bool {
    let capabilities = discovered.get_object("capabilities");
    capabilities.and_then(|own| own.get_object("extensions")).is_some_and(|all| all.has_object(meta::TASKS_EXTENSION))
}

/// Makes the call and follows the task that it may become.
///
/// # Errors
/// See [`ClientError`].
pub(super) async fn run(client: &Stateless, talk: &mut Talk<'_>) -> Result<Verdict, ClientError> {
    let result = match client.call(talk).await? {
        ControlFlow::Continue(result) => result,
        ControlFlow::Break(verdict) => return Ok(verdict),
    };
    match (result.get_string("resultType").as_deref(), talk.call.wait) {
        (None | Some("complete"), _) => talk.print(&result),
        (Some("task"), Wait::ForTheHandle) => {
            Task::read(&result)?;
            talk.ui.output(result.payload().as_str());
            Ok(Verdict::Returned)
        }
        (Some("task"), Wait::ToTheEnd) => {
            let task = Task::read(&result)?;
            Follower { client, talk, answered: HashSet::new() }.follow(task).await
        }
        // UPC-09.
        (Some(_), _) => Err(ClientError::Unintelligible("its resultType was not to be expected")),
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
        poll_interval(self.poll_interval_ms)
    }

    fn is_settled(&self) -> bool {
        matches!(self.status.as_str(), "completed" | "failed" | "cancelled")
    }
}

struct Follower<'t, 'a> {
    client: &'t Stateless,
    talk: &'t mut Talk<'a>,
    /// Keys of questions that had their answer: a server may go on showing them for a while (UPC-11).
    answered: HashSet<String>,
}

impl Follower<'_, '_> {
    /// Polls until the task settles. The handle itself is never final: only `tasks/get` carries an outcome.
    async fn follow(&mut self, mut task: Task) -> Result<Verdict, ClientError> {
        let mut leave_at = None;
        loop {
            if leave_at.is_none() {
                self.show(&task);
            }
            let step = self.poll(&task).await;
            let step = match step {
                Ok(outcome) => match outcome? {
                    Ok(result) => {
                        task = Task::read(&result)?;
                        if let Some(verdict) = self.settled(&task, &result)? {
                            return Ok(verdict);
                        }
                        // Once the task is to be cancelled, nobody is asked any more.
                        if leave_at.is_none() { self.answer(&task, &result).await? } else { Ok(()) }
                    }
                    Err(error) => return Ok(self.talk.fault(&error)),
                },
                Err(interrupted) => Err(interrupted),
            };
            match step {
                Ok(()) if leave_at.is_some_and(|at| Instant::now() >= at) => return Ok(self.talk.left(&task.task_id)),
                Ok(()) => (),
                Err(Interrupted) if leave_at.is_none() => {
                    leave_at = Some(Instant::now() + CANCEL_MAX);
                    if self.cancel(&task).await.is_err() {
                        return Ok(self.talk.left(&task.task_id));
                    }
                }
                Err(Interrupted) => return Ok(self.talk.left(&task.task_id)),
            }
        }
    }

    async fn poll(&mut self, task: &Task) -> Result<Result<Result<Object, RpcError>, ClientError>, Interrupted> {
        self.talk.or_interrupt(tokio::time::sleep(task.poll_interval())).await?;
        self.ask(method::TASKS_GET, &task.task_id, None).await
    }

    /// The verdict, once the task's state allows one.
    fn settled(&mut self, task: &Task, result: &Object) -> Result<Option<Verdict>, ClientError> {
        let verdict = match task.status.as_str() {
            "completed" => {
                let inner = result.get_object("result");
                self.talk.print(&inner.ok_or(ClientError::Unintelligible("a completed task without a result"))?)?
            }
            "failed" => {
                let error = result.get_object("error").and_then(|error| RpcError::from_object(&error));
                self.talk.fault(&error.ok_or(ClientError::Unintelligible("a failed task without an error"))?)
            }
            "cancelled" => {
                self.show(task);
                self.talk.cancelled("the task was cancelled")
            }
            // An unknown word is read as working (GW-14).
            _ => return Ok(None),
        };
        Ok(Some(verdict))
    }

    /// Puts the task's open questions to the user, each once, and sends each answer as soon as it is there.
    async fn answer(&mut self, task: &Task, result: &Object) -> Result<Result<(), Interrupted>, ClientError> {
        let Some(asked) = result.get_object("inputRequests").filter(|_| task.status == "input_required") else {
            return Ok(Ok(()));
        };
        self.show(task);
        for (key, entry) in asked.entries() {
            if self.answered.contains(key.as_ref()) {
                continue;
            }
            let params = elicitation(&entry)?;
            let answer = tokio::select! {
                biased;
                answer = self.talk.ask(params.as_ref()) => answer,
                () = withdrawn(self.client, task, &key) => {
                    self.talk.note("the question was withdrawn");
                    return Ok(Ok(()));
                }
            };
            let Ok(answer) = answer else { return Ok(Err(Interrupted)) };
            self.answered.insert(key.clone().into_owned());
            let answers = Value::Object(Map::from_iter([(key.into_owned(), answer)]));
            match self.ask(method::TASKS_UPDATE, &task.task_id, Some(&Payload::of(&answers))).await {
                Ok(Ok(Ok(_))) => (),
                // Whether the task goes on without it shows in the next polls.
                Ok(Ok(Err(error))) => self.talk.note(&format!("the server refused the answer: {}", words(&error))),
                Ok(Err(error)) => return Err(error),
                Err(interrupted) => return Ok(Err(interrupted)),
            }
        }
        Ok(Ok(()))
    }

    /// Asks for the task's cancellation. Whether that worked shows in the next polls.
    async fn cancel(&mut self, task: &Task) -> Result<(), Interrupted> {
        self.talk.ui.status(&Status { task_id: Some(&task.task_id), word: "cancelling", message: None, steps: None });
        match self.ask(method::TASKS_CANCEL, &task.task_id, None).await? {
            Ok(Ok(_)) => (),
            Ok(Err(error)) => self.talk.note(&format!("the server refused to cancel: {}", words(&error))),
            Err(error) => self.talk.note(&format!("the cancellation may be lost: {}", chain(&error))),
        }
        Ok(())
    }

    /// Sends a request about the task, again and again while the server is away or busy: all three may be
    /// repeated, an answer too, because it counts once per key.
    async fn ask(
        &mut self,
        method: &'static str,
        task_id: &str,
        answers: Option<&Payload>,
    ) -> Result<Result<Result<Object, RpcError>, ClientError>, Interrupted> {
        let mut attempt = 1;
        loop {
            let sent = self.client.request(about(method, task_id, answers));
            let pause = match self.talk.or_interrupt(sent).await? {
                Ok(Reply { outcome, busy: None }) => return Ok(Ok(outcome)),
                failed => match self.talk.again(attempt, failed) {
                    Ok(pause) => pause,
                    Err(Failed::Answered(outcome)) => return Ok(Ok(outcome)),
                    Err(Failed::Lost(error)) => return Ok(Err(error)),
                },
            };
            self.talk.or_interrupt(tokio::time::sleep(pause)).await?;
            attempt += 1;
        }
    }

    fn show(&mut self, task: &Task) {
        let message = task.status_message.as_deref();
        let steps = message.and_then(Steps::find);
        self.talk.ui.status(&Status { task_id: Some(&task.task_id), word: &task.status, message, steps });
    }
}

fn about<'a>(method: &'static str, task_id: &'a str, answers: Option<&Payload>) -> Outgoing<'a> {
    let params = ObjectWriter::new().text("taskId", task_id);
    let params = answers.iter().fold(params, |params, answers| params.member("inputResponses", answers));
    Outgoing { method, name: Some(task_id), params, call: None, within: REQUEST_MAX }
}

/// Ends once the server does not ask this any more: it lost its patience, or somebody else cancelled the task.
/// A server that is away asks on.
async fn withdrawn(client: &Stateless, task: &Task, key: &str) {
    loop {
        tokio::time::sleep(task.poll_interval()).await;
        let Ok(Reply { outcome, busy: None }) = client.request(about(method::TASKS_GET, &task.task_id, None)).await
        else {
            continue;
        };
        let Ok(result) = outcome else { return };
        let is_asked = result.get_object("inputRequests").is_some_and(|asked| asked.contains(key));
        if !is_asked || Task::read(&result).is_ok_and(|task| task.is_settled()) {
            return;
        }
    }
}
