//! A client's sessions at the upstreams of an endpoint: opened when something is asked of one, in the client's own words,
//! and remembered for as long as there is room.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _, Shared};
use http::{HeaderValue, Method};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::CombinedUpstreams;
use super::known_sessions::KnownSessions;
use super::member_answer::{MemberRefusal, read_result, whole};
use super::merge::ServerSummary;
use super::messages::plain;
use crate::dialect::initialize::initialize_request;
use crate::face::endpoint::UpstreamEndpoint;
use crate::face::headers;
use crate::face::http::{AcceptedTypes, Endpoint as _, Inbound};
use crate::face::sealed::SessionToken;
use crate::face::session::in_flight::InFlight;
use crate::face::session::session_cache::ClientSessionCache;
use crate::upstream::reply::ReadLimits;
use crate::wire::{Object, Payload, RequestId, envelope, method};

/// The sessions at all endpoints. What is remembered of them outlives a reload.
#[derive(Debug)]
pub struct CombinedSessions {
    pub(super) tokens: ClientSessionCache,
    pub(super) known: KnownSessions<CombinedSession>,
    /// Requests that wait for an upstream's session, or to know whose they are, by the nonce of the endpoint's.
    pub(super) in_flight: Arc<InFlight>,
}

impl CombinedSessions {
    #[must_use]
    pub fn new() -> Arc<Self> {
        let (tokens, known) = (ClientSessionCache::new(), KnownSessions::default());
        Arc::new(Self { tokens, known, in_flight: Arc::default() })
    }
}

/// One client's session at an endpoint, as far as it is remembered.
#[derive(Debug, Default)]
pub(super) struct CombinedSession {
    state: Mutex<CombinedSessionState>,
    /// Told whenever a session at an upstream was opened.
    opened: watch::Sender<()>,
    /// Cancelled when the client ends it.
    pub(super) ended: CancellationToken,
    /// Keyed anew for each session, so that no server finds two tokens that are taken for each other.
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct CombinedSessionState {
    /// The params of `logging/setLevel`.
    level: Option<Payload>,
    /// Sessions at upstreams, by their names.
    members: HashMap<Arc<str>, MemberSession>,
    /// Upstreams that were missing in what the client was shown.
    missing: HashSet<Arc<str>>,
    /// Whether one of these is there now, and the client does not know it.
    has_come: bool,
    /// The progress tokens of requests that upstreams are answering, and how many requests have each.
    tokens: HashMap<u64, usize>,
}

#[derive(Debug)]
enum MemberSession {
    Opening(MemberOpening),
    Open(OpenedMember),
    /// It was to be had no more when it was opened last.
    Refused,
}

/// A session at an upstream: its id, and what the upstream said of itself when it was opened.
#[derive(Clone, Debug)]
pub(super) struct OpenedMember {
    pub(super) id: HeaderValue,
    pub(super) summary: Arc<ServerSummary>,
}

/// A progress token that an upstream may report under until this is dropped.
#[derive(Debug)]
pub(super) struct GivenToken {
    session: Arc<CombinedSession>,
    given: u64,
}

impl Drop for GivenToken {
    fn drop(&mut self) {
        if let Entry::Occupied(mut requests) = self.session.state.lock().tokens.entry(self.given) {
            *requests.get_mut() -= 1;
            if *requests.get() == 0 {
                requests.remove();
            }
        }
    }
}

/// A handshake that all who need it wait for.
type MemberOpening = Shared<BoxFuture<'static, Result<OpenedMember, MemberRefusal>>>;

impl CombinedSession {
    /// The sessions at upstreams that are open: names and ids.
    pub(super) fn open_members(&self) -> Vec<(Arc<str>, HeaderValue)> {
        let open = |(upstream, member): (&Arc<str>, &MemberSession)| match member {
            MemberSession::Open(opened) => Some((Arc::clone(upstream), opened.id.clone())),
            MemberSession::Opening(_) | MemberSession::Refused => None,
        };
        self.state.lock().members.iter().filter_map(open).collect()
    }

    /// The session at one upstream, if it is open.
    pub(super) fn open_member(&self, upstream: &str) -> Option<HeaderValue> {
        match self.state.lock().members.get(upstream)? {
            MemberSession::Open(opened) => Some(opened.id.clone()),
            MemberSession::Opening(_) | MemberSession::Refused => None,
        }
    }

    /// Takes note of the progress token of a request that an upstream is given.
    pub(super) fn give(self: &Arc<Self>, upstream: &str, token: &RequestId) -> GivenToken {
        let given = self.hash(upstream, token);
        *self.state.lock().tokens.entry(given).or_default() += 1;
        GivenToken { session: Arc::clone(self), given }
    }

    /// Whether an upstream is answering a request with this progress token.
    pub(super) fn is_given(&self, upstream: &str, token: &RequestId) -> bool {
        self.state.lock().tokens.contains_key(&self.hash(upstream, token))
    }

    fn hash(&self, upstream: &str, token: &RequestId) -> u64 {
        self.hasher.hash_one((upstream, &*plain(token)))
    }

    /// The upstreams that refused a session when one was asked for last.
    pub(super) fn refused_members(&self) -> Vec<Arc<str>> {
        let state = self.state.lock();
        let refused = state.members.iter().filter(|(_, member)| matches!(member, MemberSession::Refused));
        refused.map(|(upstream, _)| Arc::clone(upstream)).collect()
    }

    /// Notes that the client was shown something without what this upstream has.
    pub(super) fn miss(&self, upstream: &Arc<str>) {
        self.state.lock().missing.insert(Arc::clone(upstream));
    }

    /// Whether an upstream that was missing is there since this was asked last.
    pub(super) fn take_has_come(&self) -> bool {
        std::mem::take(&mut self.state.lock().has_come)
    }

    /// Hears when a session at an upstream is opened.
    pub(super) fn openings(&self) -> watch::Receiver<()> {
        self.opened.subscribe()
    }

    /// The level that the client asked for last.
    fn level(&self) -> Option<Payload> {
        self.state.lock().level.clone()
    }

    /// Remembers what the client wants to hear, for sessions that are opened later.
    pub(super) fn set_level(&self, params: &Payload) {
        self.state.lock().level = Some(params.detached());
    }

    /// Forgets a session that its upstream's face has ended: the endpoint's next request for it opens another one.
    pub(super) fn forget_member(&self, upstream: &Arc<str>, ended: &HeaderValue) {
        let mut state = self.state.lock();
        if matches!(state.members.get(upstream), Some(MemberSession::Open(opened)) if opened.id == *ended) {
            state.members.remove(upstream);
        }
    }

    fn note(&self, upstream: &Arc<str>, opened: &Result<OpenedMember, MemberRefusal>) {
        let member = opened.as_ref().map_or(MemberSession::Refused, |opened| MemberSession::Open(opened.clone()));
        {
            let mut state = self.state.lock();
            state.has_come |= opened.is_ok() && state.missing.remove(upstream);
            state.members.insert(Arc::clone(upstream), member);
        }
        self.opened.send_replace(());
    }
}

/// The messages with which a session at one upstream is opened.
struct MemberHandshake {
    upstream: Arc<str>,
    endpoint: Arc<UpstreamEndpoint>,
    inbound: Inbound,
    limits: ReadLimits,
}

impl MemberHandshake {
    /// Opens the session, and tells it what the client has told others already.
    async fn run(self, session: Arc<CombinedSession>) -> Result<OpenedMember, MemberRefusal> {
        let answer = self.endpoint.serve(self.inbound.clone()).await;
        let id = answer.headers().get(headers::SESSION_ID).cloned();
        let result = read_result(answer, &self.limits).await?;
        let Some(id) = id else { return Err(MemberRefusal::late()) };
        let say = |message: Bytes| {
            let mut inbound = Inbound { body: message, ..self.inbound.clone() };
            inbound.headers.insert(headers::SESSION_ID, id.clone());
            self.endpoint.serve(inbound)
        };
        let _ = say(envelope::notification(method::INITIALIZED, None)).await;
        if let Some(level) = session.level() {
            let request = envelope::request(&RequestId::text("taskgate-level"), method::SET_LEVEL, Some(&level));
            // A server without log messages knows no such method.
            let _ = whole(say(request).await.into_body(), &self.limits).await;
        }
        Ok(OpenedMember { id, summary: Arc::new(ServerSummary::of(&result)) })
    }
}

/// Who wants a session: a request of the client's without its message, and what it said of itself.
#[derive(Clone, Copy)]
pub(super) struct ClientWords<'a> {
    pub(super) head: &'a Inbound,
    pub(super) token: &'a SessionToken,
}

impl ClientWords<'_> {
    /// The client's own words with which a session is begun.
    fn introduction(self) -> Bytes {
        let token = self.token;
        let declared = Object::of(&token.capabilities).filter(|_| token.declares_tasks);
        let with_tasks = declared.map(|declared| declared.edit().set("tasks", Payload::empty_object()).finish());
        let capabilities = with_tasks.as_ref().unwrap_or(&token.capabilities);
        let id = RequestId::text("taskgate-initialize");
        initialize_request(&id, token.client_version, capabilities, token.client_info.as_ref())
    }
}

impl CombinedUpstreams {
    /// The client's session at the upstream at `at`, opened now if there is none.
    ///
    /// # Errors
    /// If the upstream agrees to none.
    pub(super) async fn member_session(
        self: &Arc<Self>,
        session: &Arc<CombinedSession>,
        at: usize,
        client: ClientWords<'_>,
    ) -> Result<OpenedMember, MemberRefusal> {
        let upstream = &self.settings.upstreams[at];
        let opening = {
            let mut state = session.state.lock();
            match state.members.get(upstream) {
                Some(MemberSession::Open(opened)) => return Ok(opened.clone()),
                Some(MemberSession::Opening(opening)) => opening.clone(),
                Some(MemberSession::Refused) | None => {
                    let opening = self.opening(session, at, client);
                    state.members.insert(Arc::clone(upstream), MemberSession::Opening(opening.clone()));
                    opening
                }
            }
        };
        opening.await
    }

    /// Begins to open a session, which is done to its end whoever leaves.
    fn opening(self: &Arc<Self>, session: &Arc<CombinedSession>, at: usize, client: ClientWords<'_>) -> MemberOpening {
        let member = &self.members[at];
        let mut inbound = client.head.clone();
        inbound.headers.remove(headers::SESSION_ID);
        inbound.accepted = AcceptedTypes::Json;
        inbound.body = client.introduction();
        inbound.endpoint_session = Some(client.token.nonce);
        let handshake = MemberHandshake {
            upstream: Arc::clone(&self.settings.upstreams[at]),
            endpoint: Arc::clone(&member.endpoint),
            inbound,
            limits: self.read_limits(at, &client.head.principal),
        };
        let (shared, session) = (Arc::clone(self), Arc::clone(session));
        let (upstream, endpoint) = (Arc::clone(&handshake.upstream), Arc::clone(&handshake.endpoint));
        let mut ending = client.head.clone();
        let opening = async move {
            let opened = handshake.run(Arc::clone(&session)).await;
            if let Ok(opened) = &opened {
                shared.learn(at, &opened.summary);
            }
            if let (Ok(opened), true) = (&opened, session.ended.is_cancelled()) {
                ending.method = Method::DELETE;
                ending.headers.insert(headers::SESSION_ID, opened.id.clone());
                let _ = endpoint.serve(ending).await;
            }
            session.note(&upstream, &opened);
            opened
        };
        let opening = opening.boxed().shared();
        let stop = self.common().life.stop.clone();
        self.common().life.tracker.spawn(stop.run_until_cancelled_owned(opening.clone().map(|_| ())));
        opening
    }
}
