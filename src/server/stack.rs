//! The layers in front of every endpoint, in order, with one reason each.

use std::any::Any;
use std::convert::Infallible;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};

use futures_util::future::{CatchUnwind, Either, FutureExt, Map, Ready, ready};
use http::header::CONNECTION;
use http::{HeaderValue, Request, StatusCode, Version};
use hyper::body::Incoming;
use tower::util::Oneshot;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use super::dispatch::Dispatch;
use super::head::HeadGuard;
use super::host::{HostGuard, OriginGuard};
use super::principal::PrincipalGuard;
use super::refusal::{Refusal, StreamPosition};
use crate::face::http::{Response, empty_body};
use crate::metric;

/// The parts of a stack. One per listener, cloned for each connection.
#[derive(Clone, Debug)]
pub(super) struct Layers {
    pub(super) head: HeadGuard,
    pub(super) host: HostGuard,
    pub(super) origin: OriginGuard,
    pub(super) principal: PrincipalGuard,
    pub(super) dispatch: Dispatch,
}

impl Layers {
    /// The same layers for a connection that came in on `local`.
    pub(super) fn on(&self, local: IpAddr) -> Self {
        Self { host: self.host.on(local), ..self.clone() }
    }
}

/// Builds the stack. Connections were admitted before, and answers are counted after it, in `connection`.
pub(super) fn stack(
    layers: Layers,
) -> impl Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send> + Clone + Send + 'static {
    ServiceBuilder::new()
        // A bug costs one answer, not the process (F64); outside everything that may have bugs.
        .layer(CatchPanicLayer)
        // What is too large to look at is not looked at by anyone below.
        .layer(GuardLayer(layers.head))
        // A rebound name must not reach anything (T06), the admin paths included.
        .layer(GuardLayer(layers.host))
        // A foreign page must not either; on its own, so that a mistake in one list opens nothing.
        .layer(GuardLayer(layers.origin))
        // Before the routes: no path is outside it, so nobody without a name learns which paths exist (T05).
        .layer(GuardLayer(layers.principal))
        .service(layers.dispatch)
}

/// A check of one request head that needs no waiting.
pub(super) trait Guard: Clone + Send + 'static {
    fn check<B>(&self, request: &mut Request<B>) -> Result<(), Refusal>;
}

/// Puts a [`Guard`] in front of a service.
#[derive(Clone, Debug)]
struct GuardLayer<G>(G);

impl<G: Clone, S> Layer<S> for GuardLayer<G> {
    type Service = Guarded<G, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Guarded { guard: self.0.clone(), inner }
    }
}

#[derive(Clone, Debug)]
struct Guarded<G, S> {
    guard: G,
    inner: S,
}

impl<G, S> Service<Request<Incoming>> for Guarded<G, S>
where
    G: Guard,
    S: Service<Request<Incoming>, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<Ready<Result<Response, Infallible>>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        match self.guard.check(&mut request) {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err(refusal) => Either::Left(ready(Ok(refusal.answer(StreamPosition::of(&request))))),
        }
    }
}

/// Turns a panic below into a bare 500.
#[derive(Clone, Copy, Debug)]
struct CatchPanicLayer;

impl<S> Layer<S> for CatchPanicLayer {
    type Service = CatchPanic<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CatchPanic(inner)
    }
}

#[derive(Clone, Debug)]
struct CatchPanic<S>(S);

type Caught = Result<Result<Response, Infallible>, Box<dyn Any + Send>>;

impl<S> Service<Request<Incoming>> for CatchPanic<S>
where
    S: Service<Request<Incoming>, Response = Response, Error = Infallible> + Clone,
{
    type Response = Response;
    type Error = Infallible;
    type Future =
        Map<CatchUnwind<AssertUnwindSafe<Oneshot<S, Request<Incoming>>>>, fn(Caught) -> Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let rescue: fn(Caught) -> Result<Response, Infallible> =
            if request.version() > Version::HTTP_11 { rescue_stream } else { rescue_connection };
        // Nothing that the panic left half done is used again: the request is gone with its future.
        AssertUnwindSafe(self.0.clone().oneshot(request)).catch_unwind().map(rescue)
    }
}

fn rescue_stream(caught: Caught) -> Result<Response, Infallible> {
    caught.unwrap_or_else(|_| {
        metrics::counter!(metric::HTTP_PANICS).increment(1);
        let mut response = Response::new(empty_body());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        Ok(response)
    })
}

/// As [`rescue_stream`], and ends the connection: how much of the body was read is unknown.
fn rescue_connection(caught: Caught) -> Result<Response, Infallible> {
    let panicked = caught.is_err();
    let mut response = rescue_stream(caught)?;
    if panicked {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}
