//! Stores the position from which an exchange can be resumed (GW-41). It is stored with every other write of the row,
//! else within a second of an event. Positions learnt without an event, such as an empty priming event's id, are
//! checked at growing intervals. A lost position only causes replays.

use super::{Runner, RunnerFlow};
use crate::cause::CauseChain;
use crate::engine::TaskError;
use crate::engine::apply::AppliedEvent;
use crate::engine::call::CallEnd;
use crate::task::{Event, Executed, GatewayFault, Outcome, StoredCall, TaskKey};
use crate::upstream::ResumeToken;
use crate::upstream::limits::CallProspect;
use crate::wire::Payload;

impl Runner {
    /// Whether a later process can resume the call from the row.
    pub(super) fn is_kept(&self) -> bool {
        self.engine.store.reach().outlives_process()
    }

    pub(super) fn stored_call(&self) -> Option<StoredCall> {
        let call = self.spec.stored(self.call.is_queued()).filter(|_| self.is_kept())?;
        // The rows of its elements have the params.
        Some(if self.family.has_elements() { call.without_params() } else { call })
    }

    /// The exchange's position, if it differs from the row's.
    pub(super) fn new_position(&self) -> Option<Payload> {
        // A resumed exchange would not repeat questions before this position that are not stored.
        if !self.is_kept() || self.dialog.questions().has_unstored() {
            return None;
        }
        let ResumeToken(position) = self.call.resume_token()?;
        self.recorder.new_position(position)
    }

    /// Applies an event to the row, and stores the exchange's position in the same commit.
    pub(super) async fn apply(&mut self, key: &TaskKey, event: Event) -> Result<AppliedEvent, TaskError> {
        let position = self.new_position();
        let kept = position
            .clone()
            .map(|position| Event::Checkpointed { attempt: self.recorder.attempt(), resume: Some(position) });
        let applied = self.write(key, kept.into_iter().chain([event]).collect()).await?;
        // The position is left out where the store has no room for it.
        if position.is_some() && applied.task.recovery.resume == position {
            self.recorder.position_written(position);
        }
        Ok(applied)
    }

    async fn keep_position(&mut self) -> Result<(), TaskError> {
        let (Some(key), Some(position)) = (self.recorder.key(), self.new_position()) else { return Ok(()) };
        self.write(
            &key,
            vec![Event::Checkpointed { attempt: self.recorder.attempt(), resume: Some(position.clone()) }],
        )
        .await?;
        self.recorder.position_written(Some(position));
        self.recorder.check_soon();
        Ok(())
    }

    /// Removes the position before a new exchange: no process may resume the old one. If it fails, or returns false
    /// because the task has settled, send nothing.
    pub(super) async fn clear_position(&mut self) -> Result<bool, TaskError> {
        let Some(key) = self.recorder.key() else { return Ok(true) };
        let cleared = vec![Event::Checkpointed { attempt: self.recorder.attempt(), resume: None }];
        let applied = self.write(&key, cleared).await?;
        self.recorder.position_written(None);
        Ok(!applied.task.is_settled())
    }

    /// Stores a changed position. If that fails, the next check has the usual interval: an old one only replays more.
    pub(super) async fn checkpoint_due(&mut self) -> RunnerFlow {
        self.recorder.checked();
        if !self.call.is_unsent() && self.recorder.is_steady() {
            self.record_alive().await;
        }
        if let Err(error) = self.keep_position().await {
            tracing::warn!(error = %CauseChain(&error), "a call's resume position was not stored");
        }
        if self.engine.drain_begun.is_cancelled() { self.leave_for_later().await } else { RunnerFlow::Continue(()) }
    }

    /// Leaves a call that a later process can resume: its upstream is not notified. Other calls remain.
    pub(super) async fn leave_for_later(&mut self) -> RunnerFlow {
        self.call.outlive_drain();
        let can_go_on = self.call.resume_token().is_some() || self.family.has_elements() || self.call.is_unsent();
        let knows_more = self.dialog.questions().has_unstored() || self.dialog.questions().has_unresolved();
        if !self.recorder.has_handle() || !can_go_on || !self.is_kept() || knows_more {
            self.recorder.check_soon();
            return RunnerFlow::Continue(());
        }
        match self.keep_position().await {
            Ok(()) => {
                self.record_orderly_end().await;
                tracing::info!("a call is left to a later process");
                RunnerFlow::Break(())
            }
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "a call could not be left to a later process and is waited for");
                self.recorder.check_soon();
                RunnerFlow::Continue(())
            }
        }
    }

    /// Ends the call at shutdown. A waiting client receives the reason; a task stays as stored, for a later process.
    pub(super) async fn end_with_gateway(&mut self) -> RunnerFlow {
        self.record_orderly_end().await;
        if !self.recorder.has_handle() {
            let executed = if self.call.is_unsent() { self.recorder.executed_so_far() } else { Executed::Unknown };
            self.answer_waiting(self.engine.calls_end.fault(executed)).await;
        }
        RunnerFlow::Break(())
    }

    pub(super) async fn answer_waiting(&mut self, fault: GatewayFault) {
        if self.dialog.clients().is_there() {
            self.dialog.clients_mut().end(CallEnd::Outcome(Outcome::lost(fault))).await;
        }
    }

    /// Updates the call's class in the list of calls in progress.
    pub(super) fn count(&mut self) {
        let prospect = match () {
            () if !self.recorder.has_handle() => CallProspect::Held,
            () if !self.is_kept() => CallProspect::Lost,
            () if self.recorder.has_position() || self.family.has_elements() || self.call.is_unsent() => {
                CallProspect::Resumed
            }
            () if self.spec.policy.after_crash.may_rerun(self.spec.is_repeatable) => CallProspect::Repeated,
            () => CallProspect::Lost,
        };
        self.call.set_prospect(prospect);
    }
}
