//! Holds the stage of a call: waiting for a permit, beginning, or in exchange with the upstream.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::timeout;

use crate::engine::call::CallSpec;
use crate::task::{Executed, Failure, GatewayFault, Outcome, Reason};
use crate::upstream::limits::{CallPermit, PermitTurn};
use crate::upstream::{
    Answer, BeginError, CallContext, Exchange, ExchangeError, ExchangeEvent, HandedOver, ResumeToken,
};
use crate::wire::Payload;

/// How long a call that is cancelled may take from being handed over to being begun: no wait lies in between.
const BEGUN_MAX: Duration = Duration::from_secs(5);

/// What moved.
pub(super) enum StageEvent {
    /// The call has its place and is about to be sent.
    PlaceTaken,
    /// Nothing was sent, and nothing will be.
    NotBegun(Outcome),
    Exchange(ExchangeEvent),
}

/// One call's way to the upstream. [`ExchangeStage::next`] is cancel safe: each step is kept until it is done.
pub(super) struct ExchangeStage {
    step: StepFuture,
    permit: Option<CallPermit>,
    begin: Option<BeginFuture>,
    /// How long it waits for its permit; `None` waits as long as it takes.
    wait_max: Option<Duration>,
    /// Whether it has a position in the queue.
    is_queued: bool,
}

/// Sends a call, and tells when it may have been seen.
struct BeginFuture {
    sending: BoxFuture<'static, Result<Box<dyn Exchange>, BeginError>>,
    handed_over: HandedOver,
}

enum StepFuture {
    Waiting(BoxFuture<'static, Result<Option<CallPermit>, GatewayFault>>),
    Beginning(BeginFuture),
    Exchanging(Box<dyn Exchange>),
    /// Nothing is under way; what was is over, or waits to be made again.
    Over,
}

impl ExchangeStage {
    /// A stage that has done nothing yet. It waits for its place at most `wait_max`; a call that will
    /// have a handle waits as long as the task lives.
    pub(super) fn new(spec: &CallSpec, wait_max: Option<Duration>) -> Self {
        let (permits, owner) = (spec.permits.clone(), spec.owner.clone());
        let waiting = Box::pin(async move {
            match permits {
                Some(permits) => permits.acquire(&owner, wait_max).await.map(Some),
                None => Ok(None),
            }
        });
        Self { wait_max, ..Self::waiting(waiting, Some(Self::begin(spec))) }
    }

    fn waiting(
        waiting: BoxFuture<'static, Result<Option<CallPermit>, GatewayFault>>,
        begin: Option<BeginFuture>,
    ) -> Self {
        Self { step: StepFuture::Waiting(waiting), permit: None, begin, wait_max: None, is_queued: false }
    }

    /// A stage for a call of an earlier life of the process, which is never turned away from the queue.
    pub(super) fn again(spec: &CallSpec) -> Self {
        let (permits, owner) = (spec.permits.clone(), spec.owner.clone());
        let waiting = Box::pin(async move {
            match permits {
                Some(permits) => permits.acquire_again(&owner).await.map(Some),
                None => Ok(None),
            }
        });
        Self::waiting(waiting, Some(Self::begin(spec)))
    }

    /// A stage of a call that cannot be taken up; this is why.
    pub(super) fn lost(fault: GatewayFault) -> Self {
        let over = Box::pin(std::future::ready(Err(fault)));
        Self::waiting(over, None)
    }

    fn begin(spec: &CallSpec) -> BeginFuture {
        let handed_over = HandedOver::default();
        let context = CallContext { handed_over: handed_over.clone(), ..spec.context.clone() };
        let (upstream, request) = (spec.upstream.clone(), spec.request.clone());
        BeginFuture { sending: Box::pin(async move { upstream.begin(request, context).await }), handed_over }
    }

    /// Takes an exchange up. It waits for no place: the upstream has been at it all along.
    ///
    /// # Errors
    /// If the token is of no use.
    pub(super) async fn resume(&mut self, spec: &CallSpec, token: ResumeToken) -> Result<(), BeginError> {
        let exchange = spec.upstream.resume(token, spec.context.clone()).await?;
        self.permit = spec.permits.as_ref().and_then(|permits| permits.try_acquire(&spec.owner));
        self.step = StepFuture::Exchanging(exchange);
        Ok(())
    }

    /// Where the exchange can be taken up.
    pub(super) fn resume_token(&self) -> Option<ResumeToken> {
        match &self.step {
            StepFuture::Exchanging(exchange) => exchange.resume_token(),
            StepFuture::Waiting(_) | StepFuture::Beginning(_) | StepFuture::Over => None,
        }
    }

    /// Whether the call certainly was not sent yet.
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self.step, StepFuture::Waiting(_))
    }

    /// Takes the permit of a call that has asked for none yet if one is free, else a position in the queue; whether it took
    /// the permit.
    ///
    /// # Errors
    /// `QueueFull`: it has neither.
    pub(super) fn enter_queue(&mut self, spec: &CallSpec) -> Result<bool, GatewayFault> {
        if !self.is_waiting() || self.is_queued {
            return Ok(false);
        }
        let turn = match &spec.permits {
            Some(permits) => permits.enter(&spec.owner)?,
            None => {
                self.placed(None);
                return Ok(true);
            }
        };
        if let PermitTurn::Called(permit) = turn {
            self.placed(Some(permit));
            return Ok(true);
        }
        let wait_max = self.wait_max;
        self.step = StepFuture::Waiting(Box::pin(async move { turn.permit(wait_max).await.map(Some) }));
        self.is_queued = true;
        Ok(false)
    }

    fn placed(&mut self, permit: Option<CallPermit>) {
        self.permit = permit;
        self.step = self.begin.take().map_or(StepFuture::Over, StepFuture::Beginning);
    }

    pub(super) async fn next(&mut self) -> StageEvent {
        loop {
            match &mut self.step {
                StepFuture::Waiting(waiting) => match waiting.await {
                    Ok(permit) => {
                        self.placed(permit);
                        return StageEvent::PlaceTaken;
                    }
                    Err(fault) => return self.not_begun(fault),
                },
                StepFuture::Beginning(begin) => match begin.sending.as_mut().await {
                    Ok(exchange) => self.step = StepFuture::Exchanging(exchange),
                    Err(BeginError::Gateway(fault)) => return self.not_begun(fault),
                    Err(BeginError::Refused(error)) => {
                        tracing::warn!(code = error.code, "the upstream refused the handshake");
                        return self.not_begun(GatewayFault::new(Reason::UpstreamRefused, Executed::No));
                    }
                },
                StepFuture::Exchanging(exchange) => return StageEvent::Exchange(exchange.next().await),
                StepFuture::Over => return std::future::pending().await,
            }
        }
    }

    /// Lets go of an exchange that has ended, and keeps the place.
    pub(super) fn rest(&mut self) {
        self.step = StepFuture::Over;
    }

    /// Gives the place back, and lets go of an exchange that has ended.
    pub(super) fn finish(&mut self) {
        self.step = StepFuture::Over;
        self.permit = None;
    }

    /// Makes the call again in its place.
    pub(super) fn repeat(&mut self, spec: &CallSpec) {
        self.step = StepFuture::Beginning(Self::begin(spec));
    }

    fn not_begun(&mut self, fault: GatewayFault) -> StageEvent {
        self.step = StepFuture::Over;
        StageEvent::NotBegun(Outcome::Faulted(Failure::Gateway(fault)))
    }

    pub(super) async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        match &mut self.step {
            StepFuture::Exchanging(exchange) => exchange.answer(ask, answer).await,
            StepFuture::Waiting(_) | StepFuture::Beginning(_) | StepFuture::Over => {
                Err(ExchangeError(GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown)))
            }
        }
    }

    /// Tells the upstream that nobody wants the answer, if it was asked at all, and lets go.
    pub(super) async fn cancel(&mut self, reason: &str) {
        match &mut self.step {
            StepFuture::Exchanging(exchange) => exchange.cancel(reason).await,
            // The upstream may have seen it, and nobody has come to hear that.
            StepFuture::Beginning(BeginFuture { sending, handed_over }) if handed_over.initialized() => {
                if let Ok(Ok(mut exchange)) = timeout(BEGUN_MAX, sending.as_mut()).await {
                    exchange.cancel(reason).await;
                }
            }
            StepFuture::Waiting(_) | StepFuture::Beginning(_) | StepFuture::Over => (),
        }
        self.finish();
    }
}
