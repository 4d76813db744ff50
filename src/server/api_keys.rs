//! Reads API keys, and finds the principal of a bearer token. A key is `tg_ID_SECRET`. The public ID finds the key.
//! Only the SHA-256 of the whole text is stored, which is enough for a secret of 128 random bits or more. Every invalid
//! key takes the same time to refuse (B151).

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use http::HeaderName;

use super::client_certificates::{CertificateBlock, block_of};
use super::grant::Grant;
use super::tokens::settings::TokenSettings;
use crate::random;
use crate::task::digest::hex;
use crate::task::{AdmittedCallers, Caller, Clock, CredentialHolders, Principal, SystemClock, Timestamp};

/// The header of a gateway key, for clients that use `Authorization` for the upstream.
pub const KEY_HEADER: HeaderName = HeaderName::from_static("x-taskgate-key");

/// The prefix of every key, by which secret scanners can recognise one.
const PREFIX: &str = "tg_";
const ID_LEN_MAX: usize = 32;
/// Longer tokens are no keys, and are refused unread.
pub const KEY_LEN_MAX: usize = 256;
/// The minimum entropy of a secret, in bits (B169).
const SECRET_BITS_MIN: f64 = 128.0;
/// A random secret of that size has more distinct characters in all but one of 10¹² cases.
const DIFFERENT_CHARACTERS_MIN: usize = 8;

type ApiKeyDigest = [u8; SHA256_OUTPUT_LEN];

/// Why a text is not a key. No variant repeats the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.explanation())]
pub enum ApiKeyError {
    Form,
    Weak,
    Digest,
}

impl ApiKeyError {
    /// The explanation for operators; it follows the name of the setting or file.
    pub const fn explanation(&self) -> &'static str {
        match self {
            Self::Form => "is not a key; write tg_ID_SECRET, with an ID of at most 32 letters and digits",
            Self::Weak => "is a key with a secret of less than 128 bits; take 32 random hex digits or more",
            Self::Digest => "is not the digest of a key; write ID:SHA256, the latter as 64 hex digits of the whole key",
        }
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    id: Box<str>,
    digest: ApiKeyDigest,
}

debug_members!(ApiKey, |key| id: key.id);

impl ApiKey {
    /// Generates a key for principal `id`: its text, which is not stored, and its record. Panics without randomness.
    pub fn mint(id: &str) -> (String, Self) {
        // During a rotation a principal has two keys: their IDs must differ.
        let whose: String = id.chars().filter(char::is_ascii_alphanumeric).take(ID_LEN_MAX - 8).collect();
        let id = format!("{whose}{}", hex(&random::key::<4>()));
        let text = format!("{PREFIX}{id}_{}", hex(&random::key::<32>()));
        let key = Self { digest: digest_of(&text), id: id.into() };
        (text, key)
    }

    /// `ID:SHA256`, which [`ApiKey::read_digest`] reads. It is no secret.
    pub fn known_as(&self) -> String {
        format!("{}:{}", self.id, hex(&self.digest))
    }

    /// Parses a key; refuses a secret that is too weak by its length and alphabet.
    pub fn read(text: &str) -> Result<Self, ApiKeyError> {
        let (id, secret) = parts(text).ok_or(ApiKeyError::Form)?;
        if !is_strong(secret) {
            return Err(ApiKeyError::Weak);
        }
        Ok(Self { id: id.into(), digest: digest_of(text) })
    }

    /// Parses `ID:SHA256`, for a configuration without secrets.
    pub fn read_digest(text: &str) -> Result<Self, ApiKeyError> {
        let (id, hex) = text.split_once(':').filter(|(id, _)| is_id(id)).ok_or(ApiKeyError::Digest)?;
        let mut digest = ApiKeyDigest::default();
        if hex.len() != 2 * digest.len() || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ApiKeyError::Digest);
        }
        for (at, byte) in digest.iter_mut().enumerate() {
            let pair = hex.get(2 * at..2 * at + 2).unwrap_or_default();
            *byte = u8::from_str_radix(pair, 16).map_err(|_| ApiKeyError::Digest)?;
        }
        Ok(Self { id: id.into(), digest })
    }

    /// The public ID, which may be logged.
    pub fn id(&self) -> &str {
        &self.id
    }
}

fn parts(text: &str) -> Option<(&str, &str)> {
    let visible = text.len() <= KEY_LEN_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
    let (id, secret) = text.strip_prefix(PREFIX).filter(|_| visible)?.split_once('_')?;
    (is_id(id) && !secret.is_empty()).then_some((id, secret))
}

fn is_id(text: &str) -> bool {
    (1..=ID_LEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Whether a header value has a word that begins like a key, even a mistyped or revoked one: it is never forwarded.
pub(super) fn shows_key(value: &[u8]) -> bool {
    // None of these characters is part of a token (RFC 9110, 11.2).
    let is_between = |byte: &u8| byte.is_ascii_whitespace() || b",;:=\"'".contains(byte);
    // A long token is searched for the prefix, and not split into words.
    let mut places = memchr::memmem::find_iter(value, PREFIX);
    places.any(|at| value[..at].last().is_none_or(is_between))
}

/// Whether a secret could be 128 random bits; its randomness cannot be proved.
fn is_strong(secret: &str) -> bool {
    let has = |kind: fn(&u8) -> bool| secret.as_bytes().iter().any(kind);
    let is_hex = secret.bytes().all(|byte| byte.is_ascii_hexdigit());
    let letters = if is_hex { 6 } else { 26 };
    let mut alphabet = 0;
    for (found, size) in [
        (has(u8::is_ascii_digit), 10),
        (has(u8::is_ascii_lowercase), letters),
        (has(u8::is_ascii_uppercase), letters),
        (has(u8::is_ascii_punctuation), 2),
    ] {
        alphabet += if found { size } else { 0 };
    }
    let mut different: Vec<u8> = secret.bytes().collect();
    different.sort_unstable();
    different.dedup();
    // Lengths are bounded, so this is lossless.
    let length = u32::try_from(secret.len()).unwrap_or(u32::MAX);
    let bits = f64::from(length) * f64::from(alphabet).log2();
    bits >= SECRET_BITS_MIN && different.len() > DIFFERENT_CHARACTERS_MIN
}

fn digest_of(text: &str) -> ApiKeyDigest {
    let mut out = ApiKeyDigest::default();
    out.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    out
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthSettings {
    /// Serves every client as this principal; as `local` only while there is no sign of a second person.
    Everyone(Principal),
    /// Requires one of these keys. Never empty.
    ApiKeys(Vec<ApiKeySettings>),
    /// Requires a token, or one of these keys if there are some.
    Tokens(Arc<TokenSettings>, Vec<ApiKeySettings>),
    /// Requires one of these certificates, or one of the other credentials if there are some. Never empty.
    Certificates(Vec<CertificateBlock>, Option<Box<Self>>),
}

impl AuthSettings {
    pub fn keys(&self) -> &[ApiKeySettings] {
        match self {
            Self::Everyone(_) | Self::Certificates(_, None) => &[],
            Self::ApiKeys(keys) | Self::Tokens(_, keys) => keys,
            Self::Certificates(_, Some(others)) => others.keys(),
        }
    }

    pub const fn tokens(&self) -> Option<&Arc<TokenSettings>> {
        match self {
            Self::Everyone(_) | Self::ApiKeys(_) | Self::Certificates(_, None) => None,
            Self::Tokens(tokens, _) => Some(tokens),
            Self::Certificates(_, Some(others)) => others.tokens(),
        }
    }

    pub fn admitted(&self) -> AdmittedCallers {
        if matches!(self, Self::Everyone(_)) {
            return AdmittedCallers::Keyless;
        }
        let keys = self.keys().iter().map(|key| key.caller.principal.clone());
        let issuers = self.tokens().into_iter().flat_map(|tokens| &tokens.issuers);
        let holders = CredentialHolders::new(keys).with_issuers(issuers.map(|issuer| &*issuer.issuer));
        let blocks = self.certificates().to_vec();
        AdmittedCallers::Holders(match blocks.is_empty() {
            true => holders,
            false => holders.with_certificates(move |name| block_of(&blocks, name).is_some()),
        })
    }
    pub fn certificates(&self) -> &[CertificateBlock] {
        match self {
            Self::Everyone(_) | Self::ApiKeys(_) | Self::Tokens(..) => &[],
            Self::Certificates(certificates, _) => certificates,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKeySettings {
    pub caller: Caller,
    pub source: KeySource,
    pub place: KeyPlace,
}

/// The full path of a configuration key, and its file where that is not the main configuration file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPlace {
    pub file: Option<Arc<str>>,
    pub key: String,
}

impl From<String> for KeyPlace {
    fn from(key: String) -> Self {
        Self { file: None, key }
    }
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        write!(f, "key `{}`", self.key)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    Known(ApiKey),
    /// A file that contains only the key, relative to the working directory.
    File(PathBuf),
}

#[derive(Clone, Debug, Default)]
pub struct ApiKeys(HashMap<Box<str>, ApiKeyRecord>);

#[derive(Clone)]
struct ApiKeyRecord {
    digest: ApiKeyDigest,
    owner: Caller,
    grant: Grant,
    /// Whether the log says that it has expired.
    is_expiry_logged: Arc<AtomicBool>,
}

impl ApiKeyRecord {
    fn is(&self, other: &Self) -> bool {
        self.digest == other.digest && self.owner == other.owner
    }
}

debug_members!(ApiKeyRecord, |record| owner: record.owner);

impl ApiKeys {
    /// Adds a key of a principal, which may have several during a rotation. Returns the key if its ID is taken.
    pub fn add(&mut self, key: ApiKey, owner: &Caller) -> Result<(), ApiKey> {
        if self.0.contains_key(&key.id) {
            return Err(key);
        }
        let (owner, is_expiry_logged) = (owner.clone(), Arc::default());
        self.0.insert(key.id, ApiKeyRecord { digest: key.digest, owner, grant: Grant::default(), is_expiry_logged });
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The owner of a token that has not expired at `now`. Takes the same time for every token of one length, whether its ID is known or not.
    #[must_use]
    fn owner(&self, token: &str, now: Timestamp) -> Option<(&Caller, &Grant)> {
        if token.len() > KEY_LEN_MAX {
            return None;
        }
        let shown = digest_of(token);
        let known = parts(token).and_then(|(id, _)| self.0.get(id));
        // No text with this digest can be found; the comparison costs the same as a real one.
        let expected = known.map_or(&[0; SHA256_OUTPUT_LEN], |held| &held.digest);
        let is_same = verify_slices_are_equal(expected, &shown).is_ok();
        let held = known.filter(|_| is_same)?;
        if held.owner.until.is_some_and(|until| until <= now) {
            if !held.is_expiry_logged.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    principal = held.owner.principal.as_str(),
                    key = parts(token).map_or("", |(id, _)| id),
                    "a client uses an API key that has expired"
                );
            }
            return None;
        }
        Some((&held.owner, &held.grant))
    }
}

/// The keys of a running listener, replaced at once by a reload: requests are answered (B152), streams end with keys.
#[derive(Clone, Debug)]
pub struct ApiKeyRing {
    keys: Arc<ApiKeys>,
    clock: Arc<dyn Clock>,
}

impl ApiKeyRing {
    pub fn new(keys: ApiKeys) -> Self {
        Self { keys: Arc::new(keys), clock: Arc::new(SystemClock) }
    }

    /// The sender of a request with this key, and its grant.
    pub(super) fn owner(&self, token: &str) -> Option<(&Caller, &Grant)> {
        self.keys.owner(token, self.clock.now())
    }

    /// The keys that replace `before`. Streams of a key in both continue; streams of a removed or reassigned key end.
    pub(super) fn succeeding(self, before: &Self) -> Self {
        let mut keys = Arc::unwrap_or_clone(self.keys);
        for (id, held) in &before.keys.0 {
            match keys.0.get_mut(id).filter(|now| now.is(held)) {
                Some(now) => now.grant = held.grant.clone(),
                None => held.grant.withdraw(),
            }
        }
        Self { keys: Arc::new(keys), clock: self.clock }
    }

    pub(super) fn withdraw(&self) {
        self.keys.0.values().for_each(|held| held.grant.withdraw());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef";
    const NOW: Timestamp = Timestamp::from_millis(1_000);

    fn key(id: &str) -> String {
        format!("tg_{id}_{HEX}")
    }

    #[test]
    fn a_key_that_was_made_is_strong_and_known_by_its_digest() {
        let long = "a.b@".repeat(16);
        for (id, begins) in
            [("ada", "tg_ada"), ("team-a.b_c@d", "tg_teamabcd"), ("-", "tg_"), (long.as_str(), "tg_abab")]
        {
            let ((text, key), (other, _)) = (ApiKey::mint(id), ApiKey::mint(id));
            assert!(text.starts_with(begins) && text != other, "{id}: {text}");
            assert_eq!(ApiKey::read(&text).as_ref(), Ok(&key), "{id}");
            assert_eq!(ApiKey::read_digest(&key.known_as()).as_ref(), Ok(&key), "{id}");
        }
    }

    #[test]
    fn b169_a_key_has_an_id_and_at_least_128_bits() {
        for (text, read) in [
            (key("a1"), Ok("a1")),
            // 22 characters of base64url, an underscore among them.
            ("tg_K7_aB3-dE6_hI9kLmN0pQrS5t".to_owned(), Ok("K7")),
            (format!("tg_a_{}", &HEX[..31]), Err(ApiKeyError::Weak)),
            ("tg_a_123456789012345678901234567890123456".to_owned(), Err(ApiKeyError::Weak)),
            (format!("tg_a_{}", "ab".repeat(40)), Err(ApiKeyError::Weak)),
            ("tg_a_password".to_owned(), Err(ApiKeyError::Weak)),
            (format!("a_{HEX}"), Err(ApiKeyError::Form)),
            (format!("tg__{HEX}"), Err(ApiKeyError::Form)),
            (format!("tg_a-b_{HEX}"), Err(ApiKeyError::Form)),
            (format!("tg_{}_{HEX}", "a".repeat(33)), Err(ApiKeyError::Form)),
            (format!("tg_a_{HEX} "), Err(ApiKeyError::Form)),
            (format!("tg_a_{}", HEX.repeat(9)), Err(ApiKeyError::Form)),
            ("tg_a".to_owned(), Err(ApiKeyError::Form)),
            (String::new(), Err(ApiKeyError::Form)),
        ] {
            let found = ApiKey::read(&text);
            assert_eq!(found.as_ref().map(ApiKey::id), read.as_ref().copied(), "{text}");
        }
    }

    #[test]
    fn a_digest_stands_for_its_key() {
        let text = key("a1");
        let hex: String = digest_of(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(ApiKey::read_digest(&format!("a1:{hex}")), ApiKey::read(&text));
        for wrong in [hex.clone(), format!("a1:{}", &hex[1..]), format!("a1:{hex}0"), format!("a1:+{}", &hex[1..])] {
            assert_eq!(ApiKey::read_digest(&wrong), Err(ApiKeyError::Digest), "{wrong}");
        }
    }

    #[test]
    fn b151_only_the_whole_key_is_its_owners() {
        let (ada, bob) = (Caller::of(Principal::new("key:ada")), Caller::of(Principal::new("key:bob")));
        let mut keys = ApiKeys::default();
        for (id, owner) in [("a1", &ada), ("a2", &ada), ("b1", &bob)] {
            keys.add(ApiKey::read(&key(id)).unwrap(), owner).unwrap();
        }
        assert!(keys.add(ApiKey::read(&key("a1")).unwrap(), &bob).is_err(), "an ID has one owner");
        let last_byte = key("a1").replace("cdef0123456789abcdef", "cdef0123456789abcdee");
        for (token, owner) in [
            (key("a1"), Some(&ada)),
            (key("a2"), Some(&ada)),
            (key("b1"), Some(&bob)),
            (key("c1"), None),
            (last_byte, None),
            (key("a1").to_uppercase(), None),
            (format!("{}0", key("a1")), None),
            (format!("tg_a1_{}", "0".repeat(300)), None),
            (String::new(), None),
        ] {
            assert_eq!(keys.owner(&token, NOW).map(|(found, _)| found), owner, "{token}");
        }
    }

    #[test]
    fn an_expired_key_is_refused_and_another_of_its_owner_is_not() {
        let until = |until| {
            let until = Some(Timestamp::from_millis(until));
            Caller { until, ..Caller::of(Principal::new("key:ada")) }
        };
        let mut keys = ApiKeys::default();
        for (id, end) in [("a1", 999), ("a2", 1_000), ("a3", 1_001)] {
            keys.add(ApiKey::read(&key(id)).unwrap(), &until(end)).unwrap();
        }
        let has_owner = |id| keys.owner(&key(id), NOW).is_some();
        assert_eq!(["a1", "a2", "a3"].map(has_owner), [false, false, true]);
    }

    #[test]
    fn a_word_that_begins_like_a_key_is_one_that_servers_are_not_shown() {
        for (value, expected) in [
            (format!("Bearer {}", key("a1")), true),
            (key("a1"), true),
            ("bearer   tg_".to_owned(), true),
            ("Digest username=\"tg_a1\", realm=x".to_owned(), true),
            ("Bearer a,tg_b".to_owned(), true),
            ("Bearer eyJ.x-tg_y.z_tg_w".to_owned(), false),
            ("Bearer a/tg_b~tg_c".to_owned(), false),
            ("Bearer a/tg_b tg_c".to_owned(), true),
            ("Basic dGdfYTE=".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(shows_key(value.as_bytes()), expected, "{value}");
        }
        assert!(shows_key(b"Bearer \xff tg_a"), "beside any other byte");
    }

    #[test]
    fn nothing_that_is_printed_shows_a_secret() {
        let mut keys = ApiKeys::default();
        let one = ApiKey::read(&key("a1")).unwrap();
        assert_eq!(format!("{one:?}"), "ApiKey { id: \"a1\", .. }");
        keys.add(one, &Caller::of(Principal::new("key:ada"))).unwrap();
        assert!(!format!("{:?}", ApiKeyRing::new(keys)).contains(HEX));
    }
}
