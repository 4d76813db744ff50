//! Gives raw access over HTTP: the same client and headers as exchanges have, without a session of the pool.

use std::sync::Arc;

use async_trait::async_trait;
use http_body_util::BodyExt;

use super::HttpUpstream;
use super::bound::BoundUpstream;
use super::client::HandedOver;
use super::post::{Credentials, Outgoing, SESSION_ID};
use super::reply;
use crate::task::GatewayFault;
use crate::upstream::Upstream;
use crate::upstream::conduit::{Binding, Conduit, ConduitRequest, ConduitResponse, OwnSession, Verb};
use crate::upstream::standing::Standing;
use crate::wire::{ProtocolVersion, RpcError};

#[async_trait]
impl Conduit for HttpUpstream {
    fn name(&self) -> &Arc<str> {
        &self.hop.name
    }

    fn version_for(&self, client: ProtocolVersion) -> ProtocolVersion {
        self.hop.versions.fixed().unwrap_or(client)
    }

    fn version_after(&self, asked: ProtocolVersion, refusal: &RpcError) -> Option<ProtocolVersion> {
        self.hop.versions.named_by(asked, refusal)
    }

    async fn send(&self, request: ConduitRequest) -> Result<ConduitResponse, GatewayFault> {
        let response = self.hop.carrier.send(&outgoing(request), &HandedOver::default()).await?;
        let content = reply::content_of(response.headers());
        Ok(ConduitResponse {
            status: response.status(),
            content,
            retry_after: reply::retry_after(response.headers()),
            session: response.headers().get(SESSION_ID).cloned(),
            body: response.into_body().boxed_unsync(),
        })
    }

    fn standing(&self) -> Option<&Standing> {
        Some(&self.hop.standing)
    }

    fn makes_streams(&self) -> bool {
        self.hop.carrier.is_stand()
    }

    fn bound(&self, own: Arc<dyn OwnSession>) -> Arc<dyn Upstream> {
        Arc::new(BoundUpstream::new(Arc::clone(&self.hop), own))
    }
}

fn outgoing(request: ConduitRequest) -> Outgoing {
    let Binding { session, version, tasks: _ } = request.binding;
    let credentials = Credentials { session, version };
    let outgoing = match request.verb {
        Verb::Post(message) => credentials.post(message),
        Verb::Note(message) => credentials.post(message).under_way(),
        Verb::PostWith { message, headers, principal } => {
            credentials.post_with(message, headers).on_behalf_of(principal)
        }
        Verb::Get { last_event } => credentials.get(last_event.as_ref()),
        Verb::Delete => credentials.delete(),
    };
    outgoing.forwarding(request.forwarded)
}
