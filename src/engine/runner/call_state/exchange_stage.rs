//! Holds the stage of a call: waiting for a permit, beginning, or in exchange.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::timeout;

use crate::engine::call::CallSpec;
use crate::task::{Executed, Failure, GatewayFault, Outcome, Principal, Reason};
use crate::upstream::limits::{CallPermit, CallPermits, PermitTurn};
use crate::upstream::{
    Answer, AnsweredBy, BeginError, CallContext, Exchange, ExchangeError, ExchangeEvent, HandedOver, ResumeToken,
};
use crate::wire::Payload;

/// How long a cancelled call may take from its hand-over to its beginning, which involves no wait.
const BEGUN_MAX: Duration = Duration::from_secs(5);

pub(in crate::engine::runner) enum StageEvent {
    PermitTaken,
    /// The call was not sent, and will not be.
    NotBegun(Outcome),
    Exchange(ExchangeEvent),
}

/// One call's exchange with the upstream. [`ExchangeStage::next`] is cancel safe: a step's future is kept to its end.
pub(in crate::engine::runner) struct ExchangeStage {
    step: StepFuture,
    permit: Option<CallPermit>,
    begin: Option<BeginFuture>,
    /// How long it waits for its permit; `None` is without limit.
    wait_max: Option<Duration>,
}

/// Sends a call, and reports when the upstream may have seen it.
struct BeginFuture {
    sending: BoxFuture<'static, Result<Box<dyn Exchange>, BeginError>>,
    handed_over: HandedOver,
}

enum StepFuture {
    /// Has requested no permit yet; one that is free needs no future.
    Unqueued {
        permits: Option<Arc<CallPermits>>,
        owner: Principal,
    },
    Waiting(BoxFuture<'static, Result<Option<CallPermit>, GatewayFault>>),
    Beginning(BeginFuture),
    Exchanging(Box<dyn Exchange>),
    /// Idle: the exchange ended, or the call waits to be repeated.
    Over,
}

impl ExchangeStage {
    /// Waits for its permit at most `wait_max`; a call that will have a handle waits as long as its task exists.
    pub(in crate::engine::runner) fn new(spec: &CallSpec, wait_max: Option<Duration>) -> Self {
        let step = StepFuture::Unqueued { permits: spec.permits.clone(), owner: spec.owner.clone() };
        Self { step, permit: None, begin: Some(Self::begin(spec)), wait_max }
    }

    /// A stage for a call of an earlier process, which a full queue never refuses.
    pub(in crate::engine::runner) fn again(spec: &CallSpec) -> Self {
        let (permits, owner) = (spec.permits.clone(), spec.owner.clone());
        let waiting = Box::pin(async move {
            match permits {
                Some(permits) => permits.acquire_again(&owner).await.map(Some),
                None => Ok(None),
            }
        });
        let begin = Some(Self::begin(spec));
        Self { step: StepFuture::Waiting(waiting), permit: None, begin, wait_max: None }
    }

    /// A stage of a call that cannot be resumed, with the reason.
    pub(in crate::engine::runner) fn lost(fault: GatewayFault) -> Self {
        let over = Box::pin(std::future::ready(Err(fault)));
        Self { step: StepFuture::Waiting(over), permit: None, begin: None, wait_max: None }
    }

    fn begin(spec: &CallSpec) -> BeginFuture {
        let handed_over = HandedOver::default();
        let context = CallContext { handed_over: Some(handed_over.clone()), ..spec.context.clone() };
        let (upstream, request) = (spec.upstream.clone(), spec.request.clone());
        let sending = async move {
            let begun = upstream.begin(request, context).await;
            if let Err(BeginError::Refused(error)) = &begun {
                tracing::warn!(upstream = %upstream.name(), code = error.code, "the upstream refused the handshake");
            }
            begun
        };
        BeginFuture { sending: Box::pin(sending), handed_over }
    }

    /// Resumes an exchange, without a permit. Fails if the token is not valid any more.
    pub(in crate::engine::runner) async fn resume(
        &mut self,
        spec: &CallSpec,
        token: ResumeToken,
    ) -> Result<(), BeginError> {
        let exchange = spec.upstream.resume(token, spec.context.clone()).await?;
        self.permit = spec.permits.as_ref().and_then(|permits| permits.try_acquire(&spec.owner));
        self.step = StepFuture::Exchanging(exchange);
        Ok(())
    }

    pub(in crate::engine::runner) fn resume_token(&self) -> Option<ResumeToken> {
        if let StepFuture::Exchanging(exchange) = &self.step { exchange.resume_token() } else { None }
    }

    pub(in crate::engine::runner) fn subtask_token(&self, subtask: &Arc<str>) -> Option<ResumeToken> {
        if let StepFuture::Exchanging(exchange) = &self.step { exchange.subtask_token(subtask) } else { None }
    }

    pub(in crate::engine::runner) const fn is_waiting(&self) -> bool {
        matches!(self.step, StepFuture::Unqueued { .. } | StepFuture::Waiting(_))
    }

    /// Takes a free permit once, else a queue position; whether it took the permit. Fails with `QueueFull`.
    pub(in crate::engine::runner) fn enter_queue(&mut self) -> Result<bool, GatewayFault> {
        let StepFuture::Unqueued { permits, owner } = &self.step else { return Ok(false) };
        match permits.as_ref().map(|permits| permits.enter(owner)).transpose()? {
            Some(turn @ PermitTurn::Waits(..)) => {
                let wait_max = self.wait_max;
                self.step = StepFuture::Waiting(Box::pin(async move { turn.permit(wait_max).await.map(Some) }));
                return Ok(false);
            }
            Some(PermitTurn::Called(permit)) => self.placed(Some(permit)),
            None => self.placed(None),
        }
        Ok(true)
    }

    fn placed(&mut self, permit: Option<CallPermit>) {
        self.permit = permit;
        self.step = self.begin.take().map_or(StepFuture::Over, StepFuture::Beginning);
    }

    pub(in crate::engine::runner) async fn next(&mut self) -> StageEvent {
        loop {
            match &mut self.step {
                StepFuture::Unqueued { .. } => match self.enter_queue() {
                    Ok(true) => return StageEvent::PermitTaken,
                    Ok(false) => (),
                    Err(fault) => return self.not_begun(fault),
                },
                StepFuture::Waiting(waiting) => match waiting.await {
                    Ok(permit) => {
                        self.placed(permit);
                        return StageEvent::PermitTaken;
                    }
                    Err(fault) => return self.not_begun(fault),
                },
                StepFuture::Beginning(begin) => match begin.sending.as_mut().await {
                    Ok(exchange) => self.step = StepFuture::Exchanging(exchange),
                    Err(error) => return self.not_begun(error.into_fault()),
                },
                StepFuture::Exchanging(exchange) => return StageEvent::Exchange(exchange.next().await),
                StepFuture::Over => return std::future::pending().await,
            }
        }
    }

    /// Drops an exchange that has ended, and keeps the permit.
    pub(in crate::engine::runner) fn rest(&mut self) {
        self.step = StepFuture::Over;
    }

    /// Releases the permit, and drops an exchange that has ended.
    pub(in crate::engine::runner) fn finish(&mut self) {
        self.step = StepFuture::Over;
        self.permit = None;
    }

    pub(in crate::engine::runner) fn repeat(&mut self, spec: &CallSpec) {
        self.step = StepFuture::Beginning(Self::begin(spec));
    }

    fn not_begun(&mut self, fault: GatewayFault) -> StageEvent {
        self.step = StepFuture::Over;
        StageEvent::NotBegun(Outcome::Faulted(Failure::Gateway(fault)))
    }

    pub(in crate::engine::runner) async fn answer(
        &mut self,
        ask: &Payload,
        answer: Answer,
        by: AnsweredBy,
    ) -> Result<(), ExchangeError> {
        match &mut self.step {
            StepFuture::Exchanging(exchange) => match by {
                AnsweredBy::Client => exchange.answer(ask, answer).await,
                AnsweredBy::Gateway => exchange.refuse(ask, answer).await,
            },
            StepFuture::Unqueued { .. } | StepFuture::Waiting(_) | StepFuture::Beginning(_) | StepFuture::Over => {
                Err(ExchangeError(GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown)))
            }
        }
    }

    pub(in crate::engine::runner) async fn cancel(&mut self, reason: &str) {
        match &mut self.step {
            StepFuture::Exchanging(exchange) => exchange.cancel(reason).await,
            // The upstream may have seen the call, although it has no exchange yet.
            StepFuture::Beginning(BeginFuture { sending, handed_over }) if handed_over.initialized() => {
                if let Ok(Ok(mut exchange)) = timeout(BEGUN_MAX, sending.as_mut()).await {
                    exchange.cancel(reason).await;
                }
            }
            StepFuture::Unqueued { .. } | StepFuture::Waiting(_) | StepFuture::Beginning(_) | StepFuture::Over => (),
        }
        self.finish();
    }
}
