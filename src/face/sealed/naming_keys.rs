//! Draws bits that name the replica which drew them, for ids that are too short, or too many, for a token.

use aws_lc_rs::hmac;

use super::keys::KEY_LEN;
use crate::replica::Incarnation;

/// Comes before the random half, so that nothing else is made of a key so.
const LABEL: &[u8] = b"taskgate name in an id";

/// The keys by which the name in such bits is hidden: their lower half is random, the upper one the name, covered by what a key
/// makes of the lower one. To all others they are random, and nobody can guess 64 of them.
///
/// Nothing is proven by them. Bits that nobody drew name a replica that there is not, but for one chance in 2⁶⁴ for each that there is;
/// who has some can change the upper half, and name another. A replica knows nothing by ids that it did not make.
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

    /// What bits name, by each key.
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
