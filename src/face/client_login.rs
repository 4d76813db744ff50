//! Lets clients log in at a server that asks for a credential of theirs: its refusals reach them as they are meant, and its
//! metadata under the gateway's address (RFC 9728).
//!
//! The gateway issues no token and checks none. It stands where the server stands, so what names the server's place names
//! the gateway's instead.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, StatusCode};
use parking_lot::RwLock;

use super::answer::{ErrorAnswerMarker, refused, too_often};
use super::http::{Endpoint, FaceResponse, Inbound, MessageChannel, full_body};
use super::rates::Rates;
use crate::upstream::ForwardedHeaders;
use crate::upstream::resource_metadata::{MetadataError, ResourceMetadata, WELL_KNOWN};
use crate::wire::{Object, Payload, rpc_error};

/// Metadata may be kept for as long as the gateway keeps it.
const KEPT_FOR: HeaderValue = HeaderValue::from_static("max-age=60");

/// The beginning of the addresses that clients use: scheme, host and port. Never what a request says of it (`Host`). Clones
/// share it.
#[derive(Clone, Debug, Default)]
pub struct PublicAddress(Arc<RwLock<Arc<str>>>);

impl PublicAddress {
    /// Holds from now on.
    pub fn set(&self, address: &str) {
        *self.0.write() = Arc::from(address);
    }

    fn of(&self, path: &str) -> String {
        format!("{}{path}", self.0.read())
    }
}

/// The path of the metadata of what is at `path`.
#[must_use]
pub fn metadata_path(path: &str) -> String {
    format!("{WELL_KNOWN}{}", if path == "/" { "" } else { path })
}

/// What the metadata of an upstream names as the resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResourceName {
    /// The gateway's address of it, which is the one that clients know.
    #[default]
    Gateway,
    /// What the server says: for servers that take tokens for their own address alone.
    Upstream,
}

/// How clients of one upstream log in there.
#[derive(Clone, Debug)]
pub struct ClientLogin {
    pub address: PublicAddress,
    /// Where the upstream is served.
    pub path: Arc<str>,
    pub metadata: Arc<ResourceMetadata>,
    pub resource: ResourceName,
}

impl ClientLogin {
    /// An answer to a request whose credential the server refused: under the server's status and with its challenge, since
    /// that is what clients begin to log in by, whatever their version (U03). Every other answer is left as it is, and so is
    /// one to a message on a stream, which has no status.
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

    /// The metadata as clients are to see it.
    async fn shown(&self) -> Result<Payload, MetadataError> {
        let own = self.metadata.get().await?;
        let Some(metadata) = Object::of(&own).filter(|_| self.resource == ResourceName::Gateway) else {
            return Ok(own);
        };
        // What is signed says the server's own address, and counts for more than what stands beside it.
        let ours = Payload::text(&self.address.of(&self.path));
        Ok(metadata.edit().set("resource", ours).remove("signed_metadata").finish())
    }
}

/// Where the metadata of one upstream is served: to everybody, as nobody has a credential yet who looks for it.
pub struct MetadataEndpoint {
    login: ClientLogin,
    rates: Arc<Rates>,
}

impl fmt::Debug for MetadataEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetadataEndpoint").field("login", &self.login).finish_non_exhaustive()
    }
}

impl MetadataEndpoint {
    #[must_use]
    pub const fn new(login: ClientLogin, rates: Arc<Rates>) -> Self {
        Self { login, rates }
    }
}

#[async_trait]
impl Endpoint for MetadataEndpoint {
    async fn serve(&self, inbound: Inbound) -> FaceResponse {
        if let Err(refusal) = self.rates.admit(&inbound.counted_as(), 1) {
            return too_often(&refusal);
        }
        match self.login.shown().await {
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

    fn takes(&self, method: &Method) -> bool {
        [Method::GET, Method::HEAD].contains(method)
    }

    fn allow(&self) -> HeaderValue {
        HeaderValue::from_static("GET, HEAD")
    }
}

fn document(text: Bytes) -> FaceResponse {
    let mut response = FaceResponse::new(full_body(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, KEPT_FOR);
    response
}
