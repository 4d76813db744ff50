//! Holds the dialog of a call with its client: questions and answers, the clients that listen, and the grace period.

mod clients;
mod questions;

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

pub(super) use self::clients::AttachedClients;
pub(super) use self::questions::{CallQuestions, OpenQuestion, UnaskedQuestion, WithdrawnQuestion};
use crate::engine::call::CallEvent;

pub(super) struct Dialog {
    clients: AttachedClients,
    questions: CallQuestions,
    grace_end: Option<Instant>,
    /// The last progress text of the grace period: the first status message of the task.
    grace_status: Option<Arc<str>>,
}

impl Dialog {
    pub(super) fn new(clients: AttachedClients, grace_end: Option<Instant>) -> Self {
        Self { clients, questions: CallQuestions::default(), grace_end, grace_status: None }
    }

    pub(super) const fn of_row(questions: CallQuestions) -> Self {
        Self { clients: AttachedClients::none(), questions, grace_end: None, grace_status: None }
    }

    pub(super) const fn clients(&self) -> &AttachedClients {
        &self.clients
    }

    pub(super) const fn clients_mut(&mut self) -> &mut AttachedClients {
        &mut self.clients
    }

    pub(super) fn detach(&mut self) {
        self.clients = AttachedClients::none();
    }

    pub(super) const fn questions(&self) -> &CallQuestions {
        &self.questions
    }

    pub(super) const fn questions_mut(&mut self) -> &mut CallQuestions {
        &mut self.questions
    }

    /// Forgets all questions, because the call is sent again.
    pub(super) fn forget_questions(&mut self) {
        self.questions = CallQuestions::default();
    }

    pub(super) const fn grace_end(&self) -> Option<Instant> {
        self.grace_end
    }

    /// Begins the grace period, or ends it with `None`.
    pub(super) const fn set_grace_end(&mut self, end: Option<Instant>) {
        self.grace_end = end;
    }

    /// Ends the grace period; whether it lasted.
    pub(super) const fn end_grace(&mut self) -> bool {
        self.grace_end.take().is_some()
    }

    pub(super) fn grace_status(&self) -> Option<Arc<str>> {
        self.grace_status.clone()
    }

    pub(super) fn set_grace_status(&mut self, status: Option<Arc<str>>) {
        self.grace_status = status;
    }

    /// Sends an event before the response or the handle. A client that does not read does not delay the end of the grace period.
    pub(super) async fn send_within_grace(&self, event: CallEvent) {
        let sent = self.clients.send(event);
        match self.grace_end {
            Some(end) => drop(timeout_at(end, sent).await),
            None => sent.await,
        }
    }
}
