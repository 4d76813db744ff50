//! Takes requests to other replicas: one connection of HTTP/2 to each, made when it is needed.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::replicas::ReplicaTls;
use crate::cause::CauseChain;
use crate::face::http::FaceResponse;
use crate::face::session_homes::{ForwardFailure, ReplicaLink};
use crate::replica::{Incarnation, ReplicaDirectory, ReplicaPeer};
use crate::task::{Clock as _, SystemClock};
use crate::tls::{provider, read_roots};
use crate::upstream::TaskScope;
use crate::wire::framing::BodyPart;

/// How long a replica may take to be reached.
const REACH_MAX: Duration = Duration::from_secs(1);
/// Requests that are under way to one replica at a time.
const REQUESTS_MAX: usize = 1_024;
/// What may be unread of one answer. All answers together may have as much each, so that a client that does not read holds up
/// none of the others.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * REQUESTS_MAX as u32;
/// A replica that has stopped without a word is noticed by this, as silence is normal for a running call.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_MAX: Duration = Duration::from_secs(2);
/// Largest head of an answer.
const HEADER_LIST_BYTES_MAX: u32 = 64 << 10;
/// How often the log tells of one replica that it cannot be reached.
const LOG_EVERY: Duration = Duration::from_secs(60);

type Sender = http2::SendRequest<Full<Bytes>>;

/// The ways to other replicas.
pub struct Http2ReplicaLink {
    tls: Option<ReplicaTls>,
    life: TaskScope,
    peers: Mutex<HashMap<Incarnation, Arc<PeerConnection>>>,
}

/// The way to one replica.
struct PeerConnection {
    peer: ReplicaPeer,
    /// Held by whoever connects; others wait for that.
    sender: tokio::sync::Mutex<Option<Sender>>,
    places: Arc<Semaphore>,
    /// When the log told last that it is away.
    logged: Mutex<Option<Instant>>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("its certificates cannot be used: {0}")]
    Files(String),
    #[error("replicas beyond this machine are reached by certificates alone")]
    Plain,
    #[error("it cannot be reached")]
    Io(#[from] io::Error),
    #[error("it does not speak HTTP/2")]
    Http(#[from] hyper::Error),
    #[error("it does not answer within a second")]
    Late,
}

impl Http2ReplicaLink {
    /// Shows and wants the certificates of `tls`; without them no replica is reached but those on loopback.
    #[must_use]
    pub fn new(tls: Option<ReplicaTls>, life: TaskScope) -> Self {
        Self { tls, life, peers: Mutex::default() }
    }

    fn to(&self, peer: ReplicaPeer) -> Arc<PeerConnection> {
        let mut peers = self.peers.lock();
        let known = peers.entry(peer.incarnation).or_insert_with(|| Arc::new(PeerConnection::new(peer)));
        if known.peer != peer {
            *known = Arc::new(PeerConnection::new(peer));
        }
        Arc::clone(known)
    }

    /// A connection that can be used: the one that is there, or another.
    async fn sender(&self, to: &PeerConnection) -> Result<Sender, ConnectError> {
        let mut kept = to.sender.lock().await;
        if let Some(sender) = kept.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let sender = timeout(REACH_MAX, self.connect(to.peer)).await.unwrap_or(Err(ConnectError::Late))?;
        Ok(kept.insert(sender).clone())
    }

    async fn connect(&self, peer: ReplicaPeer) -> Result<Sender, ConnectError> {
        if self.tls.is_none() && !peer.address.ip().to_canonical().is_loopback() {
            return Err(ConnectError::Plain);
        }
        let socket = TcpStream::connect(peer.address).await?;
        socket.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return self.speak(TokioIo::new(socket)).await };
        // Read anew for each connection: whoever changes certificates need not tell anybody.
        let tls = tls.clone();
        let config = self.life.tracker.spawn_blocking(move || client_config(&tls)).await;
        let config = config.map_err(|error| ConnectError::Files(error.to_string()))?.map_err(ConnectError::Files)?;
        let name = ServerName::IpAddress(peer.address.ip().to_canonical().into());
        let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
        self.speak(TokioIo::new(stream)).await
    }

    async fn speak<T>(&self, io: T) -> Result<Sender, ConnectError>
    where
        T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_MAX)
            .keep_alive_while_idle(true)
            .handshake(io)
            .await?;
        let stop = self.life.stop.clone();
        self.life.tracker.spawn(async move {
            if let Some(Err(error)) = stop.run_until_cancelled(connection).await {
                tracing::debug!(error = %CauseChain(&error), "a connection to another replica ended");
            }
        });
        Ok(sender)
    }
}

#[async_trait]
impl ReplicaLink for Http2ReplicaLink {
    async fn carry(&self, peer: ReplicaPeer, request: Request<Bytes>) -> Result<FaceResponse, ForwardFailure> {
        let to = self.to(peer);
        let Ok(place) = Arc::clone(&to.places).try_acquire_owned() else {
            to.log_away(&"too many requests are under way to it");
            return Err(ForwardFailure::Away);
        };
        let mut request = addressed(request, peer, self.tls.is_some()).ok_or(ForwardFailure::Away)?.map(Full::new);
        // Twice, as the connection may end while a request is on its way to it.
        for _ in 0..2 {
            let reached = timeout(REACH_MAX, self.sender(&to)).await.unwrap_or(Err(ConnectError::Late));
            let mut sender = reached.map_err(|error| {
                to.log_away(&CauseChain(&error));
                ForwardFailure::Away
            })?;
            match sender.try_send_request(request).await {
                Ok(answer) => {
                    return Ok(answer.map(|incoming| ForwardedBody { incoming, _place: place }.boxed_unsync()));
                }
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => {
                        to.log_away(&CauseChain(&failed.into_error()));
                        return Err(ForwardFailure::Lost);
                    }
                },
            }
        }
        to.log_away(&"its connections end as soon as they are made");
        Err(ForwardFailure::Away)
    }

    fn keep(&self, directory: &ReplicaDirectory) {
        // What is under way on a connection goes on: who waits for it holds it.
        self.peers.lock().retain(|incarnation, to| directory.peer(*incarnation) == Some(to.peer));
    }
}

impl fmt::Debug for Http2ReplicaLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2ReplicaLink").field("peers", &self.peers.lock().keys()).finish_non_exhaustive()
    }
}

impl PeerConnection {
    fn new(peer: ReplicaPeer) -> Self {
        Self {
            peer,
            sender: tokio::sync::Mutex::default(),
            places: Arc::new(Semaphore::new(REQUESTS_MAX)),
            logged: Mutex::default(),
        }
    }

    fn log_away(&self, why: &dyn fmt::Display) {
        let mut logged = self.logged.lock();
        if logged.is_none_or(|last| last.elapsed() >= LOG_EVERY) {
            *logged = Some(Instant::now());
            let ReplicaPeer { incarnation, address } = self.peer;
            tracing::warn!(replica = %incarnation, %address, %why, "requests cannot be passed on to another replica");
        }
    }
}

/// A request with the whole address that it goes to, as HTTP/2 wants it.
fn addressed(mut request: Request<Bytes>, peer: ReplicaPeer, is_tls: bool) -> Option<Request<Bytes>> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(if is_tls { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = Some(Authority::try_from(peer.address.to_string()).ok()?);
    parts.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(parts).ok()?;
    Some(request)
}

/// TLS towards replicas: their certificates and this one's own are vouched for by the same authority.
fn client_config(tls: &ReplicaTls) -> Result<ClientConfig, String> {
    let roots: RootCertStore = read_roots(&tls.ca).map_err(|error| error.to_string())?;
    let own = tls.identity.read(SystemClock.now()).map_err(|error| error.to_string())?;
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let mut config = builder
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// The body of an answer as a replica sends it. Dropped, it ends the request there.
struct ForwardedBody {
    incoming: Incoming,
    _place: OwnedSemaphorePermit,
}

impl Body for ForwardedBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<BodyPart>>>> {
        let frame = Pin::new(&mut self.incoming).poll_frame(context);
        frame.map(|frame| frame.map(|read| read.map(|frame| frame.map_data(BodyPart::Bytes)).map_err(io::Error::other)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
