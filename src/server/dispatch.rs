//! Finds a request's endpoint: checks path, method, media type and body, in this order.

use std::collections::BTreeMap;
use std::error::Error;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONNECTION};
use http::{HeaderName, HeaderValue, Method, Request};
use hyper::body::{Body as _, Incoming};
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep, sleep_until};

use super::forwarded::network;
use super::head::{RareField, RareFields};
use super::notices::{Notices, RefusedCaller};
use super::principal::AskedPath;
use super::refusal::{Refusal, StreamPosition, keep_open};
use super::tokens::LookupWait;
use super::{ListenerLimits, head, media};
use crate::body_wakes::poll_piece;
use crate::face::arrival::Arrival;
use crate::face::http::{AcceptedTypes, Endpoint, FaceResponse, Inbound, MessageChannel, empty_body};
use crate::task::{Caller, Principal};
use crate::upstream::ForwardedHeaders;

/// Paths that the answer to a request for an unknown one names.
const PATHS_SHOWN: usize = 20;

/// Maps paths to endpoints. Paths match byte for byte (B56), the query is ignored (B57).
#[derive(Clone, Default)]
pub struct Routes {
    exact: BTreeMap<Arc<str>, Arc<dyn Endpoint>>,
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
        self.exact.insert(Arc::from(path.into()), endpoint);
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
        let paths: Vec<Arc<str>> =
            self.exact.iter().filter(|(_, endpoint)| serves(endpoint)).map(|(path, _)| Arc::clone(path)).collect();
        paths.iter().map(|path| beside(path)).fold(self, |routes, (path, endpoint)| routes.with(path, endpoint))
    }

    fn forwards(&self, header: &HeaderName) -> bool {
        let below = self.below.iter().map(|(_, endpoint)| endpoint);
        self.exact.values().chain(below).any(|endpoint| endpoint.forwards(header))
    }

    /// The route of a request's path. Ignores one trailing slash: a redirect would lose the body and the credentials.
    fn find(&self, path: &str) -> Option<Route<'_>> {
        let exact = self.exact.get_key_value(path).or_else(|| self.exact.get_key_value(path.strip_suffix('/')?));
        if let Some((path, endpoint)) = exact {
            return Some(Route { path: Some(path), endpoint });
        }
        let below = self.below.iter().find(|(prefix, _)| path.starts_with(prefix));
        below.map(|(_, endpoint)| Route { path: None, endpoint })
    }

    /// The first paths of servers, for the operator's own client on this machine. Other clients do not learn them.
    fn paths_for(&self, principal: &Principal) -> String {
        if !principal.is_local() {
            return String::new();
        }
        let serves = |endpoint: &Arc<dyn Endpoint>| endpoint.takes(&Method::POST) && !endpoint.is_public();
        let all = self.exact.iter().filter(|(_, endpoint)| serves(endpoint));
        all.map(|(path, _)| &**path).take(PATHS_SHOWN).collect::<Vec<_>>().join(", ")
    }
}

debug_members!(Routes, |routes| paths: routes.exact.len());

/// An endpoint, as a request's path leads to it.
#[derive(Clone, Copy)]
pub(super) struct Route<'r> {
    /// `None` for one of all paths below a prefix, which is served under the request's path.
    path: Option<&'r Arc<str>>,
    endpoint: &'r Arc<dyn Endpoint>,
}

impl Route<'_> {
    pub(super) fn is_public(&self) -> bool {
        self.endpoint.is_public()
    }

    /// Whether a token is needed behind the path, in exchange for a credential.
    pub(super) fn exchanges_tokens(&self) -> bool {
        self.endpoint.exchanges_tokens()
    }
}

pub(super) struct AdmittedCaller {
    pub(super) caller: Caller,
    pub(super) client: IpAddr,
    /// Whether another replica counts its requests.
    pub(super) is_counted: bool,
    pub(super) rare: RareFields,
    pub(super) arrival: Arrival,
}

/// The parts of an admitted request that an endpoint needs; the rest is dropped, so that no buffer is retained.
fn inbound(
    path: Arc<str>,
    request: Request<Incoming>,
    body: Bytes,
    caller: AdmittedCaller,
    accepted: AcceptedTypes,
    received_at: Instant,
) -> Box<Inbound> {
    let (parts, _) = request.into_parts();
    // Each field is named: `Inbound::new` reads the clock, and allocates another arrival.
    Box::new(Inbound {
        method: parts.method,
        path,
        query: parts.uri.query().map(str::to_owned),
        headers: parts.headers,
        body,
        message: None,
        caller: caller.caller,
        client: Some(network(caller.client)),
        accepted,
        forwarded: ForwardedHeaders::default(),
        received_at,
        carriage: MessageChannel::Request,
        is_counted: caller.is_counted,
        endpoint_session: None,
        arrival: caller.arrival,
        array_tools: None,
    })
}

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

    pub(super) fn route(&self, path: &str) -> Option<Route<'_>> {
        self.0.routes.find(path)
    }

    /// The facts about a request's path that the guards need.
    pub(super) fn asked<'p>(&self, route: Option<Route<'p>>, path: &'p str, rare: RareFields) -> AskedPath<'p> {
        let found = route.filter(|route| !route.is_public());
        let forwards = |route: Route<'_>| route.endpoint.forwards(&AUTHORIZATION);
        AskedPath {
            endpoint: found.map(|route| route.path.map_or(path, |path| path)),
            wait: LookupWait::Allowed,
            certificate: None,
            rare,
            forwards: self.0.routes.forward_authorization && found.is_some_and(forwards),
        }
    }

    /// Whether any upstream receives a header, regardless of path: a preflight must not reveal which paths exist.
    pub(super) fn forwards(&self, header: &HeaderName) -> bool {
        self.0.routes.forwards(header)
    }

    pub(super) async fn answer(
        &self,
        mut request: Box<Request<Incoming>>,
        route: Option<Route<'_>>,
        mut caller: AdmittedCaller,
    ) -> FaceResponse {
        let received_at = Instant::now();
        let position = StreamPosition::of(&request);
        let (route, accepted) = match self.0.admit(&request, route, &caller) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                let response = self.0.refuse(refusal, &caller, &request, position);
                return keep_open(response, *request);
            }
        };
        caller.caller = caller.caller.at(|| route.endpoint.upstreams());
        let posted = *request.method() == Method::POST;
        let body = if posted {
            match self.0.read(request.body_mut()).await {
                Ok(body) => body,
                Err(_) if caller.arrival.has_left() => return FaceResponse::new(empty_body()),
                Err(refusal) => {
                    let response = self.0.refuse(refusal, &caller, &request, position.after_body());
                    return keep_open(response, *request);
                }
            }
        } else {
            Bytes::new()
        };
        let path = route.path.map_or_else(|| Arc::from(request.uri().path()), Arc::clone);
        let inbound = inbound(path, *request, body, caller, accepted, received_at);
        let mut response = route.endpoint.serve(inbound).await;
        if !posted && position == StreamPosition::Unread {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl DispatchState {
    fn refuse(
        &self,
        refusal: Refusal,
        caller: &AdmittedCaller,
        request: &Request<Incoming>,
        position: StreamPosition,
    ) -> FaceResponse {
        let refused = RefusedCaller { client: caller.client, principal: Some(&caller.caller.principal) };
        self.notices.refused(&refusal, refused, request.uri(), request.headers());
        refusal.answer(position)
    }

    /// Checks everything that needs no byte of the body.
    fn admit<'r>(
        &self,
        request: &Request<Incoming>,
        route: Option<Route<'r>>,
        AdmittedCaller { caller, rare, .. }: &AdmittedCaller,
    ) -> Result<(Route<'r>, AcceptedTypes), Refusal> {
        let unknown = || Refusal::PathUnknown(self.routes.paths_for(&caller.principal));
        let route = route.ok_or_else(unknown)?;
        let endpoint = route.endpoint;
        if let Some(by) = endpoint.withheld_by(caller) {
            return Err(Refusal::PathWithheld(by));
        }
        let (method, headers) = (request.method(), request.headers());
        if !endpoint.takes(method) {
            return Err(Refusal::MethodNotAllowed(endpoint.allow()));
        }
        let accepted = media::accepted(headers);
        if method == Method::POST {
            if rare.has(RareField::ContentEncoding) {
                media::check_coding(headers)?;
            }
            media::check_content(headers)?;
            if accepted == AcceptedTypes::Neither {
                return Err(Refusal::NotAcceptable);
            }
        }
        if rare.has(RareField::Expect) {
            head::check_expectation(headers)?;
        }
        if rare.has(RareField::TransferEncoding) {
            head::check_transfer_coding(headers)?;
        }
        Ok((route, accepted))
    }

    async fn read(&self, incoming: &mut Incoming) -> Result<Bytes, Refusal> {
        let body = collect_body(incoming, self.body_bytes_max, &self.limits).await?;
        if body.is_empty() { Err(Refusal::BodyEmpty) } else { Ok(body) }
    }
}

/// Bodies up to this are copied: a slice would retain the connection's buffer of 8 KiB or more, and cost it another.
const COPIED_BYTES_MAX: usize = 4 << 10;
/// Bodies up to this share one block of 384 bytes with their count of references; larger ones take a block for each.
const INLINE_BYTES_MAX: usize = 368;

/// Reads the whole body; drops trailers (B17). Refuses by `Content-Length` before a byte is read, so that it gets no
/// `100 Continue` (B23, B70), else at the first excess byte (B71). Holds at most `bytes_max` and one frame.
async fn collect_body(body: &mut Incoming, bytes_max: usize, limits: &ListenerLimits) -> Result<Bytes, Refusal> {
    let size = body.size_hint().exact();
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bytes_max {
        return Err(Refusal::BodyTooLarge);
    }
    let mut gathered = BodyBuffer::default();
    let mut pace = None;
    let mut timer = pin!(None::<Sleep>);
    loop {
        let frame = poll_fn(|context| {
            if let Poll::Ready(frame) = poll_piece(Pin::new(&mut *body), context) {
                return Poll::Ready(Ok(frame));
            }
            // A body that has arrived sets no timer.
            let pace = pace.get_or_insert_with(|| BodyPace::begin(limits));
            loop {
                if timer.is_none() {
                    timer.set(Some(sleep_until(pace.next_look(limits))));
                }
                ready!(timer.as_mut().as_pin_mut().map_or(Poll::Pending, |timer| timer.poll(context)));
                if pace.is_too_slow(gathered.len(), limits) {
                    return Poll::Ready(Err(Refusal::BodyTooSlow));
                }
                timer.set(None);
            }
        });
        let frame = frame.await?;
        match frame {
            None => return Ok(gathered.finish()),
            // The body is complete and its client has left: the reset hides the end of the body.
            Some(Err(_)) if size == Some(gathered.len() as u64) => return Ok(gathered.finish()),
            Some(Err(error)) => return Err(broken(&error)),
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                if gathered.len() + data.len() > bytes_max {
                    return Err(Refusal::BodyTooLarge);
                }
                gathered.push(data, announced);
            }
        }
    }
}

/// The time limits of a body from its first wait on: all of it, and a number of bytes in each window.
struct BodyPace {
    window_began: Instant,
    ends_at: Instant,
    /// The bytes before the window.
    seen: usize,
}

impl BodyPace {
    fn begin(limits: &ListenerLimits) -> Self {
        let now = Instant::now();
        Self { window_began: now, ends_at: now + limits.body_deadline, seen: 0 }
    }

    fn next_look(&self, limits: &ListenerLimits) -> Instant {
        (self.window_began + limits.body_window).min(self.ends_at)
    }

    /// Whether the window that ends now had too few bytes, or was the last one. Else the next window begins.
    fn is_too_slow(&mut self, received: usize, limits: &ListenerLimits) -> bool {
        let now = Instant::now();
        if now >= self.ends_at || received - self.seen < limits.body_window_bytes_min {
            return true;
        }
        (self.window_began, self.seen) = (now, received);
        false
    }
}

/// hyper distinguishes the two only by text; a socket test fails if that text changes.
fn broken(error: &hyper::Error) -> Refusal {
    let extensions = error.source().is_some_and(|cause| cause.to_string().contains("extensions over limit"));
    if extensions { Refusal::ChunkExtensions } else { Refusal::BodyBroken }
}

/// The bytes so far. A large body of one frame is never copied.
#[derive(Default)]
struct BodyBuffer {
    only: Bytes,
    joined: BytesMut,
}

impl BodyBuffer {
    fn len(&self) -> usize {
        self.only.len() + self.joined.len()
    }

    fn push(&mut self, data: Bytes, announced: usize) {
        if self.len() == 0 {
            self.only = data;
            return;
        }
        if self.joined.is_empty() {
            self.joined.reserve(announced.max(self.only.len() + data.len()));
            self.joined.extend_from_slice(&std::mem::take(&mut self.only));
        }
        self.joined.extend_from_slice(&data);
    }

    fn finish(self) -> Bytes {
        match self.only.len() {
            0 => self.joined.freeze(),
            1..=INLINE_BYTES_MAX => Bytes::from_owner(SmallVec::<[u8; INLINE_BYTES_MAX]>::from_slice(&self.only)),
            len if len <= COPIED_BYTES_MAX => Bytes::copy_from_slice(&self.only),
            _ => self.only,
        }
    }
}
