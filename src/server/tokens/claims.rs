//! Checks one access token (RFC 9068, 8725): a pure function of its text, its issuer's settings and keys, and the time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde_json::{Map, Value};

use super::jws::{self, SignedText, SignedTextError};
use super::keys::KeySet;
use super::settings::{IssuerSettings, NO_TYPE, normal_address, normal_type};
use crate::task::digest::{Digest, digest};
use crate::task::{Claims, Principal, Timestamp};

pub(super) const TOKEN_BYTES_MAX: usize = 16 << 10;
/// The longest subject, scope, group or key id.
const NAME_BYTES_MAX: usize = 255;
/// The most scopes, groups or audiences of one token.
const NAMES_MAX: usize = 1_000;
/// Claims that name a person (RFC 7662, 2.2; OpenID Connect Core, 5.1; Entra ID).
const PERSON_CLAIMS: [&str; 4] = ["username", "preferred_username", "email", "upn"];
/// Claims that name a token's client (RFC 9068, 2.2; OpenID Connect Core, 2; Entra ID; Okta).
const CLIENT_CLAIMS: [&str; 4] = ["client_id", "azp", "appid", "cid"];
/// How far the clocks of the gateway and an issuer may differ.
pub const LEEWAY: Duration = Duration::from_secs(60);

reasons! {
    /// Why a token is refused. Only operators see the reason; clients see only the refusal.
    pub enum TokenError {
        TooLarge: "token_too_large", "a token is refused: it is larger than 16 KiB, or its header than 4 KiB";
        Malformed: "token_malformed", "a token is refused: it is not a signed token of three parts with JSON objects";
        Algorithm: "token_algorithm", "a token is refused: its algorithm is not one of `algorithms`";
        Critical: "token_critical", "a token is refused: its header has `crit`, which the gateway does not know";
        Type: "token_type",
            "a token is refused: its header's `typ` is not one of `token_types`, or its `token_type` or `token_use` is of another token";
        UnknownIssuer: "token_issuer",
            "a token is refused: no [[auth.issuers]] has its `iss`, or the asked issuer names another one";
        UnknownKey: "token_key_unknown", "a token is refused: its issuer has no key with its `kid`";
        UnfitKey: "token_key_unfit", "a token is refused: its key is for another algorithm";
        Signature: "token_signature", "a token is refused: its signature is wrong";
        Times: "token_times", "a token is refused: `exp` is missing, or a time is not a number of seconds";
        Expired: "token_expired", "a token is refused: it has expired";
        NotYetValid: "token_not_yet_valid", "a token is refused: it is not valid yet; compare the clocks";
        Audience: "token_audience",
            "a token is refused: its `aud` is neither the address that was asked nor one of `audiences`";
        Subject: "token_subject",
            "a token is refused: it has no usable subject: the `owner_claim`, `sub`, or `client_id` if it names no person";
        Bound: "token_bound", "a token is refused: it is bound (`cnf`) to something that the gateway cannot check";
        OfAnotherCertificate: "token_of_another_certificate",
            "a token is refused: it is bound to a certificate, and its connection has none or another one";
        OfAnotherKey: "token_of_another_key", "a token is refused: it is bound to another key than its DPoP proof has";
        NotProven: "token_not_proven",
            "a token is refused: it was sent as `Bearer`, and needs a DPoP proof as it is bound to a key, or by `auth.dpop`";
        NotBound: "token_not_bound", "a token is refused: it was sent with a DPoP proof, and is bound to no key";
        Inactive: "token_inactive", "a token is refused: its issuer says that it is not active";
        Scopes: "token_scopes",
            "a token is refused: its scopes are no text or list of at most 1,000 names of 255 bytes";
        Groups: "token_groups",
            "a token is refused: its groups are no text or list of at most 1,000 names of 255 bytes";
    }
}

impl TokenError {
    pub(super) fn shown_in(self, token: &str) -> Option<Box<str>> {
        // Only faults that configuration can cause are shown: parsing each stranger's token again would cost time.
        let is_shown = matches!(
            self,
            Self::Algorithm | Self::Type | Self::UnknownKey | Self::UnknownIssuer | Self::Audience | Self::Expired
        );
        if !is_shown {
            return None;
        }
        let text = SignedText::read(token, TOKEN_BYTES_MAX).ok()?;
        self.shown(&text.header, &text.claims)
    }

    /// The member of a header or of claims that shows this fault. Other members may name a person.
    pub(super) fn shown(self, header: &Map<String, Value>, claims: &Map<String, Value>) -> Option<Box<str>> {
        let members = [
            (Self::Algorithm, header.get("alg")),
            (Self::Type, other_use(claims).or_else(|| header.get("typ")).or_else(|| claims.get("token_type"))),
            (Self::UnknownKey, header.get("kid")),
            (Self::UnknownIssuer, claims.get("iss")),
            (Self::Audience, claims.get("aud")),
            (Self::Expired, claims.get("exp")),
        ];
        let (_, value) = members.into_iter().find(|(error, _)| *error == self)?;
        match (self, value) {
            (Self::Type, None) => Some(NO_TYPE.into()),
            (_, value) => value.map(|value| plain(value).into()),
        }
    }
}

/// The use of an identity or refresh token, as Cognito and Hydra write it (SEC-94).
fn other_use(claims: &Map<String, Value>) -> Option<&Value> {
    claims.get("token_use").filter(|used| !matches!(used.as_str(), Some("access" | "access_token")))
}

fn plain(value: &Value) -> String {
    match value.as_array() {
        Some(all) => all.iter().map(plain).collect::<Vec<_>>().join(", "),
        None => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    }
}

/// The proofs of a request's sender besides the token.
#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct HeldProofs<'r> {
    pub(in crate::server) certificate: Option<&'r Digest>,
    pub(in crate::server) key: Option<&'r Digest>,
}

impl HeldProofs<'_> {
    /// A token needs everything that it is bound to, and a proof needs a token that is bound to its key (RFC 9449, 7.1).
    pub(super) fn fit(self, binding: Option<&TokenBinding>) -> Result<(), TokenError> {
        let certificate = binding.and_then(|binding| binding.certificate.as_ref());
        if certificate.is_some() && certificate != self.certificate {
            return Err(TokenError::OfAnotherCertificate);
        }
        match (binding.and_then(|binding| binding.key.as_ref()), self.key) {
            (None, None) => Ok(()),
            (Some(bound), Some(proven)) if bound == proven => Ok(()),
            (Some(_), Some(_)) => Err(TokenError::OfAnotherKey),
            (Some(_), None) => Err(TokenError::NotProven),
            (None, Some(_)) => Err(TokenError::NotBound),
        }
    }
}

pub(super) struct UnverifiedToken<'t> {
    text: SignedText<'t>,
    algorithm: Algorithm,
    key: Option<String>,
    kind: Option<String>,
    pub(super) issuer: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct VerifiedToken {
    pub(super) owner: Principal,
    pub(super) claims: Claims,
    /// Its `exp` and the leeway: the end of its validity.
    pub(super) until: Timestamp,
    /// The certificate or key that must belong to the token's sender.
    pub(super) binding: Option<TokenBinding>,
}

impl<'t> UnverifiedToken<'t> {
    pub(super) fn read(token: &'t str) -> Result<Self, TokenError> {
        let signed = SignedText::read(token, TOKEN_BYTES_MAX).map_err(|error| match error {
            SignedTextError::TooLarge => TokenError::TooLarge,
            SignedTextError::Malformed => TokenError::Malformed,
        })?;
        let header = |name: &str| signed.header.get(name);
        let text = |name: &str| header(name).map(|value| name_in(value).ok_or(TokenError::Malformed)).transpose();
        let _ = text("alg")?;
        let algorithm = signed.algorithm().ok_or(TokenError::Algorithm)?;
        if signed.header.contains_key("crit") {
            return Err(TokenError::Critical);
        }
        let (key, kind) = (text("kid")?.map(str::to_owned), text("typ")?.map(str::to_owned));
        let issuer = signed.claims.get("iss").and_then(Value::as_str).ok_or(TokenError::UnknownIssuer)?.to_owned();
        Ok(Self { text: signed, algorithm, key, kind, issuer })
    }

    /// Checks signature, header and claims against the issuer in `iss`. `endpoint` is an address as [`normal_address`] writes it.
    pub(super) fn verify(
        &self,
        issuer: &IssuerSettings,
        keys: &KeySet,
        endpoint: &str,
        now: Timestamp,
    ) -> Result<VerifiedToken, TokenError> {
        if self.issuer != *issuer.issuer {
            return Err(TokenError::UnknownIssuer);
        }
        if !issuer.algorithms.contains(&self.algorithm) {
            return Err(TokenError::Algorithm);
        }
        if !issuer.token_types.contains(&self.kind.as_deref().map_or_else(|| NO_TYPE.to_owned(), normal_type)) {
            return Err(TokenError::Type);
        }
        let key = keys.find(self.key.as_deref(), self.algorithm).ok_or(TokenError::UnknownKey)?;
        let key = key.for_algorithm(self.algorithm).ok_or(TokenError::UnfitKey)?;
        if !self.text.is_signed_by(key, self.algorithm) {
            return Err(TokenError::Signature);
        }
        TokenClaims(&self.text.claims).verify(issuer, endpoint, now)
    }
}

/// Checks the claims of a token that its issuer calls active (RFC 7662, 2.2), as the claims of a signed token.
pub(super) fn verify_introspected(
    claims: &Map<String, Value>,
    issuer: &IssuerSettings,
    endpoint: &str,
    now: Timestamp,
) -> Result<VerifiedToken, TokenError> {
    if claims.get("iss").is_some_and(|named| named.as_str() != Some(&*issuer.issuer)) {
        return Err(TokenError::UnknownIssuer);
    }
    // Tokens of other types are refresh tokens, or lack the key that they must be bound to.
    let is_bound = claims.contains_key("cnf");
    let is_bearer = |kind: &Value| {
        let known = ["bearer", "access_token"].into_iter().chain(is_bound.then_some("dpop"));
        kind.as_str().is_some_and(|kind| known.into_iter().any(|name| kind.eq_ignore_ascii_case(name)))
    };
    if claims.get("token_type").is_some_and(|kind| !is_bearer(kind)) {
        return Err(TokenError::Type);
    }
    TokenClaims(claims).verify(issuer, endpoint, now)
}

/// Claims that are proven to be the issuer's.
struct TokenClaims<'c>(&'c Map<String, Value>);

impl TokenClaims<'_> {
    fn verify(&self, issuer: &IssuerSettings, endpoint: &str, now: Timestamp) -> Result<VerifiedToken, TokenError> {
        if other_use(self.0).is_some() {
            return Err(TokenError::Type);
        }
        let until = self.check_times(now)?;
        self.check_audience(issuer, endpoint)?;
        let binding =
            self.0.get("cnf").map(|written| TokenBinding::read(written).ok_or(TokenError::Bound)).transpose()?;
        let claims = Claims {
            scopes: self.scopes(issuer)?,
            groups: self.groups(issuer)?,
            issuer: Some(Arc::clone(&issuer.issuer)),
            client: self.client(),
            is_bound: binding.is_some(),
        };
        Ok(VerifiedToken { owner: self.owner(issuer)?, claims, until, binding })
    }

    fn check_times(&self, now: Timestamp) -> Result<Timestamp, TokenError> {
        let at = |name: &str| self.0.get(name).map(|value| jws::time(value).ok_or(TokenError::Times)).transpose();
        let (end, begin, issued) = (at("exp")?.ok_or(TokenError::Times)?, at("nbf")?, at("iat")?);
        let until = end.after(LEEWAY);
        if now >= until {
            return Err(TokenError::Expired);
        }
        if [begin, issued].into_iter().flatten().any(|time| time > now.after(LEEWAY)) {
            return Err(TokenError::NotYetValid);
        }
        Ok(until)
    }

    fn check_audience(&self, issuer: &IssuerSettings, endpoint: &str) -> Result<(), TokenError> {
        let listed = match self.0.get("aud") {
            Some(Value::String(one)) => vec![one.as_str()],
            Some(Value::Array(all)) if all.len() <= NAMES_MAX => {
                all.iter().map(Value::as_str).collect::<Option<_>>().ok_or(TokenError::Audience)?
            }
            _ => return Err(TokenError::Audience),
        };
        let is_ours = |audience: &str| {
            let audience = normal_address(audience);
            audience == endpoint || issuer.audiences.contains(&audience)
        };
        if listed.into_iter().any(is_ours) { Ok(()) } else { Err(TokenError::Audience) }
    }

    /// The owner of tasks: a person, else the client. A person without `sub` is not taken for the client (SEC-52).
    fn owner(&self, issuer: &IssuerSettings) -> Result<Principal, TokenError> {
        let named = |claim: &str| self.0.get(claim).map(|value| name_in(value).ok_or(TokenError::Subject));
        if let Some(claim) = &issuer.owner_claim {
            let shared = named(claim).unwrap_or(Err(TokenError::Subject))?;
            return Ok(Principal::of_claim(&issuer.issuer, claim, shared));
        }
        let subject = match named("sub") {
            Some(subject) => subject?,
            None if self.names_person() => return Err(TokenError::Subject),
            None => named("client_id").unwrap_or(Err(TokenError::Subject))?,
        };
        Ok(Principal::of_subject(&issuer.issuer, subject))
    }

    /// The client by all claims that name it, as their texts: a client's next token has the same.
    fn client(&self) -> Option<Digest> {
        let named = CLIENT_CLAIMS.map(|claim| self.0.get(claim).map(Value::to_string).unwrap_or_default());
        named.iter().any(|name| !name.is_empty()).then(|| digest(named.each_ref().map(String::as_bytes)))
    }

    /// Whether another claim than `sub` names a person. Some issuers write the client's own name there.
    fn names_person(&self) -> bool {
        let client = self.0.get("client_id");
        PERSON_CLAIMS.iter().filter_map(|claim| self.0.get(*claim)).any(|name| !name.is_null() && Some(name) != client)
    }

    /// `scope` is a text with spaces (RFC 9068, 2.2.3), `scp` a list or such a text.
    fn scopes(&self, issuer: &IssuerSettings) -> Result<BTreeSet<Arc<str>>, TokenError> {
        let listed: Vec<&str> = match (self.0.get("scope"), self.0.get("scp")) {
            (None, None) => Vec::new(),
            (Some(Value::String(text)), _) | (None, Some(Value::String(text))) => {
                text.split(' ').filter(|name| !name.is_empty()).collect()
            }
            (None, Some(Value::Array(all))) => {
                all.iter().map(name_in).collect::<Option<_>>().ok_or(TokenError::Scopes)?
            }
            (_, _) => return Err(TokenError::Scopes),
        };
        if listed.len() > NAMES_MAX || listed.iter().any(|name| !is_name(name)) {
            return Err(TokenError::Scopes);
        }
        Ok(issuer.scopes_of(listed))
    }

    fn groups(&self, issuer: &IssuerSettings) -> Result<BTreeSet<Arc<str>>, TokenError> {
        let Some(path) = &issuer.groups else { return Ok(BTreeSet::new()) };
        match claim_at(self.0, path) {
            None | Some(Value::Null) => Ok(BTreeSet::new()),
            Some(Value::Array(all)) if all.len() <= NAMES_MAX => {
                all.iter().map(|one| name_in(one).map(Arc::from)).collect::<Option<_>>().ok_or(TokenError::Groups)
            }
            Some(one) => Ok(BTreeSet::from([Arc::from(name_in(one).ok_or(TokenError::Groups)?)])),
        }
    }
}

/// A claim by its whole name, or by the names of its parents and its own, with dots. A claim's own name may have dots.
fn claim_at<'c>(claims: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    if let Some(value) = claims.get(path) {
        return Some(value);
    }
    path.match_indices('.').find_map(|(at, _)| claim_at(claims.get(&path[..at])?.as_object()?, &path[at + 1..]))
}

fn name_in(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| is_name(text))
}

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

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

pub(super) fn digest_in(value: &Value) -> Option<Digest> {
    let decoded = BASE64_URL_SAFE_NO_PAD.decode(value.as_str()?).ok()?;
    decoded.try_into().ok().map(Digest)
}

#[cfg(test)]
mod tests;
