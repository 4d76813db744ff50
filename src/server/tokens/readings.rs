//! Parses and checks one token, proof or document by itself: an entry for fuzzing and tests.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};
use url::Url;

use super::claims::{TokenError, UnverifiedToken, VerifiedToken, verify_introspected};
use super::dpop::{ProofError, ProvenRequest, UnverifiedProof};
use super::key_source::keys_in;
use super::keys::{KeySet, KeySetError};
use super::settings::{IssuerSettings, normal_address};
use crate::task::{Caller, Timestamp};
use crate::wire::{Payload, ScanLimits};

/// Checks a signed token with a key set of its issuer, for the endpoint at `asked`. Fails with the label of the first fault.
pub fn token(
    text: &str,
    issuer: &IssuerSettings,
    keys: &Bytes,
    asked: &str,
    now: Timestamp,
) -> Result<Caller, &'static str> {
    let keys = KeySet::parse(keys).map_err(|_| "no_keys")?;
    let read = UnverifiedToken::read(text).map_err(TokenError::label)?;
    let token = read.verify(issuer, &keys, &normal_address(asked), now).map_err(TokenError::label)?;
    Ok(caller(token))
}

/// Checks the claims of an introspection response, for the endpoint at `asked`.
pub fn introspected(text: &[u8], issuer: &IssuerSettings, asked: &str, now: Timestamp) -> Result<Caller, &'static str> {
    let claims = Payload::parse(&Bytes::copy_from_slice(text), ScanLimits::CLIENT).ok();
    let claims = claims.and_then(|text| text.read::<Map<String, Value>>().ok()).ok_or("token_malformed")?;
    let token = verify_introspected(&claims, issuer, &normal_address(asked), now).map_err(TokenError::label)?;
    Ok(caller(token))
}

fn caller(token: VerifiedToken) -> Caller {
    Caller { claims: Some(Arc::new(token.claims)), until: Some(token.until), ..Caller::of(token.owner) }
}

pub fn proof(text: &str, method: &str, address: &str, token: &str, now: Timestamp) -> Result<(), ProofError> {
    UnverifiedProof::read(text)?.verify(ProvenRequest { method, address, token }, now).map(drop)
}

pub fn key_set(text: &Bytes) -> Result<usize, KeySetError> {
    KeySet::parse(text).map(|set| set.len())
}

/// The address of the keys in an issuer's metadata.
pub fn metadata(text: &Bytes, issuer: &str) -> Option<Url> {
    keys_in(text, issuer).ok()
}
