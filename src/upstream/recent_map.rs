//! A bounded map with random keys: when full, the principal with most entries or bytes loses its least recently used
//! entry. Each request makes lookups, so a lookup takes one short lock and almost no hashing.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::task::Principal;

/// Requests with different keys seldom contend for one lock. A power of two.
const SHARDS: usize = 64;

pub(crate) trait RecentValue: Clone {
    /// Whether it is used outside the map: then its entry makes no room.
    fn is_in_use(&self) -> bool {
        false
    }
}

impl RecentValue for () {}

impl RecentValue for Instant {}

impl<T: ?Sized> RecentValue for Arc<T> {
    fn is_in_use(&self) -> bool {
        Self::strong_count(self) > 1
    }
}

/// At most about `entries_max` values, more only while all are in use. Keys must be unguessable.
#[derive(Debug)]
pub(crate) struct RecentMap<V> {
    shards: Box<[Mutex<RecentShard<V>>]>,
    shard_entries_max: usize,
    shard_bytes_max: usize,
    /// Secret: no principal can choose the number of another one.
    owners: RandomState,
}

#[derive(Debug)]
struct RecentShard<V> {
    entries: HashMap<u128, RecentEntry<V>, BuildHasherDefault<RandomKeyHasher>>,
    usage: HashMap<u64, OwnerUsage, BuildHasherDefault<RandomKeyHasher>>,
    bytes: usize,
    uses: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OwnerUsage {
    entries: usize,
    bytes: usize,
}

#[derive(Debug)]
struct RecentEntry<V> {
    value: V,
    owner: u64,
    bytes: usize,
    last_use: u64,
}

#[derive(Debug)]
pub(crate) struct OwnedValue<V> {
    pub(crate) owner: Principal,
    pub(crate) value: V,
}

#[derive(Debug)]
pub(crate) struct EnteredValue<V> {
    pub(crate) value: V,
    pub(crate) evicted: Vec<V>,
}

impl<V: RecentValue> RecentMap<V> {
    pub(crate) fn new(entries_max: usize) -> Self {
        Self::with_shards(entries_max, usize::MAX, SHARDS)
    }

    /// [`Self::set_bytes`] reports the bytes of each value.
    pub(crate) fn with_bytes(entries_max: usize, bytes_max: usize) -> Self {
        Self::with_shards(entries_max, bytes_max, SHARDS)
    }

    fn with_shards(entries_max: usize, bytes_max: usize, shards: usize) -> Self {
        let shard = || {
            let (entries, usage) = (HashMap::default(), HashMap::default());
            Mutex::new(RecentShard { entries, usage, bytes: 0, uses: 0 })
        };
        Self {
            shards: (0..shards).map(|_| shard()).collect(),
            shard_entries_max: entries_max.div_ceil(shards).max(1),
            shard_bytes_max: bytes_max / shards,
            owners: RandomState::new(),
        }
    }

    /// With an exact limit, so that tests can reach it.
    #[cfg(test)]
    pub(crate) fn of_one_shard(entries_max: usize) -> Self {
        Self::with_shards(entries_max, usize::MAX, 1)
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes).sum()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().entries.len()).sum()
    }

    pub(crate) fn get(&self, key: u128) -> Option<V> {
        self.shard(key).lock().touch(key).cloned()
    }

    pub(crate) fn values(&self) -> Vec<V> {
        let shards = self.shards.iter().map(|shard| shard.lock());
        shards.flat_map(|shard| shard.entries.values().map(|entry| entry.value.clone()).collect::<Vec<_>>()).collect()
    }

    pub(crate) fn contains(&self, key: u128) -> bool {
        self.shard(key).lock().touch(key).is_some()
    }

    pub(crate) fn insert(&self, key: u128, owner: &Principal, value: V) {
        let owner = self.owners.hash_one(owner);
        let mut shard = self.shard(key).lock();
        shard.remove(key);
        shard.make_room(self.shard_entries_max);
        shard.insert(key, owner, value);
    }

    /// The value of `key`, inserted now if there is none.
    pub(crate) fn get_or_default(&self, key: u128, owner: &Principal) -> V
    where
        V: Default,
    {
        self.get_or_insert_with(key, || OwnedValue { owner: owner.clone(), value: V::default() }).value
    }

    pub(crate) fn get_or_insert_with(&self, key: u128, new: impl FnOnce() -> OwnedValue<V>) -> EnteredValue<V> {
        let mut shard = self.shard(key).lock();
        if let Some(value) = shard.touch(key) {
            return EnteredValue { value: value.clone(), evicted: Vec::new() };
        }
        let OwnedValue { owner, value } = new();
        let evicted = shard.make_room(self.shard_entries_max);
        shard.insert(key, self.owners.hash_one(&owner), value.clone());
        EnteredValue { value, evicted }
    }

    /// Sets the bytes of a value, 0 at first. Values that make room for them are dropped.
    pub(crate) fn set_bytes(&self, key: u128, bytes: usize) {
        let mut shard = self.shard(key).lock();
        shard.set_bytes(key, bytes);
        let evicted = shard.evict(|shard| shard.bytes > self.shard_bytes_max, |usage| usage.bytes);
        drop(shard);
        drop(evicted);
    }

    pub(crate) fn remove(&self, key: u128) -> Option<V> {
        self.shard(key).lock().remove(key)
    }

    fn shard(&self, key: u128) -> &Mutex<RecentShard<V>> {
        // Other bits than the first ones that a shard's table uses.
        let mixed = usize::try_from(mix(key) >> 32 & 0xffff).unwrap_or(0);
        &self.shards[mixed & (self.shards.len() - 1)]
    }
}

impl<V: RecentValue> RecentShard<V> {
    fn touch(&mut self, key: u128) -> Option<&V> {
        let entry = self.entries.get_mut(&key)?;
        self.uses += 1;
        entry.last_use = self.uses;
        Some(&entry.value)
    }

    fn insert(&mut self, key: u128, owner: u64, value: V) {
        self.uses += 1;
        self.usage.entry(owner).or_default().entries += 1;
        self.entries.insert(key, RecentEntry { value, owner, bytes: 0, last_use: self.uses });
    }

    fn set_bytes(&mut self, key: u128, bytes: usize) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let before = std::mem::replace(&mut entry.bytes, bytes);
        self.bytes = self.bytes - before + bytes;
        if let Some(usage) = self.usage.get_mut(&entry.owner) {
            usage.bytes = usage.bytes - before + bytes;
        }
    }

    fn remove(&mut self, key: u128) -> Option<V> {
        let entry = self.entries.remove(&key)?;
        self.bytes -= entry.bytes;
        if let Some(usage) = self.usage.get_mut(&entry.owner) {
            usage.entries -= 1;
            usage.bytes -= entry.bytes;
            if usage.entries == 0 {
                self.usage.remove(&entry.owner);
            }
        }
        Some(entry.value)
    }

    /// Makes room for one more entry; returns the values that made room.
    fn make_room(&mut self, entries_max: usize) -> Vec<V> {
        self.evict(|shard| shard.entries.len() >= entries_max, |usage| usage.entries)
    }

    /// Removes values of the owner with the largest `share` while the shard is full. Linear in the shard for each.
    fn evict(&mut self, is_full: impl Fn(&Self) -> bool, share: impl Fn(&OwnerUsage) -> usize) -> Vec<V> {
        let mut evicted = Vec::new();
        while is_full(self) {
            let idle = self.entries.iter().filter(|(_, entry)| !entry.value.is_in_use());
            let rank = |entry: &RecentEntry<V>| (self.usage.get(&entry.owner).map(&share), Reverse(entry.last_use));
            let Some(key) = idle.max_by_key(|(_, entry)| rank(entry)).map(|(key, _)| *key) else { break };
            evicted.extend(self.remove(key));
        }
        evicted
    }
}

/// Spreads keys with unevenly random bits, such as text.
fn mix(key: u128) -> u64 {
    let folded = (key as u64) ^ ((key >> 64) as u64).rotate_left(32);
    let spread = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    spread ^ spread >> 29
}

#[derive(Debug, Default)]
struct RandomKeyHasher(u64);

impl Hasher for RandomKeyHasher {
    fn write_u128(&mut self, key: u128) {
        self.0 = mix(key);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(u128::from(self.0 ^ u64::from(*byte)));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ada() -> Principal {
        Principal::new("key:ada")
    }

    fn mallory() -> Principal {
        Principal::new("key:mallory")
    }

    #[test]
    fn the_least_recently_used_entry_makes_room() {
        let recent = RecentMap::of_one_shard(3);
        for key in 0..3 {
            recent.insert(key, &ada(), Instant::now());
        }
        assert!(recent.contains(0));
        recent.insert(1, &ada(), Instant::now());
        recent.insert(3, &ada(), Instant::now());
        assert_eq!([0, 1, 2, 3].map(|key| recent.contains(key)), [true, true, false, true]);
        recent.get_or_insert_with(4, || OwnedValue { owner: ada(), value: Instant::now() });
        assert!(!recent.contains(0), "the one used longest ago made room");
        recent.remove(3);
        assert!(!recent.contains(3));
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let recent = RecentMap::new(SHARDS * 2);
        for key in 0..10_000 {
            recent.insert(key << 64 | key, &ada(), ());
        }
        assert_eq!(recent.len(), SHARDS * 2, "every shard is full, and none is more than that");
    }

    #[test]
    fn a_flood_of_one_principal_takes_no_entry_of_another_one() {
        let recent = RecentMap::new(SHARDS * 4);
        recent.insert(7 << 64 | 7, &ada(), ());
        for key in 100..10_000 {
            recent.insert(key << 64 | key, &mallory(), ());
        }
        assert!(recent.contains(7 << 64 | 7));
        assert_eq!(recent.len(), SHARDS * 4, "hers has a place among the others");
        for key in 0..10_000 {
            recent.remove(key << 64 | key);
        }
        assert!(recent.shards.iter().all(|shard| shard.lock().usage.is_empty()), "nothing is counted any more");
    }

    #[test]
    fn a_key_that_is_inserted_again_counts_for_its_last_owner_alone() {
        let recent = RecentMap::of_one_shard(3);
        for _ in 0..5 {
            recent.insert(1, &ada(), ());
        }
        recent.insert(1, &mallory(), ());
        assert_eq!((recent.len(), recent.shards[0].lock().usage.len()), (1, 1));
        recent.insert(2, &ada(), ());
        recent.insert(3, &mallory(), ());
        recent.insert(4, &ada(), ());
        assert!(!recent.contains(1) && recent.contains(2), "mallory had most");
    }

    #[test]
    fn a_value_in_use_stays_and_all_in_use_exceed_the_limit() {
        let recent = RecentMap::of_one_shard(2);
        let busy: Vec<Arc<u8>> = (0..3).map(|key| recent.get_or_default(key, &ada())).collect();
        assert_eq!(recent.len(), 3, "none of them makes room");
        recent.get_or_default(3, &mallory());
        recent.get_or_default(4, &ada());
        assert!(!recent.contains(3) && recent.contains(0), "the only one out of use made room");
        drop(busy);
        recent.get_or_default(5, &ada());
        assert_eq!(recent.len(), 2, "more than there is room for are kept only while they are in use");
    }

    #[test]
    fn values_above_the_bound_in_bytes_make_room_from_the_owner_with_most_bytes() {
        let recent: RecentMap<Arc<u8>> = RecentMap::with_shards(100, 1_000, 1);
        let take = |key, owner: &Principal, bytes| {
            let in_use = recent.get_or_default(key, owner);
            recent.set_bytes(key, bytes);
            drop(in_use);
        };
        take(1, &ada(), 300);
        (2..10).for_each(|key| take(key, &mallory(), 200));
        assert_eq!(recent.bytes(), 900);
        assert!(recent.contains(1), "its owner has fewer bytes than the other, though it was used longest ago");
        assert_eq!([6, 7, 8, 9].map(|key| recent.contains(key)), [false, true, true, true]);
        take(9, &mallory(), 100);
        assert_eq!(recent.bytes(), 800);
        take(1, &ada(), 900);
        assert_eq!((recent.bytes(), recent.len()), (1_000, 2), "a value in use stays");
        (1..10).for_each(|key| drop(recent.remove(key)));
        assert_eq!((recent.bytes(), recent.shards[0].lock().usage.len()), (0, 0));
    }
}
