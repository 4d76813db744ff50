//! Holds the dialog of a call: its questions, the clients that wait, and the grace period.

mod questions;

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use tokio::time::{Instant, timeout_at};

pub(super) use self::questions::{CallQuestions, OpenQuestion, UnaskedQuestion, WithdrawnQuestion};
use crate::engine::call::{CallEnd, CallEvent, CallStreamSender};

/// Clients that wait for one call at a time: the first one, and those that resumed it.
const CLIENTS_MAX: usize = 8;

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

    pub(super) fn of_row(questions: CallQuestions) -> Self {
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

    /// Sends an event before the response or the handle. A client that does not read delays no grace period.
    pub(super) async fn send_within_grace(&self, event: CallEvent) {
        let sent = self.clients.send(event);
        match self.grace_end {
            Some(end) => drop(timeout_at(end, sent).await),
            None => sent.await,
        }
    }
}

/// The clients that wait for the call: more than one only if a client repeats a request that is still in progress.
pub(super) struct AttachedClients {
    senders: SmallVec<[CallStreamSender; 1]>,
}

impl AttachedClients {
    pub(super) fn new(sender: CallStreamSender) -> Self {
        Self { senders: smallvec![sender] }
    }

    pub(super) fn none() -> Self {
        Self { senders: SmallVec::new() }
    }

    /// Adds a returning client, if there is room.
    pub(super) fn attach(&mut self, sender: CallStreamSender) {
        self.senders.retain(|sender| !sender.events.is_closed());
        if self.senders.len() < CLIENTS_MAX {
            self.senders.push(sender);
        }
    }

    pub(super) fn first(&self) -> Option<CallStreamSender> {
        self.senders.first().cloned()
    }

    pub(super) fn is_there(&self) -> bool {
        !self.senders.is_empty()
    }

    /// Sends an event; waits while a client reads slowly. The next step notices a client that left.
    pub(super) async fn send(&self, event: CallEvent) {
        if let [all_but_last @ .., last] = self.senders.as_slice() {
            for sender in all_but_last {
                sender.send(event.clone()).await;
            }
            last.send(event).await;
        }
    }

    /// Sends the last event of a call that no client will resume.
    pub(super) async fn end(&mut self, end: CallEnd) {
        self.send(CallEvent::Ended(end)).await;
        self.senders.clear();
    }

    /// Returns once all clients have left. Cancel safe.
    pub(super) async fn left(&self) {
        for sender in &self.senders {
            sender.events.closed().await;
        }
    }

    /// Sends a task's reference and detaches all clients; false if no client received it, so that none knows the task.
    pub(super) async fn hand_over(&mut self, event: CallEvent) -> bool {
        self.send(event).await;
        let mut taken = false;
        for sender in std::mem::take(&mut self.senders) {
            tokio::select! {
                _ = sender.claimed.wait() => {}
                () = sender.events.closed() => {}
            }
            // Checked last: a client receives the event before it leaves, perhaps between the two polls above.
            taken |= sender.claimed.initialized();
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::engine::call::CallStream;
    use crate::store::contract::task;

    /// T-27. If both have happened, either may be seen first.
    #[test]
    fn t_27_whoever_takes_a_handle_and_leaves_at_once_has_taken_it() {
        let task = Arc::new(task("a", 1));
        for takes in [true, false].repeat(64) {
            let (sender, mut stream) = CallStream::new();
            let mut clients = AttachedClients::new(sender);
            let mut handing = pin!(clients.hand_over(CallEvent::Created(Arc::clone(&task))));
            assert_eq!(handing.as_mut().now_or_never(), None);
            if takes {
                assert!(stream.next().now_or_never().flatten().is_some());
            }
            drop(stream);
            assert_eq!(handing.now_or_never(), Some(takes));
        }
    }
}
