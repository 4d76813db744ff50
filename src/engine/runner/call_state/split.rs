//! Runs a call with a list argument as many calls, one for each element.
//! To the runner, a split call is one call with one deadline and task. Its elements wait for permits as calls do, in
//! order; up to the rule's number run in parallel. Until it is a task, their exchanges are here; then each element is a
//! child task with its own runner (`family`), judged separately later, and this module combines outcomes.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all, select_all};
use tokio::time::Instant;

use super::exchange_stage::{ExchangeStage, StageEvent};
use super::outcome_of;
use crate::answer_budget::{AnswerPermit, AnswerShare};
use crate::cause::CauseChain;
use crate::dialect::faults::failure_error;
use crate::dialect::plain::{self, CanonicalResult};
use crate::dialect::split_call::{CombinedResult, SplitCall, SplitResult, question_named, question_of};
use crate::engine::call::CallSpec;
use crate::engine::change::HeldRow;
use crate::engine::retry_delays::RetryDelays;
use crate::engine::{Engine, TaskError};
use crate::task::reference::LoggedTask;
use crate::task::{
    Answer, Attempt, Event, Executed, Failure, GatewayFault, Outcome, Phase, Plan, Principal, Question, Reason,
    Recovery, Task, TaskKey, TaskVisibility, Timestamp, TreeLinks, transition,
};
use crate::upstream::{AnsweredBy, ExchangeError, ExchangeEvent, Progress, ResumeToken, UpstreamRequest};
use crate::wire::one_line::status_text;
use crate::wire::{Object, Payload, method};

/// The name of the elements if the rule that named them was removed.
const ELEMENTS: &str = "elements";

pub(in crate::engine::runner) struct SplitExchange {
    plan: SplitPlan,
    next: usize,
    running: Vec<RunningElement>,
    /// By element; `None` for elements that have not ended.
    outcomes: Vec<Option<ElementOutcome>>,
    ended: usize,
    bytes: usize,
    events: VecDeque<ExchangeEvent>,
    message: Option<Arc<str>>,
    /// Set once all elements have ended.
    combining: Option<BoxFuture<'static, ExchangeEvent>>,
}

pub(in crate::engine::runner) struct RunningElement {
    index: usize,
    pub(in crate::engine::runner) exchange: ExchangeStage,
    pub(in crate::engine::runner) sent_at: Option<Instant>,
    /// Its open questions, as its row would hold them.
    pub(in crate::engine::runner) open: Vec<Question>,
}

impl SplitExchange {
    pub(super) fn new(plan: SplitPlan) -> Self {
        let outcomes = (0..plan.total()).map(|_| None).collect();
        let (running, events) = (Vec::new(), VecDeque::new());
        Self { plan, next: 0, running, outcomes, ended: 0, bytes: 0, events, message: None, combining: None }
    }

    pub(in crate::engine::runner) const fn plan(&self) -> &SplitPlan {
        &self.plan
    }

    /// Fails with `QueueFull` unless an element could queue now.
    pub(super) fn enter_queue(&self, owner: &Principal) -> Result<(), GatewayFault> {
        self.plan.template().permits.as_ref().map_or(Ok(()), |permits| permits.enter(owner).map(drop))
    }

    /// The next event; pends while only elements with rows run. `begins`: whether elements begin here. Cancel safe.
    pub(super) async fn next(&mut self, begins: bool) -> StageEvent {
        StageEvent::Exchange(self.next_event(begins).await)
    }

    async fn next_event(&mut self, begins: bool) -> ExchangeEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            if self.bytes > self.plan.template().context.result_bytes_max {
                self.cancel("the results of the call are too large together").await;
                let fault = GatewayFault::new(Reason::ResultTooLarge, Executed::Yes);
                return ExchangeEvent::Lost(ExchangeError(fault));
            }
            if self.ended == self.plan.total() {
                return self.combined().await;
            }
            if begins {
                self.begin_more();
            }
            if self.running.is_empty() {
                return std::future::pending().await;
            }
            let (event, at, _) =
                select_all(self.running.iter_mut().map(|element| Box::pin(element.exchange.next()))).await;
            // The element of this event goes last, so that a busy element starves no other.
            self.running.rotate_left(at + 1);
            self.element_event(self.running.len() - 1, event);
        }
    }

    fn begin_more(&mut self) {
        while self.running.len() < self.plan.parallel() && self.next < self.plan.total() {
            // It waits for its permit as long as the split call may run.
            let exchange = ExchangeStage::new(&self.plan.element(self.next), None);
            self.running.push(RunningElement { index: self.next, exchange, sent_at: None, open: Vec::new() });
            self.next += 1;
        }
    }

    fn element_event(&mut self, at: usize, event: StageEvent) {
        let Some(element) = self.running.get_mut(at) else { return };
        let index = element.index;
        let event = match event {
            StageEvent::PermitTaken => {
                element.sent_at = Some(Instant::now());
                return;
            }
            StageEvent::NotBegun(outcome) => return self.element_ended(at, outcome),
            StageEvent::Exchange(event) => event,
        };
        match event {
            ExchangeEvent::Progress(progress) => self.status_received(progress.status()),
            ExchangeEvent::Status(text) => self.status_received(Some(text)),
            ExchangeEvent::Task(_) | ExchangeEvent::Subtasks(_) => (),
            event @ ExchangeEvent::Notification(_) => self.events.push_back(event),
            ExchangeEvent::Asked { ask, method, params } => {
                if let Ok(request) = plain::decode_question(&method, params.as_ref()) {
                    element.open.push(Question { ask: ask.detached(), request });
                }
                self.events.push_back(ExchangeEvent::Asked { ask: question_of(index, &ask), method, params });
            }
            ExchangeEvent::Withdrawn { ask } => {
                element.open.retain(|question| question.ask != ask);
                self.events.push_back(ExchangeEvent::Withdrawn { ask: question_of(index, &ask) });
            }
            ExchangeEvent::Returned(result) => {
                let outcome = outcome_of(result, self.plan.template().context.share.as_ref());
                self.element_ended(at, outcome);
            }
            ExchangeEvent::Faulted(error) => self.element_ended(at, Outcome::Faulted(Failure::Upstream(error))),
            ExchangeEvent::Cancelled => self.element_ended(at, Outcome::Cancelled),
            ExchangeEvent::Lost(ExchangeError(fault)) => self.element_ended(at, Outcome::lost(fault)),
        }
    }

    /// Records the outcome of a call without a row, releases its permit, and withdraws its questions.
    fn element_ended(&mut self, at: usize, outcome: Outcome) {
        let element = self.running.remove(at);
        let withdrawn = element.open.iter().map(|question| question_of(element.index, &question.ask));
        self.events.extend(withdrawn.map(|ask| ExchangeEvent::Withdrawn { ask }));
        self.ended(element.index, ElementOutcome::Held(outcome));
    }

    /// Records the outcome of an element with a row; `None` if the row was removed.
    pub(in crate::engine::runner) fn settled(&mut self, engine: &Arc<Engine>, index: usize, row: Option<HeldRow>) {
        self.ended(index, ElementOutcome::of_row(engine, row));
    }

    fn ended(&mut self, index: usize, outcome: ElementOutcome) {
        let Some(outcome_of) = self.outcomes.get_mut(index).filter(|known| known.is_none()) else { return };
        self.bytes += outcome.bytes();
        *outcome_of = Some(outcome);
        self.ended += 1;
        if self.ended < self.plan.total() && self.plan.template().context.progress {
            let (progress, total) = (Payload::of(&self.ended), Some(Payload::of(&self.plan.total())));
            let message = self.status();
            self.events.push_back(ExchangeEvent::Progress(Progress { progress, total, message }));
        }
    }

    /// The number of ended elements, and the newest message of an element; `None` without a message.
    fn status(&self) -> Option<Arc<str>> {
        let message = self.message.as_ref()?;
        status_text(&format!("{}/{}: {message}", self.ended, self.plan.total()))
    }

    /// Records a new message of an element. It is not progress of the split call: no number grew.
    pub(in crate::engine::runner) fn status_received(&mut self, text: Option<Arc<str>>) {
        self.message = text.or_else(|| self.message.take());
        self.events.extend(self.status().map(ExchangeEvent::Status));
    }

    /// Combines the results. Cancel safe: a dropped wait continues with the next call.
    async fn combined(&mut self) -> ExchangeEvent {
        let combining = match &mut self.combining {
            Some(combining) => combining,
            combining @ None => {
                let share = self.plan.template().context.share.clone();
                combining.insert(Box::pin(combine(share, Arc::clone(self.plan.argument()), self.outcomes.clone())))
            }
        };
        let event = combining.await;
        self.combining = None;
        self.outcomes.clear();
        event
    }

    pub(super) async fn answer(&mut self, ask: &Payload, answer: Answer, by: AnsweredBy) -> Result<(), ExchangeError> {
        let named = question_named(ask);
        let found =
            named.and_then(|(index, ask)| Some((self.running.iter_mut().find(|element| element.index == index)?, ask)));
        match found {
            Some((element, ask)) => {
                element.open.retain(|question| question.ask != ask);
                element.exchange.answer(&ask, answer, by).await
            }
            // Its call ended meanwhile: the answer is dropped, and the other elements continue.
            None => Ok(()),
        }
    }

    /// Cancels the calls that have no rows; the others end with their parent.
    pub(super) async fn cancel(&mut self, reason: &str) {
        join_all(self.running.iter_mut().map(|element| element.exchange.cancel(reason))).await;
        self.finish();
    }

    pub(super) fn finish(&mut self) {
        self.running.clear();
        self.next = self.plan.total();
    }

    /// The rows of the elements as they are now, as children of a task. `is_kept`: whether a later process may resume them.
    pub(in crate::engine::runner) fn tasks(
        &self,
        parent: &TaskKey,
        mut new_key: impl FnMut() -> TaskKey,
        now: Timestamp,
        is_kept: bool,
    ) -> Vec<Task> {
        (0..self.plan.total()).map(|index| self.task(index, parent, new_key(), now, is_kept)).collect()
    }

    fn task(&self, index: usize, parent: &TaskKey, key: TaskKey, now: Timestamp, is_kept: bool) -> Task {
        let spec = self.plan.element(index);
        let visibility = if spec.sees_subtasks { TaskVisibility::Handle } else { TaskVisibility::Part };
        let running = self.running.iter().find(|element| element.index == index);
        let is_waiting = running.is_none_or(|element| element.exchange.is_waiting());
        let sent_at = running.and_then(|element| element.sent_at).map(|at| now.before(at.elapsed()));
        let position = running.filter(|_| is_kept).and_then(|element| element.exchange.resume_token());
        let task = Task {
            // A child outlives its parent's row, and is invisible once that is removed.
            ttl: spec.policy.ttl.saturating_add(spec.policy.keep_result_min),
            phase: if is_waiting { Phase::Queued } else { Phase::Working },
            recovery: Recovery {
                call: spec.stored(is_waiting).filter(|_| is_kept),
                resume: position.map(|ResumeToken(position)| position.detached()),
                dispatched_at: sent_at,
                ..Recovery::default()
            },
            tree: TreeLinks { parent: Some(parent.id), ..TreeLinks::default() },
            ..spec.new_task(key, visibility, now)
        };
        let outcome = self.outcomes.get(index).and_then(|outcome| outcome.as_ref()?.held());
        let task = match outcome {
            Some(outcome) => Task { phase: Phase::Settled(outcome.clone()), recovery: Recovery::default(), ..task },
            None => task,
        };
        let questions = running.iter().flat_map(|element| &element.open);
        questions
            .fold(task, |task, question| {
                let question = Event::QuestionReceived { attempt: Attempt::FIRST, question: question.clone() };
                transition(task, question, now).0
            })
            .exact()
    }

    /// The element that would begin next, and the number of elements in progress.
    pub(in crate::engine::runner) const fn progress(&self) -> (usize, usize) {
        (self.next, self.running.len())
    }

    pub(in crate::engine::runner) fn release(&mut self, index: usize) -> Option<(CallSpec, RunningElement)> {
        let at = self.running.iter().position(|element| element.index == index)?;
        Some((self.plan.element(index), self.running.swap_remove(at)))
    }

    pub(in crate::engine::runner) fn is_open(&self, index: usize) -> bool {
        self.outcomes.get(index).is_some_and(Option::is_none)
    }
}

/// The combined result of ended elements. It waits for bytes of the answer budget: for the copy, and for one result at a
/// time that is read from its row. `Lost` if a held call's client is out of bytes for too long.
async fn combine(
    share: Option<AnswerShare>,
    argument: Arc<str>,
    outcomes: Vec<Option<ElementOutcome>>,
) -> ExchangeEvent {
    let mut permit = AnswerPermit::default();
    let bytes = outcomes.iter().flatten().map(ElementOutcome::bytes).sum();
    let read = outcomes.iter().flatten().map(ElementOutcome::bytes_in_row).max().unwrap_or(0);
    let mut combined = CombinedResult::new(&argument);
    for (index, outcome) in outcomes.into_iter().enumerate() {
        if let Some(share) = &share
            && let Err(fault) = share.grow(&mut permit, bytes + read + combined.structured_bytes()).await
        {
            return ExchangeEvent::Lost(ExchangeError(fault));
        }
        if index == 0 {
            // Not earlier: it takes the memory that it has waited for.
            combined.reserve(bytes);
        }
        combined.add(&if let Some(outcome) = outcome { result_of(outcome.outcome().await) } else { cancelled() });
    }
    ExchangeEvent::Returned(combined.finish().held_by(|text| permit.attach(text)))
}

fn result_of(outcome: Outcome) -> SplitResult {
    match outcome {
        Outcome::Returned { result, is_error } => SplitResult::Returned(CanonicalResult { result, is_error }),
        Outcome::Faulted(failure) => SplitResult::Failed(failure_error(&failure).message),
        Outcome::Cancelled => cancelled(),
    }
}

fn cancelled() -> SplitResult {
    SplitResult::Failed("it was cancelled".to_owned())
}

#[derive(Debug)]
pub(in crate::engine::runner) struct SplitPlan {
    template: CallSpec,
    /// `None` for a call of an earlier process; its elements have rows.
    call: Option<SplitCall>,
    argument: Arc<str>,
    total: usize,
    parallel: usize,
}

pub(in crate::engine::runner) fn split(spec: &mut CallSpec) -> Option<SplitPlan> {
    let (call, parallel) = call_of(spec)?;
    let (total, argument) = (call.len(), Arc::clone(call.argument()));
    Some(SplitPlan { template: element_of(spec), call: Some(call), argument, total, parallel })
}

pub(in crate::engine::runner) fn split_again(spec: &mut CallSpec, total: usize) -> SplitPlan {
    let rule = spec.policy.split.as_ref();
    let parallel = rule.map_or(1, |rule| rule.parallel.get());
    let argument = rule.map_or_else(|| Arc::from(ELEMENTS), |rule| Arc::clone(&rule.argument));
    SplitPlan { template: element_of(spec), call: None, argument, total, parallel }
}

fn call_of(spec: &CallSpec) -> Option<(SplitCall, usize)> {
    let rule = spec.policy.split.as_ref().filter(|_| &*spec.request.method == method::TOOLS_CALL)?;
    Some((SplitCall::read(rule, &Object::of(spec.request.params.as_ref()?)?)?, rule.parallel.get()))
}

fn element_of(spec: &mut CallSpec) -> CallSpec {
    let mut element = spec.clone();
    (element.plan, element.policy.split) = (Plan::Task, None);
    (element.idempotency, element.chosen, element.notice_sink) = (None, None, None);
    spec.permits = None;
    element
}

impl SplitPlan {
    pub(in crate::engine::runner) const fn total(&self) -> usize {
        self.total
    }

    /// The spec of one element's call. Without params if only its row has them.
    pub(in crate::engine::runner) fn element(&self, index: usize) -> CallSpec {
        let params = self.call.as_ref().and_then(|call| call.params_of(index));
        CallSpec { request: UpstreamRequest { params, ..self.template.request.clone() }, ..self.template.clone() }
    }

    pub(in crate::engine::runner) const fn template(&self) -> &CallSpec {
        &self.template
    }

    pub(in crate::engine::runner) const fn parallel(&self) -> usize {
        self.parallel
    }

    pub(in crate::engine::runner) const fn argument(&self) -> &Arc<str> {
        &self.argument
    }
}

#[derive(Clone)]
enum ElementOutcome {
    Held(Outcome),
    /// A result in the element's row. It is read again once all elements have ended, so that memory holds none meanwhile.
    InRow(ResultInRow),
}

#[derive(Clone)]
struct ResultInRow {
    engine: Arc<Engine>,
    key: TaskKey,
    bytes: usize,
}

impl ElementOutcome {
    /// The outcome in an element's row; `None` if the row was removed.
    fn of_row(engine: &Arc<Engine>, row: Option<HeldRow>) -> Self {
        let in_row = |key, bytes| Self::InRow(ResultInRow { engine: Arc::clone(engine), key, bytes });
        let task = match row {
            Some(HeldRow::Large { key, bytes }) => return in_row(key, bytes),
            Some(HeldRow::Read(task)) => Some(task),
            None => None,
        };
        match task.as_ref().and_then(|task| Some((task, task.outcome()?))) {
            Some((task, Outcome::Returned { result, .. })) => in_row(task.key.clone(), result.len()),
            Some((_, outcome @ (Outcome::Faulted(_) | Outcome::Cancelled))) => Self::Held(outcome.clone()),
            None => Self::Held(row_removed(Executed::Unknown)),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Held(Outcome::Returned { result, .. }) => result.len(),
            Self::Held(Outcome::Faulted(_) | Outcome::Cancelled) => 0,
            Self::InRow(row) => row.bytes,
        }
    }

    /// The size of a result that is still to be read from its row.
    const fn bytes_in_row(&self) -> usize {
        if let Self::InRow(row) = self { row.bytes } else { 0 }
    }

    const fn held(&self) -> Option<&Outcome> {
        if let Self::Held(outcome) = self { Some(outcome) } else { None }
    }

    /// The outcome, read from the row if it is there. Waits while the store is unavailable. Cancel safe.
    async fn outcome(&self) -> Outcome {
        match self {
            Self::Held(outcome) => outcome.clone(),
            Self::InRow(row) => row.outcome().await,
        }
    }
}

impl ResultInRow {
    async fn outcome(&self) -> Outcome {
        let mut pauses = RetryDelays::of_writers();
        loop {
            match self.engine.load_any(&self.key).await {
                Ok(task) => return task.outcome().cloned().unwrap_or_else(|| row_removed(Executed::Yes)),
                Err(TaskError::Unknown) => return row_removed(Executed::Yes),
                Err(error) => {
                    tracing::warn!(task = %LoggedTask(&self.key), error = %CauseChain(&error), "a subtask's result could not be read yet");
                    pauses.wait().await;
                }
            }
        }
    }
}

fn row_removed(executed: Executed) -> Outcome {
    Outcome::lost(GatewayFault::new(Reason::GatewayRestart, executed))
}
