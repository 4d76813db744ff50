//! Reads the sealing keys: one per line, as hex digits.

use aws_lc_rs::digest::{Context, SHA256};

pub const KEY_LEN: usize = 32;
const DIGITS: usize = 2 * KEY_LEN;
/// Each further key costs one more attempt at every foreign token.
const KEYS_MAX: usize = 16;

/// A fingerprint of a key, which reveals nothing of it.
pub type KeyPrint = [u8; 8];
/// Precedes the key in its fingerprint's digest, so that the digest has no other use.
const PRINT_LABEL: &[u8] = b"taskgate key print";

/// The first key seals, all open. To rotate, put the new key first, and keep old ones while their tokens must work.
#[derive(Clone, PartialEq, Eq)]
pub struct SealingKeys(Vec<[u8; KEY_LEN]>);

/// The fault of a key file's text, with its remedy. Shows nothing of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("has no key; a key is a line of {DIGITS} hex digits")]
    Empty,
    #[error("line {line} has {found} characters; a key is a line of {DIGITS} hex digits")]
    Length { line: usize, found: usize },
    #[error("line {line} has characters that are not hex digits; a key is a line of {DIGITS} of 0 to 9 and a to f")]
    Digits { line: usize },
    #[error("has more than {KEYS_MAX} keys; remove the last ones, which are the oldest")]
    TooMany,
}

impl SealingKeys {
    /// Reads one key per line; ignores blanks around keys and empty lines. Fails for an invalid line, or without keys.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() {
                keys.push(read_key(line, number + 1)?);
            }
        }
        match keys.len() {
            0 => Err(KeyError::Empty),
            1..=KEYS_MAX => Ok(Self(keys)),
            _ => Err(KeyError::TooMany),
        }
    }

    /// A ring with one random key for this process: its tokens end with it.
    pub fn ephemeral(random: [u8; KEY_LEN]) -> Self {
        Self(vec![random])
    }

    pub fn to_text(&self) -> String {
        let hex = |byte: &u8| [byte >> 4, byte & 15].map(|digit| char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        let line = |key: &[u8; KEY_LEN]| key.iter().flat_map(hex).chain(['\n']).collect::<String>();
        self.0.iter().map(line).collect()
    }

    /// In the order of the keys.
    pub fn prints(&self) -> Vec<KeyPrint> {
        let print = |key: &[u8; KEY_LEN]| {
            let mut digest = Context::new(&SHA256);
            digest.update(PRINT_LABEL);
            digest.update(key);
            let mut print = KeyPrint::default();
            print.iter_mut().zip(digest.finish().as_ref()).for_each(|(to, from)| *to = *from);
            print
        };
        self.0.iter().map(print).collect()
    }

    /// Never empty.
    pub(super) fn into_keys(self) -> Vec<[u8; KEY_LEN]> {
        self.0
    }
}

fn read_key(line: &str, number: usize) -> Result<[u8; KEY_LEN], KeyError> {
    let found = line.chars().count();
    if found != DIGITS {
        return Err(KeyError::Length { line: number, found });
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut key = [0; KEY_LEN];
    for (byte, pair) in key.iter_mut().zip(line.as_bytes().chunks_exact(2)) {
        let digits = digit(pair[0]).zip(digit(pair[1]));
        *byte = digits.map(|(high, low)| high << 4 | low).ok_or(KeyError::Digits { line: number })?;
    }
    Ok(key)
}

debug_members!(SealingKeys, |keys| keys: keys.0.len());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_one_key_a_line_and_every_mistake_names_its_line() {
        let (a, b) = ("0f".repeat(KEY_LEN), "A5".repeat(KEY_LEN));
        let ring = |keys: &[u8]| Ok(SealingKeys(keys.iter().map(|byte| [*byte; KEY_LEN]).collect()));
        let umlauts = "ü".repeat(DIGITS);
        for (text, read) in [
            (a.clone(), ring(&[0x0f])),
            (format!("{a}\n"), ring(&[0x0f])),
            (format!("\r\n  {b}\t\r\n\n{a}\r\n"), ring(&[0xa5, 0x0f])),
            (String::new(), Err(KeyError::Empty)),
            ("\n \n".to_owned(), Err(KeyError::Empty)),
            (format!("{a}\n{}", &b[1..]), Err(KeyError::Length { line: 2, found: 63 })),
            (format!("{a}{b}"), Err(KeyError::Length { line: 1, found: 128 })),
            (format!("\n{}g", &a[1..]), Err(KeyError::Digits { line: 2 })),
            (umlauts, Err(KeyError::Digits { line: 1 })),
            (format!("{a}\n").repeat(KEYS_MAX + 1), Err(KeyError::TooMany)),
        ] {
            assert_eq!(SealingKeys::parse(&text), read, "{text:?}");
        }
    }

    #[test]
    fn a_ring_reads_back_and_shows_nothing_of_its_keys() {
        let ring = SealingKeys(vec![[0x1f; KEY_LEN], std::array::from_fn(|at| u8::try_from(at).unwrap())]);
        assert_eq!(SealingKeys::parse(&ring.to_text()), Ok(ring.clone()));
        assert_eq!(format!("{ring:?}"), "SealingKeys { keys: 2, .. }");
    }
}
