//! Certificates made for one test: an authority, and identities that it vouches for.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa, KeyIdMethod, KeyPair,
    RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier};
use taskgate::tls::{IdentityFiles, provider};

/// A certificate authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// An identity for `localhost`; `change` may spoil it.
    pub fn vouch(&self, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity { certificate: certificate.der().clone(), key }
    }

    pub fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate().clone()).unwrap();
        Arc::new(roots)
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        self.0.der()
    }

    /// A client that trusts this authority alone, has no certificate, and offers these protocols.
    pub fn client(&self, alpn: &[&str]) -> ClientConfig {
        let mut config = client().with_root_certificates(self.roots()).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }
}

impl Authority {
    /// As [`Self::client`], with a certificate.
    pub fn client_as(&self, identity: &Identity, alpn: &[&str]) -> ClientConfig {
        let key = PrivateKeyDer::try_from(identity.key.serialize_der()).unwrap();
        let config = client().with_root_certificates(self.roots());
        let mut config = config.with_client_auth_cert(vec![identity.certificate.clone()], key).unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    /// A PEM file with the list of the certificates that this authority has revoked.
    pub fn write_revocations(&self, folder: &Path, name: &str, serials: &[u64]) -> PathBuf {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        // In two pieces: in one, it would look like the ID of a rule.
        write(folder, name, &["X", "509 CRL"].concat(), params.signed_by(&self.0).unwrap().der())
    }
}

fn client() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap()
}

pub struct Identity {
    pub certificate: CertificateDer<'static>,
    pub key: KeyPair,
}

impl Identity {
    /// A server that comes as this identity and speaks these protocols, to clients of `clients` where it is given.
    pub fn server(&self, alpn: &[&str], clients: Option<&Authority>) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(clients.roots(), provider()).build().unwrap(),
            ),
        };
        let key = PrivateKeyDer::try_from(self.key.serialize_der()).unwrap();
        let mut config = builder.with_single_cert(vec![self.certificate.clone()], key).unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        config
    }

    /// `NAME.pem` and `NAME.key`, replaced if they are there.
    pub fn write(&self, folder: &Path, name: &str) -> IdentityFiles {
        IdentityFiles {
            certificate: write(folder, &format!("{name}.pem"), "CERTIFICATE", &self.certificate),
            key: write(folder, &format!("{name}.key"), "PRIVATE KEY", self.key.serialized_der()),
        }
    }
}

/// One PEM file.
pub fn write(folder: &Path, name: &str, label: &str, der: &[u8]) -> PathBuf {
    let path = folder.join(name);
    let text = format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der));
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}
