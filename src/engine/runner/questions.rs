//! Sends the upstream's questions to the client, and expires them (GW-16, GW-18). `answers` delivers the answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::answers::is_answered;
use super::store_wait::UnstoredStep;
use super::{CallEnd, RoundSupport, Runner, RunnerFlow};
use crate::cause::CauseChain;
use crate::dialect::upstream_dialect::QuestionRefusal;
use crate::engine::TaskError;
use crate::engine::call::Askable;
use crate::failpoint;
use crate::metric;
use crate::store::StoreError;
use crate::task::{Event, Executed, GatewayFault, Phase, Question, Reason, Task, TaskVisibility};
use crate::upstream::Answer;
use crate::wire::Payload;

/// Limits of open questions, and of all questions, of one call (U29).
const OPEN_MAX: usize = 32;
const ASKED_MAX: u32 = 1_000;

/// How long a round waits for further questions after its first one (GW-21).
const ROUND_WAIT: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct CallQuestions {
    pub(super) open: Vec<OpenQuestion>,
    /// Questions that wait for the store before the client sees them, in order.
    unasked: VecDeque<UnaskedQuestion>,
    /// Questions that wait for the store before they are removed from the task.
    withdrawn: Vec<WithdrawnQuestion>,
    count: u32,
    /// When a waiting client receives the open questions.
    round_due: Option<Instant>,
    pub(super) rounds: u32,
    /// Questions of an earlier process: open ones, and answered ones that are being delivered.
    earlier: Vec<Payload>,
    /// Undelivered answers with an unresolved write: the row may mark them as delivered.
    pub(super) unresolved: Vec<(Payload, Answer)>,
}

/// A question that is not part of the task yet.
struct UnaskedQuestion {
    question: Question,
    method: Arc<str>,
}

/// A question that needs no answer any more.
struct WithdrawnQuestion {
    ask: Payload,
    /// Its method, if the upstream must be notified; `None` if it withdrew the question itself.
    refused: Option<Arc<str>>,
}

/// A question that the client can see.
pub(super) struct OpenQuestion {
    pub(super) ask: Payload,
    pub(super) method: Arc<str>,
    due: Instant,
}

impl CallQuestions {
    /// Questions that wait for the store count as open ones, so their number is bounded however long the store is unavailable.
    fn is_full(&self) -> bool {
        self.open.len() + self.unasked.len() + self.withdrawn.len() >= OPEN_MAX || self.count >= ASKED_MAX
    }

    pub(super) const fn round_due(&self) -> Option<Instant> {
        self.round_due
    }

    /// Whether a question or a withdrawal is known to this runner only: a later process would not receive it again after the
    /// stored position.
    pub(super) fn has_unstored(&self) -> bool {
        !(self.unasked.is_empty() && self.withdrawn.is_empty())
    }

    /// Whether an answer is known to this runner only: the row may mark it as delivered.
    pub(super) const fn has_unresolved(&self) -> bool {
        !self.unresolved.is_empty()
    }

    /// When the first open question expires.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.due).min()
    }

    pub(super) fn gather(&mut self) {
        self.round_due.get_or_insert_with(|| Instant::now() + ROUND_WAIT);
    }

    pub(super) const fn stop_gathering(&mut self) {
        self.round_due = None;
    }

    /// The questions of a resumed call.
    pub(super) fn reopened(
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
    fn is_replayed(&self, ask: &Payload) -> bool {
        self.earlier.contains(ask)
    }

    /// Removes a question; whether it was open or waited to be.
    pub(super) fn close(&mut self, ask: &Payload) -> bool {
        let before = self.open.len() + self.unasked.len();
        self.open.retain(|open| open.ask != *ask);
        self.unasked.retain(|unasked| unasked.question.ask != *ask);
        self.withdrawn.retain(|withdrawn| withdrawn.ask != *ask);
        self.open.len() + self.unasked.len() != before
    }

    fn take_overdue(&mut self) -> Vec<OpenQuestion> {
        let now = Instant::now();
        self.open.extract_if(.., |open| open.due <= now).collect()
    }
}

pub(super) struct QuestionError(pub(super) QuestionRefusal);

impl Runner {
    pub(super) async fn question_received(
        &mut self,
        ask: Payload,
        method: Arc<str>,
        params: Option<Payload>,
    ) -> RunnerFlow {
        if self.inputs.is_replayed(&ask) {
            return RunnerFlow::Continue;
        }
        let request = match self.spec.peer.decode_question(&method, params.as_ref()) {
            Ok(request) => request,
            Err(refused) => {
                tracing::warn!(%method, "the client cannot be asked this; it was refused");
                self.refuse_question(&ask, refused).await;
                return RunnerFlow::Continue;
            }
        };
        if self.is_unattended() {
            self.refuse_question(&ask, self.spec.peer.refuse(&method, QuestionRefusal::Unanswered)).await;
            return RunnerFlow::Continue;
        }
        match self.askable(&request) {
            Askable::Declared => match self.put(&ask, &method, request).await {
                Ok(next) => next,
                Err(QuestionError(why)) => {
                    self.refuse_question(&ask, self.spec.peer.refuse(&method, why)).await;
                    RunnerFlow::Continue
                }
            },
            Askable::Required(capability) if self.is_waited_for() => self.needs(capability).await,
            Askable::Undeclared | Askable::Required(_) => {
                self.refuse_question(&ask, self.spec.peer.refuse(&method, QuestionRefusal::Undeclared)).await;
                RunnerFlow::Continue
            }
        }
    }

    /// Whether the client supports this question. A call under an idempotency key continues without an answer, as a task does.
    pub(super) fn askable(&self, request: &Payload) -> Askable {
        match (self.spec.questions)(request) {
            Askable::Required(_) if self.spec.is_held_by_key() => Askable::Undeclared,
            askable @ (Askable::Declared | Askable::Undeclared | Askable::Required(_)) => askable,
        }
    }

    /// Whether a client without a handle waits for this call.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.has_handle() && self.client.is_there()
    }

    /// Ends a call that cannot continue without a capability: its client learns which one (MOD-10).
    pub(super) async fn needs(&mut self, capability: Payload) -> RunnerFlow {
        self.cancel_exchanges("the client cannot be asked").await;
        // Before the slower writes to the store.
        self.client.end(CallEnd::NeedsCapability(capability)).await;
        self.settle_cancelled().await;
        self.mark_notified().await;
        RunnerFlow::Stop
    }

    /// Makes a question visible to the client.
    pub(super) async fn put(
        &mut self,
        ask: &Payload,
        method: &Arc<str>,
        request: Payload,
    ) -> Result<RunnerFlow, QuestionError> {
        if self.inputs.is_full() {
            self.count_question("flood");
            return Err(QuestionError(QuestionRefusal::TooMany));
        }
        failpoint::hit("question-heard");
        let question = Question { ask: ask.detached(), request };
        let unasked = UnaskedQuestion { question, method: Arc::clone(method) };
        if !self.inputs.unasked.is_empty() {
            self.inputs.unasked.push_back(unasked);
            return Ok(RunnerFlow::Continue);
        }
        self.store_question(unasked).await
    }

    /// Adds a question to the task, once the store succeeds.
    async fn store_question(&mut self, unasked: UnaskedQuestion) -> Result<RunnerFlow, QuestionError> {
        let Some(key) = self.row_key() else { return self.put_first(unasked).await };
        let event = Event::Asked { attempt: self.attempt, question: unasked.question.clone() };
        match self.apply(&key, event).await {
            Ok(applied) if applied.changed => {
                self.is_put(unasked);
                Ok(RunnerFlow::Continue)
            }
            Ok(_) => Err(QuestionError(QuestionRefusal::Unanswered)),
            Err(error) if error.is_passing() => {
                self.inputs.unasked.push_front(unasked);
                Ok(self.wait_for_store(UnstoredStep::Questions, &error))
            }
            // The task's new holder receives the question, too.
            Err(TaskError::Store(StoreError::Fenced)) => Ok(RunnerFlow::Stop),
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "a question could not be stored and was refused");
                Err(QuestionError(QuestionRefusal::Unanswered))
            }
        }
    }

    /// Records that a question is part of the task.
    fn is_put(&mut self, UnaskedQuestion { question, method }: UnaskedQuestion) {
        self.count_question("put");
        self.inputs.count += 1;
        let due = Instant::now() + self.spec.policy.input_deadline;
        // Detached, so that the row and this list share no buffer.
        self.inputs.open.push(OpenQuestion { ask: question.ask.detached(), method, due });
        if self.is_waited_for() {
            // A question within the grace period precedes the handle.
            self.grace_end = None;
            self.inputs.gather();
        }
    }

    /// Adds the questions that waited for the store, unless the task has them already.
    pub(super) async fn put_again(&mut self, certain: Option<&Task>) -> RunnerFlow {
        while let Some(unasked) = self.inputs.unasked.pop_front() {
            let (ask, method) = (unasked.question.ask.clone(), Arc::clone(&unasked.method));
            if certain.is_some_and(|task| is_open(task, &ask)) {
                self.is_put(unasked);
                continue;
            }
            if certain.is_some_and(|task| is_answered(task, &ask)) {
                continue;
            }
            let next = match self.store_question(unasked).await {
                Ok(_) if self.waits_for_store(UnstoredStep::Questions) => return RunnerFlow::Continue,
                Ok(next) => next,
                Err(QuestionError(_)) if self.call.is_elicited(&ask) => self.elicitation_declined().await,
                Err(QuestionError(why)) => {
                    self.refuse_question(&ask, self.spec.peer.refuse(&method, why)).await;
                    RunnerFlow::Continue
                }
            };
            if matches!(next, RunnerFlow::Stop) {
                return RunnerFlow::Stop;
            }
        }
        RunnerFlow::Continue
    }

    /// Inserts the row for the first question: visible if the call may have a handle, else hidden.
    async fn put_first(&mut self, unasked: UnaskedQuestion) -> Result<RunnerFlow, QuestionError> {
        let question = unasked.question.clone();
        if let Some(grace_end) = self.grace_end.filter(|_| !self.asks_first()) {
            self.grace_end = None;
            return match self.promote(Some(question)).await {
                Ok(next) => {
                    self.is_put(unasked);
                    Ok(next)
                }
                Err(fault) if is_passing(&fault) => {
                    self.grace_end = Some(grace_end);
                    Ok(self.put_later(unasked))
                }
                Err(fault) => {
                    self.stay_plain(fault.reason).await;
                    Err(QuestionError(QuestionRefusal::Unanswered))
                }
            };
        }
        if self.spec.rounds == RoundSupport::Unknown {
            return Err(QuestionError(QuestionRefusal::Unanswered));
        }
        if self.permit.is_none() {
            self.permit = self.engine.take_permit_of_running(&self.spec.owner).ok();
        }
        if self.permit.is_none() {
            tracing::warn!("no permit for a held call; its question was refused");
            return Err(QuestionError(QuestionRefusal::Unanswered));
        }
        match self.insert(TaskVisibility::Hidden, Some(question)).await {
            Ok(_) => {
                self.is_put(unasked);
                Ok(RunnerFlow::Continue)
            }
            Err(fault) if is_passing(&fault) => Ok(self.put_later(unasked)),
            Err(_) => Err(QuestionError(QuestionRefusal::Unanswered)),
        }
    }

    fn put_later(&mut self, unasked: UnaskedQuestion) -> RunnerFlow {
        self.inputs.unasked.push_front(unasked);
        self.postpone(UnstoredStep::Questions);
        RunnerFlow::Continue
    }

    /// Handles the upstream's withdrawal of a question.
    pub(super) async fn withdrawal_received(&mut self, ask: Payload) -> RunnerFlow {
        let was_unasked = self.inputs.unasked.iter().any(|unasked| unasked.question.ask == ask);
        if !self.inputs.close(&ask) {
            return RunnerFlow::Continue;
        }
        let withdrawn = WithdrawnQuestion { ask, refused: None };
        if was_unasked {
            // The next try shows whether the row has it.
            self.inputs.withdrawn.push(withdrawn);
            self.postpone(UnstoredStep::Withdrawals);
            return RunnerFlow::Continue;
        }
        self.withdraw(withdrawn, None).await
    }

    /// Removes a question from the task once the store succeeds, and then refuses it at the upstream where required. If it was
    /// answered just before, the answer is already being delivered, and nothing is refused.
    async fn withdraw(&mut self, withdrawn: WithdrawnQuestion, certain: Option<&Task>) -> RunnerFlow {
        let Some(key) = self.row_key() else { return RunnerFlow::Continue };
        let WithdrawnQuestion { ask, refused } = &withdrawn;
        // The write that failed was committed, unless the question was answered.
        let is_off = certain.filter(|task| !is_open(task, ask)).map(|task| !is_answered(task, ask));
        let is_withdrawn = match is_off {
            Some(is_withdrawn) => Ok(is_withdrawn),
            None => {
                let event = Event::Withdrawn { attempt: self.attempt, ask: ask.clone() };
                self.apply(&key, event).await.map(|applied| applied.changed)
            }
        };
        match is_withdrawn {
            Ok(true) => (),
            Ok(false) => return RunnerFlow::Continue,
            Err(error) if error.is_passing() => {
                self.inputs.withdrawn.push(withdrawn);
                return self.wait_for_store(UnstoredStep::Withdrawals, &error);
            }
            Err(TaskError::Store(StoreError::Fenced)) => return RunnerFlow::Stop,
            Err(error) => tracing::warn!(error = %CauseChain(&error), "a question could not be taken off its task"),
        }
        let Some(method) = refused else {
            self.count_question("withdrawn");
            return RunnerFlow::Continue;
        };
        self.count_question("expired");
        if self.call.is_elicited(ask) {
            return self.elicitation_declined().await;
        }
        self.refuse_question(ask, self.spec.peer.refuse(method, QuestionRefusal::Unanswered)).await;
        RunnerFlow::Continue
    }

    /// Removes the questions from the task that waited for the store.
    pub(super) async fn withdraw_again(&mut self, certain: Option<&Task>) -> RunnerFlow {
        // One at a time: the call's position is not stored while others still wait.
        for _ in 0..self.inputs.withdrawn.len() {
            let withdrawn = self.inputs.withdrawn.remove(0);
            if matches!(self.withdraw(withdrawn, certain).await, RunnerFlow::Stop) {
                return RunnerFlow::Stop;
            }
        }
        RunnerFlow::Continue
    }

    /// Expires unanswered questions: the upstream receives a refusal, and the call continues.
    pub(super) async fn expire_inputs(&mut self) -> RunnerFlow {
        for open in self.inputs.take_overdue() {
            if matches!(self.refuse_open(open).await, RunnerFlow::Stop) {
                return RunnerFlow::Stop;
            }
        }
        RunnerFlow::Continue
    }

    /// Removes a question from the task and refuses it at the upstream.
    pub(super) async fn refuse_open(&mut self, open: OpenQuestion) -> RunnerFlow {
        self.withdraw(WithdrawnQuestion { ask: open.ask, refused: Some(open.method) }, None).await
    }

    pub(super) fn count_question(&self, result: &'static str) {
        let upstream = Arc::clone(self.spec.upstream.name());
        metrics::counter!(metric::QUESTIONS, "upstream" => upstream, "result" => result).increment(1);
    }
}

fn is_open(task: &Task, ask: &Payload) -> bool {
    match &task.phase {
        Phase::AwaitingInput(open) => open.values().any(|question| question.ask == *ask),
        Phase::Queued | Phase::Working | Phase::Settled(_) => false,
    }
}

/// Whether a row certainly was not inserted, and a retry may succeed.
fn is_passing(fault: &GatewayFault) -> bool {
    fault.reason == Reason::StoreFailed && fault.executed == Executed::No
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
