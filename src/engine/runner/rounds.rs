//! Asks clients without a handle for answers, in rounds (GW-20). A hidden task holds the call in between.

use tokio::time::Instant;

use super::questions::is_open;
use super::recorder::UnstoredStep;
use super::{CallEvent, Runner, RunnerFlow};
use crate::cause::CauseChain;
use crate::engine::TaskError;
use crate::engine::call::{CallEnd, CallStreamSender, RoundRetry};
use crate::store::StoreError;
use crate::task::{Event, Executed, GatewayFault, Outcome, Plan, Task, TaskVisibility};

/// Rounds of questions in one call; clients stop at ten.
const ROUNDS_MAX: u32 = 8;

impl Runner {
    /// Sends the open questions as the response to the waiting client, which detaches it.
    pub(super) async fn ask_client(&mut self) -> RunnerFlow {
        self.dialog.questions_mut().stop_gathering();
        let Some(key) = self.recorder.key().filter(|_| self.is_waited_for()) else { return RunnerFlow::Continue(()) };
        if !self.dialog.questions().has_open() {
            self.begin_grace();
            return RunnerFlow::Continue(());
        }
        if self.dialog.questions().rounds() >= ROUNDS_MAX {
            tracing::warn!(upstream = %self.spec.upstream.name(), "too many rounds of questions; the rest is refused");
            return self.refuse_all_open().await;
        }
        let task = match self.engine.load_any(&key).await {
            Ok(task) if !task.is_settled() => task,
            // The command that says so is already queued.
            Ok(_) => return RunnerFlow::Continue(()),
            Err(error) if error.is_passing() => return self.wait_for_store(UnstoredStep::Round, &error),
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "questions could not be read and are refused");
                return self.refuse_all_open().await;
            }
        };
        self.dialog.set_grace_status(None);
        let asks = CallEvent::InputRequired { task, round: self.dialog.questions_mut().begin_round() };
        if !self.dialog.clients_mut().hand_over(asks).await {
            return self.client_left().await;
        }
        if self.spec.is_held_by_key() {
            self.recorder.take_repetitions(true);
        }
        RunnerFlow::Continue(())
    }

    async fn refuse_all_open(&mut self) -> RunnerFlow {
        for open in self.dialog.questions_mut().take_open() {
            self.refuse_open(open).await?;
        }
        self.begin_grace();
        RunnerFlow::Continue(())
    }

    /// Resumes the call for a client that returned. Its answers are stored first; then it waits as before.
    pub(super) async fn retried(&mut self, sender: CallStreamSender, retry: RoundRetry) -> RunnerFlow {
        let Some(key) = self.recorder.key() else { return RunnerFlow::Continue(()) };
        self.dialog.clients_mut().attach(sender);
        self.recorder.take_repetitions(false);
        self.spec.questions = retry.questions;
        let task = match self.write(&key, vec![Event::Answered { answers: retry.answers }]).await {
            Ok(applied) => applied.task,
            // `leave` notifies the waiting client.
            Err(TaskError::Store(StoreError::Fenced)) => return RunnerFlow::Break(()),
            Err(error) => {
                tracing::error!(error = %CauseChain(&error), "answers could not be stored");
                // The call continues, and waits for the answers: the client may send them again.
                let end = match &error {
                    TaskError::Unknown => CallEnd::CallLost,
                    TaskError::Contended | TaskError::Store(_) => {
                        CallEnd::Outcome(Outcome::lost(GatewayFault::new(error.reason(), Executed::Unknown)))
                    }
                };
                self.dialog.clients_mut().end(end).await;
                self.recorder.take_repetitions(self.spec.is_held_by_key());
                return RunnerFlow::Continue(());
            }
        };
        let is_held = self.spec.is_held_by_key() && retry.plan != Plan::Task;
        if is_held {
            self.recorder.set_visibility(TaskVisibility::Hidden);
        }
        if self.recorder.has_handle() {
            // Another request of this client received the handle a moment ago.
            return self.show_handle(retry.plan, task).await;
        }
        self.spec.plan = retry.plan;
        self.dialog.questions_mut().retain_open(|ask| is_open(&task, ask));
        if !self.dialog.questions().has_open() {
            self.begin_grace();
            return RunnerFlow::Continue(());
        }
        self.ask_client().await
    }

    async fn show_handle(&mut self, plan: Plan, task: std::sync::Arc<Task>) -> RunnerFlow {
        match plan {
            Plan::Grace(_) | Plan::Task => {
                self.dialog.clients_mut().hand_over(CallEvent::Created(task)).await;
            }
            Plan::Direct | Plan::Refuse => self.dialog.clients_mut().end(CallEnd::CallLost).await,
        }
        RunnerFlow::Continue(())
    }

    /// Restarts the grace period after a round, for a client that may get a handle after it (GW-36).
    fn begin_grace(&mut self) {
        let may_become = match self.spec.plan {
            Plan::Grace(_) if self.spec.is_held_by_key() => self.is_waited_for(),
            Plan::Grace(_) | Plan::Task => self.asks_first() && self.is_waited_for(),
            Plan::Direct | Plan::Refuse => false,
        };
        self.dialog.set_grace_end(may_become.then(|| Instant::now() + self.spec.policy.grace));
    }
}
