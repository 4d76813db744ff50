//! Defines the settings of the issuers of access tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::Algorithm;
use url::Url;

use crate::upstream::token_client::TokenClientSettings;

/// The value of `token_types` for a header without `typ`.
pub const NO_TYPE: &str = "none";

/// The name of a signature algorithm for issuers: none with a shared secret, by which verifiers could make tokens.
pub fn signature_algorithm(name: &str) -> Option<Algorithm> {
    use Algorithm as A;
    let known = [A::RS256, A::RS384, A::RS512, A::PS256, A::PS384, A::PS512, A::ES256, A::ES384, A::EdDSA];
    name.parse().ok().filter(|algorithm| known.contains(algorithm))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSettings {
    /// The base of clients' URLs: scheme, host and port.
    pub public_url: Arc<str>,
    pub scopes: Vec<Arc<str>>,
    pub proofs: ProofPolicy,
    /// In the order of the file; no issuer twice. Never empty.
    pub issuers: Vec<Arc<IssuerSettings>>,
}

/// Whether tokens are bound to keys, which their senders prove to hold (DPoP, RFC 9449).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofPolicy {
    Off,
    Accept,
    Require,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerSettings {
    /// As in the claim `iss`, byte for byte.
    pub issuer: Arc<str>,
    pub keys: KeyLocation,
    pub algorithms: Vec<Algorithm>,
    /// Accepted audiences besides the address that was asked, in the form of [`normal_address`].
    pub audiences: BTreeSet<String>,
    /// The accepted `typ` of headers, in lower case and without `application/`.
    pub token_types: BTreeSet<String>,
    /// The claim with the groups: its name, or the names on the way to it with dots between them.
    pub groups: Option<Arc<str>>,
    /// The claim that owns tasks instead of the subject.
    pub owner_claim: Option<Arc<str>>,
    /// All scopes that a scope includes, directly or by another one.
    pub implies: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// How long keys are used after the last time that they were fetched.
    pub max_stale: Duration,
    pub introspection: Option<IntrospectionSettings>,
}

impl IssuerSettings {
    /// Whether the issuer itself checks its signed tokens, so that no key is needed.
    pub fn needs_no_keys(&self) -> bool {
        self.introspection.as_ref().is_some_and(|asked| asked.tokens != IntrospectedTokens::Opaque)
    }

    /// The named scopes, and those that they include.
    pub fn scopes_of<'s>(&self, names: impl IntoIterator<Item = &'s str>) -> BTreeSet<Arc<str>> {
        let mut scopes = BTreeSet::new();
        for name in names {
            match self.implies.get_key_value(name) {
                Some((name, implied)) => {
                    scopes.insert(Arc::clone(name));
                    scopes.extend(implied.iter().cloned());
                }
                None => drop(scopes.insert(Arc::from(name))),
            }
        }
        scopes
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntrospectionSettings {
    pub client: TokenClientSettings,
    pub tokens: IntrospectedTokens,
}

/// The tokens that an issuer is asked about, by their form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntrospectedTokens {
    Opaque,
    /// Signed ones that name the issuer; its keys are not needed.
    Signed,
    All,
}

impl IntrospectedTokens {
    pub const fn has_opaque(self) -> bool {
        matches!(self, Self::Opaque | Self::All)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyLocation {
    /// The issuer's metadata names it.
    Discovered(Url),
    Url(Url),
    /// A file with the key set, relative to the working directory.
    File(PathBuf),
}

impl KeyLocation {
    pub const fn file(&self) -> Option<&PathBuf> {
        if let Self::File(path) = self { Some(path) } else { None }
    }
}

/// An address as audiences are compared: scheme and host in lower case, without one last slash. Others lose only that.
pub fn normal_address(text: &str) -> String {
    let text = text.strip_suffix('/').unwrap_or(text);
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, rest) = rest.split_at(end);
    format!("{}://{}{rest}", scheme.to_ascii_lowercase(), host.to_ascii_lowercase())
}

/// The media type of a token as it is compared: `application/at+jwt` and `AT+JWT` are `at+jwt` (RFC 7515, 4.1.9).
pub fn normal_type(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    lower.strip_prefix("application/").filter(|rest| !rest.contains('/')).map_or_else(|| lower.clone(), str::to_owned)
}
