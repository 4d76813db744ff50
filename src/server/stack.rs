//! Calls the layers in front of every endpoint, in order, with one reason each.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode, Version};
use hyper::body::Incoming;

use super::ListenerRole;
use super::cors::CallingPage;
use super::departed_client::Arrival;
use super::dispatch::{Asker, Dispatch};
use super::forwarded::{ForwardedRequest, TrustedProxies};
use super::head::HeadGuard;
use super::host::{HostGuard, OriginGuard};
use super::notices::{Notices, RefusedAsker};
use super::principal::{AuthenticatedCaller, PrincipalGuard};
use super::refusal::{Guard as _, Refusal, RefusalMarker, StreamPosition};
use crate::face::http::{FaceResponse, empty_body};
use crate::face::session_homes::note_taken;
use crate::metric;

/// The addresses of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionAddresses {
    /// The one that the peer dialled.
    pub(super) local: IpAddr,
    pub(super) peer: IpAddr,
}

/// The layers of one listener. A reload replaces them as a whole: a request meets the old or the new (F24).
#[derive(Clone, Debug)]
pub(super) struct Layers {
    pub(super) head: HeadGuard,
    /// Whose word on a request's client is taken.
    pub(super) proxies: TrustedProxies,
    pub(super) host: HostGuard,
    pub(super) origin: OriginGuard,
    pub(super) principal: PrincipalGuard,
    pub(super) dispatch: Dispatch,
    /// What is told of refusals; the dispatch shares it.
    pub(super) notices: Arc<Notices>,
}

impl Layers {
    /// Answers one request. Connections were admitted before, and answers are counted after
    /// it, in `connection`. The request is boxed: the layers and what is behind them would each hold it twice.
    pub(super) async fn answer(
        &self,
        request: Box<Request<Incoming>>,
        ends: ConnectionAddresses,
        arrival: &Arrival,
    ) -> FaceResponse {
        let version = request.version();
        // A bug costs one answer, not the process (F64); outside everything that may have bugs.
        // Nothing that the panic left half done is used again: the request is gone with its future.
        let caught = AssertUnwindSafe(self.guarded(request, ends, arrival)).catch_unwind().await;
        caught.unwrap_or_else(|_| {
            let mut answer = rescue(version);
            if self.is_for_replicas() {
                // Otherwise the other one would take it that nothing was done.
                note_taken(&mut answer);
            }
            answer
        })
    }

    async fn guarded(
        &self,
        request: Box<Request<Incoming>>,
        ends: ConnectionAddresses,
        arrival: &Arrival,
    ) -> FaceResponse {
        let is_head = request.method() == Method::HEAD;
        let forwarded = self.proxies.read(ends.peer, request.headers());
        let client = forwarded.client;
        let (mut response, page) = match self.enter(&request, ends.local, &forwarded) {
            Ok(page) => (self.serve(request, client, page.as_ref(), arrival).await, page),
            Err(refusal) => (self.refuse(refusal, &request, client), None),
        };
        if let Some(page) = page {
            page.share(&mut response);
        }
        // The answer to HEAD has no body (B54), and what is not sent is not announced. The sentences are for clients.
        let is_told = self.is_for_clients() || self.is_for_replicas();
        if (is_head || !is_told) && response.extensions().get::<RefusalMarker>().is_some() {
            *response.body_mut() = empty_body();
            response.headers_mut().remove(CONTENT_TYPE);
        }
        response
    }

    fn is_for_clients(&self) -> bool {
        self.notices.listener() == ListenerRole::Clients
    }

    fn is_for_replicas(&self) -> bool {
        self.notices.listener() == ListenerRole::Replicas
    }

    /// Lets a request in whose head, host and origin may come; with the page that is to read its answer.
    fn enter<B>(
        &self,
        request: &Request<B>,
        local: IpAddr,
        forwarded: &ForwardedRequest,
    ) -> Result<Option<CallingPage>, Refusal> {
        // What is too large to look at is not looked at by anyone below.
        self.head.check(request)?;
        if self.is_for_replicas() {
            // No page can seal anything, and host and origin of what is passed on were looked at where the client came in.
            return Ok(None);
        }
        // A rebound name must not reach anything (SEC-06), the admin paths included.
        let host = self.host.on(local);
        host.check(request)?;
        // A foreign page must not either; on its own, so that a mistake in one list opens nothing. Which pages are the
        // gateway's own is told by the name that the client used, if that is one that is served.
        let asked = forwarded.host.as_deref().filter(|name| host.welcomes(name));
        self.origin.check(request, asked, forwarded.is_https)?;
        Ok(CallingPage::of(request).filter(|_| self.is_for_clients()))
    }

    async fn serve(
        &self,
        mut request: Box<Request<Incoming>>,
        client: IpAddr,
        page: Option<&CallingPage>,
        arrival: &Arrival,
    ) -> FaceResponse {
        // Before anybody's credential is looked at: a browser asks without one.
        if let Some(answer) = page.and_then(|page| page.preflight(&request, |name| self.dispatch.forwards(name))) {
            return answer;
        }
        match self.admit(&request) {
            Ok(AuthenticatedCaller { principal, grant, passed_on_from }) => {
                self.principal.withhold_keys(request.headers_mut());
                let is_counted = self.is_for_replicas();
                let asker = Asker { principal, client: passed_on_from.unwrap_or(client), is_counted };
                let mut response = self.dispatch.answer(request, asker, arrival).await;
                if is_counted {
                    note_taken(&mut response);
                }
                grant.bind(response)
            }
            Err(refusal) => self.refuse(refusal, &request, client),
        }
    }

    fn refuse(&self, refusal: Refusal, request: &Request<Incoming>, client: IpAddr) -> FaceResponse {
        let asker = RefusedAsker { client, principal: None };
        self.notices.refused(&refusal, asker, request.uri(), request.headers());
        refusal.answer(StreamPosition::of(request))
    }

    fn admit<B>(&self, request: &Request<B>) -> Result<AuthenticatedCaller, Refusal> {
        // Clients without a key look here for a way to get one. That there is none is no secret.
        let path = request.uri().path();
        if self.is_for_replicas() {
            return self.principal.identify(request, |_| false);
        }
        if is_metadata(path) && !self.dispatch.serves(path) {
            return Err(Refusal::NoMetadata);
        }
        // Whoever looks for a way to a credential has none.
        if self.dispatch.is_public(path) {
            return Ok(self.principal.anybody());
        }
        // Before the routes: no other path is outside it, so nobody without a name learns which paths exist (SEC-05).
        self.principal.identify(request, |path| self.dispatch.forwards_authorization(path))
    }
}

/// Where clients look for what says how to log in, and where they would register.
fn is_metadata(path: &str) -> bool {
    // Hardly any other path has a dot.
    memchr::memchr(b'.', path.as_bytes()).is_some_and(|_| path.contains("/.well-known/")) || path == "/register"
}

/// A bare 500 in place of an answer that panicked. Over HTTP/1 it ends the connection: how much of the body was
/// read is unknown.
fn rescue(version: Version) -> FaceResponse {
    metrics::counter!(metric::HTTP_PANICS).increment(1);
    let mut response = FaceResponse::new(empty_body());
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    if version <= Version::HTTP_11 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
