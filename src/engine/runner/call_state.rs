//! Holds the state of a call at the upstream, and its exchanges.

mod exchange_stage;
mod split;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub(super) use self::exchange_stage::{ExchangeStage, StageEvent};
pub(super) use self::split::{RunningElement, SplitExchange, SplitPlan, split, split_again};
use crate::answer_budget::{AnswerShare, FREE_BYTES};
use crate::dialect::plain::{self, CanonicalResult};
use crate::engine::call::CallSpec;
use crate::task::{Executed, GatewayFault, Outcome, Principal};
use crate::upstream::limits::{CallInProgress, CallProspect};
use crate::upstream::{Answer, AnsweredBy, BeginError, ExchangeError, ExchangeEvent, ResumeToken};
use crate::wire::{Payload, RpcError};

/// The outcome of a server's result. An edited copy takes the bytes that the original held until now (B190).
pub(super) fn outcome_of(result: Payload, share: Option<&AnswerShare>) -> Outcome {
    let length = result.len();
    let (result, is_error) = match plain::decode_result(result) {
        Ok(CanonicalResult { result, is_error }) => (result, is_error),
        Err(reason) => return Outcome::lost(GatewayFault::new(reason, Executed::Yes)),
    };
    let share = share.filter(|_| (FREE_BYTES + 1..length).contains(&result.len()));
    let result = if let Some(share) = share { result.held_by(|text| share.rehold(text)) } else { result };
    Outcome::Returned { result, is_error }
}

/// A call at the upstream. [`UpstreamCall::next`] is cancel safe.
pub(super) struct UpstreamCall {
    exchanges: CallExchanges,
    state: CallState,
    /// The entry in the list of calls in progress; `None` for methods that need no permit.
    in_progress: Option<CallInProgress>,
    outlives_drain: bool,
}

enum CallExchanges {
    One(ExchangeStage),
    Split(Box<SplitExchange>),
}

enum CallState {
    /// Waits for a permit. A call that was planned as a task and can no longer become one waits until this time at most.
    Queued {
        until: Option<Instant>,
    },
    /// Has its permit, and is not sent before its row says so.
    Permitted {
        since: Instant,
    },
    InExchange(SentCall),
    /// The exchange ended, and the call is repeated once its user has finished the URL elicitation.
    AwaitingAnswers(SentCall, Box<UrlElicitation>),
    /// The exchange is over. Its last event waits until the subtasks have settled (SUB-13), or was taken.
    Settling {
        sent: Option<SentCall>,
        end: Option<Box<ExchangeEvent>>,
    },
}

#[derive(Clone, Copy)]
struct SentCall {
    since: Instant,
    deadline: Instant,
    repeats: u32,
}

struct UrlElicitation {
    error: RpcError,
    open: Vec<Payload>,
}

impl UpstreamCall {
    pub(super) const fn queued(exchange: ExchangeStage) -> Self {
        Self::new(CallExchanges::One(exchange), CallState::Queued { until: None })
    }

    pub(super) fn split(plan: SplitPlan) -> Self {
        let exchanges = CallExchanges::Split(Box::new(SplitExchange::new(plan)));
        Self::new(exchanges, CallState::Queued { until: None })
    }

    /// A call that was sent at this time and may run for `runtime`.
    pub(super) fn sent(exchange: ExchangeStage, since: Instant, runtime: Duration) -> Self {
        let sent = SentCall { since, deadline: since + runtime, repeats: 0 };
        Self::new(CallExchanges::One(exchange), CallState::InExchange(sent))
    }

    const fn new(exchanges: CallExchanges, state: CallState) -> Self {
        Self { exchanges, state, in_progress: None, outlives_drain: false }
    }

    const fn only(&self) -> Option<&ExchangeStage> {
        if let CallExchanges::One(exchange) = &self.exchanges { Some(exchange) } else { None }
    }

    const fn only_mut(&mut self) -> Option<&mut ExchangeStage> {
        if let CallExchanges::One(exchange) = &mut self.exchanges { Some(exchange) } else { None }
    }

    /// Its tasks: its own, and one for each element.
    pub(super) fn tasks(&self) -> NonZeroUsize {
        match &self.exchanges {
            CallExchanges::One(_) => NonZeroUsize::MIN,
            CallExchanges::Split(split) => NonZeroUsize::MIN.saturating_add(split.plan().total()),
        }
    }

    /// The next event; pends while none can come. `begins_elements`: whether elements have no rows, and so begin here.
    pub(super) async fn next(&mut self, begins_elements: bool) -> StageEvent {
        let event = match (&mut self.exchanges, &self.state) {
            (_, CallState::Settling { .. }) => return std::future::pending().await,
            (CallExchanges::Split(_), CallState::Queued { .. }) => StageEvent::PermitTaken,
            (CallExchanges::One(exchange), _) => exchange.next().await,
            (CallExchanges::Split(split), _) => Box::pin(split.next(begins_elements)).await,
        };
        if matches!(event, StageEvent::PermitTaken) {
            self.state = CallState::Permitted { since: Instant::now() };
        }
        event
    }

    /// Takes a free permit once, else a queue position; split calls' elements queue separately. Fails with `QueueFull`.
    pub(super) fn enter_queue(&mut self, owner: &Principal) -> Result<(), GatewayFault> {
        match &mut self.exchanges {
            CallExchanges::One(exchange) => {
                if exchange.enter_queue()? {
                    self.state = CallState::Permitted { since: Instant::now() };
                }
                Ok(())
            }
            CallExchanges::Split(split) => split.enter_queue(owner),
        }
    }

    pub(super) const fn is_queued(&self) -> bool {
        matches!(self.state, CallState::Queued { .. })
    }

    /// Whether this attempt was certainly not sent yet.
    pub(super) const fn is_unsent(&self) -> bool {
        matches!(self.state, CallState::Queued { .. } | CallState::Permitted { .. })
    }

    pub(super) const fn is_over(&self) -> bool {
        matches!(self.state, CallState::Settling { .. })
    }

    /// When a queued call ends because it lost its expected handle.
    pub(super) const fn queue_end(&self) -> Option<Instant> {
        if let CallState::Queued { until } = self.state { until } else { None }
    }

    pub(super) const fn queue_until(&mut self, end: Instant) {
        if let CallState::Queued { until } = &mut self.state {
            *until = Some(end);
        }
    }

    /// When the call was sent, or got the permit for it.
    pub(super) const fn sent_at(&self) -> Option<Instant> {
        match self.state {
            CallState::Permitted { since }
            | CallState::InExchange(SentCall { since, .. })
            | CallState::AwaitingAnswers(SentCall { since, .. }, _) => Some(since),
            CallState::Queued { .. } | CallState::Settling { .. } => None,
        }
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        match self.state {
            CallState::InExchange(SentCall { deadline, .. })
            | CallState::AwaitingAnswers(SentCall { deadline, .. }, _) => Some(deadline),
            CallState::Settling { sent: Some(SentCall { deadline, .. }), .. } => Some(deadline),
            CallState::Queued { .. } | CallState::Permitted { .. } | CallState::Settling { sent: None, .. } => None,
        }
    }

    pub(super) fn mark_sent(&mut self, runtime: Duration) {
        let since = Instant::now();
        self.state = CallState::InExchange(SentCall { since, deadline: since + runtime, repeats: 0 });
    }

    pub(super) fn requeue(&mut self, exchange: ExchangeStage) {
        self.exchanges = CallExchanges::One(exchange);
        self.state = CallState::Queued { until: None };
    }

    /// Resumes an exchange, without a permit: the upstream never stopped. Fails if the token is not valid any more.
    pub(super) async fn resume(&mut self, spec: &CallSpec, token: ResumeToken) -> Result<(), BeginError> {
        if let Some(exchange) = self.only_mut() { exchange.resume(spec, token).await } else { Ok(()) }
    }

    pub(super) fn resume_token(&self) -> Option<ResumeToken> {
        self.only()?.resume_token()
    }

    pub(super) fn subtask_token(&self, subtask: &Arc<str>) -> Option<ResumeToken> {
        self.only()?.subtask_token(subtask)
    }

    /// Delivers an answer to the exchange that asked; fails if it cannot.
    pub(super) async fn answer(&mut self, ask: &Payload, answer: Answer, by: AnsweredBy) -> Result<(), ExchangeError> {
        match &mut self.exchanges {
            CallExchanges::One(exchange) => exchange.answer(ask, answer, by).await,
            CallExchanges::Split(split) => split.answer(ask, answer, by).await,
        }
    }

    pub(super) const fn elements(&self) -> Option<&SplitExchange> {
        if let CallExchanges::Split(split) = &self.exchanges { Some(split) } else { None }
    }

    pub(super) const fn elements_mut(&mut self) -> Option<&mut SplitExchange> {
        if let CallExchanges::Split(split) = &mut self.exchanges { Some(split) } else { None }
    }

    /// The plan of a split call that has begun, by which elements with rows begin, too.
    pub(super) const fn begun_plan(&self) -> Option<&SplitPlan> {
        match (&self.exchanges, &self.state) {
            (CallExchanges::One(_), _) | (CallExchanges::Split(_), CallState::Queued { .. }) => None,
            (CallExchanges::Split(split), _) => Some(split.plan()),
        }
    }

    /// Keeps the exchange's last event until the subtasks, which may outlive it, have settled; else returns the event.
    pub(super) fn end_after_subtasks(&mut self, event: ExchangeEvent) -> Option<ExchangeEvent> {
        let is_end = matches!(event, ExchangeEvent::Returned(_) | ExchangeEvent::Faulted(_) | ExchangeEvent::Cancelled);
        if !is_end || self.elements().is_some() {
            return Some(event);
        }
        // An unsent call has no subtasks, so no settlement would take the kept event.
        let Some(sent) = self.sent_call() else { return Some(event) };
        self.state = CallState::Settling { sent: Some(sent), end: Some(Box::new(event)) };
        None
    }

    /// The last event of the exchange, once its subtasks have settled, or at the deadline.
    pub(super) fn take_end(&mut self) -> Option<ExchangeEvent> {
        let CallState::Settling { sent: Some(sent), end } = &mut self.state else { return None };
        let (sent, end) = (*sent, end.take()?);
        self.state = CallState::InExchange(sent);
        Some(*end)
    }

    const fn sent_call(&self) -> Option<SentCall> {
        match &self.state {
            CallState::InExchange(sent) | CallState::AwaitingAnswers(sent, _) => Some(*sent),
            CallState::Settling { sent, .. } => *sent,
            CallState::Queued { .. } | CallState::Permitted { .. } => None,
        }
    }

    pub(super) fn repeats(&self) -> u32 {
        self.sent_call().map_or(0, |sent| sent.repeats)
    }

    /// Keeps the permit while the user finishes a URL elicitation. `error` is the call's outcome if the user declines.
    pub(super) fn await_answers(&mut self, error: RpcError) {
        if let Some(exchange) = self.only_mut() {
            exchange.rest();
        }
        if let Some(sent) = self.sent_call() {
            self.state = CallState::AwaitingAnswers(sent, Box::new(UrlElicitation { error, open: Vec::new() }));
        }
    }

    const fn elicitation_mut(&mut self) -> Option<&mut UrlElicitation> {
        if let CallState::AwaitingAnswers(_, elicitation) = &mut self.state { Some(elicitation) } else { None }
    }

    pub(super) fn elicit(&mut self, ask: Payload) {
        if let Some(elicitation) = self.elicitation_mut() {
            elicitation.open.push(ask);
        }
    }

    pub(super) fn is_elicited(&self, ask: &Payload) -> bool {
        matches!(&self.state, CallState::AwaitingAnswers(_, elicitation) if elicitation.open.contains(ask))
    }

    /// Records that the user accepted this question; whether no other one is open.
    pub(super) fn accept(&mut self, ask: &Payload) -> bool {
        let Some(elicitation) = self.elicitation_mut() else { return false };
        elicitation.open.retain(|open| open != ask);
        elicitation.open.is_empty()
    }

    pub(super) fn take_declined(&mut self) -> Option<RpcError> {
        let sent = self.sent_call();
        let settling = CallState::Settling { sent, end: None };
        match std::mem::replace(&mut self.state, settling) {
            CallState::AwaitingAnswers(_, elicitation) => Some(elicitation.error),
            state @ (CallState::Queued { .. }
            | CallState::Permitted { .. }
            | CallState::InExchange(_)
            | CallState::Settling { .. }) => {
                self.state = state;
                None
            }
        }
    }

    pub(super) fn repeat(&mut self, spec: &CallSpec) {
        if let Some(exchange) = self.only_mut() {
            exchange.repeat(spec);
        }
        if let CallState::AwaitingAnswers(sent, _) = &self.state {
            self.state = CallState::InExchange(SentCall { repeats: sent.repeats + 1, ..*sent });
        }
    }

    pub(super) fn set_in_progress(&mut self, in_progress: Option<CallInProgress>) {
        self.in_progress = in_progress;
    }

    pub(super) fn set_prospect(&mut self, prospect: CallProspect) {
        if let Some(in_progress) = &mut self.in_progress {
            in_progress.now(prospect);
        }
    }

    pub(super) fn record_event(&mut self) {
        self.in_progress.iter_mut().for_each(|call| call.note_sign(Instant::now()));
    }

    pub(super) const fn outlives_drain(&self) -> bool {
        self.outlives_drain
    }

    pub(super) const fn outlive_drain(&mut self) {
        self.outlives_drain = true;
    }

    /// Releases the permit, and drops exchanges that have ended.
    pub(super) fn finish(&mut self) {
        self.state = CallState::Settling { sent: self.sent_call(), end: None };
        match &mut self.exchanges {
            CallExchanges::One(exchange) => exchange.finish(),
            CallExchanges::Split(split) => split.finish(),
        }
    }

    /// Cancels the call at the upstream, if it was sent, and drops its exchanges.
    pub(super) async fn cancel(&mut self, reason: &str) {
        match &mut self.exchanges {
            CallExchanges::One(exchange) => exchange.cancel(reason).await,
            CallExchanges::Split(split) => split.cancel(reason).await,
        }
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::answer_budget::AnswerBudget;
    use crate::wire::ScanLimits;

    /// B190: each result of a 2026-07-28 server is edited, since it names its type.
    #[test]
    fn b190_a_result_holds_its_bytes_whether_it_is_edited_or_not() {
        let content = "x".repeat(2 * FREE_BYTES);
        for members in ["", r#","resultType":"complete""#, r#","_meta":{"io.modelcontextprotocol/serverInfo":{}}"#] {
            let budget = AnswerBudget::default();
            let share = budget.share(&Principal::holding("ada"), usize::MAX);
            let text = share.hold(Bytes::from(format!(r#"{{"content":"{content}"{members}}}"#))).unwrap();
            let outcome = outcome_of(Payload::parse(&text, ScanLimits::UPSTREAM).unwrap(), Some(&share));
            drop(text);
            assert_eq!(budget.in_use(), outcome.bytes(), "{members}");
            drop(outcome);
            assert_eq!(budget.in_use(), 0, "{members}");
        }
    }
}
