//! Implements the exchange of a stateless request: events, answers, cancel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::input_requests::InputRequests;
use super::stateless_call::{self, GivenAnswer, RepeatableRequest, StatelessCall, UpstreamTaskCell};
use super::stateless_sender::StatelessSender;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::http::exchange::{CallFuture, DrivenCall};
use crate::upstream::latencies::ExchangeClass;
use crate::upstream::{
    Answer, AnsweredBy, BeginError, CallContext, Exchange, ExchangeError, ExchangeEvent, ResumeToken, TaskRequestError,
    UpstreamRequest,
};
use crate::wire::{Payload, method};

const EVENTS_MAX: usize = 64;
/// How long a cancel waits for a task handle: servers make tasks at once, and dropping the request does not end one.
const HANDLE_MAX: Duration = Duration::from_secs(1);
/// Queued answers; more than the open questions of a call.
const ANSWERS_MAX: usize = 64;

pub(super) struct StatelessExchange {
    line: StatelessSender,
    driven: DrivenCall,
    answers: mpsc::Sender<Box<GivenAnswer>>,
    task: UpstreamTaskCell,
    /// Questions that the owner received, neither answered nor withdrawn.
    open: Vec<Payload>,
    untaken: Arc<AtomicBool>,
}

impl StatelessExchange {
    /// Sends a request and returns once a connection has taken it. On an error nothing was sent.
    pub(super) async fn begin(
        line: StatelessSender,
        request: UpstreamRequest,
        context: &CallContext,
    ) -> Result<Self, BeginError> {
        let class = if *request.method == *method::TOOLS_CALL { ExchangeClass::Call } else { ExchangeClass::Other };
        let request = RepeatableRequest { method: request.method, params: request.params, progress: context.progress };
        let taken = Arc::clone(&context.handed_over);
        let mut exchange = Self::start(line, class, |course| Box::pin(course.run(request, taken)));
        exchange.driven.hand_over(&context.handed_over).await?;
        Ok(exchange)
    }

    /// Resumes a task of another process; its events show whether the upstream still has it.
    pub(super) fn resume(line: StatelessSender, id: Arc<str>, open: Vec<Payload>) -> Self {
        let (task, known) = (Arc::clone(&id), open.clone());
        let exchange = Self::start(line, ExchangeClass::Resumed, |mut course| {
            Box::pin(async move {
                match course.take_up(task, &known).await {
                    Ok(result) => ExchangeEvent::Returned(result),
                    Err(end) => end,
                }
            })
        });
        exchange.task.put(&id);
        Self { open, ..exchange }
    }

    fn start(line: StatelessSender, class: ExchangeClass, run: impl FnOnce(StatelessCall) -> CallFuture) -> Self {
        let (events, queue) = mpsc::channel(EVENTS_MAX);
        let (answers, answered) = mpsc::channel(ANSWERS_MAX);
        let task = UpstreamTaskCell::default();
        let untaken = Arc::<AtomicBool>::default();
        let course = StatelessCall {
            line: line.clone(),
            events,
            answers: answered,
            questions: InputRequests::default(),
            has_heard_client: false,
            task: task.clone(),
            untaken: Arc::clone(&untaken),
        };
        let driven = DrivenCall::new(&line.link, class, Instant::now(), queue, run(course));
        Self { line, driven, answers, task, open: Vec::new(), untaken }
    }
}

impl StatelessExchange {
    fn give(&mut self, ask: &Payload, answer: Answer, by: AnsweredBy) -> Result<(), ExchangeError> {
        if !self.driven.is_running() {
            return Ok(());
        }
        let full = |_| ExchangeError(GatewayFault::new(Reason::Internal, Executed::Unknown));
        let given = GivenAnswer { ask: ask.detached(), answer, by };
        self.answers.try_send(Box::new(given)).map_err(full)?;
        self.open.retain(|open| open != ask);
        Ok(())
    }
}

#[async_trait]
impl Exchange for StatelessExchange {
    async fn next(&mut self) -> ExchangeEvent {
        let event = self.driven.next().await;
        if let ExchangeEvent::Asked { ask, .. } = &event
            && !self.open.contains(ask)
        {
            self.open.push(ask.detached());
        } else if let ExchangeEvent::Withdrawn { ask } = &event {
            self.open.retain(|open| open != ask);
        }
        event
    }

    /// The call sends the queued answer at its next update.
    async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        self.give(ask, answer, AnsweredBy::Client)
    }

    async fn refuse(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        self.give(ask, answer, AnsweredBy::Gateway)
    }

    /// Dropping a request cancels it at a stateless server; a task is cancelled by its id.
    async fn cancel(&mut self, _: &str) {
        if self.line.takes_tasks {
            self.driven.run_until(tokio::time::timeout(HANDLE_MAX, self.task.wait())).await;
        }
        if self.driven.is_running() {
            self.driven.abandon();
            if let Some(id) = self.task.get() {
                stateless_call::cancel(&self.line, &id).await;
            }
        }
    }

    async fn cancel_task(&mut self) -> Result<(), TaskRequestError> {
        match self.task.get().filter(|_| self.driven.is_running()) {
            Some(id) => stateless_call::ask_to_cancel(&self.line, &id).await,
            None => Ok(()),
        }
    }

    fn resume_token(&self) -> Option<ResumeToken> {
        // A token does not hold answers that are not yet sent.
        let is_answered = self.untaken.load(Ordering::Relaxed) || self.answers.capacity() < ANSWERS_MAX;
        let task = self.task.get().filter(|_| self.driven.is_running() && !is_answered)?;
        Some(stateless_call::token(&task, &self.open))
    }
}
