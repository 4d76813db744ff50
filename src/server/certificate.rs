//! Holds the certificate that a listener shows, and tells which names it is for.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Most names that are remembered to be the certificate's. A wildcard has no end of them.
const NAMES_MAX: usize = 64;

/// The certificate that new connections are shown.
#[derive(Debug)]
pub(super) struct ListenerCertificate {
    identity: RwLock<Arc<CertifiedKey>>,
    /// Names that were found to be its own: most requests name one of a few.
    names: RwLock<BTreeSet<String>>,
}

impl ListenerCertificate {
    pub(super) fn new(identity: Arc<CertifiedKey>) -> Self {
        Self { identity: RwLock::new(identity), names: RwLock::default() }
    }

    /// Whether the certificate is for a host of this name, or for this address.
    pub(super) fn is_for(&self, host: &str) -> bool {
        if self.names.read().contains(host) {
            return true;
        }
        let identity = Arc::clone(&self.identity.read());
        let is_for = ServerName::try_from(host).is_ok_and(|name| {
            let certificate = identity.cert.first().and_then(|first| ParsedCertificate::try_from(first).ok());
            certificate.is_some_and(|certificate| verify_server_name(&certificate, &name).is_ok())
        });
        if is_for {
            let mut names = self.names.write();
            // Read again with the names held: another certificate may have come, with none of them.
            if names.len() < NAMES_MAX && Arc::ptr_eq(&identity, &self.identity.read()) {
                names.insert(host.to_owned());
            }
        }
        is_for
    }

    /// Shows another one from now on; whether it is another.
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
    /// Whatever name was asked for: names that are not served are refused over HTTP, where clients can be told why.
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.identity.read()))
    }
}
