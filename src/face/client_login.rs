//! Lets clients log in at an upstream: relays its challenges and its metadata (RFC 9728). The gateway neither issues
//! nor checks tokens. In metadata and challenges, the gateway's address replaces the server's.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use parking_lot::RwLock;

use super::answer::{ErrorAnswerMarker, refused, too_often};
use super::http::{Endpoint, FaceResponse, Inbound, MessageChannel, full_body};
use super::rates::Rates;
use crate::upstream::ForwardedHeaders;
use crate::upstream::resource_metadata::{MetadataError, ResourceMetadata, WELL_KNOWN};
use crate::wire::{Object, Payload, rpc_error};

/// Clients may cache metadata as long as the gateway does.
const KEPT_FOR: HeaderValue = HeaderValue::from_static("max-age=60");

/// The base of clients' URLs: scheme, host and port. Never taken from a request's `Host`. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct PublicAddress(Arc<RwLock<Arc<str>>>);

impl PublicAddress {
    pub fn set(&self, address: &str) {
        *self.0.write() = Arc::from(address);
    }

    fn of(&self, path: &str) -> String {
        format!("{}{path}", self.0.read())
    }
}

pub fn metadata_path(path: &str) -> String {
    format!("{WELL_KNOWN}{}", if path == "/" { "" } else { path })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResourceName {
    /// The gateway's URL, which clients know.
    #[default]
    Gateway,
    /// The server's own, for servers that accept only tokens for their own URL.
    Upstream,
}

#[derive(Clone, Debug)]
pub struct ClientLogin {
    pub address: PublicAddress,
    pub path: Arc<str>,
    pub metadata: Arc<ResourceMetadata>,
    pub resource: ResourceName,
}

impl ClientLogin {
    /// Relays a server's refusal of a client's credential with its challenge (U03). All other responses are unchanged.
    pub(super) fn relay(
        &self,
        mut response: FaceResponse,
        forwarded: &ForwardedHeaders,
        carriage: MessageChannel,
    ) -> FaceResponse {
        let is_error = !response.status().is_success() || response.extensions().get::<ErrorAnswerMarker>().is_some();
        let refusal = forwarded.refusal().filter(|_| is_error && carriage == MessageChannel::Request);
        let Some(refusal) = refusal else { return response };
        if let Some(address) = refusal.metadata_address() {
            self.metadata.announce(&address);
        }
        *response.status_mut() = refusal.status;
        let headers = response.headers_mut();
        for challenge in refusal.challenges(&self.address.of(&metadata_path(&self.path))) {
            headers.append(WWW_AUTHENTICATE, challenge);
        }
        response
    }

    async fn shown(&self) -> Result<Payload, MetadataError> {
        let own = self.metadata.get().await?;
        let Some(metadata) = Object::of(&own).filter(|_| self.resource == ResourceName::Gateway) else {
            return Ok(own);
        };
        // Signed metadata has the server's address, and overrides other members.
        let ours = Payload::text(&self.address.of(&self.path));
        Ok(metadata.edit().set("resource", ours).remove("signed_metadata").finish())
    }
}

/// Serves the metadata that clients read before their login, and so without a credential.
pub struct MetadataEndpoint {
    source: MetadataSource,
    rates: Arc<Rates>,
}

#[derive(Debug)]
enum MetadataSource {
    Own(Bytes),
    Relayed(ClientLogin),
}

debug_members!(MetadataEndpoint, |endpoint| source: endpoint.source);

impl MetadataEndpoint {
    /// Serves the gateway's own metadata.
    pub(super) const fn own(text: Bytes, rates: Arc<Rates>) -> Self {
        Self { source: MetadataSource::Own(text), rates }
    }

    /// Serves an upstream's metadata.
    pub const fn relayed(login: ClientLogin, rates: Arc<Rates>) -> Self {
        Self { source: MetadataSource::Relayed(login), rates }
    }
}

#[async_trait]
impl Endpoint for MetadataEndpoint {
    async fn serve(&self, inbound: Box<Inbound>) -> FaceResponse {
        if let Err(refusal) = self.rates.admit(&inbound.counted_as(), 1) {
            return too_often(&refusal);
        }
        let login = match &self.source {
            MetadataSource::Own(text) => return document(text.clone()),
            MetadataSource::Relayed(login) => login,
        };
        match login.shown().await {
            Ok(metadata) => document(metadata.into_bytes()),
            Err(error) => {
                let is_missing = error == MetadataError::Missing;
                let status = if is_missing { StatusCode::NOT_FOUND } else { StatusCode::BAD_GATEWAY };
                refused(status, rpc_error::INTERNAL_ERROR, &error.to_string())
            }
        }
    }

    fn is_public(&self) -> bool {
        true
    }

    fn is_page(&self) -> bool {
        true
    }
}

fn document(text: Bytes) -> FaceResponse {
    let mut response = FaceResponse::new(full_body(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, KEPT_FOR);
    response
}
