//! Reads certificates and private keys from files, and explains why a file is unusable.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, Error as RustlsError, InconsistentKeys, RootCertStore};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use crate::metric;
use crate::secret_file::{self, SecretFileError};
use crate::system;
use crate::task::Timestamp;
use crate::task::time::millis;

/// Larger files are no certificates: a bundle of every public CA is a quarter of it.
const FILE_BYTES_MAX: usize = 1 << 20;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const WARNED_DAYS: u64 = 14;

/// The paths of an identity: PEM files, relative to the working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The certificate, followed by the intermediate certificates.
    pub certificate: PathBuf,
    /// Its private key, unencrypted.
    pub key: PathBuf,
}

/// The files by which clients' certificates are verified: PEM files, relative to the working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificateFiles {
    pub ca: PathBuf,
    /// The lists of revoked certificates. With one, a certificate of an authority without a list is refused.
    pub crl: Option<PathBuf>,
    pub need: CertificateNeed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateNeed {
    Optional,
    /// A client without a certificate gets no connection.
    Required,
}

/// Why a file cannot be used. Names the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    #[error("{}: cannot be read: {source}", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The key, which only its owner may read (B168).
    #[error("{}: {source}", .path.display())]
    Secret { path: PathBuf, source: SecretFileError },
    #[error("{}: is larger than 1MiB", .path.display())]
    TooLarge { path: PathBuf },
    #[error("{}: has no certificate; a PEM file has one between BEGIN CERTIFICATE and END CERTIFICATE", .path.display())]
    NoCertificate { path: PathBuf },
    #[error("{}: has a certificate that cannot be understood", .path.display())]
    BadCertificate { path: PathBuf },
    #[error("{}: has no revocation list; write it in PEM form, as `openssl crl -outform PEM` does", .path.display())]
    NoRevocationList { path: PathBuf },
    #[error("{}: has a revocation list that cannot be understood", .path.display())]
    BadRevocationList { path: PathBuf },
    #[error(
        "{}: has no private key that can be used; it must be a PEM file with an RSA, ECDSA or Ed25519 key, not encrypted",
        .path.display()
    )]
    NoKey { path: PathBuf },
    #[error("{}: is not the key of the certificate in {}", .key.display(), .certificate.display())]
    Mismatch { key: PathBuf, certificate: PathBuf },
}

impl TlsFileError {
    pub fn path(&self) -> &Path {
        match self {
            Self::Unreadable { path, .. }
            | Self::Secret { path, .. }
            | Self::TooLarge { path }
            | Self::NoCertificate { path }
            | Self::BadCertificate { path }
            | Self::NoRevocationList { path }
            | Self::BadRevocationList { path }
            | Self::NoKey { path }
            | Self::Mismatch { key: path, .. } => path,
        }
    }
}

pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

impl IdentityFiles {
    /// Reads the identity. The key must match the certificate, and only its owner may access it. Dates are not checked (B245).
    pub fn read(&self) -> Result<Arc<CertifiedKey>, TlsFileError> {
        let chain = read_certificates(&self.certificate)?;
        let unusable = || TlsFileError::NoKey { path: self.key.clone() };
        let secret = secret_file::read(&self.key, "key", FILE_BYTES_MAX);
        let secret = secret.map_err(|source| TlsFileError::Secret { path: self.key.clone(), source })?;
        let key = PrivateKeyDer::from_pem_slice(&secret).map_err(|_| unusable())?;
        let identity = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| {
            if error == RustlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) {
                TlsFileError::Mismatch { key: self.key.clone(), certificate: self.certificate.clone() }
            } else {
                unusable()
            }
        })?;
        Ok(Arc::new(identity))
    }
}

/// All certificates of a PEM file; at least one, each of them readable.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let bad = || TlsFileError::BadCertificate { path: path.to_owned() };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let found: Vec<CertificateDer<'static>> = found.map_err(|_| bad())?;
    if found.is_empty() {
        return Err(TlsFileError::NoCertificate { path: path.to_owned() });
    }
    if found.iter().any(|certificate| ParsedCertificate::try_from(certificate).is_err()) {
        return Err(bad());
    }
    Ok(found)
}

pub fn read_roots(path: &Path) -> Result<RootCertStore, TlsFileError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|_| TlsFileError::BadCertificate { path: path.to_owned() })?;
    }
    Ok(roots)
}

pub fn read_revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsFileError> {
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&read(path)?).collect();
    let found = found.map_err(|_| TlsFileError::BadRevocationList { path: path.to_owned() })?;
    if found.is_empty() { Err(TlsFileError::NoRevocationList { path: path.to_owned() }) } else { Ok(found) }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsFileError> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    system::open_file(path)
        .and_then(|file| file.take(limit).read_to_end(&mut bytes))
        .map_err(|source| TlsFileError::Unreadable { path: path.to_owned(), source })?;
    if bytes.len() > FILE_BYTES_MAX { Err(TlsFileError::TooLarge { path: path.to_owned() }) } else { Ok(bytes) }
}

/// The fault of a peer or its certificate, in words for an operator.
pub fn in_words(error: &RustlsError) -> String {
    use CertificateError as C;
    if matches!(error, RustlsError::InvalidMessage(_)) {
        return "it does not speak TLS".to_owned();
    }
    if let RustlsError::AlertReceived(alert) = error {
        return format!("it ended the TLS handshake ({alert:?})");
    }
    let RustlsError::InvalidCertificate(certificate) = error else { return error.to_string() };
    // Some error texts list bytes after the name.
    let text = certificate.to_string();
    let name = text.split_once(" {").map_or(&*text, |(name, _)| name);
    let words = if matches!(certificate, C::UnknownIssuer) {
        "is not issued by a trusted authority; name its authority (`ca`, --ca)"
    } else if matches!(certificate, C::NotValidForName | C::NotValidForNameContext { .. }) {
        "is for another name"
    } else if matches!(certificate, C::Expired | C::ExpiredContext { .. }) {
        "has expired"
    } else if matches!(certificate, C::NotValidYet | C::NotValidYetContext { .. }) {
        "is not valid yet"
    } else if matches!(certificate, C::BadSignature) || name.starts_with("UnsupportedSignatureAlgorithm") {
        // A trusted CA may have the issuer's name and another key.
        "is not signed by a trusted authority; name its authority (`ca`, --ca)"
    } else if name.contains("CaUsedAsEndEntity") {
        "is an authority's, and not for a server; make one with basicConstraints=CA:FALSE"
    } else {
        return format!("its certificate is not accepted: {name}");
    };
    format!("its certificate {words}")
}

pub fn unix_time(at: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_millis(at.as_millis()))
}

fn validity(identity: &CertifiedKey) -> Option<[Timestamp; 2]> {
    let validity = Certificate::from_der(identity.cert.first()?).ok()?.tbs_certificate.validity;
    Some([validity.not_before, validity.not_after].map(|at| Timestamp::from_millis(millis(at.to_unix_duration()))))
}

/// The faults of a certificate at `now`, or soon (B245, B246).
pub fn validity_warning(identity: &CertifiedKey, now: Timestamp) -> Option<String> {
    let [from, until] = validity(identity)?;
    let days = until.since(now).as_secs() / DAY.as_secs();
    if now < from {
        Some("the certificate is not valid yet; write one that is, or set the clock".to_owned())
    } else if until < now {
        Some("the certificate has expired; write a newer one".to_owned())
    } else if days < WARNED_DAYS {
        let left = if days == 0 { "less than a day".to_owned() } else { format!("{days} days") };
        Some(format!("the certificate ends in {left}; write a newer one"))
    } else {
        None
    }
}

/// Shows in the metrics when the certificate in use ends; 0 without one.
pub fn show_end(used_for: String, identity: Option<&CertifiedKey>) {
    let end = identity.and_then(validity).map_or(0, |[_, until]| until.as_millis() / 1_000);
    metrics::gauge!(metric::CERTIFICATE_END, "use" => used_for).set(end as f64);
}

#[derive(Debug)]
pub struct DailyWarning {
    last: Timestamp,
}

impl DailyWarning {
    pub const fn new(last: Timestamp) -> Self {
        Self { last }
    }

    pub fn due(&mut self, identity: &CertifiedKey, now: Timestamp) -> Option<String> {
        let is_due = now < self.last || now.since(self.last) >= DAY;
        let warning = validity_warning(identity, now).filter(|_| is_due)?;
        self.last = now;
        Some(warning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{CertificateParams, KeyPair};

    #[test]
    fn a_certificate_with_a_foreign_kind_of_key_is_described_without_numbers() {
        let error = CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
            signature_algorithm_id: vec![6, 8, 42],
            public_key_algorithm_id: vec![6, 7, 42],
        };
        let words = "its certificate is not signed by a trusted authority; name its authority (`ca`, --ca)";
        assert_eq!(in_words(&RustlsError::InvalidCertificate(error)), words);
    }

    struct PemPair {
        certificate: String,
        key: String,
    }

    fn pem(label: &str, der: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
    }

    fn pair() -> PemPair {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        PemPair { certificate: pem("CERTIFICATE", certificate.der()), key: pem("PRIVATE KEY", key.serialized_der()) }
    }

    /// The outcome for two files with these contents, with file names only.
    fn outcome(certificate: &str, key: &str) -> String {
        outcome_of_mode(certificate, key, 0o600)
    }

    fn outcome_of_mode(certificate: &str, key: &str, mode: u32) -> String {
        let folder = tempfile::tempdir().unwrap();
        let files = IdentityFiles { certificate: folder.path().join("a.pem"), key: folder.path().join("a.key") };
        for (path, content) in [(&files.certificate, certificate), (&files.key, key)] {
            if content != "no file" {
                std::fs::write(path, content).unwrap();
                std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            }
        }
        let outcome = files.read().map(|identity| format!("{} certificates", identity.cert.len()));
        let text = outcome.unwrap_or_else(|error| error.to_string());
        text.replace(&format!("{}/", folder.path().display()), "")
    }

    /// B170, and every other way in which two files are no identity.
    #[test]
    fn invalid_identity_files_are_refused_with_the_remedy() {
        let (own, other) = (pair(), pair());
        let chain = format!("{}{}", own.certificate, other.certificate);
        let damaged = own.certificate.replacen("MII", "AAA", 1);
        let encrypted = own.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        let no_certificate = "has no certificate; a PEM file has one between BEGIN CERTIFICATE and END CERTIFICATE";
        let no_key = "has no private key that can be used; it must be a PEM file with an RSA, ECDSA or Ed25519 key, \
                      not encrypted";
        let missing = "cannot be read: No such file or directory (os error 2)";
        let large = "x".repeat(FILE_BYTES_MAX + 1);
        for (certificate, key, expected) in [
            (&*own.certificate, &*own.key, "1 certificates".to_owned()),
            (&chain, &own.key, "2 certificates".to_owned()),
            (&own.certificate, &other.key, "a.key: is not the key of the certificate in a.pem".to_owned()),
            ("no file", &own.key, format!("a.pem: {missing}")),
            (&own.certificate, "no file", format!("a.key: {missing}")),
            ("", &own.key, format!("a.pem: {no_certificate}")),
            (&own.key, &own.key, format!("a.pem: {no_certificate}")),
            (&damaged, &own.key, "a.pem: has a certificate that cannot be understood".to_owned()),
            (&own.certificate, "", format!("a.key: {no_key}")),
            (&own.certificate, &own.certificate, format!("a.key: {no_key}")),
            (&own.certificate, &encrypted, format!("a.key: {no_key}")),
            (&large, &own.key, "a.pem: is larger than 1MiB".to_owned()),
        ] {
            assert_eq!(outcome(certificate, key), expected);
        }
    }

    /// B168, SEC-24: as every other secret.
    #[test]
    fn b168_a_private_key_is_its_owners_alone() {
        let PemPair { certificate, key } = pair();
        for (mode, expected) in [(0o600, "fine"), (0o400, "fine"), (0o640, "0640"), (0o644, "0644"), (0o604, "0604")] {
            let found = outcome_of_mode(&certificate, &key, mode);
            let refused = format!(
                "a.key: others than its owner may use it (mode {expected}); change that to 0600, and the key if they \
                 may have read it"
            );
            assert_eq!(found, if expected == "fine" { "1 certificates".to_owned() } else { refused });
        }
    }

    /// B245, B246: valid from the first of January 1975 to the end of 4095, as the certificate says.
    #[test]
    fn b245_a_certificate_is_used_at_any_time_and_b246_operators_are_warned_before_its_end() {
        let PemPair { certificate, key } = pair();
        let folder = tempfile::tempdir().unwrap();
        let files = IdentityFiles { certificate: folder.path().join("a.pem"), key: folder.path().join("a.key") };
        std::fs::write(&files.certificate, certificate).unwrap();
        std::fs::write(&files.key, key).unwrap();
        std::fs::set_permissions(&files.key, Permissions::from_mode(0o600)).unwrap();
        let identity = files.read().unwrap();
        let [from, until] = validity(&identity).unwrap();
        assert_eq!([from, until].map(|at| at.as_millis() / 1_000), [157_766_400, 67_090_118_400]);
        let at = |from: Timestamp, days: i64| {
            Timestamp::from_millis(from.as_millis().checked_add_signed(days * 86_400_000 + 1).unwrap())
        };
        let early = Some("the certificate is not valid yet; write one that is, or set the clock");
        for (now, expected) in [
            (at(from, -1), early),
            (at(from, 0), None),
            (at(until, -15), None),
            (at(until, -14), Some("the certificate ends in 13 days; write a newer one")),
            (at(until, -1), Some("the certificate ends in less than a day; write a newer one")),
            (at(until, 0), Some("the certificate has expired; write a newer one")),
        ] {
            assert_eq!(validity_warning(&identity, now).as_deref(), expected, "{now:?}");
        }
        let mut daily = DailyWarning::new(at(until, -15));
        let mut days = Vec::new();
        for quarter in -60..8 {
            let now =
                Timestamp::from_millis(at(until, 0).as_millis().checked_add_signed(quarter * 21_600_000).unwrap());
            days.extend(daily.due(&identity, now).map(|_| quarter));
        }
        assert_eq!(
            days,
            (-14..2).map(|day| day * 4).collect::<Vec<_>>(),
            "once a day, in the last 14 and after the end"
        );
        // A clock that was far ahead is set back.
        let back = at(until, -10);
        assert_eq!([(); 2].map(|()| daily.due(&identity, back).is_some()), [true, false]);
    }
    #[test]
    fn authorities_come_all_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        std::fs::write(&path, pair().certificate + &pair().certificate).unwrap();
        assert_eq!(read_roots(&path).unwrap().len(), 2);
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let refused = read_roots(&path).unwrap_err().to_string();
        assert!(refused.ends_with("ca.pem: has a certificate that cannot be understood"), "{refused}");
    }
}
