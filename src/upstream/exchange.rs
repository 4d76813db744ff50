//! Defines one client request in progress at an upstream: events out, answers in.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::ForwardedHeaders;
use super::outgoing::HandedOver;
use crate::answer_budget::AnswerShare;
use crate::dialect::faults::reason_key;
use crate::dialect::negotiate;
use crate::dialect::subscriptions::SubscriptionFilter;
pub use crate::task::Answer;
use crate::task::{CallLimits, GatewayFault, Principal};
use crate::wire::one_line::status_text;
use crate::wire::{Object, Payload, ProtocolVersion, RpcError};

/// A server that requests can be sent to.
#[async_trait]
pub trait Upstream: Send + Sync + std::fmt::Debug {
    /// Its name in the configuration.
    fn name(&self) -> &Arc<str>;

    /// The server's facts from its handshake; cached, fetched again on contradiction.
    ///
    /// # Errors
    /// If no handshake succeeds.
    async fn facts(&self, context: &CallContext) -> Result<Arc<ServerFacts>, BeginError>;

    /// Sends one request. Returns once the upstream session is open and the request is being sent; the response comes as events.
    ///
    /// Dropping the future abandons the request: usually it is not sent, but it may have been.
    ///
    /// # Errors
    /// Only if nothing was sent: the fault's `executed` is `No`.
    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError>;

    /// Resumes an exchange that another process began.
    ///
    /// # Errors
    /// If the token is not this upstream's. If the upstream has forgotten the exchange, its first event may be `Lost` instead.
    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError>;

    /// The params of a `tools/call` in a form that a later process can send under changed settings.
    fn stored(&self, params: &Payload) -> Payload {
        params.detached()
    }

    /// Turns [stored](Upstream::stored) params into params for [`Upstream::begin`], for a call of this tool; `None` if they would
    /// run another tool under the present settings.
    fn restored(&self, _tool: &str, params: &Payload) -> Option<Payload> {
        Some(params.clone())
    }

    /// A receiver of notifications that belong to no call (list changes, resource updates), for this client's pooled session.
    /// Bounded; a slow receiver misses some.
    ///
    /// # Errors
    /// If no session can be opened.
    async fn notifications(&self, context: &CallContext)
    -> Result<broadcast::Receiver<ServerNotification>, BeginError>;

    /// Subscribes to notifications that belong to no call, as selected by `wishes`, for this client. The granted filter omits
    /// notifications that the server does not send or does not agree to within [`SUBSCRIBE_MAX`]. An upstream without
    /// subscriptions grants no resource.
    ///
    /// # Errors
    /// If no session, or no stream, can be opened.
    async fn listen(
        &self,
        context: &CallContext,
        wishes: &SubscriptionFilter,
    ) -> Result<NotificationSubscription, BeginError> {
        let news = self.notifications(context).await?;
        let resources = wishes.resources.as_ref().map(|_| BTreeSet::new());
        let granted = SubscriptionFilter { resources, ..wishes.of_the_upstream() };
        Ok(NotificationSubscription { news, granted, over: CancellationToken::new(), kept: Box::new(()) })
    }

    /// The era for stateless clients, probed with the credential of this request. Bounded in time; usually known.
    async fn era(&self, _forwarded: &ForwardedHeaders) -> Era {
        Era::Session
    }

    /// The era for a request of this client: at a server of both eras a client that can be asked is served in sessions, unless
    /// the server asks at 2026-07-28. Bounded in time; usually known.
    async fn era_for(&self, context: &CallContext) -> Era {
        self.era(&context.forwarded).await
    }

    /// Records that the server answered a request of 2026-07-28 with an `InputRequiredResult`.
    fn asked_in_result(&self) {}

    /// Records that the server contradicted [`Upstream::era`]: it is probed again before the next request.
    fn doubt_era(&self) {}

    /// Ends idle sessions, if each holds one of few permits.
    fn end_idle(&self) {}

    /// Ends sessions and streams; bounded in time.
    async fn close(&self);
}

/// How long subscribing to resources may take, all of them together.
pub const SUBSCRIBE_MAX: Duration = Duration::from_secs(10);

/// A subscription to one upstream session, or to one stream of a stateless server. Dropping it cancels the subscriptions that it
/// alone holds.
#[derive(Debug)]
pub struct NotificationSubscription {
    /// Bounded; a slow receiver misses some and is notified of the gap.
    pub news: broadcast::Receiver<ServerNotification>,
    /// The granted part of the wishes. Notifications for other subscribers may come too.
    pub granted: SubscriptionFilter,
    /// Cancelled when the session or stream is gone: nothing more comes here, so subscribe again.
    pub over: CancellationToken,
    /// Guards that are dropped with it.
    pub kept: Box<dyn Any + Send + Sync>,
}

/// A notification that belongs to no call: its method and params.
pub type ServerNotification = (Arc<str>, Option<Payload>);

/// One request in progress. Dropping it sends the upstream nothing: call [`Exchange::cancel`] first to stop the upstream.
#[async_trait]
pub trait Exchange: Send {
    /// The next event. After `Returned`, `Faulted`, `Cancelled` or `Lost` there is none: calling again is a bug. Cancel safe: a
    /// dropped call loses no event.
    async fn next(&mut self) -> ExchangeEvent;

    /// Answers a question of the upstream. An answer to an answered or withdrawn question is ignored. Not cancel safe: a dropped
    /// answer may have arrived.
    ///
    /// # Errors
    /// If the answer could not be sent; the exchange itself may continue.
    async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError>;

    /// Cancels the request at the upstream; bounded in time, best effort. Returns once the upstream was notified, or cannot be.
    async fn cancel(&mut self, reason: &str);

    /// Asks the upstream to cancel its own task, and continues: the task's outcome comes as an event. Without such a task, sends
    /// nothing. After dropping the future it is unknown whether the request was sent.
    ///
    /// # Errors
    /// If the upstream refuses, or cannot be reached; the exchange itself continues.
    async fn cancel_task(&mut self) -> Result<(), TaskRequestError> {
        Ok(())
    }

    /// The token to resume after a restart, if the transport can. `None` while an accepted answer is on its way to the upstream,
    /// since the token does not hold it.
    fn resume_token(&self) -> Option<ResumeToken>;
}

/// A request for the upstream. The transport adds ids, tokens and headers.
#[derive(Clone, Debug)]
pub struct UpstreamRequest {
    pub method: Arc<str>,
    /// An object, without the other hop's metadata.
    pub params: Option<Payload>,
}

/// The client of a request, and its options.
#[derive(Clone, Debug)]
pub struct CallContext {
    pub principal: Principal,
    pub client: ClientFacts,
    /// Whether progress is wanted: the transport then adds its own token.
    pub progress: bool,
    /// Lowest severity of wanted log messages, as the client wrote it.
    pub log_level: Option<Arc<str>>,
    pub timeouts: Timeouts,
    /// Largest response or event that is read.
    pub result_bytes_max: usize,
    /// The account for the bytes of buffered responses.
    pub share: Option<AnswerShare>,
    /// Whether the upstream may make its own task of this request.
    pub native_task: UpstreamTaskMode,
    /// The client's headers that are forwarded with this request.
    pub forwarded: ForwardedHeaders,
    /// Whether the owner receives [`ExchangeEvent::Subtasks`] of the upstream's own task.
    pub subtasks: bool,
    /// Set by [`Upstream::begin`] before the upstream may see the request. From then on `begin` returns at once, and dropping it
    /// sends the upstream nothing.
    pub handed_over: HandedOver,
}

impl CallContext {
    /// For a request without progress, log messages, tasks and client headers. `capabilities` is a `ClientCapabilities` object.
    #[must_use]
    pub fn new(principal: Principal, capabilities: Payload, timeouts: Timeouts, result_bytes_max: usize) -> Self {
        Self {
            principal,
            client: ClientFacts { capabilities },
            progress: false,
            log_level: None,
            timeouts,
            result_bytes_max,
            share: None,
            native_task: UpstreamTaskMode::Never,
            forwarded: ForwardedHeaders::default(),
            subtasks: false,
            handed_over: HandedOver::default(),
        }
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
    #[must_use]
    pub const fn deadline(self) -> Option<Duration> {
        match self {
            Self::Never | Self::Undeclared | Self::Watched => None,
            Self::WhereServed { deadline } => Some(deadline),
        }
    }

    /// Whether a task is requested, if the upstream declared tasks.
    #[must_use]
    pub const fn is_wanted(self) -> bool {
        matches!(self, Self::WhereServed { .. } | Self::Watched)
    }

    pub(super) const fn is_watched(self) -> bool {
        matches!(self, Self::Watched)
    }
}

/// How long an upstream may be silent. `None` means unlimited: a legacy server that responds in JSON sends no byte before its
/// tool ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    pub first_byte: Option<Duration>,
    pub idle: Option<Duration>,
}

impl Timeouts {
    /// The timeouts for calls of a tool with its own limits.
    #[must_use]
    pub fn of_tool(self, limits: CallLimits) -> Self {
        Self { first_byte: limits.first_byte_max.or(self.first_byte), idle: limits.idle_max.or(self.idle) }
    }
}

/// The questions that a request's client can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientFacts {
    /// `ClientCapabilities` to declare upstream: this request's, without tasks (UPC-21). Canonical text, so that equal
    /// capabilities share a session.
    pub capabilities: Payload,
}

impl ClientFacts {
    /// Whether the client can be asked anything.
    #[must_use]
    pub fn can_be_asked(&self) -> bool {
        Object::of(&self.capabilities).is_some_and(|declared| negotiate::takes_questions(&declared))
    }
}

/// A server's handshake result.
#[derive(Clone, Debug)]
pub struct ServerFacts {
    pub version: ProtocolVersion,
    /// `ServerCapabilities`, verbatim.
    pub capabilities: Payload,
    pub server_info: Option<Payload>,
    pub instructions: Option<Payload>,
    /// Whether the server has sessions with ids: only in one can a question during a call be answered.
    pub has_session: bool,
}

/// An event of an exchange.
#[derive(Clone, Debug)]
pub enum ExchangeEvent {
    Progress(Progress),
    /// The status message of the upstream's own task, sanitised. It has no number.
    Status(Arc<str>),
    /// An event of the upstream's own task, for owners that [watch](UpstreamTaskMode::Watched) it. Events that matter to the call
    /// come as the other variants too.
    Task(UpstreamTaskEvent),
    /// New subtasks of the upstream's own task, in order, for owners that asked for them (SEP-2268). None is the task itself or
    /// one of its ancestors.
    Subtasks(Vec<UpstreamSubtask>),
    /// `notifications/message`: its params, verbatim except for the upstream's id of its task.
    Log(Payload),
    /// A question of the upstream; answer it by its `ask`.
    Asked {
        ask: Payload,
        method: Arc<str>,
        params: Option<Payload>,
    },
    /// The upstream withdraws a question.
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
    /// Whether no other event follows.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Returned(_) | Self::Faulted(_) | Self::Cancelled | Self::Lost(_))
    }
}

/// An event of an upstream's own task.
#[derive(Clone, Debug)]
pub enum UpstreamTaskEvent {
    /// The upstream made a task of the call: its handle, verbatim.
    Made(Payload),
    /// The upstream's status text, unparsed, and its status message, sanitised. Sent when either changed, and with the first
    /// response after a failed poll.
    Stands { word: Cow<'static, str>, message: Option<Arc<str>> },
    /// A request about the task failed. It is repeated, unless the last event follows.
    Unanswered(TaskRequestError),
}

/// A subtask at an upstream.
#[derive(Clone, Debug)]
pub struct UpstreamSubtask {
    /// The upstream's own id, never sent to clients (T-67).
    pub id: Arc<str>,
    /// The token to follow it, as another process would.
    pub resume: ResumeToken,
}

/// Why a request about an upstream's own task failed.
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
    #[must_use]
    pub fn status(&self) -> Option<Arc<str>> {
        match (&self.message, &self.total) {
            (Some(message), _) => status_text(message),
            (None, Some(total)) => status_text(&format!("{}/{}", self.progress.as_str(), total.as_str())),
            (None, None) => status_text(self.progress.as_str()),
        }
    }
}

/// Why an exchange ends without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the upstream gave no answer: {}", reason_key(.0.reason))]
pub struct ExchangeError(pub GatewayFault);

/// Why an exchange did not begin; nothing was sent.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BeginError {
    #[error("the upstream cannot be called: {}", reason_key(.0.reason))]
    Gateway(GatewayFault),
    /// The upstream refused the handshake with a JSON-RPC error.
    #[error("the upstream refused the handshake: {}", .0.message)]
    Refused(RpcError),
}

/// The token to resume an exchange in another process. Opaque except to its transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeToken(pub Payload);

/// The two kinds of MCP: with and without sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// `initialize` and a session, up to 2025-11-25.
    Session,
    /// All metadata in each request, 2026-07-28.
    Stateless,
}

impl Era {
    /// The era of a version.
    pub(super) fn of(version: ProtocolVersion) -> Self {
        if version.is_stateless() { Self::Stateless } else { Self::Session }
    }
}
