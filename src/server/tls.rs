//! Performs TLS handshakes with clients; certificates can change while connections run.
//!
//! TLS 1.2 and 1.3; HTTP/2 or HTTP/1.1 as the client prefers (ALPN). A peer that speaks anything else gets an alert and no HTTP
//! (B30). [`crate::tls`] reads the files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificate::ListenerCertificate;
use super::connection::ListenerState;
use super::io::{ResettableStream, linger};
use crate::task::{Clock as _, SystemClock};
use crate::tls::{IdentityFiles, TlsFileError, provider, read_roots};

/// The supported protocols, the preferred one first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

#[derive(Clone, Debug)]
pub(super) struct Tls {
    handshakes: Arc<ArcSwap<HandshakeSettings>>,
    shown: Arc<ListenerCertificate>,
    files: ListenerFiles,
}

#[derive(Debug)]
struct HandshakeSettings {
    config: Arc<ServerConfig>,
    /// The CA's roots for client certificates, if they are required.
    peer_roots: Option<Arc<RootCertStore>>,
}

#[derive(Clone, Debug)]
struct ListenerFiles {
    identity: IdentityFiles,
    /// The CA for client certificates; without it none are required.
    peers_ca: Option<PathBuf>,
}

impl ListenerFiles {
    fn read(&self) -> Result<(Arc<CertifiedKey>, Option<PeerVerifier>), TlsFileError> {
        let verifier = self.peers_ca.as_deref().map(PeerVerifier::read).transpose()?;
        Ok((self.identity.read(SystemClock.now())?, verifier))
    }
}

struct PeerVerifier {
    roots: Arc<RootCertStore>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl PeerVerifier {
    fn read(path: &Path) -> Result<Self, TlsFileError> {
        let roots = Arc::new(read_roots(path)?);
        let bad = |_| TlsFileError::BadCertificate { path: path.to_owned() };
        let built = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider()).build();
        Ok(Self { verifier: built.map_err(bad)?, roots })
    }
}

impl HandshakeSettings {
    /// Uses the certificate that `shown` holds at the time of each handshake.
    fn new(shown: &Arc<ListenerCertificate>, peers: Option<PeerVerifier>) -> Self {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the library serves the versions that it recommends");
        let (builder, peer_roots) = match peers {
            Some(PeerVerifier { roots, verifier }) => (builder.with_client_cert_verifier(verifier), Some(roots)),
            None => (builder.with_no_client_auth(), None),
        };
        let mut config = builder.with_cert_resolver(Arc::<ListenerCertificate>::clone(shown));
        config.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
        Self { config: Arc::new(config), peer_roots }
    }
}

impl Tls {
    /// Reads the files. With `peers_ca`, only clients with a certificate of that CA are accepted.
    pub(super) fn read(identity: IdentityFiles, peers_ca: Option<PathBuf>) -> Result<Self, TlsFileError> {
        let files = ListenerFiles { identity, peers_ca };
        let (identity, peers) = files.read()?;
        let shown = Arc::new(ListenerCertificate::new(identity));
        let handshakes = Arc::new(ArcSwap::from_pointee(HandshakeSettings::new(&shown, peers)));
        Ok(Self { handshakes, shown, files })
    }

    pub(super) const fn shown(&self) -> &Arc<ListenerCertificate> {
        &self.shown
    }

    /// Performs the handshake. `None` if it failed; the peer has received an alert.
    pub(super) async fn accept(&self, shared: &ListenerState, socket: TcpStream) -> Option<TlsStream<TcpStream>> {
        let handshake = TlsAcceptor::from(Arc::clone(&self.handshakes.load().config)).accept(socket).into_fallible();
        let ended = tokio::select! {
            ended = timeout(shared.limits.handshake_deadline, handshake) => ended,
            () = shared.phases.stop.cancelled() => return None,
        };
        match ended {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err((error, socket))) => {
                shared.meter.refused("tls_handshake");
                tracing::debug!(%error, "no TLS");
                // A reset must not discard the alert.
                linger(socket, shared.limits.linger).await;
                None
            }
            Err(_) => {
                shared.meter.refused("handshake_deadline");
                None
            }
        }
    }

    /// Reads the files again when they change or on notification, until the listener ends (F65). Unusable files leave the current
    /// settings in force, which the log reports once per change.
    pub(super) async fn follow(self, shared: Arc<ListenerState>) {
        let mut troubled = None;
        loop {
            let pause = async {
                tokio::select! {
                    () = tokio::time::sleep(shared.limits.certificate_check) => (),
                    () = shared.reread.notified() => (),
                }
            };
            if shared.phases.stop.run_until_cancelled(pause).await.is_none() {
                return;
            }
            let files = self.files.clone();
            let read = shared.tracker.spawn_blocking(move || files.read());
            let Ok(read) = read.await else { return };
            troubled = self.take_over(read, troubled);
        }
    }

    /// Applies the files to new connections. Returns the fault of the files, if any; `known` is the previous one.
    fn take_over(
        &self,
        read: Result<(Arc<CertifiedKey>, Option<PeerVerifier>), TlsFileError>,
        known: Option<String>,
    ) -> Option<String> {
        match read {
            Ok((identity, peers)) => {
                if self.shown.replace(identity) {
                    tracing::info!(certificate = %self.files.identity.certificate.display(), "certificate changed");
                }
                let roots = |peers: Option<&Arc<RootCertStore>>| peers.map(|roots| roots.roots.clone());
                let are_others = roots(peers.as_ref().map(|peers| &peers.roots))
                    != roots(self.handshakes.load().peer_roots.as_ref());
                if are_others {
                    // Replaces the whole configuration, so that no session that the old CA admitted can be resumed.
                    self.handshakes.store(Arc::new(HandshakeSettings::new(&self.shown, peers)));
                    tracing::info!("the CA certificates for peers changed");
                }
                None
            }
            Err(error) => {
                let error = error.to_string();
                if known.as_ref() != Some(&error) {
                    tracing::warn!(error, "the certificate in use is kept");
                }
                Some(error)
            }
        }
    }
}

impl<T: ResettableStream> ResettableStream for TlsStream<T> {
    fn reset_on_drop(&self) {
        self.get_ref().0.reset_on_drop();
    }
}
