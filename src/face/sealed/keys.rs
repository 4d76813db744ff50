//! Reads the sealing keys: one per line, as hex digits.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::hmac;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::random;

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

pub(super) const SALT_LEN: usize = 16;
pub(super) type Salt = [u8; SALT_LEN];

/// Precedes the salt. Its words are older than the reuse of a key, and part of the wire format.
const LABEL: &[u8] = b"taskgate key of one token";
/// How many tokens one salt seals, and for how long.
const TOKENS_MAX: u32 = 1 << 20;
const USED_FOR: Duration = Duration::from_secs(60);
/// The most cached salts of other replicas: some for each that forwards requests to this one.
const CACHED_MAX: u64 = 64;

/// Keys of frequent tokens: one salt, and so one key, for many. Nonces are 96 random bits, and a key seals at most 2²⁰
/// tokens: two have the same nonce with a probability below 2⁴⁰ / 2 / 2⁹⁶ = 2⁻⁵⁷; NIST SP 800-38D, 8.3 allows 2⁻³². All
/// keys together reach that only after 2²⁵ full salts, 2⁴⁵ tokens. Replicas that share a ring draw independent 128-bit
/// salts; tokens of a repeated salt would still have random nonces. A key missing in the cache is derived again.
pub(super) struct SaltedKeys {
    /// One for each key of the ring, in order. Never empty.
    derives: Vec<hmac::Key>,
    seals: Mutex<Option<SealingSalt>>,
    opens: Cache<Salt, Arc<LessSafeKey>>,
}

struct SealingSalt {
    salt: Salt,
    key: Arc<LessSafeKey>,
    began: Instant,
    left: u32,
}

impl SaltedKeys {
    pub(super) fn new(ring: &[[u8; KEY_LEN]]) -> Self {
        let derives = ring.iter().map(|key| hmac::Key::new(hmac::HMAC_SHA256, key)).collect();
        let opens = Cache::builder().max_capacity(CACHED_MAX).eviction_policy(EvictionPolicy::lru());
        Self { derives, seals: Mutex::default(), opens: opens.time_to_idle(USED_FOR).build() }
    }

    pub(super) fn for_sealing(&self, now: Instant) -> (Salt, Arc<LessSafeKey>) {
        let mut seals = self.seals.lock();
        let is_good = |current: &SealingSalt| current.left > 0 && now.duration_since(current.began) < USED_FOR;
        let current = seals.take().filter(is_good).unwrap_or_else(|| self.draw(now));
        let current = seals.insert(current);
        current.left -= 1;
        (current.salt, Arc::clone(&current.key))
    }

    fn draw(&self, now: Instant) -> SealingSalt {
        let salt = random::bytes();
        let key = Arc::new(derived(self.derives.first().expect("a ring has a key"), &salt));
        SealingSalt { salt, key, began: now, left: TOKENS_MAX }
    }

    /// Tries each key of a token's salt; caches only a key that opened it: strangers cannot fill or empty the cache.
    pub(super) fn open<T>(&self, salt: &Salt, open: impl Fn(&LessSafeKey) -> Option<T>) -> Option<T> {
        if let Some(opened) = self.opens.get(salt).and_then(|key| open(&key)) {
            return Some(opened);
        }
        self.derives.iter().find_map(|derives| {
            let key = derived(derives, salt);
            let opened = open(&key)?;
            self.opens.insert(*salt, Arc::new(key));
            Some(opened)
        })
    }
}

fn derived(derives: &hmac::Key, salt: &Salt) -> LessSafeKey {
    let mut key = [0; KEY_LEN];
    key.copy_from_slice(hmac::sign(derives, &[LABEL, &salt[..]].concat()).as_ref());
    aes(&key)
}

pub(super) fn aes(key: &[u8; KEY_LEN]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("the key has the algorithm's length"))
}

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

    fn keys(ring: &[u8]) -> SaltedKeys {
        SaltedKeys::new(&ring.iter().map(|byte| [*byte; KEY_LEN]).collect::<Vec<_>>())
    }

    #[test]
    fn a_key_is_used_for_many_tokens_and_changes_after_its_bounds() {
        let (keys, now) = (keys(&[1]), Instant::now());
        let (first, key) = keys.for_sealing(now);
        let (again, same) = keys.for_sealing(now + USED_FOR - Duration::from_millis(1));
        assert!(first == again && Arc::ptr_eq(&key, &same), "no key is made");
        let (later, _) = keys.for_sealing(now + USED_FOR);
        assert_ne!(later, first, "its time is over");
        for _ in 1..TOKENS_MAX {
            assert_eq!(keys.for_sealing(now + USED_FOR).0, later);
        }
        assert_ne!(keys.for_sealing(now + USED_FOR).0, later, "it has sealed all that it may");
    }

    #[test]
    fn the_cache_of_keys_saves_derivations_and_is_bounded() {
        let keys = keys(&[2, 1]);
        let salt = |number: u64| {
            let mut salt = [0; SALT_LEN];
            salt[..8].copy_from_slice(&number.to_be_bytes());
            salt
        };
        let tries = |number: u64, opens_at: u32| {
            let tried = std::cell::Cell::new(0);
            let opened = keys.open(&salt(number), |_| {
                tried.set(tried.get() + 1);
                (tried.get() == opens_at).then_some(())
            });
            (opened, tried.get())
        };
        assert_eq!(tries(0, 2), (Some(()), 2), "by the second key of the ring");
        assert_eq!(tries(0, 1), (Some(()), 1), "which is the one that is remembered");
        let remembered = || {
            keys.opens.run_pending_tasks();
            keys.opens.entry_count()
        };
        assert_eq!(remembered(), 1);
        assert_eq!(tries(1, u32::MAX), (None, 2));
        assert_eq!(remembered(), 1, "what did not open is not remembered");
        assert_eq!(tries(0, u32::MAX), (None, 3), "a remembered key takes nothing away");
        for number in 1..=CACHED_MAX {
            tries(number, 1);
        }
        assert_eq!(remembered(), CACHED_MAX);
        assert!(!keys.opens.contains_key(&salt(0)), "the one that was used longest ago went");
        assert!(keys.opens.contains_key(&salt(1)) && keys.opens.contains_key(&salt(CACHED_MAX)));
    }
}
