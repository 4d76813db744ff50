//! Seals and opens tokens: the gateway's state of a client, which the client keeps.
//!
//! No other party can read or change a token, and each is valid only for its [`TokenPurpose`]. Sealing and opening are pure
//! except for the random nonce; the keys come from the caller. Read [`Sealer`] first, then [`SessionToken`] for the content of a
//! session id and [`StateToken`] for a `requestState`. A [`ForwardToken`] is not kept: it goes from one replica to another.

mod forward_token;
mod keys;
mod layout;
mod naming_keys;
mod salted_keys;
mod session_token;
mod state_token;
mod stream_token;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use aws_lc_rs::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::time::Instant;

use crate::random;
use crate::replica::Incarnation;
use crate::task::{Principal, Timestamp};
pub use forward_token::{ForwardToken, digest_of_request};
pub use keys::{KEY_LEN, KeyError, KeyPrint, SealingKeys};
use naming_keys::NamingKeys;
use salted_keys::{SALT_LEN, SaltedKeys, aes};
pub use session_token::{SessionToken, digest_of};
pub use state_token::{StateContent, StateScope, StateToken};
pub use stream_token::StreamToken;

/// The first byte of every token: its layout version.
const FORMAT: u8 = 1;
/// The overhead of sealing: format, nonce, tag.
const OVERHEAD: usize = 1 + NONCE_LEN + AES_256_GCM_TAG_LEN;
const AES_256_GCM_TAG_LEN: usize = 16;

/// The purpose of a token. It is authenticated with the content, so that a token never opens for another purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenPurpose {
    /// A session id; holds a [`SessionToken`].
    Session,
    /// A `requestState`; holds a [`StateToken`].
    RequestState,
    /// The cursor in a list of tasks.
    Cursor,
    /// The id of a question of a task.
    Question,
    /// The stream that an HTTP+SSE message belongs to; holds a [`StreamToken`].
    Stream,
    /// Accompanies a request from one replica to another; holds a [`ForwardToken`].
    Forward,
}

impl TokenPurpose {
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Session => b"session",
            Self::RequestState => b"request state",
            Self::Cursor => b"cursor",
            Self::Question => b"question",
            Self::Stream => b"stream",
            Self::Forward => b"forward",
        }
    }

    /// The longest text of a token, in bytes.
    #[must_use]
    pub const fn text_len_max(self) -> usize {
        match self {
            Self::Session => 2 << 10,
            Self::RequestState => 64 << 10,
            Self::Cursor | Self::Question | Self::Stream => 256,
            Self::Forward => 1 << 10,
        }
    }

    /// Whether it may have more tokens than one key may seal.
    const fn is_frequent(self) -> bool {
        matches!(self, Self::Forward)
    }

    /// The largest content for which the text stays within [`TokenPurpose::text_len_max`].
    #[must_use]
    pub const fn plain_len_max(self) -> usize {
        let salt = if self.is_frequent() { SALT_LEN } else { 0 };
        self.text_len_max() / 4 * 3 - OVERHEAD - salt
    }
}

/// The content does not fit into a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes do not fit into a token, which holds {max}")]
pub struct TooLarge {
    pub len: usize,
    pub max: usize,
}

/// Seals and opens tokens: AES-256-GCM, base64url without padding.
///
/// The key schedules are computed once; a request costs one pass over a few hundred bytes. Nonces are random, so a key may seal
/// 2³² tokens (NIST SP 800-38D, 8.3): 136 years of one new session or question a second. More frequent tokens have derived keys,
/// made from the ring's and a salt (`SaltedKeys`).
pub struct Sealer {
    /// The first key seals. Never empty.
    keys: Vec<LessSafeKey>,
    salted: SaltedKeys,
    naming: NamingKeys,
}

impl Sealer {
    #[must_use]
    pub fn new(keys: SealingKeys) -> Self {
        let ring = keys.into_keys();
        Self { keys: ring.iter().map(aes).collect(), salted: SaltedKeys::new(&ring), naming: NamingKeys::new(&ring) }
    }

    /// A token that holds `plain`: visible ASCII, different each time. The caller checks the length
    /// ([`TokenPurpose::plain_len_max`]); a token that is too long never opens.
    ///
    /// # Panics
    /// If the operating system provides no randomness: a repeated nonce would reveal the key.
    #[must_use]
    pub fn seal(&self, purpose: TokenPurpose, plain: &[u8]) -> String {
        if !purpose.is_frequent() {
            let key = self.keys.first().expect("a ring has a key");
            return URL_SAFE_NO_PAD.encode(sealed_with(key, purpose.label(), plain));
        }
        let (salt, key) = self.salted.for_sealing(Instant::now());
        let sealed = sealed_with(&key, purpose.label(), plain);
        URL_SAFE_NO_PAD.encode([&salt[..], &sealed].concat())
    }

    /// The content of a token. `None` unless it was sealed for this purpose with a key of the ring.
    #[must_use]
    pub fn open(&self, purpose: TokenPurpose, sealed: &str) -> Option<Vec<u8>> {
        if sealed.len() > purpose.text_len_max() {
            return None;
        }
        let token = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        if !purpose.is_frequent() {
            return self.keys.iter().find_map(|key| opened_with(key, purpose.label(), &token));
        }
        let (salt, token) = token.split_first_chunk::<SALT_LEN>()?;
        self.salted.open(salt, |key| opened_with(key, purpose.label(), token))
    }

    /// Seals a session id, without the client's name if that makes it too long.
    ///
    /// # Errors
    /// If it is too long regardless: the client declared more capabilities than an id can hold.
    pub fn seal_session(&self, token: &SessionToken) -> Result<String, TooLarge> {
        let plain = token.encode();
        let max = TokenPurpose::Session.plain_len_max();
        if plain.len() > max {
            return Err(TooLarge { len: plain.len(), max });
        }
        Ok(self.seal(TokenPurpose::Session, &plain))
    }

    /// Seals the token of a forwarded request; `None` if its principal is too long.
    #[must_use]
    pub fn seal_forward(&self, token: &ForwardToken) -> Option<String> {
        let plain = token.encode();
        (plain.len() <= TokenPurpose::Forward.plain_len_max()).then(|| self.seal(TokenPurpose::Forward, &plain))
    }

    /// Opens the token of a forwarded request.
    #[must_use]
    pub fn open_forward(&self, sealed: &str) -> Option<ForwardToken> {
        ForwardToken::decode(&self.open(TokenPurpose::Forward, sealed)?)
    }

    /// The content of a session id; `None` if it is foreign. The caller checks its principal and upstream.
    #[must_use]
    pub fn open_session(&self, sealed: &str) -> Option<SessionToken> {
        SessionToken::decode(&self.open(TokenPurpose::Session, sealed)?)
    }

    /// The owner of a session, if its id has one, and the session's nonce.
    #[must_use]
    pub fn open_session_home(&self, sealed: &str) -> Option<(Option<Incarnation>, u128)> {
        SessionToken::decode_home(&self.open(TokenPurpose::Session, sealed)?)
    }

    /// Bits for the id of an object that only one replica knows: they name the replica, and are random without the key.
    #[must_use]
    pub fn name(&self, replica: Incarnation, random: u64) -> u128 {
        self.naming.name(replica, random)
    }

    /// The replicas that such bits may name. Only an existing one can have drawn them.
    pub fn named(&self, bits: u128) -> impl Iterator<Item = Incarnation> {
        self.naming.named(bits)
    }

    /// Seals a `requestState`.
    ///
    /// # Errors
    /// If the upstream's own state is too long.
    pub fn seal_state(&self, token: &StateToken) -> Result<String, TooLarge> {
        let plain = token.encode();
        let max = TokenPurpose::RequestState.plain_len_max();
        if plain.len() > max {
            return Err(TooLarge { len: plain.len(), max });
        }
        Ok(self.seal(TokenPurpose::RequestState, &plain))
    }

    /// The content of a `requestState`, if it was issued for exactly this request of this client, at most `expires_after` ago.
    /// The caller does not learn which check failed (B135).
    #[must_use]
    pub fn open_state(
        &self,
        sealed: &str,
        scope: &StateScope,
        now: Timestamp,
        expires_after: Duration,
    ) -> Option<StateContent> {
        let token = StateToken::decode(&self.open(TokenPurpose::RequestState, sealed)?)?;
        let holds = token.scope == *scope && now.since(token.issued_at) <= expires_after;
        holds.then_some(token.content)
    }

    /// The replica that holds the call of a `requestState`, if it has one and was issued to this principal. That replica checks
    /// the rest.
    #[must_use]
    pub fn open_state_home(&self, sealed: &str, principal: &Principal) -> Option<Incarnation> {
        StateToken::decode(&self.open(TokenPurpose::RequestState, sealed)?)?.home_for(principal)
    }
}

fn sealed_with(key: &LessSafeKey, label: &[u8], plain: &[u8]) -> Vec<u8> {
    let nonce: [u8; NONCE_LEN] = random::bytes();
    let mut token = Vec::with_capacity(plain.len() + OVERHEAD);
    token.push(FORMAT);
    token.extend_from_slice(&nonce);
    token.extend_from_slice(plain);
    let content = &mut token[1 + NONCE_LEN..];
    let tag = key
        .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), associated(label), content)
        .expect("a token is far shorter than what one nonce is good for");
    token.extend_from_slice(tag.as_ref());
    token
}

fn opened_with(key: &LessSafeKey, label: &[u8], token: &[u8]) -> Option<Vec<u8>> {
    let (&format, rest) = token.split_first()?;
    let (nonce, content) = rest.split_first_chunk::<NONCE_LEN>()?;
    if format != FORMAT {
        return None;
    }
    // A wrong key destroys the buffer, so each one gets a copy.
    let mut content = content.to_vec();
    let len = key.open_in_place(Nonce::assume_unique_for_key(*nonce), associated(label), &mut content).ok()?.len();
    content.truncate(len);
    Some(content)
}

/// The authenticated data besides the content. No label is a prefix of another.
fn associated(label: &[u8]) -> Aad<Vec<u8>> {
    Aad::from([b"taskgate ", label, &[FORMAT]].concat())
}

impl fmt::Debug for Sealer {
    /// Shows only the number of keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("keys", &self.keys.len()).finish()
    }
}
