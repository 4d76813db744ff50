//! Determines the living replica that owns a session.

use core::net::SocketAddr;

use super::Incarnation;
use super::membership::ReplicaRow;

/// A living, reachable replica. A replica without an address receives no forwarded requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaMember {
    pub peer: ReplicaPeer,
    pub is_leaving: bool,
}

/// The living replicas, as one of them sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaDirectory {
    own: Incarnation,
    /// Reachable replicas, including this one, in the order of their incarnations.
    members: Vec<ReplicaMember>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerReplica {
    Here,
    There(ReplicaPeer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaPeer {
    pub incarnation: Incarnation,
    pub address: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerRequest {
    /// A new request, which a leaving replica does not handle.
    Begin,
    /// The end of the session, which a leaving owner handles too, since it has tasks in the session.
    End,
}

impl ReplicaDirectory {
    pub fn alone(own: Incarnation) -> Self {
        Self::new(own, [])
    }

    /// The view of `own`; `living` may include it.
    pub fn new(own: Incarnation, living: impl IntoIterator<Item = ReplicaMember>) -> Self {
        let mut members: Vec<_> = living.into_iter().collect();
        members.sort_by_key(|member| member.peer.incarnation);
        members.dedup_by_key(|member| member.peer.incarnation);
        Self { own, members }
    }

    /// An invalid address counts as none.
    pub fn of_rows<'a>(own: Incarnation, rows: impl IntoIterator<Item = &'a ReplicaRow>) -> Self {
        let living = rows.into_iter().filter(|row| !row.is_dead);
        Self::new(own, living.filter_map(ReplicaMember::of_row))
    }

    pub const fn own(&self) -> Incarnation {
        self.own
    }

    pub fn peer(&self, incarnation: Incarnation) -> Option<ReplicaPeer> {
        if incarnation == self.own { None } else { self.member(incarnation).map(|member| member.peer) }
    }

    /// Returns the replica at `opened_by`. If it is gone or unknown, a living one takes over: replicas with the same
    /// directory choose the same one for a `nonce`, and a departing replica moves only its own sessions.
    pub fn owner(&self, opened_by: Option<Incarnation>, nonce: u128, request: OwnerRequest) -> OwnerReplica {
        match opened_by {
            Some(at) if at == self.own => OwnerReplica::Here,
            at => {
                let owner =
                    at.and_then(|at| self.member(at)).filter(|at| request == OwnerRequest::End || !at.is_leaving);
                owner.or_else(|| self.successor(nonce)).map_or(OwnerReplica::Here, |member| self.at(member))
            }
        }
    }

    /// The only replica with requests in progress for a session; `None` if there may be several, as successors change.
    pub fn only_owner(&self, opened_by: Option<Incarnation>) -> Option<OwnerReplica> {
        let at = opened_by?;
        match self.member(at) {
            Some(member) if member.is_leaving => None,
            Some(member) => Some(self.at(member)),
            // Other replicas cannot reach it.
            None => (at == self.own).then_some(OwnerReplica::Here),
        }
    }

    pub fn peers(&self) -> impl Iterator<Item = ReplicaPeer> {
        self.members.iter().map(|member| member.peer).filter(|peer| peer.incarnation != self.own)
    }

    fn successor(&self, nonce: u128) -> Option<&ReplicaMember> {
        let staying = self.members.iter().filter(|member| !member.is_leaving);
        staying.max_by_key(|member| (rank(nonce, member.peer.incarnation), member.peer.incarnation))
    }

    fn at(&self, member: &ReplicaMember) -> OwnerReplica {
        if member.peer.incarnation == self.own { OwnerReplica::Here } else { OwnerReplica::There(member.peer) }
    }

    fn member(&self, incarnation: Incarnation) -> Option<&ReplicaMember> {
        let at = self.members.binary_search_by_key(&incarnation, |member| member.peer.incarnation);
        at.ok().map(|at| &self.members[at])
    }
}

impl ReplicaMember {
    fn of_row(row: &ReplicaRow) -> Option<Self> {
        let address = row.address.as_deref()?.parse().ok()?;
        Some(Self { peer: ReplicaPeer { incarnation: row.incarnation, address }, is_leaving: row.is_leaving })
    }
}

/// Ranks a replica for a session; the highest living one wins (rendezvous hashing). All builds must rank alike.
fn rank(nonce: u128, incarnation: Incarnation) -> u64 {
    let [high, low] = [(nonce >> 64) as u64, nonce as u64];
    mixed(mixed(mixed(incarnation.0).wrapping_add(high)).wrapping_add(low))
}

/// The finalizer of SplitMix64.
const fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::task::Timestamp;

    fn member(number: u64) -> ReplicaMember {
        let port = 1_000 + u16::try_from(number % 60_000).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        ReplicaMember { peer: ReplicaPeer { incarnation: Incarnation(number), address }, is_leaving: false }
    }

    fn seen_by(own: u64, living: &[u64]) -> ReplicaDirectory {
        ReplicaDirectory::new(Incarnation(own), living.iter().map(|number| member(*number)))
    }

    fn chosen(own: u64, living: &[u64], opened_by: Option<u64>, nonce: u128) -> u64 {
        match seen_by(own, living).owner(opened_by.map(Incarnation), nonce, OwnerRequest::Begin) {
            OwnerReplica::Here => own,
            OwnerReplica::There(peer) => peer.incarnation.0,
        }
    }

    proptest! {
        #[test]
        fn all_replicas_choose_the_same_owner_and_one_that_goes_moves_its_own_sessions_alone(
            living in prop::collection::btree_set(1_u64..10_000, 1..9),
            nonce: u128,
            opened_by in prop::option::of(1_u64..10_000),
            gone: prop::sample::Index,
        ) {
            let living: Vec<u64> = living.into_iter().collect();
            let owners: Vec<u64> = living.iter().map(|own| chosen(*own, &living, opened_by, nonce)).collect();
            prop_assert!(owners.iter().all(|owner| *owner == owners[0]), "{owners:?}");
            if let Some(opened_by) = opened_by.filter(|at| living.contains(at)) {
                prop_assert_eq!(owners[0], opened_by);
            }
            let gone = living[gone.index(living.len())];
            let left: Vec<u64> = living.iter().copied().filter(|number| *number != gone).collect();
            if let Some(own) = left.first() {
                let after = chosen(*own, &left, opened_by, nonce);
                prop_assert!(after == owners[0] || owners[0] == gone, "{} went to {after} as {gone} left", owners[0]);
            }
        }
    }

    #[test]
    fn sessions_without_an_owner_are_spread_over_all_replicas() {
        let living = [3, 4, 9, 12];
        let mut counts = BTreeMap::<u64, u32>::new();
        for nonce in 0..4_000_u128 {
            *counts.entry(chosen(3, &living, Some(1), nonce)).or_default() += 1;
        }
        assert!(counts.len() == 4 && counts.values().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_living_are_those_whose_rows_are_not_dead_and_say_where_they_are() {
        let row = |number, address: &str, is_leaving, is_dead| ReplicaRow {
            incarnation: Incarnation(number),
            name: format!("r{number}"),
            address: (!address.is_empty()).then(|| address.to_owned()),
            heartbeat: 1,
            now: Timestamp::from_millis(1),
            is_leaving,
            is_dead,
            record_reads: 1,
        };
        let rows = [
            row(1, "127.0.0.1:1001", false, false),
            row(2, "127.0.0.1:1002", true, false),
            row(3, "127.0.0.1:1003", false, true),
            row(4, "", false, false),
            row(5, "no address", false, false),
        ];
        let seen = ReplicaDirectory::of_rows(Incarnation(1), &rows);
        let leaving = ReplicaMember { is_leaving: true, ..member(2) };
        assert_eq!(seen, ReplicaDirectory::new(Incarnation(1), [member(1), leaving]));
    }

    /// This replica, the others, where the session was created, the kind of request; the expected owner.
    #[test]
    fn a_session_is_owned_by_the_replica_that_opened_it_as_long_as_that_can_be_reached() {
        let leaving = ReplicaMember { is_leaving: true, ..member(2) };
        let there = |number| OwnerReplica::There(member(number).peer);
        for (living, opened_by, request, expected) in [
            (vec![member(1), member(2)], 1, OwnerRequest::Begin, OwnerReplica::Here),
            (vec![member(1), member(2)], 2, OwnerRequest::Begin, there(2)),
            (vec![member(2)], 1, OwnerRequest::Begin, OwnerReplica::Here),
            (vec![], 2, OwnerRequest::Begin, OwnerReplica::Here),
            (vec![member(1)], 7, OwnerRequest::Begin, OwnerReplica::Here),
            (vec![member(1), leaving.clone()], 2, OwnerRequest::Begin, OwnerReplica::Here),
            (vec![member(1), leaving.clone()], 2, OwnerRequest::End, there(2)),
            (vec![member(1), leaving.clone()], 9, OwnerRequest::End, OwnerReplica::Here),
            (vec![leaving], 9, OwnerRequest::Begin, OwnerReplica::Here),
        ] {
            let directory = ReplicaDirectory::new(Incarnation(1), living);
            let found = directory.owner(Some(Incarnation(opened_by)), 7, request);
            assert_eq!(found, expected, "{directory:?} {opened_by} {request:?}");
        }
        assert_eq!(seen_by(1, &[1, 2]).peer(Incarnation(1)), None, "a replica is not its own peer");
    }

    /// This replica, where the session was created; the only owner. The second replica drains.
    #[test]
    fn the_calls_of_a_session_are_at_its_owner_alone_until_it_ends() {
        let leaving = ReplicaMember { is_leaving: true, ..member(2) };
        let there = |number| Some(OwnerReplica::There(member(number).peer));
        for (own, opened_by, expected) in [
            (1, Some(1), Some(OwnerReplica::Here)),
            (1, Some(3), there(3)),
            (1, Some(2), None),
            (2, Some(2), None),
            (1, Some(9), None),
            (1, None, None),
            (4, Some(4), Some(OwnerReplica::Here)),
        ] {
            let seen = ReplicaDirectory::new(Incarnation(own), [member(1), leaving.clone(), member(3)]);
            assert_eq!(seen.only_owner(opened_by.map(Incarnation)), expected, "{opened_by:?} as {own} sees it");
        }
        let seen = ReplicaDirectory::new(Incarnation(1), [member(1), leaving, member(3)]);
        let peers: Vec<_> = seen.peers().map(|peer| peer.incarnation.0).collect();
        assert_eq!(peers, [2, 3], "those that end, too");
    }
}
