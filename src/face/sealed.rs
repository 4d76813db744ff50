//! Seals and opens the ids that clients keep: gateway state that the client returns.
//!
//! Read [`GatewayId`], then [`SessionToken`] and [`StateToken`]. Pure except for the random nonce.

mod forward_token;
mod gateway_id;
mod keys;
mod salted_keys;
mod session_token;
mod state_token;
#[cfg(test)]
mod tests;

use aws_lc_rs::aead::{Aad, LessSafeKey, NONCE_LEN, Nonce};

use crate::random;
pub use forward_token::{ForwardToken, digest_of_request};
use gateway_id::FORMAT;
pub use gateway_id::{GatewayId, IdKind, OpenedId, event_id, read_event_id, sealed_in};
pub use keys::{KEY_LEN, KeyError, KeyPrint, SealingKeys};
use salted_keys::{SaltedKeys, aes};
pub use session_token::SessionToken;
pub use state_token::{StateContent, StateScope, StateToken};

/// The overhead of sealing: format, nonce, tag.
const OVERHEAD: usize = 1 + NONCE_LEN + AES_256_GCM_TAG_LEN;
const AES_256_GCM_TAG_LEN: usize = 16;

/// Seals and opens ids: AES-256-GCM, base64url without padding.
///
/// The key schedules are computed once; a request costs one pass over a few hundred bytes. Nonces are random, so a key may seal
/// 2³² ids (NIST SP 800-38D, 8.3): 136 years of one new session or question a second. More frequent ids have derived keys, made
/// from the ring's and a salt (`SaltedKeys`).
pub struct Sealer {
    /// The first key seals. Never empty.
    keys: Vec<LessSafeKey>,
    salted: SaltedKeys,
}

impl Sealer {
    pub fn new(keys: SealingKeys) -> Self {
        let ring = keys.into_keys();
        Self { keys: ring.iter().map(aes).collect(), salted: SaltedKeys::new(&ring) }
    }
}

fn sealed_with(key: &LessSafeKey, associated: Aad<Vec<u8>>, plain: &[u8]) -> Vec<u8> {
    let nonce: [u8; NONCE_LEN] = random::bytes();
    let mut sealed = Vec::with_capacity(plain.len() + OVERHEAD);
    sealed.push(FORMAT);
    sealed.extend_from_slice(&nonce);
    sealed.extend_from_slice(plain);
    let content = &mut sealed[1 + NONCE_LEN..];
    let tag = key
        .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), associated, content)
        .expect("an id is far shorter than the limit of one nonce");
    sealed.extend_from_slice(tag.as_ref());
    sealed
}

fn opened_with(key: &LessSafeKey, associated: Aad<Vec<u8>>, sealed: &[u8]) -> Option<Vec<u8>> {
    let (&format, rest) = sealed.split_first()?;
    let (nonce, content) = rest.split_first_chunk::<NONCE_LEN>()?;
    if format != FORMAT {
        return None;
    }
    // A wrong key destroys the buffer, so each one gets a copy.
    let mut content = content.to_vec();
    let len = key.open_in_place(Nonce::assume_unique_for_key(*nonce), associated, &mut content).ok()?.len();
    content.truncate(len);
    Some(content)
}

debug_members!(Sealer, |sealer| keys: sealer.keys.len());
