//! Caches opened and ended session ids. Bounded, and not needed for correctness.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderValue;

use crate::face::http::Inbound;
use crate::face::idempotency_key::IdempotencyScope;
use crate::face::sealed::SessionToken;
use crate::task::{Caller, Principal, Timestamp};
use crate::upstream::ForwardedHeaders;
use crate::upstream::raw_channel::SessionBinding;
use crate::upstream::recent_map::{RecentMap, RecentValue};
use crate::upstream::session::own::{OpenedSession, OwnSession};

const TASK_CLIENTS_MAX: usize = 20_000;
/// The most ended sessions. A client that uses a dropped one gets a new upstream session.
const ENDED_MAX: usize = 100_000;
/// The most opened sessions, about 1 kB each; the least recently used ones are dropped.
const OPENED_MAX: usize = 4_096;

#[derive(Clone, Debug)]
pub(in crate::face) struct ClientSession {
    pub(in crate::face) token: Arc<SessionToken>,
    pub(in crate::face) own: OwnSession,
    /// Whether it belongs to one request only: each has a new nonce.
    pub(super) is_for_one_request: bool,
}

impl ClientSession {
    pub(super) fn new(token: SessionToken, asker: SessionAsker<'_>) -> Self {
        let (caller, counted_as) = (asker.caller.clone(), asker.counted_as());
        let owner = caller.principal.clone();
        let session = token.upstream_session.as_deref().and_then(|id| HeaderValue::from_str(id).ok());
        let (version, tasks) = (token.upstream_version, token.tasks);
        let binding = SessionBinding { session, version: Some(version), tasks: tasks.within(version) };
        let (capabilities, client_info) = (token.capabilities.clone(), token.client_info.clone());
        let nonce = token.nonce;
        let opened = OpenedSession { nonce, owner, counted_as, binding, version, tasks, capabilities, client_info };
        let own = OwnSession { opened: Arc::new(opened), caller, forwarded: ForwardedHeaders::default() };
        Self { token: Arc::new(token), own, is_for_one_request: false }
    }

    /// The same session, as this caller uses it.
    fn used_by(&self, caller: &Caller) -> Self {
        let Self { token, own: OwnSession { opened, .. }, is_for_one_request } = self;
        let forwarded = ForwardedHeaders::default();
        let own = OwnSession { opened: Arc::clone(opened), caller: caller.clone(), forwarded };
        Self { token: Arc::clone(token), own, is_for_one_request: *is_for_one_request }
    }

    pub(super) fn for_one_request(token: SessionToken, asker: SessionAsker<'_>) -> Self {
        Self { is_for_one_request: true, ..Self::new(token, asker) }
    }

    pub(super) fn idempotency_scope(&self, principal: &Principal) -> IdempotencyScope {
        IdempotencyScope::of(principal, (!self.is_for_one_request).then_some(self.token.nonce))
    }

    /// The principal whose share counts the entries that maps keep for this session.
    pub(super) fn counted_as(&self) -> &Principal {
        &self.own.opened.counted_as
    }

    pub(super) fn is_bridged(&self) -> bool {
        self.token.upstream_version.is_stateless()
    }
}

#[derive(Clone, Copy, Debug)]
pub(in crate::face) struct SessionAsker<'a> {
    pub(in crate::face) caller: &'a Caller,
    pub(in crate::face) client: Option<IpAddr>,
}

impl<'a> SessionAsker<'a> {
    pub(in crate::face) const fn of(inbound: &'a Inbound) -> Self {
        Self { caller: &inbound.caller, client: inbound.client }
    }

    pub(super) fn counted_as(self) -> Principal {
        self.caller.principal.counted_at(self.client)
    }
}

/// Opening an id costs more than all other work on a small request.
#[derive(Debug)]
struct OpenedToken {
    sealed: Box<str>,
    session: ClientSession,
}

/// The sessions under one nonce that have ended. An endpoint opens several, one after another.
#[derive(Clone, Copy, Debug)]
enum EndedSessions {
    All,
    /// The sessions that were opened before this one.
    Before(Timestamp),
}

impl RecentValue for EndedSessions {}

/// By nonce, except `opened`, which is by the end of the sealed text: no two of our tokens share it.
#[derive(Debug)]
pub(in crate::face) struct ClientSessionCache {
    task_clients: RecentMap<()>,
    ended: RecentMap<EndedSessions>,
    opened: RecentMap<Arc<OpenedToken>>,
}

impl ClientSessionCache {
    pub(in crate::face) fn new() -> Self {
        Self {
            task_clients: RecentMap::new(TASK_CLIENTS_MAX),
            ended: RecentMap::new(ENDED_MAX),
            opened: RecentMap::new(OPENED_MAX),
        }
    }

    /// The session of a sealed id, if of this owner and path, and not ended; `open` unseals ids that are not cached.
    pub(in crate::face) fn open(
        &self,
        sealed: &str,
        opened_for: &str,
        asker: SessionAsker<'_>,
        open: impl FnOnce() -> Option<SessionToken>,
    ) -> Option<ClientSession> {
        // A text with the same end and another beginning is no valid token.
        let key = sealed.as_bytes().last_chunk().map(|end| u128::from_ne_bytes(*end))?;
        // The members that `open` checks.
        let is_same = |known: &Arc<OpenedToken>| {
            let session = &known.session;
            *known.sealed == *sealed
                && session.token.upstream == opened_for
                && session.own.opened.owner == asker.caller.principal
        };
        let session = match self.opened.get(key).filter(is_same) {
            Some(known) => known.session.used_by(asker.caller),
            None => {
                let session = ClientSession::new(open()?, asker);
                let opened = Arc::new(OpenedToken { sealed: sealed.into(), session: session.clone() });
                self.opened.insert(key, session.counted_as(), opened);
                session
            }
        };
        (!self.is_over(&session)).then_some(session)
    }

    /// Whether a session has ended. Another one may have been opened under its nonce since.
    pub(super) fn is_over(&self, session: &ClientSession) -> bool {
        match self.ended.get(session.token.nonce) {
            Some(EndedSessions::All) => true,
            Some(EndedSessions::Before(next)) => session.token.issued_at < next,
            None => false,
        }
    }

    pub(in crate::face) fn ended(&self, nonce: u128, counted_as: &Principal) {
        self.ended.insert(nonce, counted_as, EndedSessions::All);
        self.task_clients.remove(nonce);
    }

    /// Marks a session as ended while its server is asked to end it.
    pub(super) fn begins_to_end(&self, session: &ClientSession) {
        self.ended.insert(session.token.nonce, session.counted_as(), EndedSessions::All);
    }

    /// Whether a session has ended, and none was opened under its nonce since.
    pub(super) fn has_ended(&self, nonce: u128) -> bool {
        matches!(self.ended.get(nonce), Some(EndedSessions::All))
    }

    /// Whether the client of an endpoint opened another session under the nonce of this one.
    pub(super) fn is_replaced(&self, session: &ClientSession) -> bool {
        let ended = self.ended.get(session.token.nonce);
        matches!(ended, Some(EndedSessions::Before(next)) if session.token.issued_at < next)
    }

    /// Unmarks a session that its server did not end.
    pub(super) fn goes_on(&self, nonce: u128) {
        self.ended.remove(nonce);
    }

    /// Records that the client of an endpoint opened another session under its nonce.
    pub(super) fn begins_again(&self, next: &SessionToken, counted_as: &Principal) {
        if self.ended.contains(next.nonce) {
            self.ended.insert(next.nonce, counted_as, EndedSessions::Before(next.issued_at));
        }
    }

    pub(super) fn note_tasks(&self, session: &ClientSession) {
        self.task_clients.insert(session.token.nonce, session.counted_as(), ());
    }

    /// As far as is known in this process.
    pub(super) fn uses_tasks(&self, session: &ClientSession) -> bool {
        self.task_clients.contains(session.token.nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
    use crate::wire::{Payload, ProtocolVersion};

    fn token(nonce: u128) -> SessionToken {
        SessionToken {
            upstream: "reports".to_owned(),
            principal: Principal::local(),
            nonce,
            client_version: ProtocolVersion::V2025_11_25,
            upstream_version: ProtocolVersion::V2025_11_25,
            capabilities: Payload::empty_object(),
            client_info: None,
            issued_at: Timestamp::from_millis(0),
            replica: None,
            upstream_session: Some("s-1".to_owned()),
            tasks: UpstreamTaskSupport::default(),
            declares_tasks: false,
        }
    }

    fn by(caller: &Caller) -> SessionAsker<'_> {
        SessionAsker { caller, client: None }
    }

    /// Anonymous clients have a share for each address.
    #[test]
    fn a_flood_of_one_clients_sessions_takes_no_mark_of_another_ones() {
        let (sessions, stranger) = (ClientSessionCache::new(), Caller::of(Principal::anonymous()));
        let of = |nonce, last: u8| {
            let client = Some(IpAddr::from([10, 0, 0, last]));
            ClientSession::new(token(nonce), SessionAsker { caller: &stranger, client })
        };
        let (ended, uses_tasks, other) = (of(1 << 64 | 1, 1), of(2 << 64 | 2, 1), of(3, 2));
        sessions.ended(ended.token.nonce, ended.counted_as());
        sessions.note_tasks(&uses_tasks);
        // More than the map holds, so that its own shard is full.
        for number in 100..100 + (ENDED_MAX + ENDED_MAX / 10) as u128 {
            sessions.ended.insert(number << 64 | number, other.counted_as(), EndedSessions::All);
        }
        for number in 100..100 + 2 * TASK_CLIENTS_MAX as u128 {
            sessions.task_clients.insert(number << 64 | number, other.counted_as(), ());
        }
        assert!(sessions.has_ended(ended.token.nonce) && sessions.uses_tasks(&uses_tasks));
    }

    const SEALED: &str = "a sealed text, longer than its key";

    #[test]
    fn an_id_is_opened_once_for_its_owner_and_each_time_for_others() {
        let sessions = ClientSessionCache::new();
        let owner = Caller::of(Principal::local());
        let first = sessions.open(SEALED, "reports", by(&owner), || Some(token(1))).unwrap();
        let again = sessions.open(SEALED, "reports", by(&owner), || panic!("it is known from before")).unwrap();
        assert!(Arc::ptr_eq(&first.token, &again.token));
        assert_eq!(again.own.opened.binding.session.as_ref().unwrap(), "s-1");
        assert!(
            sessions.open(SEALED, "reports", by(&Caller::of(Principal::anonymous())), || None).is_none(),
            "no other client is let in by it"
        );
        let other = format!("another beginning{}", &SEALED[SEALED.len() - 16..]);
        assert!(
            sessions.open(&other, "reports", by(&owner), || None).is_none(),
            "the whole text is compared, not its end alone"
        );
        assert!(sessions.open(SEALED, "files", by(&owner), || None).is_none(), "it was opened for another path");
        assert!(
            sessions.open("short", "reports", by(&owner), || Some(token(2))).is_none(),
            "a token is never that short"
        );
    }

    #[test]
    fn a_stranger_has_idempotency_keys_in_a_session_and_none_in_a_request_without_one() {
        let (nobody, ada) = (Principal::anonymous(), Principal::new("key:ada"));
        let stranger = Caller::of(nobody.clone());
        let session = ClientSession::new(token(7), by(&stranger));
        let request = ClientSession::for_one_request(token(7), by(&stranger));
        assert_eq!(session.idempotency_scope(&nobody), IdempotencyScope::Sessions(7));
        assert_eq!(request.idempotency_scope(&nobody), IdempotencyScope::Unidentified);
        assert_eq!(request.idempotency_scope(&ada), IdempotencyScope::Principals);
    }

    #[test]
    fn an_id_that_has_ended_stands_for_nothing_though_it_was_open_before() {
        let (sessions, owner) = (ClientSessionCache::new(), Caller::of(Principal::local()));
        let session = sessions.open(SEALED, "reports", by(&owner), || Some(token(1))).unwrap();
        sessions.ended(session.token.nonce, session.counted_as());
        assert!(sessions.open(SEALED, "reports", by(&owner), || Some(token(1))).is_none());
    }

    #[test]
    fn of_two_sessions_under_one_nonce_only_the_first_ends() {
        let (sessions, owner) = (ClientSessionCache::new(), Caller::of(Principal::local()));
        let first = sessions.open(SEALED, "reports", by(&owner), || Some(token(1))).unwrap();
        sessions.ended(first.token.nonce, first.counted_as());
        let next = SessionToken { issued_at: Timestamp::from_millis(1), ..token(1) };
        sessions.begins_again(&next, first.counted_as());
        assert!(sessions.is_replaced(&first) && !sessions.has_ended(1));
        assert!(sessions.open(SEALED, "reports", by(&owner), || None).is_none(), "the first one");
        let next = sessions.open("another id of the session", "reports", by(&owner), || Some(next)).unwrap();
        assert!(!sessions.is_replaced(&next), "the second one continues");
    }
}
