//! Implements CORS: pages of allowed origins may read responses, and preflights are answered. [`super::host`] has
//! decided which pages may send requests. No response has `Access-Control-Allow-Origin: *`, and no cookies are
//! requested: a page's credential is in `Authorization` or in the gateway's own header.

use http::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderName, ORIGIN, VARY,
};
use http::{HeaderValue, Method, Request, StatusCode};

use super::api_keys::KEY_HEADER;
use super::refusal::StreamPosition;
use crate::face::http::{FaceResponse, empty_body};

/// Headers of MCP and of this gateway, besides headers that begin with [`OF_MCP`].
const USUAL: [HeaderName; 7] = [
    ACCEPT,
    AUTHORIZATION,
    CONTENT_TYPE,
    KEY_HEADER,
    HeaderName::from_static("dpop"),
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("last-event-id"),
];
const OF_MCP: &str = "mcp-";
/// The most names of one preflight that are read; a request has no more headers.
const ASKED_MAX: usize = 64;

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
const EXPOSED: HeaderValue = HeaderValue::from_static("Mcp-Session-Id, WWW-Authenticate");
/// How long a browser may cache a preflight. A page of a removed origin is refused regardless.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const BY_ORIGIN: HeaderValue = HeaderValue::from_static("Origin");

#[derive(Debug)]
pub(super) struct CallingPage(HeaderValue);

impl CallingPage {
    pub(super) fn of<B>(request: &Request<B>) -> Option<Self> {
        request.headers().get(ORIGIN).cloned().map(Self)
    }

    /// The response to a preflight; `None` for any other request. `forwards` tells whether a header is forwarded to an upstream.
    pub(super) fn preflight<B: hyper::body::Body>(
        &self,
        request: &Request<B>,
        forwards: impl Fn(&HeaderName) -> bool,
    ) -> Option<FaceResponse> {
        if request.method() != Method::OPTIONS || !request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        let asked = request.headers().get_all(ACCESS_CONTROL_REQUEST_HEADERS).iter();
        let asked = asked.filter_map(|names| names.to_str().ok()).flat_map(|names| names.split(','));
        let asked = asked.take(ASKED_MAX).filter_map(|name| HeaderName::try_from(name.trim()).ok());
        let may_come = |name: &HeaderName| USUAL.contains(name) || name.as_str().starts_with(OF_MCP) || forwards(name);
        let taken: Vec<String> = asked.filter(may_come).map(|name| name.as_str().to_owned()).collect();
        let mut response = FaceResponse::new(empty_body());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        if let Ok(taken) = HeaderValue::try_from(taken.join(", "))
            && !taken.is_empty()
        {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, taken);
        }
        if StreamPosition::of(request) == StreamPosition::Unread {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Some(response)
    }

    /// Allows the page to read a response, also a refusal.
    pub(super) fn share(self, response: &mut FaceResponse) {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.0);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        headers.append(VARY, BY_ORIGIN);
    }
}
