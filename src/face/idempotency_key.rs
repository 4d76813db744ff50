//! Reads a call's idempotency key: the header `Idempotency-Key`, or `io.taskgate/idempotency-key` in `_meta`. Only
//! digests of the key and of the call are stored.

use std::borrow::Cow;
use std::sync::LazyLock;

use http::{HeaderMap, HeaderName};
use memchr::memmem::Finder;

use crate::dialect::RequestError;
use crate::task::digest::digest;
use crate::task::{Idempotency, Principal};
use crate::wire::canonical::canonical;
use crate::wire::envelope::Request;
use crate::wire::meta::{IDEMPOTENCY_KEY, META};
use crate::wire::{Object, Payload};

pub const HEADER: HeaderName = HeaderName::from_static("idempotency-key");

pub const KEY_BYTES_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdempotencyScope {
    /// A key is unique for its principal in any session.
    Principals,
    /// A key is unique in one session, by its nonce: an anonymous client shares all else with others.
    Sessions(u128),
    /// The client cannot be distinguished from others, so it may use no key.
    Unidentified,
}

impl IdempotencyScope {
    pub fn of(principal: &Principal, session: Option<u128>) -> Self {
        match session {
            _ if principal.is_identified() => Self::Principals,
            Some(nonce) => Self::Sessions(nonce),
            None => Self::Unidentified,
        }
    }
}

/// Digests of key and call, if there is a key. Absent arguments equal empty ones. Fails if it is not 1 to
/// [`KEY_BYTES_MAX`] visible ASCII bytes, or differs in `_meta`; also without an identified client, which might get
/// others' tasks.
pub fn read(
    headers: &HeaderMap,
    params: &Object,
    names: IdempotencyScope,
    upstream: &str,
    tool: &str,
) -> Result<Option<Idempotency>, RequestError> {
    if !is_given(headers, params) {
        return Ok(None);
    }
    let Some(key) = key(headers, params)? else { return Ok(None) };
    let key = match names {
        IdempotencyScope::Principals => digest([key.as_bytes()]),
        IdempotencyScope::Sessions(nonce) => digest([key.as_bytes(), &nonce.to_be_bytes()]),
        IdempotencyScope::Unidentified => {
            return Err(wrong("is not accepted from an unidentified client; use a credential or a session"));
        }
    };
    let arguments = params.get("arguments").unwrap_or_else(Payload::empty_object);
    let call = digest([upstream.as_bytes(), tool.as_bytes(), &canonical(&arguments)]);
    Ok(Some(Idempotency { key, call }))
}

/// Cheap without a key: `_meta` is not parsed.
pub(super) fn is_given(headers: &HeaderMap, params: &Object) -> bool {
    headers.contains_key(HEADER) || is_in_params(params)
}

fn is_in_params(params: &Object) -> bool {
    static NAME: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("idempotency-key"));
    let is_in = |meta: Payload| {
        let text = meta.bytes();
        // Any letter of the name may be escaped.
        let may_be_in = NAME.find(text).is_some() || memchr::memchr(b'\\', text).is_some();
        may_be_in && Object::of(&meta).is_some_and(|meta| meta.contains(IDEMPOTENCY_KEY))
    };
    params.get(META).is_some_and(is_in)
}

pub(super) fn is_in_request(headers: &HeaderMap, request: &Request) -> bool {
    request.params.object().is_some_and(|params| is_given(headers, params))
}

pub(super) fn is_in_message(request: &Request) -> bool {
    request.params.object().is_some_and(is_in_params)
}

pub(super) fn header_alone(headers: &HeaderMap) -> HeaderMap {
    headers.get_all(HEADER).iter().map(|value| (HEADER, value.clone())).collect()
}

pub(super) fn not_from_the_first_request() -> RequestError {
    wrong("is missing in the call's first request; send it there, not only with the answers to its questions")
}

pub(super) fn of_an_array() -> RequestError {
    wrong("in the header cannot apply to an array; write io.taskgate/idempotency-key in each call's _meta")
}

/// The endpoint would ask several servers in turn.
pub(super) fn of_an_unlisted_tool() -> RequestError {
    wrong("is not accepted for an unlisted tool")
}

fn key(headers: &HeaderMap, params: &Object) -> Result<Option<String>, RequestError> {
    let mut fields = headers.get_all(HEADER).iter();
    let field = match (fields.next(), fields.next()) {
        (None, _) => None,
        (Some(field), None) => Some(check(field.as_bytes())?),
        (Some(_), Some(_)) => return Err(wrong("is present more than once")),
    };
    let member = params.get_object(META).and_then(|meta| meta.get(IDEMPOTENCY_KEY));
    let read = |member: Payload| {
        let text = member.read::<Cow<'_, str>>().map_err(|_| wrong("must be a string"))?;
        check(text.as_bytes())
    };
    let member = member.map(read).transpose()?;
    match (field, member) {
        (Some(field), Some(member)) if field != member => Err(wrong("differs between the header and _meta")),
        (field, member) => Ok(field.or(member)),
    }
}

fn check(key: &[u8]) -> Result<String, RequestError> {
    let fits = (1..=KEY_BYTES_MAX).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic);
    match std::str::from_utf8(key) {
        Ok(key) if fits => Ok(key.to_owned()),
        Ok(_) | Err(_) => Err(wrong("must be 1 to 256 visible ASCII characters")),
    }
}

fn wrong(what: &str) -> RequestError {
    RequestError::Params(Cow::Owned(format!("the idempotency key {what}")))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderValue;

    use super::*;
    use crate::wire::ScanLimits;

    fn params(text: &str) -> Object {
        Object::of(&Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).unwrap()).unwrap()
    }

    fn header(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (HEADER, HeaderValue::from_bytes(value.as_bytes()).unwrap())).collect()
    }

    fn named(values: &[&str], text: &str) -> Result<Option<Idempotency>, RequestError> {
        read(&header(values), &params(text), IdempotencyScope::Principals, "up", "work")
    }

    #[test]
    fn header_and_metadata_name_a_call_alike() {
        let by_header = named(&["k-1"], r#"{"arguments":{"a":1,"b":[]}}"#).unwrap().unwrap();
        let meta = r#"{"_meta":{"io.taskgate/idempotency-key":"k-1"},"arguments":{ "b":[ ],"\u0061":1}}"#;
        assert_eq!(named(&[], meta), Ok(Some(by_header)));
        assert_eq!(named(&["k-1"], meta), Ok(Some(by_header)));
        assert_eq!(named(&[], r#"{"arguments":{}}"#), Ok(None));
        assert_eq!(named(&["k"], "{}"), named(&["k"], r#"{"arguments":{}}"#));
        let escaped = r#"{"_meta":{"io.taskgate\/idempotency\u002dkey":"k-1"},"arguments":{"a":1,"b":[]}}"#;
        assert_eq!(named(&[], escaped), Ok(Some(by_header)));
        let given = |text| is_given(&HeaderMap::new(), &params(text));
        for (text, is_given) in [(escaped, true), (r#"{"_meta":{"progressToken":"a\\b"}}"#, false), ("{}", false)] {
            assert_eq!(given(text), is_given, "{text}");
        }
    }

    #[test]
    fn another_key_upstream_tool_or_argument_has_another_digest() {
        let one = named(&["k"], r#"{"arguments":{"a":1}}"#).unwrap().unwrap();
        for (values, text) in [(["l"], r#"{"arguments":{"a":1}}"#), (["k"], r#"{"arguments":{"a":1.0}}"#)] {
            assert_ne!(named(&values, text).unwrap().unwrap(), one, "{text}");
        }
        for (upstream, tool) in [("up", "other"), ("other", "work"), ("upw", "ork")] {
            let params = params(r#"{"arguments":{"a":1}}"#);
            let other = read(&header(&["k"]), &params, IdempotencyScope::Principals, upstream, tool).unwrap().unwrap();
            assert_eq!(other.key, one.key);
            assert_ne!(other.call, one.call, "{upstream} {tool}");
        }
    }

    #[test]
    fn anonymous_clients_share_no_key() {
        let of = |principal: &Principal, session| {
            read(&header(&["1"]), &params("{}"), IdempotencyScope::of(principal, session), "up", "work")
        };
        let (ada, nobody) = (Principal::new("key:ada"), Principal::anonymous());
        let key = |named: Result<Option<Idempotency>, RequestError>| named.unwrap().unwrap().key;
        assert_eq!(key(of(&ada, None)), key(of(&ada, Some(7))), "hers in every session");
        assert_eq!(key(of(&nobody, Some(7))), key(of(&nobody, Some(7))));
        assert_ne!(key(of(&nobody, Some(7))), key(of(&nobody, Some(8))));
        assert_ne!(key(of(&nobody, Some(7))), key(of(&ada, Some(7))));
        assert!(matches!(of(&nobody, None), Err(RequestError::Params(_))));
        let unnamed = read(&header(&[]), &params("{}"), IdempotencyScope::Unidentified, "up", "work");
        assert_eq!(unnamed, Ok(None), "a request without a key is not refused");
    }

    #[test]
    fn invalid_keys_are_refused() {
        let long = "k".repeat(KEY_BYTES_MAX + 1);
        assert!(named(&[&long[1..]], "{}").is_ok());
        for values in [&[""] as &[&str], &["a b"], &[&long], &["\u{e9}"], &["a", "a"]] {
            assert!(matches!(named(values, "{}"), Err(RequestError::Params(_))), "{values:?}");
        }
        for key in ["1", "null", r#""""#, r#""a b""#, r#""\u0000""#, "{}"] {
            let text = format!(r#"{{"_meta":{{"io.taskgate/idempotency-key":{key}}}}}"#);
            assert!(matches!(named(&[], &text), Err(RequestError::Params(_))), "{key}");
        }
        let other = r#"{"_meta":{"io.taskgate/idempotency-key":"b"}}"#;
        assert!(matches!(named(&["a"], other), Err(RequestError::Params(_))));
    }
}
