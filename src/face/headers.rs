//! Reads the headers of requests, which choose the face. A stateless request's headers must match its body (MOD-04 to
//! MOD-07), so that proxies route the request that the server executes.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderName};

use crate::dialect::RequestError;
use crate::dialect::negotiate::names_version;
pub use crate::upstream::header_annotations::{HeaderArgument, METHOD, NAME, naming_member, repeating};
use crate::wire::{Object, ProtocolVersion};

pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Fails with [`RequestError::Header`] if it occurs twice (B113), or is not of visible ASCII, spaces and tabs.
pub fn single<'a>(all: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, RequestError> {
    let mut values = all.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    match (first, second) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            value.to_str().map(|text| Some(text.trim_ascii())).map_err(|_| complaint(name, "is not plain text"))
        }
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

pub fn named_in<'p>(method: &str, params: Option<&'p Object>) -> Option<Cow<'p, str>> {
    params?.get_str(naming_member(method)?)
}

/// Compares `Mcp-Name` (MOD-06). On task methods it may be missing: FastMCP 4.1 never sends it there (T-15, EXT-53).
pub fn check_name(all: &HeaderMap, method: &str, named: Option<&str>) -> Result<(), RequestError> {
    let Some(member) = naming_member(method) else { return Ok(()) };
    let header = single(all, &NAME)?;
    let Some(header) = header else {
        return if member == "taskId" { Ok(()) } else { Err(complaint(&NAME, "is missing")) };
    };
    let header = decode(header).ok_or_else(|| complaint(&NAME, "is not validly encoded"))?;
    match named {
        Some(body) if body == header => Ok(()),
        // A missing member is a fault of the params, which are checked later.
        None => Ok(()),
        Some(_) => Err(complaint(&NAME, "differs from the body")),
    }
}

/// A value without `=?base64?…?=` is literal. `None` unless the content is canonical Base64 of UTF-8 (B114).
pub fn decode(value: &str) -> Option<Cow<'_, str>> {
    let Some(inside) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(Cow::Borrowed(value));
    };
    let bytes = STANDARD.decode(inside).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Compares `x-mcp-header` headers with arguments (MOD-06, MOD-07, T-74, B116); others are ignored (B76).
pub fn check_arguments(
    mirrored: &[HeaderArgument],
    all: &HeaderMap,
    arguments: Option<&Object>,
) -> Result<(), RequestError> {
    for one in mirrored {
        let complain = |what: &str| RequestError::Header(Cow::Owned(format!("{} {what}", one.header)));
        let header = single(all, &one.header)?;
        match (header, one.argument(arguments)) {
            (None, None) => (),
            (None, Some(_)) => return Err(complain("is missing")),
            (Some(_), None) => return Err(complain("is present, but its argument is missing")),
            (Some(header), Some(argument)) => {
                let header = decode(header).ok_or_else(|| complain("is not validly encoded"))?;
                if !one.agrees(&header, &argument) {
                    return Err(complain("differs from its argument"));
                }
                // Another server may end the text there (B81).
                if header.contains('\0') {
                    let what = format!("the argument of {} holds a null character", one.header);
                    return Err(RequestError::Params(Cow::Owned(what)));
                }
            }
        }
    }
    Ok(())
}

/// The face for a message: chosen by the body first, then by the header (GW-02).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// Per-request metadata, 2026-07-28.
    Stateless,
    /// An `initialize` handshake and a session, up to 2025-11-25.
    Session,
}

/// A version in `_meta` makes a request stateless; else the header decides: stripping one never changes the era (T-16).
pub fn face_of(params: Option<&Object>, all: &HeaderMap) -> Face {
    if names_version(params) || header_is_stateless(all) { Face::Stateless } else { Face::Session }
}

pub fn header_is_stateless(all: &HeaderMap) -> bool {
    single(all, &PROTOCOL_VERSION)
        .ok()
        .flatten()
        .and_then(ProtocolVersion::parse)
        .is_some_and(ProtocolVersion::is_stateless)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderValue;

    use super::*;
    use crate::upstream::header_annotations::{HeaderAnnotations, read};
    use crate::wire::{Payload, ScanLimits};

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

    fn payload(text: &str) -> Payload {
        Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::UPSTREAM).unwrap()
    }

    const SCHEMA: &str = r#"{"type":"object","properties":{
        "region":{"type":"string","x-mcp-header":"Region"},
        "deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"Count"}}},
        "dry":{"type":"boolean","x-mcp-header":"Dry"}}}"#;

    #[track_caller]
    fn check_call(header: &[(&'static str, &'static str)], arguments: &str, accepted: bool) {
        let HeaderAnnotations::Valid(mirrored) = read(&payload(SCHEMA)) else { panic!("the schema is valid") };
        let mut all = HeaderMap::new();
        for (name, value) in header {
            all.append(*name, HeaderValue::from_static(value));
        }
        let arguments = Object::of(&payload(arguments));
        assert_eq!(check_arguments(&mirrored, &all, arguments.as_ref()).is_ok(), accepted, "{header:?} {arguments:?}");
    }

    /// B113: in any head, for names in any case, and for fields apart from each other.
    #[test]
    fn a_single_field_is_the_one_that_a_lookup_by_name_finds() {
        for (others, values) in
            [0_usize, 1, 500].into_iter().flat_map(|others| (0..4).map(move |values| (others, values)))
        {
            let mut all = HeaderMap::new();
            for n in 0..others.max(values) {
                if n < values {
                    all.append(HeaderName::from_bytes(b"MCP-Name").unwrap(), HeaderValue::from(n));
                }
                if n < others {
                    all.append(HeaderName::try_from(format!("mcp-name-{n}")).unwrap(), HeaderValue::from(n));
                }
            }
            let found = single(&all, &NAME);
            assert_eq!(all.get_all(&NAME).iter().count(), values);
            match values {
                0 => assert_eq!(found.unwrap(), None),
                1 => assert_eq!(found.unwrap(), Some("0")),
                _ => assert!(found.is_err(), "{values} beside {others}"),
            }
        }
    }

    /// MOD-06, MOD-07, B76, B116.
    #[test]
    fn headers_must_repeat_the_arguments_that_are_there() {
        check_call(&[], "{}", true);
        check_call(&[], r#"{"region":null}"#, true);
        check_call(&[("mcp-param-region", "eu")], r#"{"region":"eu"}"#, true);
        check_call(&[("mcp-param-region", "=?base64?ZXU=?=")], r#"{"region":"eu"}"#, true);
        check_call(&[("mcp-param-region", "=?base64?ZXU?=")], r#"{"region":"eu"}"#, false);
        check_call(&[("mcp-param-region", "EU")], r#"{"region":"eu"}"#, false);
        check_call(&[], r#"{"region":"eu"}"#, false);
        check_call(&[("mcp-param-region", "eu")], "{}", false);
        check_call(&[("mcp-param-region", "eu"), ("mcp-param-region", "eu")], r#"{"region":"eu"}"#, false);
        check_call(&[("mcp-param-count", "7")], r#"{"deep":{"n":7}}"#, true);
        check_call(&[("mcp-param-count", "7")], r#"{"deep":{"n":7.0}}"#, true);
        check_call(&[("mcp-param-count", "8")], r#"{"deep":{"n":7}}"#, false);
        check_call(&[("mcp-param-dry", "true")], r#"{"dry":true}"#, true);
        check_call(&[("mcp-param-dry", "True")], r#"{"dry":true}"#, false);
        check_call(&[("mcp-param-other", "x")], "{}", true);
    }

    #[track_caller]
    fn check_face(params: &str, header: Option<&'static str>, face: Face) {
        let payload = payload(params);
        let mut all = HeaderMap::new();
        if let Some(value) = header {
            all.insert(PROTOCOL_VERSION, HeaderValue::from_static(value));
        }
        assert_eq!(face_of(Object::of(&payload).as_ref(), &all), face, "{params} {header:?}");
    }

    /// T-16, T-17, GW-02.
    #[test]
    fn the_body_decides_and_the_header_speaks_only_where_it_is_silent() {
        let stateless = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        check_face(stateless, None, Face::Stateless);
        check_face(stateless, Some("2025-11-25"), Face::Stateless);
        check_face(r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"v999"}}"#, None, Face::Stateless);
        check_face(r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2025-11-25"}}"#, None, Face::Stateless);
        check_face("{}", Some("2026-07-28"), Face::Stateless);
        check_face("{}", Some("2025-11-25"), Face::Session);
        check_face(r#"{"_meta":{"progressToken":1}}"#, None, Face::Session);
        check_face("{}", None, Face::Session);
    }
}
