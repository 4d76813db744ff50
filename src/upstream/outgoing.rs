//! Makes the requests of a streamable HTTP client: one POST per message, GET for streams, DELETE at the end.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tokio::sync::SetOnce;

use crate::task::Principal;
use crate::upstream::{ClientCredential, ForwardedHeaders};
use crate::wire::{MessageText, ProtocolVersion, method};

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Room in a table of headers for those of most requests.
const COMMON_AND_FURTHER: usize = 12;

/// What the upstream asked to see on every request of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionHeaders {
    pub(crate) session: Option<HeaderValue>,
    /// Sent from 2025-06-18 on; `None` before the handshake.
    pub(crate) version: Option<ProtocolVersion>,
    /// What the session's client is let in by, on each request that has no other.
    pub(crate) client: ClientCredential,
}

impl SessionHeaders {
    /// One message. Both answer types are always offered (UPC-15).
    pub(crate) fn post(&self, message: impl Into<MessageText>) -> OutgoingRequest {
        self.posting(message.into(), None)
    }

    /// The same with further headers.
    pub(crate) fn post_with(&self, message: impl Into<MessageText>, further: Box<HeaderMap>) -> OutgoingRequest {
        self.posting(message.into(), Some(further))
    }

    fn posting(&self, message: MessageText, further: Option<Box<HeaderMap>>) -> OutgoingRequest {
        let verb = OutgoingMethod::Post { message, further };
        OutgoingRequest {
            credentials: self.clone(),
            verb,
            part: RequestScope::New,
            forwarded: ForwardedHeaders::default(),
            principal: None,
        }
    }

    /// A stream: the session's own, or the rest of one that gave `last_event`.
    pub(crate) fn get(&self, last_event: Option<&HeaderValue>) -> OutgoingRequest {
        let verb = OutgoingMethod::Get { last_event: last_event.cloned(), purpose: None };
        let (part, forwarded) = (RequestScope::UnderWay, ForwardedHeaders::default());
        OutgoingRequest { credentials: self.clone(), verb, part, forwarded, principal: None }
    }

    /// A document that says something of the server.
    pub(crate) fn document(&self) -> OutgoingRequest {
        let (part, forwarded) = (RequestScope::UnderWay, ForwardedHeaders::default());
        OutgoingRequest { credentials: self.clone(), verb: OutgoingMethod::Document, part, forwarded, principal: None }
    }

    /// The end of the session.
    pub(crate) fn delete(&self) -> OutgoingRequest {
        let (part, forwarded) = (RequestScope::UnderWay, ForwardedHeaders::default());
        OutgoingRequest { credentials: self.clone(), verb: OutgoingMethod::Delete, part, forwarded, principal: None }
    }
}

/// A request that may be put on a connection more than once, as long as nothing of it left.
#[derive(Clone, Debug)]
pub(crate) struct OutgoingRequest {
    credentials: SessionHeaders,
    verb: OutgoingMethod,
    part: RequestScope,
    forwarded: ForwardedHeaders,
    principal: Option<Principal>,
}

/// What a request is part of. An upstream that is ill is spared new ones only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestScope {
    New,
    /// It belongs to a call or a session that is there already: streams, answers, cancels, polls.
    UnderWay,
}

#[derive(Clone, Debug)]
enum OutgoingMethod {
    Post { message: MessageText, further: Option<Box<HeaderMap>> },
    Get { last_event: Option<HeaderValue>, purpose: Option<StreamPurpose> },
    Document,
    Delete,
}

/// What a stream is there for that the gateway reads by itself, whether or not anybody uses the session.
#[derive(Clone)]
pub(crate) struct StreamPurpose(Arc<dyn Fn() -> bool + Send + Sync>);

impl StreamPurpose {
    /// `is_served` says whether anybody uses the session now; it waits for nobody and takes no lock of a stand's.
    pub(crate) fn new(is_served: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_served))
    }

    pub(crate) fn is_served(&self) -> bool {
        self.0()
    }
}

impl fmt::Debug for StreamPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Purpose").field(&self.is_served()).finish()
    }
}

impl OutgoingRequest {
    /// The same as part of what is there already.
    pub(crate) fn under_way(self) -> Self {
        Self { part: RequestScope::UnderWay, ..self }
    }

    /// The same with headers of the client's.
    pub(crate) fn forwarding(self, forwarded: ForwardedHeaders) -> Self {
        Self { forwarded, ..self }
    }

    /// The same over a transport that has no session id.
    pub(crate) fn without_session(mut self) -> Self {
        self.credentials.session = None;
        self
    }

    /// The headers of the client's.
    pub(crate) const fn forwarded(&self) -> &ForwardedHeaders {
        &self.forwarded
    }

    /// Whether it is for its client to be let in by the upstream, and not for the gateway.
    pub(crate) fn is_let_in_by_client(&self) -> bool {
        self.credentials.client.is_clients() || self.forwarded.credential().is_clients()
    }

    /// The same on behalf of somebody, where no session says who that is: what opens one is counted as theirs.
    pub(crate) fn on_behalf_of(self, principal: Principal) -> Self {
        Self { principal: Some(principal), ..self }
    }

    pub(crate) const fn principal(&self) -> Option<&Principal> {
        self.principal.as_ref()
    }

    /// Whether it is of the version that has no sessions.
    pub(crate) fn is_stateless(&self) -> bool {
        self.credentials.version.is_some_and(ProtocolVersion::is_stateless)
    }

    /// Whether it only asks what a server speaks; servers of older versions refuse it as they like.
    pub(crate) fn is_a_trial(&self) -> bool {
        match &self.verb {
            OutgoingMethod::Post { further, .. } => further
                .as_ref()
                .and_then(|further| further.get("mcp-method"))
                .is_some_and(|named| named == method::DISCOVER),
            OutgoingMethod::Get { .. } | OutgoingMethod::Document | OutgoingMethod::Delete => false,
        }
    }

    pub(crate) const fn part(&self) -> RequestScope {
        self.part
    }

    pub(crate) const fn method(&self) -> Method {
        match self.verb {
            OutgoingMethod::Post { .. } => Method::POST,
            OutgoingMethod::Get { .. } | OutgoingMethod::Document => Method::GET,
            OutgoingMethod::Delete => Method::DELETE,
        }
    }

    /// The text of its message.
    pub(crate) fn body(&self) -> Option<&Bytes> {
        self.message().map(|text| &**text)
    }

    pub(crate) const fn message(&self) -> Option<&MessageText> {
        match &self.verb {
            OutgoingMethod::Post { message, .. } => Some(message),
            OutgoingMethod::Get { .. } | OutgoingMethod::Document | OutgoingMethod::Delete => None,
        }
    }

    /// The same with another message in place of its own.
    pub(crate) fn with_body(mut self, text: Bytes) -> Self {
        if let OutgoingMethod::Post { message, .. } = &mut self.verb {
            *message = text.into();
        }
        self
    }

    /// The same stream, which for itself makes nothing of use; other requests are left as they are.
    pub(crate) fn for_use(mut self, meant: StreamPurpose) -> Self {
        if let OutgoingMethod::Get { purpose, .. } = &mut self.verb {
            *purpose = Some(meant);
        }
        self
    }

    pub(crate) const fn purpose(&self) -> Option<&StreamPurpose> {
        match &self.verb {
            OutgoingMethod::Get { purpose, .. } => purpose.as_ref(),
            OutgoingMethod::Post { .. } | OutgoingMethod::Document | OutgoingMethod::Delete => None,
        }
    }

    /// The session that it is sent in.
    pub(crate) const fn session(&self) -> Option<&HeaderValue> {
        self.credentials.session.as_ref()
    }

    /// All headers, made for one attempt; `common` are those that [`common_headers`] gives.
    pub(crate) fn headers(&self, common: &HeaderMap) -> HeaderMap {
        let mut headers = common.clone();
        // None of them has the name of one that stands there or follows.
        self.forwarded.add_to(&mut headers);
        match &self.verb {
            OutgoingMethod::Post { further: Some(further), .. } => headers.extend(HeaderMap::clone(further)),
            OutgoingMethod::Post { further: None, .. } => (),
            OutgoingMethod::Get { last_event, .. } => {
                headers.remove(CONTENT_TYPE);
                headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
                if let Some(event) = last_event {
                    headers.insert(LAST_EVENT_ID, event.clone());
                }
            }
            OutgoingMethod::Document => {
                headers.remove(CONTENT_TYPE);
                headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
            }
            OutgoingMethod::Delete => {
                headers.remove(CONTENT_TYPE);
            }
        }
        let SessionHeaders { session, version, client } = &self.credentials;
        if let Some(client) = client.value().filter(|_| !headers.contains_key(AUTHORIZATION)) {
            headers.insert(AUTHORIZATION, client.clone());
        }
        if let Some(session) = session {
            headers.insert(SESSION_ID, session.clone());
        }
        if let Some(version) = version.filter(|version| version.traits().has_version_header) {
            headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(version.as_str()));
        }
        headers
    }
}

/// The headers that every request to one upstream has, and a POST all of them: put together once.
pub(crate) fn common_headers(host: Option<HeaderValue>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(COMMON_AND_FURTHER);
    if let Some(host) = host {
        headers.insert(HOST, host);
    }
    let user_agent = HeaderValue::from_static(concat!("taskgate/", env!("CARGO_PKG_VERSION")));
    headers.insert(USER_AGENT, user_agent);
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers
}

/// Set once a connection has taken the body of a request: from then on the upstream may have seen it.
pub type HandedOver = Arc<SetOnce<()>>;
