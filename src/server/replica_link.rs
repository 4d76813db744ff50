//! Forwards requests to other replicas over one HTTP/2 connection each, opened on demand.

mod connection;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Uri};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use self::connection::{ForwardedBody, ReplicaSender, Unanswered};
use super::replicas::{self, ReplicaTls};
use crate::cause::CauseChain;
use crate::face::http::{FaceResponse, ResponseBody};
use crate::face::listen_permits::LISTENERS_MAX;
use crate::face::session_owners::{ForwardFailure, ReplicaLink};
use crate::replica::{Incarnation, ReplicaDirectory, ReplicaPeer};
use crate::shared_limits::SharedLimits;
use crate::task::{Principal, PrincipalCounts};
use crate::tls::provider;
use crate::upstream::TaskScope;

pub const REACH_MAX: Duration = Duration::from_secs(1);
/// Concurrent requests to one replica: one for every permitted stream here, and more for calls.
const REQUESTS_MAX: u32 = LISTENERS_MAX as u32 + 2_048;
const _: () = assert!(REQUESTS_MAX < replicas::REQUESTS_MAX, "the other side takes them");
const LOG_EVERY: Duration = Duration::from_secs(60);

pub struct Http2ReplicaLink {
    tls: Option<ReplicaTls>,
    scope: TaskScope,
    limits: SharedLimits,
    reach_max: Duration,
    peers: Mutex<HashMap<Incarnation, Arc<PeerConnection>>>,
}

struct PeerConnection {
    peer: ReplicaPeer,
    /// Locked while one request connects; others wait for it.
    sender: tokio::sync::Mutex<Option<ReplicaSender>>,
    permits: Arc<LinkPermits>,
    /// When the log last reported it unreachable.
    logged: Mutex<Option<Instant>>,
}

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("its certificates cannot be used: {0}")]
    Files(String),
    #[error("connections to replicas on other machines need certificates")]
    Plain,
    #[error("it is unreachable")]
    Io(#[from] io::Error),
    #[error("it does not speak HTTP/2")]
    Http(#[from] h2::Error),
    #[error("it did not respond in time")]
    Late,
}

impl Http2ReplicaLink {
    /// Uses `tls`'s certificates on both sides, or reaches loopback only. `limits` gives principals' shares of permits.
    pub fn new(tls: Option<ReplicaTls>, scope: TaskScope, limits: SharedLimits) -> Self {
        Self { tls, scope, limits, reach_max: REACH_MAX, peers: Mutex::default() }
    }

    #[must_use]
    pub fn reaching_within(self, reach_max: Duration) -> Self {
        Self { reach_max, ..self }
    }

    fn to(&self, peer: ReplicaPeer) -> Arc<PeerConnection> {
        let mut peers = self.peers.lock();
        let known =
            peers.entry(peer.incarnation).or_insert_with(|| Arc::new(PeerConnection::new(peer, self.limits.clone())));
        if known.peer != peer {
            *known = Arc::new(PeerConnection::new(peer, self.limits.clone()));
        }
        Arc::clone(known)
    }

    async fn sender(&self, to: &PeerConnection) -> Result<ReplicaSender, ConnectError> {
        let mut kept = to.sender.lock().await;
        if let Some(sender) = kept.as_ref()
            && sender.is_open().await
        {
            return Ok(sender.clone());
        }
        let sender = timeout(self.reach_max, self.connect(to.peer)).await.unwrap_or(Err(ConnectError::Late))?;
        Ok(kept.insert(sender).clone())
    }

    async fn connect(&self, peer: ReplicaPeer) -> Result<ReplicaSender, ConnectError> {
        if self.tls.is_none() && !peer.address.ip().to_canonical().is_loopback() {
            return Err(ConnectError::Plain);
        }
        let socket = TcpStream::connect(peer.address).await?;
        socket.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(ReplicaSender::speak(socket, REQUESTS_MAX, &self.scope).await?) };
        // Read for each connection, so that changed certificates need no notification.
        let tls = tls.clone();
        let config = self.scope.tracker.spawn_blocking(move || client_config(&tls)).await;
        let config = config.map_err(|error| ConnectError::Files(error.to_string()))?.map_err(ConnectError::Files)?;
        let name = ServerName::IpAddress(peer.address.ip().to_canonical().into());
        let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
        Ok(ReplicaSender::speak(stream, REQUESTS_MAX, &self.scope).await?)
    }
}

#[async_trait]
impl ReplicaLink for Http2ReplicaLink {
    async fn send(
        &self,
        peer: ReplicaPeer,
        request: Request<Bytes>,
        owner: &Principal,
    ) -> Result<FaceResponse, ForwardFailure> {
        let to = self.to(peer);
        let Some(permit) = to.permits.take(owner) else {
            to.log_unreachable(&"too many requests to it are in progress");
            return Err(ForwardFailure::Unreachable);
        };
        let request = addressed(request, peer, self.tls.is_some()).ok_or(ForwardFailure::Unreachable)?;
        // Two attempts, as the connection may end while a request is sent.
        for _ in 0..2 {
            let reached = timeout(self.reach_max, self.sender(&to)).await.unwrap_or(Err(ConnectError::Late));
            let sender = reached.map_err(|error| {
                to.log_unreachable(&CauseChain(&error));
                ForwardFailure::Unreachable
            })?;
            match sender.send(request.clone()).await {
                Ok(answer) => {
                    let (head, incoming) = answer.into_parts();
                    let body = ForwardedBody::new(incoming, &head.headers, permit);
                    return Ok(FaceResponse::from_parts(head, ResponseBody::new(body)));
                }
                Err(Unanswered::Unsent) => {}
                Err(Unanswered::Lost(error)) => {
                    to.log_unreachable(&CauseChain(&error));
                    return Err(ForwardFailure::Lost);
                }
            }
        }
        to.log_unreachable(&"it accepts no requests, or closes connections at once");
        Err(ForwardFailure::Unreachable)
    }

    fn keep(&self, directory: &ReplicaDirectory) {
        // Requests in progress continue: they hold their connection.
        self.peers.lock().retain(|incarnation, to| directory.peer(*incarnation) == Some(to.peer));
    }
}

debug_members!(Http2ReplicaLink, |link| peers: link.peers.lock().keys());

impl PeerConnection {
    fn new(peer: ReplicaPeer, limits: SharedLimits) -> Self {
        Self {
            peer,
            sender: tokio::sync::Mutex::default(),
            permits: LinkPermits::new(REQUESTS_MAX as usize, limits),
            logged: Mutex::default(),
        }
    }

    fn log_unreachable(&self, why: &dyn fmt::Display) {
        let mut logged = self.logged.lock();
        if logged.is_none_or(|last| last.elapsed() >= LOG_EVERY) {
            *logged = Some(Instant::now());
            let ReplicaPeer { incarnation, address } = self.peer;
            tracing::warn!(replica = %incarnation, %address, %why, "requests cannot be forwarded to another replica");
        }
    }
}

/// Sets the absolute URI that HTTP/2 requires.
fn addressed(mut request: Request<Bytes>, peer: ReplicaPeer, is_tls: bool) -> Option<Request<Bytes>> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(if is_tls { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = Some(Authority::try_from(peer.address.to_string()).ok()?);
    parts.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(parts).ok()?;
    Some(request)
}

/// TLS between replicas: one CA signs the certificates of both sides.
fn client_config(tls: &ReplicaTls) -> Result<ClientConfig, String> {
    let (own, roots) = tls.read().map_err(|error| error.to_string())?;
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let mut config = builder
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

#[derive(Debug)]
struct LinkPermits {
    max: usize,
    taken: Mutex<PrincipalCounts>,
    limits: SharedLimits,
}

impl LinkPermits {
    fn new(max: usize, limits: SharedLimits) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::default(), limits })
    }

    /// Takes a permit for `owner`; `None` if all are taken, or its share of them.
    fn take(self: &Arc<Self>, owner: &Principal) -> Option<LinkPermit> {
        let share = self.limits.share_of(owner, self.max);
        let mut taken = self.taken.lock();
        if taken.of(owner) >= share {
            self.limits.refused(owner, "permits_percent_max", &share);
            return None;
        }
        if taken.all() >= self.max {
            return None;
        }
        taken.add(owner);
        Some(LinkPermit { permits: Arc::clone(self), owner: owner.clone() })
    }
}

#[derive(Debug)]
#[must_use]
struct LinkPermit {
    permits: Arc<LinkPermits>,
    owner: Principal,
}

impl Drop for LinkPermit {
    fn drop(&mut self) {
        self.permits.taken.lock().remove(&self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_meets_its_share_and_all_meet_the_bound() {
        let permits = LinkPermits::new(8, SharedLimits::default());
        let [ada, bob] = ["ada", "bob"].map(Principal::holding);
        let mut hers: Vec<_> = (0..6).map(|_| permits.take(&ada).unwrap()).collect();
        assert!(permits.take(&ada).is_none(), "her share is three quarters");
        let his: Vec<_> = (0..2).map(|_| permits.take(&bob).unwrap()).collect();
        assert!(permits.take(&bob).is_none(), "there is no other");
        hers.pop();
        assert!(permits.take(&bob).is_some());
        drop((hers, his));
        assert!(permits.taken.lock().is_empty());
    }
}
