//! What every flavour does in the same way while a call is under way: shows, prints, asks, hears of Ctrl-C.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::call::{CallCommand, CallExit, QuestionPolicy};
use super::question::{self, UserQuestion};
use super::ui::{CallStatus, Ui};
use crate::wire::{Object, RpcError};

/// Why there is no result, in words: the server cannot be reached or understood.
#[derive(Debug)]
pub(super) struct NoResultError(pub(super) String);

impl NoResultError {
    pub(super) fn unintelligible(why: &str) -> Self {
        Self(format!("the server's answer cannot be understood: {why}"))
    }
}

/// The user's side of one call.
pub(super) struct CallDialog<'a> {
    pub(super) call: &'a CallCommand,
    pub(super) ui: &'a mut dyn Ui,
    pub(super) interrupts: &'a mut mpsc::Receiver<()>,
    /// Whether a question was left without an answer.
    pub(super) declined: bool,
}

/// Ends a wait: the user wants to leave.
#[derive(Debug)]
pub(super) struct Interrupted;

impl<'a> CallDialog<'a> {
    pub(super) fn new(call: &'a CallCommand, ui: &'a mut dyn Ui, interrupts: &'a mut mpsc::Receiver<()>) -> Self {
        Self { call, ui, interrupts, declined: false }
    }

    pub(super) fn note(&mut self, text: &str) {
        self.ui.note(text);
    }

    pub(super) fn calling(&mut self) {
        self.ui.status(&CallStatus { task_id: None, word: "calling", message: None, steps: None });
    }

    /// Waits for `what`, unless the user interrupts it.
    pub(super) async fn or_interrupt<F: Future>(&mut self, what: F) -> Result<F::Output, Interrupted> {
        or_interrupt(what, self.interrupts).await
    }

    /// Puts a question to the user, and returns the result of `elicitation/create`.
    ///
    /// # Errors
    /// If the user wants to leave instead.
    pub(super) async fn ask(&mut self, params: Option<&Object>) -> Result<Value, Interrupted> {
        let read = params.map_or_else(|| Err("it has no parameters".to_owned()), UserQuestion::read);
        let answer = match (read, self.call.input) {
            (Ok(question), QuestionPolicy::Asked) => or_interrupt(question.put(self.ui), self.interrupts).await?,
            (Ok(question), QuestionPolicy::Declined) => {
                self.ui.note(&format!("the tool asks \"{}\"; declined, because of --no-input", question.message()));
                question::UserAnswer::Decline
            }
            (Err(why), _) => {
                self.ui.note(&format!("the tool asks what this client cannot show ({why}); declined"));
                question::UserAnswer::Decline
            }
        };
        self.declined |= !answer.is_accepted();
        Ok(answer.to_result())
    }

    pub(super) fn fault(&mut self, error: &RpcError) -> CallExit {
        self.ui.note(&words(error));
        CallExit::Faulted
    }

    pub(super) fn cancelled(&mut self, what: &str) -> CallExit {
        self.ui.note(what);
        CallExit::Cancelled
    }

    /// Leaves a task behind.
    pub(super) fn left(&mut self, task_id: &str) -> CallExit {
        self.ui.note(&format!("task {task_id} has not confirmed its cancellation and may still run"));
        CallExit::Cancelled
    }

    /// Prints a tool's result: text as text, anything else as the JSON it is, on a terminal without what nobody can read.
    pub(super) fn print(&mut self, result: &Object) -> Result<CallExit, NoResultError> {
        let content = result.get("content");
        let blocks: Vec<&RawValue> = match &content {
            Some(content) => content.read().map_err(|_| NoResultError::unintelligible("content is no list"))?,
            None => Vec::new(),
        };
        for block in &blocks {
            match serde_json::from_str(block.get()) {
                Ok(TextBlock { kind: TextBlockType::Text, text }) => self.ui.output(&text),
                Err(_) => match media_in_words(block.get()).filter(|_| self.ui.is_for_people()) {
                    Some(words) => self.ui.output(&words),
                    None => self.ui.output(block.get()),
                },
            }
        }
        if blocks.is_empty()
            && let Some(structured) = result.get("structuredContent")
        {
            self.ui.output(structured.as_str());
        }
        let is_error = result.get("isError").is_some_and(|flag| flag.as_str() == "true");
        Ok(if is_error { CallExit::ToolFailed } else { CallExit::Returned })
    }
}

/// An image or a sound, by what it is and its size.
fn media_in_words(block: &str) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct MediaBlock<'a> {
        #[serde(rename = "type")]
        kind: &'a str,
        mime_type: std::borrow::Cow<'a, str>,
        data: std::borrow::Cow<'a, str>,
    }
    let MediaBlock { kind, mime_type, data } = serde_json::from_str(block).ok()?;
    let bytes =
        data.len() / 4 * 3 - data.bytes().rev().take(2).filter(|byte| *byte == b'=').count().min(data.len() / 4 * 3);
    matches!(kind, "image" | "audio")
        .then(|| format!("[{kind}, {mime_type}, {bytes} bytes; stdout elsewhere has it as JSON]"))
}

/// A content block that is text; any other fails to be read.
#[derive(Deserialize)]
struct TextBlock {
    #[serde(rename = "type")]
    kind: TextBlockType,
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum TextBlockType {
    Text,
}

pub(super) fn words(error: &RpcError) -> String {
    let data = error.data.as_ref().map(|data| format!(" {}", data.as_str())).unwrap_or_default();
    format!("error {}: {}{data}", error.code, error.message)
}

/// Waits for `what`, unless the user interrupts it.
pub(super) async fn or_interrupt<F: Future>(
    what: F,
    interrupts: &mut mpsc::Receiver<()>,
) -> Result<F::Output, Interrupted> {
    tokio::select! {
        biased;
        () = interrupted(interrupts) => Err(Interrupted),
        output = what => Ok(output),
    }
}

/// Waits for Ctrl-C. Where nobody can interrupt any more, for ever.
pub(super) async fn interrupted(interrupts: &mut mpsc::Receiver<()>) {
    if interrupts.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}
