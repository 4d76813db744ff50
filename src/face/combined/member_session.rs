//! Opens a client's sessions at the upstreams of an endpoint on demand, with the client's own `initialize`.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt as _, Shared};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::CombinedUpstreams;
use super::member_answer::{MemberRefusal, read_result, whole};
use super::merge::ServerDescription;
use super::messages::plain;
use crate::dialect::lifecycle::initialize_request;
use crate::dialect::negotiate::LogLevel;
use crate::face::endpoint::UpstreamEndpoint;
use crate::face::headers;
use crate::face::http::{AcceptedTypes, Endpoint as _, FaceResponse, Inbound};
use crate::face::sealed::SessionToken;
use crate::face::session::in_flight::InFlight;
use crate::face::session::session_cache::ClientSessionCache;
use crate::task::{Caller, Principal};
use crate::upstream::recent_map::{OwnedValue, RecentMap, RecentValue};
use crate::upstream::reply::ReadLimits;
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, RequestId, envelope, method};

/// The sessions at all endpoints outlive a reload.
#[derive(Debug)]
pub struct CombinedSessions {
    pub(super) tokens: ClientSessionCache,
    pub(super) known: KnownSessions<CombinedSession>,
    /// Requests that wait for an upstream's session or their routing, by the nonce of the endpoint's session.
    pub(super) in_flight: Arc<InFlight>,
}

impl CombinedSessions {
    pub fn new() -> Arc<Self> {
        Self::with_capacity(SESSIONS_MAX)
    }

    pub fn with_capacity(sessions_max: usize) -> Arc<Self> {
        let (tokens, known) = (ClientSessionCache::new(), KnownSessions::new(sessions_max));
        Arc::new(Self { tokens, known, in_flight: Arc::default() })
    }
}

#[derive(Debug, Default)]
pub(super) struct CombinedSession {
    state: Mutex<CombinedSessionState>,
    /// Notified when a session at an upstream was opened.
    pub(super) opened: watch::Sender<()>,
    pub(super) ended: CancellationToken,
    /// Whether this process opened it. Otherwise its client's sessions at upstreams are lost (U111).
    pub(super) is_begun_here: AtomicBool,
    /// A random key per session: no server can construct colliding tokens.
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct CombinedSessionState {
    level: Option<LogLevel>,
    members: HashMap<Arc<str>, MemberSession>,
    missing: HashSet<Arc<str>>,
    /// Whether a missing upstream is available now, and the client is not notified yet.
    became_available: bool,
    /// Hashes of progress tokens, with the number of requests in progress for each.
    tokens: HashMap<u64, usize>,
    /// The headers by which servers know the client, from the request that opened the last session at one (U96).
    identifying: HeaderMap,
}

#[derive(Debug)]
enum MemberSession {
    Opening(MemberOpening),
    Open(HeaderValue),
    /// The upstream refused the last attempt to open one.
    Refused,
}

#[derive(Clone, Debug)]
pub(super) struct OpenedMember {
    pub(super) id: HeaderValue,
    /// The server's description; `None` for a session that was already open, because sessions do not store it.
    pub(super) description: Option<Arc<ServerDescription>>,
}

/// A progress token that the upstream was sent, and may use until this is dropped.
#[derive(Debug)]
pub(super) struct SentToken {
    session: Arc<CombinedSession>,
    hash: u64,
}

impl Drop for SentToken {
    fn drop(&mut self) {
        if let Entry::Occupied(mut requests) = self.session.state.lock().tokens.entry(self.hash) {
            *requests.get_mut() -= 1;
            if *requests.get() == 0 {
                requests.remove();
            }
        }
    }
}

/// A handshake that all requests for the session await.
type MemberOpening = Shared<BoxFuture<'static, Result<OpenedMember, MemberRefusal>>>;

impl CombinedSession {
    pub(super) fn open_members(&self) -> Vec<(Arc<str>, HeaderValue)> {
        let open = |(upstream, member): (&Arc<str>, &MemberSession)| match member {
            MemberSession::Open(id) => Some((Arc::clone(upstream), id.clone())),
            MemberSession::Opening(_) | MemberSession::Refused => None,
        };
        self.state.lock().members.iter().filter_map(open).collect()
    }

    pub(super) fn open_member(&self, upstream: &str) -> Option<HeaderValue> {
        if let MemberSession::Open(id) = self.state.lock().members.get(upstream)? { Some(id.clone()) } else { None }
    }

    pub(super) fn identifying_headers(&self) -> HeaderMap {
        self.state.lock().identifying.clone()
    }

    pub(super) fn note_token(self: &Arc<Self>, upstream: &str, token: &RequestId) -> SentToken {
        let hash = self.hash(upstream, token);
        *self.state.lock().tokens.entry(hash).or_default() += 1;
        SentToken { session: Arc::clone(self), hash }
    }

    pub(super) fn was_sent_token(&self, upstream: &str, token: &RequestId) -> bool {
        self.state.lock().tokens.contains_key(&self.hash(upstream, token))
    }

    fn hash(&self, upstream: &str, token: &RequestId) -> u64 {
        self.hasher.hash_one((upstream, &*plain(token)))
    }

    pub(super) fn refused_members(&self) -> Vec<Arc<str>> {
        let state = self.state.lock();
        let refused = state.members.iter().filter(|(_, member)| matches!(member, MemberSession::Refused));
        refused.map(|(upstream, _)| Arc::clone(upstream)).collect()
    }

    pub(super) fn miss(&self, upstream: &Arc<str>) {
        self.state.lock().missing.insert(Arc::clone(upstream));
    }

    pub(super) fn take_became_available(&self) -> bool {
        std::mem::take(&mut self.state.lock().became_available)
    }

    fn level(&self) -> Option<LogLevel> {
        self.state.lock().level
    }

    /// Stores the level for sessions that are opened later.
    pub(super) fn set_level(&self, level: LogLevel) {
        self.state.lock().level = Some(level);
    }

    /// Removes the session that has `ended`: the next request opens a new one.
    pub(super) fn remove_member(&self, upstream: &Arc<str>, ended: &HeaderValue) {
        let mut state = self.state.lock();
        if matches!(state.members.get(upstream), Some(MemberSession::Open(id)) if id == ended) {
            state.members.remove(upstream);
        }
    }

    fn note(&self, upstream: &Arc<str>, opened: &Result<OpenedMember, MemberRefusal>) {
        let member = opened.as_ref().map_or(MemberSession::Refused, |opened| MemberSession::Open(opened.id.clone()));
        {
            let mut state = self.state.lock();
            state.became_available |= opened.is_ok() && state.missing.remove(upstream);
            state.members.insert(Arc::clone(upstream), member);
        }
        self.opened.send_replace(());
    }
}

struct MemberHandshake {
    upstream: Arc<str>,
    endpoint: Arc<UpstreamEndpoint>,
    inbound: Inbound,
    limits: ReadLimits,
}

impl MemberHandshake {
    /// Opens the session, and sends it the client's log level, which it puts into `level`.
    async fn run(
        &self,
        session: &CombinedSession,
        level: &mut Option<LogLevel>,
    ) -> Result<OpenedMember, MemberRefusal> {
        let answer = self.endpoint.serve(Box::new(self.inbound.clone())).await;
        let id = answer.headers().get(headers::SESSION_ID).cloned();
        let result = read_result(answer, &self.limits).await?;
        let Some(id) = id else { return Err(MemberRefusal::late()) };
        let _ = self.send(&id, envelope::notification(method::INITIALIZED, None)).await;
        self.send_level(session, &id, level).await;
        Ok(OpenedMember { id, description: Some(Arc::new(ServerDescription::of(&result))) })
    }

    async fn send(&self, id: &HeaderValue, message: Bytes) -> FaceResponse {
        let mut inbound = Inbound { body: message, ..self.inbound.clone() };
        inbound.headers.insert(headers::SESSION_ID, id.clone());
        self.endpoint.serve(Box::new(inbound)).await
    }

    /// Sends the client's log level, until the level that was `sent` is the current one.
    async fn send_level(&self, session: &CombinedSession, id: &HeaderValue, sent: &mut Option<LogLevel>) {
        while let Some(level) = session.level().filter(|level| *sent != Some(*level)) {
            let params = ObjectWriter::new().text("level", level.as_str()).finish();
            let request = envelope::request(&RequestId::text("taskgate-level"), method::SET_LEVEL, Some(&params));
            // A server without log messages does not know this method.
            let _ = whole(self.send(id, request).await.into_body(), &self.limits).await;
            *sent = Some(level);
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct HandshakeSource<'a> {
    pub(super) head: &'a Inbound,
    pub(super) token: &'a SessionToken,
}

impl HandshakeSource<'_> {
    fn initialize_request(self) -> Bytes {
        let token = self.token;
        let declared = Object::of(&token.capabilities).filter(|_| token.declares_tasks);
        let with_tasks = declared.map(|declared| declared.edit().set("tasks", Payload::empty_object()).finish());
        let capabilities = with_tasks.as_ref().unwrap_or(&token.capabilities);
        let id = RequestId::text("taskgate-initialize");
        initialize_request(&id, token.client_version, capabilities, token.client_info.as_ref())
    }
}

impl CombinedUpstreams {
    /// Opens a session if there is none, or the last has ended at its upstream. Fails if the upstream refuses one.
    pub(super) async fn member_session(
        self: &Arc<Self>,
        session: &Arc<CombinedSession>,
        at: usize,
        client: HandshakeSource<'_>,
    ) -> Result<OpenedMember, MemberRefusal> {
        let upstream = &self.settings.upstreams[at];
        let has_ended = || self.members[at].endpoint.has_ended(client.token.nonce);
        let opening = {
            let mut state = session.state.lock();
            match state.members.get(upstream) {
                Some(MemberSession::Open(id)) if !has_ended() => {
                    return Ok(OpenedMember { id: id.clone(), description: None });
                }
                Some(MemberSession::Opening(opening)) => opening.clone(),
                Some(MemberSession::Open(_) | MemberSession::Refused) | None => {
                    let opening = self.opening(session, at, client);
                    let forwards = |name: &HeaderName| self.members.iter().any(|member| member.endpoint.forwards(name));
                    state.identifying = identifying(&client.head.headers, forwards);
                    state.members.insert(Arc::clone(upstream), MemberSession::Opening(opening.clone()));
                    opening
                }
            }
        };
        opening.await
    }

    /// The handshake completes even if the client disconnects.
    fn opening(
        self: &Arc<Self>,
        session: &Arc<CombinedSession>,
        at: usize,
        client: HandshakeSource<'_>,
    ) -> MemberOpening {
        let member = &self.members[at];
        let mut inbound = client.head.clone();
        inbound.headers.remove(headers::SESSION_ID);
        inbound.accepted = AcceptedTypes::Json;
        inbound.body = client.initialize_request();
        inbound.endpoint_session = Some(client.token.nonce);
        let handshake = MemberHandshake {
            upstream: Arc::clone(&self.settings.upstreams[at]),
            endpoint: Arc::clone(&member.endpoint),
            inbound,
            limits: self.read_limits(at, &client.head.caller.principal),
        };
        let (shared, session) = (Arc::clone(self), Arc::clone(session));
        let (upstream, endpoint) = (Arc::clone(&handshake.upstream), Arc::clone(&handshake.endpoint));
        let mut ending = client.head.clone();
        let opening = async move {
            let mut level = None;
            let opened = handshake.run(&session, &mut level).await;
            if let Ok(OpenedMember { description: Some(description), .. }) = &opened {
                shared.cache_description(at, description);
            }
            session.note(&upstream, &opened);
            // A level that was set before `note` was sent to other members alone.
            if let Ok(opened) = &opened {
                handshake.send_level(&session, &opened.id, &mut level).await;
            }
            // Checked after `note`: either the session's end sees the open member, or this check sees the end.
            if let (Ok(opened), true) = (&opened, session.ended.is_cancelled()) {
                ending.method = Method::DELETE;
                ending.headers.insert(headers::SESSION_ID, opened.id.clone());
                let _ = endpoint.serve(Box::new(ending)).await;
            }
            opened
        };
        let opening = opening.boxed().shared();
        let stop = self.common().scope.stop.clone();
        self.common().scope.tracker.spawn(stop.run_until_cancelled_owned(opening.clone().map(|_| ())));
        opening
    }
}

const SESSIONS_MAX: usize = 20_000;
/// The most bytes of a client's headers that a session keeps.
const IDENTIFYING_BYTES_MAX: usize = 4 * 1024;

/// Copies the forwarded headers, as each value would keep the head of its request. None are kept if they are too long.
fn identifying(headers: &HeaderMap, forwards: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let forwarded = headers.iter().filter(|&(name, _)| forwards(name));
    let copy = |value: &HeaderValue| HeaderValue::from_bytes(value.as_bytes()).ok();
    let copies: HeaderMap = forwarded.filter_map(|(name, value)| Some((name.clone(), copy(value)?))).collect();
    let bytes = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + size_of_val(value);
    if copies.iter().map(bytes).sum::<usize>() <= IDENTIFYING_BYTES_MAX { copies } else { HeaderMap::new() }
}

/// Clients' sessions at endpoints, by nonce, with a share for each principal; `S` is a session's state. An evicted
/// session loses its upstream sessions. The principal with most sessions makes room; used ones stay ([`RecentMap`]).
#[derive(Debug)]
pub(super) struct KnownSessions<S> {
    pub(super) by_nonce: RecentMap<KnownSession<S>>,
}

#[derive(Debug)]
pub(super) struct KnownSession<S> {
    pub(super) session: Arc<S>,
    pub(super) caller: Caller,
}

impl<S> Clone for KnownSession<S> {
    fn clone(&self) -> Self {
        Self { session: Arc::clone(&self.session), caller: self.caller.clone() }
    }
}

impl<S> RecentValue for KnownSession<S> {
    fn is_in_use(&self) -> bool {
        self.session.is_in_use()
    }
}

#[derive(Clone, Debug)]
pub(super) struct SessionOwner {
    pub(super) caller: Caller,
    /// The principal that the session counts for: anonymous clients are distinguished by address.
    pub(super) counted_as: Principal,
}

impl<S: Default> KnownSessions<S> {
    pub(super) fn new(sessions_max: usize) -> Self {
        Self { by_nonce: RecentMap::new(sessions_max) }
    }

    /// Also returns the sessions that made room.
    pub(super) fn get_or_default(
        &self,
        nonce: u128,
        owner: impl FnOnce() -> SessionOwner,
    ) -> (Arc<S>, Vec<KnownSession<S>>) {
        let entered = self.by_nonce.get_or_insert_with(nonce, || {
            let SessionOwner { caller, counted_as } = owner();
            OwnedValue { owner: counted_as, value: KnownSession { session: Arc::default(), caller } }
        });
        (entered.value.session, entered.evicted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> SessionOwner {
        SessionOwner { caller: Caller::of(Principal::new(name)), counted_as: Principal::new(name) }
    }

    fn with_room(sessions_max: usize) -> KnownSessions<u8> {
        KnownSessions { by_nonce: RecentMap::of_one_shard(sessions_max) }
    }

    /// U96.
    #[test]
    fn a_clients_headers_are_kept_as_copies_unless_they_are_long() {
        let head = Bytes::from("t".repeat(IDENTIFYING_BYTES_MAX));
        let kept = |bytes: usize| {
            let tenant = HeaderValue::from_maybe_shared(head.slice(..bytes)).unwrap();
            let named = [(HeaderName::from_static("x-tenant"), tenant), (headers::SESSION_ID, "s-1".parse().unwrap())];
            identifying(&HeaderMap::from_iter(named), |name| *name == "x-tenant")
        };
        let short = kept(3);
        assert_eq!((short.len(), short["x-tenant"].as_bytes()), (1, &b"ttt"[..]));
        assert_ne!(short["x-tenant"].as_bytes().as_ptr(), head.as_ptr(), "the session would keep the request's head");
        assert!(kept(IDENTIFYING_BYTES_MAX).is_empty());
    }

    #[test]
    fn a_flood_of_one_principals_sessions_takes_none_of_another_ones_and_none_in_use() {
        let known = with_room(10);
        let get = |nonce, name| known.get_or_default(nonce, || owner(name));
        let (ada, _) = get(1, "key:ada");
        drop(ada);
        let (busy, _) = get(2, "key:mallory");
        let mut evicted = Vec::new();
        for nonce in 100..200 {
            evicted.extend(get(nonce, "key:mallory").1);
        }
        assert_eq!(evicted.len(), 92);
        assert!(evicted.iter().all(|session| session.caller.principal == Principal::new("key:mallory")));
        assert!(!evicted.iter().any(|session| Arc::ptr_eq(&session.session, &busy)));
        assert!(get(1, "key:ada").1.is_empty(), "hers is still there");
        assert!(Arc::ptr_eq(&get(2, "key:mallory").0, &busy));
        assert_eq!(known.by_nonce.len(), 10);
        for nonce in [1, 2].into_iter().chain(100..200) {
            known.by_nonce.remove(nonce);
        }
        assert_eq!(known.by_nonce.len(), 0);
    }

    #[test]
    fn where_the_largest_owner_uses_all_of_its_sessions_another_one_makes_room() {
        let known = with_room(5);
        let _held: Vec<_> = (0..3).map(|nonce| known.get_or_default(nonce, || owner("key:ada")).0).collect();
        for nonce in 10..20 {
            known.get_or_default(nonce, || owner("key:grace"));
        }
        let left: Vec<_> = (0..20).filter(|nonce| known.by_nonce.contains(*nonce)).collect();
        assert_eq!(left, [0, 1, 2, 18, 19]);
    }

    #[test]
    fn where_all_are_in_use_one_more_is_remembered() {
        let known = with_room(2);
        let held: Vec<_> = (0..4).map(|nonce| known.get_or_default(nonce, || owner("key:ada")).0).collect();
        assert_eq!(known.by_nonce.len(), 4);
        drop(held);
        let (_, evicted) = known.get_or_default(9, || owner("key:ada"));
        assert_eq!((evicted.len(), known.by_nonce.len()), (3, 2), "the map has its size again");
    }
}
