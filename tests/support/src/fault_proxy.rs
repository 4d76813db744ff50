//! A TCP proxy in this process with the faults of networks: delay, drip, cut, half-close, reset, corrupt, stall, hold.
//! It forwards bytes unread, but for a mark that says where a fault begins.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The fault of a connection from a certain byte on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The rest comes this much later.
    Delay(Duration),
    /// One byte each.
    Drip(Duration),
    /// Both sides are closed in order.
    Cut,
    /// The receiver gets the end of one direction; the other goes on.
    HalfClose,
    /// Both sides see a reset.
    Reset,
    /// One bit of the next byte is another.
    Corrupt,
    /// No further byte is written. Once a connection has no such fault any more, the target sees its end, as a server
    /// does with a peer that was unreachable for long; the client is told nothing.
    Stall,
    /// The rest comes once the connection has no such fault any more.
    Hold,
}

/// The direction of bytes: up to the target, or down to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Up,
    Down,
}

#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub way: Direction,
    /// Bytes are counted once this text has gone up on the same connection; from the start where it is empty.
    pub mark: &'static str,
    /// So many bytes pass before.
    pub after: usize,
    pub verb: Verb,
}

impl Fault {
    pub const fn down(mark: &'static str, after: usize, verb: Verb) -> Self {
        Self { way: Direction::Down, mark, after, verb }
    }

    pub const fn up(mark: &'static str, after: usize, verb: Verb) -> Self {
        Self { way: Direction::Up, mark, after, verb }
    }
}

/// A fault, and which connections have it.
#[derive(Clone, Copy, Debug)]
struct ProxyFault {
    fault: Fault,
    /// So many connections, from the first one on.
    connections: usize,
}

/// Dropping it closes all connections.
#[derive(Debug)]
pub struct FaultProxy {
    pub address: SocketAddr,
    shared: Arc<ProxyState>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct ProxyState {
    target: Mutex<SocketAddr>,
    fault: watch::Sender<Option<ProxyFault>>,
    /// How many connections may still have the fault.
    left: AtomicUsize,
    struck: AtomicUsize,
    carried: AtomicUsize,
    news: Notify,
}

impl FaultProxy {
    /// Passes everything on to `target`.
    pub async fn start(target: SocketAddr) -> Self {
        Self::start_on(Ipv4Addr::LOCALHOST, target).await
    }

    /// The same on another address of this machine.
    pub async fn start_on(address: Ipv4Addr, target: SocketAddr) -> Self {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let left = AtomicUsize::new(usize::MAX);
        let shared = Arc::new(ProxyState {
            target: Mutex::new(target),
            fault: watch::Sender::default(),
            left,
            struck: AtomicUsize::default(),
            carried: AtomicUsize::default(),
            news: Notify::new(),
        });
        let (accepting, connections, ends) = (Arc::clone(&shared), tracker.clone(), stop.clone());
        let accept = async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let served = connect(client, Arc::clone(&accepting), connections.clone());
                connections.spawn(ends.clone().run_until_cancelled_owned(served));
            }
        };
        tracker.spawn(stop.clone().run_until_cancelled_owned(accept));
        Self { address, shared, _stop: stop.drop_guard() }
    }

    /// The same with a fault from the start.
    pub async fn with(target: SocketAddr, fault: Fault) -> Self {
        let proxy = Self::start(target).await;
        proxy.set(Some(fault));
        proxy
    }

    /// New connections go elsewhere; open ones stay.
    pub fn retarget(&self, target: SocketAddr) {
        *self.shared.target.lock() = target;
    }

    /// From now on, for open connections too.
    pub fn set(&self, fault: Option<Fault>) {
        self.shared.set(fault, usize::MAX, usize::MAX);
    }

    /// From now on, but only until it has struck this often.
    pub fn set_times(&self, fault: Fault, times: usize) {
        self.shared.set(Some(fault), usize::MAX, times);
    }

    /// From now on, for none but those connections that are there by now.
    pub fn set_present(&self, fault: Fault) {
        self.shared.set(Some(fault), self.carried(), usize::MAX);
    }

    /// How many connections there were so far.
    pub fn carried(&self) -> usize {
        self.shared.carried.load(Ordering::Relaxed)
    }

    /// How often the fault has struck.
    pub fn struck(&self) -> usize {
        self.shared.struck.load(Ordering::Relaxed)
    }

    /// Waits until the fault has struck. The caller bounds it.
    pub async fn strikes(&self) {
        loop {
            let news = self.shared.news.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if self.struck() > 0 {
                return;
            }
            news.await;
        }
    }
}

impl ProxyState {
    fn set(&self, fault: Option<Fault>, connections: usize, times: usize) {
        self.left.store(times, Ordering::Relaxed);
        self.fault.send_replace(fault.map(|fault| ProxyFault { fault, connections }));
    }
}

impl ProxyFault {
    /// The fault of one direction of a connection.
    fn of(self, way: Direction, connection: usize) -> Option<Fault> {
        (self.fault.way == way && connection < self.connections).then_some(self.fault)
    }
}

/// State that both directions of one connection share.
#[derive(Debug)]
struct Connection {
    /// How many there were before.
    number: usize,
    /// The mark has gone up.
    marked: AtomicBool,
    /// It stalled until then, and its sender is not told of its end.
    is_silent: AtomicBool,
    over: CancellationToken,
}

async fn connect(client: TcpStream, shared: Arc<ProxyState>, tracker: TaskTracker) {
    let target = *shared.target.lock();
    let number = shared.carried.fetch_add(1, Ordering::Relaxed);
    // A target that is not there closes the client, as it would without a proxy.
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let connection = Arc::new(Connection {
        number,
        marked: AtomicBool::default(),
        is_silent: AtomicBool::default(),
        over: CancellationToken::new(),
    });
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let up = Pump::new(Direction::Up, &shared, &connection).run(client_reads, server_writes);
    let down = Pump::new(Direction::Down, &shared, &connection).run(server_reads, client_writes);
    let over = connection.over.clone();
    tracker.spawn(over.clone().run_until_cancelled_owned(up));
    over.run_until_cancelled_owned(down).await;
}

/// One direction of one connection.
struct Pump {
    way: Direction,
    shared: Arc<ProxyState>,
    connection: Arc<Connection>,
    /// Bytes since the mark.
    passed: usize,
    /// The last bytes that went up, in which a mark may begin.
    tail: Vec<u8>,
    has_struck: bool,
    drip: Option<Duration>,
}

impl Pump {
    fn new(way: Direction, shared: &Arc<ProxyState>, connection: &Arc<Connection>) -> Self {
        Self {
            way,
            shared: Arc::clone(shared),
            connection: Arc::clone(connection),
            passed: 0,
            tail: Vec::new(),
            has_struck: false,
            drip: None,
        }
    }

    async fn run(mut self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            if self.pass(&mut buffer[..read], &mut to).await.is_none() {
                if self.connection.over.is_cancelled() {
                    return reset(&from, to);
                }
                let is_silent = self.connection.is_silent.load(Ordering::Acquire) && self.way == Direction::Up;
                if is_silent {
                    let _ = to.shutdown().await;
                }
                // The rest is discarded, so that the sender notices nothing.
                while let Ok(1..) = from.read(&mut buffer).await {}
                if is_silent {
                    self.connection.over.cancel();
                }
                return;
            }
        }
        if self.connection.is_silent.load(Ordering::Acquire) {
            return self.connection.over.cancelled().await;
        }
        let _ = to.shutdown().await;
    }

    /// Passes a piece on; `None` where nothing more may follow it.
    async fn pass(&mut self, piece: &mut [u8], to: &mut OwnedWriteHalf) -> Option<()> {
        let start = self.start_in(piece);
        let fault = *self.shared.fault.borrow();
        let fault = fault.and_then(|fault| fault.of(self.way, self.connection.number));
        let Some((start, fault)) = start.zip(fault.filter(|_| !self.has_struck)) else {
            return self.write(piece, to).await;
        };
        let left = fault.after.saturating_sub(self.passed);
        if piece.len() - start <= left {
            self.passed += piece.len() - start;
            return self.write(piece, to).await;
        }
        let (before, after) = piece.split_at_mut(start + left);
        self.write(before, to).await?;
        if !self.strike() {
            return self.write(after, to).await;
        }
        match fault.verb {
            Verb::Delay(span) => tokio::time::sleep(span).await,
            Verb::Drip(span) => self.drip = Some(span),
            Verb::Corrupt => after[0] ^= 1,
            Verb::HalfClose => {
                let _ = to.shutdown().await;
                return None;
            }
            Verb::Cut => {
                let _ = to.shutdown().await;
                self.connection.over.cancel();
                // The other direction and this one end at their next step.
                return std::future::pending().await;
            }
            Verb::Reset => {
                self.connection.over.cancel();
                return None;
            }
            Verb::Stall => {
                self.let_go(Verb::Stall).await;
                self.connection.is_silent.store(self.way == Direction::Up, Ordering::Release);
                return None;
            }
            Verb::Hold => self.let_go(Verb::Hold).await,
        }
        self.write(after, to).await
    }

    /// Where in this piece the count of bytes begins, if it has begun.
    fn start_in(&mut self, piece: &[u8]) -> Option<usize> {
        let mark = self.shared.fault.borrow().map_or("", |set| set.fault.mark).as_bytes();
        if mark.is_empty() || self.connection.marked.load(Ordering::Acquire) {
            return Some(0);
        }
        if self.way == Direction::Down {
            return None;
        }
        let old = self.tail.len();
        self.tail.extend_from_slice(piece);
        let found = self.tail.windows(mark.len()).position(|window| window == mark);
        let end = found.map(|at| (at + mark.len()).saturating_sub(old));
        let keep = self.tail.len().saturating_sub(mark.len() - 1);
        self.tail.drain(..keep);
        if end.is_some() {
            self.connection.marked.store(true, Ordering::Release);
        }
        end
    }

    /// Waits until nothing holds this back in such a way.
    async fn let_go(&self, verb: Verb) {
        let (way, number) = (self.way, self.connection.number);
        let holds = |set: ProxyFault| set.of(way, number).is_some_and(|fault| fault.verb == verb);
        // The sender is as long there as this is.
        let _ = self.shared.fault.subscribe().wait_for(|set| !set.is_some_and(holds)).await;
    }

    /// Whether the fault may strike here.
    fn strike(&mut self) -> bool {
        let take = |left: usize| left.checked_sub(1);
        if self.shared.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return false;
        }
        self.has_struck = true;
        self.shared.struck.fetch_add(1, Ordering::Relaxed);
        self.shared.news.notify_waiters();
        true
    }

    async fn write(&self, bytes: &[u8], to: &mut OwnedWriteHalf) -> Option<()> {
        let Some(span) = self.drip else { return to.write_all(bytes).await.ok() };
        for byte in bytes {
            to.write_all(std::slice::from_ref(byte)).await.ok()?;
            tokio::time::sleep(span).await;
        }
        Some(())
    }
}

/// Drops a connection so that its peers see a reset.
fn reset(from: &OwnedReadHalf, to: OwnedWriteHalf) {
    let _ = from.as_ref().set_zero_linger();
    let _ = to.as_ref().set_zero_linger();
    to.forget();
}
