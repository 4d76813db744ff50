//! Stores clients' sessions at endpoints, with a share for each principal. A forgotten session loses its upstream
//! sessions. The principal with most sessions makes room; used ones stay ([`RecentMap`]).

use std::sync::Arc;

use crate::task::{Caller, Principal};
use crate::upstream::recent_map::{OwnedValue, RecentMap, RecentValue};

/// The limit for all principals.
pub(super) const REMEMBERED_MAX: usize = 20_000;

/// Sessions by nonce; `S` is a session's state.
#[derive(Debug)]
pub(super) struct KnownSessions<S> {
    by_nonce: RecentMap<KnownSession<S>>,
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

    pub(super) fn remove(&self, nonce: u128) {
        self.by_nonce.remove(nonce);
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

    #[test]
    fn a_flood_of_one_principals_sessions_takes_none_of_another_ones_and_none_in_use() {
        let known = with_room(10);
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
        assert!(remember(1, "key:ada").1.is_empty(), "hers is still there");
        assert!(Arc::ptr_eq(&remember(2, "key:mallory").0, &busy));
        assert_eq!(known.by_nonce.len(), 10);
        for nonce in [1, 2].into_iter().chain(100..200) {
            known.remove(nonce);
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
        let (_, forgotten) = known.get_or_default(9, || owner("key:ada"));
        assert_eq!((forgotten.len(), known.by_nonce.len()), (3, 2), "the map has its size again");
    }
}
