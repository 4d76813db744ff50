//! Digests values that are not to be kept or shown themselves.

use aws_lc_rs::digest::{self, SHA256};
use smallvec::SmallVec;

/// SHA-256 of all parts, so that no two lists of parts have the same but by breaking it.
#[must_use]
pub fn digest<const N: usize>(parts: [&[u8]; N]) -> Digest {
    // In one piece: a digest in steps costs as much again where the text is short, as nearly always.
    let mut text = SmallVec::<[u8; 128]>::new();
    for part in parts {
        text.extend_from_slice(&(part.len() as u64).to_be_bytes());
        text.extend_from_slice(part);
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest::digest(&SHA256, &text).as_ref());
    Digest(bytes)
}

/// Hex digits of some bytes. One allocation: this runs for every request of a session.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let nibbles = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    nibbles.map(|nibble| char::from(b"0123456789abcdef"[usize::from(nibble)])).collect()
}

/// A SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);
