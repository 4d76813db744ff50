//! Holds the dialog of a call: its questions, the clients that wait, and the grace period.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::time::{Instant, timeout_at};

use crate::engine::call::{CallEnd, CallEvent, CallStreamSender};
use crate::task::Question;
use crate::upstream::Answer;
use crate::wire::Payload;

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
        Self { clients: AttachedClients::default(), questions, grace_end: None, grace_status: None }
    }

    pub(super) const fn clients(&self) -> &AttachedClients {
        &self.clients
    }

    pub(super) const fn clients_mut(&mut self) -> &mut AttachedClients {
        &mut self.clients
    }

    pub(super) fn detach(&mut self) {
        self.clients = AttachedClients::default();
    }

    pub(super) const fn questions(&self) -> &CallQuestions {
        &self.questions
    }

    pub(super) const fn questions_mut(&mut self) -> &mut CallQuestions {
        &mut self.questions
    }

    /// Drops all questions, because the call is sent again.
    pub(super) fn clear_questions(&mut self) {
        self.questions = CallQuestions::default();
    }

    pub(super) const fn grace_end(&self) -> Option<Instant> {
        self.grace_end
    }

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
#[derive(Default)]
pub(super) struct AttachedClients {
    senders: SmallVec<[CallStreamSender; 1]>,
}

impl AttachedClients {
    pub(super) fn new(sender: CallStreamSender) -> Self {
        Self { senders: smallvec![sender] }
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

/// Limits of open questions, and of all questions, of one call (U29).
const OPEN_MAX: usize = 32;
const ASKED_MAX: u32 = 1_000;

/// How long a round waits for further questions after its first one (GW-21).
const ROUND_WAIT: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct CallQuestions {
    open: Vec<OpenQuestion>,
    /// Questions that wait for the store before the client sees them, in order.
    unasked: VecDeque<UnaskedQuestion>,
    /// Questions that wait for the store before they are removed from the task.
    withdrawn: Vec<WithdrawnQuestion>,
    count: u32,
    /// When a waiting client receives the open questions.
    round_due: Option<Instant>,
    rounds: u32,
    /// Questions of an earlier process: open ones, and answered ones that are being delivered.
    earlier: Vec<Payload>,
    /// Undelivered answers with an unresolved write: the row may mark them as delivered.
    unresolved: Vec<(Payload, Answer)>,
    /// Whether the log has a question that no client can receive.
    is_refusal_logged: bool,
}

pub(super) struct UnaskedQuestion {
    pub(super) question: Question,
    pub(super) method: Arc<str>,
}

pub(super) struct WithdrawnQuestion {
    pub(super) ask: Payload,
    /// Its method, if the upstream must be notified; `None` if it withdrew the question itself.
    pub(super) refused: Option<Arc<str>>,
}

pub(super) struct OpenQuestion {
    pub(super) ask: Payload,
    pub(super) method: Arc<str>,
    due: Instant,
}

impl CallQuestions {
    /// Questions that wait for the store count as open ones, so their number is bounded while it is unavailable.
    pub(super) fn is_full(&self) -> bool {
        self.open.len() + self.unasked.len() + self.withdrawn.len() >= OPEN_MAX || self.count >= ASKED_MAX
    }

    /// Whether a question that no client can receive is the call's first one.
    pub(super) const fn is_first_refusal(&mut self) -> bool {
        !std::mem::replace(&mut self.is_refusal_logged, true)
    }

    pub(super) const fn round_due(&self) -> Option<Instant> {
        self.round_due
    }

    /// Whether only this runner knows a question or withdrawal: a later process misses it after the stored position.
    pub(super) fn has_unstored(&self) -> bool {
        !(self.unasked.is_empty() && self.withdrawn.is_empty())
    }

    /// Whether an answer is known to this runner only: the row may mark it as delivered.
    pub(super) const fn has_unresolved(&self) -> bool {
        !self.unresolved.is_empty()
    }

    pub(super) fn overdue_at(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.due).min()
    }

    pub(super) fn gather(&mut self) {
        self.round_due.get_or_insert_with(|| Instant::now() + ROUND_WAIT);
    }

    pub(super) const fn stop_gathering(&mut self) {
        self.round_due = None;
    }

    /// `repeats`: whether the exchange asks the questions again, as one of an earlier process does.
    pub(super) fn reopened(
        open: impl IntoIterator<Item = (Payload, Arc<str>)>,
        undelivered: &[(Payload, Answer)],
        due: Instant,
        repeats: bool,
    ) -> Self {
        let open: Vec<_> = open.into_iter().map(|(ask, method)| OpenQuestion { ask, method, due }).collect();
        let count = u32::try_from(open.len()).unwrap_or(ASKED_MAX);
        let answered = undelivered.iter().map(|(ask, _)| ask);
        let earlier = open.iter().map(|open| &open.ask).chain(answered).filter(|_| repeats).cloned().collect();
        Self { open, count, earlier, ..Self::default() }
    }

    /// Whether a question repeats one of an earlier process, and so keeps that one's key or answer. Each is repeated once.
    pub(super) fn take_replay(&mut self, ask: &Payload) -> bool {
        let before = self.earlier.len();
        self.earlier.retain(|earlier| earlier != ask);
        self.earlier.len() != before
    }

    /// Removes a question; whether it was open or waited to be.
    pub(super) fn close(&mut self, ask: &Payload) -> bool {
        let before = self.open.len() + self.unasked.len();
        self.open.retain(|open| open.ask != *ask);
        self.unasked.retain(|unasked| unasked.question.ask != *ask);
        self.withdrawn.retain(|withdrawn| withdrawn.ask != *ask);
        self.open.len() + self.unasked.len() != before
    }

    pub(super) fn take_overdue(&mut self) -> Vec<OpenQuestion> {
        let now = Instant::now();
        self.open.extract_if(.., |open| open.due <= now).collect()
    }

    pub(super) fn add_unasked(&mut self, unasked: UnaskedQuestion) {
        self.unasked.push_back(unasked);
    }

    /// Keeps a question that the store refused, before the others.
    pub(super) fn put_back_unasked(&mut self, unasked: UnaskedQuestion) {
        self.unasked.push_front(unasked);
    }

    pub(super) fn take_unasked(&mut self) -> Option<UnaskedQuestion> {
        self.unasked.pop_front()
    }

    pub(super) fn has_unasked(&self) -> bool {
        !self.unasked.is_empty()
    }

    /// Whether a question is not part of the task yet.
    pub(super) fn is_unasked(&self, ask: &Payload) -> bool {
        self.unasked.iter().any(|unasked| unasked.question.ask == *ask)
    }

    pub(super) fn add_open(&mut self, ask: Payload, method: Arc<str>, due: Instant) {
        self.count += 1;
        self.open.push(OpenQuestion { ask, method, due });
    }

    pub(super) const fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn take_open(&mut self) -> Vec<OpenQuestion> {
        std::mem::take(&mut self.open)
    }

    pub(super) fn retain_open(&mut self, is_open: impl Fn(&Payload) -> bool) {
        self.open.retain(|open| is_open(&open.ask));
    }

    pub(super) fn add_withdrawn(&mut self, withdrawn: WithdrawnQuestion) {
        self.withdrawn.push(withdrawn);
    }

    pub(super) const fn withdrawals(&self) -> usize {
        self.withdrawn.len()
    }

    pub(super) fn take_withdrawn(&mut self) -> Option<WithdrawnQuestion> {
        (!self.withdrawn.is_empty()).then(|| self.withdrawn.remove(0))
    }

    pub(super) const fn rounds(&self) -> u32 {
        self.rounds
    }

    pub(super) const fn begin_round(&mut self) -> u32 {
        self.rounds += 1;
        self.rounds
    }

    /// Whether the row may mark this answer as delivered, although its delivery has not begun.
    pub(super) fn is_unresolved(&self, ask: &Payload) -> bool {
        self.unresolved.iter().any(|(unresolved, _)| unresolved == ask)
    }

    pub(super) fn add_unresolved(&mut self, ask: Payload, answer: Answer) {
        self.unresolved.push((ask, answer));
    }

    pub(super) fn resolve(&mut self, ask: &Payload) {
        self.unresolved.retain(|(unresolved, _)| unresolved != ask);
    }

    /// The undelivered answers of the row, and the answers with an unresolved mark.
    pub(super) fn to_deliver(&self, mut in_row: Vec<(Payload, Answer)>) -> Vec<(Payload, Answer)> {
        let taken_out = self.unresolved.iter().filter(|(ask, _)| in_row.iter().all(|(other, _)| other != ask));
        let taken_out: Vec<_> = taken_out.cloned().collect();
        in_row.extend(taken_out);
        in_row
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
    fn t_27_a_client_that_takes_a_handle_and_disconnects_has_taken_it() {
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

    #[test]
    fn u29_a_call_asks_at_most_1000_questions_in_all() {
        let after = |count| CallQuestions { count, ..CallQuestions::default() };
        assert!(!after(ASKED_MAX - 1).is_full());
        assert!(after(ASKED_MAX).is_full());
    }
}
