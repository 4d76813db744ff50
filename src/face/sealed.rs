//! Seals and opens tokens: what the gateway must remember about a client, kept by the client.
//!
//! Nobody else can read or change one, and none is good for anything but its [`TokenPurpose`]. Opening and
//! sealing are pure but for the random nonce; where keys come from is not known here. Read [`Sealer`]
//! first, then [`SessionToken`] for what a session id holds and [`StateToken`] for a `requestState`. One kind is kept by nobody:
//! a [`ForwardToken`] goes from one replica to another.

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

/// The first byte of every token. Another number means another layout.
const FORMAT: u8 = 1;
/// What sealing adds: format, nonce, tag.
const OVERHEAD: usize = 1 + NONCE_LEN + AES_256_GCM_TAG_LEN;
const AES_256_GCM_TAG_LEN: usize = 16;

/// What a token is for. It is authenticated along with the content, so that a token of one kind is
/// garbage as any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenPurpose {
    /// A session id; holds a [`SessionToken`].
    Session,
    /// A `requestState`; holds a [`StateToken`].
    RequestState,
    /// Where the list of a client's tasks goes on.
    Cursor,
    /// The id of a question of a task.
    Question,
    /// Which stream of HTTP+SSE a message is for; holds a [`StreamToken`].
    Stream,
    /// Goes with a request from one replica to another; holds a [`ForwardToken`].
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

    /// Longest text of a token, in bytes.
    #[must_use]
    pub const fn text_len_max(self) -> usize {
        match self {
            Self::Session => 2 << 10,
            Self::RequestState => 64 << 10,
            Self::Cursor | Self::Question | Self::Stream => 256,
            Self::Forward => 1 << 10,
        }
    }

    /// Whether there may be more of its tokens than one key is good for.
    const fn is_frequent(self) -> bool {
        matches!(self, Self::Forward)
    }

    /// Most that a token may hold, so that its text stays within [`TokenPurpose::text_len_max`].
    #[must_use]
    pub const fn plain_len_max(self) -> usize {
        let salt = if self.is_frequent() { SALT_LEN } else { 0 };
        self.text_len_max() / 4 * 3 - OVERHEAD - salt
    }
}

/// What was to be sealed does not fit into a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes do not fit into a token, which holds {max}")]
pub struct TooLarge {
    pub len: usize,
    pub max: usize,
}

/// Seals and opens tokens: AES-256-GCM, base64url without padding.
///
/// The keys' schedules are computed once, here; a request costs one pass over a few hundred bytes.
/// Nonces are random, so a key is good for 2³² tokens (NIST SP 800-38D, 8.3), which are 136 years of
/// one new session or question a second. Tokens of which there are more have keys of their own, made from
/// the ring's and a salt (`SaltedKeys`).
pub struct Sealer {
    /// The first one seals. Never empty.
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

    /// A token that holds `plain`: visible ASCII, different each time. Whether its length suits its
    /// purpose is the caller's to check ([`TokenPurpose::plain_len_max`]); one that is too long never opens.
    ///
    /// # Panics
    /// If the operating system has no randomness: a nonce that repeats would give the key away.
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

    /// What a token holds. `None` for anything that was not sealed for this purpose with one of our keys.
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

    /// A session id. The client's name is left out where it would make the id too long.
    ///
    /// # Errors
    /// If the rest alone is too long: the client declared more capabilities than an id can hold.
    pub fn seal_session(&self, token: &SessionToken) -> Result<String, TooLarge> {
        let plain = token.encode();
        let max = TokenPurpose::Session.plain_len_max();
        if plain.len() > max {
            return Err(TooLarge { len: plain.len(), max });
        }
        Ok(self.seal(TokenPurpose::Session, &plain))
    }

    /// What goes with a request to another replica; `None` where nobody could name who asks that long.
    #[must_use]
    pub fn seal_forward(&self, token: &ForwardToken) -> Option<String> {
        let plain = token.encode();
        (plain.len() <= TokenPurpose::Forward.plain_len_max()).then(|| self.seal(TokenPurpose::Forward, &plain))
    }

    /// What another replica sealed so.
    #[must_use]
    pub fn open_forward(&self, sealed: &str) -> Option<ForwardToken> {
        ForwardToken::decode(&self.open(TokenPurpose::Forward, sealed)?)
    }

    /// What a session id holds; `None` if it is none of ours. Whose it is, and for which upstream, is the
    /// caller's to compare.
    #[must_use]
    pub fn open_session(&self, sealed: &str) -> Option<SessionToken> {
        SessionToken::decode(&self.open(TokenPurpose::Session, sealed)?)
    }

    /// Where the session of a session id was begun, if that is in it, and what tells the session apart.
    #[must_use]
    pub fn open_session_home(&self, sealed: &str) -> Option<(Option<Incarnation>, u128)> {
        SessionToken::decode_home(&self.open(TokenPurpose::Session, sealed)?)
    }

    /// Bits for the id of something that one replica alone knows: random to all who have no key, and they name the replica.
    #[must_use]
    pub fn name(&self, replica: Incarnation, random: u64) -> u128 {
        self.naming.name(replica, random)
    }

    /// The replicas that such bits may name; one that there is has drawn them. Others name what there is not.
    pub fn named(&self, bits: u128) -> impl Iterator<Item = Incarnation> {
        self.naming.named(bits)
    }

    /// A `requestState`.
    ///
    /// # Errors
    /// If the upstream's own state is too long for one.
    pub fn seal_state(&self, token: &StateToken) -> Result<String, TooLarge> {
        let plain = token.encode();
        let max = TokenPurpose::RequestState.plain_len_max();
        if plain.len() > max {
            return Err(TooLarge { len: plain.len(), max });
        }
        Ok(self.seal(TokenPurpose::RequestState, &plain))
    }

    /// What a `requestState` holds, if it was given out for just this request of just this client, no
    /// longer than `expires_after` ago. Which of these fails is not told (B135).
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

    /// Where the call is held that a `requestState` goes on with, if that is in it and it was given out to this principal. What
    /// else it holds is compared there.
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
    // A key that does not fit leaves garbage behind, so each one gets a copy of its own.
    let mut content = content.to_vec();
    let len = key.open_in_place(Nonce::assume_unique_for_key(*nonce), associated(label), &mut content).ok()?.len();
    content.truncate(len);
    Some(content)
}

/// What is authenticated beside the content. No label is the beginning of another one.
fn associated(label: &[u8]) -> Aad<Vec<u8>> {
    Aad::from([b"taskgate ", label, &[FORMAT]].concat())
}

impl fmt::Debug for Sealer {
    /// Says how many keys there are and nothing of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("keys", &self.keys.len()).finish()
    }
}
