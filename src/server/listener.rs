//! Binds sockets and accepts connections, within bounds.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::certificate::ListenerCertificate;
use super::connection::{ListenerState, serve};
use super::dispatch::{Dispatch, Routes};
use super::drain::{DrainPlan, Drained, Phases};
use super::forwarded::{TrustedProxies, network};
use super::head::HeadGuard;
use super::host::{HostGuard, OriginGuard};
use super::listener_metrics::ListenerMetrics;
use super::notices::Notices;
use super::principal::{Authenticator, PrincipalGuard};
use super::stack::{ConnectionAddresses, Layers};
use super::tls::Tls;
use super::{ListenSettings, ListenerLimits, ListenerRole};
use crate::tls::TlsFileError;

/// After this many the tasks of aborted connections are no longer waited for.
const ABORT_GRACE: Duration = Duration::from_secs(1);
/// How long those who were let in last may take to make a request: longer than they may be silent.
const HEARD_OUT_MAX: Duration = Duration::from_secs(1);
const HEARD_OUT_LOOK: Duration = Duration::from_millis(20);
/// How long accepting pauses after it failed, so that a shortage of descriptors does not spin (F60).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Stands for the address that a peer dialled where it cannot be told; it welcomes no name.
const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Everything one listener serves.
#[derive(Clone, Debug)]
pub struct ListenerSpec {
    pub role: ListenerRole,
    pub settings: ListenSettings,
    pub limits: ListenerLimits,
    /// Who may come.
    pub callers: Authenticator,
    pub routes: Routes,
    /// Who vouches for peers, in a PEM file; where there is one, a peer without a certificate gets no connection.
    pub peers_ca: Option<PathBuf>,
}

/// Why a listener did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot listen on {address}")]
    Bind { address: SocketAddr, source: io::Error },
    #[error(transparent)]
    Identity(#[from] TlsFileError),
}

/// A listener at work. Dropping it ends its connections at once; [`RunningListener::drain`] is the polite way.
#[derive(Debug)]
pub struct RunningListener {
    local_addr: SocketAddr,
    scheme: &'static str,
    connections_max: usize,
    places: Arc<ConnectionPermits>,
    shared: Arc<ListenerState>,
    /// There while connections are accepted.
    socket: Weak<std::net::TcpListener>,
}

impl RunningListener {
    /// The bound address, with the port that was picked where the settings named none.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Its socket once more, for a listener that takes its place; `None` where it listens no more, or the process has no
    /// descriptor left.
    #[must_use]
    pub fn socket(&self) -> Option<std::net::TcpListener> {
        self.socket.upgrade()?.try_clone().ok()
    }

    /// `http`, or `https` where the listener speaks TLS.
    #[must_use]
    pub const fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// Serves other routes to other principals from now on, in one step: each request meets the old or the new (F24). One
    /// that is under way ends as it began, but for the event streams of those who may not come any more. Of `settings` the
    /// allowed names and origins and the largest body hold; the rest needs another listener. Reads the certificate again.
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

    /// Open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections_max - self.places.all.available_permits()
    }

    /// Is done once the notice of a drain is over and those who were let in until then have made their requests: when all of
    /// them have gone, and a second after the last could come at the latest.
    pub fn heard_out(&self) -> impl Future<Output = ()> + use<> {
        let (shared, places, all) = (Arc::clone(&self.shared), Arc::clone(&self.places), self.connections_max);
        async move {
            shared.phases.closing.cancelled().await;
            let gone = async {
                if shared.phases.stop.is_cancelled() {
                    return shared.tracker.wait().await;
                }
                while places.all.available_permits() < all {
                    tokio::time::sleep(HEARD_OUT_LOOK).await;
                }
            };
            // Whoever is still there then waits for an answer.
            let _ = tokio::time::timeout(HEARD_OUT_MAX, gone).await;
        }
    }

    /// Ends the listener in the phases of `plan`, and returns once every connection has ended. New ones are taken until
    /// it is over: as long as something is waited for somebody may ask how it stands. Not where another process goes
    /// on with the socket.
    ///
    /// HTTP/1 peers are told by `Connection: close`, HTTP/2 peers by GOAWAY. Dropping the future ends everything at
    /// once. Readiness is the caller's to take back before.
    pub async fn drain(self, plan: DrainPlan) -> Drained {
        let phases = &self.shared.phases;
        phases.notice.cancel();
        tokio::time::sleep(plan.notice).await;
        let tracker = &self.shared.tracker;
        if !plan.is_socket_kept {
            phases.closing.cancel();
            plan.late.run_until_cancelled(plan.over.cancelled()).await;
        }
        phases.stop.cancel();
        tracker.close();
        phases.closing.cancel();
        if plan.late.run_until_cancelled(tracker.wait()).await.is_some() {
            return Drained { aborted: 0 };
        }
        let aborted = self.connections();
        phases.abort.cancel();
        if tokio::time::timeout(ABORT_GRACE, tracker.wait()).await.is_err() {
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

/// Binds and begins to accept. Needs a tokio runtime; returns once connections are taken.
///
/// # Errors
/// Where the address cannot be bound, or the certificate is of no use.
pub async fn start(site: ListenerSpec) -> Result<RunningListener, StartError> {
    start_on(site, None).await
}

/// The same on a socket that listens already, such as a service manager hands over: then the address in the settings
/// is not used.
///
/// # Errors
/// As [`start`].
pub async fn start_on(
    site: ListenerSpec,
    socket: Option<std::net::TcpListener>,
) -> Result<RunningListener, StartError> {
    let ListenerSpec { role, settings, limits, callers, routes, peers_ca } = site;
    let name = role.name();
    let tls = settings.tls.clone().map(|files| Tls::read(files, peers_ca)).transpose()?;
    let address = settings.address;
    let failed = |source| StartError::Bind { address, source };
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
        certificate: tls.as_ref().map(|tls| Arc::clone(tls.shown())),
        notices: Arc::new(Notices::new(role)),
    };
    let layers = ArcSwap::from_pointee(layers(local_addr, &settings, limits, kept, routes));
    let (tracker, phases) = (TaskTracker::new(), Phases::default());
    let meter = ListenerMetrics::new(name);
    let shared =
        Arc::new(ListenerState { limits: Arc::new(limits), layers, reread: Notify::new(), meter, tracker, phases });
    // More permits than a semaphore holds cannot be meant.
    let connections_max = settings.connections_max.get().min(Semaphore::MAX_PERMITS);
    let places = Arc::new(ConnectionPermits::new(connections_max, limits.connections_per_address_max));
    if let Some(tls) = tls.clone() {
        shared.tracker.spawn(tls.follow(Arc::clone(&shared)));
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    tracing::info!(listener = name, %local_addr, scheme, "listening");
    shared.tracker.spawn(acceptor.run(Arc::clone(&shared), Arc::clone(&places), tls));
    Ok(RunningListener { local_addr, scheme, connections_max, places, shared, socket })
}

/// What one listener's layers have of those before them.
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
    let role = notices.listener();
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

/// The listening socket, with a spare descriptor that can be given up to tell one client that there is none.
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

    async fn run(mut self, shared: Arc<ListenerState>, places: Arc<ConnectionPermits>, tls: Option<Tls>) {
        let stop = shared.phases.stop.clone();
        // Told once, however often accepting fails in between.
        let mut is_short = false;
        while let Some(accepted) = stop.run_until_cancelled(self.listener.accept()).await {
            match accepted {
                Ok((socket, peer)) => {
                    if std::mem::take(&mut is_short) {
                        tracing::info!(listener = shared.meter.name(), "accepting goes on");
                    }
                    let peer = peer.ip().to_canonical();
                    let is_counted = !peer.is_loopback() && !shared.layers.load().proxies.trusts(peer);
                    match places.take(is_counted.then_some(peer)) {
                        Ok(place) => admit(&shared, place, (socket, peer), tls.clone()),
                        Err(reason) => shared.meter.refused(reason),
                    }
                }
                Err(error) if is_of_one_connection(&error) => (),
                Err(error) => {
                    if !std::mem::replace(&mut is_short, true) {
                        tracing::warn!(listener = shared.meter.name(), %error, "accepting pauses");
                    }
                    shared.meter.accept_paused();
                    self.shed().await;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Accepts one connection with the spare descriptor and closes it, so that its client need not wait.
    async fn shed(&mut self) {
        self.spare = None;
        // The pause is the bound: the connection that could not be accepted is still there, or has left.
        drop(tokio::time::timeout(ACCEPT_PAUSE, self.listener.accept()).await);
        self.spare = self.original.try_clone().ok();
    }
}

/// Errors that say nothing about the next accept.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    [ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted].contains(&error.kind())
}

fn admit(shared: &Arc<ListenerState>, place: ConnectionPermit, (socket, peer): (TcpStream, IpAddr), tls: Option<Tls>) {
    crate::failpoint::hit("accepted");
    // Without these two the connection works, more slowly, and under its listed names only.
    let _ = socket.set_nodelay(true);
    let local = socket.local_addr().map_or(UNKNOWN, |local| local.ip().to_canonical());
    let (shared, ends) = (Arc::clone(shared), ConnectionAddresses { local, peer });
    shared.tracker.clone().spawn(async move {
        match tls {
            None => serve(shared, socket, ends).await,
            // Boxed: a connection without TLS takes no room for it.
            Some(tls) => Box::pin(serve_tls(shared, tls, socket, ends)).await,
        }
        drop(place);
    });
}

async fn serve_tls(shared: Arc<ListenerState>, tls: Tls, socket: TcpStream, ends: ConnectionAddresses) {
    if let Some(stream) = Box::pin(tls.accept(&shared, socket)).await {
        Box::pin(serve(shared, stream, ends)).await;
    }
}

/// Who may still come in.
#[derive(Debug)]
struct ConnectionPermits {
    all: Arc<Semaphore>,
    per_address_max: usize,
    per_address: Mutex<HashMap<IpAddr, usize>>,
}

impl ConnectionPermits {
    fn new(max: usize, per_address_max: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(max)), per_address_max, per_address: Mutex::default() }
    }

    /// A place for one connection, or the reason why there is none. The address goes first: one that takes too
    /// much meets its own limit before everybody's. Without an address none is counted: of this machine's own, and of
    /// proxies.
    fn take(self: &Arc<Self>, peer: Option<IpAddr>) -> Result<ConnectionPermit, &'static str> {
        let by_address = peer.map(|peer| self.take_of(network(peer))).transpose()?;
        let permit = Arc::clone(&self.all).try_acquire_owned().map_err(|_| "connections_max")?;
        Ok(ConnectionPermit { _permit: permit, _by_address: by_address })
    }

    fn take_of(self: &Arc<Self>, peer: IpAddr) -> Result<AddressPermit, &'static str> {
        let mut per_address = self.per_address.lock();
        let taken = per_address.entry(peer).or_default();
        if *taken >= self.per_address_max {
            return Err("connections_per_address_max");
        }
        *taken += 1;
        Ok(AddressPermit { places: Arc::clone(self), peer })
    }
}

/// One connection's place; free again when dropped.
#[derive(Debug)]
struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
    _by_address: Option<AddressPermit>,
}

#[derive(Debug)]
struct AddressPermit {
    places: Arc<ConnectionPermits>,
    peer: IpAddr,
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut per_address = self.places.per_address.lock();
        if let Some(taken) = per_address.get_mut(&self.peer) {
            *taken -= 1;
            if *taken == 0 {
                per_address.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B77: one address meets its own limit, others are served.
    #[test]
    fn one_address_cannot_take_all_places() {
        let places = Arc::new(ConnectionPermits::new(4, 2));
        let (noisy, quiet) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let first = places.take(Some(noisy.into())).unwrap();
        let _second = places.take(Some(noisy.into())).unwrap();
        assert_eq!(places.take(Some(noisy.into())).unwrap_err(), "connections_per_address_max");
        let _quiet = places.take(Some(quiet.into())).unwrap();
        let _home = places.take(None).unwrap();
        assert_eq!(places.take(None).unwrap_err(), "connections_max");
        assert_eq!(places.take(Some([192, 0, 2, 3].into())).unwrap_err(), "connections_max");
        drop(first);
        let _third = places.take(Some(noisy.into())).unwrap();
        assert_eq!(places.per_address.lock().len(), 2, "refused addresses leave nothing behind");
    }

    #[test]
    fn one_ipv6_network_counts_as_one_address() {
        let places = Arc::new(ConnectionPermits::new(4, 2));
        let take = |peer: &str| places.take(Some(peer.parse().unwrap()));
        let _first = take("2001:db8:1:2::1").unwrap();
        let _second = take("2001:db8:1:2:ffff::9").unwrap();
        assert_eq!(take("2001:db8:1:2:3:4:5:6").unwrap_err(), "connections_per_address_max");
        let _other = take("2001:db8:1:3::1").unwrap();
        assert_eq!(places.per_address.lock().len(), 2);
    }
}
