//! What memory holds about sessions beside their tokens, all of it bounded and none of it needed: which
//! upstream session took the place of a lost one, what has to be told to the next, and which have ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use http::HeaderValue;
use parking_lot::Mutex;

use crate::dialect::negotiate::LogLevel;
use crate::face::sealed::SessionToken;
use crate::task::{GatewayFault, Principal};
use crate::upstream::ForwardedHeaders;
use crate::upstream::raw_channel::SessionBinding;
use crate::upstream::recent_map::RecentMap;
use crate::wire::{Object, Payload};

/// Sessions that something is known about; the one used longest ago falls out. What is lost with it is its
/// log level and subscriptions, and a handshake if its upstream session had been renewed.
const KNOWN_MAX: usize = 20_000;
/// Sessions that were ended. A client that goes on using one that fell out gets an upstream session anew.
const ENDED_MAX: usize = 100_000;
/// Session ids that need not be opened again: those used last. Each takes about 1 kB.
const OPENED_MAX: usize = 4_096;
/// What one session's memory holds of what its upstream was told.
const SUBSCRIPTIONS_MAX: usize = 256;
const TOLD_BYTES_MAX: usize = 16 * 1024;

/// One client's session, as its id tells.
#[derive(Clone, Debug)]
pub(in crate::face) struct ClientSession {
    pub(in crate::face) token: Arc<SessionToken>,
    /// Whose it is.
    pub(in crate::face) owner: Principal,
    /// The upstream session that was opened for it.
    opened: SessionBinding,
    /// What of the headers of the request in hand goes on to the upstream.
    pub(in crate::face) forwarded: ForwardedHeaders,
}

impl ClientSession {
    /// Whether the session is the gateway's alone: its server knows none.
    pub(super) fn is_bridged(&self) -> bool {
        self.token.upstream_version.is_stateless()
    }

    pub(super) fn new(token: SessionToken, owner: Principal) -> Self {
        let session = token.upstream_session.as_deref().and_then(|id| HeaderValue::from_str(id).ok());
        let tasks = token.tasks.within(token.upstream_version);
        let opened = SessionBinding { session, version: Some(token.upstream_version), tasks };
        Self { token: Arc::new(token), owner, opened, forwarded: ForwardedHeaders::default() }
    }
}

/// A session id that was opened before, for whoever owns it. Opening costs more than all else that the
/// gateway does with a small request.
#[derive(Debug)]
struct OpenedToken {
    sealed: Box<str>,
    owner: Principal,
    session: ClientSession,
}

/// A handshake that all who need it wait for.
pub(super) type Renewal = Shared<BoxFuture<'static, Result<SessionBinding, GatewayFault>>>;

/// What is known about one session.
#[derive(Debug, Default)]
struct SessionMemory(Mutex<SessionFacts>);

#[derive(Debug, Default)]
struct SessionFacts {
    /// The upstream session in use, where it is not the token's any more.
    renewed: Option<SessionBinding>,
    renewal: Option<Renewal>,
    told: SessionPreferences,
    /// Whether its client has used tasks.
    uses_tasks: bool,
}

/// What an upstream session was told that a new one has to be told again.
#[derive(Clone, Debug, Default)]
pub(in crate::face) struct SessionPreferences {
    /// The params of `logging/setLevel`.
    pub(in crate::face) level: Option<Payload>,
    /// The addresses of `resources/subscribe`.
    pub(in crate::face) subscriptions: BTreeSet<String>,
}

/// One thing that a client tells its upstream session.
#[derive(Clone, Debug)]
pub(in crate::face) enum PreferenceChange {
    Level(Payload),
    Subscribe(String),
    Unsubscribe(String),
}

/// By nonce, but for `opened`, which is by the end of the sealed text: no two of our tokens share it.
#[derive(Debug)]
pub(in crate::face) struct ClientSessionCache {
    known: RecentMap<Arc<SessionMemory>>,
    ended: RecentMap<()>,
    opened: RecentMap<Arc<OpenedToken>>,
}

impl ClientSessionCache {
    pub(super) fn new() -> Self {
        Self { known: RecentMap::new(KNOWN_MAX), ended: RecentMap::new(ENDED_MAX), opened: RecentMap::new(OPENED_MAX) }
    }

    /// The session that a sealed id stands for, by `open` where it is not known from before. `None` where
    /// `open` gives none, and for one that has ended.
    pub(super) fn open(
        &self,
        sealed: &str,
        owner: &Principal,
        open: impl FnOnce() -> Option<SessionToken>,
    ) -> Option<ClientSession> {
        // Whoever sends the same end of a text, and another beginning, has no token of ours.
        let key = sealed.as_bytes().last_chunk().map(|end| u128::from_ne_bytes(*end))?;
        let is_same = |opened: &Arc<OpenedToken>| *opened.sealed == *sealed && opened.owner == *owner;
        let session = match self.opened.get(key).filter(is_same) {
            Some(opened) => opened.session.clone(),
            None => {
                let session = ClientSession::new(open()?, owner.clone());
                let opened = OpenedToken { sealed: sealed.into(), owner: owner.clone(), session: session.clone() };
                self.opened.insert(key, Arc::new(opened));
                session
            }
        };
        (!self.ended.contains(session.token.nonce)).then_some(session)
    }

    pub(super) fn ended(&self, nonce: u128) {
        self.ended.insert(nonce, ());
        self.known.remove(nonce);
    }

    /// The upstream session that is in use.
    pub(in crate::face) fn binding(&self, session: &ClientSession) -> SessionBinding {
        let renewed = self.known.get(session.token.nonce).and_then(|known| known.0.lock().renewed.clone());
        renewed.unwrap_or_else(|| session.opened.clone())
    }

    /// Whether another upstream session took the place of the first one.
    pub(in crate::face) fn is_renewed(&self, session: &ClientSession) -> bool {
        self.known.get(session.token.nonce).is_some_and(|known| known.0.lock().renewed.is_some())
    }

    /// Keeps in mind what an upstream session was told.
    pub(in crate::face) fn tell(&self, session: &ClientSession, telling: PreferenceChange) {
        let known = self.known.get_or_default(session.token.nonce);
        let told = &mut known.0.lock().told;
        match telling {
            PreferenceChange::Level(params) => {
                told.level =
                    Some(params).filter(|params| params.len() <= TOLD_BYTES_MAX).map(|params| params.detached());
            }
            PreferenceChange::Subscribe(uri) => {
                let kept: usize = told.subscriptions.iter().map(String::len).sum();
                if told.subscriptions.len() < SUBSCRIPTIONS_MAX && kept + uri.len() <= TOLD_BYTES_MAX {
                    told.subscriptions.insert(uri);
                }
            }
            PreferenceChange::Unsubscribe(uri) => {
                told.subscriptions.remove(&uri);
            }
        }
    }

    /// Takes note that a session's client knows tasks.
    pub(super) fn note_tasks(&self, session: &ClientSession) {
        self.known.get_or_default(session.token.nonce).0.lock().uses_tasks = true;
    }

    /// Whether it does, as far as it is known here.
    pub(super) fn uses_tasks(&self, session: &ClientSession) -> bool {
        self.known.get(session.token.nonce).is_some_and(|known| known.0.lock().uses_tasks)
    }

    /// The least severity of log messages that a session wants, as far as it is known here.
    pub(super) fn level(&self, session: &ClientSession) -> Option<LogLevel> {
        let known = self.known.get(session.token.nonce)?;
        let level = known.0.lock().told.level.clone()?;
        Object::of(&level)?.get_str("level").as_deref().and_then(LogLevel::parse)
    }

    /// The resources that a session subscribed to, as far as it is known here.
    pub(super) fn subscriptions(&self, session: &ClientSession) -> BTreeSet<String> {
        let known = self.known.get(session.token.nonce);
        known.map(|known| known.0.lock().told.subscriptions.clone()).unwrap_or_default()
    }

    /// The upstream session that takes the place of `lost`: one that is there already, or the one that
    /// `open` is opening, started here unless somebody has started it.
    pub(super) async fn renew(
        &self,
        session: &ClientSession,
        lost: &SessionBinding,
        open: impl FnOnce(SessionPreferences) -> BoxFuture<'static, Result<SessionBinding, GatewayFault>>,
    ) -> Result<SessionBinding, GatewayFault> {
        let known = self.known.get_or_default(session.token.nonce);
        let renewal = {
            let mut facts = known.0.lock();
            if let Some(renewed) = facts.renewed.as_ref().filter(|renewed| *renewed != lost) {
                return Ok(renewed.clone());
            }
            if facts.renewal.is_none() {
                let opening = open(facts.told.clone());
                // Weak, as what is known owns this future.
                let known = Arc::downgrade(&known);
                let noted = async move {
                    let opened = opening.await;
                    if let Some(known) = known.upgrade() {
                        let mut facts = known.0.lock();
                        facts.renewal = None;
                        if let Ok(binding) = &opened {
                            facts.renewed = Some(binding.clone());
                        }
                    }
                    opened
                };
                facts.renewal = Some(noted.boxed().shared());
            }
            facts.renewal.clone()
        };
        match renewal {
            Some(renewal) => renewal.await,
            None => Ok(lost.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
    use crate::task::Timestamp;
    use crate::wire::ProtocolVersion;

    fn token(nonce: u128) -> SessionToken {
        SessionToken {
            upstream: "reports".to_owned(),
            principal: "digest".to_owned(),
            nonce,
            client_version: ProtocolVersion::V2025_11_25,
            upstream_version: ProtocolVersion::V2025_11_25,
            capabilities: Payload::empty_object(),
            client_info: None,
            issued_at: Timestamp::from_millis(0),
            upstream_session: Some("s-1".to_owned()),
            tasks: UpstreamTaskSupport::default(),
            declares_tasks: false,
        }
    }

    const SEALED: &str = "a sealed text, longer than its key";

    #[test]
    fn an_id_is_opened_once_for_its_owner_and_anew_for_anybody_else() {
        let sessions = ClientSessionCache::new();
        let owner = Principal::local();
        let first = sessions.open(SEALED, &owner, || Some(token(1))).unwrap();
        let again = sessions.open(SEALED, &owner, || panic!("it is known from before")).unwrap();
        assert!(Arc::ptr_eq(&first.token, &again.token));
        assert_eq!(sessions.binding(&again).session.unwrap(), "s-1");
        assert!(sessions.open(SEALED, &Principal::anonymous(), || None).is_none(), "nobody else is let in by it");
        let other = format!("another beginning{}", &SEALED[SEALED.len() - 16..]);
        assert!(sessions.open(&other, &owner, || None).is_none(), "the whole text is compared, not its end alone");
        assert!(sessions.open("short", &owner, || Some(token(2))).is_none(), "a token is never that short");
    }

    #[test]
    fn an_id_that_has_ended_stands_for_nothing_though_it_was_open_before() {
        let sessions = ClientSessionCache::new();
        let session = sessions.open(SEALED, &Principal::local(), || Some(token(1))).unwrap();
        sessions.ended(session.token.nonce);
        assert!(sessions.open(SEALED, &Principal::local(), || Some(token(1))).is_none());
    }
}
