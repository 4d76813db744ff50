//! Knows the principals of the configuration: no other principal has rights, even if no list or rule names it.

use std::collections::HashSet;
use std::sync::Arc;

use super::Principal;

#[derive(Clone, Debug, Default)]
pub enum AdmittedCallers {
    /// Every principal, where no configuration says who may come.
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

/// Whether some block is for certificates with this name.
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
