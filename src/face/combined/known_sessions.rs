//! Stores clients' sessions at endpoints, with a share for each principal.
//!
//! A forgotten session loses its sessions at upstreams. So the principal with most sessions makes room first, and a
//! session in use stays.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::task::{Caller, Principal};

/// The limit for all principals. Above it, the principal with most sessions loses its least recently used one.
const REMEMBERED_MAX: usize = 20_000;

/// Sessions by nonce; `S` is a session's state.
#[derive(Debug)]
pub(super) struct KnownSessions<S> {
    sessions_max: usize,
    index: Mutex<SessionIndex<S>>,
}

#[derive(Debug)]
struct SessionIndex<S> {
    by_nonce: HashMap<u128, KnownSession<S>>,
    /// The nonces of each owner, least recently used first.
    by_owner: HashMap<Principal, BTreeMap<u64, u128>>,
    uses: u64,
}

#[derive(Debug)]
struct KnownSession<S> {
    session: Arc<S>,
    owner: SessionOwner,
    last_use: u64,
}

#[derive(Clone, Debug)]
pub(super) struct SessionOwner {
    pub(super) caller: Caller,
    /// The principal that the session counts for: anonymous clients are distinguished by address.
    pub(super) counted_as: Principal,
}

#[derive(Debug)]
pub(super) struct ForgottenSession<S> {
    pub(super) session: Arc<S>,
    pub(super) caller: Caller,
}

impl<S: Default> Default for KnownSessions<S> {
    fn default() -> Self {
        Self::with_room(REMEMBERED_MAX)
    }
}

impl<S: Default> KnownSessions<S> {
    fn with_room(sessions_max: usize) -> Self {
        let index = SessionIndex { by_nonce: HashMap::new(), by_owner: HashMap::new(), uses: 0 };
        Self { sessions_max, index: Mutex::new(index) }
    }

    /// Also returns a session that made room.
    pub(super) fn get_or_default(
        &self,
        nonce: u128,
        owner: impl FnOnce() -> SessionOwner,
    ) -> (Arc<S>, Option<ForgottenSession<S>>) {
        let mut index = self.index.lock();
        if let Some(session) = index.touch(nonce) {
            return (session, None);
        }
        let forgotten = if index.by_nonce.len() >= self.sessions_max { index.forget_one() } else { None };
        (index.enter(nonce, owner()), forgotten)
    }

    pub(super) fn remove(&self, nonce: u128) {
        self.index.lock().remove(nonce);
    }
}

impl<S: Default> SessionIndex<S> {
    fn touch(&mut self, nonce: u128) -> Option<Arc<S>> {
        let known = self.by_nonce.get_mut(&nonce)?;
        self.uses += 1;
        if let Some(uses) = self.by_owner.get_mut(&known.owner.counted_as) {
            uses.remove(&known.last_use);
            uses.insert(self.uses, nonce);
        }
        known.last_use = self.uses;
        Some(Arc::clone(&known.session))
    }

    fn enter(&mut self, nonce: u128, owner: SessionOwner) -> Arc<S> {
        self.uses += 1;
        let (session, last_use) = (Arc::<S>::default(), self.uses);
        self.by_owner.entry(owner.counted_as.clone()).or_default().insert(last_use, nonce);
        self.by_nonce.insert(nonce, KnownSession { session: Arc::clone(&session), owner, last_use });
        session
    }

    /// Takes the largest owner's least recently used idle session, else one of the next largest. If all are in use, the
    /// limit is exceeded: the calls and streams in them bound their number.
    fn forget_one(&mut self) -> Option<ForgottenSession<S>> {
        let largest = self.by_owner.values().max_by_key(|uses| uses.len())?;
        let is_idle =
            |nonce: &&u128| self.by_nonce.get(nonce).is_some_and(|known| Arc::strong_count(&known.session) == 1);
        let idle = |uses: &BTreeMap<u64, u128>| uses.values().find(is_idle).copied();
        let nonce = idle(largest).or_else(|| {
            let mut owners: Vec<_> = self.by_owner.values().collect();
            owners.sort_unstable_by_key(|uses| Reverse(uses.len()));
            owners.into_iter().find_map(idle)
        })?;
        let KnownSession { session, owner, .. } = self.remove(nonce)?;
        Some(ForgottenSession { session, caller: owner.caller })
    }

    fn remove(&mut self, nonce: u128) -> Option<KnownSession<S>> {
        let known = self.by_nonce.remove(&nonce)?;
        if let Some(uses) = self.by_owner.get_mut(&known.owner.counted_as) {
            uses.remove(&known.last_use);
            if uses.is_empty() {
                self.by_owner.remove(&known.owner.counted_as);
            }
        }
        Some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> SessionOwner {
        SessionOwner { caller: Caller::of(Principal::new(name)), counted_as: Principal::new(name) }
    }

    #[test]
    fn a_flood_of_one_principals_sessions_takes_none_of_another_ones_and_none_in_use() {
        let known = KnownSessions::<u8>::with_room(10);
        let remember = |nonce, name| known.get_or_default(nonce, || owner(name));
        let (ada, _) = remember(1, "key:ada");
        drop(ada);
        let (busy, _) = remember(2, "key:mallory");
        let mut forgotten = Vec::new();
        for nonce in 100..200 {
            forgotten.extend(remember(nonce, "key:mallory").1);
        }
        assert_eq!(forgotten.len(), 92);
        assert!(forgotten.iter().all(|session| session.caller.principal == Principal::new("key:mallory")));
        assert!(!forgotten.iter().any(|session| Arc::ptr_eq(&session.session, &busy)));
        assert!(remember(1, "key:ada").1.is_none(), "hers is still there");
        assert!(Arc::ptr_eq(&remember(2, "key:mallory").0, &busy));
        assert_eq!(known.index.lock().by_nonce.len(), 10);
        for nonce in [1, 2].into_iter().chain(100..200) {
            known.remove(nonce);
        }
        let index = known.index.lock();
        assert!(index.by_nonce.is_empty() && index.by_owner.is_empty());
    }

    #[test]
    fn where_the_largest_owner_uses_all_of_its_sessions_another_one_makes_room() {
        let known = KnownSessions::<u8>::with_room(5);
        let _held: Vec<_> = (0..3).map(|nonce| known.get_or_default(nonce, || owner("key:ada")).0).collect();
        for nonce in 10..20 {
            known.get_or_default(nonce, || owner("key:grace"));
        }
        let index = known.index.lock();
        let mut left: Vec<_> = index.by_nonce.keys().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 2, 18, 19]);
    }

    #[test]
    fn where_all_are_in_use_one_more_is_remembered() {
        let known = KnownSessions::<u8>::with_room(2);
        let held: Vec<_> = (0..4).map(|nonce| known.get_or_default(nonce, || owner("key:ada")).0).collect();
        assert_eq!(known.index.lock().by_nonce.len(), 4);
        drop(held);
        let (_, forgotten) = known.get_or_default(9, || owner("key:ada"));
        assert!(forgotten.is_some());
    }
}
