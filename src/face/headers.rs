//! Compares a stateless request's headers with its body (MOD-04 to MOD-07): the routed request must be the executed
//! one.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderName};

use crate::dialect::RequestError;
use crate::wire::{Object, method};

pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub const METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub const NAME: HeaderName = HeaderName::from_static("mcp-name");
pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// # Errors
/// [`RequestError::Header`] if it occurs twice (B113), or has characters beside visible ASCII, spaces and tabs.
pub fn single<'a>(all: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, RequestError> {
    let mut values = all.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    match (first, second) {
        (None, _) => Ok(None),
        (Some(value), None) => value
            .to_str()
            .map(|text| Some(text.trim_matches([' ', '\t'])))
            .map_err(|_| complaint(name, "is not plain text")),
        (Some(_), Some(_)) => Err(complaint(name, "is present more than once")),
    }
}

fn complaint(name: &HeaderName, what: &str) -> RequestError {
    RequestError::Header(Cow::Owned(format!("{name} {what}")))
}

/// Compares `MCP-Protocol-Version` and `Mcp-Method` with the body (MOD-04, MOD-05, T-16).
pub fn check_request(all: &HeaderMap, version: &str, method: &str) -> Result<(), RequestError> {
    require(single(all, &PROTOCOL_VERSION)?, version, &PROTOCOL_VERSION)?;
    require(single(all, &METHOD)?, method, &METHOD)
}

fn require(header: Option<&str>, body: &str, name: &HeaderName) -> Result<(), RequestError> {
    match header {
        Some(value) if value == body => Ok(()),
        Some(_) => Err(complaint(name, "differs from the body")),
        None => Err(complaint(name, "is missing")),
    }
}

/// Compares `Mcp-Name` (MOD-06). On task methods it may be missing: FastMCP 4.1 never sends it there (T-15, EXT-53).
pub fn check_name(all: &HeaderMap, method: &str, params: Option<&Object>) -> Result<(), RequestError> {
    let Some(member) = naming_member(method) else { return Ok(()) };
    let header = single(all, &NAME)?;
    let Some(header) = header else {
        return if member == "taskId" { Ok(()) } else { Err(complaint(&NAME, "is missing")) };
    };
    let header = decode(header).ok_or_else(|| complaint(&NAME, "is not validly encoded"))?;
    match params.and_then(|params| params.get_str(member)) {
        Some(body) if body == header => Ok(()),
        // A missing member is a fault of the params, which are checked later.
        None => Ok(()),
        Some(_) => Err(complaint(&NAME, "differs from the body")),
    }
}

#[must_use]
pub fn naming_member(method: &str) -> Option<&'static str> {
    match method {
        method::TOOLS_CALL | method::PROMPTS_GET => Some("name"),
        method::RESOURCES_READ => Some("uri"),
        method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL => Some("taskId"),
        _ => None,
    }
}

/// A value without `=?base64?…?=` is literal. `None` unless the content is canonical Base64 of UTF-8 (B114).
#[must_use]
pub fn decode(value: &str) -> Option<Cow<'_, str>> {
    let Some(inside) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(Cow::Borrowed(value));
    };
    let bytes = STANDARD.decode(inside).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B112, B114, B115, MOD-07.
    #[test]
    fn header_values_are_decoded_only_inside_the_whole_sentinel() {
        for (value, decoded) in [
            ("plain", Some("plain")),
            ("=?base64?SGVsbG8=?=", Some("Hello")),
            ("=?base64?SGVsbG8?=", None),
            ("=?base64?SGVs!!!bG8=?=", None),
            ("=?base64?/w==?=", None),
            ("=?base64?SGVsbG9=?=", None),
            ("=?base64?SGVsbG8=", Some("=?base64?SGVsbG8=")),
            ("=?BASE64?SGVsbG8=?=", Some("=?BASE64?SGVsbG8=?=")),
            ("SGVsbG8=", Some("SGVsbG8=")),
            ("=?base64??=", Some("")),
        ] {
            assert_eq!(decode(value).as_deref(), decoded, "{value}");
        }
    }
}
