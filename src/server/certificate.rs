//! Holds a listener's certificate, and tells which names it covers.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// The most names that are cached as covered. A wildcard covers any number.
const NAMES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct ListenerCertificate {
    identity: RwLock<Arc<CertifiedKey>>,
    /// A cache of covered names: most requests use one of a few.
    names: RwLock<BTreeSet<String>>,
}

impl ListenerCertificate {
    pub(super) fn new(identity: Arc<CertifiedKey>) -> Self {
        Self { identity: RwLock::new(identity), names: RwLock::default() }
    }

    pub(super) fn is_for(&self, host: &str) -> bool {
        if self.names.read().contains(host) {
            return true;
        }
        let identity = self.identity();
        let is_for = ServerName::try_from(host).is_ok_and(|name| {
            let certificate = identity.cert.first().and_then(|first| ParsedCertificate::try_from(first).ok());
            certificate.is_some_and(|certificate| verify_server_name(&certificate, &name).is_ok())
        });
        if is_for {
            let mut names = self.names.write();
            // Read again under the lock of the names: `replace` may have installed another certificate and cleared them.
            if names.len() < NAMES_MAX && Arc::ptr_eq(&identity, &self.identity.read()) {
                names.insert(host.to_owned());
            }
        }
        is_for
    }

    pub(super) fn identity(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.identity.read())
    }

    /// Installs another certificate. Returns whether it differs.
    pub(super) fn replace(&self, identity: Arc<CertifiedKey>) -> bool {
        let mut names = self.names.write();
        let mut shown = self.identity.write();
        if shown.cert == identity.cert {
            return false;
        }
        *shown = identity;
        names.clear();
        true
    }
}

impl ResolvesServerCert for ListenerCertificate {
    /// Ignores SNI: names that are not served are refused over HTTP, where the reason can be sent.
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.identity())
    }
}
