//! Reads signed texts of three parts (JWS, RFC 7515): access tokens, and proofs of possession. The strict scan refuses
//! JSON that two parsers could read differently; `jsonwebtoken` checks the signature alone.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use serde_json::{Map, Value};

use super::settings::signature_algorithm;
use crate::task::Timestamp;
use crate::wire::{Payload, ScanLimits};

const HEADER_BYTES_MAX: usize = 4 << 10;
/// The last second of the year 9999; later times are mistakes.
const SECONDS_MAX: f64 = 253_402_300_799.0;

pub(super) struct SignedText<'t> {
    signed: &'t str,
    signature: &'t str,
    pub(super) header: Map<String, Value>,
    pub(super) claims: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignedTextError {
    TooLarge,
    Malformed,
}

/// Whether a credential has the form of a signed token: three parts, the first of which is a header with an algorithm.
pub(super) fn is_signed_form(token: &str) -> bool {
    let mut parts = token.split('.');
    let (Some(header), Some(_), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let is_part = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    let has_algorithm = || {
        let header = BASE64_URL_SAFE_NO_PAD.decode(header).ok()?;
        serde_json::from_slice::<Map<String, Value>>(&header).ok()?.get("alg").map(drop)
    };
    token.split('.').all(is_part) && header.len() <= HEADER_BYTES_MAX / 3 * 4 && has_algorithm().is_some()
}

impl<'t> SignedText<'t> {
    pub(super) fn read(text: &'t str, bytes_max: usize) -> Result<Self, SignedTextError> {
        if text.len() > bytes_max {
            return Err(SignedTextError::TooLarge);
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(SignedTextError::Malformed)?;
        let (header, body) = signed.split_once('.').ok_or(SignedTextError::Malformed)?;
        if signature.is_empty() || body.contains('.') {
            return Err(SignedTextError::Malformed);
        }
        // Four characters are three bytes.
        if header.len() > HEADER_BYTES_MAX / 3 * 4 {
            return Err(SignedTextError::TooLarge);
        }
        Ok(Self { signed, signature, header: object(header)?, claims: object(body)? })
    }

    /// `None` for an algorithm without a public key, or without a signature.
    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        signature_algorithm(self.header.get("alg")?.as_str()?)
    }

    pub(super) fn is_signed_by(&self, key: &DecodingKey, algorithm: Algorithm) -> bool {
        crypto::verify(self.signature, self.signed.as_bytes(), key, algorithm).unwrap_or(false)
    }
}

/// A time in seconds, up to the year 9999.
pub(super) fn time(value: &Value) -> Option<Timestamp> {
    let seconds = value.as_f64().filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds))?;
    // Positive and bounded above, so nothing is lost but parts of a millisecond.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above")]
    let millis = (seconds * 1000.0) as u64;
    Some(Timestamp::from_millis(millis))
}

fn object(part: &str) -> Result<Map<String, Value>, SignedTextError> {
    let text = BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| SignedTextError::Malformed)?;
    let payload = Payload::parse(&Bytes::from(text), ScanLimits::CLIENT).map_err(|_| SignedTextError::Malformed)?;
    payload.read().map_err(|_| SignedTextError::Malformed)
}
