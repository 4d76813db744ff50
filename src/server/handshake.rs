//! Holds the settings of TLS handshakes and the listener's certificate; admits clients' certificates.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::RwLock;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};

use super::grant::Grant;
use crate::task::Timestamp;
use crate::tls::{
    CertificateNeed, ClientCertificateFiles, TlsFileError, provider, read_revocation_lists, read_roots, unix_time,
};

/// The supported protocols, the preferred one first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

#[derive(Debug)]
pub(super) struct HandshakeSettings {
    pub(super) config: Arc<ServerConfig>,
    /// Verifies clients' certificates, if they are requested.
    pub(super) peers: Option<PeerVerifier>,
    /// Ends the streams of clients with certificates when other files replace these.
    pub(super) grant: Grant,
}

#[derive(Debug)]
pub(super) struct PeerVerifier {
    roots: Arc<RootCertStore>,
    revoked: Vec<CertificateRevocationListDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl PeerVerifier {
    pub(super) fn read(files: &ClientCertificateFiles) -> Result<Self, TlsFileError> {
        let ClientCertificateFiles { ca, crl, need } = files;
        let roots = Arc::new(read_roots(ca)?);
        let revoked = crl.as_deref().map(read_revocation_lists).transpose()?.unwrap_or_default();
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider());
        let builder = builder.with_crls(revoked.clone());
        let builder = match need {
            CertificateNeed::Optional => builder.allow_unauthenticated(),
            CertificateNeed::Required => builder,
        };
        let verifier = builder.build().map_err(|error| match (error, crl) {
            (VerifierBuilderError::InvalidCrl(_), Some(path)) => TlsFileError::BadRevocationList { path: path.clone() },
            (_, _) => TlsFileError::BadCertificate { path: ca.clone() },
        })?;
        Ok(Self { roots, revoked, verifier })
    }

    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        self.roots.roots == other.roots.roots && self.revoked == other.revoked
    }
}

/// Decides again about a connection's certificate when other files were read since its handshake.
#[derive(Debug)]
pub(super) struct Admission {
    handshakes: Arc<ArcSwap<HandshakeSettings>>,
    admitted_by: ArcSwap<HandshakeSettings>,
}

impl Admission {
    pub(super) fn new(handshakes: &Arc<ArcSwap<HandshakeSettings>>, admitted_by: Arc<HandshakeSettings>) -> Self {
        Self { handshakes: Arc::clone(handshakes), admitted_by: ArcSwap::new(admitted_by) }
    }

    /// The grant of the present files; `None` if they do not admit the chain at `now`.
    pub(super) fn grant(&self, chain: &[CertificateDer<'static>], now: Timestamp) -> Option<Grant> {
        let current = self.handshakes.load();
        if !Arc::ptr_eq(&current, &self.admitted_by.load()) {
            let (own, issuers) = chain.split_first()?;
            current.peers.as_ref()?.verifier.verify_client_cert(own, issuers, unix_time(now)).ok()?;
            self.admitted_by.store(Arc::clone(&current));
        }
        Some(current.grant.clone())
    }
}

impl HandshakeSettings {
    /// Uses the certificate that `shown` holds at the time of each handshake.
    pub(super) fn new(shown: &Arc<ListenerCertificate>, peers: Option<PeerVerifier>) -> Self {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the library serves the versions that it recommends");
        let builder = match &peers {
            Some(peers) => builder.with_client_cert_verifier(Arc::clone(&peers.verifier)),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::<ListenerCertificate>::clone(shown));
        config.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
        Self { config: Arc::new(config), peers, grant: Grant::default() }
    }
}

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
