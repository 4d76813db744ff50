//! Connects to one server: name, TCP, a proxy's tunnel, and TLS.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls_platform_verifier::Verifier;
use tokio::net::TcpStream;
use tower::ServiceExt as _;

use super::BoxError;
use super::proxy::{Proxy, RouteConnector};
use crate::tls::provider;

/// TCP and HTTP/2 find dead peers by this, since silence is normal for a running call.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// A connection, with TLS if the address says so. Boxed: TLS is large, and over HTTP/2 hyper gives each request a future with
/// room for the connection.
pub(super) type Stream = Box<MaybeHttpsStream<TokioIo<TcpStream>>>;

/// The trusted roots and the client certificate of `https`. By default the system's roots and no certificate.
#[derive(Debug, Default)]
pub(crate) struct ClientTls {
    /// Trusted instead of the system's roots.
    pub(crate) roots: Option<RootCertStore>,
    /// Sent to upstreams that ask for a certificate.
    pub(crate) identity: Option<Arc<CertifiedKey>>,
}

#[derive(Clone, Debug)]
pub(super) struct Connector {
    inner: HttpsConnector<RouteConnector>,
    to: Uri,
}

impl Connector {
    /// A connector to an address, through a proxy if there is one.
    ///
    /// # Errors
    /// If the system's trusted roots cannot be used.
    pub(super) fn new(to: Uri, tls: ClientTls, proxy: Option<Proxy>) -> Result<Self, rustls::Error> {
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        plain.set_nodelay(true);
        plain.set_keepalive(Some(KEEP_ALIVE));
        let inner = HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(&to, tls)?)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(RouteConnector { direct: plain, proxy });
        Ok(Self { inner, to })
    }

    /// A new connection. Dropping the future abandons it.
    pub(super) async fn connect(&self) -> Result<Stream, BoxError> {
        self.inner.clone().oneshot(self.to.clone()).await.map(Box::new)
    }
}

/// TLS for one address. Plain `http` needs no trusted roots, so that a machine without certificates can serve it.
fn tls_config(to: &Uri, tls: ClientTls) -> Result<rustls::ClientConfig, rustls::Error> {
    let builder = rustls::ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match tls.roots {
        Some(roots) => builder.with_root_certificates(roots),
        None if to.scheme() != Some(&Scheme::HTTPS) => builder.with_root_certificates(RootCertStore::empty()),
        None => builder.dangerous().with_custom_certificate_verifier(Arc::new(Verifier::new(provider())?)),
    };
    Ok(match tls.identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
        None => builder.with_no_client_auth(),
    })
}
