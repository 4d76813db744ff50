//! Finds a request's endpoint: checks path, method, media type and body, in this order.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION};
use http::{HeaderName, HeaderValue, Method, Request};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::forwarded::network;
use super::notices::{Notices, RefusedCaller};
use super::principal::AskedPath;
use super::refusal::{Refusal, StreamPosition};
use super::tokens::KeyWait;
use super::{ListenerLimits, body, head, media};
use crate::face::arrival::Arrival;
use crate::face::http::{AcceptedTypes, Endpoint, FaceResponse, Inbound, empty_body};
use crate::task::{Caller, Principal};

/// Paths that the answer to a request for an unknown one names.
const PATHS_SHOWN: usize = 20;

/// Maps paths to endpoints. Paths match byte for byte (B56), the query is ignored (B57).
#[derive(Clone, Default)]
pub struct Routes {
    exact: BTreeMap<String, Arc<dyn Endpoint>>,
    below: Vec<(String, Arc<dyn Endpoint>)>,
    forward_authorization: bool,
}

impl Routes {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a route; a path given twice belongs to the last.
    #[must_use]
    pub fn with(mut self, path: impl Into<String>, endpoint: Arc<dyn Endpoint>) -> Self {
        self.forward_authorization |= endpoint.forwards(&AUTHORIZATION);
        self.exact.insert(path.into(), endpoint);
        self
    }

    /// Adds an endpoint for all paths that begin with `prefix` and have no route; the first matching prefix wins.
    #[must_use]
    pub fn below(mut self, prefix: impl Into<String>, endpoint: Arc<dyn Endpoint>) -> Self {
        self.forward_authorization |= endpoint.forwards(&AUTHORIZATION);
        self.below.push((prefix.into(), endpoint));
        self
    }

    /// Adds an endpoint beside each path that serves clients, as `beside` makes it for the path.
    pub fn with_beside(self, beside: impl Fn(&str) -> (String, Arc<dyn Endpoint>)) -> Self {
        let serves = |endpoint: &Arc<dyn Endpoint>| endpoint.takes(&Method::POST) && !endpoint.is_public();
        let paths: Vec<String> =
            self.exact.iter().filter(|(_, endpoint)| serves(endpoint)).map(|(path, _)| path.clone()).collect();
        paths.iter().map(|path| beside(path)).fold(self, |routes, (path, endpoint)| routes.with(path, endpoint))
    }

    fn forwards(&self, header: &HeaderName) -> bool {
        let below = self.below.iter().map(|(_, endpoint)| endpoint);
        self.exact.values().chain(below).any(|endpoint| endpoint.forwards(header))
    }

    /// The route's path for a request's path. Ignores one trailing slash: a redirect would lose the body and the credentials.
    fn served_path<'p>(&self, path: &'p str) -> &'p str {
        let shorter = path.strip_suffix('/').filter(|shorter| self.exact.contains_key(*shorter));
        shorter.filter(|_| !self.exact.contains_key(path)).unwrap_or(path)
    }

    fn find(&self, path: &str) -> Option<&Arc<dyn Endpoint>> {
        let path = self.served_path(path);
        let below = || self.below.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, endpoint)| endpoint);
        self.exact.get(path).or_else(below)
    }

    /// The first paths of servers, for the operator's own client on this machine. Other clients do not learn them.
    fn paths_for(&self, principal: &Principal) -> String {
        if *principal != Principal::local() {
            return String::new();
        }
        let serves = |endpoint: &Arc<dyn Endpoint>| endpoint.takes(&Method::POST) && !endpoint.is_public();
        let all = self.exact.iter().filter(|(_, endpoint)| serves(endpoint));
        all.map(|(path, _)| path.as_str()).take(PATHS_SHOWN).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.exact.keys().chain(self.below.iter().map(|(prefix, _)| prefix))).finish()
    }
}

pub(super) struct AdmittedCaller {
    pub(super) caller: Caller,
    pub(super) client: IpAddr,
    /// Whether another replica counts its requests.
    pub(super) is_counted: bool,
    pub(super) arrival: Arrival,
}

/// The parts of an admitted request that an endpoint needs; the rest is dropped, so that no buffer is retained.
fn inbound(
    path: String,
    request: Request<Incoming>,
    body: Bytes,
    caller: AdmittedCaller,
    accepted: AcceptedTypes,
    received_at: Instant,
) -> Box<Inbound> {
    let (parts, _) = request.into_parts();
    Box::new(Inbound {
        query: parts.uri.query().map(str::to_owned),
        headers: parts.headers,
        body,
        client: Some(network(caller.client)),
        accepted,
        received_at,
        is_counted: caller.is_counted,
        arrival: caller.arrival,
        ..Inbound::new(parts.method, path, caller.caller)
    })
}

/// The innermost layer.
#[derive(Clone, Debug)]
pub(super) struct Dispatch(Arc<DispatchState>);

#[derive(Debug)]
struct DispatchState {
    routes: Routes,
    limits: ListenerLimits,
    body_bytes_max: usize,
    notices: Arc<Notices>,
}

impl Dispatch {
    pub(super) fn new(routes: Routes, limits: ListenerLimits, body_bytes_max: usize, notices: Arc<Notices>) -> Self {
        Self(Arc::new(DispatchState { routes, limits, body_bytes_max, notices }))
    }

    pub(super) fn serves(&self, path: &str) -> bool {
        self.0.routes.find(path).is_some()
    }

    pub(super) fn is_public(&self, path: &str) -> bool {
        self.0.routes.find(path).is_some_and(|endpoint| endpoint.is_public())
    }

    /// The facts about a request's path that the guards need.
    pub(super) fn asked<'p>(&self, path: &'p str) -> AskedPath<'p> {
        let routes = &self.0.routes;
        let found = routes.find(path).filter(|endpoint| !endpoint.is_public());
        AskedPath {
            endpoint: found.map(|_| routes.served_path(path)),
            wait: KeyWait::Allowed,
            certificate: None,
            forwards: routes.forward_authorization && found.is_some_and(|endpoint| endpoint.forwards(&AUTHORIZATION)),
        }
    }

    /// Whether any upstream receives a header, regardless of path: a preflight must not reveal which paths exist.
    pub(super) fn forwards(&self, header: &HeaderName) -> bool {
        self.0.routes.forwards(header)
    }

    pub(super) async fn answer(&self, request: Box<Request<Incoming>>, caller: AdmittedCaller) -> FaceResponse {
        self.0.answer(request, caller).await
    }
}

impl DispatchState {
    async fn answer(&self, mut request: Box<Request<Incoming>>, caller: AdmittedCaller) -> FaceResponse {
        let received_at = Instant::now();
        let position = StreamPosition::of(&request);
        let (endpoint, accepted) = match self.admit(&request, &caller.caller) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                let refused = RefusedCaller { client: caller.client, principal: Some(&caller.caller.principal) };
                self.notices.refused(&refusal, refused, request.uri(), request.headers());
                return refusal.answer(position);
            }
        };
        let posted = *request.method() == Method::POST;
        let body = if posted {
            match self.read(request.body_mut()).await {
                Ok(body) => body,
                Err(_) if caller.arrival.has_left() => return FaceResponse::new(empty_body()),
                Err(refusal) => {
                    let refused = RefusedCaller { client: caller.client, principal: Some(&caller.caller.principal) };
                    self.notices.refused(&refusal, refused, request.uri(), request.headers());
                    return refusal.answer(position.after_body());
                }
            }
        } else {
            Bytes::new()
        };
        let path = self.routes.served_path(request.uri().path()).to_owned();
        let inbound = inbound(path, *request, body, caller, accepted, received_at);
        let mut response = endpoint.serve(inbound).await;
        if !posted && position == StreamPosition::Unread {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Checks everything that needs no byte of the body.
    fn admit(
        &self,
        request: &Request<Incoming>,
        caller: &Caller,
    ) -> Result<(&Arc<dyn Endpoint>, AcceptedTypes), Refusal> {
        let unknown = || Refusal::PathUnknown(self.routes.paths_for(&caller.principal));
        let endpoint = self.routes.find(request.uri().path()).ok_or_else(unknown)?;
        if !endpoint.is_for(caller) {
            return Err(Refusal::PathWithheld);
        }
        let (method, headers) = (request.method(), request.headers());
        if !endpoint.takes(method) {
            return Err(Refusal::MethodUnknown(endpoint.allow()));
        }
        let accepted = media::accepted(headers);
        if method == Method::POST {
            media::check_content(headers)?;
            if accepted == AcceptedTypes::Neither {
                return Err(Refusal::NotAcceptable);
            }
        }
        head::check_expectation(headers)?;
        head::check_transfer_coding(headers)?;
        Ok((endpoint, accepted))
    }

    async fn read(&self, incoming: &mut Incoming) -> Result<Bytes, Refusal> {
        let body = body::collect(incoming, self.body_bytes_max, &self.limits).await?;
        if body.is_empty() { Err(Refusal::BodyEmpty) } else { Ok(body) }
    }
}
