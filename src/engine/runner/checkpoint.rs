//! Stores the position from which an exchange can be resumed (GW-41).
//!
//! The position is stored with every other write of the row, else within a second of an event of the call. Positions that the
//! transport learns without an event, such as the id of an empty priming event, are checked at growing intervals. If the newest
//! position is lost, more events are replayed.

use std::time::Duration;

use tokio::time::Instant;

use super::{Runner, RunnerFlow};
use crate::cause::CauseChain;
use crate::engine::TaskError;
use crate::engine::apply::AppliedEvent;
use crate::engine::call::{CallEnd, CallSpec};
use crate::task::{Event, Executed, GatewayFault, Outcome, StoredCall, TaskKey};
use crate::upstream::limits::CallProspect;
use crate::upstream::{ResumeToken, UpstreamTaskMode};
use crate::wire::Payload;

/// How soon after an event of the call its position is stored.
const SOON: Duration = Duration::from_secs(1);
/// The longest interval between checks of a silent call.
const RARELY: Duration = Duration::from_secs(32);

/// The stored position of the exchange, and when to compare it.
#[derive(Debug)]
pub(super) struct Checkpoint {
    written: Option<Payload>,
    due: Option<Instant>,
    pause: Duration,
}

impl Checkpoint {
    /// Not due until a row exists that outlives this process.
    pub(super) const fn new() -> Self {
        Self { written: None, due: None, pause: SOON }
    }

    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The call had an event, or its row is new.
    pub(super) fn check_soon(&mut self) {
        self.pause = SOON;
        let soon = Instant::now() + SOON;
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    /// Records the position that the row has.
    pub(super) fn is_written(&mut self, position: Option<Payload>) {
        self.written = position;
    }

    fn rest(&mut self) {
        self.due = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(RARELY);
    }
}

impl CallSpec {
    /// The call as a later process may have to send it, given whether it was not sent yet. Omits fields that no process can use.
    pub(super) fn stored(&self, is_waiting: bool) -> Option<StoredCall> {
        let call = StoredCall {
            params: self.upstream.stored(self.request.params.as_ref()?),
            capabilities: self.context.client.capabilities.clone(),
            progress: self.context.progress,
            log_level: self.context.log_level.clone(),
            is_repeatable: self.is_repeatable,
            is_native: self.context.native_task != UpstreamTaskMode::Never,
        };
        let may_be_sent = is_waiting || self.policy.after_crash.may_rerun(call.is_repeatable);
        Some(if may_be_sent { call } else { call.without_params() })
    }
}

impl Runner {
    /// Whether a later process can resume the call from the row.
    pub(super) fn is_kept(&self) -> bool {
        self.engine.store.reach().outlives_process()
    }

    /// The call's data for the row.
    pub(super) fn stored_call(&self) -> Option<StoredCall> {
        let call = self.spec.stored(self.call.is_queued()).filter(|_| self.is_kept())?;
        // The rows of its elements have the params.
        Some(if self.family.has_elements() { call.without_params() } else { call })
    }

    /// The exchange's position, if it differs from the row's.
    pub(super) fn new_position(&self) -> Option<Payload> {
        // A resumed exchange would not repeat questions before this position that are not stored.
        if !self.is_kept() || self.inputs.has_unstored() {
            return None;
        }
        let ResumeToken(position) = self.call.resume_token()?;
        (self.checkpoint.written.as_ref() != Some(&position)).then(|| position.detached())
    }

    /// Applies an event to the row, and stores the exchange's position in the same commit.
    pub(super) async fn apply(&mut self, key: &TaskKey, event: Event) -> Result<AppliedEvent, TaskError> {
        let position = self.new_position();
        let kept =
            position.clone().map(|position| Event::Checkpointed { attempt: self.attempt, resume: Some(position) });
        let applied = self.write(key, kept.into_iter().chain([event]).collect()).await?;
        // The position is left out where the store has no room for it.
        if position.is_some() && applied.task.recovery.resume == position {
            self.checkpoint.is_written(position);
        }
        Ok(applied)
    }

    /// Stores the exchange's position if it changed.
    ///
    /// # Errors
    /// If it could not be stored.
    async fn keep_position(&mut self) -> Result<(), TaskError> {
        let (Some(key), Some(position)) = (self.row_key(), self.new_position()) else { return Ok(()) };
        self.write(&key, vec![Event::Checkpointed { attempt: self.attempt, resume: Some(position.clone()) }]).await?;
        self.checkpoint.is_written(Some(position));
        self.checkpoint.check_soon();
        Ok(())
    }

    /// Removes the position, because another exchange is about to replace this one: no process may resume the old one.
    ///
    /// # Errors
    /// If that could not be stored: then nothing may be sent.
    pub(super) async fn forget_position(&mut self) -> Result<(), TaskError> {
        let Some(key) = self.row_key() else { return Ok(()) };
        self.write(&key, vec![Event::Checkpointed { attempt: self.attempt, resume: None }]).await?;
        self.checkpoint.is_written(None);
        Ok(())
    }

    /// Checks whether the position changed. If it cannot be stored, the next check has the usual interval: an older position only
    /// causes a longer replay.
    pub(super) async fn checkpoint_due(&mut self) -> RunnerFlow {
        self.checkpoint.rest();
        self.record_steady().await;
        if let Err(error) = self.keep_position().await {
            tracing::warn!(error = %CauseChain(&error), "where a call can be taken up was not stored");
        }
        if self.engine.leaving.is_cancelled() { self.leave_for_later().await } else { RunnerFlow::Continue }
    }

    /// Leaves a call that a later process can resume: its upstream is not notified. Other calls remain.
    pub(super) async fn leave_for_later(&mut self) -> RunnerFlow {
        self.call.outlive_drain();
        let can_go_on = self.call.resume_token().is_some() || self.family.has_elements() || self.call.is_unsent();
        let knows_more = self.inputs.has_unstored() || self.inputs.has_unresolved();
        if !self.has_handle() || !can_go_on || !self.is_kept() || knows_more {
            self.checkpoint.check_soon();
            return RunnerFlow::Continue;
        }
        match self.keep_position().await {
            Ok(()) => {
                self.record_orderly_end().await;
                tracing::info!("a call is left to a later process");
                RunnerFlow::Stop
            }
            Err(error) => {
                tracing::warn!(error = %CauseChain(&error), "a call could not be left to a later process and is waited for");
                self.checkpoint.check_soon();
                RunnerFlow::Continue
            }
        }
    }

    /// Ends the call at shutdown without further waiting. A waiting client receives the reason; a task remains as stored, for a
    /// later process to judge.
    pub(super) async fn end_with_gateway(&mut self) -> RunnerFlow {
        self.record_orderly_end().await;
        if !self.has_handle() {
            let executed = if self.call.is_unsent() { self.executed_so_far() } else { Executed::Unknown };
            self.answer_waiting(self.engine.calls_end.fault(executed)).await;
        }
        RunnerFlow::Stop
    }

    pub(super) async fn answer_waiting(&mut self, fault: GatewayFault) {
        if self.client.is_there() {
            self.client.end(CallEnd::Outcome(Outcome::lost(fault))).await;
        }
    }

    /// Updates the call's class in the list of calls in progress.
    pub(super) fn count(&mut self) {
        let prospect = match () {
            () if !self.has_handle() => CallProspect::Held,
            () if !self.is_kept() => CallProspect::Lost,
            () if self.checkpoint.written.is_some() || self.family.has_elements() || self.call.is_unsent() => {
                CallProspect::Resumed
            }
            () if self.spec.policy.after_crash.may_rerun(self.spec.is_repeatable) => CallProspect::Repeated,
            () => CallProspect::Lost,
        };
        self.call.set_prospect(prospect);
    }
}
