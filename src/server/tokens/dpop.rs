//! Checks proofs of possession (DPoP, RFC 9449): that a token's sender has the key that the token is bound to. A pure
//! function of the proof's text, the request and the time. `seen_proofs` remembers which were used.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest as sha256};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use url::Url;

use super::claims::LEEWAY;
use super::jws::{self, SignedText};
use super::keys::VerificationKey;
use super::settings::normal_type;
use crate::face::own_metadata::PROOF_ALGORITHMS;
use crate::task::Timestamp;
use crate::task::digest::{self, Digest};

const PROOF_BYTES_MAX: usize = 8 << 10;
const ID_BYTES_MAX: usize = 255;
/// How far from the time of its proof a request may be.
const AGE_MAX: Duration = Duration::from_secs(300);
const TYPE: &str = "dpop+jwt";

reasons! {
    /// Why a proof is refused: for operators. Clients learn only that it is.
    pub enum ProofError {
        NotOne: "proof_not_one", "a DPoP proof is refused: a request has none, or more than one";
        Malformed: "proof_malformed",
            "a DPoP proof is refused: it is not a signed token of three parts, or has no `jti` of 255 bytes";
        Type: "proof_type", "a DPoP proof is refused: its header's `typ` is not dpop+jwt";
        Algorithm: "proof_algorithm",
            "a DPoP proof is refused: its algorithm is none of ES256, ES384, EdDSA, PS256 and RS256";
        Key: "proof_key", "a DPoP proof is refused: its `jwk` is not a public key for its algorithm";
        Signature: "proof_signature", "a DPoP proof is refused: its signature is wrong";
        Request: "proof_request",
            "a DPoP proof is refused: its `htm` and `htu` are of another request; `htu` is `listen.public_url` with the path";
        Time: "proof_time", "a DPoP proof is refused: its `iat` is not within 300 s of now; compare the clocks";
        Token: "proof_token", "a DPoP proof is refused: its `ath` is of another token";
        Repeated: "proof_repeated", "a DPoP proof is refused: its `jti` was used before";
    }
}

pub(in crate::server) struct UnverifiedProof<'p> {
    text: SignedText<'p>,
    key: VerificationKey,
    thumbprint: Digest,
    id: String,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::server) struct ProvenRequest<'r> {
    pub(in crate::server) method: &'r str,
    /// The address that clients use, with the path of the request.
    pub(in crate::server) address: &'r str,
    pub(in crate::server) token: &'r str,
}

/// A valid proof; whether it was used before is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) struct VerifiedProof {
    /// Identifies it among all proofs of all keys.
    pub(super) id: Digest,
    /// When it is too old.
    pub(super) until: Timestamp,
}

impl<'p> UnverifiedProof<'p> {
    pub(in crate::server) fn read(text: &'p str) -> Result<Self, ProofError> {
        let text = SignedText::read(text, PROOF_BYTES_MAX).map_err(|_| ProofError::Malformed)?;
        let header = |name: &str| text.header.get(name);
        if header("typ").and_then(Value::as_str).map(normal_type).as_deref() != Some(TYPE) {
            return Err(ProofError::Type);
        }
        let is_listed = header("alg").and_then(Value::as_str).is_some_and(|name| PROOF_ALGORITHMS.contains(&name));
        let algorithm = text.algorithm().filter(|_| is_listed).ok_or(ProofError::Algorithm)?;
        if text.header.contains_key("crit") {
            return Err(ProofError::Malformed);
        }
        let members = header("jwk").and_then(Value::as_object).ok_or(ProofError::Key)?;
        let key = VerificationKey::read(members).map_err(|_| ProofError::Key)?;
        key.for_algorithm(algorithm).ok_or(ProofError::Key)?;
        let thumbprint = thumbprint(members).ok_or(ProofError::Key)?;
        let id = text.claims.get("jti").and_then(Value::as_str);
        let id = id.filter(|id| (1..=ID_BYTES_MAX).contains(&id.len())).ok_or(ProofError::Malformed)?.to_owned();
        Ok(Self { text, key, thumbprint, id })
    }

    /// Identifies its key (RFC 7638).
    pub(in crate::server) const fn thumbprint(&self) -> &Digest {
        &self.thumbprint
    }

    pub(in crate::server) fn verify(
        &self,
        request: ProvenRequest<'_>,
        now: Timestamp,
    ) -> Result<VerifiedProof, ProofError> {
        let claims = &self.text.claims;
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if text("htm") != Some(request.method) {
            return Err(ProofError::Request);
        }
        let address = normal_address(request.address);
        if address.is_none() || text("htu").and_then(normal_address) != address {
            return Err(ProofError::Request);
        }
        let until = check_time(claims, now)?;
        let of_token = BASE64_URL_SAFE_NO_PAD.encode(sha256(&SHA256, request.token.as_bytes()));
        if text("ath") != Some(&*of_token) {
            return Err(ProofError::Token);
        }
        // Last, as it costs most.
        let algorithm = self.text.algorithm().ok_or(ProofError::Algorithm)?;
        let key = self.key.for_algorithm(algorithm).ok_or(ProofError::Key)?;
        if !self.text.is_signed_by(key, algorithm) {
            return Err(ProofError::Signature);
        }
        let id = digest::digest([b"proof", &self.thumbprint.0, self.id.as_bytes()]);
        Ok(VerifiedProof { id, until })
    }
}

/// The end of a proof that was issued around now, and has no other end before.
fn check_time(claims: &Map<String, Value>, now: Timestamp) -> Result<Timestamp, ProofError> {
    let at = |name: &str| claims.get(name).map(|value| jws::time(value).ok_or(ProofError::Time)).transpose();
    let issued = at("iat")?.ok_or(ProofError::Time)?;
    let is_near = now.since(issued) <= AGE_MAX && issued.since(now) <= AGE_MAX;
    let is_over = at("exp")?.is_some_and(|end| end.after(LEEWAY) <= now);
    let is_early = at("nbf")?.is_some_and(|begin| begin > now.after(LEEWAY));
    if is_near && !is_over && !is_early { Ok(issued.after(AGE_MAX)) } else { Err(ProofError::Time) }
}

/// An address as proofs are compared (RFC 3986, 6.2.2 and 6.2.3), without query and fragment (RFC 9449, 4.3).
fn normal_address(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    if !url.has_host() || !url.username().is_empty() || url.password().is_some() {
        return None;
    }
    let mut path = String::new();
    for (at, segment) in url.path().split('/').enumerate() {
        if at > 0 {
            path.push('/');
        }
        // Each byte is written in one way.
        for byte in percent_decode_str(segment) {
            match byte {
                b'-' | b'.' | b'_' | b'~' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => path.push(char::from(byte)),
                _ => path.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    Some(format!("{}{path}", url.origin().ascii_serialization()))
}

/// The thumbprint of a public key (RFC 7638, 3.2; RFC 8037, 2): over its required members in order, as they are written.
fn thumbprint(members: &Map<String, Value>) -> Option<Digest> {
    let names: &[&str] = match members.get("kty")?.as_str()? {
        "EC" => &["crv", "kty", "x", "y"],
        "RSA" => &["e", "kty", "n"],
        "OKP" => &["crv", "kty", "x"],
        _ => return None,
    };
    let mut text = String::from("{");
    for (at, name) in names.iter().enumerate() {
        let value = members.get(*name).filter(|value| value.is_string())?;
        text.push_str(&format!("{}\"{name}\":{value}", if at > 0 { "," } else { "" }));
    }
    text.push('}');
    let mut out = Digest([0; 32]);
    out.0.copy_from_slice(sha256(&SHA256, text.as_bytes()).as_ref());
    Some(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::claims::digest_in;
    use super::*;

    /// RFC 7638, 3.1; RFC 8037, appendix A.3.
    #[test]
    fn a_key_has_the_thumbprint_of_the_standards() {
        let rsa = json!({
            "kty": "RSA", "alg": "RS256", "kid": "2011-04-29", "e": "AQAB",
            "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMs\
                  tn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajr\
                  n1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw",
        });
        let okp = json!({ "crv": "Ed25519", "kty": "OKP", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
        for (key, expected) in
            [(rsa, "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"), (okp, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k")]
        {
            let found = thumbprint(key.as_object().unwrap()).unwrap();
            assert_eq!(Some(found), digest_in(&json!(expected)));
        }
    }

    #[test]
    fn addresses_are_compared_without_query_fragment_and_needless_encoding() {
        let own = normal_address("https://mcp.example/reports/mcp");
        for (text, is_same) in [
            ("https://mcp.example/reports/mcp", true),
            ("HTTPS://MCP.Example:443/reports/mcp", true),
            ("https://mcp.example/reports/mcp?x=1#y", true),
            ("https://mcp.example/re%70orts/%6dcp", true),
            ("https://mcp.example/a/../reports/./mcp", true),
            ("https://mcp.example/reports/mcp/", false),
            ("https://mcp.example/reports%2Fmcp", false),
            ("https://mcp.example/Reports/mcp", false),
            ("https://mcp.example:8443/reports/mcp", false),
            ("http://mcp.example/reports/mcp", false),
            ("https://mcp.example.evil/reports/mcp", false),
            ("https://mcp.example@evil.example/reports/mcp", false),
            ("https://ada@mcp.example/reports/mcp", false),
            ("/reports/mcp", false),
            ("mcp.example/reports/mcp", false),
            ("", false),
        ] {
            assert_eq!(normal_address(text) == own, is_same, "{text}");
        }
        assert_eq!(normal_address("data:x"), None);
    }
}
