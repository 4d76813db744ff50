//! Tracks the keys of all open objects, to detect duplicates.

use std::borrow::Cow;
use std::collections::HashSet;

use smallvec::SmallVec;

/// Up to so many keys are compared one by one; beyond, a set is faster.
const LINEAR_MAX: usize = 16;

/// Keys of the open objects, innermost last.
#[derive(Debug, Default)]
pub(super) struct OpenKeys<'t> {
    stack: SmallVec<[Cow<'t, str>; 32]>,
    /// The keys of large objects. The standard hasher has a random seed, so colliding keys cannot be prepared (B89).
    sets: Vec<HashSet<Cow<'t, str>>>,
}

#[derive(Debug)]
pub(super) struct ObjectKeys {
    /// The index of its first key on the stack.
    from: usize,
    /// One bit for each [`fingerprint`] seen: an unset bit saves the comparisons.
    seen: u64,
    /// Whether its keys are in a set, which is the last one while the object is the innermost.
    is_large: bool,
}

impl<'t> OpenKeys<'t> {
    pub(super) fn open(&self) -> ObjectKeys {
        ObjectKeys { from: self.stack.len(), seen: 0, is_large: false }
    }

    /// Adds a key to the innermost object, `object`; false for a duplicate.
    pub(super) fn insert(&mut self, object: &mut ObjectKeys, key: Cow<'t, str>) -> bool {
        if object.is_large {
            return self.sets.last_mut().is_some_and(|set| set.insert(key));
        }
        let bit = 1 << fingerprint(&key);
        if object.seen & bit != 0 && self.stack[object.from..].contains(&key) {
            return false;
        }
        object.seen |= bit;
        self.stack.push(key);
        if self.stack.len() - object.from > LINEAR_MAX {
            object.is_large = true;
            self.sets.push(self.stack.drain(object.from..).collect());
        }
        true
    }

    /// Forgets the keys of the innermost object.
    pub(super) fn close(&mut self, object: &ObjectKeys) {
        if object.is_large {
            self.sets.pop();
        }
        self.stack.truncate(object.from);
    }
}

/// A number below 64 that distinguishes most keys of one object.
fn fingerprint(key: &str) -> u32 {
    let bytes = key.as_bytes();
    let (first, last) = (bytes.first().copied().unwrap_or(0), bytes.last().copied().unwrap_or(0));
    (u32::from(first) ^ (u32::from(last) << 2) ^ (bytes.len() as u32).wrapping_mul(11)) % 64
}
