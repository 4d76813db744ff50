//! An issuer of access tokens: keys, key sets, and tokens with any header and claims.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};

pub struct IssuerKey {
    pub id: String,
    pair: IssuerKeyPair,
}

enum IssuerKeyPair {
    Es256(EcdsaKeyPair),
    Rs256(RsaKeyPair),
}

pub fn base64url(bytes: impl AsRef<[u8]>) -> String {
    BASE64.encode(bytes)
}

impl IssuerKey {
    pub fn es256(id: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        Self { id: id.to_owned(), pair: IssuerKeyPair::Es256(pair) }
    }

    pub fn rs256(id: &str) -> Self {
        Self { id: id.to_owned(), pair: IssuerKeyPair::Rs256(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()) }
    }

    pub fn algorithm(&self) -> &'static str {
        match &self.pair {
            IssuerKeyPair::Es256(_) => "ES256",
            IssuerKeyPair::Rs256(_) => "RS256",
        }
    }

    /// The public key, as a key set lists it.
    pub fn jwk(&self) -> Value {
        match &self.pair {
            IssuerKeyPair::Es256(pair) => {
                let point = pair.public_key().as_ref();
                let (x, y) = (base64url(&point[1..33]), base64url(&point[33..]));
                json!({ "kty": "EC", "crv": "P-256", "kid": self.id, "use": "sig", "x": x, "y": y })
            }
            IssuerKeyPair::Rs256(pair) => {
                let public = pair.public_key();
                let n = base64url(public.modulus().big_endian_without_leading_zero());
                let e = base64url(public.exponent().big_endian_without_leading_zero());
                json!({ "kty": "RSA", "kid": self.id, "alg": "RS256", "n": n, "e": e })
            }
        }
    }

    pub fn header(&self) -> Value {
        json!({ "alg": self.algorithm(), "typ": "at+jwt", "kid": self.id })
    }

    pub fn token(&self, claims: &Value) -> String {
        self.sign(self.header().to_string(), claims.to_string())
    }

    /// Signs any two texts as header and claims.
    pub fn sign(&self, header: impl AsRef<[u8]>, claims: impl AsRef<[u8]>) -> String {
        self.sign_parts(&format!("{}.{}", base64url(header), base64url(claims)))
    }

    pub fn sign_parts(&self, signed: &str) -> String {
        let (random, message) = (SystemRandom::new(), signed.as_bytes());
        let signature = match &self.pair {
            IssuerKeyPair::Es256(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            IssuerKeyPair::Rs256(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
        };
        format!("{signed}.{}", base64url(signature))
    }
}

/// The thumbprint of a key on P-256 (RFC 7638).
pub fn thumbprint(key: &IssuerKey) -> String {
    let jwk = key.jwk();
    let text = format!("{{\"crv\":\"P-256\",\"kty\":\"EC\",\"x\":{},\"y\":{}}}", jwk["x"], jwk["y"]);
    base64url(digest(&SHA256, text.as_bytes()))
}

/// The header of a proof of possession (DPoP, RFC 9449).
pub fn proof_header(key: &IssuerKey) -> Value {
    let jwk = with(&key.jwk(), &json!({ "kid": null, "use": null }));
    json!({ "typ": "dpop+jwt", "alg": key.algorithm(), "jwk": jwk })
}

/// The claim `ath` of a proof: the digest of the token that it is sent with.
pub fn token_digest(token: &str) -> String {
    base64url(digest(&SHA256, token.as_bytes()))
}

/// A proof of possession with these claims, for a request with this token.
pub fn possession_proof(key: &IssuerKey, token: &str, claims: &Value) -> String {
    let claims = with(claims, &json!({ "ath": token_digest(token) }));
    key.sign(proof_header(key).to_string(), claims.to_string())
}

/// The time of day in seconds, as tokens tell it.
#[allow(clippy::disallowed_methods, reason = "tokens have the time of day")]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

pub fn key_set<'a>(keys: impl IntoIterator<Item = &'a IssuerKey>) -> String {
    json!({ "keys": keys.into_iter().map(IssuerKey::jwk).collect::<Vec<_>>() }).to_string()
}

/// `value` with some members set, and those that are to be `null` removed.
pub fn with(value: &Value, changes: &Value) -> Value {
    let mut changed = value.clone();
    let members = changed.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            members.remove(name);
        } else {
            members.insert(name.clone(), value.clone());
        }
    }
    changed
}
