//! Chooses the face for a message: by the body first, then by the header (GW-02).

use http::HeaderMap;

use super::headers;
use crate::dialect::negotiate::names_version;
use crate::wire::{Object, ProtocolVersion};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// Per-request metadata, 2026-07-28.
    Stateless,
    /// An `initialize` handshake and a session, up to 2025-11-25.
    Session,
}

/// A version in `_meta` makes a request stateless; else the header decides. A proxy that strips a header never changes
/// the era (T-16).
#[must_use]
pub fn face_of(params: Option<&Object>, all: &HeaderMap) -> Face {
    if names_version(params) || header_is_stateless(all) { Face::Stateless } else { Face::Session }
}

#[must_use]
pub fn header_is_stateless(all: &HeaderMap) -> bool {
    headers::single(all, &headers::PROTOCOL_VERSION)
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
    use crate::wire::{Payload, ScanLimits};

    #[track_caller]
    fn check(params: &str, header: Option<&'static str>, face: Face) {
        let payload = Payload::parse(&Bytes::copy_from_slice(params.as_bytes()), ScanLimits::CLIENT).unwrap();
        let mut all = HeaderMap::new();
        if let Some(value) = header {
            all.insert(headers::PROTOCOL_VERSION, HeaderValue::from_static(value));
        }
        assert_eq!(face_of(Object::of(&payload).as_ref(), &all), face, "{params} {header:?}");
    }

    /// T-16, T-17, GW-02.
    #[test]
    fn the_body_decides_and_the_header_speaks_only_where_it_is_silent() {
        let stateless = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        check(stateless, None, Face::Stateless);
        check(stateless, Some("2025-11-25"), Face::Stateless);
        check(r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"v999"}}"#, None, Face::Stateless);
        check(r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2025-11-25"}}"#, None, Face::Stateless);
        check("{}", Some("2026-07-28"), Face::Stateless);
        check("{}", Some("2025-11-25"), Face::Session);
        check(r#"{"_meta":{"progressToken":1}}"#, None, Face::Session);
        check("{}", None, Face::Session);
    }
}
