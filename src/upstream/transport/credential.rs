//! Adds the gateway's credential to every request: one header (SEC-04, SEC-12).

use std::fmt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use http::{HeaderName, HeaderValue};

use crate::secret_file::{self, SecretFileError};
use crate::task::GatewayFault;
use crate::upstream::ClientCredential;

/// Longest value; servers refuse heads that are much longer.
pub const CREDENTIAL_LEN_MAX: usize = 8 * 1024;
/// Surrounding whitespace and line ends.
const LINE_ENDS_MAX: usize = 16;

/// `Debug` prints no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    pub header: HeaderName,
    pub source: CredentialSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// Marked as sensitive: neither printed nor put into HTTP/2's shared header table.
    Known(HeaderValue),
    /// Holds only the value; relative to the program's working folder.
    File(PathBuf),
}

/// Gives credentials that are issued for a while, by an authorization server or a program.
#[async_trait]
pub(crate) trait CredentialIssuer: fmt::Debug + Send + Sync {
    /// The value of `Authorization` for a client's requests. Bounded in time; cancel safe. A fault says that nothing was sent.
    async fn header(&self, client: &ClientCredential) -> Result<HeaderValue, GatewayFault>;

    fn last_cause(&self) -> Option<String>;

    /// Another value after the server refused this one; `None` if there is none.
    async fn after_refusal(&self, client: &ClientCredential, refused: &HeaderValue) -> Option<HeaderValue>;

    fn is_per_client(&self) -> bool;
}

/// Never prints the file's content.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: SecretFileError },
    #[error("{}: holds no value of a header; write one line of visible ASCII", .path.display())]
    Content { path: PathBuf },
    #[error("{}: holds no password of a client; write one line of text", .path.display())]
    Secret { path: PathBuf },
}

/// `None` for an invalid text. Surrounding whitespace is removed.
pub fn secret_value(text: &str) -> Option<HeaderValue> {
    let text = text.trim();
    let fits = (1..=CREDENTIAL_LEN_MAX).contains(&text.len()) && text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let mut value = HeaderValue::from_str(text).ok().filter(|_| fits)?;
    value.set_sensitive(true);
    Some(value)
}

impl Credential {
    pub fn file(&self) -> Option<&Path> {
        if let CredentialSource::File(path) = &self.source { Some(path) } else { None }
    }

    /// The header, from its file if it is in one. Fails if others than the owner may read it, or it is invalid (B168).
    pub fn read(&self) -> Result<(HeaderName, HeaderValue), CredentialError> {
        let value = match &self.source {
            CredentialSource::Known(value) => value.clone(),
            CredentialSource::File(path) => read_file(path)?,
        };
        Ok((self.header.clone(), value))
    }
}

fn read_file(path: &Path) -> Result<HeaderValue, CredentialError> {
    let held = secret_file::read(path, "credential", CREDENTIAL_LEN_MAX + LINE_ENDS_MAX);
    let held = held.map_err(|source| CredentialError::File { path: path.to_owned(), source })?;
    let content = || CredentialError::Content { path: path.to_owned() };
    std::str::from_utf8(&held).ok().and_then(secret_value).ok_or_else(content)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// B168, SEC-12.
    #[test]
    fn b168_a_credential_file_is_its_owners_alone_and_holds_one_line() {
        let folder = tempfile::tempdir().unwrap();
        for (content, mode, expected) in [
            ("Bearer s3cr3t\n", 0o600, "fine"),
            ("Bearer s3cr3t", 0o400, "fine"),
            ("Bearer s3cr3t", 0o640, "others than its owner may use it (mode 0640)"),
            ("Bearer s3cr3t", 0o604, "others than its owner may use it (mode 0604)"),
            ("Bearer s3cr3t\nX-Other: 1\n", 0o600, "holds no value of a header"),
            ("Bearer s3cr3t\u{e4}", 0o600, "holds no value of a header"),
            ("\n", 0o600, "holds no value of a header"),
            ("", 0o600, "holds no value of a header"),
        ] {
            let path = folder.path().join("token");
            let _ = fs::remove_file(&path);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let credential =
                Credential { header: http::header::AUTHORIZATION, source: CredentialSource::File(path.clone()) };
            let read = credential.read();
            let found = read.as_ref().map_or_else(ToString::to_string, |_| "fine".to_owned());
            assert!(found.contains(expected), "{content:?}: {found}");
            assert!(!format!("{credential:?} {read:?} {found}").contains("s3cr3t"), "{found}");
        }
        let missing =
            Credential { header: http::header::AUTHORIZATION, source: CredentialSource::File("/nowhere".into()) };
        assert!(missing.read().unwrap_err().to_string().contains("cannot be read"));
    }
}
