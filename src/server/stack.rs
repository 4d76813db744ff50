//! Runs the layers in front of every endpoint, in order.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use http::header::{
    ACCEPT, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HeaderName, ORIGIN, VARY, WWW_AUTHENTICATE,
};
use http::{HeaderValue, Method, Request, StatusCode, Version};
use hyper::body::Incoming;

use super::ListenerRole;
use super::api_keys::KEY_HEADER;
use super::client_certificates::PeerCertificate;
use super::dispatch::{AdmittedCaller, Dispatch, Route};
use super::forwarded::{ForwardedRequest, TrustedProxies};
use super::head::{HeadGuard, RareField, RareFields};
use super::host::{HostGuard, OriginGuard};
use super::notices::{Notices, RefusedCaller};
use super::principal::{AskedPath, AuthenticatedCaller, Identity, PrincipalGuard, TokenScheme, TokenUse};
use super::refusal::{Refusal, RefusalMarker, StreamPosition, keep_open};
use super::tokens::{LookupWait, RefusalEvidence};
use crate::face::answer::ScopesNeeded;
use crate::face::arrival::Arrival;
use crate::face::http::{FaceResponse, empty_body};
use crate::face::session_owners::note_taken;
use crate::metric;

/// The paths of health checks: whether the process runs, and whether it is ready.
pub(super) const HEALTH_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// The addresses and the certificate of a connection, for its requests.
#[derive(Clone, Debug)]
pub(super) struct ConnectionOrigin {
    pub(super) local: IpAddr,
    pub(super) peer: IpAddr,
    pub(super) certificate: Option<Arc<PeerCertificate>>,
}

/// The layers of one listener. A reload replaces all at once: a request uses the old or the new ones (F24).
#[derive(Clone, Debug)]
pub(super) struct Layers {
    pub(super) head: HeadGuard,
    pub(super) proxies: TrustedProxies,
    pub(super) host: HostGuard,
    pub(super) origin: OriginGuard,
    pub(super) principal: PrincipalGuard,
    pub(super) dispatch: Dispatch,
    pub(super) notices: Arc<Notices>,
}

impl Layers {
    /// Answers one request of an admitted connection. The request is boxed: each nested future would hold it twice.
    pub(super) async fn answer(
        &self,
        request: Box<Request<Incoming>>,
        ends: ConnectionOrigin,
        arrival: Arrival,
    ) -> FaceResponse {
        let version = request.version();
        // A panic costs one response, not the process (F64). The request is dropped with its future: no state is left.
        let caught = AssertUnwindSafe(self.guarded(request, ends, arrival)).catch_unwind().await;
        caught.unwrap_or_else(|_| {
            let mut answer = rescue(version);
            if self.is_for_replicas() {
                // Without the mark the other replica would assume that the request was not processed.
                note_taken(&mut answer);
            }
            answer
        })
    }

    async fn guarded(&self, request: Box<Request<Incoming>>, ends: ConnectionOrigin, arrival: Arrival) -> FaceResponse {
        let is_head = request.method() == Method::HEAD;
        let forwarded = self.proxies.read(ends.peer, request.headers());
        let client = forwarded.client;
        let (mut response, page) = match self.enter(&request, ends.local, &forwarded) {
            Ok((page, rare)) => {
                let origin = ConnectionOrigin { peer: client, ..ends };
                (self.serve(request, origin, page.as_ref(), rare, arrival).await, page)
            }
            Err(refusal) => (self.refuse(refusal, *request, client), None),
        };
        if let Some(page) = page {
            page.share(&mut response);
        }
        // The response to HEAD has no body (B54), and an omitted body has no headers. The sentences are for clients.
        let has_sentence = self.is_for_clients() || self.is_for_replicas();
        if (is_head || !has_sentence) && response.extensions().get::<RefusalMarker>().is_some() {
            *response.body_mut() = empty_body();
            response.headers_mut().remove(CONTENT_TYPE);
        }
        response
    }

    fn is_for_clients(&self) -> bool {
        self.notices.listener == ListenerRole::Clients
    }

    fn is_for_replicas(&self) -> bool {
        self.notices.listener == ListenerRole::Replicas
    }

    /// Checks head, host and origin of a request; returns the page that will read the response, and the rare fields.
    fn enter<B>(
        &self,
        request: &Request<B>,
        local: IpAddr,
        forwarded: &ForwardedRequest,
    ) -> Result<(Option<CallingPage>, RareFields), Refusal> {
        // An oversized head is refused before anything else reads it.
        let rare = self.head.check(request)?;
        if self.is_for_replicas() {
            // No page can seal a request, and the forwarding replica has checked its host and origin.
            return Ok((None, rare));
        }
        // A rebound name must reach nothing (SEC-06), the admin paths included.
        self.host.check(request, local)?;
        // Nor must a foreign page; a separate check, so that an error in one list does not open the other. The gateway's own
        // pages are those under the name that the client used, if that name is served.
        let page = if rare.has(RareField::Origin) { CallingPage::of(request) } else { None };
        let Some(page) = page else { return Ok((None, rare)) };
        let asked = forwarded.host.as_deref().filter(|name| self.host.welcomes(name, local));
        self.origin.check(request, asked, forwarded.is_https)?;
        Ok((Some(page).filter(|_| self.is_for_clients()), rare))
    }

    async fn serve(
        &self,
        mut request: Box<Request<Incoming>>,
        ConnectionOrigin { peer: client, certificate, .. }: ConnectionOrigin,
        page: Option<&CallingPage>,
        rare: RareFields,
        arrival: Arrival,
    ) -> FaceResponse {
        // Before authentication: browsers send preflights without credentials.
        if let Some(answer) = page.and_then(|page| page.preflight(&request, |name| self.dispatch.forwards(name))) {
            return answer;
        }
        let certificate = certificate.as_deref();
        let route = self.dispatch.route(request.uri().path());
        let identity = match self.admit(&request, route, rare, client, certificate, LookupWait::Allowed) {
            Ok(Identity::NeedsLookup(lookup)) => {
                // Boxed: rare, and every request would be larger by it.
                match Box::pin(lookup.wait(client)).await {
                    Ok(()) => self.admit(&request, route, rare, client, certificate, LookupWait::Over),
                    Err(wait) => Err(Refusal::TooManyTokens(wait)),
                }
            }
            identity => identity,
        };
        match identity {
            Ok(Identity::Known(known)) => {
                let AuthenticatedCaller { caller, grant, ends_at, forwarded_from, further, scheme, .. } = known;
                // Not where `Authorization` is forwarded: a removed upstream may still serve its tasks so.
                let is_exchanged = self.principal.takes_tokens() && route.is_some_and(|route| route.exchanges_tokens());
                let token = if is_exchanged { TokenUse::Exchange } else { TokenUse::Identity };
                self.principal.withhold_keys(request.headers_mut(), token);
                let is_counted = self.is_for_replicas();
                let path = self.principal.takes_tokens().then(|| request.uri().path().to_owned());
                let client = forwarded_from.unwrap_or(client);
                let caller = AdmittedCaller { caller, client, is_counted, rare, arrival };
                let mut response = self.dispatch.answer(request, route, caller).await;
                if is_counted {
                    note_taken(&mut response);
                }
                if let Some(path) = path {
                    self.challenge_for_scopes(&path, scheme, &mut response);
                }
                let response = further.iter().fold(response, |response, grant| grant.bind(response, None));
                grant.bind(response, ends_at)
            }
            Ok(Identity::NeedsLookup(_)) => {
                self.refuse(Refusal::IssuerUnavailable(RefusalEvidence::default()), *request, client)
            }
            Err(refusal) => self.refuse(refusal, *request, client),
        }
    }

    /// Adds the challenge to a face's refusal of a caller that lacks a scope.
    fn challenge_for_scopes(&self, path: &str, used: TokenScheme, response: &mut FaceResponse) {
        let asked = || self.dispatch.asked(self.dispatch.route(path), path, RareFields::default());
        if let Some(ScopesNeeded(needed)) = response.extensions_mut().remove()
            && let Some(challenge) = self.principal.scope_challenge(asked(), used, &needed)
        {
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
    }

    fn refuse(&self, refusal: Refusal, request: Request<Incoming>, client: IpAddr) -> FaceResponse {
        let caller = RefusedCaller { client, principal: refusal.principal() };
        self.notices.refused(&refusal, caller, request.uri(), request.headers());
        keep_open(refusal.answer(StreamPosition::of(&request)), request)
    }

    /// Whether it is this machine's health check, as a container's: without a token, and as informed as at `[metrics]`.
    fn is_health_check<B>(&self, request: &Request<B>, client: IpAddr) -> bool {
        let has_credential = || [AUTHORIZATION, KEY_HEADER].iter().any(|name| request.headers().contains_key(name));
        self.notices.listener == ListenerRole::Operators
            && client.to_canonical().is_loopback()
            && request.uri().query().is_none()
            && HEALTH_PATHS.contains(&request.uri().path())
            && !has_credential()
    }

    fn admit<B>(
        &self,
        request: &Request<B>,
        route: Option<Route<'_>>,
        rare: RareFields,
        client: IpAddr,
        certificate: Option<&PeerCertificate>,
        wait: LookupWait,
    ) -> Result<Identity, Refusal> {
        let path = request.uri().path();
        if self.is_health_check(request, client) {
            return Ok(self.principal.anybody().into());
        }
        // Clients without a key look here for authorization metadata. Its absence is no secret.
        if self.is_for_replicas() {
            let asked = AskedPath { endpoint: None, forwards: false, wait, certificate, rare };
            return self.principal.identify(request, asked);
        }
        if route.is_none() && is_metadata(path) {
            return Err(Refusal::NoMetadata);
        }
        // A client that looks for a login has no credential yet.
        if route.is_some_and(|route| route.is_public()) {
            return Ok(self.principal.anybody().into());
        }
        // Before the routes, so that an unauthenticated client cannot find out which paths exist (SEC-05).
        self.principal.identify(request, AskedPath { wait, certificate, ..self.dispatch.asked(route, path, rare) })
    }
}

/// Whether a path is one of OAuth metadata or of client registration.
fn is_metadata(path: &str) -> bool {
    // Hardly any other path has a dot.
    memchr::memchr(b'.', path.as_bytes()).is_some_and(|_| path.contains("/.well-known/")) || path == "/register"
}

/// An empty 500 after a handler's panic. It ends an HTTP/1 connection, since the unread part of the body is unknown.
fn rescue(version: Version) -> FaceResponse {
    metrics::counter!(metric::HTTP_PANICS).increment(1);
    let mut response = FaceResponse::new(empty_body());
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    if version <= Version::HTTP_11 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

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
const EXPOSED: HeaderValue = HeaderValue::from_static("Mcp-Session-Id, Retry-After, WWW-Authenticate");
/// How long a browser may cache a preflight. A page of a removed origin is refused regardless.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const BY_ORIGIN: HeaderValue = HeaderValue::from_static("Origin");

/// CORS: pages of allowed origins may read responses, and preflights are answered. [`super::host`] has decided which
/// pages may send requests. No response has `Access-Control-Allow-Origin: *`, and no cookies are requested: a page's
/// credential is in `Authorization` or in the gateway's own header.
#[derive(Debug)]
struct CallingPage(HeaderValue);

impl CallingPage {
    fn of<B>(request: &Request<B>) -> Option<Self> {
        request.headers().get(ORIGIN).cloned().map(Self)
    }

    /// The response to a preflight; `None` for any other request. `forwards`: whether a header is forwarded to an upstream.
    fn preflight<B: hyper::body::Body>(
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
    fn share(self, response: &mut FaceResponse) {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.0);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        headers.append(VARY, BY_ORIGIN);
    }
}
