//! Puts the upstream's questions to the client, and gives them up (GW-16, GW-18). Who hands answers over is in `answers`.

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

/// Questions that one call may have open, and may ask in all (U29).
const OPEN_MAX: usize = 32;
const ASKED_MAX: u32 = 1_000;

/// How long a round waits for questions that are asked along with its first one (GW-21).
const ROUND_WAIT: Duration = Duration::from_millis(100);

/// The questions of one call.
#[derive(Default)]
pub(super) struct CallQuestions {
    pub(super) open: Vec<OpenQuestion>,
    /// Those that the store keeps from being put to the client, in their order.
    unasked: VecDeque<UnaskedQuestion>,
    /// Those that the store keeps from being taken off the task.
    withdrawn: Vec<WithdrawnQuestion>,
    asked: u32,
    /// When the client that waits is shown what is open.
    round_due: Option<Instant>,
    /// Rounds so far.
    pub(super) rounds: u32,
    /// Questions of an earlier life of the process, open ones and those whose answers are on their way.
    earlier: Vec<Payload>,
    /// Answers that were not handed over, though the row may say so by now: nobody knows of the write.
    pub(super) doubtful: Vec<(Payload, Answer)>,
}

/// A question that is not part of the task yet.
struct UnaskedQuestion {
    question: Question,
    method: Arc<str>,
}

/// A question that nobody is to answer any more.
struct WithdrawnQuestion {
    ask: Payload,
    /// Its method, where the upstream is to be told; it did not take it back itself.
    refused: Option<Arc<str>>,
}

/// A question that was put to the client.
pub(super) struct OpenQuestion {
    pub(super) ask: Payload,
    pub(super) method: Arc<str>,
    due: Instant,
}

impl CallQuestions {
    /// What the store keeps here counts as what is open does: however long it is away, there is room for so many.
    fn is_full(&self) -> bool {
        self.open.len() + self.unasked.len() + self.withdrawn.len() >= OPEN_MAX || self.asked >= ASKED_MAX
    }

    pub(super) const fn round_due(&self) -> Option<Instant> {
        self.round_due
    }

    /// Whether nobody but this runner knows of a question, or that one is taken back: no later life would hear it again behind its
    /// place.
    pub(super) fn has_unstored(&self) -> bool {
        !(self.unasked.is_empty() && self.withdrawn.is_empty())
    }

    /// Whether nobody but this runner knows of an answer: the row may say that it was handed over.
    pub(super) const fn has_doubtful(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// The moment from which a question has waited for too long.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.due).min()
    }

    pub(super) fn gather(&mut self) {
        self.round_due.get_or_insert_with(|| Instant::now() + ROUND_WAIT);
    }

    pub(super) const fn stop_gathering(&mut self) {
        self.round_due = None;
    }

    /// The questions of a call that is taken up.
    pub(super) fn reopened(
        open: impl IntoIterator<Item = (Payload, Arc<str>)>,
        undelivered: &[(Payload, Answer)],
        due: Instant,
    ) -> Self {
        let open: Vec<_> = open.into_iter().map(|(ask, method)| OpenQuestion { ask, method, due }).collect();
        let asked = u32::try_from(open.len()).unwrap_or(ASKED_MAX);
        let answered = undelivered.iter().map(|(ask, _)| ask);
        let earlier = open.iter().map(|open| &open.ask).chain(answered).cloned().collect();
        Self { open, asked, earlier, ..Self::default() }
    }

    /// Whether a question is a replay of one that an earlier life was asked: it keeps its key, or its answer.
    fn is_replayed(&self, ask: &Payload) -> bool {
        self.earlier.contains(ask)
    }

    /// Forgets a question; whether it was open, or was to be.
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

/// A question that could not be put to anybody.
pub(super) struct QuestionError(pub(super) QuestionRefusal);

impl Runner {
    pub(super) async fn asked(&mut self, ask: Payload, method: Arc<str>, params: Option<Payload>) -> RunnerFlow {
        if self.inputs.is_replayed(&ask) {
            return RunnerFlow::Continue;
        }
        let request = match self.spec.peer.decode_question(&method, params.as_ref()) {
            Ok(request) => request,
            Err(refused) => {
                tracing::warn!(%method, "nobody may be asked this; it was refused");
                self.say(&ask, refused).await;
                return RunnerFlow::Continue;
            }
        };
        if self.is_unattended() {
            self.say(&ask, self.spec.peer.refuse(&method, QuestionRefusal::Unanswered)).await;
            return RunnerFlow::Continue;
        }
        match self.askable(&request) {
            Askable::Declared => match self.put(&ask, &method, request).await {
                Ok(next) => next,
                Err(QuestionError(why)) => {
                    self.say(&ask, self.spec.peer.refuse(&method, why)).await;
                    RunnerFlow::Continue
                }
            },
            Askable::Required(capability) if self.is_waited_for() => self.needs(capability).await,
            Askable::Undeclared | Askable::Required(_) => {
                self.say(&ask, self.spec.peer.refuse(&method, QuestionRefusal::Undeclared)).await;
                RunnerFlow::Continue
            }
        }
    }

    /// Whether the client can be asked this. A call that is kept under a key goes on without an answer, as a task does.
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

    /// The call cannot be served: its client learns what it must declare (MOD-10).
    pub(super) async fn needs(&mut self, capability: Payload) -> RunnerFlow {
        self.stage.cancel("the client cannot be asked").await;
        // However long the store takes with the rest.
        self.client.end(CallEnd::NeedsCapability(capability)).await;
        self.settle_cancelled().await;
        self.mark_told().await;
        RunnerFlow::Stop
    }

    /// Puts a question where the client finds it.
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

    /// Makes a question part of the task, as soon as the store does it.
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
            // Whoever has the task now hears the question, too.
            Err(TaskError::Store(StoreError::Fenced)) => Ok(RunnerFlow::Stop),
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "a question could not be stored and was refused");
                Err(QuestionError(QuestionRefusal::Unanswered))
            }
        }
    }

    /// A question is part of the task.
    fn is_put(&mut self, UnaskedQuestion { question, method }: UnaskedQuestion) {
        self.count_question("put");
        self.inputs.asked += 1;
        let due = Instant::now() + self.spec.policy.input_deadline;
        // What the row keeps it keeps alone.
        self.inputs.open.push(OpenQuestion { ask: question.ask.detached(), method, due });
        if self.is_waited_for() {
            // What was asked in time is asked before the handle.
            self.grace_end = None;
            self.inputs.gather();
        }
    }

    /// Puts the questions that waited for the store, as far as the task does not have them yet.
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
                Err(QuestionError(_)) if self.is_demanded(&ask) => self.demand_refused().await,
                Err(QuestionError(why)) => {
                    self.say(&ask, self.spec.peer.refuse(&method, why)).await;
                    RunnerFlow::Continue
                }
            };
            if matches!(next, RunnerFlow::Stop) {
                return RunnerFlow::Stop;
            }
        }
        RunnerFlow::Continue
    }

    /// A question makes the row: visible where that is how this call may be answered, else hidden.
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
        if self.place.is_none() {
            self.place = self.engine.take_place_of_running(&self.spec.owner).ok();
        }
        if self.place.is_none() {
            tracing::warn!("no place for a held call; its question was refused");
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

    /// The upstream takes a question back.
    pub(super) async fn withdrawn(&mut self, ask: Payload) -> RunnerFlow {
        let was_unasked = self.inputs.unasked.iter().any(|unasked| unasked.question.ask == ask);
        if !self.inputs.close(&ask) {
            return RunnerFlow::Continue;
        }
        let withdrawn = WithdrawnQuestion { ask, refused: None };
        if was_unasked {
            // Whether the row has it is known with the next try.
            self.inputs.withdrawn.push(withdrawn);
            self.postpone(UnstoredStep::Withdrawals);
            return RunnerFlow::Continue;
        }
        self.withdraw(withdrawn, None).await
    }

    /// Takes a question off the task as soon as the store does it, and then tells its upstream where that is to know. An answer
    /// that was given just before is on its way: then there is nothing to tell.
    async fn withdraw(&mut self, withdrawn: WithdrawnQuestion, certain: Option<&Task>) -> RunnerFlow {
        let Some(key) = self.row_key() else { return RunnerFlow::Continue };
        let WithdrawnQuestion { ask, refused } = &withdrawn;
        // It is off by the write that failed, unless it was answered.
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
        if self.is_demanded(ask) {
            return self.demand_refused().await;
        }
        self.say(ask, self.spec.peer.refuse(method, QuestionRefusal::Unanswered)).await;
        RunnerFlow::Continue
    }

    /// Takes the questions off the task that waited for the store.
    pub(super) async fn withdraw_again(&mut self, certain: Option<&Task>) -> RunnerFlow {
        // One at a time: the call's place is not stored behind those that wait still.
        for _ in 0..self.inputs.withdrawn.len() {
            let withdrawn = self.inputs.withdrawn.remove(0);
            if matches!(self.withdraw(withdrawn, certain).await, RunnerFlow::Stop) {
                return RunnerFlow::Stop;
            }
        }
        RunnerFlow::Continue
    }

    /// Nobody answered in time: the upstream is told so, and the call goes on.
    pub(super) async fn expire_inputs(&mut self) -> RunnerFlow {
        for open in self.inputs.take_overdue() {
            if matches!(self.give_up(open).await, RunnerFlow::Stop) {
                return RunnerFlow::Stop;
            }
        }
        RunnerFlow::Continue
    }

    /// Takes a question off the task and tells the upstream that nobody will answer.
    pub(super) async fn give_up(&mut self, open: OpenQuestion) -> RunnerFlow {
        self.withdraw(WithdrawnQuestion { ask: open.ask, refused: Some(open.method) }, None).await
    }

    pub(super) fn count_question(&self, result: &'static str) {
        let upstream = Arc::clone(self.spec.upstream.name());
        metrics::counter!(metric::QUESTIONS, "upstream" => upstream, "result" => result).increment(1);
    }
}

/// Whether a task asks this.
fn is_open(task: &Task, ask: &Payload) -> bool {
    match &task.phase {
        Phase::AwaitingInput(open) => open.values().any(|question| question.ask == *ask),
        Phase::Queued | Phase::Working | Phase::Settled(_) => false,
    }
}

/// Whether a row that could not be added certainly is not there, and may be added later.
fn is_passing(fault: &GatewayFault) -> bool {
    fault.reason == Reason::StoreFailed && fault.executed == Executed::No
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u29_a_call_asks_at_most_1000_questions_in_all() {
        let asked = |asked| CallQuestions { asked, ..CallQuestions::default() };
        assert!(!asked(ASKED_MAX - 1).is_full());
        assert!(asked(ASKED_MAX).is_full());
    }
}
