//! Puts the upstream's questions to the client, and returns answers, refusals and timeouts (GW-16, GW-18).

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::exchange_stage::StageEvent;
use super::{CallEnd, RoundSupport, Runner, RunnerFlow, lost};
use crate::cause::CauseChain;
use crate::dialect::faults::reason_key;
use crate::dialect::upstream_dialect::{QuestionRefusal, RefusalAnswer};
use crate::engine::TaskError;
use crate::engine::call::Askable;
use crate::failpoint;
use crate::metric;
use crate::store::StoreError;
use crate::task::{Event, Executed, GatewayFault, Outcome, Phase, Question, TaskKey, TaskVisibility};
use crate::upstream::{Answer, ExchangeError};
use crate::wire::Payload;

/// Questions that one call may have open, and may ask in all (U29).
const OPEN_MAX: usize = 32;
const ASKED_MAX: u32 = 1_000;

/// How long a round waits for questions that are asked along with its first one (GW-21).
const ROUND_WAIT: Duration = Duration::from_millis(100);

/// How soon the row is looked at again for answers that the store kept from being handed over.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Events that may lie in front of the sign that an upstream is gone.
const LAST_EVENTS_MAX: usize = 64;

/// The questions of one call.
#[derive(Default)]
pub(super) struct CallQuestions {
    pub(super) open: Vec<OpenQuestion>,
    asked: u32,
    /// When the client that waits is shown what is open.
    round_due: Option<Instant>,
    /// Rounds so far.
    pub(super) rounds: u32,
    /// Questions of an earlier life of the process, open ones and those whose answers are on their way.
    earlier: Vec<Payload>,
    /// Answers that were not handed over, though the row may say so by now: nobody knows of the write.
    doubtful: Vec<(Payload, Answer)>,
    /// When the row is looked at again for answers that the store kept from being handed over.
    look_due: Option<Instant>,
}

/// A question that was put to the client.
pub(super) struct OpenQuestion {
    pub(super) ask: Payload,
    pub(super) method: Arc<str>,
    due: Instant,
}

impl CallQuestions {
    const fn is_full(&self) -> bool {
        self.open.len() >= OPEN_MAX || self.asked >= ASKED_MAX
    }

    pub(super) const fn round_due(&self) -> Option<Instant> {
        self.round_due
    }

    pub(super) const fn look_due(&self) -> Option<Instant> {
        self.look_due
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

    /// Forgets a question; whether it was open.
    pub(super) fn close(&mut self, ask: &Payload) -> bool {
        let before = self.open.len();
        self.open.retain(|open| open.ask != *ask);
        self.open.len() != before
    }

    fn is_doubtful(&self, ask: &Payload) -> bool {
        self.doubtful.iter().any(|(doubtful, _)| doubtful == ask)
    }

    /// What the row says is not handed over, and what it may say is.
    fn to_deliver(&self, mut in_row: Vec<(Payload, Answer)>) -> Vec<(Payload, Answer)> {
        let taken_out = self.doubtful.iter().filter(|(ask, _)| in_row.iter().all(|(other, _)| other != ask));
        let taken_out: Vec<_> = taken_out.cloned().collect();
        in_row.extend(taken_out);
        in_row
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
        match (self.spec.questions)(&request) {
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

    /// Whether a client without a handle waits for this call.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.has_handle() && self.client.is_there()
    }

    /// The call cannot be served: its client learns what it must declare (MOD-10).
    pub(super) async fn needs(&mut self, capability: Payload) -> RunnerFlow {
        self.stage.cancel("the client cannot be asked").await;
        self.settle_cancelled().await;
        self.mark_told().await;
        self.client.end(CallEnd::NeedsCapability(capability)).await;
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
        let next = match self.row_key() {
            Some(key) => {
                let event = Event::Asked { attempt: self.attempt, question };
                match self.apply(&key, event).await {
                    Ok(applied) if applied.changed => RunnerFlow::Continue,
                    Ok(_) => return Err(QuestionError(QuestionRefusal::Unanswered)),
                    Err(error) => {
                        tracing::warn!(error = %CauseChain(&error), "a question could not be stored and was refused");
                        return Err(QuestionError(QuestionRefusal::Unanswered));
                    }
                }
            }
            None => self.put_first(question).await?,
        };
        self.count_question("put");
        self.inputs.asked += 1;
        let due = Instant::now() + self.spec.policy.input_deadline;
        self.inputs.open.push(OpenQuestion { ask: ask.detached(), method: Arc::clone(method), due });
        if self.is_waited_for() {
            // What was asked in time is asked before the handle.
            self.grace_end = None;
            self.inputs.gather();
        }
        Ok(next)
    }

    /// A question makes the row: visible where that is how this call may be answered, else hidden.
    async fn put_first(&mut self, question: Question) -> Result<RunnerFlow, QuestionError> {
        if self.grace_end.is_some() && !self.asks_first() {
            self.grace_end = None;
            return match self.promote(Some(question)).await {
                Ok(next) => Ok(next),
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
            self.place = self.engine.admission.take(&self.spec.owner).ok();
        }
        if self.place.is_none() {
            tracing::warn!("no place for a held call; its question was refused");
            return Err(QuestionError(QuestionRefusal::Unanswered));
        }
        match self.insert(TaskVisibility::Hidden, Some(question)).await {
            Ok(_) => Ok(RunnerFlow::Continue),
            Err(_) => Err(QuestionError(QuestionRefusal::Unanswered)),
        }
    }

    /// The upstream takes a question back.
    pub(super) async fn withdrawn(&mut self, ask: Payload) -> RunnerFlow {
        if self.inputs.close(&ask) && self.withdraw(ask).await {
            self.count_question("withdrawn");
        }
        RunnerFlow::Continue
    }

    /// Takes a question off the task; false if it was answered before.
    pub(super) async fn withdraw(&mut self, ask: Payload) -> bool {
        let Some(key) = self.row_key() else { return false };
        match self.apply(&key, Event::Withdrawn { attempt: self.attempt, ask }).await {
            Ok(applied) => applied.changed,
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "a question could not be taken off its task");
                true
            }
        }
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

    /// Takes a question off the task and tells the upstream that nobody will answer. An answer that was given just
    /// before is on its way: then there is nothing to tell.
    pub(super) async fn give_up(&mut self, open: OpenQuestion) -> RunnerFlow {
        if !self.withdraw(open.ask.clone()).await {
            return RunnerFlow::Continue;
        }
        self.count_question("expired");
        if self.is_demanded(&open.ask) {
            return self.demand_refused().await;
        }
        self.say(&open.ask, self.spec.peer.refuse(&open.method, QuestionRefusal::Unanswered)).await;
        RunnerFlow::Continue
    }

    /// Hands answers to the upstream, each once.
    pub(super) async fn deliver(&mut self, answers: Vec<(Payload, Answer)>) -> RunnerFlow {
        // A call that is to be sent again asks again: what was said to the exchange before goes nowhere.
        let Some(key) = self.row_key().filter(|_| !self.is_waiting()) else { return RunnerFlow::Continue };
        for (ask, answer) in answers {
            failpoint::hit("answer-stored");
            self.inputs.close(&ask);
            match self.mark_delivered(&key, &ask).await {
                Ok(is_marked) => {
                    self.inputs.doubtful.retain(|(doubtful, _)| *doubtful != ask);
                    if !is_marked {
                        continue;
                    }
                }
                Err(error) if error.is_passing() => {
                    if !self.inputs.is_doubtful(&ask) {
                        self.inputs.doubtful.push((ask, answer));
                    }
                    // The rest is in the row.
                    return self.deliver_later(&error);
                }
                Err(error) => return self.undelivered(GatewayFault::new(error.reason(), Executed::Unknown)).await,
            }
            if self.is_demanded(&ask) {
                if matches!(self.demand_answered(&ask, &answer).await, RunnerFlow::Stop) {
                    return RunnerFlow::Stop;
                }
                continue;
            }
            let answer = self.spec.peer.encode_answer(answer);
            if let Err(ExchangeError(fault)) = self.stage.answer(&ask, answer).await {
                return self.undelivered(fault).await;
            }
            failpoint::hit("answer-delivered");
        }
        RunnerFlow::Continue
    }

    /// Whether the row says now that this runner hands an answer over. From this commit on it may have arrived, so nobody hands
    /// it over again (F15).
    async fn mark_delivered(&mut self, key: &TaskKey, ask: &Payload) -> Result<bool, TaskError> {
        let applied = self.apply(key, Event::Delivering { attempt: self.attempt, ask: ask.clone() }).await?;
        // After a write that failed a row that does not change may have it from that write.
        Ok(applied.changed || (self.inputs.is_doubtful(ask) && self.is_at_work(key).await?))
    }

    /// Whether the row, as it certainly stands, is of a call that this runner has sent and that goes on.
    async fn is_at_work(&mut self, key: &TaskKey) -> Result<bool, StoreError> {
        let task = self.own_task(key).await?;
        Ok(task.is_some_and(|task| !matches!(task.phase, Phase::Settled(_)) && task.attempt == self.attempt))
    }

    /// Hands over what the row has and nobody told this runner of, and what could not be handed over before.
    pub(super) async fn deliver_rest(&mut self) -> RunnerFlow {
        self.inputs.look_due = None;
        let Some(key) = self.row_key() else { return RunnerFlow::Continue };
        match self.engine.held(&key).await {
            Ok(task) => {
                let answers = self.inputs.to_deliver(task.recovery.undelivered.clone());
                self.deliver(answers).await
            }
            // Its row is gone, and its answers with it.
            Err(TaskError::Unknown) => RunnerFlow::Continue,
            Err(error) => self.deliver_later(&error),
        }
    }

    /// The store cannot say what is to be handed over. Orders, and the ends of the call, of its time and of the gateway are heard
    /// before it is asked again.
    fn deliver_later(&mut self, error: &TaskError) -> RunnerFlow {
        tracing::debug!(error = %CauseChain(error), "answers that were accepted are not handed over yet");
        self.inputs.look_due = Some(Instant::now() + LOOK_AGAIN);
        RunnerFlow::Continue
    }

    /// The upstream does not take an answer that the client believes to be given. What it said before is heard first;
    /// without an end among it the call is lost.
    async fn undelivered(&mut self, fault: GatewayFault) -> RunnerFlow {
        tracing::warn!(reason = reason_key(fault.reason), "an answer did not reach the upstream");
        for _ in 0..LAST_EVENTS_MAX {
            match self.stage.next().now_or_never() {
                Some(StageEvent::Exchange(event)) => {
                    if matches!(self.heard(event).await, RunnerFlow::Stop) {
                        return RunnerFlow::Stop;
                    }
                }
                Some(StageEvent::PlaceTaken | StageEvent::NotBegun(_)) | None => break,
            }
        }
        let outcome: Outcome = lost(GatewayFault { executed: Executed::Unknown, ..fault });
        self.stage.cancel("an answer could not be delivered").await;
        self.end(outcome).await
    }

    /// Answers a question in nobody's name.
    async fn say(&mut self, ask: &Payload, refused: RefusalAnswer) {
        self.count_question("refused");
        let answer = match refused {
            RefusalAnswer::Result(result) => Answer::Result(result),
            RefusalAnswer::Error(error) => Answer::Error(error),
        };
        if let Err(lost) = self.stage.answer(ask, answer).await {
            tracing::warn!(%lost, "a refusal did not reach the upstream");
        }
    }

    fn count_question(&self, result: &'static str) {
        let upstream = Arc::clone(self.spec.upstream.name());
        metrics::counter!(metric::QUESTIONS, "upstream" => upstream, "result" => result).increment(1);
    }
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
