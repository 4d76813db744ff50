//! Runs one call with a list in it as many: an upstream whose exchange is those of all elements.
//!
//! Above it a split call is one call like any other: one row, one deadline, one place where it is asked and cancelled. The
//! calls that it is made of wait for permits as all calls do, so many at a time as the rule says, in the order of the
//! list. No call is made again: what a life of the process left behind is judged as a whole.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::{join_all, select_all};
use tokio::sync::broadcast;

use super::client::progress_text;
use super::exchange_stage::{ExchangeStage, StageEvent};
use crate::dialect::faults::failure_error;
use crate::dialect::plain::PlainUpstream;
use crate::dialect::split_call::{SplitCall, SplitResult, question_named, question_of};
use crate::dialect::subscriptions::SubscriptionFilter;
use crate::engine::call::CallSpec;
use crate::task::{Answer, Executed, Failure, GatewayFault, Outcome, Reason};
use crate::upstream::{
    BeginError, CallContext, Era, Exchange, ExchangeError, ExchangeEvent, NotificationSubscription, Progress,
    ResumeToken, ServerFacts, ServerNotification, Upstream, UpstreamRequest,
};
use crate::wire::{Object, Payload, method};

/// Has a call split where its tool's rules say so and it has a list to split.
pub(super) fn split(mut spec: CallSpec) -> CallSpec {
    let Some(call) = call_of(&spec) else { return spec };
    let part = spec.clone();
    spec.upstream = Arc::new(SplitUpstream { part, call: Arc::new(call) });
    spec.permits = None;
    spec.peer = Arc::new(PlainUpstream);
    spec
}

fn call_of(spec: &CallSpec) -> Option<SplitCall> {
    let rule = spec.policy.split.as_ref().filter(|_| &*spec.request.method == method::TOOLS_CALL)?;
    SplitCall::read(rule, &Object::of(spec.request.params.as_ref()?)?)
}

/// The upstream of a split call, for that call alone.
#[derive(Debug)]
struct SplitUpstream {
    /// What each call is made with, but for its params.
    part: CallSpec,
    call: Arc<SplitCall>,
}

#[async_trait]
impl Upstream for SplitUpstream {
    fn name(&self) -> &Arc<str> {
        self.part.upstream.name()
    }

    async fn facts(&self, context: &CallContext) -> Result<Arc<ServerFacts>, BeginError> {
        self.part.upstream.facts(context).await
    }

    async fn begin(&self, _request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        Ok(Box::new(SplitExchange::new(CallSpec { context, ..self.part.clone() }, Arc::clone(&self.call))))
    }

    /// There is nothing to take up: no token is given.
    async fn resume(&self, _token: ResumeToken, _context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        Err(BeginError::Gateway(GatewayFault::new(Reason::GatewayRestart, Executed::No)))
    }

    fn stored(&self, params: &Payload) -> Payload {
        self.part.upstream.stored(params)
    }

    fn restored(&self, tool: &str, params: &Payload) -> Option<Payload> {
        self.part.upstream.restored(tool, params)
    }

    async fn notifications(
        &self,
        context: &CallContext,
    ) -> Result<broadcast::Receiver<ServerNotification>, BeginError> {
        self.part.upstream.notifications(context).await
    }

    async fn listen(
        &self,
        context: &CallContext,
        wishes: &SubscriptionFilter,
    ) -> Result<NotificationSubscription, BeginError> {
        self.part.upstream.listen(context, wishes).await
    }

    async fn era(&self) -> Era {
        self.part.upstream.era().await
    }

    fn doubt_era(&self) {
        self.part.upstream.doubt_era();
    }

    /// The upstream itself is others', too.
    async fn close(&self) {}
}

/// The exchanges of all elements.
struct SplitExchange {
    part: CallSpec,
    call: Arc<SplitCall>,
    parallel: usize,
    /// The element whose call begins next.
    next: usize,
    running: Vec<SplitPart>,
    /// By element; `None` for those that have not ended.
    results: Vec<Option<SplitResult>>,
    ended: usize,
    /// What all results take until now, in bytes.
    bytes: usize,
    /// What happened and was not told yet.
    events: VecDeque<ExchangeEvent>,
}

/// The call of one element.
struct SplitPart {
    index: usize,
    stage: ExchangeStage,
}

impl SplitExchange {
    fn new(part: CallSpec, call: Arc<SplitCall>) -> Self {
        let parallel = part.policy.split.as_ref().map_or(1, |rule| rule.parallel.get());
        let results = (0..call.len()).map(|_| None).collect();
        let (running, events) = (Vec::new(), VecDeque::new());
        Self { part, call, parallel, next: 0, running, results, ended: 0, bytes: 0, events }
    }

    /// Begins calls as long as there is room for one beside the others.
    fn begin_more(&mut self) {
        while self.running.len() < self.parallel
            && let Some(params) = self.call.part(self.next)
        {
            let request = UpstreamRequest { params: Some(params), ..self.part.request.clone() };
            // It waits for its permit as long as the whole may run.
            let stage = ExchangeStage::new(&CallSpec { request, ..self.part.clone() }, None);
            self.running.push(SplitPart { index: self.next, stage });
            self.next += 1;
        }
    }

    fn heard(&mut self, at: usize, event: StageEvent) {
        let Some(index) = self.running.get(at).map(|part| part.index) else { return };
        let event = match event {
            StageEvent::PlaceTaken | StageEvent::Begun => return,
            StageEvent::NotBegun(Outcome::Faulted(failure)) => return self.ended(at, failed(&failure)),
            StageEvent::NotBegun(Outcome::Returned { .. } | Outcome::Cancelled) => return self.ended(at, cancelled()),
            StageEvent::Exchange(event) => event,
        };
        match event {
            ExchangeEvent::Progress(progress) => {
                self.events.extend(progress_text(&progress).map(ExchangeEvent::Status))
            }
            ExchangeEvent::Status(text) => self.events.push_back(ExchangeEvent::Status(text)),
            ExchangeEvent::Task(_) => (),
            ExchangeEvent::Log(log) => self.events.push_back(ExchangeEvent::Log(log)),
            ExchangeEvent::Asked { ask, method, params } => {
                self.events.push_back(ExchangeEvent::Asked { ask: question_of(index, &ask), method, params });
            }
            ExchangeEvent::Withdrawn { ask } => {
                self.events.push_back(ExchangeEvent::Withdrawn { ask: question_of(index, &ask) });
            }
            ExchangeEvent::Returned(result) => match self.part.peer.decode_result(result) {
                Ok(returned) => self.ended(at, SplitResult::Returned(returned)),
                Err(reason) => self.ended(at, failed(&Failure::Gateway(GatewayFault::new(reason, Executed::Yes)))),
            },
            ExchangeEvent::Faulted(error) => self.ended(at, failed(&Failure::Upstream(error))),
            ExchangeEvent::Cancelled => self.ended(at, cancelled()),
            ExchangeEvent::Lost(ExchangeError(fault)) => self.ended(at, failed(&Failure::Gateway(fault))),
        }
    }

    /// Takes what came of a call, and gives its permit back.
    fn ended(&mut self, at: usize, result: SplitResult) {
        let part = self.running.remove(at);
        self.bytes += match &result {
            SplitResult::Returned(returned) => returned.result.len(),
            SplitResult::Failed(why) => why.len(),
        };
        self.results[part.index] = Some(result);
        self.ended += 1;
        if self.part.context.progress && self.ended < self.call.len() {
            let (progress, total) = (Payload::of(&self.ended), Some(Payload::of(&self.call.len())));
            self.events.push_back(ExchangeEvent::Progress(Progress { progress, total, message: None }));
        }
    }

    fn combined(&mut self) -> ExchangeEvent {
        let missing = || SplitResult::Failed("its call has no result".to_owned());
        let results: Vec<SplitResult> = self.results.drain(..).map(|result| result.unwrap_or_else(missing)).collect();
        ExchangeEvent::Returned(self.call.combined(&results))
    }
}

#[async_trait]
impl Exchange for SplitExchange {
    async fn next(&mut self) -> ExchangeEvent {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            if self.bytes > self.part.context.result_bytes_max {
                self.cancel("the results of the call are too large together").await;
                let fault = GatewayFault::new(Reason::ResultTooLarge, Executed::Yes);
                return ExchangeEvent::Lost(ExchangeError(fault));
            }
            self.begin_more();
            if self.running.is_empty() {
                return self.combined();
            }
            // Cancel safe, as each of them is.
            let (event, at, _) = select_all(self.running.iter_mut().map(|part| Box::pin(part.stage.next()))).await;
            // Who was heard last is heard first no more: one that never pauses holds back no other.
            self.running.rotate_left(at + 1);
            self.heard(self.running.len() - 1, event);
        }
    }

    async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        let named = question_named(ask);
        let found =
            named.and_then(|(index, ask)| Some((self.running.iter_mut().find(|part| part.index == index)?, ask)));
        match found {
            Some((part, ask)) => part.stage.answer(&ask, answer).await,
            // Its call ended meanwhile: nobody waits for the answer, and the others go on.
            None => Ok(()),
        }
    }

    async fn cancel(&mut self, reason: &str) {
        join_all(self.running.iter_mut().map(|part| part.stage.cancel(reason))).await;
        self.running.clear();
    }

    fn resume_token(&self) -> Option<ResumeToken> {
        None
    }
}

fn failed(failure: &Failure) -> SplitResult {
    SplitResult::Failed(failure_error(failure).message)
}

fn cancelled() -> SplitResult {
    SplitResult::Failed("the server cancelled it".to_owned())
}
