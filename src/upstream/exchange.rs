//! Defines one client request in progress at an upstream: events out, answers in.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, Either, Ready, ready};
use metrics::Histogram;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ForwardedHeaders;
use super::outgoing::HandedOver;
use crate::answer_budget::{AnswerShare, FREE_BYTES};
use crate::dialect::lifecycle::{SessionServerDescription, own_identity};
use crate::dialect::negotiate;
use crate::dialect::plain::{self, QuestionRefusal};
use crate::dialect::subscriptions::SubscriptionFilter;
use crate::metric;
pub use crate::task::Answer;
use crate::task::{CallLimits, Executed, GatewayFault, Principal, Reason};
use crate::wire::one_line::status_text;
use crate::wire::{Object, Payload, ProtocolVersion, RpcError};

/// A server that requests can be sent to.
#[async_trait]
pub trait Upstream: Send + Sync + std::fmt::Debug {
    fn name(&self) -> &Arc<str>;

    /// The server's last handshake; cached until an answer contradicts it. Fails if no handshake succeeds.
    async fn handshake(&self, context: &CallContext) -> Result<Arc<Handshake>, BeginError>;

    /// Sends one request. Returns once the session is open and the request is being sent; the response comes as events.
    /// Fails only if nothing was sent (`Executed::No`). A dropped future usually sends nothing, but it may have.
    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError>;

    /// Resumes another process's exchange. Fails for a foreign token. If the server has dropped it, the first event is `Lost`.
    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError>;

    /// The params of a `tools/call` in a form that a later process can send under changed settings.
    fn stored(&self, params: &Payload) -> Payload {
        params.detached()
    }

    /// Turns [stored](Upstream::stored) params into the params of [`Upstream::begin`]; `None` for another tool.
    fn restored(&self, _tool: &str, params: &Payload) -> Option<Payload> {
        Some(params.clone())
    }

    /// Notifications of no call, for this client's pooled session; slow receivers miss some. Fails without a session.
    async fn notifications(&self, context: &CallContext) -> NotificationResult;

    /// Subscribes to notifications that belong to no call, as selected by `wishes`, for this client. The granted filter
    /// omits notifications that the server does not send or agree to within [`SUBSCRIBE_MAX`]. An upstream without
    /// subscriptions grants no resource. Fails if no session, or no stream, can be opened.
    async fn listen(&self, context: &CallContext, wishes: &SubscriptionFilter) -> SubscriptionResult {
        let news = self.notifications(context).await?;
        let resources = wishes.resources.as_ref().map(|_| BTreeSet::new());
        let granted = SubscriptionFilter { resources, ..wishes.of_the_upstream() };
        Ok(NotificationSubscription { news, granted, ended: CancellationToken::new(), kept: Box::new(()) })
    }

    /// The era for stateless clients, probed with the credential of this request. Bounded in time; usually known.
    fn era(&self, _forwarded: &ForwardedHeaders) -> EraLookup<'_> {
        Either::Left(ready(Era::Session))
    }

    /// The era for a request of this client: at a server of both eras a client that can be asked is served in sessions,
    /// unless the server asks at 2026-07-28. Bounded in time; usually known.
    async fn era_for(&self, context: &CallContext) -> Era {
        self.era(&context.forwarded).await
    }

    /// Records that the server answered a request of 2026-07-28 with an `InputRequiredResult`.
    fn asked_in_result(&self) {}

    /// Records that the server contradicted [`Upstream::era`]: it is probed again before the next request.
    fn discard_era(&self) {}

    /// Ends idle sessions, if each holds one of few permits.
    fn end_idle(&self) {}

    /// Ends the server's processes, sessions and calls as if the server had ended; later requests start it. Bounded.
    async fn restart(&self) {}

    /// Ends sessions and streams; bounded in time.
    async fn close(&self) {}
}

pub const SUBSCRIBE_MAX: Duration = Duration::from_secs(10);

/// A subscription to a session or a stateless server's stream. Dropping it cancels subscriptions that it alone holds.
#[derive(Debug)]
pub struct NotificationSubscription {
    /// Bounded; a slow receiver misses some and is notified of the gap.
    pub news: broadcast::Receiver<ServerNotification>,
    /// The granted part of the wishes. Notifications for other subscribers may come too.
    pub granted: SubscriptionFilter,
    /// Cancelled when the session or stream has ended: no more notifications arrive, so subscribe again.
    pub ended: CancellationToken,
    pub kept: Box<dyn Any + Send + Sync>,
}

pub type ServerNotification = (Arc<str>, Option<Payload>);
pub type NotificationResult = Result<broadcast::Receiver<ServerNotification>, BeginError>;
pub type SubscriptionResult = Result<NotificationSubscription, BeginError>;

/// Who answers a question of the upstream: the client that saw it, or the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    Client,
    Gateway,
}

/// One request in progress. Dropping it sends the upstream nothing: call [`Exchange::cancel`] first to stop the upstream.
#[async_trait]
pub trait Exchange: Send {
    /// The next event. After `Returned`, `Faulted`, `Cancelled` or `Lost`, calling again is a bug. Cancel safe.
    async fn next(&mut self) -> ExchangeEvent;

    /// Answers a question of the upstream; an answered or withdrawn question is ignored. Not cancel safe: a dropped
    /// answer may have arrived. Fails if the answer could not be sent; the exchange itself may continue.
    async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError>;

    /// As [`Exchange::answer`], for an answer of the gateway's own: no client saw the question.
    async fn refuse(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        self.answer(ask, answer).await
    }

    /// Cancels the request at the upstream; bounded in time, best effort. Returns once the upstream was notified, or cannot be.
    async fn cancel(&mut self, reason: &str);

    /// Asks the upstream to cancel its own task, and continues: the outcome comes as an event. Without such a task,
    /// sends nothing. A dropped future may have sent the request. After an error the exchange continues.
    async fn cancel_task(&mut self) -> Result<(), TaskRequestError> {
        Ok(())
    }

    /// The token to resume after a restart, if the transport can; `None` while an accepted answer is on its way.
    fn resume_token(&self) -> Option<ResumeToken>;

    /// The token to follow a subtask that the upstream's task named, as another process would.
    fn subtask_token(&self, _subtask: &Arc<str>) -> Option<ResumeToken> {
        None
    }
}

/// A request for the upstream. The transport adds ids, tokens and headers.
#[derive(Clone, Debug)]
pub struct UpstreamRequest {
    pub method: Arc<str>,
    /// An object, without the other hop's metadata.
    pub params: Option<Payload>,
}

#[derive(Clone, Debug)]
pub struct CallContext {
    pub principal: Principal,
    pub client: ClientFacts,
    /// Whether the client requests progress: the transport then adds its own token.
    pub progress: bool,
    /// Lowest severity of the requested log messages, as the client wrote it.
    pub log_level: Option<Arc<str>>,
    pub timeouts: Timeouts,
    /// The longest run time of a call.
    pub deadline: Option<Duration>,
    /// Largest response or event that is read.
    pub result_bytes_max: usize,
    /// The account for the bytes of buffered responses.
    pub share: Option<AnswerShare>,
    pub native_task: UpstreamTaskMode,
    pub forwarded: ForwardedHeaders,
    /// How many [`ExchangeEvent::Subtasks`] of the upstream's own task the owner receives.
    pub subtasks: SubtaskQuota,
    /// Set by [`Upstream::begin`] before the upstream may see the request: from then on `begin` returns at once.
    pub handed_over: Option<HandedOver>,
}

impl CallContext {
    /// For a request without progress, log messages, tasks and client headers. `capabilities` is a `ClientCapabilities` object.
    pub fn new(principal: Principal, capabilities: Payload, timeouts: Timeouts, result_bytes_max: usize) -> Self {
        Self {
            principal,
            client: ClientFacts { capabilities },
            progress: false,
            log_level: None,
            timeouts,
            deadline: None,
            result_bytes_max,
            share: None,
            native_task: UpstreamTaskMode::Never,
            forwarded: ForwardedHeaders::default(),
            subtasks: SubtaskQuota::default(),
            handed_over: None,
        }
    }

    /// When the call began, perhaps in an earlier process, and its deadline.
    pub(super) fn span(&self) -> (Instant, Option<Instant>) {
        let (now, left) = (Instant::now(), self.native_task.deadline().or(self.deadline));
        let ran = self.deadline.zip(left).map_or(Duration::ZERO, |(all, left)| all.saturating_sub(left));
        (now.checked_sub(ran).unwrap_or(now), left.and_then(|left| now.checked_add(left)))
    }
}

/// Whether a call becomes the upstream's own task, if the upstream has tasks. The owner sees the same events either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamTaskMode {
    /// No task is requested. A server of 2026-07-28 may still make one.
    #[default]
    Never,
    /// A plain call: no server may make a task of it.
    Undeclared,
    /// A task if the upstream declared tasks for such calls, else a plain call.
    WhereServed {
        /// The longest run time of the call: the task is requested with this time to live.
        deadline: Duration,
    },
    /// As `WhereServed`, with the upstream's time to live, and the owner receives [`UpstreamTaskEvent`]s.
    Watched,
}

impl UpstreamTaskMode {
    pub const fn deadline(self) -> Option<Duration> {
        if let Self::WhereServed { deadline } = self { Some(deadline) } else { None }
    }

    pub const fn is_wanted(self) -> bool {
        matches!(self, Self::WhereServed { .. } | Self::Watched)
    }

    pub(super) const fn is_watched(self) -> bool {
        matches!(self, Self::Watched)
    }
}

/// How long an upstream may be silent; `None` means unlimited: a legacy server in JSON sends no byte before its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    pub first_byte: Option<Duration>,
    pub idle: Option<Duration>,
}

impl Timeouts {
    #[must_use]
    pub fn of_tool(self, limits: CallLimits) -> Self {
        Self { first_byte: limits.first_byte_max.or(self.first_byte), idle: limits.idle_max.or(self.idle) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientFacts {
    /// `ClientCapabilities` to declare upstream, without tasks (UPC-21). Canonical text: equal ones share a session.
    pub capabilities: Payload,
}

impl ClientFacts {
    pub fn can_be_asked(&self) -> bool {
        Object::of(&self.capabilities).is_some_and(|declared| negotiate::takes_questions(&declared))
    }
}

/// The result of `initialize` or `server/discover`.
#[derive(Clone, Debug)]
pub struct Handshake {
    pub version: ProtocolVersion,
    pub capabilities: Payload,
    pub server_info: Option<Payload>,
    pub instructions: Option<Payload>,
    /// Whether the server has sessions with ids: only in one can a question during a call be answered.
    pub has_session: bool,
}

impl Handshake {
    /// The description for clients: a server without a name gets the gateway's.
    pub(crate) fn description(&self) -> SessionServerDescription {
        SessionServerDescription {
            capabilities: self.capabilities.clone(),
            instructions: self.instructions.clone(),
            server_info: self.server_info.clone().unwrap_or_else(own_identity),
        }
    }

    /// The server's identity, if it is an object: the gateway repeats it in the results that it composes.
    pub(crate) fn identity_in(object: &Object, name: &str) -> Option<Payload> {
        object.get_object(name).map(|identity| identity.payload().detached())
    }

    pub(crate) fn instructions_in(result: &Object) -> Option<Payload> {
        result.get("instructions").filter(|text| text.as_str().starts_with('"')).map(|text| text.detached())
    }
}

#[derive(Clone, Debug)]
pub enum ExchangeEvent {
    Progress(Progress),
    /// The status message of the upstream's own task, sanitised. It has no number.
    Status(Arc<str>),
    /// For owners that [watch](UpstreamTaskMode::Watched) the upstream's task; the call's events come as well.
    Task(UpstreamTaskEvent),
    /// The upstream's ids of new subtasks of its own task, in order, if wanted (SEP-2268); not of itself or an ancestor.
    Subtasks(Vec<Arc<str>>),
    /// A log message, or in a client's own session another one about no request; without the upstream's id of its task.
    Notification(ServerNotification),
    Asked {
        ask: Payload,
        method: Arc<str>,
        params: Option<Payload>,
    },
    Withdrawn {
        ask: Payload,
    },
    /// The result, verbatim. Final.
    Returned(Payload),
    /// The upstream's JSON-RPC error. Final.
    Faulted(RpcError),
    /// The upstream cancelled its own task without being asked. Final.
    Cancelled,
    /// There will be no result. Final.
    Lost(ExchangeError),
}

impl ExchangeEvent {
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Returned(_) | Self::Faulted(_) | Self::Cancelled | Self::Lost(_))
    }

    /// One call may exceed the answer budget, so its queues have one large message at a time (B190).
    pub(super) fn is_large(&self) -> bool {
        let (Self::Notification((_, params)) | Self::Asked { params, .. }) = self else { return false };
        params.as_ref().is_some_and(|params| params.len() > FREE_BYTES)
    }
}

/// Why a request that is no call has no result.
#[derive(Debug)]
pub enum NoResult {
    Faulted(RpcError),
    Cancelled,
    Lost(GatewayFault),
}

/// Waits for the result of a request that is no call: refuses questions, and skips progress.
pub async fn result_of(exchange: &mut dyn Exchange) -> Result<Payload, NoResult> {
    loop {
        match exchange.next().await {
            ExchangeEvent::Returned(result) => return Ok(result),
            ExchangeEvent::Faulted(error) => return Err(NoResult::Faulted(error)),
            ExchangeEvent::Cancelled => return Err(NoResult::Cancelled),
            ExchangeEvent::Lost(ExchangeError(fault)) => return Err(NoResult::Lost(fault)),
            ExchangeEvent::Asked { ask, method, .. } => {
                let _ = exchange.answer(&ask, plain::refuse(&method, QuestionRefusal::Unanswered)).await;
            }
            ExchangeEvent::Progress(_)
            | ExchangeEvent::Status(_)
            | ExchangeEvent::Task(_)
            | ExchangeEvent::Subtasks(_)
            | ExchangeEvent::Notification(_)
            | ExchangeEvent::Withdrawn { .. } => (),
        }
    }
}

#[derive(Clone, Debug)]
pub enum UpstreamTaskEvent {
    /// The upstream made a task of the call: its handle, verbatim.
    Made(Payload),
    /// The unparsed status text and the sanitised message. Sent when either changed, and first after a failed poll.
    Status { text: Cow<'static, str>, message: Option<Arc<str>> },
    /// A request about the task failed. It is repeated, unless the last event follows.
    Unanswered(TaskRequestError),
}

/// How many subtasks one task of an upstream may name; by default none. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct SubtaskQuota(Option<Arc<AtomicUsize>>);

impl SubtaskQuota {
    pub fn new(max: usize) -> Self {
        Self(Some(Arc::new(AtomicUsize::new(max))))
    }

    #[must_use]
    pub fn of_subtask(&self, max: usize) -> Self {
        self.0.as_ref().map_or_else(Self::default, |_| Self::new(max))
    }

    pub(super) fn max(&self) -> usize {
        self.0.as_ref().map_or(0, |max| max.load(Ordering::Relaxed))
    }

    pub fn close(&self) {
        if let Some(max) = &self.0 {
            max.store(0, Ordering::Relaxed);
        }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum TaskRequestError {
    #[error("the upstream refused it: {}", .0.message)]
    Refused(RpcError),
    #[error(transparent)]
    Lost(#[from] ExchangeError),
}

/// `notifications/progress` without its token. Number texts are verbatim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub progress: Payload,
    pub total: Option<Payload>,
    pub message: Option<Arc<str>>,
}

impl Progress {
    /// Its status line: the message, else progress and total (GW-24).
    pub fn status(&self) -> Option<Arc<str>> {
        match (&self.message, &self.total) {
            (Some(message), _) => status_text(message),
            (None, Some(total)) => status_text(&format!("{}/{}", self.progress.as_str(), total.as_str())),
            (None, None) => status_text(self.progress.as_str()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the upstream gave no answer: {}", .0.reason.key())]
pub struct ExchangeError(pub GatewayFault);

#[derive(Clone, Debug, thiserror::Error)]
pub enum BeginError {
    #[error("the upstream cannot be called: {}", .0.reason.key())]
    Gateway(GatewayFault),
    #[error("the upstream refused the handshake: {}", .0.message)]
    Refused(RpcError),
}

impl BeginError {
    /// The fault for a client. The text of a refused handshake is for operators only.
    pub fn into_fault(self) -> GatewayFault {
        match self {
            Self::Gateway(fault) => fault,
            Self::Refused(_) => GatewayFault::new(Reason::UpstreamRefused, Executed::No),
        }
    }
}

/// The token to resume an exchange in another process. Opaque except to its transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeToken(pub Payload);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// `initialize` and a session, up to 2025-11-25.
    Session,
    /// All metadata in each request, 2026-07-28.
    Stateless,
}

/// Boxed only while a probe is awaited.
pub type EraLookup<'a> = Either<Ready<Era>, BoxFuture<'a, Era>>;

impl Era {
    pub(super) fn of(version: ProtocolVersion) -> Self {
        if version.is_stateless() { Self::Stateless } else { Self::Session }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeClass {
    Call,
    Other,
    Resumed,
}

/// By class. The histograms are looked up once.
#[derive(Debug)]
pub(crate) struct ExchangeLatencies {
    call: Histogram,
    other: Histogram,
    resumed: Histogram,
}

impl ExchangeLatencies {
    /// The metrics recorder must be installed before.
    pub(crate) fn of(upstream: &Arc<str>) -> Self {
        let histogram = |class: &'static str| metrics::histogram!(metric::UPSTREAM_REQUEST, "upstream" => Arc::clone(upstream), "class" => class);
        Self { call: histogram("call"), other: histogram("other"), resumed: histogram("resumed") }
    }

    pub(crate) fn record(&self, class: ExchangeClass, took: Duration) {
        let histogram = match class {
            ExchangeClass::Call => &self.call,
            ExchangeClass::Other => &self.other,
            ExchangeClass::Resumed => &self.resumed,
        };
        histogram.record(took);
    }
}
