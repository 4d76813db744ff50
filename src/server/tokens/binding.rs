//! Reads the certificate or key that a token is bound to: a stolen token alone is useless (RFC 7800, 8705).

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::task::digest::Digest;

/// The requirements of a token's `cnf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct TokenBinding {
    /// The SHA-256 of a client certificate (RFC 8705, 3.1).
    pub(in crate::server) certificate: Option<Digest>,
    /// The thumbprint of a key (RFC 9449, 6.1).
    pub(super) key: Option<Digest>,
}

const CERTIFICATE: &str = "x5t#S256";
const KEY: &str = "jkt";

impl TokenBinding {
    /// Reads `cnf`. `None` if a member is unknown, as it may require more.
    pub(super) fn read(value: &Value) -> Option<Self> {
        let members = value.as_object().filter(|members| !members.is_empty())?;
        let mut binding = Self { certificate: None, key: None };
        for (name, value) in members {
            match name.as_str() {
                CERTIFICATE => binding.certificate = Some(digest_in(value)?),
                KEY => binding.key = Some(digest_in(value)?),
                _ => return None,
            }
        }
        Some(binding)
    }
}

/// A digest as `cnf` writes it.
pub(super) fn digest_in(value: &Value) -> Option<Digest> {
    let decoded = BASE64_URL_SAFE_NO_PAD.decode(value.as_str()?).ok()?;
    decoded.try_into().ok().map(Digest)
}
