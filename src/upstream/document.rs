//! Fetches documents of an issuer over HTTP, and sends it forms: bounded in bytes and time, without redirects.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use parking_lot::Mutex;
use url::{Host, Origin, Url};

use super::outgoing::{HandedOver, OutgoingRequest, SecretForm, SessionHeaders};
use super::reply::{self, ReadLimits};
use super::transport::http_client::{
    AddressReach, ClientError, ClientTls, HttpClient, PooledBody, ProxySettings, is_public,
};

const CONNECT_MAX: Duration = Duration::from_secs(5);
/// From the connection to the last byte.
const FETCH_MAX: Duration = Duration::from_secs(10);
/// The most clients that are kept for one issuer: its metadata, its keys and its endpoints may be on different hosts.
const ORIGINS_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    #[error("there is none (HTTP {0})")]
    Missing(u16),
    #[error("it is at another address, which is not followed (HTTP {0})")]
    Redirected(u16),
    #[error("the server answers with HTTP {0}")]
    Status(u16),
    #[error("it is larger than {0} bytes, or broke off")]
    Unreadable(usize),
    #[error("its address is private, and was not configured")]
    Private,
    #[error("it cannot be fetched: {0}")]
    Unreachable(&'static str),
}

/// The HTTP clients for one issuer, kept for pooled connections and one read of the system's trusted roots each.
#[derive(Debug)]
pub(crate) struct IssuerConnections {
    /// For metrics and the log.
    name: Arc<str>,
    /// The oldest first.
    kept: Mutex<Vec<KeptClient>>,
}

#[derive(Debug)]
struct KeptClient {
    origin: Origin,
    reach: AddressReach,
    client: HttpClient,
}

#[derive(Clone, Debug)]
pub(crate) struct FormAnswer {
    pub(crate) status: StatusCode,
    pub(crate) retry_after: Option<Duration>,
    /// At most as many bytes as the caller allows. May hold a secret.
    pub(crate) text: Bytes,
}

impl IssuerConnections {
    /// Connects at the first request.
    pub(crate) const fn new(name: Arc<str>) -> Self {
        Self { name, kept: Mutex::new(Vec::new()) }
    }

    /// Gets a document of at most `bytes_max`. Cancel safe.
    pub(crate) async fn fetch(
        &self,
        address: &Url,
        bytes_max: usize,
        reach: AddressReach,
    ) -> Result<Bytes, DocumentError> {
        in_time(async {
            if reach == AddressReach::Public && names_private(address) {
                return Err(DocumentError::Private);
            }
            let response = self.send(address, reach, &SessionHeaders::default().document()).await?;
            match response.status() {
                StatusCode::OK => (),
                status if status.is_client_error() => return Err(DocumentError::Missing(status.as_u16())),
                status if status.is_redirection() => return Err(DocumentError::Redirected(status.as_u16())),
                status => return Err(DocumentError::Status(status.as_u16())),
            }
            read(response, bytes_max).await
        })
        .await
    }

    /// Sends a form to an address that the operator wrote, and reads the answer of any status that is no redirect. Cancel safe.
    pub(crate) async fn ask(
        &self,
        address: &Url,
        form: SecretForm,
        bytes_max: usize,
    ) -> Result<FormAnswer, DocumentError> {
        in_time(async {
            let response = self.send(address, AddressReach::Any, &SessionHeaders::default().form(form)).await?;
            let (status, retry_after) = (response.status(), reply::retry_after(&response));
            if status.is_redirection() {
                return Err(DocumentError::Redirected(status.as_u16()));
            }
            let text = read(response, bytes_max).await?;
            Ok(FormAnswer { status, retry_after, text })
        })
        .await
    }

    async fn send(
        &self,
        address: &Url,
        reach: AddressReach,
        request: &OutgoingRequest,
    ) -> Result<Response<PooledBody>, DocumentError> {
        let client = self.client(address, reach);
        let client =
            client.map_err(|_| DocumentError::Unreachable("the address, the proxy or the roots are unusable"))?;
        let sent = client.try_send(request, &HandedOver::default()).await;
        sent.map_err(|fault| DocumentError::Unreachable(fault.reason.key()))
    }

    /// The client for an address. A client whose addresses are limited has no connection of one without limits.
    fn client(&self, address: &Url, reach: AddressReach) -> Result<HttpClient, ClientError> {
        let origin = address.origin();
        let mut kept = self.kept.lock();
        if let Some(known) = kept.iter().find(|known| known.origin == origin && known.reach == reach) {
            return known.client.at(address);
        }
        let tls = ClientTls { reach, ..ClientTls::default() };
        let client = HttpClient::new(&self.name, address, CONNECT_MAX, tls, &ProxySettings::Environment)?;
        if kept.len() == ORIGINS_MAX {
            kept.remove(0);
        }
        kept.push(KeptClient { origin, reach, client: client.clone() });
        Ok(client)
    }
}

/// Boxed: a caller's future would hold the whole request.
async fn in_time<T>(asking: impl Future<Output = Result<T, DocumentError>>) -> Result<T, DocumentError> {
    let late = Err(DocumentError::Unreachable("it did not come in time"));
    tokio::time::timeout(FETCH_MAX, Box::pin(asking)).await.unwrap_or(late)
}

async fn read(response: Response<PooledBody>, bytes_max: usize) -> Result<Bytes, DocumentError> {
    let body = response.into_body().reporting_to(None);
    let text = reply::read_whole(body, &ReadLimits::of_bytes(bytes_max)).await;
    text.map_err(|_| DocumentError::Unreadable(bytes_max))
}

/// Whether an address is literally one of a private network; names are checked when they are resolved.
fn names_private(address: &Url) -> bool {
    match address.host() {
        Some(Host::Ipv4(ip)) => !is_public(IpAddr::V4(ip)),
        Some(Host::Ipv6(ip)) => !is_public(IpAddr::V6(ip)),
        Some(Host::Domain(_)) | None => false,
    }
}
