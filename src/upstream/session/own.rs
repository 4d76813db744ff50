//! Manages clients' own sessions at one server: opens, renews, lends and ends them. Each belongs to one client and is
//! never pooled. A request carries all that is needed to renew its session ([`OwnSession`]); the state here is bounded,
//! and may be lost. Read `lease` (calls that outlive the client's session) and `stream` (its GET).

mod memory;
mod stream;

use std::cell::LazyCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt as _, TryStreamExt as _, stream as streams};
use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::memory::SessionMemory;
use crate::dialect::lifecycle::{capabilities_in, initialize_request};
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::metric;
use crate::shared_access::SharedAccess;
use crate::shared_limits::SharedLimits;
use crate::task::{Caller, Executed, GatewayFault, Principal, Reason};
use crate::upstream::answer_body::BodyKind;
use crate::upstream::era::denies_sessions;
use crate::upstream::outgoing::SessionHeaders;
use crate::upstream::raw_channel::{RawChannel, RawMethod, RawRequest, SessionBinding};
use crate::upstream::reply::{self, ErrorAddressee, JudgedResponse, ReadLimits};
use crate::upstream::session::initialize::{AgreedSession, HANDSHAKE_MAX, SessionOpener, agree, in_time, malformed};
use crate::upstream::session::refusals::{self, PING_BYTES_MAX, PING_MAX, PingVerdict, may_be_about_session};
use crate::upstream::session::{UpstreamLink, UpstreamSession};
use crate::upstream::upstream_health::HealthMark;
use crate::upstream::{BeginError, ClientCredential, ForwardedHeaders, TaskScope, Upstream, own_ids};
use crate::wire::object::ObjectWriter;
use crate::wire::{Payload, ProtocolVersion, RequestId, envelope, method};
pub(crate) use memory::PreferenceChange;
pub use memory::SessionMemories;
use memory::SessionPreferences;
use stream::SessionStreamReaders;
pub(crate) use stream::{ResumedStreamKind, StreamRefusal};

/// Concurrent replies of the gateway's own to one server.
const REPLIES_MAX: usize = 256;
const REPLY_MAX: Duration = Duration::from_secs(10);
const END_MAX: Duration = Duration::from_secs(5);
/// Concurrent subscriptions of one session that is reopened.
const SUBSCRIBE_AT_ONCE: usize = 8;

/// Raw access to a server that can also run calls as exchanges in its sessions.
pub trait OwnSessionChannel: RawChannel {
    /// The server as an [`Upstream`], for calls in the session that `lease` keeps open.
    fn calls_in(&self, lease: SessionLease) -> Arc<dyn Upstream>;
}

/// A client's own session, with the forwarded headers of the current request.
#[derive(Clone, Debug)]
pub(crate) struct OwnSession {
    pub(crate) opened: Arc<OpenedSession>,
    /// The sender of the current request: others of the session may come with other credentials of the same principal.
    pub(crate) caller: Caller,
    pub(crate) forwarded: ForwardedHeaders,
}

/// A session after its handshake: all that is needed to renew it.
#[derive(Debug)]
pub(crate) struct OpenedSession {
    /// The session's unique key, also of its state in memory.
    pub(crate) nonce: u128,
    pub(crate) owner: Principal,
    /// The principal that the session counts for in bounded maps: anonymous clients are distinguished by address.
    pub(crate) counted_as: Principal,
    pub(crate) binding: SessionBinding,
    pub(crate) version: ProtocolVersion,
    pub(crate) tasks: UpstreamTaskSupport,
    pub(crate) capabilities: Payload,
    pub(crate) client_info: Option<Payload>,
}

#[derive(Debug)]
pub(crate) struct OwnSessions {
    channel: Arc<dyn OwnSessionChannel>,
    scope: TaskScope,
    access: SharedAccess,
    limits: SharedLimits,
    /// Largest event on a session's GET stream that is read.
    event_bytes_max: usize,
    memories: Arc<SessionMemories>,
    leases: SessionLeases,
    readers: SessionStreamReaders,
    replies: Arc<Semaphore>,
}

impl OwnSessions {
    pub(crate) fn new(
        channel: Arc<dyn OwnSessionChannel>,
        scope: TaskScope,
        access: SharedAccess,
        limits: SharedLimits,
        event_bytes_max: usize,
        memories: Arc<SessionMemories>,
    ) -> Arc<Self> {
        Arc::new(Self {
            channel,
            scope,
            access,
            limits,
            event_bytes_max,
            memories,
            leases: SessionLeases::default(),
            readers: SessionStreamReaders::default(),
            replies: Arc::new(Semaphore::new(REPLIES_MAX)),
        })
    }

    pub(crate) async fn send(
        &self,
        binding: &SessionBinding,
        method: RawMethod,
        forwarded: &ForwardedHeaders,
    ) -> Result<JudgedResponse, GatewayFault> {
        let message = match &method {
            // Shared with the request, not copied.
            RawMethod::Post(text) | RawMethod::PostWith { message: text, .. } => Some(text.clone()),
            RawMethod::Note(_) | RawMethod::Get { .. } | RawMethod::Delete => None,
        };
        let request = RawRequest { binding: binding.clone(), verb: method, forwarded: forwarded.clone() };
        let response = self.channel.send(request).await?;
        Ok(reply::judge(response, ErrorAddressee::forwarded_in(binding, message.as_ref())).await)
    }

    /// Sends a message in the current session. A session that the server has lost is renewed, and the message sent once
    /// more if it `is_wanted` then: the first one was refused, so no tool runs twice. After two consecutive refusals of
    /// another form, sends a `ping`; if that is refused too, the session [is over](Self::is_over).
    pub(crate) async fn deliver(
        self: &Arc<Self>,
        session: &OwnSession,
        method: RawMethod,
        is_wanted: impl Fn() -> bool,
    ) -> Result<JudgedResponse, GatewayFault> {
        let binding = self.binding(session);
        self.subscribe_postponed(session, &binding);
        match self.send(&binding, method.clone(), &session.forwarded).await? {
            JudgedResponse::SessionLost => {
                let renewed = Box::pin(self.renew(session, &binding)).await?;
                if !is_wanted() {
                    return Ok(JudgedResponse::SessionLost);
                }
                Box::pin(self.send(&renewed, method, &session.forwarded)).await
            }
            JudgedResponse::Refused { fault, error, is_answer: false } => {
                Box::pin(self.refused(session, &fault)).await;
                Ok(JudgedResponse::Refused { fault, error, is_answer: false })
            }
            judged @ (JudgedResponse::Fine(_) | JudgedResponse::Refused { .. }) => {
                if let Some(memory) = self.memory(session) {
                    memory.refusals.reset();
                }
                Ok(judged)
            }
        }
    }

    /// Counts a request that the server refused without a response.
    async fn refused(&self, session: &OwnSession, fault: &GatewayFault) {
        if !may_be_about_session(fault) {
            return;
        }
        let memory = self.memory_or_new(session);
        let Some(owed) = memory.refusals.count() else { return };
        if owed.settle(self.ping(session).await) {
            tracing::info!(upstream = %self.channel.name(), "the upstream refuses a client's session and a ping in it: the client is notified that its session has ended");
        }
    }

    async fn ping(&self, session: &OwnSession) -> PingVerdict {
        let (id, message) = refusals::ping();
        let (binding, verb) = (self.binding(session), RawMethod::Post(message.into()));
        let forwarded = ForwardedHeaders::bearing(&session.forwarded.credential());
        let limits = ReadLimits::of_bytes(PING_BYTES_MAX);
        let asking = async {
            match self.send(&binding, verb, &forwarded).await {
                Ok(JudgedResponse::Fine(response)) if response.content == BodyKind::Events => PingVerdict::Alive,
                Ok(JudgedResponse::Fine(response)) => match reply::answer(response, &id, &limits).await {
                    Err(fault) if fault.reason == Reason::UpstreamMalformed => PingVerdict::Refused,
                    Ok(_) | Err(_) => PingVerdict::Alive,
                },
                Ok(JudgedResponse::Refused { is_answer: true, .. }) => PingVerdict::Alive,
                Ok(JudgedResponse::SessionLost) => PingVerdict::Refused,
                Ok(JudgedResponse::Refused { fault, .. }) if may_be_about_session(&fault) => PingVerdict::Refused,
                Ok(JudgedResponse::Refused { .. }) | Err(_) => PingVerdict::Unknown,
            }
        };
        tokio::time::timeout(PING_MAX, asking).await.unwrap_or(PingVerdict::Unknown)
    }

    /// Replies to the server in a client's session without asking it, in the background; drops and counts a flood.
    pub(crate) fn reply(self: &Arc<Self>, session: &OwnSession, message: Bytes) {
        let Ok(permit) = Arc::clone(&self.replies).try_acquire_owned() else { return self.dropped("reply_flood") };
        let (channel, stop) = (Arc::clone(&self.channel), self.scope.stop.clone());
        let (binding, forwarded) = (self.binding(session), ForwardedHeaders::bearing(&session.forwarded.credential()));
        let replying = async move {
            let _permit = permit;
            let verb = RawMethod::Post(message.into());
            let request = RawRequest { binding, verb, forwarded };
            let _ = tokio::time::timeout(REPLY_MAX, channel.send(request)).await;
        };
        self.scope.tracker.spawn(stop.run_until_cancelled_owned(Box::pin(replying)));
    }

    pub(crate) fn dropped(&self, reason: &'static str) {
        metric::count_dropped(self.channel.name(), reason);
    }

    /// Lends a session to calls: it stays open until the last lease is dropped.
    pub(crate) fn lend(self: &Arc<Self>, session: &OwnSession) -> Arc<dyn Upstream> {
        self.channel.calls_in(SessionLease::new(self, session))
    }

    /// Ends a session with the last call in it; false if no call runs in it.
    pub(crate) fn end_after_calls(self: &Arc<Self>, session: &OwnSession) -> bool {
        let (nonce, credential) = (session.opened.nonce, session.forwarded.credential());
        // In this order: a renewal that ends in between is in the binding.
        let (renewal, binding) = (self.renewal(session), self.binding(session));
        let is_postponed = self.leases.with(nonce, |leased| leased.ended = Some(binding)).is_some();
        if let Some(renewal) = renewal.filter(|_| is_postponed) {
            let sessions = Arc::clone(self);
            // The calls may end before the server has opened the session that their client would have had (B267).
            self.scope.tracker.spawn(async move {
                if let Ok(renewed) = renewal.await
                    && sessions.leases.with(nonce, |leased| leased.ended = Some(renewed.clone())).is_none()
                {
                    sessions.end_unused(renewed, &credential);
                }
            });
        }
        is_postponed
    }

    /// Ends a session at the server, within five seconds; a session without an id needs no end.
    pub(crate) async fn end(&self, session: &OwnSession) -> Option<StatusCode> {
        let ending = async {
            // A renewal in progress would leave a session without a client (B267).
            if let Some(renewal) = self.renewal(session) {
                let _ = renewal.await;
            }
            let binding = self.binding(session);
            binding.session.as_ref()?;
            let request = RawRequest { binding, verb: RawMethod::Delete, forwarded: session.forwarded.clone() };
            self.channel.send(request).await.ok().map(|response| response.status)
        };
        tokio::time::timeout(END_MAX, ending).await.ok().flatten()
    }

    /// Ends an unused upstream session, in the background.
    pub(crate) fn end_unused(&self, binding: SessionBinding, credential: &ClientCredential) {
        if binding.session.is_none() {
            return;
        }
        let (channel, forwarded) = (Arc::clone(&self.channel), ForwardedHeaders::bearing(credential));
        self.scope.tracker.spawn(async move {
            let request = RawRequest { binding, verb: RawMethod::Delete, forwarded };
            let _ = tokio::time::timeout(END_MAX, channel.send(request)).await;
        });
    }
}

/// Largest response to a setting of a new session.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

impl OwnSessions {
    /// Opens a session with the client's own `initialize`; other versions are tried in turn, within `HANDSHAKE_MAX`.
    pub(crate) async fn open(
        &self,
        owner: &Principal,
        forwarded: &ForwardedHeaders,
        version: ProtocolVersion,
        message: impl Fn(ProtocolVersion) -> (RequestId, Bytes),
    ) -> Result<AgreedSession, BeginError> {
        let opener = SessionOpener { owner, forwarded, addressee: ErrorAddressee::Forwarded(None) };
        let next = |asked, refusal: &BeginError| self.channel.version_after(asked, refusal);
        let asked = self.channel.version_for(version);
        let agreed = in_time(&*self.channel, agree(&*self.channel, opener, asked, next, message)).await?;
        if agreed.version.is_stateless() {
            self.end_unused(agreed.binding(), &forwarded.credential());
            return Err(malformed());
        }
        Ok(agreed)
    }

    /// Replaces a lost session: one handshake for all waiters; the client's id stays. After an error nothing was sent.
    pub(crate) async fn renew(
        self: &Arc<Self>,
        session: &OwnSession,
        lost: &SessionBinding,
    ) -> Result<SessionBinding, GatewayFault> {
        let open = |preferences| {
            let (sessions, session) = (Arc::clone(self), session.clone());
            let stop = self.scope.stop.clone();
            // In its own task, so that a waiter who leaves does not stop it.
            let opening = self.scope.tracker.spawn(stop.run_until_cancelled_owned(Box::pin(async move {
                let renewed = sessions.reopen(&session, preferences).await;
                let outcome = if renewed.is_ok() { "renewed" } else { "failed" };
                let upstream = Arc::clone(sessions.channel.name());
                metrics::counter!(metric::SESSION_RENEWALS, "upstream" => upstream, "outcome" => outcome).increment(1);
                renewed
            })));
            let opened = opening.map(|opened| match opened {
                Ok(Some(opened)) => opened,
                Ok(None) => Err(GatewayFault::new(Reason::Draining, Executed::No)),
                Err(_) => Err(GatewayFault::new(Reason::Internal, Executed::No)),
            });
            opened.boxed()
        };
        self.memory_or_new(session).replace(lost, &self.scope.tracker, open).await
    }

    async fn reopen(
        self: &Arc<Self>,
        session: &OwnSession,
        preferences: SessionPreferences,
    ) -> Result<SessionBinding, GatewayFault> {
        let OpenedSession { version, owner, capabilities, client_info, .. } = &*session.opened;
        let id = own_ids::mint();
        let message = |version| {
            let capabilities = capabilities_in(version, capabilities);
            (id.clone(), initialize_request(&id, version, &capabilities, client_info.as_ref()))
        };
        let binding = match self.open(owner, &session.forwarded, *version, message).await {
            Ok(agreed) => agreed.binding(),
            Err(BeginError::Gateway(fault)) => return Err(fault),
            Err(BeginError::Refused(error)) => {
                tracing::warn!(upstream = %self.channel.name(), code = error.code, "the upstream refused to replace a lost session");
                if denies_sessions(&error) {
                    self.memory_or_new(session).refusals.set(refusals::OVER);
                }
                return Err(GatewayFault::new(Reason::UpstreamRefused, Executed::No));
            }
        };
        tracing::info!(upstream = %self.channel.name(), "replaced a session that the upstream had lost");
        let initialized = envelope::notification(method::INITIALIZED, None);
        let end = |_: &GatewayFault| self.end_unused(binding.clone(), &session.forwarded.credential());
        self.send_and_await(&binding, &session.forwarded, initialized).await.inspect_err(end)?;
        let SessionPreferences { level, subscriptions } = preferences;
        // A caller with fewer rights may be the one that renews it.
        let access = self.access.tools_of(&session.caller, self.channel.name());
        let (allowed, postponed) = subscriptions.into_iter().partition(|uri| access.has_resource(uri));
        self.memory_or_new(session).postpone(postponed);
        let sending = self.send_preferences(session, &binding, SessionPreferences { level, subscriptions: allowed });
        // The request that found the session lost waits for this.
        match tokio::time::timeout(END_MAX, sending).await {
            Ok(Ok(Some(sent))) => sent.inspect_err(end).map(|()| binding),
            Ok(Ok(None) | Err(_)) | Err(_) => Ok(binding),
        }
    }

    /// Subscribes to resources that the session's renewal left out, if this caller may use them. In the background.
    pub(super) fn subscribe_postponed(self: &Arc<Self>, session: &OwnSession, binding: &SessionBinding) {
        if *binding == session.opened.binding {
            return;
        }
        let access = LazyCell::new(|| self.access.tools_of(&session.caller, self.channel.name()));
        let due = self.memory(session).map(|memory| memory.take_postponed(|uri| access.has_resource(uri)));
        if let Some(subscriptions) = due.filter(|due| !due.is_empty()) {
            drop(self.send_preferences(session, binding, SessionPreferences { level: None, subscriptions }));
        }
    }

    /// Sends the log level, then the subscriptions, several at a time, even if no caller awaits it.
    fn send_preferences(
        self: &Arc<Self>,
        session: &OwnSession,
        binding: &SessionBinding,
        preferences: SessionPreferences,
    ) -> JoinHandle<Option<Result<(), GatewayFault>>> {
        let (sessions, binding, forwarded) = (Arc::clone(self), binding.clone(), session.forwarded.clone());
        let sending = async move {
            let send = |name, params: &Payload| {
                sessions.send_and_await(&binding, &forwarded, envelope::request(&own_ids::mint(), name, Some(params)))
            };
            if let Some(level) = &preferences.level {
                send(method::SET_LEVEL, level).await?;
            }
            let subscribing = preferences.subscriptions.into_iter().map(|uri| {
                let params = ObjectWriter::new().text("uri", &uri).finish();
                send(method::RESOURCES_SUBSCRIBE, &params)
            });
            streams::iter(subscribing).buffer_unordered(SUBSCRIBE_AT_ONCE).try_collect().await
        };
        self.scope.tracker.spawn(self.scope.stop.clone().run_until_cancelled_owned(sending))
    }

    /// Sends a message and waits for its response, which is ignored; only an unreachable server is an error.
    async fn send_and_await(
        &self,
        binding: &SessionBinding,
        forwarded: &ForwardedHeaders,
        message: Bytes,
    ) -> Result<(), GatewayFault> {
        let (binding, verb) = (binding.clone(), RawMethod::Post(message.into()));
        let sending = self.channel.send(RawRequest { binding, verb, forwarded: forwarded.clone() });
        let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::No);
        let sent = tokio::time::timeout(HANDSHAKE_MAX, sending).await.unwrap_or_else(|_| {
            if let Some(health) = self.channel.health() {
                health.ended(HealthMark::default(), &late);
            }
            Err(late)
        });
        let response = sent.map_err(|fault| GatewayFault { executed: Executed::No, ..fault })?;
        // Only a session that has responded has surely applied the setting.
        let limits = ReadLimits::of_bytes(ANSWER_BYTES_MAX);
        let answer = reply::read_whole(response.body, &limits);
        let _ = tokio::time::timeout(END_MAX, answer).await;
        Ok(())
    }
}

#[derive(Debug, Default)]
struct SessionLeases(Mutex<HashMap<u128, LeasedSession>>);

#[derive(Debug, Default)]
struct LeasedSession {
    calls: usize,
    /// The upstream session to end, once the client has ended its own.
    ended: Option<SessionBinding>,
    /// A call that may be resumed later was released in it: it is not ended from here.
    has_orphan: bool,
    /// The sessions of its calls that may be the server's own tasks.
    listening: Vec<Weak<UpstreamSession>>,
    /// Cancelled with the last lease.
    idle: CancellationToken,
}

impl SessionLeases {
    /// Drops one lease; returns the upstream session to end now, if any.
    fn leave(&self, nonce: u128) -> Option<SessionBinding> {
        let mut all = self.0.lock();
        let Entry::Occupied(mut leased) = all.entry(nonce) else { return None };
        leased.get_mut().calls -= 1;
        if leased.get().calls > 0 {
            return None;
        }
        let leased = leased.remove();
        leased.idle.cancel();
        leased.ended.filter(|_| !leased.has_orphan)
    }

    /// Reads or changes the state of a session in which a call runs.
    fn with<T>(&self, nonce: u128, act: impl FnOnce(&mut LeasedSession) -> T) -> Option<T> {
        self.0.lock().get_mut(&nonce).map(act)
    }

    fn listen(&self, nonce: u128, session: &Arc<UpstreamSession>) {
        self.with(nonce, |leased| {
            leased.listening.retain(|session| session.strong_count() > 0);
            leased.listening.push(Arc::downgrade(session));
        });
    }

    /// The calls' sessions that receive messages of the session's own stream.
    fn listening(&self, nonce: u128) -> Vec<Arc<UpstreamSession>> {
        self.with(nonce, |leased| leased.listening.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default()
    }
}

#[derive(Debug)]
#[must_use]
pub struct SessionLease {
    sessions: Arc<OwnSessions>,
    session: OwnSession,
    /// In use while it is held, so that it makes no room for another session's.
    memory: Arc<SessionMemory>,
}

impl SessionLease {
    fn new(sessions: &Arc<OwnSessions>, session: &OwnSession) -> Self {
        sessions.leases.0.lock().entry(session.opened.nonce).or_default().calls += 1;
        Self { sessions: Arc::clone(sessions), session: session.clone(), memory: sessions.memory_or_new(session) }
    }

    pub(crate) async fn session(&self, link: &Arc<UpstreamLink>) -> Arc<UpstreamSession> {
        let ended = self.sessions.leases.with(self.session.opened.nonce, |leased| leased.ended.clone()).flatten();
        let binding = ended.unwrap_or_else(|| self.sessions.binding(&self.session));
        self.listened_to(self.adopt(link, binding)).await
    }

    /// A call that may be the server's task receives messages of the session's own stream.
    pub(crate) fn adopt(&self, link: &Arc<UpstreamLink>, binding: SessionBinding) -> Arc<UpstreamSession> {
        let SessionBinding { session, version, tasks } = binding;
        let client = self.session.forwarded.credential();
        let refusals = &self.memory.refusals;
        let adopted =
            UpstreamSession::new(link, SessionHeaders { session, version, client }, None, tasks, Arc::clone(refusals));
        if tasks.calls {
            self.sessions.leases.listen(self.session.opened.nonce, &adopted);
            self.sessions.read_for_calls(&self.session);
        }
        adopted
    }

    pub(crate) fn counted_as(&self) -> &Principal {
        &self.session.opened.counted_as
    }

    /// Leaves the session open at the server after its client and its last call here have ended.
    pub(crate) fn keep_for_later(&self) {
        self.sessions.leases.with(self.session.opened.nonce, |leased| leased.has_orphan = true);
    }

    /// The session that replaces one that the server has lost, for one call. After an error nothing was sent in it.
    pub(crate) async fn renew(&self, lost: &UpstreamSession) -> Result<Arc<UpstreamSession>, GatewayFault> {
        let SessionHeaders { session, version, .. } = lost.credentials.clone();
        let lost_binding = SessionBinding { session, version, tasks: lost.tasks };
        let renewed = self.sessions.renew(&self.session, &lost_binding).await?;
        self.sessions.leases.with(self.session.opened.nonce, |leased| {
            leased.ended.iter_mut().for_each(|ended| ended.clone_from(&renewed));
        });
        Ok(self.listened_to(self.adopt(&lost.link, renewed)).await)
    }

    /// Waits until the session's own stream is read, if the server may send messages of its tasks there.
    async fn listened_to(&self, session: Arc<UpstreamSession>) -> Arc<UpstreamSession> {
        if session.tasks.calls {
            self.sessions.stream_settled(&self.session).await;
        }
        session
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        if let Some(binding) = self.sessions.leases.leave(self.session.opened.nonce)
            // Without a runtime nothing can be sent to the server.
            && tokio::runtime::Handle::try_current().is_ok()
        {
            self.sessions.end_unused(binding, &self.session.forwarded.credential());
        }
    }
}
