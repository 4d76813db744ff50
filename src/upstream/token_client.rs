//! Sends requests to an authorization server as its client, with the gateway's id and password (RFC 6749, 2.3.1).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::HeaderValue;
use url::{Url, form_urlencoded};

use super::document::{DocumentError, FormAnswer, IssuerConnections};
use super::outgoing::SecretForm;
use super::transport::credential::CredentialError;
use crate::secret_file;

/// Largest answer of a token or introspection endpoint.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;
pub const SECRET_BYTES_MAX: usize = 4 << 10;

/// The gateway as a client of an authorization server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenClientSettings {
    /// The token or introspection endpoint.
    pub url: Url,
    pub id: String,
    pub secret: ClientSecret,
    pub sends: SecretCarriage,
}

/// Where a client sends its password (RFC 6749, 2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretCarriage {
    /// `client_secret_basic`: in `Authorization`.
    Basic,
    /// `client_secret_post`: in the form.
    Post,
}

#[derive(Clone, PartialEq, Eq)]
pub enum ClientSecret {
    Known(String),
    /// Holds one line; relative to the program's working folder.
    File(PathBuf),
}

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(_) => f.write_str("***"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Whether a text can be a client's password: one line.
pub fn is_client_secret(text: &str) -> bool {
    (1..=SECRET_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

impl TokenClientSettings {
    pub fn file(&self) -> Option<&Path> {
        if let ClientSecret::File(path) = &self.secret { Some(path) } else { None }
    }

    /// The connections to the endpoint, for [`TokenClientSettings::over`].
    pub(crate) fn connections(&self) -> Arc<IssuerConnections> {
        Arc::new(IssuerConnections::new(Arc::from(format!("issuer {}", self.url.host_str().unwrap_or("-")))))
    }

    /// The client, with its password. Fails if other users than the owner may read the file, or it holds no password.
    pub fn read(&self) -> Result<TokenClient, CredentialError> {
        self.over(&self.connections())
    }

    /// As [`TokenClientSettings::read`], over connections that outlive the client: its password may change.
    pub(crate) fn over(&self, connections: &Arc<IssuerConnections>) -> Result<TokenClient, CredentialError> {
        let secret = match &self.secret {
            ClientSecret::Known(secret) => secret.clone(),
            ClientSecret::File(path) => read_file(path)?,
        };
        let login = match self.sends {
            SecretCarriage::Basic => ClientAuthentication::Header(basic(&self.id, &secret)),
            SecretCarriage::Post => ClientAuthentication::Fields { id: self.id.clone(), secret },
        };
        Ok(TokenClient { connections: Arc::clone(connections), url: self.url.clone(), login })
    }
}

/// Id and password are encoded as in a form before they are joined.
fn basic(id: &str, secret: &str) -> HeaderValue {
    let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let pair = BASE64_STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)));
    let mut authorization = HeaderValue::try_from(format!("Basic {pair}")).expect("base64 is a header's value");
    authorization.set_sensitive(true);
    authorization
}

fn read_file(path: &Path) -> Result<String, CredentialError> {
    let held = secret_file::read(path, "password", SECRET_BYTES_MAX);
    let held = held.map_err(|source| CredentialError::File { path: path.to_owned(), source })?;
    let text = String::from_utf8(held).ok().map(|text| text.trim().to_owned());
    text.filter(|text| is_client_secret(text)).ok_or_else(|| CredentialError::Secret { path: path.to_owned() })
}

#[derive(Clone, Debug)]
pub struct TokenClient {
    connections: Arc<IssuerConnections>,
    url: Url,
    login: ClientAuthentication,
}

/// A client's proof of its identity. `Debug` prints no password.
#[derive(Clone)]
enum ClientAuthentication {
    Header(HeaderValue),
    Fields { id: String, secret: String },
}

debug_members!(ClientAuthentication);

impl TokenClient {
    fn form(&self, fields: &[(&str, &str)]) -> SecretForm {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.extend_pairs(fields);
        let authorization = match &self.login {
            ClientAuthentication::Header(authorization) => Some(authorization.clone()),
            ClientAuthentication::Fields { id, secret } => {
                form.append_pair("client_id", id).append_pair("client_secret", secret);
                None
            }
        };
        SecretForm { fields: Bytes::from(form.finish()), authorization }
    }

    /// Sends a form; any status but a redirect is an answer. Bounded in bytes and time. Cancel safe.
    pub(crate) async fn ask(&self, fields: &[(&str, &str)]) -> Result<FormAnswer, DocumentError> {
        let form = self.form(fields);
        self.connections.ask(&self.url, form, ANSWER_BYTES_MAX).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_encoded_and_never_shown() {
        let url = Url::parse("https://login.example/token").unwrap();
        let secret = ClientSecret::Known("s3cret: +/%".to_owned());
        let expected = BASE64_STANDARD.encode("task+gate:s3cret%3A+%2B%2F%25");
        for sends in [SecretCarriage::Basic, SecretCarriage::Post] {
            let (url, secret) = (url.clone(), secret.clone());
            let settings = TokenClientSettings { url, id: "task gate".to_owned(), secret, sends };
            let client = settings.read().unwrap();
            match (sends, &client.login) {
                (SecretCarriage::Basic, ClientAuthentication::Header(value)) => {
                    assert_eq!(value, &format!("Basic {expected}"))
                }
                (SecretCarriage::Post, ClientAuthentication::Fields { id, secret }) => {
                    assert_eq!((id.as_str(), secret.as_str()), ("task gate", "s3cret: +/%"));
                }
                (_, other) => panic!("{sends:?} {other:?}"),
            }
            let shown = format!("{settings:?} {client:?}");
            assert!(!shown.contains("s3cret") && !shown.contains(&expected), "{shown}");
        }
    }
}
