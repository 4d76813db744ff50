//! Binds sockets and accepts connections, within bounds.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client_certificates::PeerCertificate;
use super::connection::{ListenerState, Phases, serve};
use super::connection_state::ListenerMetrics;
use super::dispatch::{Dispatch, Routes};
use super::forwarded::{TrustedProxies, network};
use super::handshake::{Admission, HandshakeSettings, ListenerCertificate, PeerVerifier};
use super::head::HeadGuard;
use super::host::{HostGuard, OriginGuard};
use super::io::{ResettableStream, linger};
use super::notices::Notices;
use super::principal::{Authenticator, PrincipalGuard};
use super::stack::{ConnectionOrigin, Layers};
use super::{ListenSettings, ListenerLimits, ListenerRole};
use crate::audit::AuditLog;
use crate::task::{Clock as _, OwnerCounts, SystemClock};
use crate::tls::{ClientCertificateFiles, DailyWarning, IdentityFiles, TlsFileError, show_end};
use crate::waits::unless_cancelled;

/// How long the tasks of aborted connections are awaited.
const ABORT_GRACE: Duration = Duration::from_secs(1);
/// How long the last accepted connections may take to send a request: longer than they may be silent.
const LAST_REQUESTS_MAX: Duration = Duration::from_secs(1);
const LAST_REQUESTS_LOOK: Duration = Duration::from_millis(20);
/// The pause after a failed accept, so that a shortage of descriptors does not spin (F60).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Used where the local address of a connection is unknown; no host name matches it.
const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

#[derive(Clone, Debug)]
pub struct ListenerSpec {
    pub role: ListenerRole,
    pub settings: ListenSettings,
    pub limits: ListenerLimits,
    pub callers: Authenticator,
    pub routes: Routes,
    /// How peers' certificates are verified, if they are requested.
    pub peers: Option<ClientCertificateFiles>,
    /// Records refused credentials.
    pub audit: Option<Arc<AuditLog>>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("key `{}`: cannot listen on {address}", role.address_key())]
    Bind { role: ListenerRole, address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Identity(#[from] TlsFileError),
}

/// A running listener. Dropping it ends its connections at once; [`RunningListener::drain`] ends them gracefully.
#[derive(Debug)]
pub struct RunningListener {
    local_addr: SocketAddr,
    scheme: &'static str,
    connections_max: usize,
    permits: Arc<ConnectionPermits>,
    shared: Arc<ListenerState>,
    /// Alive while connections are accepted.
    socket: Weak<std::net::TcpListener>,
}

impl RunningListener {
    /// The bound address, with the port that the system chose where the settings have none.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// A duplicate of its socket for its replacement; `None` if it no longer listens, or descriptors ran out.
    pub fn socket(&self) -> Option<std::net::TcpListener> {
        self.socket.upgrade()?.try_clone().ok()
    }

    /// `http`, or `https` where the listener speaks TLS.
    pub const fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// Replaces routes and authentication in one step: each request uses the old or the new ones (F24). A running request ends as
    /// it began, except event streams of invalid credentials. Of `settings` only the allowed names, the allowed
    /// origins and the body limit apply; the rest needs a new listener. Reads the certificate again.
    pub fn replace(&self, settings: &ListenSettings, callers: Authenticator, routes: Routes) {
        let before = self.shared.layers.load_full();
        let kept = RetainedLayers {
            principal: before.principal.followed_by(callers),
            certificate: before.host.certificate().cloned(),
            notices: Arc::clone(&before.notices),
        };
        let layers = layers(self.local_addr, settings, *self.shared.limits, kept, routes);
        self.shared.layers.store(Arc::new(layers));
        self.shared.reread.notify_one();
    }

    pub fn record_refusals(&self, audit: Arc<AuditLog>) {
        self.shared.layers.load().notices.record_refusals(audit);
    }

    pub fn connections(&self) -> usize {
        self.connections_max - self.permits.all.available_permits()
    }

    /// Completes once the notice of a drain is over and the connections accepted until then have sent their requests or
    /// ended, at the latest after a second.
    pub fn last_requests_received(&self) -> impl Future<Output = ()> + use<> {
        let (shared, permits, all) = (Arc::clone(&self.shared), Arc::clone(&self.permits), self.connections_max);
        async move {
            shared.phases.notice_ended.cancelled().await;
            let gone = async {
                if shared.phases.accept_ended.is_cancelled() {
                    return shared.tracker.wait().await;
                }
                while permits.all.available_permits() < all {
                    tokio::time::sleep(LAST_REQUESTS_LOOK).await;
                }
            };
            // The remaining connections wait for a response.
            let _ = timeout(LAST_REQUESTS_MAX, gone).await;
        }
    }

    /// Drains the listener in the phases of `plan`, and returns once every connection has ended. Accepts connections until
    /// the drain is over, because clients may poll a call that is still awaited; not if others serve these clients.
    /// Withdraw readiness first. Dropping the future ends everything at once.
    pub async fn drain(self, plan: DrainPlan) -> Drained {
        let phases = &self.shared.phases;
        phases.notice_begun.cancel();
        tokio::time::sleep(plan.notice).await;
        let tracker = &self.shared.tracker;
        if !plan.has_substitute {
            phases.notice_ended.cancel();
            plan.late.run_until_cancelled(plan.polls_ended.cancelled()).await;
        }
        phases.accept_ended.cancel();
        tracker.close();
        phases.notice_ended.cancel();
        if plan.late.run_until_cancelled(tracker.wait()).await.is_some() {
            return Drained { aborted: 0 };
        }
        let aborted = self.connections();
        phases.abort.cancel();
        if timeout(ABORT_GRACE, tracker.wait()).await.is_err() {
            tracing::warn!(tasks = tracker.len(), "tasks of aborted connections are still running");
        }
        Drained { aborted }
    }
}

impl Drop for RunningListener {
    fn drop(&mut self) {
        self.shared.phases.end();
    }
}

/// Binds the address and starts to accept. Needs a tokio runtime; returns once connections are accepted.
pub async fn start(site: ListenerSpec) -> Result<RunningListener, StartError> {
    start_on(site, None).await
}

/// As [`start`], on a socket that listens already, such as a service manager's, in place of the settings' address.
pub async fn start_on(
    site: ListenerSpec,
    socket: Option<std::net::TcpListener>,
) -> Result<RunningListener, StartError> {
    let ListenerSpec { role, settings, limits, callers, routes, peers, audit } = site;
    let name = role.name();
    let tls = settings.tls.clone().map(|files| Tls::read(files, peers)).transpose()?;
    let address = settings.address;
    let failed = |source| StartError::Bind { role, address, source };
    let listener = match socket {
        Some(socket) => socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket)),
        None => TcpListener::bind(address).await,
    };
    let listener = listener.map_err(failed)?;
    let local_addr = listener.local_addr().map_err(failed)?;
    let acceptor = Acceptor::new(listener).map_err(failed)?;
    let socket = Arc::downgrade(&acceptor.original);
    let kept = RetainedLayers {
        principal: PrincipalGuard::new(callers),
        certificate: tls.as_ref().map(|tls| Arc::clone(&tls.shown)),
        notices: Arc::new(Notices::new(role, audit)),
    };
    let layers = ArcSwap::from_pointee(layers(local_addr, &settings, limits, kept, routes));
    let (tracker, phases) = (TaskTracker::new(), Phases::default());
    let meter = ListenerMetrics::new(name);
    let shared =
        Arc::new(ListenerState { limits: Arc::new(limits), layers, reread: Notify::new(), meter, tracker, phases });
    // More permits than a semaphore can hold are certainly not intended.
    let connections_max = settings.connections_max.get().min(Semaphore::MAX_PERMITS);
    let permits = Arc::new(ConnectionPermits::new(connections_max, limits.connections_per_address_max));
    if let Some(tls) = tls.clone() {
        shared.tracker.spawn(tls.follow(Arc::clone(&shared)));
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    tracing::info!(listener = name, %local_addr, scheme, "listening");
    shared.tracker.spawn(acceptor.run(Arc::clone(&shared), Arc::clone(&permits), tls));
    Ok(RunningListener { local_addr, scheme, connections_max, permits, shared, socket })
}

struct RetainedLayers {
    principal: PrincipalGuard,
    certificate: Option<Arc<ListenerCertificate>>,
    notices: Arc<Notices>,
}

fn layers(
    at: SocketAddr,
    settings: &ListenSettings,
    limits: ListenerLimits,
    kept: RetainedLayers,
    routes: Routes,
) -> Layers {
    let RetainedLayers { principal, certificate, notices } = kept;
    let role = notices.listener;
    let host = HostGuard::new(at, &settings.allowed_hosts, certificate.clone());
    let origin = OriginGuard::new(at, &settings.allowed_origins, certificate.is_some());
    Layers {
        head: HeadGuard::new(limits),
        proxies: TrustedProxies::new(&settings.trusted_proxies),
        origin: if role == ListenerRole::Probes { OriginGuard::against_pages() } else { origin },
        host: if role == ListenerRole::Probes || principal.asks_all() { host.of_any_name() } else { host },
        principal,
        dispatch: Dispatch::new(routes, limits, settings.body_bytes_max.get(), Arc::clone(&notices)),
        notices,
    }
}

/// The listening socket, with a spare descriptor that is released to refuse one client when there are no others.
struct Acceptor {
    listener: TcpListener,
    original: Arc<std::net::TcpListener>,
    spare: Option<std::net::TcpListener>,
}

impl Acceptor {
    fn new(listener: TcpListener) -> io::Result<Self> {
        let original = Arc::new(listener.into_std()?);
        let spare = Some(original.try_clone()?);
        let listener = TcpListener::from_std(original.try_clone()?)?;
        Ok(Self { listener, original, spare })
    }

    async fn run(mut self, shared: Arc<ListenerState>, permits: Arc<ConnectionPermits>, tls: Option<Tls>) {
        let accept_ended = shared.phases.accept_ended.clone();
        // Logged once, however often accepting fails in between.
        let mut is_short = false;
        // A connection that comes with the end is left to the process that takes over the socket.
        while let Some(accepted) = unless_cancelled(&accept_ended, self.listener.accept()).await {
            match accepted {
                Ok((socket, peer)) => {
                    if std::mem::take(&mut is_short) {
                        tracing::info!(listener = shared.meter.name(), "connections are accepted again");
                    }
                    let peer = peer.ip().to_canonical();
                    let is_counted = !peer.is_loopback() && !shared.layers.load().proxies.trusts(peer);
                    match permits.take(is_counted.then_some(peer)) {
                        Ok(permit) => admit(&shared, permit, socket, peer, tls.clone()),
                        Err(bound) => {
                            shared.meter.refused(bound);
                            shared.layers.load().notices.refused_connection(bound, peer);
                        }
                    }
                }
                Err(error) if is_of_one_connection(&error) => (),
                Err(error) => {
                    if !std::mem::replace(&mut is_short, true) {
                        tracing::warn!(listener = shared.meter.name(), %error, "accepting pauses");
                    }
                    shared.meter.accept_pauses.increment(1);
                    self.shed().await;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Accepts one connection with the spare descriptor and closes it, so that its client need not wait.
    async fn shed(&mut self) {
        self.spare = None;
        // Bounded by the pause: the connection that could not be accepted is still pending, or has left.
        drop(timeout(ACCEPT_PAUSE, self.listener.accept()).await);
        self.spare = self.original.try_clone().ok();
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    [ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted].contains(&error.kind())
}

fn admit(shared: &Arc<ListenerState>, permit: ConnectionPermit, socket: TcpStream, peer: IpAddr, tls: Option<Tls>) {
    crate::failpoint::hit("accepted");
    // Without these two the connection works, but slower, and under its listed names only.
    let _ = socket.set_nodelay(true);
    let local = socket.local_addr().map_or(UNKNOWN, |local| local.ip().to_canonical());
    let (shared, ends) = (Arc::clone(shared), ConnectionOrigin { local, peer, certificate: None });
    shared.tracker.clone().spawn(async move {
        match tls {
            None => serve(shared, socket, ends).await,
            // Boxed: a connection without TLS does not allocate it.
            Some(tls) => Box::pin(serve_tls(shared, tls, socket, ends)).await,
        }
        drop(permit);
    });
}

async fn serve_tls(shared: Arc<ListenerState>, tls: Tls, socket: TcpStream, ends: ConnectionOrigin) {
    if let Some(AcceptedTls { stream, certificate }) = Box::pin(tls.accept(&shared, socket, ends.peer)).await {
        Box::pin(serve(shared, stream, ConnectionOrigin { certificate, ..ends })).await;
    }
}

#[derive(Debug)]
struct ConnectionPermits {
    all: Arc<Semaphore>,
    per_address_max: usize,
    per_address: Mutex<OwnerCounts<IpAddr>>,
}

impl ConnectionPermits {
    fn new(max: usize, per_address_max: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(max)), per_address_max, per_address: Mutex::default() }
    }

    /// Takes a permit for one connection, or returns the reason why there is none. The address is checked first, so that an
    /// address with too many meets its own limit. Without `peer` no address is counted: for this machine and for proxies.
    fn take(self: &Arc<Self>, peer: Option<IpAddr>) -> Result<ConnectionPermit, &'static str> {
        let by_address = peer.map(|peer| self.take_of(network(peer))).transpose()?;
        let permit = Arc::clone(&self.all).try_acquire_owned().map_err(|_| "connections_max")?;
        Ok(ConnectionPermit { _permit: permit, _by_address: by_address })
    }

    fn take_of(self: &Arc<Self>, peer: IpAddr) -> Result<AddressPermit, &'static str> {
        let mut per_address = self.per_address.lock();
        if per_address.of(&peer) >= self.per_address_max {
            return Err("connections_per_address_max");
        }
        per_address.add(&peer);
        Ok(AddressPermit { permits: Arc::clone(self), peer })
    }
}

#[derive(Debug)]
struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
    _by_address: Option<AddressPermit>,
}

#[derive(Debug)]
#[must_use]
struct AddressPermit {
    permits: Arc<ConnectionPermits>,
    peer: IpAddr,
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        self.permits.per_address.lock().remove(&self.peer);
    }
}

/// When each phase of a drain ends. The caller decides, since it informs clients before they are cut off.
#[derive(Clone, Debug, Default)]
pub struct DrainPlan {
    /// How long new connections are still accepted, each for one response, until load balancers have noticed.
    pub notice: Duration,
    /// Cancelled once no call is awaited that a client might poll.
    pub polls_ended: CancellationToken,
    /// Cancelled once the wait for requests in progress ends.
    pub late: CancellationToken,
    /// Whether connections after the notice are for others: a process that continues with the socket, or other replicas. A balancer
    /// without health checks takes a replica for living until it refuses connections.
    pub has_substitute: bool,
}

impl DrainPlan {
    pub fn at_once() -> Self {
        let plan = Self::default();
        plan.polls_ended.cancel();
        plan.late.cancel();
        plan
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    pub aborted: usize,
}

/// Performs TLS handshakes with clients; certificates can change while connections run. TLS 1.2 and 1.3; HTTP/2 or
/// HTTP/1.1 (ALPN). Other peers get an alert and no HTTP (B30).
#[derive(Clone, Debug)]
struct Tls {
    handshakes: Arc<ArcSwap<HandshakeSettings>>,
    shown: Arc<ListenerCertificate>,
    files: ListenerFiles,
}

#[derive(Clone, Debug)]
struct ListenerFiles {
    identity: IdentityFiles,
    /// Without them no client certificate is requested.
    clients: Option<ClientCertificateFiles>,
}

impl ListenerFiles {
    fn read(&self) -> Result<(Arc<CertifiedKey>, Option<PeerVerifier>), TlsFileError> {
        let verifier = self.clients.as_ref().map(PeerVerifier::read).transpose()?;
        Ok((self.identity.read()?, verifier))
    }
}

impl Tls {
    fn read(identity: IdentityFiles, clients: Option<ClientCertificateFiles>) -> Result<Self, TlsFileError> {
        let files = ListenerFiles { identity, clients };
        let (identity, peers) = files.read()?;
        let shown = Arc::new(ListenerCertificate::new(identity));
        let handshakes = Arc::new(ArcSwap::from_pointee(HandshakeSettings::new(&shown, peers)));
        Ok(Self { handshakes, shown, files })
    }

    /// Performs the handshake. `None` if it failed; the peer has received an alert.
    async fn accept(&self, shared: &ListenerState, socket: TcpStream, client: IpAddr) -> Option<AcceptedTls> {
        let settings = self.handshakes.load_full();
        let handshake = TlsAcceptor::from(Arc::clone(&settings.config)).accept(socket).into_fallible();
        let handshake = timeout(shared.limits.handshake_deadline, handshake);
        match shared.phases.accept_ended.run_until_cancelled(handshake).await? {
            Ok(Ok(stream)) => {
                let chain = stream.get_ref().1.peer_certificates().filter(|_| settings.peers.is_some());
                let admission = || Admission::new(&self.handshakes, Arc::clone(&settings));
                let certificate = chain.and_then(|chain| PeerCertificate::read(chain, admission())).map(Arc::new);
                Some(AcceptedTls { stream, certificate })
            }
            Ok(Err((error, socket))) => {
                shared.meter.refused("tls_handshake");
                shared.layers.load().notices.refused_handshake(&error, client);
                // A reset must not discard the alert.
                linger(socket, shared.limits.linger).await;
                None
            }
            Err(_) => {
                shared.meter.refused("handshake_deadline");
                None
            }
        }
    }

    /// Reads changed files until the listener ends (F65). Unusable ones change nothing, and are logged once a change.
    async fn follow(self, shared: Arc<ListenerState>) {
        let (listener, mut troubled) = (shared.meter.name(), None);
        let mut daily = DailyWarning::new(SystemClock.now());
        loop {
            let identity = self.shown.identity();
            show_end(listener.to_owned(), Some(&*identity));
            if let Some(warning) = daily.due(&identity, SystemClock.now()) {
                tracing::warn!(listener, certificate = %self.files.identity.certificate.display(), "{warning}");
            }
            let pause = async {
                tokio::select! {
                    () = tokio::time::sleep(shared.limits.certificate_check) => (),
                    () = shared.reread.notified() => (),
                }
            };
            if shared.phases.accept_ended.run_until_cancelled(pause).await.is_none() {
                return;
            }
            let files = self.files.clone();
            let read = shared.tracker.spawn_blocking(move || files.read());
            let Ok(read) = read.await else { return };
            troubled = self.take_over(read, troubled);
        }
    }

    /// Applies the files to new connections. Returns the fault of the files, if any; `known` is the previous one.
    fn take_over(
        &self,
        read: Result<(Arc<CertifiedKey>, Option<PeerVerifier>), TlsFileError>,
        known: Option<String>,
    ) -> Option<String> {
        match read {
            Ok((identity, peers)) => {
                if self.shown.replace(identity) {
                    tracing::info!(certificate = %self.files.identity.certificate.display(), "certificate changed");
                }
                let before = self.handshakes.load_full();
                if let (Some(peers), Some(known)) = (peers, &before.peers)
                    && !peers.is_same_as(known)
                {
                    // Replaces the whole configuration, so that no session that the old files admitted can be resumed.
                    self.handshakes.store(Arc::new(HandshakeSettings::new(&self.shown, Some(peers))));
                    before.grant.withdraw();
                    tracing::info!("the CA certificates or revocation lists for peers changed");
                }
                None
            }
            Err(error) => {
                let error = error.to_string();
                if known.as_ref() != Some(&error) {
                    tracing::warn!(error, "the certificate in use is kept");
                }
                Some(error)
            }
        }
    }
}

struct AcceptedTls {
    stream: TlsStream<TcpStream>,
    certificate: Option<Arc<PeerCertificate>>,
}

impl<T: ResettableStream> ResettableStream for TlsStream<T> {
    fn reset_on_drop(&self) {
        self.get_ref().0.reset_on_drop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B77: one address meets its own limit, others are served.
    #[test]
    fn one_address_cannot_take_all_places() {
        let permits = Arc::new(ConnectionPermits::new(4, 2));
        let (noisy, quiet) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let first = permits.take(Some(noisy.into())).unwrap();
        let _second = permits.take(Some(noisy.into())).unwrap();
        assert_eq!(permits.take(Some(noisy.into())).unwrap_err(), "connections_per_address_max");
        let _quiet = permits.take(Some(quiet.into())).unwrap();
        let _home = permits.take(None).unwrap();
        assert_eq!(permits.take(None).unwrap_err(), "connections_max");
        assert_eq!(permits.take(Some([192, 0, 2, 3].into())).unwrap_err(), "connections_max");
        drop(first);
        let _third = permits.take(Some(noisy.into())).unwrap();
        assert_eq!(permits.per_address.lock().owners(), 2, "refused addresses leave nothing behind");
    }

    #[test]
    fn one_ipv6_network_counts_as_one_address() {
        let permits = Arc::new(ConnectionPermits::new(4, 2));
        let take = |peer: &str| permits.take(Some(peer.parse().unwrap()));
        let _first = take("2001:db8:1:2::1").unwrap();
        let _second = take("2001:db8:1:2:ffff::9").unwrap();
        assert_eq!(take("2001:db8:1:2:3:4:5:6").unwrap_err(), "connections_per_address_max");
        let _other = take("2001:db8:1:3::1").unwrap();
        assert_eq!(permits.per_address.lock().owners(), 2);
    }
}
