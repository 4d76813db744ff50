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

/// Detects dead peers over TCP and HTTP/2, since silence is normal for a running call.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Boxed: TLS is large, and over HTTP/2 hyper gives each request a future with room for the connection.
pub(super) type Stream = Box<MaybeHttpsStream<TokioIo<TcpStream>>>;

/// By default the system's roots and no certificate.
#[derive(Debug, Default)]
pub(crate) struct ClientTls {
    pub(crate) roots: Option<RootCertStore>,
    pub(crate) identity: Option<Arc<CertifiedKey>>,
}

#[derive(Clone, Debug)]
pub(super) struct Connector {
    inner: HttpsConnector<RouteConnector>,
    to: Uri,
}

impl Connector {
    /// Fails if the system's trusted roots cannot be used.
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

    /// Dropping the future abandons the connection.
    pub(super) async fn connect(&self) -> Result<Stream, BoxError> {
        self.inner.clone().oneshot(self.to.clone()).await.map(Box::new)
    }
}

/// Plain `http` needs no trusted roots, so a machine without certificates can serve it.
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
