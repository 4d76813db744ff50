//! Names one life of one replica.

use std::fmt;

/// One life of one replica, numbered by the store at its registration. No number is used twice, so what it once held is its own
/// for ever: a replica that was declared dead comes back under another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
