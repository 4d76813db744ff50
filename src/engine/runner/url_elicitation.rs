//! Handles errors that request a URL elicitation (T-49): the call is repeated after it.

use std::sync::Arc;

use super::questions::QuestionError;
use super::recorder::UnstoredStep;
use super::{Failure, Outcome, Runner, RunnerFlow};
use crate::cause::CauseChain;
use crate::dialect::plain;
use crate::engine::TaskError;
use crate::engine::call::Askable;
use crate::store::StoreError;
use crate::task::{Executed, GatewayFault};
use crate::upstream::Answer;
use crate::wire::{Payload, RpcError, method};

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
                tracing::warn!("the upstream requests a URL elicitation with a URL that is not allowed");
                let error = plain::unfit(&error).unwrap_or(error);
                return self.end(Outcome::Faulted(Failure::Upstream(error))).await;
            }
        };
        self.call.await_answers(error);
        for (number, request) in requests.into_iter().enumerate() {
            let askable = if self.is_unattended() { Askable::Undeclared } else { self.askable(&request) };
            let next = match askable {
                Askable::Declared => self.put_elicitation(repeats, number, request).await,
                Askable::Required(capability) if self.is_waited_for() => self.needs(capability).await,
                Askable::Undeclared | Askable::Required(_) => self.elicitation_declined().await,
            };
            if matches!(next, RunnerFlow::Stop) {
                return RunnerFlow::Stop;
            }
        }
        RunnerFlow::Continue
    }

    async fn put_elicitation(&mut self, repeats: u32, number: usize, request: Payload) -> RunnerFlow {
        // No exchange uses this name for a question: the call has none while it waits.
        let ask = Payload::of(&format!("demand-{repeats}-{number}"));
        self.call.elicit(ask.clone());
        match self.put(&ask, &Arc::from(method::ELICIT), request).await {
            Ok(next) => next,
            Err(QuestionError(_)) => self.elicitation_declined().await,
        }
    }

    pub(super) async fn elicitation_answered(&mut self, ask: &Payload, answer: &Answer) -> RunnerFlow {
        if !plain::is_consent(answer) {
            return self.elicitation_declined().await;
        }
        if self.call.accept(ask) { self.repeat_call().await } else { RunnerFlow::Continue }
    }

    /// Repeats the call, once the row says so.
    pub(super) async fn repeat_call(&mut self) -> RunnerFlow {
        // A process that resumed the old exchange would ask again, and repeat the call once more.
        match self.forget_position().await {
            Ok(()) => {
                self.call.repeat(&self.spec);
                RunnerFlow::Continue
            }
            Err(error) if error.is_passing() => self.wait_for_store(UnstoredStep::Repeat, &error),
            Err(TaskError::Store(StoreError::Fenced)) => RunnerFlow::Stop,
            Err(error) => {
                tracing::error!(error = %CauseChain(&error), "the call could not be marked as sent and is not sent again");
                self.end(Outcome::lost(GatewayFault::new(error.reason(), Executed::Unknown))).await
            }
        }
    }

    /// Ends the call with its error, because the user declined.
    pub(super) async fn elicitation_declined(&mut self) -> RunnerFlow {
        let Some(error) = self.call.take_declined() else { return RunnerFlow::Continue };
        self.end(Outcome::Faulted(Failure::Upstream(error))).await
    }
}
