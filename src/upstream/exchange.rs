//! Defines one client request in progress at an upstream: a stream of events, and a way to answer.

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
use crate::wire::{Object, Payload, ProtocolVersion, RpcError};

/// A server that requests can be sent to.
#[async_trait]
pub trait Upstream: Send + Sync + std::fmt::Debug {
    /// The name that the configuration gives it.
    fn name(&self) -> &Arc<str>;

    /// What the server says about itself, from its handshake; cached, fetched again on contradiction.
    ///
    /// # Errors
    /// If no handshake succeeds.
    async fn facts(&self, context: &CallContext) -> Result<Arc<ServerFacts>, BeginError>;

    /// Sends one request. Returns once the upstream session is there and the request is on its way;
    /// the answer comes as events.
    ///
    /// Dropping the future lets go of the request wherever it is: usually it is not sent, but it may just
    /// have been.
    ///
    /// # Errors
    /// Only where nothing was sent: the fault's `executed` is `No`.
    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError>;

    /// Takes up an exchange that another process life began.
    ///
    /// # Errors
    /// If the token is none of this upstream's. That the upstream no longer knows the exchange may also
    /// show as its first event, `Lost`.
    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError>;

    /// The params of a `tools/call` as a later process life may have to send them: with what stays true of them when
    /// the settings change.
    fn stored(&self, params: &Payload) -> Payload {
        params.detached()
    }

    /// What [`Upstream::begin`] takes for params that were [stored](Upstream::stored), maybe by other settings, for the
    /// call of this tool; `None` where it would run another tool now.
    fn restored(&self, _tool: &str, params: &Payload) -> Option<Payload> {
        Some(params.clone())
    }

    /// A receiver of notifications that belong to no call (list changes, resource updates), for this client's
    /// pooled session. Bounded; a slow receiver misses some.
    ///
    /// # Errors
    /// If no session can be had.
    async fn notifications(&self, context: &CallContext)
    -> Result<broadcast::Receiver<ServerNotification>, BeginError>;

    /// Listens to what belongs to no call, as far as `wishes` speak of it, on behalf of this client. What the server
    /// does not tell of, and what it takes longer for than [`SUBSCRIBE_MAX`] to agree to, is left out of what is
    /// granted. An upstream that can be subscribed to nothing grants no resource.
    ///
    /// # Errors
    /// If no session, or no stream, can be had.
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

    /// How the server is spoken to on behalf of stateless clients, asked in the name of one whose request this is. Bounded in
    /// time; usually known.
    async fn era(&self, _forwarded: &ForwardedHeaders) -> Era {
        Era::Session
    }

    /// The same for a request of this client: at a server of both eras a client that can be asked is served in sessions, unless
    /// the server asks at 2026-07-28. Bounded in time; usually known.
    async fn era_for(&self, context: &CallContext) -> Era {
        self.era(&context.forwarded).await
    }

    /// Says that the server answered a request of 2026-07-28 with an `InputRequiredResult`.
    fn asked_in_result(&self) {}

    /// Says that the server just contradicted [`Upstream::era`]: it is found out anew before the next request.
    fn doubt_era(&self) {}

    /// Ends sessions in which nothing is in progress, where each takes one of few places.
    fn end_idle(&self) {}

    /// Ends sessions and streams; bounded in time.
    async fn close(&self);
}

/// How long subscribing to resources may take, all of them together.
pub const SUBSCRIBE_MAX: Duration = Duration::from_secs(10);

/// An ear at one session of an upstream, or at one stream of a server without. Dropping it takes subscriptions back
/// that nobody else holds.
#[derive(Debug)]
pub struct NotificationSubscription {
    /// Bounded; a slow receiver misses some and learns that it did.
    pub news: broadcast::Receiver<ServerNotification>,
    /// What will be told of what was wished for. More may be heard, for others.
    pub granted: SubscriptionFilter,
    /// The session or stream is gone: nothing more will be heard here, so listen again.
    pub over: CancellationToken,
    /// What is taken back when it is dropped.
    pub kept: Box<dyn Any + Send + Sync>,
}

/// A notification that belongs to no call: its method and params.
pub type ServerNotification = (Arc<str>, Option<Payload>);

/// One request in progress. Dropping it lets go of the upstream without a word: call
/// [`Exchange::cancel`] first where the upstream should stop.
#[async_trait]
pub trait Exchange: Send {
    /// The next event. After `Returned`, `Faulted`, `Cancelled` or `Lost` there is none: calling again is a bug.
    /// Cancel safe: a dropped call loses no event.
    async fn next(&mut self) -> ExchangeEvent;

    /// Answers a question of the upstream. One that is answered already or taken back is passed over.
    /// Not cancel safe: a dropped answer may have arrived.
    ///
    /// # Errors
    /// If the answer could not be handed over; the exchange itself may still go on.
    async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError>;

    /// Tells the upstream that nobody wants the answer; bounded in time, best effort. Returns once the
    /// upstream was told, or cannot be.
    async fn cancel(&mut self, reason: &str);

    /// Asks the upstream to cancel its own task, and goes on: how the task ends comes as events. Where there is no such
    /// task, nothing is asked. Dropping the future leaves open whether the upstream was asked.
    ///
    /// # Errors
    /// If the upstream refuses, or cannot be asked; the exchange itself goes on.
    async fn cancel_task(&mut self) -> Result<(), TaskRequestError> {
        Ok(())
    }

    /// What it takes to go on after a restart, where the transport can. `None` while an answer that it took is on its way to the
    /// upstream and nobody else knows of it.
    fn resume_token(&self) -> Option<ResumeToken>;
}

/// A request as the upstream is to see it; ids, tokens and headers are the transport's.
#[derive(Clone, Debug)]
pub struct UpstreamRequest {
    pub method: Arc<str>,
    /// An object, with the other hop's metadata already taken out.
    pub params: Option<Payload>,
}

/// For whom and how a request is made.
#[derive(Clone, Debug)]
pub struct CallContext {
    pub principal: Principal,
    pub client: ClientFacts,
    /// Whether progress is wanted: the transport then adds its own token.
    pub progress: bool,
    /// Least severity of log messages that this request wants, as the client wrote it.
    pub log_level: Option<Arc<str>>,
    pub timeouts: Timeouts,
    /// Largest answer or event that is read.
    pub result_bytes_max: usize,
    /// The share of its answers while they are under way.
    pub share: Option<AnswerShare>,
    /// Whether the upstream may make a task of its own of this request.
    pub native_task: UpstreamTaskMode,
    /// What of the client's own headers goes on with this request.
    pub forwarded: ForwardedHeaders,
    /// Whether its owner hears of the subtasks that the upstream's own task has: [`ExchangeEvent::Subtasks`].
    pub subtasks: bool,
    /// Set by [`Upstream::begin`] at the latest when the upstream may see the request. From then on it returns at once, and
    /// whoever drops it tells the upstream nothing.
    pub handed_over: HandedOver,
}

impl CallContext {
    /// For a request without progress, log messages and tasks, with no headers of its client. `capabilities` is a
    /// `ClientCapabilities` object.
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

/// Whether a call is made as a task of the upstream's own, where the upstream has such tasks. Either way its
/// owner sees the same events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamTaskMode {
    /// Nothing is asked for. A server of 2026-07-28 is told all the same that it may make one.
    #[default]
    Never,
    /// As a plain call: no server is told that it may make one.
    Undeclared,
    /// As a task if the upstream declared that it makes tasks of such calls, else as a plain call.
    WhereServed {
        /// How long the call may run: the upstream is asked to keep the task for so long.
        deadline: Duration,
    },
    /// The same for as long as the upstream likes to keep it, and its owner hears how the task goes: [`UpstreamTaskEvent`].
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

    /// Whether the upstream is asked for a task where it declared that it makes them.
    #[must_use]
    pub const fn is_wanted(self) -> bool {
        matches!(self, Self::WhereServed { .. } | Self::Watched)
    }

    pub(super) const fn is_watched(self) -> bool {
        matches!(self, Self::Watched)
    }
}

/// How long an upstream may be silent. `None` means as long as it likes: a legacy server that answers
/// in JSON sends no byte before its tool ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    pub first_byte: Option<Duration>,
    pub idle: Option<Duration>,
}

impl Timeouts {
    /// What holds for the calls of a tool with bounds of its own.
    #[must_use]
    pub fn of_tool(self, limits: CallLimits) -> Self {
        Self { first_byte: limits.first_byte_max.or(self.first_byte), idle: limits.idle_max.or(self.idle) }
    }
}

/// What the client behind a request can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientFacts {
    /// `ClientCapabilities` to declare upstream: those of this request, less tasks (UPC-21).
    /// Canonical text, so that equal capabilities share a session.
    pub capabilities: Payload,
}

impl ClientFacts {
    /// Whether the client can be asked anything.
    #[must_use]
    pub fn can_be_asked(&self) -> bool {
        Object::of(&self.capabilities).is_some_and(|declared| negotiate::takes_questions(&declared))
    }
}

/// What a server said in its handshake.
#[derive(Clone, Debug)]
pub struct ServerFacts {
    pub version: ProtocolVersion,
    /// `ServerCapabilities`, verbatim.
    pub capabilities: Payload,
    pub server_info: Option<Payload>,
    pub instructions: Option<Payload>,
    /// Whether the server has sessions with ids: a question in mid-call can be answered in one alone.
    pub has_session: bool,
}

/// What happened in an exchange.
#[derive(Clone, Debug)]
pub enum ExchangeEvent {
    Progress(Progress),
    /// What the upstream says of how its own task stands, fit to be shown. No number belongs to it.
    Status(Arc<str>),
    /// How the upstream's own task goes, for owners that [watch](UpstreamTaskMode::Watched) it. All that counts for the call
    /// comes in the other events too.
    Task(UpstreamTaskEvent),
    /// The upstream's own task has subtasks that it did not have before, in their order: for owners that asked to hear of
    /// them (SEP-2268). None of them is the task itself, or stands above it.
    Subtasks(Vec<UpstreamSubtask>),
    /// `notifications/message`: its params, verbatim but for the upstream's id of its task.
    Log(Payload),
    /// The upstream asks something; answer it by its `ask`.
    Asked {
        ask: Payload,
        method: Arc<str>,
        params: Option<Payload>,
    },
    /// The upstream takes a question back.
    Withdrawn {
        ask: Payload,
    },
    /// The result, verbatim. Final.
    Returned(Payload),
    /// The upstream's JSON-RPC error. Final.
    Faulted(RpcError),
    /// The upstream cancelled its own task, which nobody had asked for. Final.
    Cancelled,
    /// There will be no answer. Final.
    Lost(ExchangeError),
}

impl ExchangeEvent {
    /// Whether no other event follows.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Returned(_) | Self::Faulted(_) | Self::Cancelled | Self::Lost(_))
    }
}

/// What is known of an upstream's own task.
#[derive(Clone, Debug)]
pub enum UpstreamTaskEvent {
    /// The upstream made a task of the call: its handle, verbatim.
    Made(Payload),
    /// The upstream's word for how the task stands, unread, and what it says besides, fit to be shown. Told where
    /// either changed, and with the first answer after none.
    Stands { word: Cow<'static, str>, message: Option<Arc<str>> },
    /// A request about the task has no answer of use. It is made again, unless the last event follows.
    Unanswered(TaskRequestError),
}

/// A subtask at an upstream.
#[derive(Clone, Debug)]
pub struct UpstreamSubtask {
    /// The upstream's own id, never shown to clients (T-67).
    pub id: Arc<str>,
    /// What it takes to follow it, as another process life would.
    pub resume: ResumeToken,
}

/// Why a request about an upstream's own task is of no use.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TaskRequestError {
    #[error("the upstream refused it: {}", .0.message)]
    Refused(RpcError),
    #[error(transparent)]
    Lost(#[from] ExchangeError),
}

/// `notifications/progress`, less its token. Number texts are kept as they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub progress: Payload,
    pub total: Option<Payload>,
    pub message: Option<Arc<str>>,
}

/// Why an exchange ends without an answer.
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

/// What it takes to go on with an exchange in another process life. Opaque to all but its transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeToken(pub Payload);

/// The two ways to speak to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// `initialize` and a session, up to 2025-11-25.
    Session,
    /// Everything with each request, 2026-07-28.
    Stateless,
}

impl Era {
    /// The one that a version belongs to.
    pub(super) fn of(version: ProtocolVersion) -> Self {
        if version.is_stateless() { Self::Stateless } else { Self::Session }
    }
}
