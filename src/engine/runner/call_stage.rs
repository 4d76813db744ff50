//! Holds a call's exchange, or the exchanges of its list's elements, and its subtasks.

use std::sync::Arc;

use super::children::{ChildEvent, Children};
use super::element_rows::ElementRows;
use super::exchange_stage::{ExchangeStage, StageEvent};
use super::split::SplitExchange;
use super::split_plan::SplitPlan;
use crate::dialect::split_call::{question_named, question_of};
use crate::engine::Engine;
use crate::engine::call::CallSpec;
use crate::task::{GatewayFault, TaskKey};
use crate::upstream::{Answer, BeginError, ExchangeError, ExchangeEvent, ResumeToken};
use crate::wire::Payload;

/// One call's exchanges with the upstream, and its subtasks. [`CallStage::next`] is cancel safe.
pub(super) struct CallStage {
    exchanges: CallExchanges,
    /// Created with the first subtask: most calls have none.
    children: Option<Box<Children>>,
    /// The end of the exchange, kept until the subtasks have settled, too (SUB-13).
    end: Option<ExchangeEvent>,
}

enum CallExchanges {
    One(ExchangeStage),
    /// One exchange for each element of the call's list.
    Split(Box<SplitExchange>),
}

impl CallStage {
    pub(super) const fn one(stage: ExchangeStage) -> Self {
        Self { exchanges: CallExchanges::One(stage), children: None, end: None }
    }

    pub(super) fn split(plan: SplitPlan) -> Self {
        Self { exchanges: CallExchanges::Split(Box::new(SplitExchange::new(plan))), children: None, end: None }
    }

    /// A split call of an earlier process; its elements have rows.
    pub(super) fn split_again(plan: SplitPlan, rows: ElementRows, is_begun: bool) -> Self {
        let children = Box::new(Children::new(Arc::clone(rows.engine())));
        let mut split = SplitExchange::new(plan);
        (split.rows, split.is_begun) = (Some(rows), is_begun);
        Self { exchanges: CallExchanges::Split(Box::new(split)), children: Some(children), end: None }
    }

    const fn only(&self) -> Option<&ExchangeStage> {
        match &self.exchanges {
            CallExchanges::One(stage) => Some(stage),
            CallExchanges::Split(_) => None,
        }
    }

    const fn only_mut(&mut self) -> Option<&mut ExchangeStage> {
        match &mut self.exchanges {
            CallExchanges::One(stage) => Some(stage),
            CallExchanges::Split(_) => None,
        }
    }

    /// Resumes an exchange. It needs no permit, since the upstream never stopped working on it.
    ///
    /// # Errors
    /// If the token is not valid any more.
    pub(super) async fn resume(&mut self, spec: &CallSpec, token: ResumeToken) -> Result<(), BeginError> {
        match self.only_mut() {
            Some(stage) => stage.resume(spec, token).await,
            None => Ok(()),
        }
    }

    pub(super) fn resume_token(&self) -> Option<ResumeToken> {
        self.only()?.resume_token()
    }

    /// Whether the call was certainly not sent yet.
    pub(super) const fn is_waiting(&self) -> bool {
        match &self.exchanges {
            CallExchanges::One(stage) => stage.is_waiting(),
            CallExchanges::Split(split) => !split.is_begun,
        }
    }

    /// Takes a free permit for a call that has not requested one yet, else a queue position; whether it took the permit. The
    /// elements of a split call queue separately, if an element could do so now.
    ///
    /// # Errors
    /// `QueueFull`: it has neither.
    pub(super) fn enter_queue(&mut self, spec: &CallSpec) -> Result<bool, GatewayFault> {
        match &mut self.exchanges {
            CallExchanges::One(stage) => stage.enter_queue(spec),
            CallExchanges::Split(split) => {
                let permits = split.plan.part().permits.as_ref();
                permits.map_or(Ok(()), |permits| permits.enter(&spec.owner).map(drop)).map(|()| false)
            }
        }
    }

    /// Whether the call is split, and its elements have rows.
    pub(super) const fn has_rows(&self) -> bool {
        match &self.exchanges {
            CallExchanges::One(_) => false,
            CallExchanges::Split(split) => split.rows.is_some(),
        }
    }

    pub(super) const fn split_mut(&mut self) -> Option<&mut SplitExchange> {
        match &mut self.exchanges {
            CallExchanges::One(_) => None,
            CallExchanges::Split(split) => Some(split),
        }
    }

    /// The elements of a split call, and its subtasks.
    pub(super) fn split_and_children(&mut self, engine: &Arc<Engine>) -> Option<(&mut SplitExchange, &mut Children)> {
        let CallExchanges::Split(split) = &mut self.exchanges else { return None };
        let children = self.children.get_or_insert_with(|| Box::new(Children::new(Arc::clone(engine))));
        Some((split, children))
    }

    /// Watches a subtask, which must settle before the call ends.
    pub(super) fn watch(&mut self, engine: &Arc<Engine>, index: usize, key: TaskKey, open: Vec<Payload>) {
        let children = self.children.get_or_insert_with(|| Box::new(Children::new(Arc::clone(engine))));
        children.watch(index, key, open);
    }

    pub(super) async fn next(&mut self) -> StageEvent {
        loop {
            if let (CallExchanges::Split(split), Some(children)) = (&mut self.exchanges, &mut self.children) {
                split.begin_rows(children);
            }
            let mut children = self.children.as_mut().filter(|children| !children.is_idle());
            if children.is_none()
                && let Some(end) = self.end.take()
            {
                return StageEvent::Exchange(end);
            }
            let (is_over, has_children) = (self.end.is_some(), children.is_some());
            let done = tokio::select! {
                biased;
                done = next_child(&mut children) => done,
                event = next_event(&mut self.exchanges), if !is_over => match event {
                    StageEvent::Exchange(end) if has_children && self.waits_for_children(&end) => {
                        self.end = Some(end);
                        continue;
                    }
                    event @ (StageEvent::PermitTaken
                    | StageEvent::NotBegun(_)
                    | StageEvent::Exchange(_)) => return event,
                },
            };
            if let Some(event) = self.child_event(done) {
                return StageEvent::Exchange(event);
            }
        }
    }

    /// Whether subtasks may continue after their parent's exchange ended with this event. A split call ends after all of its
    /// elements, or ends them.
    const fn waits_for_children(&self, end: &ExchangeEvent) -> bool {
        matches!(self.exchanges, CallExchanges::One(_))
            && matches!(end, ExchangeEvent::Returned(_) | ExchangeEvent::Faulted(_) | ExchangeEvent::Cancelled)
    }

    /// Converts a subtask's event into an event of the call.
    fn child_event(&mut self, event: ChildEvent) -> Option<ExchangeEvent> {
        match event {
            ChildEvent::Asked { index, ask, method, params } => {
                Some(ExchangeEvent::Asked { ask: question_of(index, &ask), method, params })
            }
            ChildEvent::Withdrawn { index, ask } => Some(ExchangeEvent::Withdrawn { ask: question_of(index, &ask) }),
            ChildEvent::Status(text) => {
                self.split_mut()?.status_received(Some(text));
                None
            }
            ChildEvent::Settled { index, task } => {
                self.split_mut()?.settled(index, task.as_deref());
                None
            }
        }
    }

    /// Delivers an answer to the exchange that asked.
    ///
    /// # Errors
    /// If it cannot be delivered.
    pub(super) async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        match &mut self.exchanges {
            CallExchanges::One(stage) => stage.answer(ask, answer).await,
            CallExchanges::Split(split) => split.answer(ask, answer).await,
        }
    }

    /// The subtask that asked, and its name for the question. An element of a resumed call may not have begun yet.
    pub(super) fn child_with_question(&self, ask: &Payload) -> Option<(TaskKey, Payload)> {
        let (index, ask) = question_named(ask)?;
        let element = match &self.exchanges {
            CallExchanges::One(_) => None,
            CallExchanges::Split(split) => split.rows.as_ref().and_then(|rows| rows.keys.get(index)),
        };
        let key = element.or_else(|| self.children.as_ref()?.key(index))?;
        Some((key.clone(), ask))
    }

    /// Drops an exchange that has ended, and keeps the permit.
    pub(super) fn rest(&mut self) {
        if let Some(stage) = self.only_mut() {
            stage.rest();
        }
    }

    /// Releases the permit, and drops exchanges that have ended.
    pub(super) fn finish(&mut self) {
        self.children = None;
        match &mut self.exchanges {
            CallExchanges::One(stage) => stage.finish(),
            CallExchanges::Split(split) => split.finish(),
        }
    }

    /// Repeats the call under its permit.
    pub(super) fn repeat(&mut self, spec: &CallSpec) {
        if let Some(stage) = self.only_mut() {
            stage.repeat(spec);
        }
    }

    /// Cancels the call at the upstream, if it was sent, and drops its exchanges.
    pub(super) async fn cancel(&mut self, reason: &str) {
        self.children = None;
        match &mut self.exchanges {
            CallExchanges::One(stage) => stage.cancel(reason).await,
            CallExchanges::Split(split) => split.cancel(reason).await,
        }
    }
}

async fn next_child(children: &mut Option<&mut Box<Children>>) -> ChildEvent {
    match children {
        // Boxed: most calls have no children, and hold no memory for this future.
        Some(children) => Box::pin(children.next()).await,
        None => std::future::pending().await,
    }
}

async fn next_event(exchanges: &mut CallExchanges) -> StageEvent {
    match exchanges {
        CallExchanges::One(stage) => stage.next().await,
        CallExchanges::Split(split) => Box::pin(split.next()).await,
    }
}
