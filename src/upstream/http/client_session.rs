//! Runs calls in one client's own session (see [`own`](crate::upstream::session::own)), and gives raw access to it.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::broadcast;

use super::drive::SessionSource;
use super::exchange::HttpExchange;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::outgoing::{HandedOver, OutgoingRequest, SessionHeaders};
use crate::upstream::raw_channel::{RawBody, RawChannel, RawMethod, RawRequest, RawResponse, SessionBinding};
use crate::upstream::session::UpstreamLink;
use crate::upstream::session::own::{OwnSessionChannel, SessionLease};
use crate::upstream::upstream_health::UpstreamHealth;
use crate::upstream::{BeginError, CallContext, Exchange, ResumeToken, ServerFacts, Upstream, UpstreamRequest};
use crate::wire::{Payload, ProtocolVersion};

#[derive(Debug)]
struct ClientSessionUpstream {
    link: Arc<UpstreamLink>,
    lease: Arc<SessionLease>,
}

impl ClientSessionUpstream {
    fn new(link: Arc<UpstreamLink>, lease: Arc<SessionLease>) -> Self {
        Self { link, lease }
    }

    fn home(&self) -> SessionSource {
        SessionSource::Own(Arc::clone(&self.lease))
    }
}

/// The client alone received the handshake's result and the notifications.
const fn not_known_here() -> BeginError {
    BeginError::Gateway(GatewayFault::new(Reason::Internal, Executed::No))
}

#[async_trait]
impl Upstream for ClientSessionUpstream {
    fn name(&self) -> &Arc<str> {
        &self.link.name
    }

    async fn facts(&self, _: &CallContext) -> Result<Arc<ServerFacts>, BeginError> {
        Err(not_known_here())
    }

    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        Ok(Box::new(HttpExchange::begin(&self.link, self.home(), request, &context).await?))
    }

    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        Ok(Box::new(HttpExchange::resume(&self.link, self.home(), &token, &context)?))
    }

    async fn notifications(
        &self,
        _: &CallContext,
    ) -> Result<broadcast::Receiver<(Arc<str>, Option<Payload>)>, BeginError> {
        Err(not_known_here())
    }
}

#[async_trait]
impl RawChannel for Arc<UpstreamLink> {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn version_for(&self, client: ProtocolVersion) -> ProtocolVersion {
        self.versions.fixed().unwrap_or(client)
    }

    fn version_after(&self, asked: ProtocolVersion, refusal: &BeginError) -> Option<ProtocolVersion> {
        self.versions.older(asked, refusal)
    }

    async fn send(&self, request: RawRequest) -> Result<RawResponse, GatewayFault> {
        let outgoing = outgoing(request);
        let response = self.transport.send(&outgoing, &HandedOver::default()).await?;
        outgoing.finish();
        Ok(response.map(RawBody::from).into())
    }

    fn health(&self) -> Option<&UpstreamHealth> {
        Some(&self.health)
    }

    fn makes_streams(&self) -> bool {
        self.transport.is_adapted()
    }

    fn reads_messages(&self) -> bool {
        self.transport.is_adapted()
    }
}

impl OwnSessionChannel for Arc<UpstreamLink> {
    fn calls_in(&self, lease: SessionLease) -> Arc<dyn Upstream> {
        Arc::new(ClientSessionUpstream::new(Self::clone(self), Arc::new(lease)))
    }
}

fn outgoing(request: RawRequest) -> OutgoingRequest {
    let SessionBinding { session, version, tasks: _ } = request.binding;
    let credentials = SessionHeaders { session, version, ..SessionHeaders::default() };
    let outgoing = match request.verb {
        RawMethod::Post(message) => credentials.post(message),
        RawMethod::Note(message) => credentials.post(message).under_way(),
        RawMethod::PostWith { message, headers, principal } => {
            credentials.post_with(message, headers).on_behalf_of(principal)
        }
        RawMethod::Get { last_event } => credentials.get(last_event.as_ref()),
        RawMethod::Delete => credentials.delete(),
    };
    outgoing.forwarding(request.forwarded)
}
