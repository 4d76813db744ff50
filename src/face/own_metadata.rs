//! Serves the gateway's own protected resource metadata (RFC 9728), and writes the challenges that point to it. Both
//! come from the configuration alone, so no request's `Host` and no server decides where clients log in.

use std::collections::BTreeSet;
use std::ops::Not;
use std::sync::Arc;

use http::HeaderValue;
use serde::Serialize;

use super::client_login::{MetadataEndpoint, metadata_path};
use super::rates::Rates;

/// A scope for refreshing: only the client and its issuer use it.
const OFFLINE: &str = "offline_access";

/// The metadata that clients read before their login.
#[derive(Clone, Debug)]
pub struct OwnResource {
    /// The base of clients' URLs: scheme, host and port.
    pub public_url: Arc<str>,
    pub issuers: Vec<Arc<str>>,
    /// The scopes that the gateway asks for anywhere.
    pub scopes: BTreeSet<Arc<str>>,
    /// Whether tokens may be bound to clients' certificates (RFC 8705, 3).
    pub takes_bound_tokens: bool,
    /// Whether tokens may be bound to keys (RFC 9449), and whether they must.
    pub takes_proofs: bool,
    pub requires_proofs: bool,
}

/// The algorithms of proofs of possession (RFC 9449), as challenges and metadata list them.
pub const PROOF_ALGORITHMS: [&str; 5] = ["ES256", "ES384", "EdDSA", "PS256", "RS256"];

#[derive(Serialize)]
struct Metadata<'a> {
    resource: String,
    authorization_servers: &'a [Arc<str>],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes_supported: Vec<&'a str>,
    bearer_methods_supported: [&'static str; 1],
    #[serde(skip_serializing_if = "Not::not")]
    tls_client_certificate_bound_access_tokens: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    dpop_signing_alg_values_supported: Option<[&'static str; 5]>,
    #[serde(skip_serializing_if = "Not::not")]
    dpop_bound_access_tokens_required: bool,
}

impl OwnResource {
    pub fn metadata(&self, path: &str, rates: Arc<Rates>) -> MetadataEndpoint {
        let metadata = Metadata {
            resource: format!("{}{path}", self.public_url),
            authorization_servers: &self.issuers,
            scopes_supported: self.scopes.iter().map(|scope| &**scope).filter(|scope| *scope != OFFLINE).collect(),
            bearer_methods_supported: ["header"],
            tls_client_certificate_bound_access_tokens: self.takes_bound_tokens,
            dpop_signing_alg_values_supported: self.takes_proofs.then_some(PROOF_ALGORITHMS),
            dpop_bound_access_tokens_required: self.requires_proofs,
        };
        // Texts and lists of texts: nothing here can fail.
        let text = serde_json::to_vec(&metadata).unwrap_or_default();
        MetadataEndpoint::own(text.into(), rates)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeError {
    InvalidToken,
    InvalidProof,
    InsufficientScope,
}

/// The schemes that a challenge names (RFC 9449, 7.1 and 7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeScheme {
    Bearer,
    /// `Bearer`, with a note that `DPoP` is accepted too.
    BearerOrDpop,
    Dpop,
}

/// The challenge for the endpoint at `path`, if any (RFC 6750, 3; RFC 9728, 5.1). Leaves texts with quotes out.
pub fn challenge<'a>(
    public_url: &str,
    path: Option<&str>,
    scheme: ChallengeScheme,
    error: Option<ChallengeError>,
    scopes: impl IntoIterator<Item = &'a str>,
) -> HeaderValue {
    let mut members = Vec::new();
    members.extend(error.map(|error| match error {
        ChallengeError::InvalidToken => "error=\"invalid_token\"".to_owned(),
        ChallengeError::InvalidProof => "error=\"invalid_dpop_proof\"".to_owned(),
        ChallengeError::InsufficientScope => "error=\"insufficient_scope\"".to_owned(),
    }));
    let scopes: Vec<&str> = scopes.into_iter().collect();
    let metadata = path.map(|path| format!("resource_metadata=\"{public_url}{}\"", metadata_path(path)));
    let scopes = (!scopes.is_empty()).then(|| format!("scope=\"{}\"", scopes.join(" ")));
    match error {
        // A client that reads one member first reads the scopes that it lacks.
        Some(ChallengeError::InsufficientScope) => members.extend(scopes.into_iter().chain(metadata)),
        Some(ChallengeError::InvalidToken | ChallengeError::InvalidProof) | None => {
            members.extend(metadata.into_iter().chain(scopes))
        }
    }
    let algorithms = || format!("algs=\"{}\"", PROOF_ALGORITHMS.join(" "));
    let (name, beside) = match scheme {
        ChallengeScheme::Bearer => ("Bearer", String::new()),
        ChallengeScheme::BearerOrDpop => ("Bearer", format!(", DPoP {}", algorithms())),
        ChallengeScheme::Dpop => {
            members.push(algorithms());
            ("DPoP", String::new())
        }
    };
    let space = if members.is_empty() { "" } else { " " };
    let text = format!("{name}{space}{}{beside}", members.join(", "));
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("Bearer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_says_where_to_log_in_and_with_which_scopes() {
        use ChallengeError::{InsufficientScope, InvalidToken};
        let metadata = "resource_metadata=\"https://mcp.example/.well-known/oauth-protected-resource/a/mcp\"";
        for (path, error, scopes, expected) in [
            (Some("/a/mcp"), None, &["mcp"][..], format!("Bearer {metadata}, scope=\"mcp\"")),
            (Some("/a/mcp"), None, &[], format!("Bearer {metadata}")),
            (
                Some("/a/mcp"),
                Some(InvalidToken),
                &["mcp", "x"],
                format!("Bearer error=\"invalid_token\", {metadata}, scope=\"mcp x\""),
            ),
            (
                Some("/a/mcp"),
                Some(InsufficientScope),
                &["mcp"],
                format!("Bearer error=\"insufficient_scope\", scope=\"mcp\", {metadata}"),
            ),
            (None, None, &[], "Bearer".to_owned()),
            (None, Some(InvalidToken), &[], "Bearer error=\"invalid_token\"".to_owned()),
        ] {
            let found = challenge("https://mcp.example", path, ChallengeScheme::Bearer, error, scopes.iter().copied());
            assert_eq!(found, expected, "{path:?} {error:?}");
        }
        let root = challenge("https://mcp.example", Some("/"), ChallengeScheme::Bearer, None, []);
        assert_eq!(root, "Bearer resource_metadata=\"https://mcp.example/.well-known/oauth-protected-resource\"");
    }
}
