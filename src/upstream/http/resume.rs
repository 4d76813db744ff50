//! What a call over HTTP leaves behind so that another process life can take it up.

use std::time::Duration;

use http::HeaderValue;

use super::post::Credentials;
use super::reply::StreamPoint;
use crate::task::time::millis;
use crate::upstream::ResumeToken;
use crate::wire::{Payload, ProtocolVersion, RequestId};

/// The token's content. Rows hold it for as long as they live, so its members keep their meaning.
#[derive(serde::Serialize, serde::Deserialize)]
struct Token {
    request: String,
    last_event: String,
    session: Option<String>,
    version: Option<String>,
    retry_ms: Option<u64>,
}

/// A call that was begun in another life.
#[derive(Debug)]
pub(super) struct Resumed {
    pub(super) request: RequestId,
    pub(super) credentials: Credentials,
    pub(super) point: StreamPoint,
}

/// The token of a call; `None` as long as its stream gave no event id.
pub(super) fn token(request: &RequestId, credentials: &Credentials, point: &StreamPoint) -> Option<ResumeToken> {
    let token = Token {
        request: request.payload().read().ok()?,
        last_event: text(point.last_event.as_ref()?)?,
        session: match &credentials.session {
            Some(session) => Some(text(session)?),
            None => None,
        },
        version: credentials.version.map(|version| version.as_str().to_owned()),
        retry_ms: point.retry.map(millis),
    };
    Some(ResumeToken(Payload::of(&token)))
}

/// Reads a token; `None` if it is not one of ours.
pub(super) fn read(token: &ResumeToken) -> Option<Resumed> {
    let token: Token = token.0.read().ok()?;
    let session = match &token.session {
        Some(session) => Some(HeaderValue::from_str(session).ok()?),
        None => None,
    };
    Some(Resumed {
        request: RequestId::text(&token.request),
        credentials: Credentials { session, version: token.version.as_deref().and_then(ProtocolVersion::parse) },
        point: StreamPoint {
            last_event: Some(HeaderValue::from_bytes(token.last_event.as_bytes()).ok()?),
            retry: token.retry_ms.map(Duration::from_millis),
        },
    })
}

fn text(value: &HeaderValue) -> Option<String> {
    String::from_utf8(value.as_bytes().to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_brings_back_what_it_was_made_of() {
        let credentials =
            Credentials { session: Some(HeaderValue::from_static("s-1")), version: Some(ProtocolVersion::V2025_11_25) };
        let mut point = StreamPoint { last_event: None, retry: Some(Duration::from_millis(250)) };
        let request = RequestId::text("tg:1");
        assert_eq!(token(&request, &credentials, &point), None, "nothing to resume after");
        point.last_event = Some(HeaderValue::from_bytes("caf\u{e9}-7".as_bytes()).unwrap());
        let back = read(&token(&request, &credentials, &point).unwrap()).unwrap();
        assert_eq!((back.request, back.credentials), (request, credentials));
        assert_eq!((back.point.last_event, back.point.retry), (point.last_event, point.retry));
    }

    #[test]
    fn a_foreign_token_is_refused() {
        assert!(read(&ResumeToken(Payload::empty_object())).is_none());
    }
}
