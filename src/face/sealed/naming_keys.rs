//! Draws bits that name their replica, for ids without room for a token.

use aws_lc_rs::hmac;

use super::keys::KEY_LEN;
use crate::replica::Incarnation;

/// Precedes the random half, so that the same key yields nothing else.
const LABEL: &[u8] = b"taskgate name in an id";

/// The keys that hide a replica's number in such bits: the lower half is random, the upper half is the number XORed with a MAC of
/// the lower one. Without a key they are random, 64 bits of them unguessable.
///
/// They prove nothing. Bits that no replica drew name an existing one with a chance of 2⁻⁶⁴ for each; a client can change the
/// upper half and name another one. That replica then knows no object with the id.
pub(super) struct NamingKeys(Vec<hmac::Key>);

impl NamingKeys {
    /// The ring is never empty.
    pub(super) fn new(ring: &[[u8; KEY_LEN]]) -> Self {
        Self(ring.iter().map(|key| hmac::Key::new(hmac::HMAC_SHA256, key)).collect())
    }

    pub(super) fn name(&self, replica: Incarnation, random: u64) -> u128 {
        let key = self.0.first().expect("a ring has a key");
        (u128::from(replica.0 ^ cover(key, random)) << 64) | u128::from(random)
    }

    /// The replica that the bits name under each key.
    pub(super) fn named(&self, bits: u128) -> impl Iterator<Item = Incarnation> {
        let [upper, random] = [(bits >> 64) as u64, bits as u64];
        self.0.iter().map(move |key| Incarnation(upper ^ cover(key, random)))
    }
}

fn cover(key: &hmac::Key, random: u64) -> u64 {
    let mut context = hmac::Context::with_key(key);
    context.update(LABEL);
    context.update(&random.to_be_bytes());
    let tag = context.sign();
    let (first, _) = tag.as_ref().split_first_chunk().expect("a tag of SHA-256 is longer");
    u64::from_be_bytes(*first)
}
