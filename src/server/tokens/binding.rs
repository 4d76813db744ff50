//! Binds tokens to what their sender holds besides them: a stolen token is of no use alone (RFC 7800, 8705).

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::Value;

use super::claims::TokenError;
use crate::task::digest::Digest;

/// What a token's `cnf` requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct TokenBinding {
    /// The SHA-256 of a client certificate (RFC 8705, 3.1).
    pub(in crate::server) certificate: Digest,
}

impl TokenBinding {
    /// Reads `cnf`. A member that is not understood is refused, as it may require more.
    pub(super) fn read(value: &Value) -> Result<Self, TokenError> {
        let members = value.as_object().ok_or(TokenError::Bound)?;
        match members.get("x5t#S256").and_then(digest_in) {
            Some(certificate) if members.len() == 1 => Ok(Self { certificate }),
            Some(_) | None => Err(TokenError::Bound),
        }
    }
}

/// What a request shows besides its token.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct HeldProofs<'r> {
    /// The digest of its connection's certificate.
    pub(in crate::server) certificate: Option<&'r Digest>,
}

impl HeldProofs<'_> {
    pub(super) fn fit(self, binding: Option<&TokenBinding>) -> Result<(), TokenError> {
        match binding {
            Some(binding) if self.certificate != Some(&binding.certificate) => Err(TokenError::OfAnotherCertificate),
            Some(_) | None => Ok(()),
        }
    }
}

/// A digest as `cnf` writes it.
pub(super) fn digest_in(value: &Value) -> Option<Digest> {
    let decoded = BASE64_URL_SAFE_NO_PAD.decode(value.as_str()?).ok()?;
    decoded.try_into().ok().map(Digest)
}
