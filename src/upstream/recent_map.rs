//! Maps random keys to values, bounded: the least recently used entry is evicted.
//!
//! For lookups by every request: a lookup is one short lock and almost no hashing.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use parking_lot::Mutex;

/// Requests with different keys seldom contend for one lock.
const SHARDS: usize = 64;

/// At most about `entries_max` values. Keys must be unguessable.
#[derive(Debug)]
pub(crate) struct RecentMap<V> {
    shards: Box<[Mutex<RecentShard<V>>]>,
    shard_entries_max: usize,
}

#[derive(Debug)]
struct RecentShard<V> {
    entries: HashMap<u128, RecentEntry<V>, BuildHasherDefault<RandomKeyHasher>>,
    uses: u64,
}

#[derive(Debug)]
struct RecentEntry<V> {
    value: V,
    last_use: u64,
}

impl<V: Clone> RecentMap<V> {
    pub(crate) fn new(entries_max: usize) -> Self {
        let shard = || Mutex::new(RecentShard { entries: HashMap::default(), uses: 0 });
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), shard_entries_max: entries_max.div_ceil(SHARDS).max(1) }
    }

    pub(crate) fn get(&self, key: u128) -> Option<V> {
        self.shard(key).lock().touch(key).cloned()
    }

    pub(crate) fn contains(&self, key: u128) -> bool {
        self.shard(key).lock().touch(key).is_some()
    }

    pub(crate) fn insert(&self, key: u128, value: V) {
        let mut shard = self.shard(key).lock();
        shard.make_room(key, self.shard_entries_max);
        shard.put(key, value);
    }

    /// The value of `key`, inserted now if there is none.
    pub(crate) fn get_or_default(&self, key: u128) -> V
    where
        V: Default,
    {
        let mut shard = self.shard(key).lock();
        if let Some(value) = shard.touch(key) {
            return value.clone();
        }
        let value = V::default();
        shard.make_room(key, self.shard_entries_max);
        shard.put(key, value.clone());
        value
    }

    pub(crate) fn remove(&self, key: u128) {
        self.shard(key).lock().entries.remove(&key);
    }

    fn shard(&self, key: u128) -> &Mutex<RecentShard<V>> {
        // Other bits than the first ones that a shard's table uses.
        let mixed = usize::try_from(mix(key) >> 32 & 0xffff).unwrap_or(0);
        &self.shards[mixed % SHARDS]
    }
}

impl<V> RecentShard<V> {
    fn touch(&mut self, key: u128) -> Option<&V> {
        let entry = self.entries.get_mut(&key)?;
        self.uses += 1;
        entry.last_use = self.uses;
        Some(&entry.value)
    }

    fn put(&mut self, key: u128, value: V) {
        self.uses += 1;
        self.entries.insert(key, RecentEntry { value, last_use: self.uses });
    }

    /// Linear in the size of one shard, and only if it is full.
    fn make_room(&mut self, key: u128, entries_max: usize) {
        if self.entries.len() < entries_max || self.entries.contains_key(&key) {
            return;
        }
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.last_use).map(|(key, _)| *key);
        if let Some(oldest) = oldest {
            self.entries.remove(&oldest);
        }
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

    /// Keys of one shard, so that its limit can be reached.
    fn keys_of_one_shard(recent: &RecentMap<u32>, count: usize) -> Vec<u128> {
        let shard = std::ptr::from_ref(recent.shard(0));
        (0..).filter(|&key| std::ptr::eq(recent.shard(key), shard)).take(count).collect()
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let recent = RecentMap::new(SHARDS * 3);
        let keys = keys_of_one_shard(&recent, 4);
        for (value, key) in (0..).zip(&keys[..3]) {
            recent.insert(*key, value);
        }
        assert_eq!(recent.get(keys[0]), Some(0));
        recent.insert(keys[1], 7);
        recent.insert(keys[3], 3);
        assert_eq!([0, 1, 2, 3].map(|at| recent.get(keys[at])), [Some(0), Some(7), None, Some(3)]);
        assert_eq!(recent.get_or_default(keys[2]), 0);
        assert!(!recent.contains(keys[0]), "the one used longest ago made room for the default");
        recent.remove(keys[3]);
        assert!(!recent.contains(keys[3]));
    }

    #[test]
    fn no_more_is_kept_than_may_be() {
        let recent = RecentMap::new(SHARDS * 2);
        for key in 0..10_000 {
            recent.insert(key << 64 | key, ());
        }
        let kept: usize = recent.shards.iter().map(|shard| shard.lock().entries.len()).sum();
        assert_eq!(kept, SHARDS * 2, "every shard is full, and none is more than that");
    }
}
