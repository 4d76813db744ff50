//! Serves the path of a removed upstream: clients may read, answer and cancel its tasks.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::answer::bare;
use super::endpoint::UpstreamEndpoint;
use super::http::{Endpoint, FaceResponse, Inbound};
use crate::task::Principal;
use crate::wire::envelope;
use crate::wire::{Message, ScanLimits, method};

/// Requests that are not about tasks get 404.
#[derive(Debug)]
pub struct ClosingEndpoint(Arc<UpstreamEndpoint>);

impl ClosingEndpoint {
    #[must_use]
    pub const fn new(endpoint: Arc<UpstreamEndpoint>) -> Self {
        Self(endpoint)
    }
}

/// Whether a request is about existing tasks.
fn is_kept(request: &Inbound) -> bool {
    if request.method != Method::POST {
        return true;
    }
    match envelope::read(&request.body, ScanLimits::CLIENT) {
        Ok(Message::Request(request)) => request.method.starts_with("tasks/") || request.method == method::LISTEN,
        Ok(Message::Notification(_) | Message::Response(_)) => true,
        Err(_) => false,
    }
}

#[async_trait]
impl Endpoint for ClosingEndpoint {
    async fn serve(&self, request: Inbound) -> FaceResponse {
        if is_kept(&request) { self.0.serve(request).await } else { bare(StatusCode::NOT_FOUND) }
    }

    fn is_for(&self, principal: &Principal) -> bool {
        self.0.is_for(principal)
    }

    fn forwards(&self, header: &HeaderName) -> bool {
        self.0.forwards(header)
    }

    fn allow(&self) -> HeaderValue {
        self.0.allow()
    }
}
