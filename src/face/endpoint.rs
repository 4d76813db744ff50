//! Serves one upstream: each message goes to the face of its era.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue, StatusCode};
use tokio_util::sync::CancellationToken;

use super::affinity;
use super::answer::bare;
use super::array_answer::ArrayItems;
use super::client_login::ClientLogin;
use super::http::{Endpoint, FaceResponse, Inbound};
use super::intake::{PathContext, PathFaces};
use super::request_outcomes::RequestOutcomes;
use super::revocable_body::ending_with;
use super::served::Served;
use super::session::{self, SessionFace};
use super::session_owners::ForwardedMarker;
use super::stateless::{MessageContext, StatelessFace};
use crate::task::Principal;
use crate::wire::envelope::{Request, Response};
use crate::wire::{Message, RequestId};

#[derive(Debug)]
pub struct UpstreamEndpoint {
    stateless: StatelessFace,
    session: SessionFace,
    served: Arc<Served>,
    outcomes: RequestOutcomes,
    /// Set if clients log in at the server themselves.
    login: Option<ClientLogin>,
}

impl UpstreamEndpoint {
    #[must_use]
    pub fn new(served: Arc<Served>) -> Self {
        let (stateless, session) = (StatelessFace::new(Arc::clone(&served)), SessionFace::new(Arc::clone(&served)));
        let outcomes = RequestOutcomes::of(served.upstream.name());
        Self { stateless, session, served, outcomes, login: None }
    }

    #[must_use]
    pub fn with_login(self, login: Option<ClientLogin>) -> Self {
        Self { login, ..self }
    }

    #[must_use]
    pub const fn login(&self) -> Option<&ClientLogin> {
        self.login.as_ref()
    }

    pub(super) fn is_asked_by_a_task(&self, id: &RequestId) -> bool {
        self.session.is_asked_by_a_task(id)
    }

    /// Accepts the answer to a task's question in any session of the principal.
    pub(super) async fn take_answer(&self, principal: &Principal, response: Response) -> FaceResponse {
        let response = self.session.take_answer(principal, response).await;
        self.outcomes.count(&response);
        response
    }

    /// Cleans up the caches, until stopped.
    pub async fn keep_tidy(&self, stop: &CancellationToken) {
        tokio::join!(self.stateless.keep_tidy(stop), self.session.keep_tidy(stop));
    }
}

#[async_trait]
impl Endpoint for UpstreamEndpoint {
    async fn serve(&self, mut inbound: Inbound) -> FaceResponse {
        // The path was checked before, but not for each message of an HTTP+SSE stream.
        if !self.is_for(&inbound.principal) {
            return bare(StatusCode::NOT_FOUND);
        }
        let holder = inbound.principal.key_id().is_some().then(|| inbound.principal.clone());
        let (forwarded, carriage) = (self.served.settings.forwarding.of(&inbound.headers), inbound.carriage);
        inbound.forwarded = forwarded.clone();
        let response = affinity::answer(self, inbound).await;
        // A forwarded request was counted by the replica that answered it.
        if response.extensions().get::<ForwardedMarker>().is_none() {
            self.outcomes.count(&response);
        }
        let response = match &self.login {
            Some(login) => login.relay(response, &forwarded, carriage),
            None => response,
        };
        match holder {
            Some(holder) => ending_with(response, || self.withheld_from(&holder)),
            // A client without a key has no right that could be withdrawn.
            None => response,
        }
    }

    fn is_for(&self, principal: &Principal) -> bool {
        self.served.engine.access().has_upstream(principal, self.served.upstream.name())
    }

    fn withheld_from(&self, principal: &Principal) -> BoxFuture<'static, ()> {
        self.served.engine.access().upstream_lost(principal, self.served.upstream.name()).boxed()
    }

    fn forwards(&self, header: &HeaderName) -> bool {
        self.served.settings.forwarding.has(header)
    }

    fn allow(&self) -> HeaderValue {
        session::ALLOWED
    }
}

impl PathFaces for UpstreamEndpoint {
    fn path(&self) -> PathContext<'_> {
        PathContext { served: &self.served, name: self.served.channel.name(), leaving: &self.served.leaving }
    }

    async fn stateless(&self, inbound: &Inbound, request: Request) -> FaceResponse {
        let around = MessageContext {
            headers: &inbound.headers,
            forwarded: &inbound.forwarded,
            body: &inbound.body,
            principal: inbound.principal.clone(),
            counted_as: inbound.counted_as(),
            is_counted: inbound.is_counted,
            accepted: inbound.accepted,
            arrived: inbound.received_at,
            carriage: inbound.carriage,
            has_key: inbound.arrival.has_key(),
        };
        self.stateless.serve(&request, around).await
    }

    async fn post(&self, inbound: Box<Inbound>, message: Box<Message>) -> FaceResponse {
        self.session.post(inbound, message).await
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

    fn has_under_way(&self, nonce: u128, id: &RequestId) -> bool {
        self.session.has_under_way(nonce, id)
    }
}
