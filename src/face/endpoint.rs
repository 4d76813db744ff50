//! Serves one upstream: each message goes to the face of its era.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use metrics::Counter;
use tokio_util::sync::CancellationToken;

use super::admitted_request::refuse_all;
use super::answer::{ErrorAnswerMarker, bare};
use super::array_answer::ArrayItems;
use super::client_login::ClientLogin;
use super::dev_requests;
use super::http::{Endpoint, FaceResponse, Inbound, MessageChannel, ending_with, is_event_stream};
use super::intake::{PathContext, PathFaces};
use super::served::Served;
use super::session::{self, SessionFace};
use super::session_owners::ForwardedMarker;
use super::stateless::{MessageContext, StatelessFace};
use super::{affinity, headers};
use crate::audit::{AuditAct, AuditEvent};
use crate::metric;
use crate::task::{Caller, Executed, GatewayFault, Reason, WithheldBy};
use crate::wire::envelope::{self, Request, Response};
use crate::wire::{Message, RequestId, ScanLimits, method};

#[derive(Debug)]
pub struct UpstreamEndpoint {
    stateless: StatelessFace,
    session: SessionFace,
    served: Arc<Served>,
    upstreams: Arc<Vec<Arc<str>>>,
    outcomes: RequestOutcomes,
    pub login: Option<ClientLogin>,
}

impl UpstreamEndpoint {
    pub fn new(served: Arc<Served>) -> Self {
        let (stateless, session) = (StatelessFace::new(Arc::clone(&served)), SessionFace::new(Arc::clone(&served)));
        let outcomes = RequestOutcomes::of(served.upstream.name());
        let upstreams = Arc::new(vec![Arc::clone(served.upstream.name())]);
        Self { stateless, session, served, upstreams, outcomes, login: None }
    }

    #[must_use]
    pub fn with_login(self, login: Option<ClientLogin>) -> Self {
        Self { login, ..self }
    }

    pub(super) fn is_asked_by_a_task(&self, id: &RequestId) -> bool {
        self.session.is_asked_by_a_task(id)
    }

    pub(super) fn has_ended(&self, nonce: u128) -> bool {
        self.session.has_ended(nonce)
    }

    pub(super) async fn take_answer(&self, caller: &Caller, response: Response) -> FaceResponse {
        let response = self.session.take_answer(caller, response).await;
        self.outcomes.count(&response, is_event_stream(&response));
        response
    }

    /// Returns once the rules have changed: they may withhold a resource with notifications.
    fn access_changed(&self, caller: &Caller) -> BoxFuture<'static, ()> {
        let (lost, changed) = (self.withheld_from(caller), self.served.engine.access().rules_changed());
        async move {
            tokio::select! {
                () = lost => (),
                () = changed => (),
            }
        }
        .boxed()
    }

    /// The path was checked before, but not for each message of an HTTP+SSE stream. Its session still ends.
    fn refusal(&self, inbound: &Inbound) -> Option<FaceResponse> {
        if inbound.method == Method::DELETE || self.withheld_by(&inbound.caller).is_none() {
            return None;
        }
        if let Some(audit) = self.served.engine.audit() {
            let (who, upstream) = (Some(&inbound.caller.principal), Some(&**self.served.upstream.name()));
            audit.record(&AuditEvent { who, upstream, ..AuditEvent::new(AuditAct::RuleDenied) });
        }
        Some(bare(StatusCode::NOT_FOUND))
    }

    pub async fn evict_expired(&self, stop: &CancellationToken) {
        tokio::join!(self.stateless.evict_expired(stop), self.session.evict_expired(stop));
    }
}

#[async_trait]
impl Endpoint for UpstreamEndpoint {
    /// One function: an inner future would be copied as a whole.
    async fn serve(&self, mut inbound: Box<Inbound>) -> FaceResponse {
        let shown = dev_requests::begin(&inbound, |inbound| self.session.client_version(inbound).ok());
        if let Some(refusal) = self.refusal(&inbound) {
            return dev_requests::shown(shown, refusal);
        }
        let (holder, carriage) = (inbound.caller.clone(), inbound.carriage);
        let forwarded = self.served.settings.forwarding.of(&inbound.headers, &inbound.caller);
        inbound.forwarded = forwarded.clone();
        // Before the server is asked: a reload while it answers counts, too.
        let changed = carries_notifications(&inbound).then(|| self.access_changed(&holder));
        let mut response = affinity::answer(self, inbound).await;
        let is_stream = is_event_stream(&response);
        // A forwarded request was counted by the replica that answered it.
        if response.extensions().get::<ForwardedMarker>().is_none() {
            self.outcomes.count(&response, is_stream);
        }
        if let Some(login) = &self.login {
            response = login.relay(response, &forwarded, carriage);
        }
        if is_stream {
            response = ending_with(response, || changed.unwrap_or_else(|| self.withheld_from(&holder)));
        }
        dev_requests::shown(shown, response)
    }

    fn withheld_by(&self, caller: &Caller) -> Option<WithheldBy> {
        self.served.engine.access().upstream_withheld_by(caller, self.served.upstream.name())
    }

    fn upstreams(&self) -> Arc<Vec<Arc<str>>> {
        Arc::clone(&self.upstreams)
    }

    fn withheld_from(&self, caller: &Caller) -> BoxFuture<'static, ()> {
        self.served.engine.access().upstream_lost(caller, self.served.upstream.name()).boxed()
    }

    fn forwards(&self, header: &HeaderName) -> bool {
        let forwarding = &self.served.settings.forwarding;
        // A token that is exchanged is needed here, even if the server never gets it.
        forwarding.has(header) || (*header == AUTHORIZATION && forwarding.is_per_client())
    }

    fn exchanges_tokens(&self) -> bool {
        self.served.settings.forwarding.exchanges_tokens()
    }

    fn allow(&self) -> HeaderValue {
        session::ALLOWED
    }
}

/// Whether a request opens a stream of notifications that its client opens again, which it cannot over HTTP+SSE and stdio.
fn carries_notifications(request: &Inbound) -> bool {
    let listens = || request.headers.get(headers::METHOD).is_some_and(|name| name == method::LISTEN);
    request.method == Method::GET || (request.carriage == MessageChannel::Request && listens())
}

impl PathFaces for UpstreamEndpoint {
    fn path(&self) -> PathContext<'_> {
        PathContext { served: &self.served, name: self.served.channel.name(), streams_end: &self.served.streams_end }
    }

    fn stateless(&self, inbound: &Inbound, request: &Request) -> impl Future<Output = FaceResponse> + Send {
        let around = MessageContext {
            headers: &inbound.headers,
            forwarded: &inbound.forwarded,
            body: &inbound.body,
            caller: inbound.caller.clone(),
            counted_as: inbound.counted_as(),
            is_counted: inbound.is_counted,
            accepted: inbound.accepted,
            arrived: inbound.received_at,
            carriage: inbound.carriage,
            has_key: inbound.arrival.has_key(),
        };
        self.stateless.serve(request, around)
    }

    fn post(&self, inbound: Box<Inbound>, message: Box<Message>) -> impl Future<Output = FaceResponse> + Send {
        self.session.post(inbound, message)
    }

    async fn post_batch(&self, inbound: &Inbound, items: ArrayItems) -> FaceResponse {
        match session::refusal_of_array(self.session.client_version(inbound), inbound) {
            Some(refusal) => refusal,
            None => self.session.post_batch(inbound, items).await,
        }
    }

    async fn get(&self, inbound: &Inbound) -> FaceResponse {
        self.session.get(inbound).await
    }

    async fn delete(&self, inbound: &Inbound) -> FaceResponse {
        self.session.delete(inbound).await
    }

    fn has_in_flight(&self, nonce: u128, id: &RequestId) -> bool {
        self.session.has_in_flight(nonce, id)
    }
}

/// Serves the path of a removed upstream: its tasks, and until its last call has ended streams that are resumed (F115).
#[derive(Debug)]
pub struct ClosingEndpoint {
    endpoint: Arc<UpstreamEndpoint>,
    closed: CancellationToken,
}

impl ClosingEndpoint {
    /// Once `closed`, no message reaches the server, which may be a program that would start again (SEC-81).
    pub const fn new(endpoint: Arc<UpstreamEndpoint>, closed: CancellationToken) -> Self {
        Self { endpoint, closed }
    }

    fn refusal(&self, request: &Inbound) -> Option<StatusCode> {
        if request.method != Method::POST {
            let resumes = request.headers.contains_key(headers::LAST_EVENT_ID)
                && !self.endpoint.served.streams_end.is_cancelled();
            return (request.method == Method::GET && !resumes).then_some(StatusCode::NOT_FOUND);
        }
        match envelope::read(&request.body, ScanLimits::CLIENT) {
            Ok(Message::Request(request)) if request.method.starts_with("tasks/") => None,
            Ok(Message::Request(_)) | Err(_) => Some(StatusCode::NOT_FOUND),
            Ok(_) => self.closed.is_cancelled().then_some(StatusCode::ACCEPTED),
        }
    }
}

#[async_trait]
impl Endpoint for ClosingEndpoint {
    async fn serve(&self, request: Box<Inbound>) -> FaceResponse {
        if let Some(status) = self.refusal(&request) { bare(status) } else { self.endpoint.serve(request).await }
    }

    fn withheld_by(&self, caller: &Caller) -> Option<WithheldBy> {
        self.endpoint.withheld_by(caller)
    }

    fn withheld_from(&self, caller: &Caller) -> BoxFuture<'static, ()> {
        self.endpoint.withheld_from(caller)
    }

    fn upstreams(&self) -> Arc<Vec<Arc<str>>> {
        self.endpoint.upstreams()
    }

    fn forwards(&self, header: &HeaderName) -> bool {
        self.endpoint.forwards(header)
    }

    fn exchanges_tokens(&self) -> bool {
        self.endpoint.exchanges_tokens()
    }

    fn allow(&self) -> HeaderValue {
        self.endpoint.allow()
    }
}

#[derive(Debug)]
pub struct UnavailableStoreEndpoint;

#[async_trait]
impl Endpoint for UnavailableStoreEndpoint {
    async fn serve(&self, request: Box<Inbound>) -> FaceResponse {
        refuse_all(&request, &GatewayFault::new(Reason::StoreFailed, Executed::No))
    }
}

struct RequestOutcomes {
    answered: Counter,
    stream: Counter,
    accepted: Counter,
    error: Counter,
    refused: Counter,
}

impl RequestOutcomes {
    /// The metrics recorder must be installed before.
    fn of(upstream: &Arc<str>) -> Self {
        let counter = |outcome: &'static str| metrics::counter!(metric::REQUESTS, "upstream" => Arc::clone(upstream), "outcome" => outcome);
        Self {
            answered: counter("answered"),
            stream: counter("stream"),
            accepted: counter("accepted"),
            error: counter("error"),
            refused: counter("refused"),
        }
    }

    fn count(&self, response: &FaceResponse, is_stream: bool) {
        let status = response.status();
        let counter = if status.is_client_error() || status.is_server_error() {
            &self.refused
        } else if status == StatusCode::ACCEPTED {
            &self.accepted
        } else if response.extensions().get::<ErrorAnswerMarker>().is_some() {
            &self.error
        } else if is_stream {
            &self.stream
        } else {
            &self.answered
        };
        counter.increment(1);
    }
}

debug_members!(RequestOutcomes);
