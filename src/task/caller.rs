//! Defines the sender of a request, and the claims of its credential.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::digest::Digest;
use super::{Principal, TaskId, TaskKey, Timestamp};

/// The sender of a request. Its principal owns tasks; its claims are this credential's: a person may have two tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    pub principal: Principal,
    /// `None` if the request has no credential, or the credential has nothing beside its principal.
    pub claims: Option<Arc<Claims>>,
    /// The end of the credential's validity: its streams end then.
    pub until: Option<Timestamp>,
    /// The upstreams of the path for which a token is valid (RFC 8707), else `None`. A pointer keeps futures small.
    pub audience: Option<Arc<Vec<Arc<str>>>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Claims {
    /// Sorted, with the implied ones.
    pub scopes: BTreeSet<Arc<str>>,
    pub groups: BTreeSet<Arc<str>>,
    /// The issuer of a token; `None` for an API key.
    pub issuer: Option<Arc<str>>,
    /// Identifies the OAuth client to which the token was issued, if the token names one.
    pub client: Option<Digest>,
    /// Whether the token serves only the holder of a key or certificate (RFC 7800, `cnf`).
    pub is_bound: bool,
}

impl Claims {
    /// The memory behind the fields, about.
    pub fn bytes(&self) -> usize {
        // A node of a set holds 11 names at most, and 5 at least unless it is the only one.
        const NODE_BYTES: usize = 192;
        // The reference counts of an `Arc`.
        const COUNTS_BYTES: usize = 32;
        let of_set = |names: &BTreeSet<Arc<str>>| {
            names.len().div_ceil(5) * NODE_BYTES + names.iter().map(|name| COUNTS_BYTES + name.len()).sum::<usize>()
        };
        of_set(&self.scopes) + of_set(&self.groups)
    }
}

impl Caller {
    /// A caller without claims.
    pub const fn of(principal: Principal) -> Self {
        Self { principal, claims: None, until: None, audience: None }
    }

    /// The same caller at a path of these upstreams.
    #[must_use]
    pub fn at(self, upstreams: impl FnOnce() -> Arc<Vec<Arc<str>>>) -> Self {
        let has_audience = self.claims.as_ref().is_some_and(|claims| claims.issuer.is_some());
        Self { audience: has_audience.then(upstreams), ..self }
    }

    /// Whether its credential is for a path of this upstream.
    #[must_use]
    pub fn reaches(&self, upstream: &str) -> bool {
        self.audience.as_ref().is_none_or(|upstreams| upstreams.iter().any(|name| **name == *upstream))
    }

    /// The key of a task that it owns, if it exists.
    pub fn task(&self, id: TaskId) -> TaskKey {
        TaskKey { owner: self.principal.clone(), id }
    }

    /// Whether its credential can be withdrawn or expire.
    pub fn has_credential(&self) -> bool {
        self.claims.is_some() || self.until.is_some() || self.principal.key_id().is_some()
    }

    pub fn has_scope(&self, scope: &str) -> bool {
        self.claims.as_ref().is_some_and(|claims| claims.scopes.contains(scope))
    }
}

/// The principals of the configuration: no other principal has rights, even if no list or rule names it.
#[derive(Clone, Debug, Default)]
pub enum AdmittedCallers {
    /// Every principal: no configuration names any.
    #[default]
    All,
    /// Principals without a credential of the gateway.
    Keyless,
    Holders(CredentialHolders),
}

#[derive(Clone, Default)]
pub struct CredentialHolders {
    keys: HashSet<Principal>,
    /// [`Principal::issuer_digits`] of each issuer.
    issuers: HashSet<String>,
    certificates: Option<Arc<CertificateNames>>,
}

/// Whether the configuration accepts certificates with this name.
type CertificateNames = dyn Fn(&str) -> bool + Send + Sync;

impl CredentialHolders {
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = Principal>) -> Self {
        Self { keys: keys.into_iter().collect(), ..Self::default() }
    }

    #[must_use]
    pub fn with_issuers<'i>(self, issuers: impl IntoIterator<Item = &'i str>) -> Self {
        Self { issuers: issuers.into_iter().map(Principal::issuer_digits).collect(), ..self }
    }

    #[must_use]
    pub fn with_certificates(self, has: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { certificates: Some(Arc::new(has)), ..self }
    }

    fn has(&self, principal: &Principal) -> bool {
        if principal.key_id().is_some() {
            return self.keys.contains(principal);
        }
        if let Some(name) = principal.certificate_name() {
            return self.certificates.as_ref().is_some_and(|has| has(name));
        }
        principal.issuer().is_some_and(|issuer| self.issuers.contains(issuer))
    }
}

impl AdmittedCallers {
    #[must_use]
    pub fn have(&self, principal: &Principal) -> bool {
        match self {
            Self::All => true,
            Self::Keyless => {
                principal.key_id().is_none() && principal.certificate_name().is_none() && principal.issuer().is_none()
            }
            Self::Holders(holders) => holders.has(principal),
        }
    }
}

debug_members!(CredentialHolders, |holders| keys: holders.keys, issuers: holders.issuers);
