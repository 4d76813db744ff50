//! Makes TLS handshakes with clients, with certificates that can be changed while connections run.
//!
//! Versions 1.2 and 1.3; HTTP/2 or HTTP/1.1 as the client prefers (ALPN). A peer that speaks anything else
//! gets an alert and no byte of HTTP (B30). What is in the files: [`crate::tls`].

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificate::ListenerCertificate;
use super::connection::ListenerState;
use super::io::{ResettableStream, linger};
use crate::task::{Clock, SystemClock};
use crate::tls::{IdentityFiles, TlsFileError, provider, read_roots};

/// The protocols that are served, the preferred one first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// What a listener needs to speak TLS. Clones share the certificate.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    config: Arc<ServerConfig>,
    shown: Arc<ListenerCertificate>,
    files: IdentityFiles,
}

impl Tls {
    /// Reads the files. Where `peers_ca` vouches for peers, none gets through that it does not vouch for.
    pub(super) fn read(files: IdentityFiles, peers_ca: Option<&Path>) -> Result<Self, TlsFileError> {
        let shown = Arc::new(ListenerCertificate::new(files.read(SystemClock.now())?));
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the library serves the versions that it recommends");
        let builder = match peers_ca {
            Some(path) => builder.with_client_cert_verifier(peer_verifier(path)?),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::<ListenerCertificate>::clone(&shown));
        config.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
        Ok(Self { config: Arc::new(config), shown, files })
    }

    /// The certificate, whichever it is at the time.
    pub(super) const fn shown(&self) -> &Arc<ListenerCertificate> {
        &self.shown
    }

    /// Performs the handshake. `None` where there is nobody to serve; the peer knows why.
    pub(super) async fn accept(&self, shared: &ListenerState, socket: TcpStream) -> Option<TlsStream<TcpStream>> {
        let handshake = TlsAcceptor::from(Arc::clone(&self.config)).accept(socket).into_fallible();
        let ended = tokio::select! {
            ended = timeout(shared.limits.handshake_deadline, handshake) => ended,
            () = shared.phases.stop.cancelled() => return None,
        };
        match ended {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err((error, socket))) => {
                shared.meter.refused("tls_handshake");
                tracing::debug!(%error, "no TLS");
                // The alert must not be taken back by a reset.
                linger(socket, shared.limits.linger).await;
                None
            }
            Err(_) => {
                shared.meter.refused("handshake_deadline");
                None
            }
        }
    }

    /// Reads the files again whenever they have changed, and when they are asked for, until the listener ends (F65). Files that are of no
    /// use leave the old certificate in place; the log says so once for each change of them.
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
            let read = shared.tracker.spawn_blocking(move || files.read(SystemClock.now()));
            let Ok(read) = read.await else { return };
            troubled = self.take_over(read, troubled);
        }
    }

    /// Shows what was read from now on. Returns what is wrong with the files; `known` is what was before.
    fn take_over(&self, read: Result<Arc<CertifiedKey>, TlsFileError>, known: Option<String>) -> Option<String> {
        match read {
            Ok(identity) => {
                if self.shown.replace(identity) {
                    tracing::info!(certificate = %self.files.certificate.display(), "certificate changed");
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

/// Takes the certificates that an authority in a file vouches for.
fn peer_verifier(path: &Path) -> Result<Arc<dyn ClientCertVerifier>, TlsFileError> {
    let roots = Arc::new(read_roots(path)?);
    let bad = |_| TlsFileError::BadCertificate { path: path.to_owned() };
    WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(bad)
}

impl<T: ResettableStream> ResettableStream for TlsStream<T> {
    fn reset_on_drop(&self) {
        self.get_ref().0.reset_on_drop();
    }
}
