//! Shows one request to its owner: events in order, answers to questions, cancel.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::input_requests::InputRequests;
use super::stateless_call::{RepeatableRequest, StatelessCall, UpstreamTaskCell};
use super::stateless_sender::StatelessSender;
use super::task_poller;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::latencies::ExchangeClass;
use crate::upstream::outgoing::HandedOver;
use crate::upstream::upstream_health::HealthMark;
use crate::upstream::{
    Answer, BeginError, CallContext, Exchange, ExchangeError, ExchangeEvent, ResumeToken, TaskRequestError,
    UpstreamRequest,
};
use crate::wire::{Payload, method};

/// Events that wait for whoever owns the exchange.
const EVENTS_MAX: usize = 64;
/// Answers that wait for the course to take them; more than may be asked at a time.
const ANSWERS_MAX: usize = 64;

pub(super) struct StatelessExchange {
    line: StatelessSender,
    queue: mpsc::Receiver<Box<ExchangeEvent>>,
    answers: mpsc::Sender<Box<(Payload, Answer)>>,
    task: UpstreamTaskCell,
    state: StatelessExchangeState,
    began: Instant,
    class: ExchangeClass,
    mark: HealthMark,
}

enum StatelessExchangeState {
    Running(Pin<Box<dyn Future<Output = ExchangeEvent> + Send>>),
    /// The last event is there; it comes after those in the queue.
    Ended(ExchangeEvent),
}

impl StatelessExchange {
    /// Sends a request and returns once a connection has taken it, without waiting for any answer.
    ///
    /// # Errors
    /// If there is no connection: nothing was sent.
    pub(super) async fn begin(
        line: StatelessSender,
        request: UpstreamRequest,
        context: &CallContext,
    ) -> Result<Self, BeginError> {
        let class = if *request.method == *method::TOOLS_CALL { ExchangeClass::Call } else { ExchangeClass::Other };
        let request = RepeatableRequest { method: request.method, params: request.params, progress: context.progress };
        let handed_over = HandedOver::default();
        let taken = Arc::clone(&handed_over);
        let mut exchange = Self::start(line, class, |course| Box::pin(course.run(request, taken)));
        exchange.hand_over(&handed_over).await?;
        Ok(exchange)
    }

    /// Takes up a task that another life began. Whether the upstream still has it shows in its events.
    pub(super) fn resume(line: StatelessSender, id: Arc<str>) -> Self {
        Self::start(line, ExchangeClass::Resumed, |mut course| {
            Box::pin(async move {
                match course.take_up(id).await {
                    Ok(result) => ExchangeEvent::Returned(result),
                    Err(end) => end,
                }
            })
        })
    }

    fn start(
        line: StatelessSender,
        class: ExchangeClass,
        run: impl FnOnce(StatelessCall) -> Pin<Box<dyn Future<Output = ExchangeEvent> + Send>>,
    ) -> Self {
        let (events, queue) = mpsc::channel(EVENTS_MAX);
        let (answers, answered) = mpsc::channel(ANSWERS_MAX);
        let task = UpstreamTaskCell::default();
        let questions = InputRequests::default();
        let course = StatelessCall { line: line.clone(), events, answers: answered, questions, task: task.clone() };
        let (mark, began) = (line.hop.standing.mark(), Instant::now());
        Self { line, queue, answers, task, state: StatelessExchangeState::Running(run(course)), began, class, mark }
    }

    /// Runs the request until a connection has taken it. An end before that is a beginning that failed.
    async fn hand_over(&mut self, handed_over: &HandedOver) -> Result<(), BeginError> {
        let StatelessExchangeState::Running(course) = &mut self.state else { return Ok(()) };
        let last = tokio::select! {
            biased;
            _ = handed_over.wait() => return Ok(()),
            last = course => last,
        };
        self.line.hop.ended(self.class, self.mark, &last);
        if let ExchangeEvent::Lost(ExchangeError(fault)) = last
            && !handed_over.initialized()
        {
            return Err(BeginError::Gateway(fault));
        }
        self.end(last);
        Ok(())
    }

    fn end(&mut self, last: ExchangeEvent) {
        self.line.hop.latencies.record(self.class, self.began.elapsed());
        self.state = StatelessExchangeState::Ended(last);
    }
}

#[async_trait]
impl Exchange for StatelessExchange {
    async fn next(&mut self) -> ExchangeEvent {
        loop {
            if let Ok(event) = self.queue.try_recv() {
                return *event;
            }
            let last = match &mut self.state {
                StatelessExchangeState::Ended(last) => return last.clone(),
                StatelessExchangeState::Running(course) => tokio::select! {
                    biased;
                    Some(event) = self.queue.recv() => return *event,
                    last = course => last,
                },
            };
            self.line.hop.ended(self.class, self.mark, &last);
            self.end(last);
        }
    }

    /// Hands the answer to the course, which sends it on when its time has come.
    async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        if matches!(self.state, StatelessExchangeState::Ended(_)) {
            return Ok(());
        }
        let full = |_| ExchangeError(GatewayFault::new(Reason::Internal, Executed::Unknown));
        self.answers.try_send(Box::new((ask.detached(), answer))).map_err(full)
    }

    /// Drops the request, which is how a server without sessions is told; a task is cancelled by its name.
    async fn cancel(&mut self, _: &str) {
        if matches!(self.state, StatelessExchangeState::Running(_)) {
            self.end(ExchangeEvent::Lost(ExchangeError(GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown))));
            if let Some(id) = self.task.get() {
                task_poller::cancel(&self.line, &id).await;
            }
        }
    }

    async fn cancel_task(&mut self) -> Result<(), TaskRequestError> {
        match self.task.get().filter(|_| matches!(self.state, StatelessExchangeState::Running(_))) {
            Some(id) => task_poller::ask_to_cancel(&self.line, &id).await,
            None => Ok(()),
        }
    }

    fn resume_token(&self) -> Option<ResumeToken> {
        match self.state {
            StatelessExchangeState::Running(_) => self.task.get().map(|id| task_poller::token(&id)),
            StatelessExchangeState::Ended(_) => None,
        }
    }
}
