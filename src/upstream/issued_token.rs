//! Reads a token that an authorization server or a program issued. A failure's text quotes no part of the answer.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use serde_json::{Map, Value};

use super::document::{DocumentError, FormAnswer};
use crate::task::{Reason, Timestamp};
use crate::wire::{Payload, ScanLimits};

/// The longest token; servers refuse heads that are much longer.
const TOKEN_BYTES_MAX: usize = 8 * 1024 - "Bearer ".len();
/// How long a token is used if its issuer states no lifetime.
const LIFETIME_UNKNOWN: Duration = Duration::from_secs(300);
/// The longest use of a token, even if it is valid for longer.
const LIFETIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest error code of an authorization server that is logged.
const CODE_LEN_MAX: usize = 64;

/// A token, and for how long it is valid from now on.
#[derive(Clone)]
pub(super) struct IssuedToken {
    /// The value of `Authorization`, marked as sensitive.
    pub(super) header: HeaderValue,
    pub(super) lifetime: Duration,
}

debug_members!(IssuedToken, |token| lifetime: token.lifetime);

/// Why there is no token: a reason for clients, and a cause for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenFailure {
    pub(super) reason: Reason,
    pub(super) cause: Cow<'static, str>,
    pub(super) retry_after: Option<Duration>,
}

impl TokenFailure {
    pub(super) fn new(reason: Reason, cause: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, cause: cause.into(), retry_after: None }
    }

    fn malformed(cause: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::CredentialMalformed, cause)
    }

    /// The same, with the step that failed.
    pub(super) fn in_step(self, step: &str) -> Self {
        Self { cause: format!("{step}: {}", self.cause).into(), ..self }
    }
}

impl From<DocumentError> for TokenFailure {
    fn from(error: DocumentError) -> Self {
        let reason = match error {
            DocumentError::Redirected(_) | DocumentError::Unreadable(_) => Reason::CredentialMalformed,
            DocumentError::Missing(_)
            | DocumentError::Status(_)
            | DocumentError::Private
            | DocumentError::Unreachable(_) => Reason::CredentialUnavailable,
        };
        Self::new(reason, format!("the token endpoint's answer: {error}"))
    }
}

/// The token in the answer of a token endpoint (RFC 6749, 5).
pub(super) fn of_answer(answer: &FormAnswer) -> Result<IssuedToken, TokenFailure> {
    let answer = granted(answer)?;
    check_token_type(&answer, "Bearer")?;
    if answer.get("issued_token_type").is_some_and(|kind| !matches!(token_kind(kind), Some("access_token" | "jwt"))) {
        return Err(TokenFailure::malformed("the token endpoint issued no access token (`issued_token_type`)"));
    }
    let header = answer.get("access_token").and_then(Value::as_str).and_then(bearer).ok_or_else(no_access_token)?;
    let lifetime = answer.get("expires_in").map_or(Some(LIFETIME_UNKNOWN), seconds);
    let wrong = || TokenFailure::malformed("the token endpoint's `expires_in` is not a positive number");
    Ok(IssuedToken { header, lifetime: lifetime.ok_or_else(wrong)? })
}

/// The identity assertion (ID-JAG) in the answer of an identity provider's token endpoint. An access token in its place is
/// refused: the assertion is sent to an authorization server of another company.
pub(super) fn assertion_of_answer(answer: &FormAnswer) -> Result<String, TokenFailure> {
    let answer = granted(answer)?;
    if answer.get("issued_token_type").and_then(token_kind) != Some("id-jag") {
        return Err(TokenFailure::malformed("the token endpoint issued no identity assertion (`issued_token_type`)"));
    }
    check_token_type(&answer, "N_A")?;
    let assertion = answer.get("access_token").and_then(Value::as_str).filter(|token| is_token(token));
    Ok(assertion.ok_or_else(no_access_token)?.to_owned())
}

/// The members of an answer that grants the request.
fn granted(answer: &FormAnswer) -> Result<Map<String, Value>, TokenFailure> {
    let status = answer.status;
    if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
        let cause = format!("the token endpoint answers with HTTP {}", status.as_u16());
        return Err(TokenFailure {
            retry_after: answer.retry_after,
            ..TokenFailure::new(Reason::CredentialUnavailable, cause)
        });
    }
    if status.is_client_error() {
        let code = object(&answer.text).and_then(|error| Some(error.get("error")?.as_str()?.to_owned()));
        let code = code.filter(|code| is_code(code)).unwrap_or_else(|| "no error code".to_owned());
        let cause = format!("the token endpoint refuses with HTTP {}: {code}", status.as_u16());
        return Err(TokenFailure::new(Reason::CredentialRefused, cause));
    }
    if status != StatusCode::OK {
        return Err(TokenFailure::malformed(format!("the token endpoint answers with HTTP {}", status.as_u16())));
    }
    let answer = object(&answer.text);
    answer.ok_or_else(|| TokenFailure::malformed("the token endpoint's answer is not a JSON object"))
}

fn check_token_type(answer: &Map<String, Value>, wanted: &str) -> Result<(), TokenFailure> {
    let kind = answer.get("token_type").and_then(Value::as_str);
    if kind.is_some_and(|kind| kind.eq_ignore_ascii_case(wanted)) {
        return Ok(());
    }
    Err(TokenFailure::malformed(format!("the token endpoint's answer has no `token_type` \"{wanted}\"")))
}

/// The last part of a token type's name (RFC 8693, 3).
fn token_kind(value: &Value) -> Option<&str> {
    value.as_str()?.strip_prefix("urn:ietf:params:oauth:token-type:")
}

fn no_access_token() -> TokenFailure {
    TokenFailure::malformed("the token endpoint's answer has no `access_token`")
}

/// The token in the output of a command: `{"token": "…", "expires": 3600}`, or a time in UTC as `expires`.
pub(super) fn of_output(text: &Bytes, now: Timestamp) -> Result<IssuedToken, TokenFailure> {
    let output = object(text).ok_or_else(|| TokenFailure::malformed("the command's output is not a JSON object"))?;
    let header = output.get("token").and_then(Value::as_str).and_then(bearer);
    let header = header.ok_or_else(|| TokenFailure::malformed("the command's output has no `token`"))?;
    let lifetime = match output.get("expires") {
        None => Some(LIFETIME_UNKNOWN),
        Some(Value::String(time)) => left_until(time, now),
        Some(span) => seconds(span),
    };
    let wrong = || TokenFailure::malformed("the command's `expires` is not a positive number or a later time in UTC");
    Ok(IssuedToken { header, lifetime: lifetime.ok_or_else(wrong)? })
}

fn object(text: &Bytes) -> Option<Map<String, Value>> {
    Payload::parse(text, ScanLimits::CLIENT).ok()?.read().ok()
}

/// Whether a text is visible ASCII without blanks, as a token in a header.
fn is_token(text: &str) -> bool {
    (1..=TOKEN_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok().filter(|_| is_token(token))?;
    value.set_sensitive(true);
    Some(value)
}

fn seconds(value: &Value) -> Option<Duration> {
    let seconds = value.as_f64().filter(|seconds| *seconds > 0.0)?;
    Some(Duration::from_secs_f64(seconds.min(LIFETIME_MAX.as_secs_f64())))
}

fn left_until(time: &str, now: Timestamp) -> Option<Duration> {
    let utc = time.strip_suffix("+00:00").map_or_else(|| time.to_owned(), |time| format!("{time}Z"));
    let since = humantime::parse_rfc3339(&utc).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    let left = since.checked_sub(Duration::from_millis(now.as_millis()))?;
    (!left.is_zero()).then_some(left.min(LIFETIME_MAX))
}

/// Whether a text has the form of the standards' error codes, which cannot hold a secret.
fn is_code(text: &str) -> bool {
    (1..=CODE_LEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "canary-5c1e";

    #[track_caller]
    fn check(status: u16, text: &str, expected: Result<u64, (Reason, &str)>) {
        let answer = FormAnswer {
            status: StatusCode::from_u16(status).unwrap(),
            retry_after: None,
            text: Bytes::copy_from_slice(text.as_bytes()),
        };
        let read = of_answer(&answer);
        assert!(!format!("{read:?}").contains(CANARY), "{read:?}");
        match (read, expected) {
            (Ok(token), Ok(seconds)) => {
                assert_eq!(token.header, format!("Bearer {CANARY}").as_str(), "{text}");
                assert_eq!(token.lifetime, Duration::from_secs(seconds), "{text}");
            }
            (Err(failure), Err((reason, cause))) => {
                assert_eq!((failure.reason, failure.cause.contains(cause)), (reason, true), "{text}: {failure:?}");
            }
            (read, expected) => panic!("{text}: {read:?}, not {expected:?}"),
        }
    }

    #[test]
    fn an_answer_is_a_bearer_token_or_a_cause_without_secrets() {
        use Reason::{
            CredentialMalformed as Malformed, CredentialRefused as Refused, CredentialUnavailable as Unavailable,
        };
        let token = |more: &str| format!(r#"{{"access_token":"{CANARY}","token_type":"Bearer"{more}}}"#);
        check(200, &token(r#","expires_in":3600"#), Ok(3600));
        check(200, &token(r#","expires_in":1.5e1,"scope":"a","x":null"#), Ok(15));
        check(200, &token(""), Ok(300));
        check(200, &token(r#","expires_in":1e300"#), Ok(86_400));
        check(200, &token("").replace("Bearer", "bearer"), Ok(300));
        check(200, &token(r#","issued_token_type":"urn:ietf:params:oauth:token-type:access_token""#), Ok(300));
        for (status, text, reason, cause) in [
            (200, token(r#","expires_in":"3600""#), Malformed, "`expires_in`"),
            (200, token(r#","expires_in":-1"#), Malformed, "`expires_in`"),
            (200, token(r#","expires_in":0"#), Malformed, "`expires_in`"),
            (200, token(r#","expires_in":null"#), Malformed, "`expires_in`"),
            (200, token(r#","expires_in":1e999"#), Malformed, "not a JSON object"),
            (200, token(r#","access_token":"another""#), Malformed, "not a JSON object"),
            (200, token(r#","issued_token_type":"urn:ietf:params:oauth:token-type:id_token""#), Malformed, "issued"),
            (200, token("").replace("Bearer", "DPoP"), Malformed, "`token_type`"),
            (200, format!(r#"{{"access_token":"{CANARY}"}}"#), Malformed, "`token_type`"),
            (200, r#"{"token_type":"Bearer"}"#.to_owned(), Malformed, "no `access_token`"),
            (200, r#"{"token_type":"Bearer","access_token":""}"#.to_owned(), Malformed, "no `access_token`"),
            (200, r#"{"token_type":"Bearer","access_token":["x"]}"#.to_owned(), Malformed, "no `access_token`"),
            (200, token("").replace("canary", "two words"), Malformed, "no `access_token`"),
            (200, token("").replace("canary", "line\\r\\nX-Other: 1"), Malformed, "no `access_token`"),
            (200, token("").replace("canary", &"x".repeat(9_000)), Malformed, "no `access_token`"),
            (200, format!("[{}]", token("")), Malformed, "not a JSON object"),
            (200, String::new(), Malformed, "not a JSON object"),
            (200, format!("<html>{CANARY}</html>"), Malformed, "not a JSON object"),
            (204, String::new(), Malformed, "HTTP 204"),
            (400, r#"{"error":"invalid_grant"}"#.to_owned(), Refused, "HTTP 400: invalid_grant"),
            (401, r#"{"error":"invalid_client"}"#.to_owned(), Refused, "HTTP 401: invalid_client"),
            (400, format!(r#"{{"error":"{CANARY}"}}"#), Refused, "no error code"),
            (400, format!(r#"{{"error":"invalid_target","error_description":"{CANARY}"}}"#), Refused, "invalid_target"),
            (404, format!("<html>{CANARY}"), Refused, "HTTP 404: no error code"),
            (429, String::new(), Unavailable, "HTTP 429"),
            (500, token(""), Unavailable, "HTTP 500"),
            (503, String::new(), Unavailable, "HTTP 503"),
        ] {
            check(status, &text, Err((reason, cause)));
        }
    }

    #[test]
    fn a_commands_output_has_a_token_and_perhaps_its_end() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        for (output, expected) in [
            (r#"{"token":"t","expires":60}"#, Ok(60)),
            (r#"{"token":"t"}"#, Ok(300)),
            ("\n {\"token\":\"t\",\"expires\":\"2027-01-15T08:01:00Z\"}\n", Ok(60)),
            (r#"{"token":"t","expires":"2027-01-15T08:01:00+00:00"}"#, Ok(60)),
            (r#"{"token":"t","expires":"2027-01-15T08:00:00Z"}"#, Err("`expires`")),
            (r#"{"token":"t","expires":"tomorrow"}"#, Err("`expires`")),
            (r#"{"token":"t","expires":-5}"#, Err("`expires`")),
            (r#"{"token":"t","expires":false}"#, Err("`expires`")),
            (r#"{"token":"two words"}"#, Err("no `token`")),
            (r#"{"access_token":"t"}"#, Err("no `token`")),
            ("t", Err("not a JSON object")),
            ("", Err("not a JSON object")),
            (r#"{"token":"t"}{"token":"u"}"#, Err("not a JSON object")),
        ] {
            let read = of_output(&Bytes::from_static(output.as_bytes()), now);
            match (read, expected) {
                (Ok(token), Ok(seconds)) => assert_eq!(token.lifetime, Duration::from_secs(seconds), "{output}"),
                (Err(failure), Err(cause)) => assert!(failure.cause.contains(cause), "{output}: {failure:?}"),
                (read, expected) => panic!("{output}: {read:?}, not {expected:?}"),
            }
        }
    }
}
