//! Implements raw access over HTTP: as exchanges, without a session of the pool.

use std::sync::Arc;

use async_trait::async_trait;
use http_body_util::BodyExt;

use super::client_session::ClientSessionUpstream;
use crate::task::GatewayFault;
use crate::upstream::outgoing::{HandedOver, OutgoingRequest, SessionHeaders};
use crate::upstream::raw_channel::{RawChannel, RawMethod, RawRequest, RawResponse, SessionBinding};
use crate::upstream::session::UpstreamLink;
use crate::upstream::session::own::{OwnSessionChannel, SessionLease};
use crate::upstream::upstream_health::UpstreamHealth;
use crate::upstream::{BeginError, Upstream};
use crate::wire::ProtocolVersion;

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
        let response = self.transport.send(&outgoing(request), &HandedOver::default()).await?;
        Ok(response.map(|body| body.boxed_unsync()).into())
    }

    fn health(&self) -> Option<&UpstreamHealth> {
        Some(&self.health)
    }

    fn makes_streams(&self) -> bool {
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
