//! Implements the exchange of a call over HTTP; polls the calls of both eras.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use memchr::memmem::Finder;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::drive::{AnswerWait, CallStart, HttpCall, SessionSource};
use super::resume_token::{self, CallPosition, StreamPositions};
use crate::dialect::plain;
use crate::dialect::relay_core_2025_11_25::{self as peer, UpstreamTaskStatus, UpstreamTaskSupport};
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::exchange::ExchangeClass;
use crate::upstream::outgoing::{HandedOver, SessionHeaders};
use crate::upstream::own_ids;
use crate::upstream::reply::ReadLimits;
use crate::upstream::session::calls::{SessionCall, UpstreamTaskState};
use crate::upstream::session::{UpstreamLink, UpstreamSession};
use crate::upstream::upstream_health::HealthMark;
use crate::upstream::{
    Answer, BeginError, CallContext, Exchange, ExchangeError, ExchangeEvent, ResumeToken, TaskRequestError,
    UpstreamRequest,
};
use crate::wire::envelope::Params;
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, RequestId, envelope, meta, method};

/// How long a cancel is held back until the upstream has shown that it knows the call, which the cancel could overtake.
/// A server that answers in JSON shows nothing before its answer.
const CANCEL_AFTER: Duration = Duration::from_secs(1);
/// How long a cancel waits for a task handle; servers send handles at once.
const CANCEL_TASK_AFTER: Duration = Duration::from_secs(3);
const CANCEL_MAX: Duration = Duration::from_secs(5);

pub(super) struct HttpExchange {
    http_call: Arc<HttpCall>,
    driven: DrivenCall,
    /// Events that the owner received. The stream is read ahead: a later process resumes before queued events.
    received: u64,
    sent: Instant,
}

impl Drop for HttpExchange {
    fn drop(&mut self) {
        let can_go_on =
            self.http_call.call.task.initialized() || self.http_call.positions.lock().read.last_event.is_some();
        if self.driven.is_running() && can_go_on {
            self.http_call.keep_for_later();
        }
    }
}

impl HttpExchange {
    /// Sends a call and returns once a connection has taken it. On an error nothing was sent.
    pub(super) async fn begin(
        link: &Arc<UpstreamLink>,
        source: SessionSource,
        request: UpstreamRequest,
        context: &CallContext,
    ) -> Result<Self, BeginError> {
        let began = Instant::now();
        let session = source.session(link, &context.forwarded).await?;
        if let Some(level) = &context.log_level {
            session.lower_log_level(level).await;
        }
        let id = own_ids::mint();
        let is_call = *request.method == *method::TOOLS_CALL;
        // Asks for a task only if the upstream declared support (UPC-05).
        let is_native = context.native_task.is_wanted() && is_call && session.tasks.calls;
        let asked = if is_native { UpstreamTaskState::Asked } else { UpstreamTaskState::Never };
        let params = with_token(request.params, context.progress.then_some(&id));
        let params = if is_native { with_task(params, context.native_task.deadline()) } else { params };
        let message = envelope::request(&id, &request.method, params.as_ref());
        let (call, queue) = SessionCall::new(id, asked, ReadLimits::of_call(context));
        let http_call = HttpCall::new(call, session, source, context, Arc::default());
        let handed_over = context.handed_over.clone().unwrap_or_default();
        let start = CallStart::Post { message, handed_over: Arc::clone(&handed_over) };
        let class = if is_call { ExchangeClass::Call } else { ExchangeClass::Other };
        let driven = DrivenCall::new(link, class, began, queue, Box::pin(Arc::clone(&http_call).run(start)));
        let mut exchange = Self { http_call, driven, received: 0, sent: began };
        exchange.driven.hand_over(&handed_over).await?;
        exchange.sent = Instant::now();
        Ok(exchange)
    }

    /// Resumes another process's call; its events show whether the upstream knows it. Fails for a foreign token.
    pub(super) fn resume(
        link: &Arc<UpstreamLink>,
        source: SessionSource,
        token: &ResumeToken,
        context: &CallContext,
    ) -> Result<Self, BeginError> {
        let broken = GatewayFault::new(Reason::UpstreamSessionLost, Executed::Unknown);
        let resumed = resume_token::read(token).ok_or(BeginError::Gateway(broken))?;
        let (session, native, start, above) = match resumed.at {
            CallPosition::Stream(_) => (
                UpstreamSession::adopted(
                    link,
                    SessionHeaders { client: context.forwarded.credential(), ..resumed.credentials },
                    UpstreamTaskSupport::default(),
                ),
                UpstreamTaskState::Never,
                CallStart::Resume,
                Arc::default(),
            ),
            CallPosition::Task { ref id, tasks, ref above } => {
                let made = UpstreamTaskState::Made(Arc::clone(id));
                (source.adopt(link, resumed.credentials, tasks), made, CallStart::Task, Arc::clone(above))
            }
        };
        let (call, queue) = SessionCall::new(resumed.request, native, ReadLimits::of_call(context));
        for ask in resumed.open.iter().filter_map(RequestId::from_payload) {
            call.adopt_question(&ask);
        }
        let http_call = HttpCall::new(call, session, source, context, above);
        if let CallPosition::Stream(position) = resumed.at {
            *http_call.positions.lock() = StreamPositions::resumed(position);
        }
        let (now, run) = (Instant::now(), Box::pin(Arc::clone(&http_call).run(start)));
        let driven = DrivenCall::new(link, ExchangeClass::Resumed, now, queue, run);
        Ok(Self { http_call, driven, received: 0, sent: now })
    }

    /// Runs the call until the upstream knows it (and its task, if asked for), or should. Events stay in the queue.
    async fn known_upstream(&mut self) {
        let call = &self.http_call.call;
        let known = async {
            if call.may_be_task {
                call.task.wait().await;
            } else if !call.task.initialized() {
                self.http_call.head.wait().await;
            }
        };
        let patience = if call.may_be_task { CANCEL_TASK_AFTER } else { CANCEL_AFTER };
        self.driven.run_until(tokio::time::timeout_at(self.sent + patience, known)).await;
    }

    async fn send_cancel(&mut self, reason: &str) {
        self.known_upstream().await;
        if !self.driven.is_running() {
            return;
        }
        if let Some(task) = self.http_call.call.task.get() {
            self.http_call.cancel_task(task).await;
        } else {
            // Still no handle: the call counts as a plain one.
            let params = json!({ "requestId": self.http_call.call.id, "reason": reason });
            let message = envelope::notification(method::CANCELLED, Some(&Payload::of(&params)));
            if self.http_call.session().send_one_way(message).await.is_err() {
                self.http_call.session().link.dropped("cancel_failed");
            }
        }
    }
}

fn located(params: Option<Payload>) -> Params {
    match params {
        None => Params::Absent,
        Some(params) => Object::of(&params).map_or(Params::Other(params), Params::Object),
    }
}

/// The requested time to live is the call's run time, if known.
fn with_task(params: Option<Payload>, deadline: Option<Duration>) -> Option<Payload> {
    let params = params.unwrap_or_else(Payload::empty_object);
    Some(Object::of(&params).map_or_else(|| params.clone(), |params| peer::augmented(&params, deadline)))
}

/// Whether params may have `_meta`, by their text: any letter of the name may be escaped.
fn may_have_meta(params: &Payload) -> bool {
    static META: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(meta::META));
    META.find(params.bytes()).is_some() || memchr::memchr(b'\\', params.bytes()).is_some()
}

/// Replaces the progress token by the gateway's own (UPC-20).
fn with_token(params: Option<Payload>, token: Option<&RequestId>) -> Option<Payload> {
    if token.is_none() && !params.as_ref().is_some_and(may_have_meta) {
        return params;
    }
    let only = |token: &RequestId| ObjectWriter::single(meta::PROGRESS_TOKEN, &token.payload());
    let object = match located(params) {
        Params::Object(object) => object,
        Params::Absent => {
            return token.map(|token| ObjectWriter::single(meta::META, &only(token)));
        }
        Params::Other(params) => return Some(params),
    };
    let meta = match (object.get_object(meta::META), token) {
        (Some(meta), Some(token)) => meta.edit().set(meta::PROGRESS_TOKEN, token.payload().clone()).finish(),
        (Some(meta), None) => meta.edit().remove(meta::PROGRESS_TOKEN).finish(),
        (None, Some(token)) => only(token),
        (None, None) => return Some(object.payload().clone()),
    };
    Some(object.edit().set(meta::META, meta).finish())
}

#[async_trait]
impl Exchange for HttpExchange {
    async fn next(&mut self) -> ExchangeEvent {
        let event = self.driven.next().await;
        // The last event is in no queue; no event follows it.
        self.received += 1;
        self.http_call.positions.lock().received(self.received);
        self.http_call.call.received(&event);
        event
    }

    async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        // The question was withdrawn or answered.
        let Some(id) = RequestId::from_payload(ask).filter(|_| self.http_call.call.is_open(ask)) else { return Ok(()) };
        let named = self.http_call.call.related(ask);
        let answer = match named.as_ref().or_else(|| self.http_call.call.task.get()) {
            Some(task) => peer::related(answer, task),
            None => answer,
        };
        let message = match plain::answer_in(self.http_call.session().credentials.version, answer) {
            Answer::Result(result) => envelope::result(&id, &result),
            Answer::Error(error) => envelope::error(Some(&id), &error),
        };
        self.http_call.session().send_one_way(message).await.map_err(ExchangeError)?;
        self.http_call.call.close(ask);
        Ok(())
    }

    async fn cancel(&mut self, reason: &str) {
        let sent = tokio::time::timeout(CANCEL_MAX, self.send_cancel(reason)).await;
        if sent.is_err() {
            self.http_call.session().link.dropped("cancel_failed");
        }
        if self.driven.is_running() {
            self.http_call.leave();
            self.driven.abandon();
        }
    }

    async fn cancel_task(&mut self) -> Result<(), TaskRequestError> {
        let Some(task) = self.http_call.call.task.get().filter(|_| self.driven.is_running()) else { return Ok(()) };
        let answer = self
            .http_call
            .request_beside_call(method::TASKS_CANCEL, &peer::params_of(task), AnswerWait::Short)
            .await
            .map_err(ExchangeError)?;
        // Any other outcome is polled, soon.
        self.http_call.call.hint.notify_one();
        let stands = peer::polled(&answer.map_err(TaskRequestError::Refused)?);
        if stands.is_some_and(|task| task.status == UpstreamTaskStatus::Cancelled) {
            self.http_call.leave();
            self.driven.end(ExchangeEvent::Cancelled);
        }
        Ok(())
    }

    fn resume_token(&self) -> Option<ResumeToken> {
        if !self.driven.is_running() {
            return None;
        }
        let session = self.http_call.session();
        let at = match self.http_call.call.task.get() {
            Some(id) => CallPosition::Task {
                id: Arc::clone(id),
                tasks: session.tasks,
                above: Arc::clone(&self.http_call.above),
            },
            None => CallPosition::Stream(self.http_call.positions.lock().received(self.received).clone()),
        };
        resume_token::token(&self.http_call.call.id, &session.credentials, &at, &self.http_call.call.shown())
    }

    fn subtask_token(&self, subtask: &Arc<str>) -> Option<ResumeToken> {
        let (session, parent) = (self.http_call.session(), self.http_call.call.task.get()?);
        let above = std::iter::once(parent).chain(&*self.http_call.above).cloned().collect();
        let at = CallPosition::Task { id: Arc::clone(subtask), tasks: session.tasks, above };
        resume_token::token(&own_ids::mint(), &session.credentials, &at, &[])
    }
}

/// Returns the last event.
pub(super) type CallFuture = Pin<Box<dyn Future<Output = ExchangeEvent> + Send>>;

/// Polls one call's future for its owner, and yields its events in order.
pub(super) struct DrivenCall {
    link: Arc<UpstreamLink>,
    queue: mpsc::Receiver<Box<ExchangeEvent>>,
    state: DrivenCallState,
    began: Instant,
    class: ExchangeClass,
    mark: HealthMark,
    has_events: bool,
}

enum DrivenCallState {
    Running(CallFuture),
    Ended(ExchangeEvent),
}

impl DrivenCall {
    pub(super) fn new(
        link: &Arc<UpstreamLink>,
        class: ExchangeClass,
        began: Instant,
        queue: mpsc::Receiver<Box<ExchangeEvent>>,
        call: CallFuture,
    ) -> Self {
        let (link, mark) = (Arc::clone(link), link.health.mark());
        Self { link, queue, state: DrivenCallState::Running(call), began, class, mark, has_events: false }
    }

    pub(super) const fn is_running(&self) -> bool {
        matches!(self.state, DrivenCallState::Running(_))
    }

    /// Runs the call until a connection has taken it. On an error the call ended and nothing was sent.
    pub(super) async fn hand_over(&mut self, handed_over: &HandedOver) -> Result<(), BeginError> {
        let DrivenCallState::Running(call) = &mut self.state else { return Ok(()) };
        let last = tokio::select! {
            biased;
            _ = handed_over.wait() => return Ok(()),
            last = call => last,
        };
        self.link.ended(self.class, self.mark, &last);
        if let ExchangeEvent::Lost(ExchangeError(fault)) = last
            && !handed_over.initialized()
        {
            self.state = DrivenCallState::Ended(last);
            return Err(BeginError::Gateway(fault));
        }
        self.end(last);
        Ok(())
    }

    /// Runs a call that is to be cancelled, until `then` or its end. Events stay in the queue.
    pub(super) async fn run_until<T>(&mut self, then: impl Future<Output = T>) {
        let DrivenCallState::Running(call) = &mut self.state else { return };
        let last = tokio::select! {
            biased;
            last = call => last,
            _ = then => return,
        };
        self.end(last);
    }

    /// The next event; after the end, the last one repeatedly. Cancel safe.
    pub(super) async fn next(&mut self) -> ExchangeEvent {
        loop {
            if let Ok(event) = self.queue.try_recv() {
                self.has_events = true;
                return *event;
            }
            let last = match &mut self.state {
                DrivenCallState::Ended(last) => return last.clone(),
                DrivenCallState::Running(call) => tokio::select! {
                    biased;
                    Some(event) = self.queue.recv() => {
                        self.has_events = true;
                        return *event;
                    }
                    last = call => last,
                },
            };
            self.link.ended(self.class, self.mark, &last);
            self.end(last);
        }
    }

    pub(super) fn abandon(&mut self) {
        self.end(ExchangeEvent::Lost(ExchangeError(GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown))));
    }

    pub(super) fn end(&mut self, last: ExchangeEvent) {
        self.link.latencies.record(self.class, self.began.elapsed());
        self.state = DrivenCallState::Ended(last);
    }
}

impl Drop for DrivenCall {
    fn drop(&mut self) {
        if self.class == ExchangeClass::Other && self.is_running() && !self.has_events {
            self.link.health.given_up(self.began);
        }
    }
}
