//! Caches, for each client session, the upstream session that replaced a lost one, and the preferences to repeat in the
//! next one. Bounded; may be lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use super::{OwnSession, OwnSessions};
use crate::dialect::negotiate::LogLevel;
use crate::task::{GatewayFault, Principal};
use crate::upstream::raw_channel::SessionBinding;
use crate::upstream::recent_map::RecentMap;
use crate::upstream::session::refusals::SessionRefusals;
use crate::wire::{Object, Payload};

/// Sessions with state in memory, and the bytes of their preferences (B238).
const SESSIONS_MAX: usize = 20_000;
const BYTES_MAX: usize = 64 << 20;
const SUBSCRIPTIONS_MAX: usize = 256;
const PREFERENCE_BYTES_MAX: usize = 16 * 1024;
/// Memory of a subscription beside its text.
const SUBSCRIPTION_BYTES: usize = 48;

/// A handshake that all waiting requests share.
pub(super) type SessionRenewal = Shared<BoxFuture<'static, Result<SessionBinding, GatewayFault>>>;

/// By nonce. An evicted session loses its preferences, and needs a new handshake if it was renewed. Calls keep theirs.
#[derive(Debug)]
pub struct SessionMemories(RecentMap<Arc<SessionMemory>>);

impl Default for SessionMemories {
    fn default() -> Self {
        Self(RecentMap::with_bytes(SESSIONS_MAX, BYTES_MAX))
    }
}

impl SessionMemories {
    fn change(&self, nonce: u128, counted_as: &Principal, change: PreferenceChange) {
        let memory = self.0.get_or_default(nonce, counted_as);
        let mut facts = memory.facts.lock();
        if let PreferenceChange::Subscribe(uri) | PreferenceChange::Unsubscribe(uri) = &change {
            facts.postponed.remove(uri);
        }
        facts.preferences.change(change);
        // Under the lock, so that the last number of bytes counts.
        self.0.set_bytes(nonce, facts.bytes());
    }
}

#[derive(Debug, Default)]
pub(super) struct SessionMemory {
    facts: Mutex<SessionFacts>,
    /// Shared with the calls in leases of the session.
    pub(super) refusals: Arc<SessionRefusals>,
}

#[derive(Debug, Default)]
struct SessionFacts {
    /// The current upstream session, if it is not the first any more.
    renewed: Option<SessionBinding>,
    renewal: Option<SessionRenewal>,
    preferences: SessionPreferences,
    /// The subscriptions that the caller of the last renewal may not use: the next caller that may subscribes again.
    postponed: BTreeSet<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SessionPreferences {
    pub(super) level: Option<Payload>,
    pub(super) subscriptions: BTreeSet<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum PreferenceChange {
    Level(Payload),
    Subscribe(String),
    Unsubscribe(String),
}

impl SessionPreferences {
    fn change(&mut self, change: PreferenceChange) {
        match change {
            PreferenceChange::Level(params) => {
                let kept = Some(params).filter(|params| params.len() <= PREFERENCE_BYTES_MAX);
                self.level = kept.map(|params| params.detached());
            }
            PreferenceChange::Subscribe(uri) => {
                let kept: usize = self.subscriptions.iter().map(String::len).sum();
                if self.subscriptions.len() < SUBSCRIPTIONS_MAX && kept + uri.len() <= PREFERENCE_BYTES_MAX {
                    self.subscriptions.insert(uri);
                }
            }
            PreferenceChange::Unsubscribe(uri) => {
                self.subscriptions.remove(&uri);
            }
        }
    }
}

impl SessionFacts {
    fn bytes(&self) -> usize {
        let SessionPreferences { level, subscriptions } = &self.preferences;
        // Twice: after a renewal, each may be postponed too.
        let uris = subscriptions.iter().map(|uri| 2 * (uri.len() + SUBSCRIPTION_BYTES));
        level.as_ref().map_or(0, |level| level.len()) + uris.sum::<usize>()
    }
}

impl SessionMemory {
    /// The upstream session that replaces `lost`: an existing one, or one that `open` opens for all waiting requests.
    pub(super) async fn replace(
        self: &Arc<Self>,
        lost: &SessionBinding,
        tracker: &TaskTracker,
        open: impl FnOnce(SessionPreferences) -> BoxFuture<'static, Result<SessionBinding, GatewayFault>>,
    ) -> Result<SessionBinding, GatewayFault> {
        let renewal = {
            let mut facts = self.facts.lock();
            if let Some(renewed) = facts.renewed.as_ref().filter(|renewed| *renewed != lost) {
                return Ok(renewed.clone());
            }
            match &facts.renewal {
                Some(renewal) => renewal.clone(),
                None => {
                    let opening = open(facts.preferences.clone());
                    // Weak, as the memory owns this future.
                    let memory = Arc::downgrade(self);
                    let noted = async move {
                        let opened = opening.await;
                        if let Some(memory) = memory.upgrade() {
                            let mut facts = memory.facts.lock();
                            facts.renewal = None;
                            if let Ok(binding) = &opened {
                                facts.renewed = Some(binding.clone());
                            }
                        }
                        opened
                    };
                    let renewal = facts.renewal.insert(noted.boxed().shared()).clone();
                    // Its end is noted even if all who wait leave: a failure is not for later requests.
                    tracker.spawn(renewal.clone());
                    renewal
                }
            }
        };
        renewal.await
    }

    pub(super) fn postpone(&self, subscriptions: BTreeSet<String>) {
        self.facts.lock().postponed = subscriptions;
    }

    /// Takes the postponed subscriptions that fit. None during a renewal: the session that they are for is not known yet.
    pub(super) fn take_postponed(&self, fits: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let mut facts = self.facts.lock();
        if facts.renewal.is_some() || facts.postponed.is_empty() {
            return BTreeSet::new();
        }
        let (taken, left) = std::mem::take(&mut facts.postponed).into_iter().partition(|uri| fits(uri));
        facts.postponed = left;
        taken
    }
}

impl OwnSessions {
    fn recall<T>(&self, session: &OwnSession, read: impl FnOnce(&SessionFacts) -> T) -> Option<T> {
        let memory = self.memories.0.get(session.opened.nonce)?;
        let facts = memory.facts.lock();
        Some(read(&facts))
    }

    pub(crate) fn binding(&self, session: &OwnSession) -> SessionBinding {
        let renewed = self.recall(session, |facts| facts.renewed.clone()).flatten();
        renewed.unwrap_or_else(|| session.opened.binding.clone())
    }

    pub(super) fn renewal(&self, session: &OwnSession) -> Option<SessionRenewal> {
        self.recall(session, |facts| facts.renewal.clone()).flatten()
    }

    pub(super) fn memory(&self, session: &OwnSession) -> Option<Arc<SessionMemory>> {
        self.memories.0.get(session.opened.nonce)
    }

    pub(super) fn memory_or_new(&self, session: &OwnSession) -> Arc<SessionMemory> {
        self.memories.0.get_or_default(session.opened.nonce, &session.opened.counted_as)
    }

    /// Whether the server refuses the session in an unknown form: its client must open another one.
    pub(crate) fn is_over(&self, session: &OwnSession) -> bool {
        self.memory(session).is_some_and(|memory| memory.refusals.is_over())
    }

    pub(crate) fn is_renewed(&self, session: &OwnSession) -> bool {
        self.recall(session, |facts| facts.renewed.is_some()).unwrap_or_default()
    }

    pub(crate) fn record_preference(&self, session: &OwnSession, change: PreferenceChange) {
        self.memories.change(session.opened.nonce, &session.opened.counted_as, change);
    }

    pub(crate) fn remove_memory(&self, nonce: u128) {
        self.memories.0.remove(nonce);
    }

    /// The lowest severity of log messages that a session requested, if it is cached.
    pub(crate) fn level(&self, session: &OwnSession) -> Option<LogLevel> {
        let level = self.recall(session, |facts| facts.preferences.level.clone())??;
        Object::of(&level)?.get_str("level").as_deref().and_then(LogLevel::parse)
    }

    /// The resources that a session subscribed to, as far as its state is in memory.
    pub(crate) fn subscriptions(&self, session: &OwnSession) -> BTreeSet<String> {
        self.recall(session, |facts| facts.preferences.subscriptions.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::sync::oneshot;

    use super::*;
    use crate::task::{Executed, Reason};

    #[test]
    fn b238_preferences_of_all_sessions_have_a_bound_in_bytes_and_each_principal_a_share() {
        let (sessions, ada, mallory) =
            (SessionMemories::default(), Principal::new("key:ada"), Principal::new("key:mallory"));
        let key = |number: u128| number << 64 | number;
        sessions.change(key(1), &ada, PreferenceChange::Subscribe("x://a".to_owned()));
        for session in 2..5_000 {
            let long = format!("x://{}", "x".repeat(PREFERENCE_BYTES_MAX - 100));
            sessions.change(key(session), &mallory, PreferenceChange::Subscribe(long));
        }
        let bytes = sessions.0.bytes();
        assert!((BYTES_MAX / 2..=BYTES_MAX).contains(&bytes), "{bytes}");
        assert!(sessions.0.contains(key(1)), "of the principal with few bytes");
        sessions.change(key(1), &ada, PreferenceChange::Unsubscribe("x://a".to_owned()));
        (2..5_000).for_each(|session| drop(sessions.0.remove(key(session))));
        assert_eq!(sessions.0.bytes(), 0);
    }

    /// A renewal fails after its waiters have left; the next request tries again.
    #[tokio::test]
    async fn u68_a_renewal_that_failed_without_waiters_is_not_the_next_requests() {
        let (memory, tracker) = (Arc::new(SessionMemory::default()), TaskTracker::new());
        let (lost, (refuse, refused)) = (SessionBinding::default(), oneshot::channel::<()>());
        let failing = |_| {
            let fault = GatewayFault::new(Reason::UpstreamRefused, Executed::No);
            refused.map(move |_| Err(fault)).boxed()
        };
        assert!(memory.replace(&lost, &tracker, failing).now_or_never().is_none());
        refuse.send(()).unwrap();
        tracker.close();
        tracker.wait().await;
        let renewed = memory.replace(&lost, &tracker, |_| ready(Ok(SessionBinding::default())).boxed()).await;
        assert_eq!(renewed.ok(), Some(SessionBinding::default()));
    }
}
