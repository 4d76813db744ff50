//! Holds the questions of a call that the client sees, or that wait for the store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::task::Question;
use crate::upstream::Answer;
use crate::wire::Payload;

/// Limits of open questions, and of all questions, of one call (U29).
const OPEN_MAX: usize = 32;
const ASKED_MAX: u32 = 1_000;

/// How long a round waits for further questions after its first one (GW-21).
const ROUND_WAIT: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(in crate::engine::runner) struct CallQuestions {
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

pub(in crate::engine::runner) struct UnaskedQuestion {
    pub(in crate::engine::runner) question: Question,
    pub(in crate::engine::runner) method: Arc<str>,
}

pub(in crate::engine::runner) struct WithdrawnQuestion {
    pub(in crate::engine::runner) ask: Payload,
    /// Its method, if the upstream must be notified; `None` if it withdrew the question itself.
    pub(in crate::engine::runner) refused: Option<Arc<str>>,
}

pub(in crate::engine::runner) struct OpenQuestion {
    pub(in crate::engine::runner) ask: Payload,
    pub(in crate::engine::runner) method: Arc<str>,
    due: Instant,
}

impl CallQuestions {
    /// Questions that wait for the store count as open ones, so their number is bounded while it is unavailable.
    pub(in crate::engine::runner) fn is_full(&self) -> bool {
        self.open.len() + self.unasked.len() + self.withdrawn.len() >= OPEN_MAX || self.count >= ASKED_MAX
    }

    /// Whether a question that no client can receive is the call's first one.
    pub(in crate::engine::runner) const fn is_first_refusal(&mut self) -> bool {
        !std::mem::replace(&mut self.is_refusal_logged, true)
    }

    pub(in crate::engine::runner) const fn round_due(&self) -> Option<Instant> {
        self.round_due
    }

    /// Whether only this runner knows a question or withdrawal: a later process misses it after the stored position.
    pub(in crate::engine::runner) fn has_unstored(&self) -> bool {
        !(self.unasked.is_empty() && self.withdrawn.is_empty())
    }

    /// Whether an answer is known to this runner only: the row may mark it as delivered.
    pub(in crate::engine::runner) const fn has_unresolved(&self) -> bool {
        !self.unresolved.is_empty()
    }

    pub(in crate::engine::runner) fn overdue_at(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.due).min()
    }

    pub(in crate::engine::runner) fn gather(&mut self) {
        self.round_due.get_or_insert_with(|| Instant::now() + ROUND_WAIT);
    }

    pub(in crate::engine::runner) const fn stop_gathering(&mut self) {
        self.round_due = None;
    }

    pub(in crate::engine::runner) fn reopened(
        open: impl IntoIterator<Item = (Payload, Arc<str>)>,
        undelivered: &[(Payload, Answer)],
        due: Instant,
    ) -> Self {
        let open: Vec<_> = open.into_iter().map(|(ask, method)| OpenQuestion { ask, method, due }).collect();
        let count = u32::try_from(open.len()).unwrap_or(ASKED_MAX);
        let answered = undelivered.iter().map(|(ask, _)| ask);
        let earlier = open.iter().map(|open| &open.ask).chain(answered).cloned().collect();
        Self { open, count, earlier, ..Self::default() }
    }

    /// Whether a question is a replay from an earlier process: it keeps its key, or its answer.
    pub(in crate::engine::runner) fn is_replayed(&self, ask: &Payload) -> bool {
        self.earlier.contains(ask)
    }

    /// Removes a question; whether it was open or waited to be.
    pub(in crate::engine::runner) fn close(&mut self, ask: &Payload) -> bool {
        let before = self.open.len() + self.unasked.len();
        self.open.retain(|open| open.ask != *ask);
        self.unasked.retain(|unasked| unasked.question.ask != *ask);
        self.withdrawn.retain(|withdrawn| withdrawn.ask != *ask);
        self.open.len() + self.unasked.len() != before
    }

    pub(in crate::engine::runner) fn take_overdue(&mut self) -> Vec<OpenQuestion> {
        let now = Instant::now();
        self.open.extract_if(.., |open| open.due <= now).collect()
    }

    pub(in crate::engine::runner) fn add_unasked(&mut self, unasked: UnaskedQuestion) {
        self.unasked.push_back(unasked);
    }

    /// Keeps a question that the store refused, before the others.
    pub(in crate::engine::runner) fn put_back_unasked(&mut self, unasked: UnaskedQuestion) {
        self.unasked.push_front(unasked);
    }

    pub(in crate::engine::runner) fn take_unasked(&mut self) -> Option<UnaskedQuestion> {
        self.unasked.pop_front()
    }

    pub(in crate::engine::runner) fn has_unasked(&self) -> bool {
        !self.unasked.is_empty()
    }

    /// Whether a question is not part of the task yet.
    pub(in crate::engine::runner) fn is_unasked(&self, ask: &Payload) -> bool {
        self.unasked.iter().any(|unasked| unasked.question.ask == *ask)
    }

    pub(in crate::engine::runner) fn add_open(&mut self, ask: Payload, method: Arc<str>, due: Instant) {
        self.count += 1;
        self.open.push(OpenQuestion { ask, method, due });
    }

    pub(in crate::engine::runner) const fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(in crate::engine::runner) fn take_open(&mut self) -> Vec<OpenQuestion> {
        std::mem::take(&mut self.open)
    }

    pub(in crate::engine::runner) fn retain_open(&mut self, is_open: impl Fn(&Payload) -> bool) {
        self.open.retain(|open| is_open(&open.ask));
    }

    pub(in crate::engine::runner) fn add_withdrawn(&mut self, withdrawn: WithdrawnQuestion) {
        self.withdrawn.push(withdrawn);
    }

    pub(in crate::engine::runner) const fn withdrawals(&self) -> usize {
        self.withdrawn.len()
    }

    pub(in crate::engine::runner) fn take_withdrawn(&mut self) -> Option<WithdrawnQuestion> {
        (!self.withdrawn.is_empty()).then(|| self.withdrawn.remove(0))
    }

    pub(in crate::engine::runner) const fn rounds(&self) -> u32 {
        self.rounds
    }

    pub(in crate::engine::runner) const fn begin_round(&mut self) -> u32 {
        self.rounds += 1;
        self.rounds
    }

    /// Whether the row may mark this answer as delivered, although its delivery has not begun.
    pub(in crate::engine::runner) fn is_unresolved(&self, ask: &Payload) -> bool {
        self.unresolved.iter().any(|(unresolved, _)| unresolved == ask)
    }

    pub(in crate::engine::runner) fn add_unresolved(&mut self, ask: Payload, answer: Answer) {
        self.unresolved.push((ask, answer));
    }

    pub(in crate::engine::runner) fn resolve(&mut self, ask: &Payload) {
        self.unresolved.retain(|(unresolved, _)| unresolved != ask);
    }

    /// The undelivered answers of the row, and the answers with an unresolved mark.
    pub(in crate::engine::runner) fn to_deliver(&self, mut in_row: Vec<(Payload, Answer)>) -> Vec<(Payload, Answer)> {
        let taken_out = self.unresolved.iter().filter(|(ask, _)| in_row.iter().all(|(other, _)| other != ask));
        let taken_out: Vec<_> = taken_out.cloned().collect();
        in_row.extend(taken_out);
        in_row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u29_a_call_asks_at_most_1000_questions_in_all() {
        let after = |count| CallQuestions { count, ..CallQuestions::default() };
        assert!(!after(ASKED_MAX - 1).is_full());
        assert!(after(ASKED_MAX).is_full());
    }
}
