//! Digests of things that are not to be kept or shown themselves.

use std::fmt;
use std::fmt::Write as _;

use aws_lc_rs::digest::{Context, SHA256};

use super::{Digest, Principal, TaskKey};

/// Digits of a short digest: 48 bits, so that a hundred thousand tasks hardly ever share one.
pub const SHORT: usize = 12;

/// SHA-256 of all parts, so that no two lists of parts have the same but by breaking it.
#[must_use]
pub fn digest<const N: usize>(parts: [&[u8]; N]) -> Digest {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.finish().as_ref());
    Digest(bytes)
}

/// What operators call a task by: [`SHORT`] hex digits. The same in every life of the process; the id, which may be a
/// bearer secret (T-22) and has 128 random bits, cannot be guessed from it.
#[must_use]
pub fn task_reference(key: &TaskKey) -> String {
    let id = key.id.bits().to_be_bytes();
    short(&digest([b"task", key.owner.as_str().as_bytes(), &id]))
}

/// A task as logs show it: by the reference that `taskgate tasks` takes. The digest is made only where the line is written.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a>(pub &'a TaskKey);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&task_reference(self.0))
    }
}

/// What operators see of a principal, the same for all tasks of one: the id that the configuration gives its key, which is
/// no secret, or [`SHORT`] hex digits.
#[must_use]
pub fn principal_reference(principal: &Principal) -> String {
    if let Some(id) = principal.as_str().strip_prefix("key:") {
        return id.to_owned();
    }
    short(&digest([b"principal", principal.as_str().as_bytes()]))
}

/// A principal as logs show it, by its reference. The digest is made only where the line is written.
#[derive(Clone, Copy, Debug)]
pub struct Whose<'a>(pub &'a Principal);

impl fmt::Display for Whose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&principal_reference(self.0))
    }
}

fn short(digest: &Digest) -> String {
    digest.0.iter().take(SHORT / 2).fold(String::with_capacity(SHORT), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::TaskId;

    /// Written down by operators and in logs: never to change.
    #[test]
    fn references_are_the_same_in_every_version() {
        let key = TaskKey { owner: Principal::local(), id: TaskId::from_bits(1) };
        assert_eq!(task_reference(&key), "cc11033d752c");
        assert_eq!(principal_reference(&Principal::local()), "e39b801c66c8");
        assert_eq!(Whose(&Principal::local()).to_string(), "e39b801c66c8");
        assert_eq!(principal_reference(&Principal::new("key:team-a")), "team-a");
        let other = TaskKey { owner: Principal::anonymous(), ..key };
        assert_ne!(task_reference(&other), "cc11033d752c");
    }
}
