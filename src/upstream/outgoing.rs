//! Builds the requests of a streamable HTTP client: POST, GET and DELETE, and forms for authorization servers.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tokio::sync::SetOnce;

use crate::task::Principal;
use crate::upstream::{ClientCredential, ForwardedHeaders, spare_headers};
use crate::wire::{MessageText, ProtocolVersion, method};

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionHeaders {
    pub(crate) session: Option<HeaderValue>,
    /// Sent from 2025-06-18 on; `None` before the handshake.
    pub(crate) version: Option<ProtocolVersion>,
    /// The client's credential in the session, for requests without another.
    pub(crate) client: ClientCredential,
}

impl SessionHeaders {
    /// A POST of one message. Both response types are always accepted (UPC-15).
    pub(crate) fn post(&self, message: impl Into<MessageText>) -> OutgoingRequest {
        self.post_with(message, Vec::new())
    }

    pub(crate) fn post_with(
        &self,
        message: impl Into<MessageText>,
        further: Vec<(HeaderName, HeaderValue)>,
    ) -> OutgoingRequest {
        let verb = OutgoingMethod::Post { message: message.into(), further: further.into_boxed_slice() };
        self.request(verb, RequestScope::New)
    }

    /// A GET of a stream: the session's own, or the rest of one that sent `last_event`.
    pub(crate) fn get(&self, last_event: Option<&HeaderValue>) -> OutgoingRequest {
        let verb = OutgoingMethod::Get { last_event: last_event.cloned(), purpose: None };
        self.request(verb, RequestScope::UnderWay)
    }

    pub(crate) fn document(&self) -> OutgoingRequest {
        self.request(OutgoingMethod::Document, RequestScope::UnderWay)
    }

    /// A POST of a form with a client's password at an authorization server (RFC 6749, 2.3.1).
    pub(crate) fn form(&self, form: SecretForm) -> OutgoingRequest {
        self.request(OutgoingMethod::Form(form), RequestScope::UnderWay)
    }

    pub(crate) fn delete(&self) -> OutgoingRequest {
        self.request(OutgoingMethod::Delete, RequestScope::UnderWay)
    }

    fn request(&self, verb: OutgoingMethod, part: RequestScope) -> OutgoingRequest {
        let (credentials, forwarded) = (self.clone(), ForwardedHeaders::default());
        OutgoingRequest { credentials, verb, part, forwarded, principal: None, is_kept: false }
    }
}

/// A request that may be tried on several connections while no byte has left.
#[derive(Clone, Debug)]
pub(crate) struct OutgoingRequest {
    credentials: SessionHeaders,
    verb: OutgoingMethod,
    part: RequestScope,
    forwarded: ForwardedHeaders,
    principal: Option<Principal>,
    is_kept: bool,
}

/// The scope of a request. A failing upstream is spared only new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestScope {
    New,
    /// It belongs to an existing call or session: streams, answers, cancels, polls.
    UnderWay,
}

#[derive(Clone, Debug)]
enum OutgoingMethod {
    /// The headers are a slice, which is smaller than a vector in each future that holds the request.
    Post {
        message: MessageText,
        further: Box<[(HeaderName, HeaderValue)]>,
    },
    Get {
        last_event: Option<HeaderValue>,
        purpose: Option<StreamPurpose>,
    },
    Document,
    Form(SecretForm),
    Delete,
}

/// A form for an authorization server, with the gateway's password there. `Debug` prints neither.
#[derive(Clone)]
pub(crate) struct SecretForm {
    pub(crate) fields: Bytes,
    pub(crate) authorization: Option<HeaderValue>,
}

debug_members!(SecretForm);

/// Why the gateway itself reads a stream, even if no client uses the session.
#[derive(Clone)]
pub(crate) struct StreamPurpose(Arc<dyn Fn() -> bool + Send + Sync>);

impl StreamPurpose {
    /// `is_served` says whether a client uses the session now; it must not block and takes no lock of an adapter.
    pub(crate) fn new(is_served: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_served))
    }

    pub(crate) fn is_served(&self) -> bool {
        self.0()
    }
}

debug_members!(StreamPurpose, |purpose| is_served: purpose.is_served());

impl OutgoingRequest {
    pub(crate) fn under_way(self) -> Self {
        Self { part: RequestScope::UnderWay, ..self }
    }

    pub(crate) fn forwarding(self, forwarded: ForwardedHeaders) -> Self {
        Self { forwarded, ..self }
    }

    pub(crate) fn without_session(mut self) -> Self {
        self.credentials.session = None;
        self
    }

    pub(crate) const fn forwarded(&self) -> &ForwardedHeaders {
        &self.forwarded
    }

    /// The credential of the request's client, else of its session's client.
    pub(crate) fn client(&self) -> ClientCredential {
        let own = self.forwarded.credential();
        if own.is_clients() { own } else { self.credentials.client.clone() }
    }

    /// The same request for a principal, if no session names one: its connection counts for that principal.
    pub(crate) fn on_behalf_of(self, principal: Principal) -> Self {
        Self { principal: Some(principal), ..self }
    }

    /// The same for a call with an owner that keeps its outcome, or without one.
    pub(crate) fn kept_if(self, is_kept: bool) -> Self {
        Self { is_kept, ..self }
    }

    pub(crate) const fn is_kept(&self) -> bool {
        self.is_kept
    }

    pub(crate) const fn principal(&self) -> Option<&Principal> {
        self.principal.as_ref()
    }

    pub(crate) fn is_stateless(&self) -> bool {
        self.credentials.version.is_some_and(ProtocolVersion::is_stateless)
    }

    /// Whether it only probes the server; servers of older versions may refuse it in any form.
    pub(crate) fn is_a_trial(&self) -> bool {
        let OutgoingMethod::Post { further, .. } = &self.verb else { return false };
        further.iter().any(|(name, value)| name == "mcp-method" && value == method::DISCOVER)
    }

    pub(crate) const fn part(&self) -> RequestScope {
        self.part
    }

    pub(crate) const fn method(&self) -> Method {
        match self.verb {
            OutgoingMethod::Post { .. } | OutgoingMethod::Form(_) => Method::POST,
            OutgoingMethod::Get { .. } | OutgoingMethod::Document => Method::GET,
            OutgoingMethod::Delete => Method::DELETE,
        }
    }

    pub(crate) fn body(&self) -> Option<&Bytes> {
        match &self.verb {
            OutgoingMethod::Post { message, .. } => Some(message),
            OutgoingMethod::Form(form) => Some(&form.fields),
            OutgoingMethod::Get { .. } | OutgoingMethod::Document | OutgoingMethod::Delete => None,
        }
    }

    pub(crate) const fn message(&self) -> Option<&MessageText> {
        if let OutgoingMethod::Post { message, .. } = &self.verb { Some(message) } else { None }
    }

    pub(crate) fn with_body(mut self, text: Bytes) -> Self {
        if let OutgoingMethod::Post { message, .. } = &mut self.verb {
            *message = text.into();
        }
        self
    }

    /// The same request; a stream gets this purpose, other requests are unchanged.
    pub(crate) fn for_use(mut self, meant: StreamPurpose) -> Self {
        if let OutgoingMethod::Get { purpose, .. } = &mut self.verb {
            *purpose = Some(meant);
        }
        self
    }

    pub(crate) const fn purpose(&self) -> Option<&StreamPurpose> {
        if let OutgoingMethod::Get { purpose, .. } = &self.verb { purpose.as_ref() } else { None }
    }

    pub(crate) const fn session(&self) -> Option<&HeaderValue> {
        self.credentials.session.as_ref()
    }

    /// All headers, built for one attempt; `common` are the [`common_headers`].
    pub(crate) fn headers(&self, common: &HeaderMap) -> HeaderMap {
        let mut headers = spare_headers::take();
        headers.extend(common.iter().map(|(name, value)| (name.clone(), value.clone())));
        // None has the name of an existing or a later one.
        self.forwarded.add_to(&mut headers);
        match &self.verb {
            OutgoingMethod::Post { further, .. } => headers.extend(further.iter().cloned()),
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
            OutgoingMethod::Form(form) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
                headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
                if let Some(authorization) = &form.authorization {
                    headers.insert(AUTHORIZATION, authorization.clone());
                }
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

pub(crate) fn common_headers(host: Option<HeaderValue>) -> HeaderMap {
    let mut headers = HeaderMap::new();
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

/// Set once a connection has taken a request's body. From then on the upstream may have seen it.
pub type HandedOver = Arc<SetOnce<()>>;
