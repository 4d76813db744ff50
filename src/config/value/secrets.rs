//! Reads secrets and their places: keys, passwords, headers with credentials.

use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use jsonwebtoken::Algorithm;

use super::{StringFormat, ValueError};
use crate::server::api_keys::{ApiKey, ApiKeyError, KEY_HEADER};
use crate::server::tokens::settings::signature_algorithm;
use crate::upstream::forwarding::may_be_forwarded;
use crate::upstream::token_client::is_client_secret;
use crate::upstream::transport::credential::secret_value;

pub(in crate::config) const FORWARDED_HEADER: StringFormat<HeaderName> =
    StringFormat { wanted: "the name of a header such as \"x-request-id\"", read: forwarded_header };
pub(in crate::config) const CREDENTIAL_HEADER: StringFormat<HeaderName> =
    StringFormat { wanted: "the name of a header such as \"X-Api-Key\"", read: credential_header };
/// A secret. Errors do not repeat it.
pub(in crate::config) const SECRET: StringFormat<HeaderValue> =
    StringFormat { wanted: "a secret such as \"Bearer ${TOKEN}\"", read: secret };
/// The gateway's password at an authorization server. Errors do not repeat it.
pub(in crate::config) const CLIENT_SECRET: StringFormat<String> =
    StringFormat { wanted: "a password such as \"${TASKGATE_SECRET}\"", read: client_secret };
/// A client's key. Errors do not repeat it.
pub(in crate::config) const API_KEY: StringFormat<ApiKey> =
    StringFormat { wanted: "a key such as \"${ADA_KEY}\"", read: api_key };
pub(in crate::config) const API_KEY_DIGEST: StringFormat<ApiKey> =
    StringFormat { wanted: "the ID of a key, a colon, and the SHA-256 of the whole key in hex", read: api_key_digest };
pub(in crate::config) const ALGORITHM: StringFormat<Algorithm> =
    StringFormat { wanted: "an algorithm such as \"ES256\"", read: algorithm };

fn forwarded_header(text: &str) -> Result<HeaderName, ValueError> {
    let name = HeaderName::try_from(text).map_err(|_| ValueError::Form)?;
    match may_be_forwarded(&name) {
        true => Ok(name),
        false if name == AUTHORIZATION => {
            Err(ValueError::Because("is forwarded only with `forward_authorization = true`; leave it out here"))
        }
        false if name == KEY_HEADER => {
            Err(ValueError::Because("carries clients' keys of this gateway, which no server gets; leave it out"))
        }
        false => {
            Err(ValueError::Because("is never forwarded: it is a credential, or belongs to one connection or to MCP"))
        }
    }
}

fn credential_header(text: &str) -> Result<HeaderName, ValueError> {
    let name = HeaderName::try_from(text).map_err(|_| ValueError::Form)?;
    let is_credential = matches!(name.as_str(), "authorization" | "cookie" | "proxy-authorization");
    // The upstream may be another gateway.
    let is_fit = may_be_forwarded(&name) || is_credential || name == KEY_HEADER;
    if is_fit {
        Ok(name)
    } else {
        Err(ValueError::Because("belongs to a connection or to MCP; no server takes it as a credential"))
    }
}

pub fn is_credential_header(name: &str) -> bool {
    credential_header(name).is_ok()
}

fn secret(text: &str) -> Result<HeaderValue, ValueError> {
    secret_value(text)
        .ok_or(ValueError::Because("is no value of a header; write one line of visible ASCII, at most 8KiB"))
}

fn client_secret(text: &str) -> Result<String, ValueError> {
    match is_client_secret(text) {
        true => Ok(text.to_owned()),
        false => Err(ValueError::Because("is no password of a client; write one line of text, at most 4KiB")),
    }
}

fn api_key(text: &str) -> Result<ApiKey, ValueError> {
    ApiKey::read(text).map_err(because)
}

fn api_key_digest(text: &str) -> Result<ApiKey, ValueError> {
    ApiKey::read_digest(text).map_err(because)
}

fn because(error: ApiKeyError) -> ValueError {
    ValueError::Because(error.explanation())
}

fn algorithm(text: &str) -> Result<Algorithm, ValueError> {
    signature_algorithm(text).ok_or(ValueError::Because(
        "is no algorithm with a public key; write RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA",
    ))
}
