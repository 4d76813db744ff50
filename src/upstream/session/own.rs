//! Keeps clients' own sessions at one server: opens them, opens lost ones anew, lends them to calls, reads their GET streams
//! and ends them.
//!
//! Such a session belongs to one client and is never pooled. What it takes to open one anew comes with each request of its
//! client ([`OwnSession`]); what is kept here is bounded, and may be lost. Read `open` for handshakes, `lease` for calls
//! that go on without the client, `stream` for who reads the GET stream.

mod lease;
mod memory;
mod open;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use tokio::sync::Semaphore;

use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::metric;
use crate::task::{GatewayFault, Principal, Reason};
use crate::upstream::TaskScope;
use crate::upstream::answer_body::BodyKind;
use crate::upstream::raw_channel::{RawChannel, RawMethod, RawRequest, SessionBinding};
use crate::upstream::recent_map::RecentMap;
use crate::upstream::reply::{self, ErrorAddressee, JudgedResponse, ReadLimits};
use crate::upstream::session::refusals::{self, PING_BYTES_MAX, PING_MAX, PingVerdict, may_be_about_session};
use crate::upstream::{ClientCredential, ForwardedHeaders, Upstream};
use crate::wire::{Payload, ProtocolVersion};
pub use lease::SessionLease;
use lease::SessionLeases;
pub(crate) use memory::PreferenceChange;
use memory::SessionMemory;
use stream::SessionStreamReaders;
pub(crate) use stream::{ResumedStreamKind, StreamRefusal};

/// Sessions that something is remembered of; the one used longest ago falls out. What is lost with it is its log level and
/// subscriptions, and a handshake if its upstream session had been renewed.
const REMEMBERED_MAX: usize = 20_000;
/// Answers of the gateway's own that may be on their way to one server.
const REPLIES_MAX: usize = 256;
/// How long one of them may take.
const REPLY_MAX: Duration = Duration::from_secs(10);
/// How long the end of a session may take.
const END_MAX: Duration = Duration::from_secs(5);

/// Raw access to a server in whose sessions calls can run as exchanges.
pub trait OwnSessionChannel: RawChannel {
    /// The server as exchanges know it, for calls in the session that `lease` keeps open.
    fn calls_in(&self, lease: SessionLease) -> Arc<dyn Upstream>;
}

/// A client's own session, with what of the headers of the request in hand goes on to the server.
#[derive(Clone, Debug)]
pub(crate) struct OwnSession {
    pub(crate) opened: Arc<OpenedSession>,
    pub(crate) forwarded: ForwardedHeaders,
}

/// A session as its handshake left it: all that is needed to open it anew.
#[derive(Debug)]
pub(crate) struct OpenedSession {
    /// Tells sessions apart; the key of whatever is remembered of this one.
    pub(crate) nonce: u128,
    pub(crate) owner: Principal,
    pub(crate) binding: SessionBinding,
    pub(crate) version: ProtocolVersion,
    /// What the server declared of tasks of its own, whatever version it was said in.
    pub(crate) tasks: UpstreamTaskSupport,
    /// What the client can do, and what it calls itself.
    pub(crate) capabilities: Payload,
    pub(crate) client_info: Option<Payload>,
}

/// The own sessions of one server's clients.
#[derive(Debug)]
pub(crate) struct OwnSessions {
    channel: Arc<dyn OwnSessionChannel>,
    scope: TaskScope,
    /// Largest event on a session's GET stream that is looked into.
    event_bytes_max: usize,
    remembered: RecentMap<Arc<SessionMemory>>,
    leases: SessionLeases,
    readers: SessionStreamReaders,
    replies: Arc<Semaphore>,
}

impl OwnSessions {
    pub(crate) fn new(channel: Arc<dyn OwnSessionChannel>, scope: TaskScope, event_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            channel,
            scope,
            event_bytes_max,
            remembered: RecentMap::new(REMEMBERED_MAX),
            leases: SessionLeases::default(),
            readers: SessionStreamReaders::default(),
            replies: Arc::new(Semaphore::new(REPLIES_MAX)),
        })
    }

    /// Sends something in one upstream session, and judges the head of the answer.
    ///
    /// # Errors
    /// If there is no answer.
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
        Ok(reply::judge(response, ErrorAddressee::passed_in(binding, message.as_ref())).await)
    }

    /// Sends something in the session in use. A session that the server says it has lost is opened anew, and the message sent once
    /// more if it `is_wanted` then: the one that met the lost session was refused, so no tool runs twice. A server that refuses two
    /// requests in a row in other words is asked with a `ping`; where it refuses that too, the session [is over](Self::is_over).
    ///
    /// # Errors
    /// If there is no answer, or no session.
    pub(crate) async fn deliver(
        self: &Arc<Self>,
        session: &OwnSession,
        method: RawMethod,
        is_wanted: impl Fn() -> bool,
    ) -> Result<JudgedResponse, GatewayFault> {
        let binding = self.binding(session);
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
                    memory.refusals.forget();
                }
                Ok(judged)
            }
        }
    }

    /// Counts a request that the server refused without answering it.
    async fn refused(&self, session: &OwnSession, fault: &GatewayFault) {
        if !may_be_about_session(fault) {
            return;
        }
        let memory = self.remembered.get_or_default(session.opened.nonce);
        let Some(owed) = memory.refusals.count() else { return };
        if owed.settle(self.ping(session).await) {
            tracing::info!(upstream = %self.channel.name(), "the upstream refuses a client's session and a ping in it: the client is told that its session has ended");
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

    /// Answers the server in a client's session, where the client is not asked. In the background, best effort; under a
    /// flood it is dropped and counted.
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

    /// Counts a message of the server's that goes to nobody.
    pub(crate) fn dropped(&self, reason: &'static str) {
        metric::count_dropped(self.channel.name(), reason);
    }

    /// Lends a session to calls: it stays open until the last loan is given back.
    pub(crate) fn lend(self: &Arc<Self>, session: &OwnSession) -> Arc<dyn Upstream> {
        self.channel.calls_in(SessionLease::new(self, session))
    }

    /// Has a session end with the last call in it; false if no call runs in it.
    pub(crate) fn end_after_calls(&self, session: &OwnSession) -> bool {
        self.leases.put_off(session.opened.nonce, &self.binding(session))
    }

    /// Ends a session at the server, within five seconds; the status of its answer, if it gave one. One without an id has
    /// nothing there that could be ended.
    pub(crate) async fn end(&self, session: &OwnSession) -> Option<StatusCode> {
        let binding = self.binding(session);
        binding.session.as_ref()?;
        let request = RawRequest { binding, verb: RawMethod::Delete, forwarded: session.forwarded.clone() };
        let ending = tokio::time::timeout(END_MAX, self.channel.send(request)).await;
        ending.ok().and_then(Result::ok).map(|response| response.status)
    }

    /// Ends an upstream session that nobody will use, in the background.
    pub(crate) fn let_go(&self, binding: SessionBinding, credential: &ClientCredential) {
        let (channel, forwarded) = (Arc::clone(&self.channel), ForwardedHeaders::bearing(credential));
        self.scope.tracker.spawn(async move {
            let request = RawRequest { binding, verb: RawMethod::Delete, forwarded };
            let _ = tokio::time::timeout(END_MAX, channel.send(request)).await;
        });
    }
}
