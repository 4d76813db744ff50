//! Forwards requests to other replicas over one HTTP/2 connection each, opened on demand.

use std::collections::HashMap;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use async_trait::async_trait;
use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::header::CONTENT_LENGTH;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;

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
use crate::upstream::transport::http_client::is_unprocessed;
use crate::wire::framing::BodyPart;

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
    authority: Option<Authority>,
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
            && let Some(sender) = sender.ready().await
        {
            return Ok(sender);
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
        let request = addressed(request, &to, self.tls.is_some()).ok_or(ForwardFailure::Unreachable)?;
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
            authority: Authority::try_from(peer.address.to_string()).ok(),
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
fn addressed(mut request: Request<Bytes>, to: &PeerConnection, is_tls: bool) -> Option<Request<Bytes>> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(if is_tls { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = Some(to.authority.clone()?);
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

/// The flow-control window of a response. The connection's is the sum of all: a client that does not read blocks none.
const STREAM_WINDOW: u32 = 64 << 10;
const HEADER_LIST_BYTES_MAX: u32 = 64 << 10;
/// A ping detects a replica that has died silently, as silence is normal during a call.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_MAX: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct ReplicaSender(SendRequest<Bytes>);

enum Unanswered {
    /// The replica has certainly not processed the request.
    Unsent,
    /// The replica may have processed it.
    Lost(h2::Error),
}

impl ReplicaSender {
    /// Performs the handshake, for `requests_max` concurrent requests. The connection ends with its last user.
    async fn speak<T>(io: T, requests_max: u32, scope: &TaskScope) -> Result<Self, h2::Error>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, mut connection) = Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW * requests_max)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            // Late frames of cancelled responses are no error of the replica's, however many there are.
            .max_concurrent_reset_streams(requests_max as usize)
            .max_local_error_reset_streams(None)
            .enable_push(false)
            .handshake(io)
            .await?;
        let mut pings = connection.ping_pong().expect("no other code took it");
        // Whether the replica accepts this side's certificate is known only after its first response, not at the end of this
        // side's handshake (RFC 8446, 4.4.2): a request sent earlier would be lost with the connection.
        tokio::select! {
            ended = &mut connection => return Err(ended.err().unwrap_or_else(|| Reason::NO_ERROR.into())),
            answered = pings.ping(Ping::opaque()) => answered?,
        };
        let stop = scope.stop.clone();
        scope.tracker.spawn(async move {
            let ended = async {
                tokio::select! {
                    ended = connection => ended.map_err(|error| CauseChain(&error).to_string()),
                    () = unanswered_ping(pings) => Err("it answers no ping".to_owned()),
                }
            };
            // Requests in progress fail with the connection.
            if let Some(Err(error)) = stop.run_until_cancelled(ended).await {
                tracing::debug!(%error, "a connection to another replica ended");
            }
        });
        Ok(Self(sender))
    }

    /// A reference for one request; `None` if the connection has ended.
    async fn ready(&self) -> Option<Self> {
        self.0.clone().ready().await.ok().map(Self)
    }

    /// Sends a request and returns the response head. The request must have no hop-by-hop header (RFC 9113, 8.2.2).
    async fn send(mut self, request: Request<Bytes>) -> Result<Response<RecvStream>, Unanswered> {
        let (mut head, body) = request.into_parts();
        if !body.is_empty() {
            head.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(body.len()));
        }
        let sent = self.0.send_request(Request::from_parts(head, ()), body.is_empty());
        let (answer, mut stream) = sent.map_err(|_| Unanswered::Unsent)?;
        if !body.is_empty() {
            // The whole body is in memory. h2 sends as much as the replica's windows allow and queues the rest. A failure means
            // that the stream has ended, which the response reports, too.
            let _ = stream.send_data(body, true);
        }
        answer.await.map_err(|error| if is_unprocessed(&error) { Unanswered::Unsent } else { Unanswered::Lost(error) })
    }
}

async fn unanswered_ping(mut pings: PingPong) {
    loop {
        sleep(PING_INTERVAL).await;
        match timeout(PING_MAX, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection has ended, and its own future reports why.
            Ok(Err(_)) => return pending().await,
            Err(_) => return,
        }
    }
}

/// A response body from a replica. Dropping it cancels the request there.
struct ForwardedBody {
    incoming: RecvStream,
    /// The bytes that `Content-Length` still announces.
    left: Option<u64>,
    data_ended: bool,
    _permit: LinkPermit,
}

impl ForwardedBody {
    fn new(incoming: RecvStream, headers: &HeaderMap, permit: LinkPermit) -> Self {
        let left = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Self { incoming, left, data_ended: false, _permit: permit }
    }

    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        let Some(read) = ready!(self.incoming.poll_data(context)) else { return Poll::Ready(None) };
        Poll::Ready(Some(read.and_then(|data| {
            self.incoming.flow_control().release_capacity(data.len())?;
            self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
            Ok(data)
        })))
    }
}

impl Body for ForwardedBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<BodyPart>>>> {
        if !self.data_ended {
            match ready!(self.poll_data(context)) {
                Some(Ok(data)) => return Poll::Ready(Some(Ok(Frame::data(BodyPart::Bytes(data))))),
                // The response is complete: the replica only stopped reading the request (RFC 9113, 8.1).
                Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
                None => self.data_ended = true,
            }
        }
        let trailers = ready!(self.incoming.poll_trailers(context));
        Poll::Ready(trailers.map_err(io::Error::other).transpose().map(|read| read.map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
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
