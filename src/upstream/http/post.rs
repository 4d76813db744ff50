//! The requests that a streamable HTTP client makes: one POST per message, GET for streams, DELETE at the end.

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::client::Outgoing;
use crate::wire::ProtocolVersion;

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What the upstream asked to see on every request of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) session: Option<HeaderValue>,
    /// Sent from 2025-06-18 on; `None` before the handshake.
    pub(crate) version: Option<ProtocolVersion>,
}

impl Credentials {
    /// One message. Both answer types are always offered (protocol.md 1.2, row 13).
    pub(crate) fn post(&self, message: Bytes) -> Outgoing {
        let mut headers = self.headers("application/json, text/event-stream");
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Outgoing { method: Method::POST, headers, body: Some(message) }
    }

    /// The same with further headers.
    pub(crate) fn post_with(&self, message: Bytes, further: HeaderMap) -> Outgoing {
        let mut post = self.post(message);
        post.headers.extend(further);
        post
    }

    /// A stream: the session's own, or the rest of one that gave `last_event`.
    pub(crate) fn get(&self, last_event: Option<&HeaderValue>) -> Outgoing {
        let mut headers = self.headers("text/event-stream");
        if let Some(event) = last_event {
            headers.insert(LAST_EVENT_ID, event.clone());
        }
        Outgoing { method: Method::GET, headers, body: None }
    }

    /// The end of the session.
    pub(crate) fn delete(&self) -> Outgoing {
        let headers = self.headers("application/json, text/event-stream");
        Outgoing { method: Method::DELETE, headers, body: None }
    }

    fn headers(&self, accept: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("taskgate/", env!("CARGO_PKG_VERSION"))));
        if let Some(session) = &self.session {
            headers.insert(SESSION_ID, session.clone());
        }
        if let Some(version) = self.version.filter(|version| *version >= ProtocolVersion::V2025_06_18) {
            headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(version.as_str()));
        }
        headers
    }
}
