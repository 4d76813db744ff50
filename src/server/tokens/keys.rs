//! Reads an issuer's key set (RFC 7517). Keys that are weak, private, ambiguous or for another use are left out.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde_json::{Map, Value};

use crate::task::digest::{Digest, digest};
use crate::wire::{Payload, ScanLimits};

pub(super) const KEY_SET_BYTES_MAX: usize = 1 << 20;
const KEYS_MAX: usize = 100;
const RSA_BITS_MIN: usize = 2048;
const RSA_BITS_MAX: usize = 8192;
/// Members of private and of symmetric keys.
const PRIVATE: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    #[error("the key set is larger than 1 MiB")]
    TooLarge,
    #[error("the key set is not JSON")]
    NotJson,
    #[error("the key set has no list `keys`")]
    NoList,
    #[error("the key set has more than {KEYS_MAX} keys")]
    TooMany,
    #[error("the key set has no usable key: {0}")]
    NoneUsable(&'static str),
}

const WEAK: &str = "an RSA key has less than 2048 or more than 8192 bits";
const SHOWN: &str = "a key is private or symmetric: every reader of the set could sign with it";
const AMBIGUOUS: &str = "two keys have one `kid`";
const OTHER: &str = "a key is of another type, use or form";

pub(super) struct KeySet {
    keys: Vec<VerificationKey>,
    unused: Vec<&'static str>,
    pub(super) digest: Digest,
}

pub(super) struct VerificationKey {
    id: Option<String>,
    shape: KeyShape,
    /// The only algorithm that the key is for, if it says so.
    algorithm: Option<Algorithm>,
    key: DecodingKey,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyShape {
    Rsa,
    Curve256,
    Curve384,
    Ed25519,
}

impl KeyShape {
    fn of(algorithm: Algorithm) -> Option<Self> {
        let of_curves =
            [(Algorithm::ES256, Self::Curve256), (Algorithm::ES384, Self::Curve384), (Algorithm::EdDSA, Self::Ed25519)];
        let of_curve = of_curves.iter().find(|(one, _)| *one == algorithm).map(|(_, shape)| *shape);
        of_curve.or_else(|| (algorithm.family() == AlgorithmFamily::Rsa).then_some(Self::Rsa))
    }
}

debug_members!(KeySet, |set| keys: set.keys.len());

impl KeySet {
    pub(super) fn parse(text: &Bytes) -> Result<Self, KeySetError> {
        if text.len() > KEY_SET_BYTES_MAX {
            return Err(KeySetError::TooLarge);
        }
        let payload = Payload::parse(text, ScanLimits::CLIENT).map_err(|_| KeySetError::NotJson)?;
        let set: Value = payload.read().map_err(|_| KeySetError::NotJson)?;
        let listed = set.get("keys").and_then(Value::as_array).ok_or(KeySetError::NoList)?;
        if listed.len() > KEYS_MAX {
            return Err(KeySetError::TooMany);
        }
        let (mut keys, mut unused) = (Vec::new(), Vec::new());
        for one in listed {
            match one.as_object().ok_or(OTHER).and_then(VerificationKey::read) {
                Ok(key) => keys.push(key),
                Err(why) => unused.push(why),
            }
        }
        let mut uses: BTreeMap<Option<String>, usize> = BTreeMap::new();
        keys.iter().for_each(|key| *uses.entry(key.id.clone()).or_default() += 1);
        keys.retain(|key| {
            let is_alone = key.id.is_none() || uses.get(&key.id) == Some(&1);
            unused.extend((!is_alone).then_some(AMBIGUOUS));
            is_alone
        });
        if keys.is_empty() {
            return Err(KeySetError::NoneUsable(unused.first().copied().unwrap_or("it is empty")));
        }
        unused.sort_unstable();
        unused.dedup();
        Ok(Self { keys, unused, digest: digest([text]) })
    }

    pub(super) const fn len(&self) -> usize {
        self.keys.len()
    }

    /// Why keys were left out, unless `before` is the same set: issuers publish keys for other uses for years.
    pub(super) fn newly_unused(&self, before: Option<&Self>) -> &[&'static str] {
        if before.is_some_and(|before| before.digest == self.digest) { &[] } else { &self.unused }
    }

    /// The key that a token names. A token without a `kid` needs a set with one key that fits its algorithm.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&VerificationKey> {
        let Some(id) = id else {
            let mut fitting = self.keys.iter().filter(|key| key.for_algorithm(algorithm).is_some());
            return fitting.next().filter(|_| fitting.next().is_none());
        };
        self.keys.iter().find(|key| key.id.as_deref() == Some(id))
    }
}

impl VerificationKey {
    pub(super) fn for_algorithm(&self, algorithm: Algorithm) -> Option<&DecodingKey> {
        let fits = KeyShape::of(algorithm) == Some(self.shape) && self.algorithm.is_none_or(|only| only == algorithm);
        fits.then_some(&self.key)
    }

    pub(super) fn read(members: &Map<String, Value>) -> Result<Self, &'static str> {
        if PRIVATE.iter().any(|name| members.contains_key(*name)) {
            return Err(SHOWN);
        }
        let text = |name: &str| members.get(name).map(|value| value.as_str().ok_or(OTHER)).transpose();
        let required = |name: &str| text(name)?.ok_or(OTHER);
        if text("use")?.is_some_and(|used| used != "sig") {
            return Err(OTHER);
        }
        if let Some(operations) = members.get("key_ops") {
            let operations = operations.as_array().ok_or(OTHER)?;
            if !operations.iter().any(|one| one == "verify") {
                return Err(OTHER);
            }
        }
        let algorithm = text("alg")?.map(|name| super::settings::signature_algorithm(name).ok_or(OTHER)).transpose()?;
        let (shape, key) = match (required("kty")?, text("crv")?) {
            ("RSA", _) => (KeyShape::Rsa, rsa(required("n")?, required("e")?)?),
            ("EC", Some("P-256")) => (KeyShape::Curve256, elliptic(required("x")?, required("y")?, 32)?),
            ("EC", Some("P-384")) => (KeyShape::Curve384, elliptic(required("x")?, required("y")?, 48)?),
            ("OKP", Some("Ed25519")) => {
                let x = required("x")?;
                if decoded(x)?.len() != 32 {
                    return Err(OTHER);
                }
                (KeyShape::Ed25519, DecodingKey::from_ed_components(x).map_err(|_| OTHER)?)
            }
            (_, _) => return Err(OTHER),
        };
        if algorithm.is_some_and(|algorithm| KeyShape::of(algorithm) != Some(shape)) {
            return Err(OTHER);
        }
        Ok(Self { id: text("kid")?.map(str::to_owned), shape, algorithm, key })
    }
}

fn decoded(text: &str) -> Result<Vec<u8>, &'static str> {
    BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| OTHER)
}

fn rsa(modulus: &str, exponent: &str) -> Result<DecodingKey, &'static str> {
    let (n, e) = (decoded(modulus)?, decoded(exponent)?);
    let zeros = n.iter().take_while(|byte| **byte == 0).count();
    let n = &n[zeros..];
    let bits = n.len() * 8 - n.first().map_or(0, |byte| byte.leading_zeros() as usize);
    if !(RSA_BITS_MIN..=RSA_BITS_MAX).contains(&bits) {
        return Err(WEAK);
    }
    let is_one = e.iter().rev().skip(1).all(|byte| *byte == 0) && e.last().is_none_or(|byte| *byte < 3);
    if is_one || e.len() > 8 {
        return Err(WEAK);
    }
    Ok(DecodingKey::from_rsa_raw_components(n, &e))
}

fn elliptic(x: &str, y: &str, bytes: usize) -> Result<DecodingKey, &'static str> {
    if decoded(x)?.len() != bytes || decoded(y)?.len() != bytes {
        return Err(OTHER);
    }
    DecodingKey::from_ec_components(x, y).map_err(|_| OTHER)
}
