//! Defines the runner, and all writes to its row.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::call_state::{StageEvent, UpstreamCall};
use super::dialog::Dialog;
use super::family::{ChildEvent, Family};
use super::recorder::Recorder;
use crate::audit::AuditedCall;
use crate::dialect::split_call::question_of;
use crate::engine::apply::AppliedEvent;
use crate::engine::call::CallSpec;
use crate::engine::{Engine, TaskError};
use crate::store::{StoreError, WriteRole};
use crate::task::{Event, TaskKey};
use crate::upstream::ExchangeEvent;

pub(super) struct Runner {
    pub(super) engine: Arc<Engine>,
    pub(super) spec: CallSpec,
    pub(super) call: UpstreamCall,
    pub(super) family: Family,
    pub(super) recorder: Recorder,
    pub(super) dialog: Dialog,
    /// Set for a client's call of a tool, until it is a task.
    pub(super) audited: Option<Box<AuditedCall>>,
}

pub(super) type RunnerFlow = ControlFlow<()>;

impl Runner {
    pub(super) async fn next_event(&mut self) -> StageEvent {
        next_event(&self.engine, &mut self.call, &mut self.family).await
    }

    pub(super) fn finish_exchanges(&mut self) {
        self.family.finish();
        self.call.finish();
    }

    pub(super) async fn cancel_exchanges(&mut self, reason: &str) {
        self.family.finish();
        self.call.cancel(reason).await;
    }
}

/// A fenced runner drops the exchange without a cancel, as another replica holds the task, and ends after the step.
impl Runner {
    /// Applies events to a row in one commit, as its holder. After `Fenced`, it sends nothing more. Not cancel safe.
    pub(super) async fn write(&mut self, key: &TaskKey, events: Vec<Event>) -> Result<AppliedEvent, TaskError> {
        let written = self.engine.apply_all(key, WriteRole::Holder, events).await;
        self.heed_fence(written)
    }

    /// Writes the outcome of the call, retrying as long as the store fails, but no longer than until the calls end.
    pub(super) async fn write_outcome(&mut self, key: &TaskKey, event: Event) -> Result<AppliedEvent, TaskError> {
        let written = self.engine.store_outcome(key, event).await;
        self.heed_fence(written)
    }

    fn heed_fence(&mut self, written: Result<AppliedEvent, TaskError>) -> Result<AppliedEvent, TaskError> {
        if matches!(written, Err(TaskError::Store(StoreError::Fenced))) {
            self.stop_as_fenced();
        }
        written
    }

    pub(super) fn stop_as_fenced(&mut self) {
        if self.recorder.fence() {
            self.finish_exchanges();
        }
    }

    /// Returns `next`, unless the runner was fenced in this step: then it stops.
    pub(super) const fn unless_fenced(&self, next: RunnerFlow) -> RunnerFlow {
        if self.recorder.is_fenced() { RunnerFlow::Break(()) } else { next }
    }
}

/// The next event of a call or its subtasks. Cancel safe.
pub(super) async fn next_event(engine: &Arc<Engine>, call: &mut UpstreamCall, family: &mut Family) -> StageEvent {
    loop {
        if let Some(plan) = call.begun_plan() {
            family.begin_elements(plan);
        }
        let is_idle = family.is_idle();
        if is_idle && let Some(end) = call.take_end() {
            return StageEvent::Exchange(end);
        }
        let begins_elements = !family.has_elements();
        let child = tokio::select! {
            biased;
            child = family.next() => child,
            event = call.next(begins_elements) => match event {
                StageEvent::Exchange(event) if !is_idle => match call.end_after_subtasks(event) {
                    Some(event) => return StageEvent::Exchange(event),
                    None => continue,
                },
                event @ (StageEvent::PermitTaken | StageEvent::NotBegun(_) | StageEvent::Exchange(_)) => return event,
            },
        };
        if let Some(event) = subtask_event(engine, call, family, child) {
            return StageEvent::Exchange(event);
        }
    }
}

fn subtask_event(
    engine: &Arc<Engine>,
    call: &mut UpstreamCall,
    family: &mut Family,
    event: ChildEvent,
) -> Option<ExchangeEvent> {
    match event {
        ChildEvent::Asked { index, ask, method, params } => {
            Some(ExchangeEvent::Asked { ask: question_of(index, &ask), method, params })
        }
        ChildEvent::Withdrawn { index, ask } => Some(ExchangeEvent::Withdrawn { ask: question_of(index, &ask) }),
        ChildEvent::Status(text) => {
            call.elements_mut()?.status_received(Some(text));
            None
        }
        ChildEvent::Settled { index, row } => {
            call.elements_mut()?.settled(engine, index, row);
            family.element_settled();
            None
        }
    }
}
