//! TLS for the upstream, as HTTP/2 is spoken to upstreams behind TLS alone.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use taskgate::tls::provider;
use tokio_rustls::TlsAcceptor;

/// The certificate that vouches for itself, in the folder that a part is given.
pub(crate) const CERTIFICATE: &str = "upstream.pem";

/// A new identity for the loopback address that speaks HTTP/2 alone; writes its certificate.
pub(crate) fn acceptor(folder: &Path) -> anyhow::Result<TlsAcceptor> {
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?.self_signed(&key)?.der().clone();
    let text = STANDARD.encode(&certificate);
    let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    std::fs::write(folder.join(CERTIFICATE), pem)?;
    let private = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], private)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
