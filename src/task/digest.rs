//! Digests values that must not be stored or shown themselves.

use aws_lc_rs::digest::{self, SHA256};
use smallvec::SmallVec;

/// SHA-256 over the parts with their lengths, so that different lists of parts have different digests.
pub fn digest<const N: usize>(parts: [&[u8]; N]) -> Digest {
    // In one buffer: for short texts, the usual case, an incremental digest costs twice as much.
    let mut text = SmallVec::<[u8; 128]>::new();
    for part in parts {
        text.extend_from_slice(&(part.len() as u64).to_be_bytes());
        text.extend_from_slice(part);
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest::digest(&SHA256, &text).as_ref());
    Digest(bytes)
}

/// The hex digits of some bytes. One allocation, since this runs for every request of a session.
pub fn hex(bytes: &[u8]) -> String {
    let nibbles = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digits = nibbles.map(|nibble| b"0123456789abcdef"[usize::from(nibble)]).collect();
    String::from_utf8(digits).expect("digits are ASCII")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);
