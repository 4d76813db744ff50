//! Performs TLS handshakes with clients; certificates can change while connections run. TLS 1.2 and 1.3; HTTP/2 or
//! HTTP/1.1 (ALPN). Other peers get an alert and no HTTP (B30). [`crate::tls`] reads files.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::sign::CertifiedKey;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::client_certificates::PeerCertificate;
use super::connection::ListenerState;
use super::handshake::{Admission, HandshakeSettings, ListenerCertificate, PeerVerifier};
use super::io::{ResettableStream, linger};
use crate::task::{Clock as _, SystemClock};
use crate::tls::{ClientCertificateFiles, DailyWarning, IdentityFiles, TlsFileError, show_end};

#[derive(Clone, Debug)]
pub(super) struct Tls {
    handshakes: Arc<ArcSwap<HandshakeSettings>>,
    shown: Arc<ListenerCertificate>,
    files: ListenerFiles,
}

#[derive(Clone, Debug)]
struct ListenerFiles {
    identity: IdentityFiles,
    /// Without them no client certificate is requested.
    clients: Option<ClientCertificateFiles>,
}

impl ListenerFiles {
    fn read(&self) -> Result<(Arc<CertifiedKey>, Option<PeerVerifier>), TlsFileError> {
        let verifier = self.clients.as_ref().map(PeerVerifier::read).transpose()?;
        Ok((self.identity.read()?, verifier))
    }
}

impl Tls {
    pub(super) fn read(identity: IdentityFiles, clients: Option<ClientCertificateFiles>) -> Result<Self, TlsFileError> {
        let files = ListenerFiles { identity, clients };
        let (identity, peers) = files.read()?;
        let shown = Arc::new(ListenerCertificate::new(identity));
        let handshakes = Arc::new(ArcSwap::from_pointee(HandshakeSettings::new(&shown, peers)));
        Ok(Self { handshakes, shown, files })
    }

    pub(super) const fn shown(&self) -> &Arc<ListenerCertificate> {
        &self.shown
    }

    /// Performs the handshake. `None` if it failed; the peer has received an alert.
    pub(super) async fn accept(
        &self,
        shared: &ListenerState,
        socket: TcpStream,
        client: IpAddr,
    ) -> Option<AcceptedTls> {
        let settings = self.handshakes.load_full();
        let handshake = TlsAcceptor::from(Arc::clone(&settings.config)).accept(socket).into_fallible();
        let ended = tokio::select! {
            ended = timeout(shared.limits.handshake_deadline, handshake) => ended,
            () = shared.phases.stop.cancelled() => return None,
        };
        match ended {
            Ok(Ok(stream)) => {
                let chain = stream.get_ref().1.peer_certificates().filter(|_| settings.peers.is_some());
                let admission = || Admission::new(&self.handshakes, Arc::clone(&settings));
                let certificate = chain.and_then(|chain| PeerCertificate::read(chain, admission())).map(Arc::new);
                Some(AcceptedTls { stream, certificate })
            }
            Ok(Err((error, socket))) => {
                shared.meter.refused("tls_handshake");
                shared.layers.load().notices.refused_handshake(&error, client);
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

    /// Reads changed files until the listener ends (F65). Unusable ones change nothing, and are logged once a change.
    pub(super) async fn follow(self, shared: Arc<ListenerState>) {
        let (listener, mut troubled) = (shared.meter.name(), None);
        let mut daily = DailyWarning::new(SystemClock.now());
        loop {
            let identity = self.shown.identity();
            show_end(listener.to_owned(), Some(&*identity));
            if let Some(warning) = daily.due(&identity, SystemClock.now()) {
                tracing::warn!(listener, certificate = %self.files.identity.certificate.display(), "{warning}");
            }
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
                let before = self.handshakes.load_full();
                if let (Some(peers), Some(known)) = (peers, &before.peers)
                    && !peers.is_same_as(known)
                {
                    // Replaces the whole configuration, so that no session that the old files admitted can be resumed.
                    self.handshakes.store(Arc::new(HandshakeSettings::new(&self.shown, Some(peers))));
                    before.grant.withdraw();
                    tracing::info!("the CA certificates or revocation lists for peers changed");
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

pub(super) struct AcceptedTls {
    pub(super) stream: TlsStream<TcpStream>,
    pub(super) certificate: Option<Arc<PeerCertificate>>,
}

impl<T: ResettableStream> ResettableStream for TlsStream<T> {
    fn reset_on_drop(&self) {
        self.get_ref().0.reset_on_drop();
    }
}
