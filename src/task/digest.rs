//! Digests values that are not to be kept or shown themselves.

use aws_lc_rs::digest::{Context, SHA256};

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

/// A SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);
