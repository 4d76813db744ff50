//! Runs calls in one session at a streamable HTTP upstream, after its handshake. A session never changes: one that the
//! upstream has lost is replaced in the [`pool`], and callers compare the two. Read [`calls`] and [`route`] for its
//! incoming messages, `refusals` for the detection of a session that the upstream has lost silently.

pub(crate) mod calls;
pub(crate) mod get_stream;
pub(crate) mod initialize;
pub(crate) mod own;
pub(crate) mod pool;
mod refusals;
pub(crate) mod resource_subscriptions;
pub(crate) mod route;

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use tokio::sync::{Mutex, Semaphore, SetOnce, broadcast};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::Instrument as _;

use super::answer_body::{AnswerBody, AnswerResult};
use super::exchange::{ExchangeClass, ExchangeLatencies};
use super::limits::{CallPermitSettings, CallPermits};
use super::outgoing::{HandedOver, OutgoingRequest, SessionHeaders};
use super::reply::{self, AcceptedResponse, ErrorAddressee, ReadLimits, ResponseRefusal};
use super::transport::Transport;
use super::version_choice::VersionChoice;
use super::{CallContext, ExchangeError, ExchangeEvent, Handshake, ServerNotification};
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::metric;
use crate::shared_limits::SharedLimits;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::upstream_health::{HealthMark, UpstreamHealth};
use crate::upstream::{ClientCredential, own_ids};
use crate::wire::{Object, Payload, RequestId, envelope, method};
use calls::SessionCalls;
use refusals::{PING_BYTES_MAX, PING_MAX, PingVerdict, SessionRefusals, may_be_about_session};
use resource_subscriptions::ResourceSubscriptions;

const NEWS_MAX: usize = 256;
/// Concurrent replies of the gateway's own in one session.
const REPLIES_MAX: usize = 32;
/// How long a message without a response may take to be accepted.
const ONE_WAY_MAX: Duration = Duration::from_secs(30);
const DELETE_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct UpstreamLink {
    pub(crate) name: Arc<str>,
    pub(crate) health: Arc<UpstreamHealth>,
    pub(crate) latencies: ExchangeLatencies,
    pub(crate) transport: Transport,
    pub(crate) versions: VersionChoice,
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// The accounts for bytes of streams that belong to no call.
    pub(crate) limits: SharedLimits,
    /// Permits for polls of the upstream's tasks; one of several principals has at most its share (SEC-92).
    pub(crate) polls: CallPermits,
}

/// The queue has no bound but the number of tasks.
pub(crate) const POLLS: CallPermitSettings =
    CallPermitSettings { in_flight_max: NonZeroUsize::new(64).unwrap(), queue_max: 0 };

impl UpstreamLink {
    /// Records how an exchange ended, unless its owner ended it.
    pub(crate) fn ended(&self, class: ExchangeClass, since: HealthMark, last: &ExchangeEvent) {
        // An exchange of another process may have ended with that process.
        if let ExchangeEvent::Lost(ExchangeError(fault)) = last
            && class != ExchangeClass::Resumed
        {
            self.health.ended(since, fault);
        }
    }

    pub(crate) fn dropped(&self, reason: &'static str) {
        metric::count_dropped(&self.name, reason);
    }

    /// In its own task, since a slow client's call is not polled. Dropping the future drops it; panics are forwarded.
    pub(crate) async fn in_own_task<T: Send + 'static>(
        &self,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, GatewayFault> {
        let running = AbortOnDropHandle::new(self.tracker.spawn(request.in_current_span()));
        running.await.map_err(|error| match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime stops.
            Err(_) => GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown),
        })
    }
}

/// Sessions are never shared between principals, credentials, or clients with different capabilities (T-20, T-60).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    pub(crate) principal: Principal,
    pub(crate) capabilities: Payload,
    /// The client's credential at the server. Clients with the same key of the gateway may differ in it.
    pub(crate) credential: ClientCredential,
}

impl SessionKey {
    pub(crate) fn of(context: &CallContext) -> Self {
        Self {
            principal: context.principal.clone(),
            capabilities: context.client.capabilities.clone(),
            credential: context.forwarded.credential(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct UpstreamSession {
    pub(crate) link: Arc<UpstreamLink>,
    pub(crate) credentials: SessionHeaders,
    /// `None` for a session that another process opened.
    handshake: Option<Arc<Handshake>>,
    pub(crate) tasks: UpstreamTaskSupport,
    pub(crate) calls: SessionCalls,
    news: broadcast::Sender<ServerNotification>,
    replies: Arc<Semaphore>,
    level: SessionLogLevel,
    subscriptions: ResourceSubscriptions,
    /// Shared by all calls in a client's own session.
    refusals: Arc<SessionRefusals>,
    /// Set once its own stream is open, or is known to be unavailable.
    listened: SetOnce<()>,
    /// A task that may be resumed later was released in it.
    has_orphan: AtomicBool,
    /// Ends the session's own stream, and notifies subscribers that nothing more comes.
    ended: CancellationToken,
}

impl UpstreamSession {
    fn opened(link: &Arc<UpstreamLink>, credentials: SessionHeaders, handshake: Handshake) -> Arc<Self> {
        let tasks = UpstreamTaskSupport::of(handshake.version, &handshake.capabilities);
        Self::new(link, credentials, Some(Arc::new(handshake)), tasks, Arc::default())
    }

    fn new(
        link: &Arc<UpstreamLink>,
        credentials: SessionHeaders,
        handshake: Option<Arc<Handshake>>,
        tasks: UpstreamTaskSupport,
        refusals: Arc<SessionRefusals>,
    ) -> Arc<Self> {
        Arc::new(Self {
            link: Arc::clone(link),
            credentials,
            handshake,
            tasks,
            calls: SessionCalls::default(),
            news: broadcast::Sender::new(NEWS_MAX),
            replies: Arc::new(Semaphore::new(REPLIES_MAX)),
            level: SessionLogLevel::default(),
            subscriptions: ResourceSubscriptions::default(),
            refusals,
            listened: SetOnce::new(),
            has_orphan: AtomicBool::new(false),
            ended: link.stop.child_token(),
        })
    }

    /// Another process's session, without own stream and never ended here: see [`pool::SessionPool::adopt`].
    pub(crate) fn adopted(
        link: &Arc<UpstreamLink>,
        credentials: SessionHeaders,
        tasks: UpstreamTaskSupport,
    ) -> Arc<Self> {
        Self::new(link, credentials, None, tasks, Arc::default())
    }

    pub(crate) const fn handshake(&self) -> Option<&Arc<Handshake>> {
        self.handshake.as_ref()
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<ServerNotification> {
        self.news.subscribe()
    }

    /// Waits until the session's own stream is open, if it has one. Cancel safe.
    pub(crate) async fn listened(&self) {
        self.listened.wait().await;
    }

    pub(crate) const fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Whether a 404 can mean that the upstream forgot the session.
    pub(crate) const fn has_id(&self) -> bool {
        self.credentials.session.is_some()
    }

    pub(crate) async fn post(&self, message: Bytes, handed_over: &HandedOver) -> AnswerResult {
        self.post_with(message, |post| post, handed_over).await
    }

    pub(crate) async fn post_with(
        &self,
        message: Bytes,
        with: impl FnOnce(OutgoingRequest) -> OutgoingRequest,
        handed_over: &HandedOver,
    ) -> AnswerResult {
        self.link.transport.send(&with(self.credentials.post(message)), handed_over).await
    }

    /// As [`Self::post`], for a message of existing work.
    pub(crate) async fn post_beside(&self, message: Bytes, handed_over: &HandedOver) -> AnswerResult {
        self.link.transport.send(&self.credentials.post(message).under_way(), handed_over).await
    }

    /// Judges a response's head. After two refusals of unknown form, a `ping` that is refused too ends the session.
    pub(crate) async fn open(
        &self,
        response: Response<AnswerBody>,
        id: &RequestId,
        limits: &ReadLimits,
    ) -> Result<AcceptedResponse, ResponseRefusal> {
        let opened = reply::open(response, self.addressee(id), limits).await;
        match &opened {
            Ok(AcceptedResponse::Events(_)) | Err(ResponseRefusal::Rpc(_)) => self.took(),
            Err(ResponseRefusal::Gateway(fault)) if may_be_about_session(fault) => Box::pin(self.refused()).await,
            // A JSON body is still to be read.
            Ok(AcceptedResponse::Json(_)) | Err(ResponseRefusal::Gateway(_) | ResponseRefusal::SessionLost) => (),
        }
        opened
    }

    const fn addressee<'a>(&self, id: &'a RequestId) -> ErrorAddressee<'a> {
        if self.has_id() { ErrorAddressee::RequestInSession(id) } else { ErrorAddressee::Request(id) }
    }

    pub(crate) fn took(&self) {
        self.refusals.reset();
    }

    /// Counts a request that the upstream refused without a response.
    pub(crate) async fn refused(&self) {
        let Some(owed) = self.refusals.count() else { return };
        if owed.settle(self.ping().await) {
            tracing::info!(upstream = %self.link.name, "the upstream refuses a session and a ping in it: the session is not used any more");
            self.ended.cancel();
        }
    }

    async fn ping(&self) -> PingVerdict {
        let (id, message) = refusals::ping();
        let limits = ReadLimits::of_bytes(PING_BYTES_MAX);
        let asking = async {
            let Ok(response) = self.post_beside(message, &HandedOver::default()).await else {
                return PingVerdict::Unknown;
            };
            match reply::open(response, self.addressee(&id), &limits).await {
                Ok(AcceptedResponse::Events(_)) | Err(ResponseRefusal::Rpc(_)) => PingVerdict::Alive,
                Ok(AcceptedResponse::Json(body)) => match reply::read_whole(body, &limits).await {
                    Ok(text) if reply::answer_in(&text, &id).is_none() => PingVerdict::Refused,
                    Ok(_) | Err(_) => PingVerdict::Alive,
                },
                Err(ResponseRefusal::SessionLost) => PingVerdict::Refused,
                Err(ResponseRefusal::Gateway(fault)) if may_be_about_session(&fault) => PingVerdict::Refused,
                Err(ResponseRefusal::Gateway(_)) => PingVerdict::Unknown,
            }
        };
        tokio::time::timeout(PING_MAX, asking).await.unwrap_or(PingVerdict::Unknown)
    }

    /// Sends one message without a response, and waits until it was accepted.
    pub(crate) async fn send_one_way(&self, message: Bytes) -> Result<(), GatewayFault> {
        let handed_over = HandedOver::default();
        match tokio::time::timeout(ONE_WAY_MAX, self.post_beside(message, &handed_over)).await {
            Ok(response) => reply::accepted(&response?),
            Err(_) => Err(GatewayFault::new(Reason::UpstreamTimeout, Executed::Unknown)),
        }
    }

    /// Sends the gateway's own reply in the background. Under a flood it is dropped and counted.
    fn reply(self: &Arc<Self>, message: Bytes) {
        let Ok(permit) = Arc::clone(&self.replies).try_acquire_owned() else {
            self.link.dropped("reply_flood");
            return;
        };
        let session = Arc::clone(self);
        self.link.tracker.spawn(async move {
            let _permit = permit;
            let sent = session.link.stop.run_until_cancelled(session.send_one_way(message)).await;
            if sent.is_some_and(|sent| sent.is_err()) {
                session.link.dropped("reply_failed");
            }
        });
    }

    /// Records that a task that may be resumed later was released in it: the session is not ended at the upstream.
    pub(crate) fn keep_for_later(&self) {
        self.has_orphan.store(true, Ordering::Relaxed);
    }

    /// Ends the session at the upstream, within two seconds. Best effort: an upstream may refuse it.
    pub(crate) async fn end(&self) {
        self.ended.cancel();
        if self.has_id() && !self.has_orphan.load(Ordering::Relaxed) {
            let end = self.credentials.delete();
            let handed_over = HandedOver::default();
            let _ = tokio::time::timeout(DELETE_MAX, self.link.transport.send(&end, &handed_over)).await;
        }
    }
}

impl Drop for UpstreamSession {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// How long a call waits for the upstream to accept its log level, and how long after a failure no other one tries.
const LEVEL_MAX: Duration = Duration::from_secs(5);
const LEVEL_AGAIN: Duration = Duration::from_secs(60);
/// From the least severe on; an index into this list is a level's rank.
const LOG_LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// The level that the upstream was sent. Each client's messages are filtered by its own (MOD-23).
#[derive(Debug, Default)]
struct SessionLogLevel(Mutex<SentLogLevel>);

#[derive(Debug, Default)]
struct SentLogLevel {
    /// The rank of the lowest level that a client asked for; `None` while the upstream decides by itself.
    lowest: Option<usize>,
    failed: Option<Instant>,
}

impl UpstreamSession {
    /// Asks the upstream for messages of this level too, unless it has. A refusal costs messages, not the call.
    pub(crate) async fn lower_log_level(&self, level: &str) {
        let Some(rank) = LOG_LEVELS.iter().position(|known| *known == level) else { return };
        let capabilities = self.handshake().and_then(|handshake| Object::of(&handshake.capabilities));
        if !capabilities.is_some_and(|capabilities| capabilities.contains("logging")) {
            return;
        }
        let mut sent = self.level.0.lock().await;
        let has_failed = sent.failed.is_some_and(|failed| failed.elapsed() < LEVEL_AGAIN);
        if has_failed || sent.lowest.is_some_and(|lowest| lowest <= rank) {
            return;
        }
        let params = Payload::of(&serde_json::json!({ "level": level }));
        let telling = self.send_one_way(envelope::request(&own_ids::mint(), method::SET_LEVEL, Some(&params)));
        match tokio::time::timeout(LEVEL_MAX, telling).await {
            Ok(Ok(())) => sent.lowest = Some(rank),
            Ok(Err(_)) | Err(_) => {
                sent.failed = Some(Instant::now());
                self.link.dropped("log_level_failed");
            }
        }
    }
}
