//! Counts the use of a limited resource, in total and by principal, or by another key.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::num::NonZeroUsize;

use super::Principal;

pub type PrincipalCounts = OwnerCounts<Principal>;

/// Amounts in use. Keeps an entry only for owners with a nonzero amount.
#[derive(Debug)]
pub struct OwnerCounts<K> {
    all: usize,
    by_owner: HashMap<K, usize>,
}

impl<K> Default for OwnerCounts<K> {
    fn default() -> Self {
        Self { all: 0, by_owner: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> OwnerCounts<K> {
    pub const fn all(&self) -> usize {
        self.all
    }

    pub fn of(&self, owner: &K) -> usize {
        self.by_owner.get(owner).copied().unwrap_or(0)
    }

    /// Adds one. The caller checks the limits.
    pub fn add(&mut self, owner: &K) {
        self.add_many(owner, NonZeroUsize::MIN);
    }

    pub fn add_many(&mut self, owner: &K, number: NonZeroUsize) {
        self.all += number.get();
        *self.by_owner.entry(owner.clone()).or_default() += number.get();
    }

    pub fn remove(&mut self, owner: &K) {
        self.remove_many(owner, NonZeroUsize::MIN);
    }

    pub fn remove_many(&mut self, owner: &K, number: NonZeroUsize) {
        if let Entry::Occupied(mut own) = self.by_owner.entry(owner.clone()) {
            self.all -= number.get();
            *own.get_mut() -= number.get();
            if *own.get() == 0 {
                own.remove();
            }
        }
    }

    #[cfg(test)]
    pub fn owners(&self) -> usize {
        self.by_owner.len()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.all == 0 && self.by_owner.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_principal_counts_its_own_and_is_forgotten_with_its_last() {
        let (ada, bob) = (Principal::new("key:ada"), Principal::new("key:bob"));
        let mut counts = PrincipalCounts::default();
        counts.add(&ada);
        counts.add(&ada);
        counts.add(&bob);
        assert_eq!((counts.of(&ada), counts.of(&bob), counts.all()), (2, 1, 3));
        counts.remove(&bob);
        counts.remove(&bob);
        assert_eq!((counts.of(&bob), counts.all()), (0, 2), "a count that is not held is not returned");
        counts.remove(&ada);
        counts.remove(&ada);
        assert!(counts.is_empty());
    }
}
