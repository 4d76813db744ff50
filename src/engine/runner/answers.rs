//! Delivers clients' answers to the upstream, each once, and refuses questions.

use std::collections::BTreeMap;

use futures_util::FutureExt;

use super::call_state::StageEvent;
use super::recorder::UnstoredStep;
use super::{Runner, RunnerFlow};
use crate::dialect::plain;
use crate::dialect::split_call::question_named;
use crate::engine::TaskError;
use crate::failpoint;
use crate::task::{Event, Executed, GatewayFault, Outcome, Task, TaskKey};
use crate::upstream::{Answer, AnsweredBy, ExchangeError};
use crate::wire::Payload;

/// Events that may precede the event that reports a closed upstream.
const LAST_EVENTS_MAX: usize = 64;

impl Runner {
    pub(super) async fn deliver(&mut self, mut answers: Vec<(Payload, Answer)>) -> RunnerFlow {
        // Only the next try can tell whether the unresolved ones were delivered.
        answers.retain(|(ask, _)| !self.dialog.questions().is_unresolved(ask));
        self.hand_over(answers, None).await
    }

    async fn hand_over(&mut self, answers: Vec<(Payload, Answer)>, certain: Option<&Task>) -> RunnerFlow {
        // A call that is to be resent asks again: its old exchange takes no answers.
        let Some(key) = self.recorder.key().filter(|_| !self.call.is_unsent()) else { return RunnerFlow::Continue(()) };
        for (ask, answer) in answers {
            failpoint::hit("answer-stored");
            self.dialog.questions_mut().close(&ask);
            // The subtask's row accepts an answer once, and stores it before this row marks it delivered: none is lost.
            let child = self.child_with_question(&ask);
            if let Some((key, question)) = &child {
                match self.answer_child(key, question, plain::encode_answer(answer.clone())).await {
                    // Its row has the question no more, so a question under this name is another one.
                    Ok(()) => _ = self.dialog.questions_mut().take_replay(&ask),
                    Err(error) if error.is_passing() => return self.wait_for_store(UnstoredStep::Answers, &error),
                    Err(error) => return self.undelivered(unstored(&error)).await,
                }
            }
            match self.mark_delivered(&key, &ask, certain).await {
                Ok(is_marked) => {
                    self.dialog.questions_mut().resolve(&ask);
                    if !is_marked || child.is_some() {
                        continue;
                    }
                }
                Err(error) if error.is_passing() => {
                    if child.is_none() && !self.dialog.questions().is_unresolved(&ask) {
                        self.dialog.questions_mut().add_unresolved(ask, answer);
                    }
                    // The other answers are in the row.
                    return self.wait_for_store(UnstoredStep::Answers, &error);
                }
                Err(error) => return self.undelivered(unstored(&error)).await,
            }
            if self.call.is_elicited(&ask) {
                self.elicitation_answered(&ask, &answer).await?;
                continue;
            }
            let answer = plain::encode_answer(answer);
            if let Err(ExchangeError(fault)) = self.call.answer(&ask, answer, AnsweredBy::Client).await {
                return self.undelivered(fault).await;
            }
            failpoint::hit("answer-delivered");
        }
        RunnerFlow::Continue(())
    }

    fn child_with_question(&self, ask: &Payload) -> Option<(TaskKey, Payload)> {
        let (index, ask) = question_named(ask)?;
        Some((self.family.subtask(index)?.clone(), ask))
    }

    /// Stores an answer, only once, in the row of the subtask that asked; a subtask that has settled ignores it.
    async fn answer_child(&mut self, key: &TaskKey, ask: &Payload, answer: Answer) -> Result<(), TaskError> {
        let task = match self.engine.load_any(key).await {
            Ok(task) => task,
            Err(TaskError::Unknown) => return Ok(()),
            Err(error) => return Err(error),
        };
        let Some((input, _)) = task.open_questions().find(|(_, question)| question.ask == *ask) else {
            return Ok(());
        };
        let event = Event::Answered { answers: BTreeMap::from([(input, answer)]) };
        self.write(key, vec![event]).await.map(|_| ())
    }

    /// Marks in the row that an answer is delivered: it may arrive from now on, so no runner delivers it again (F15).
    async fn mark_delivered(
        &mut self,
        key: &TaskKey,
        ask: &Payload,
        certain: Option<&Task>,
    ) -> Result<bool, TaskError> {
        // The write that failed was committed.
        let is_marked = |task: &Task| task.attempt == self.recorder.attempt() && !is_answered(task, ask);
        if self.dialog.questions().is_unresolved(ask) && certain.is_some_and(is_marked) {
            return Ok(true);
        }
        Ok(self.apply(key, Event::Delivering { attempt: self.recorder.attempt(), ask: ask.clone() }).await?.changed)
    }

    /// Delivers answers that are in the row but were not in a command, or could not be delivered before.
    pub(super) async fn deliver_rest(&mut self) -> RunnerFlow {
        let Some(key) = self.recorder.key() else { return RunnerFlow::Continue(()) };
        if self.recorder.waits_for_store() {
            self.recorder.postpone(UnstoredStep::Answers);
            return self.try_again().await;
        }
        match self.engine.load_any(&key).await {
            Ok(task) => self.deliver(task.recovery.undelivered.clone()).await,
            // The row was removed, and its answers with it.
            Err(TaskError::Unknown) => RunnerFlow::Continue(()),
            Err(error) => self.wait_for_store(UnstoredStep::Answers, &error),
        }
    }

    pub(super) async fn deliver_again(&mut self, certain: Option<&Task>) -> RunnerFlow {
        let Some(task) = certain else { return RunnerFlow::Continue(()) };
        let answers = self.dialog.questions().to_deliver(task.recovery.undelivered.clone());
        self.hand_over(answers, Some(task)).await
    }

    /// An accepted answer did not reach the upstream: ends the call as lost, unless an earlier event ends it.
    async fn undelivered(&mut self, fault: GatewayFault) -> RunnerFlow {
        tracing::warn!(reason = fault.reason.key(), "an answer did not reach the upstream");
        for _ in 0..LAST_EVENTS_MAX {
            match self.next_event().now_or_never() {
                Some(StageEvent::Exchange(event)) => self.exchange_event(event).await?,
                Some(StageEvent::PermitTaken | StageEvent::NotBegun(_)) | None => break,
            }
        }
        let outcome: Outcome = Outcome::lost(GatewayFault { executed: Executed::Unknown, ..fault });
        self.cancel_exchanges("an answer could not be delivered").await;
        self.end(outcome).await
    }

    /// Refuses a question. Not retried: if a subtask's row lacks the refusal, its deadline withdraws the question.
    pub(super) async fn refuse_question(&mut self, ask: &Payload, answer: Answer) {
        self.count_question("refused");
        let refused = match self.child_with_question(ask) {
            Some((key, question)) => self.answer_child(&key, &question, answer).await.map_err(|error| unstored(&error)),
            None => {
                let refused = self.call.answer(ask, answer, AnsweredBy::Gateway).await;
                refused.map_err(|ExchangeError(fault)| fault)
            }
        };
        if let Err(fault) = refused {
            tracing::warn!(upstream = %self.spec.upstream.name(), reason = fault.reason.key(), "a refusal did not reach the upstream");
        }
    }
}

const fn unstored(error: &TaskError) -> GatewayFault {
    GatewayFault::new(error.reason(), Executed::Unknown)
}

pub(super) fn is_answered(task: &Task, ask: &Payload) -> bool {
    task.recovery.undelivered.iter().any(|(answered, _)| answered == ask)
}
