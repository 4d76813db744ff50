//! Handles the user's side of a call: status, output, questions and Ctrl-C.

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::call::{CallExit, Flavour, FollowPolicy, QuestionPolicy};
use super::media::{self, Media};
use super::question::{UserAnswer, UserQuestion};
use super::server_address::ServerAddress;
use super::ui::{CallStatus, Ui};
use crate::waits::at;
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, RpcError};

/// Why there is no result, as text: the server is unreachable or its response invalid.
#[derive(Debug)]
pub(super) struct NoResultError(pub(super) String);

impl NoResultError {
    pub(super) fn unintelligible(why: &str) -> Self {
        Self(format!("the server's answer cannot be understood: {why}"))
    }
}

pub(super) struct CallDialog<'a> {
    pub(super) policy: &'a FollowPolicy,
    pub(super) ui: &'a mut dyn Ui,
    interrupts: &'a mut mpsc::Receiver<()>,
    until: Option<Instant>,
    pub(super) declined: bool,
    /// Whether the call has an idempotency key, so that its end on this side does not cancel it at a gateway.
    pub(super) has_key: bool,
    /// Whether a part of the result was not printed, or not written to the file that was asked for.
    is_unwritten: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupted {
    ByUser,
    /// The user's time limit has expired.
    Late,
}

impl<'a> CallDialog<'a> {
    pub(super) fn new(policy: &'a FollowPolicy, ui: &'a mut dyn Ui, interrupts: &'a mut mpsc::Receiver<()>) -> Self {
        // A limit beyond any time means none.
        let until = policy.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { policy, ui, interrupts, until, declined: false, has_key: false, is_unwritten: false }
    }

    pub(super) fn note(&mut self, text: &str) {
        self.ui.note(text);
    }

    pub(super) fn calling(&mut self) {
        self.ui.status(&CallStatus { task_id: None, text: "calling", message: None, steps: None });
    }

    pub(super) async fn or_interrupt<F: Future>(&mut self, what: F) -> Result<F::Output, Interrupted> {
        or_interrupt(what, self.interrupts, self.until).await
    }

    pub(super) async fn interrupted(&mut self) -> Interrupted {
        interrupted(self.interrupts, self.until).await
    }

    pub(super) fn given_up(&mut self, why: Interrupted) -> CallExit {
        if why == Interrupted::ByUser && !self.has_key {
            return self.cancelled("cancelled");
        }
        let begin = if why == Interrupted::Late { self.late() } else { "left".to_owned() };
        let end = match self.has_key {
            true => {
                "a taskgate gateway may run the call on under its key, and the same command gets its result; another server \
                 was asked to cancel the call, and would run it again"
            }
            false => "cancelled",
        };
        self.ui.note(&format!("{begin}; {end}"));
        CallExit::Unfinished
    }

    pub(super) fn ended(&mut self, ended: Result<CallExit, NoResultError>) -> CallExit {
        if let Some(error) = self.ui.lost_output() {
            self.note(&format!("the output cannot be written: {error}"));
            self.is_unwritten = true;
        }
        match ended {
            Ok(CallExit::Returned | CallExit::ToolFailed) if self.is_unwritten => CallExit::Unwritten,
            Ok(CallExit::Returned | CallExit::ToolFailed) if self.declined => CallExit::Declined,
            Ok(verdict) => verdict,
            Err(NoResultError(why)) => {
                self.note(&why);
                CallExit::Lost
            }
        }
    }

    pub(super) fn late(&self) -> String {
        format!("no result within {}", humantime::format_duration(self.policy.timeout.unwrap_or_default()))
    }

    /// Asks the user a question, and returns the result of `elicitation/create`.
    pub(super) async fn ask(&mut self, params: Option<&Object>) -> Result<Value, Interrupted> {
        let read = params.map_or_else(|| Err("it has no parameters".to_owned()), UserQuestion::read);
        let answer = match (read, self.policy.input) {
            (Ok(question), QuestionPolicy::Asked) => {
                or_interrupt(question.put(self.ui), self.interrupts, self.until).await?
            }
            (Ok(question), QuestionPolicy::Declined) => {
                self.ui.note(&format!("the tool asks \"{}\"; declined, because of --no-input", question.message()));
                UserAnswer::Decline
            }
            (Err(why), _) => {
                self.ui.note(&format!("this client cannot show the tool's question ({why}); declined"));
                UserAnswer::Decline
            }
        };
        self.declined |= !matches!(answer, UserAnswer::Accept(_));
        Ok(answer.to_result())
    }

    pub(super) fn fault(&mut self, error: &RpcError) -> CallExit {
        self.ui.note(&words(error));
        if self.policy.result.is_json {
            let error = ObjectWriter::new().member("error", &Payload::of(error)).finish();
            self.ui.output(error.as_str());
        }
        CallExit::Faulted
    }

    pub(super) fn cancelled(&mut self, what: &str) -> CallExit {
        self.ui.note(what);
        CallExit::Cancelled
    }

    /// Reports that a task may still run.
    pub(super) fn left(&mut self, task_id: &str) -> CallExit {
        self.ui.note(&format!("task {task_id} has not confirmed its cancellation and may still run"));
        CallExit::Cancelled
    }

    /// Prints a tool's result: text as text, anything else as JSON. Binary data goes to files, and never to a terminal.
    pub(super) fn print(&mut self, result: &Object) -> Result<CallExit, NoResultError> {
        let content = result.get("content");
        if content.as_ref().is_some_and(|content| !content.as_str().starts_with('[')) {
            return Err(NoResultError::unintelligible("content is not a list"));
        }
        if self.policy.result.is_json {
            let shown = self.fit_to_print(result);
            self.ui.output(shown.as_str());
        } else {
            self.print_blocks(result, content.iter().flat_map(Payload::items));
        }
        let is_error = result.get("isError").is_some_and(|flag| flag.as_str() == "true");
        Ok(if is_error { CallExit::ToolFailed } else { CallExit::Returned })
    }

    fn print_blocks(&mut self, result: &Object, blocks: impl Iterator<Item = Payload>) {
        let mut is_empty = true;
        for block in blocks {
            is_empty = false;
            let object = Object::of(&block);
            let text = object.as_ref().filter(|object| object.get_str("type").as_deref() == Some("text"));
            if let Some(text) = text.and_then(|object| object.get_lossy("text")) {
                self.ui.output(&text);
                continue;
            }
            match object.as_ref().and_then(Media::of).and_then(|media| self.save_media(&media)) {
                Some(words) => self.ui.output(&words),
                None => self.ui.output(block.as_str()),
            }
        }
        if is_empty && let Some(structured) = result.get("structuredContent") {
            self.ui.output(structured.as_str());
        }
    }

    pub(super) fn fit_to_print(&mut self, result: &Object) -> Payload {
        media::replaced(result, &mut |media| self.save_media(media))
    }

    /// The replacement of binary data: the path of its file, or its description; `None` to print the data itself.
    fn save_media(&mut self, media: &Media) -> Option<String> {
        match self.policy.result.out.as_ref().map(|folder| folder.save(media)) {
            Some(Ok(file)) => return Some(file.display().to_string()),
            Some(Err(why)) => {
                self.ui.note(&format!("the {} is not written: {why}", media.kind));
                self.is_unwritten = true;
            }
            None => (),
        }
        self.ui.is_for_people().then(|| media.words())
    }
}

pub(super) fn words(error: &RpcError) -> String {
    let data = error.data.as_ref().map(|data| format!(" {}", data.as_str())).unwrap_or_default();
    format!("error {}: {}{data}", error.code, error.message)
}

/// Waits for `what` unless the user interrupts it or the deadline passes.
async fn or_interrupt<F: Future>(
    what: F,
    interrupts: &mut mpsc::Receiver<()>,
    until: Option<Instant>,
) -> Result<F::Output, Interrupted> {
    tokio::select! {
        biased;
        why = interrupted(interrupts, until) => Err(why),
        output = what => Ok(output),
    }
}

/// Waits for Ctrl-C or the deadline; forever if there is neither.
async fn interrupted(interrupts: &mut mpsc::Receiver<()>, until: Option<Instant>) -> Interrupted {
    tokio::select! {
        biased;
        Some(()) = interrupts.recv() => Interrupted::ByUser,
        () = at(until) => Interrupted::Late,
    }
}

/// Leaves a running task, and prints how to follow it.
pub(super) fn leave(
    server: &ServerAddress,
    id: &str,
    flavour: Option<Flavour>,
    talk: &mut CallDialog<'_>,
    why: Interrupted,
) -> CallExit {
    let words = if why == Interrupted::Late { talk.late() } else { "left".to_owned() };
    talk.note(&format!("{words}; the task goes on"));
    say_how_to_go_on(server, id, flavour, talk);
    CallExit::Unfinished
}

pub(super) fn say_how_to_go_on(server: &ServerAddress, id: &str, flavour: Option<Flavour>, talk: &mut CallDialog<'_>) {
    talk.note(&format!("follow it: {}", server.task_command("wait", id, flavour)));
}

/// Returns the recorded refusal at its due time.
pub(super) async fn after<T>(noted: Option<(Instant, T)>) -> T {
    match noted {
        Some((moment, what)) => {
            sleep_until(moment).await;
            what
        }
        None => std::future::pending().await,
    }
}
