//! Names tasks and principals for operators, by digests.

use std::fmt;

use super::digest::{Digest, digest, hex, unhex};
use super::{Principal, TaskKey};

/// Digits of a short digest: 48 bits, so that a hundred thousand tasks rarely share one.
pub const SHORT: usize = 12;

/// The reference of [`Principal::local`].
const OF_LOCAL: &str = "e39b801c66c8";

/// A task's name for operators: [`SHORT`] hex digits. It does not reveal the id, perhaps a bearer secret (T-22).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShortReference(pub [u8; SHORT / 2]);

impl ShortReference {
    pub fn of(key: &TaskKey) -> Self {
        let id = key.id.bits().to_be_bytes();
        let digest = digest([b"task", key.owner.as_str().as_bytes(), &id]);
        let mut first = [0; SHORT / 2];
        first.copy_from_slice(&digest.0[..SHORT / 2]);
        Self(first)
    }

    pub fn parse(text: &str) -> Option<Self> {
        unhex(text).map(Self)
    }
}

impl fmt::Display for ShortReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for ShortReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A task in logs: the reference that `taskgate tasks` takes. The digest is computed only when the line is written.
#[derive(Clone, Copy, Debug)]
pub struct LoggedTask<'a>(pub &'a TaskKey);

impl fmt::Display for LoggedTask<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&ShortReference::of(self.0), f)
    }
}

/// A principal's name for operators: its key's id, no secret; an anonymous client's address; or [`SHORT`] digits.
pub fn principal_reference(principal: &Principal) -> String {
    if let Some(shown) = principal.key_id().or_else(|| principal.address()) {
        return shown.to_owned();
    }
    // Every task of a gateway for one person has this owner: its digest is not computed again for each line.
    if principal.is_local() {
        return OF_LOCAL.to_owned();
    }
    short(&digest([b"principal", principal.as_str().as_bytes()]))
}

#[derive(Clone, Copy, Debug)]
pub struct LoggedPrincipal<'a>(pub &'a Principal);

impl fmt::Display for LoggedPrincipal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&principal_reference(self.0))
    }
}

fn short(digest: &Digest) -> String {
    hex(&digest.0[..SHORT / 2])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::TaskId;

    /// Recorded by operators and in logs, so they must never change.
    #[test]
    fn references_are_the_same_in_every_version() {
        let key = TaskKey { owner: Principal::local(), id: TaskId::from_bits(1) };
        assert_eq!(ShortReference::of(&key).to_string(), "cc11033d752c");
        assert_eq!(ShortReference::parse("cc11033d752c"), Some(ShortReference::of(&key)));
        for wrong in ["", "cc11033d752", "cc11033d752cc", "CC11033d752c", "cc11033d752g", "cc11033d75ö"] {
            assert_eq!(ShortReference::parse(wrong), None, "{wrong}");
        }
        assert_eq!(principal_reference(&Principal::local()), "e39b801c66c8");
        assert_eq!(short(&digest([b"principal", Principal::local().as_str().as_bytes()])), OF_LOCAL);
        assert_eq!(LoggedPrincipal(&Principal::local()).to_string(), "e39b801c66c8");
        assert_eq!(principal_reference(&Principal::new("key:team-a")), "team-a");
        let other = TaskKey { owner: Principal::anonymous(), ..key };
        assert_ne!(ShortReference::of(&other), ShortReference::of(&key));
    }
}
