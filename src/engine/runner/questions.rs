//! Sends the upstream's questions to the client, and expires them (GW-16, GW-18). `answers` delivers the answers.

use std::sync::Arc;

use tokio::time::Instant;

use super::answers::is_answered;
use super::dialog::{OpenQuestion, UnaskedQuestion, WithdrawnQuestion};
use super::recorder::UnstoredStep;
use super::{CallEnd, Failure, Outcome, RoundSupport, Runner, RunnerFlow};
use crate::cause::CauseChain;
use crate::dialect::plain::{self, QuestionRefusal};
use crate::engine::TaskError;
use crate::engine::call::Askable;
use crate::store::StoreError;
use crate::task::{Event, Executed, GatewayFault, Question, Reason, Task, TaskVisibility};
use crate::upstream::Answer;
use crate::wire::{Payload, RpcError, method};
use crate::{failpoint, metric};

pub(super) struct QuestionError(pub(super) QuestionRefusal);

impl Runner {
    pub(super) async fn question_received(
        &mut self,
        ask: Payload,
        method: Arc<str>,
        params: Option<Payload>,
    ) -> RunnerFlow {
        if self.dialog.questions_mut().take_replay(&ask) {
            return RunnerFlow::Continue(());
        }
        let request = match plain::decode_question(&method, params.as_ref()) {
            Ok(request) => request,
            Err(refused) => {
                if self.dialog.questions_mut().is_first_refusal() {
                    tracing::warn!(upstream = %self.spec.upstream.name(), %method, "the client cannot receive a question; it and others of the call are refused");
                }
                self.refuse_question(&ask, refused).await;
                return RunnerFlow::Continue(());
            }
        };
        if self.is_unattended() {
            self.refuse_question(&ask, plain::refuse(&method, QuestionRefusal::Unanswered)).await;
            return RunnerFlow::Continue(());
        }
        match self.askable(&request) {
            Askable::Declared => match self.add_question(&ask, &method, request).await {
                Ok(next) => next,
                Err(QuestionError(why)) => {
                    self.refuse_question(&ask, plain::refuse(&method, why)).await;
                    RunnerFlow::Continue(())
                }
            },
            Askable::Required(capability) if self.is_waited_for() => self.needs(capability).await,
            Askable::Undeclared | Askable::Required(_) => {
                self.refuse_question(&ask, plain::refuse(&method, QuestionRefusal::Undeclared)).await;
                RunnerFlow::Continue(())
            }
        }
    }

    /// Whether the client supports this question. A call under an idempotency key continues unanswered, as a task does.
    pub(super) fn askable(&self, request: &Payload) -> Askable {
        match (self.spec.questions)(request) {
            Askable::Required(_) if self.spec.is_held_by_key() => Askable::Undeclared,
            askable @ (Askable::Declared | Askable::Undeclared | Askable::Required(_)) => askable,
        }
    }

    pub(super) fn is_waited_for(&self) -> bool {
        !self.recorder.has_handle() && self.dialog.clients().is_there()
    }

    /// Ends a call that cannot continue without a capability: its client learns which one (MOD-10).
    pub(super) async fn needs(&mut self, capability: Payload) -> RunnerFlow {
        self.cancel_exchanges("the client cannot be asked").await;
        // Before the slower writes to the store.
        self.dialog.clients_mut().end(CallEnd::NeedsCapability(capability)).await;
        self.settle_cancelled().await;
        self.mark_notified().await;
        RunnerFlow::Break(())
    }

    pub(super) async fn add_question(
        &mut self,
        ask: &Payload,
        method: &Arc<str>,
        request: Payload,
    ) -> Result<RunnerFlow, QuestionError> {
        if self.dialog.questions().is_full() {
            self.count_question("flood");
            return Err(QuestionError(QuestionRefusal::TooMany));
        }
        failpoint::hit("question-heard");
        let question = Question { ask: ask.detached(), request };
        let unasked = UnaskedQuestion { question, method: Arc::clone(method) };
        if self.dialog.questions().has_unasked() {
            self.dialog.questions_mut().add_unasked(unasked);
            return Ok(RunnerFlow::Continue(()));
        }
        self.store_question(unasked).await
    }

    /// Adds a question to the task, once the store succeeds.
    async fn store_question(&mut self, unasked: UnaskedQuestion) -> Result<RunnerFlow, QuestionError> {
        let Some(key) = self.recorder.key() else { return self.add_first_question(unasked).await };
        let event = Event::QuestionReceived { attempt: self.recorder.attempt(), question: unasked.question.clone() };
        match self.apply(&key, event).await {
            Ok(applied) if applied.changed => {
                self.question_added(unasked);
                Ok(RunnerFlow::Continue(()))
            }
            Ok(_) => Err(QuestionError(QuestionRefusal::Unanswered)),
            Err(error) if error.is_passing() => {
                self.dialog.questions_mut().put_back_unasked(unasked);
                Ok(self.wait_for_store(UnstoredStep::Questions, &error))
            }
            // The task's new holder receives the question, too.
            Err(TaskError::Store(StoreError::Fenced)) => Ok(RunnerFlow::Break(())),
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "a question could not be stored and was refused");
                Err(QuestionError(QuestionRefusal::Unanswered))
            }
        }
    }

    fn question_added(&mut self, UnaskedQuestion { question, method }: UnaskedQuestion) {
        self.count_question("put");
        let due = Instant::now() + self.spec.policy.input_deadline;
        // Detached, so that the row and this list share no buffer.
        self.dialog.questions_mut().add_open(question.ask.detached(), method, due);
        if self.is_waited_for() {
            // A question within the grace period precedes the handle.
            self.dialog.set_grace_end(None);
            self.dialog.questions_mut().gather();
        }
    }

    /// Adds the questions that waited for the store, unless the task has them already.
    pub(super) async fn add_unstored_questions(&mut self, certain: Option<&Task>) -> RunnerFlow {
        while let Some(unasked) = self.dialog.questions_mut().take_unasked() {
            let (ask, method) = (unasked.question.ask.clone(), Arc::clone(&unasked.method));
            if certain.is_some_and(|task| is_open(task, &ask)) {
                self.question_added(unasked);
                continue;
            }
            if certain.is_some_and(|task| is_answered(task, &ask)) {
                continue;
            }
            match self.store_question(unasked).await {
                Ok(_) if self.recorder.waits_for(UnstoredStep::Questions) => return RunnerFlow::Continue(()),
                Ok(next) => next?,
                Err(QuestionError(_)) if self.call.is_elicited(&ask) => self.elicitation_declined().await?,
                Err(QuestionError(why)) => self.refuse_question(&ask, plain::refuse(&method, why)).await,
            }
        }
        RunnerFlow::Continue(())
    }

    /// Inserts the row for the first question: visible if the call may have a handle, else hidden.
    async fn add_first_question(&mut self, unasked: UnaskedQuestion) -> Result<RunnerFlow, QuestionError> {
        let question = unasked.question.clone();
        if let Some(grace_end) = self.dialog.grace_end().filter(|_| !self.asks_first()) {
            self.dialog.set_grace_end(None);
            return match self.promote(Some(question)).await {
                Ok(next) => {
                    self.question_added(unasked);
                    Ok(next)
                }
                Err(fault) if is_passing(&fault) => {
                    self.dialog.set_grace_end(Some(grace_end));
                    Ok(self.postpone_question(unasked))
                }
                Err(fault) => {
                    let _ = self.stay_plain(fault.reason).await;
                    Err(QuestionError(QuestionRefusal::Unanswered))
                }
            };
        }
        if self.spec.rounds == RoundSupport::Unknown {
            return Err(QuestionError(QuestionRefusal::Unanswered));
        }
        if !self.recorder.has_permit() {
            self.recorder.set_permit(self.engine.take_permit_of_running(&self.spec.owner).ok());
        }
        if !self.recorder.has_permit() {
            tracing::warn!(upstream = %self.spec.upstream.name(), "no permit for a held call; its question was refused");
            return Err(QuestionError(QuestionRefusal::Unanswered));
        }
        match self.insert(TaskVisibility::Hidden, Some(question)).await {
            Ok(_) => {
                self.question_added(unasked);
                Ok(RunnerFlow::Continue(()))
            }
            Err(fault) if is_passing(&fault) => Ok(self.postpone_question(unasked)),
            Err(_) => Err(QuestionError(QuestionRefusal::Unanswered)),
        }
    }

    fn postpone_question(&mut self, unasked: UnaskedQuestion) -> RunnerFlow {
        self.dialog.questions_mut().put_back_unasked(unasked);
        self.recorder.postpone(UnstoredStep::Questions);
        RunnerFlow::Continue(())
    }

    pub(super) async fn withdrawal_received(&mut self, ask: Payload) -> RunnerFlow {
        self.dialog.questions_mut().take_replay(&ask);
        let was_unasked = self.dialog.questions().is_unasked(&ask);
        if !self.dialog.questions_mut().close(&ask) {
            return RunnerFlow::Continue(());
        }
        let withdrawn = WithdrawnQuestion { ask, refused: None };
        if was_unasked {
            // The next try shows whether the row has it.
            self.dialog.questions_mut().add_withdrawn(withdrawn);
            self.recorder.postpone(UnstoredStep::Withdrawals);
            return RunnerFlow::Continue(());
        }
        self.withdraw(withdrawn, None).await
    }

    /// Removes a question from the task, then refuses it at the upstream where required, unless it was just answered.
    async fn withdraw(&mut self, withdrawn: WithdrawnQuestion, certain: Option<&Task>) -> RunnerFlow {
        let Some(key) = self.recorder.key() else { return RunnerFlow::Continue(()) };
        let WithdrawnQuestion { ask, refused } = &withdrawn;
        // The write that failed was committed, unless the question was answered.
        let is_off = certain.filter(|task| !is_open(task, ask)).map(|task| !is_answered(task, ask));
        let is_withdrawn = match is_off {
            Some(is_withdrawn) => Ok(is_withdrawn),
            None => {
                let event = Event::Withdrawn { attempt: self.recorder.attempt(), ask: ask.clone() };
                self.apply(&key, event).await.map(|applied| applied.changed)
            }
        };
        match is_withdrawn {
            Ok(true) => (),
            Ok(false) => return RunnerFlow::Continue(()),
            Err(error) if error.is_passing() => {
                self.dialog.questions_mut().add_withdrawn(withdrawn);
                return self.wait_for_store(UnstoredStep::Withdrawals, &error);
            }
            Err(TaskError::Store(StoreError::Fenced)) => return RunnerFlow::Break(()),
            Err(error) => tracing::warn!(error = %CauseChain(&error), "a question could not be removed from its task"),
        }
        let Some(method) = refused else {
            self.count_question("withdrawn");
            return RunnerFlow::Continue(());
        };
        self.count_question("expired");
        if self.call.is_elicited(ask) {
            return self.elicitation_declined().await;
        }
        self.refuse_question(ask, plain::refuse(method, QuestionRefusal::Unanswered)).await;
        RunnerFlow::Continue(())
    }

    pub(super) async fn withdraw_again(&mut self, certain: Option<&Task>) -> RunnerFlow {
        // One at a time: the call's position is not stored while others still wait.
        for _ in 0..self.dialog.questions().withdrawals() {
            let Some(withdrawn) = self.dialog.questions_mut().take_withdrawn() else { break };
            self.withdraw(withdrawn, certain).await?;
        }
        RunnerFlow::Continue(())
    }

    /// Expires unanswered questions: the upstream receives a refusal, and the call continues.
    pub(super) async fn expire_inputs(&mut self) -> RunnerFlow {
        for open in self.dialog.questions_mut().take_overdue() {
            self.refuse_open(open).await?;
        }
        RunnerFlow::Continue(())
    }

    pub(super) async fn refuse_open(&mut self, open: OpenQuestion) -> RunnerFlow {
        self.withdraw(WithdrawnQuestion { ask: open.ask, refused: Some(open.method) }, None).await
    }

    pub(super) fn count_question(&self, result: &'static str) {
        let upstream = Arc::clone(self.spec.upstream.name());
        metrics::counter!(metric::QUESTIONS, "upstream" => upstream, "result" => result).increment(1);
    }
}

pub(super) fn is_open(task: &Task, ask: &Payload) -> bool {
    task.open_questions().any(|(_, question)| question.ask == *ask)
}

/// Whether a row certainly was not inserted, and a retry may succeed.
fn is_passing(fault: &GatewayFault) -> bool {
    fault.reason == Reason::StoreFailed && fault.executed == Executed::No
}

const REPEATS_MAX: u32 = 8;

impl Runner {
    /// Handles an error response of the upstream. The exchange has ended.
    pub(super) async fn faulted(&mut self, error: RpcError) -> RunnerFlow {
        let repeats = self.call.repeats();
        let demanded: Result<Vec<_>, _> = plain::demanded(&error).into_iter().collect();
        let requests = match demanded {
            Ok(requests) if !requests.is_empty() && repeats < REPEATS_MAX => requests,
            Ok(_) => return self.end(Outcome::Faulted(Failure::Upstream(error))).await,
            Err(_) => {
                tracing::warn!(upstream = %self.spec.upstream.name(), "the upstream requests a URL elicitation with a URL that is not allowed");
                let error = plain::unfit(&error).unwrap_or(error);
                return self.end(Outcome::Faulted(Failure::Upstream(error))).await;
            }
        };
        self.call.await_answers(error);
        for (number, request) in requests.into_iter().enumerate() {
            let askable = if self.is_unattended() { Askable::Undeclared } else { self.askable(&request) };
            match askable {
                Askable::Declared => self.add_elicitation(repeats, number, request).await,
                Askable::Required(capability) if self.is_waited_for() => self.needs(capability).await,
                Askable::Undeclared | Askable::Required(_) => self.elicitation_declined().await,
            }?;
        }
        RunnerFlow::Continue(())
    }

    async fn add_elicitation(&mut self, repeats: u32, number: usize, request: Payload) -> RunnerFlow {
        // No exchange uses this name for a question: the call has none while it waits.
        let ask = Payload::of(&format!("demand-{repeats}-{number}"));
        self.call.elicit(ask.clone());
        match self.add_question(&ask, &Arc::from(method::ELICIT), request).await {
            Ok(next) => next,
            Err(QuestionError(_)) => self.elicitation_declined().await,
        }
    }

    pub(super) async fn elicitation_answered(&mut self, ask: &Payload, answer: &Answer) -> RunnerFlow {
        if !plain::is_consent(answer) {
            return self.elicitation_declined().await;
        }
        if self.call.accept(ask) { self.repeat_call().await } else { RunnerFlow::Continue(()) }
    }

    /// Repeats the call, once the row says so.
    pub(super) async fn repeat_call(&mut self) -> RunnerFlow {
        // A process that resumed the old exchange would ask again, and repeat the call once more.
        match self.clear_position().await {
            // The command that says so is about to come.
            Ok(false) => RunnerFlow::Continue(()),
            Ok(true) => {
                self.call.repeat(&self.spec);
                RunnerFlow::Continue(())
            }
            Err(error) if error.is_passing() => self.wait_for_store(UnstoredStep::Repeat, &error),
            Err(TaskError::Store(StoreError::Fenced)) => RunnerFlow::Break(()),
            Err(error) => {
                tracing::error!(error = %CauseChain(&error), "the call could not be marked as sent and is not sent again");
                self.end(Outcome::lost(GatewayFault::new(error.reason(), Executed::Unknown))).await
            }
        }
    }

    /// Ends the call with its error, because the user declined.
    pub(super) async fn elicitation_declined(&mut self) -> RunnerFlow {
        let Some(error) = self.call.take_declined() else { return RunnerFlow::Continue(()) };
        self.end(Outcome::Faulted(Failure::Upstream(error))).await
    }
}
