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
    let mut digits = vec![0; 2 * bytes.len()];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&[byte >> 4, byte & 15].map(|nibble| b"0123456789abcdef"[usize::from(nibble)]));
    }
    String::from_utf8(digits).expect("digits are ASCII")
}

/// The bytes of lowercase hex digits; `None` for other texts, and for other lengths.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hex_digits_read_back_and_no_other_text_is_read(bytes: [u8; 6], text in "[0-9a-fA-Fé+]{0,14}") {
            prop_assert_eq!(unhex(&hex(&bytes)), Some(bytes));
            if let Some(read) = unhex::<6>(&text) {
                prop_assert_eq!(hex(&read), text);
            }
        }
    }

    #[test]
    fn texts_with_other_digits_or_of_another_length_are_refused() {
        for text in ["", "0a", "0a1", "0a1b2", "0A1b", "+a1b", "0a1g", "0aé"] {
            assert_eq!(unhex::<2>(text), None, "{text}");
        }
        assert_eq!(unhex("0a1b"), Some([0x0a, 0x1b]));
    }
}
