//! Runs calls in one client's own session (see [`own`](crate::upstream::session::own)), without a pool.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::broadcast;

use super::drive::SessionSource;
use super::exchange::HttpExchange;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::session::UpstreamLink;
use crate::upstream::session::own::SessionLease;
use crate::upstream::{BeginError, CallContext, Exchange, ResumeToken, ServerFacts, Upstream, UpstreamRequest};
use crate::wire::Payload;

#[derive(Debug)]
pub(super) struct ClientSessionUpstream {
    link: Arc<UpstreamLink>,
    lease: Arc<SessionLease>,
}

impl ClientSessionUpstream {
    pub(super) fn new(link: Arc<UpstreamLink>, lease: Arc<SessionLease>) -> Self {
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

    async fn close(&self) {}
}
