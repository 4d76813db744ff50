//! Pools connections to one upstream: HTTP/1.1 for one request each, one HTTP/2 for all.
//! A request waits both for a new connection and for a returned one, and takes the first. A new connection that is no
//! longer needed is pooled.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper::rt::Executor as _;
use hyper_util::client::legacy::connect::Connection as _;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::connector::{Connector, KEEP_ALIVE, Stream};
use super::interim::{CountedStream, InterimCount};
use super::{BoxError, SinglePieceBody};
use crate::body_wakes::ConnectionWaker;
use crate::upstream::answer_body::{AnswerBody, AnswerReporter};

/// Largest read. A connection begins with 8 KiB and grows. hyper bounds heads by it too, so heads are checked again.
const READ_BYTES_MAX: usize = 256 * 1024;
/// Node closes idle connections after five seconds, and it is unknowable whether a call that meets a close has run.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(4);

/// Boxed: a connection has a queue with room for 32 requests, although few are used.
type RequestBody = Box<SinglePieceBody>;
type Http1Sender = http1::SendRequest<RequestBody>;
type Http2Sender = http2::SendRequest<RequestBody>;

#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("there is no connection")]
    Connect(#[source] BoxError),
    #[error("there is no answer")]
    Exchange(#[source] hyper::Error),
    #[error("too many interim answers")]
    TooManyInterim,
    #[error("the HTTP/2 connection grants no further stream")]
    NoStream,
}

#[derive(Clone, Debug)]
pub(super) struct ConnectionPool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connector: Connector,
    connect_max: Duration,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    pooled: Mutex<PooledConnections>,
    returned: Notify,
    /// Whether the upstream last negotiated HTTP/2: the holder of `turn` opens the next connection for all waiting.
    is_http2: AtomicBool,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct PooledConnections {
    /// Least recently used first.
    idle: Vec<Idle>,
    http2: Option<Http2Connection>,
    /// Whether a tokio task closes expired connections.
    is_swept: bool,
}

#[derive(Debug)]
struct Idle {
    connection: Http1Connection,
    since: Instant,
}

enum Leased {
    /// With its unstarted driver, which starts with a request, so that the request always learns its outcome.
    Http1(Http1Connection, Option<Box<Http1Driver>>),
    /// The shared one, and whether it was used before.
    Http2(Http2Sender, Http2Lease, bool),
}

impl Leased {
    const fn is_reused(&self) -> bool {
        match self {
            Self::Http1(_, driver) => driver.is_none(),
            Self::Http2(_, _, is_reused) => *is_reused,
        }
    }
}

#[derive(Debug)]
struct Http2Connection {
    sender: Http2Sender,
    usage: Arc<Mutex<Http2Usage>>,
    /// Dropping it ends the queue of requests without a stream. The others keep their streams.
    _queue: oneshot::Sender<Infallible>,
}

#[derive(Debug)]
struct Http2Usage {
    requests: usize,
    /// When the last request ended or began.
    since: Instant,
    /// Requests without a stream.
    waiting: usize,
    /// When the last of them got its stream, or the first began to wait.
    waited_since: Instant,
    /// How long earlier requests waited that left without a stream.
    waited: Duration,
    is_left: bool,
}

impl Http2Usage {
    fn new() -> Self {
        let now = Instant::now();
        Self { requests: 0, since: now, waiting: 0, waited_since: now, waited: Duration::ZERO, is_left: false }
    }

    /// When requests will have waited for a stream too long. Time without one that waits does not count.
    fn stuck_at(&self, connect_max: Duration) -> Option<Instant> {
        (self.waiting > 0).then(|| self.waited_since + connect_max.saturating_sub(self.waited))
    }
}

impl Http2Connection {
    fn new(sender: Http2Sender, queue: oneshot::Sender<Infallible>) -> Self {
        Self { sender, usage: Arc::new(Mutex::new(Http2Usage::new())), _queue: queue }
    }

    fn lease(&self, is_reused: bool) -> Leased {
        Leased::Http2(self.sender.clone(), Http2Lease::new(&self.usage), is_reused)
    }

    fn idle_since(&self) -> Instant {
        let usage = self.usage.lock();
        if usage.requests == 0 { usage.since } else { Instant::now() }
    }
}

#[derive(Debug)]
struct Http2Request {
    usage: Arc<Mutex<Http2Usage>>,
    has_client: AtomicBool,
}

/// A request without a stream (U78). Its body holds this until hyper, which has a stream for it then, reads the body.
#[derive(Debug)]
#[must_use]
pub(super) struct StreamWait(Arc<Http2Request>);

impl Drop for StreamWait {
    fn drop(&mut self) {
        let usage = &mut *self.0.usage.lock();
        usage.waiting -= 1;
        if self.0.has_client.load(Ordering::Relaxed) {
            (usage.waited_since, usage.waited) = (Instant::now(), Duration::ZERO);
        } else if usage.waiting == 0 {
            usage.waited += usage.waited_since.elapsed();
        }
    }
}

/// One request on an HTTP/2 connection, until its response is complete or dropped.
#[derive(Debug)]
#[must_use]
struct Http2Lease(Arc<Http2Request>);

impl Http2Lease {
    fn new(usage: &Arc<Mutex<Http2Usage>>) -> Self {
        usage.lock().requests += 1;
        Self(Arc::new(Http2Request { usage: Arc::clone(usage), has_client: AtomicBool::new(true) }))
    }

    fn wait(&self) -> StreamWait {
        let mut usage = self.0.usage.lock();
        if usage.waiting == 0 {
            usage.waited_since = Instant::now();
        }
        usage.waiting += 1;
        StreamWait(Arc::clone(&self.0))
    }

    /// The request, with a body that counts as waiting for a stream until hyper reads it.
    fn waiting(&self, mut request: Request<RequestBody>) -> Request<RequestBody> {
        request.body_mut().wait = Some(self.wait());
        request
    }
}

impl Drop for Http2Lease {
    fn drop(&mut self) {
        let mut usage = self.0.usage.lock();
        self.0.has_client.store(false, Ordering::Relaxed);
        usage.requests -= 1;
        usage.since = Instant::now();
    }
}

/// A response's body. Over HTTP/2 it keeps its connection in use.
#[derive(Debug)]
pub(crate) struct PooledBody {
    incoming: Incoming,
    lease: Option<Http2Lease>,
}

impl PooledBody {
    pub(crate) fn reporting_to(self, reporter: Option<AnswerReporter>) -> AnswerBody {
        let body = AnswerBody::Http(self.incoming, reporter);
        match self.lease {
            Some(lease) => AnswerBody::Kept { body: Box::new(body), _kept: Box::new(lease) },
            None => body,
        }
    }
}

impl Body for PooledBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.incoming).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[derive(Debug)]
struct Http1Connection {
    sender: Http1Sender,
    state: Arc<Http1State>,
}

/// Shared by a connection's driver and its user.
#[derive(Debug)]
struct Http1State {
    /// While the rest of a response comes.
    parked: Mutex<Option<Http1Sender>>,
    interim: Arc<InterimCount>,
}

impl ConnectionPool {
    /// `head_bytes_max` limits header blocks of HTTP/2.
    pub(super) fn new(connector: Connector, connect_max: Duration, head_bytes_max: usize) -> Self {
        let mut http1 = http1::Builder::new();
        http1.max_buf_size(READ_BYTES_MAX);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            // One, until the server has sent its limit: it might refuse the others.
            .initial_max_send_streams(1)
            .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_while_idle(true);
        Self(Arc::new(Shared {
            connector,
            connect_max,
            http1,
            http2,
            pooled: Mutex::default(),
            returned: Notify::new(),
            is_http2: AtomicBool::new(false),
            turn: tokio::sync::Mutex::default(),
        }))
    }

    /// Sends the request that `request` builds for a connection's version; returns with the response's head. A request
    /// that a pooled connection had not begun goes to another. Dropping the future drops the request.
    pub(super) async fn send(
        &self,
        request: impl Fn(Version) -> Request<RequestBody>,
    ) -> Result<Response<PooledBody>, SendError> {
        loop {
            let leased = match self.0.take() {
                Some(pooled) => pooled,
                None => Box::pin(self.0.checkout()).await.map_err(SendError::Connect)?,
            };
            let is_reused = leased.is_reused();
            let (answer, lease) = match leased {
                Leased::Http1(mut connection, driver) => {
                    connection.state.interim.begin();
                    let answer = connection.sender.try_send_request(request(Version::HTTP_11));
                    if let Some(driver) = driver {
                        spawn_detached(driver);
                    }
                    let answer = answer.await;
                    if connection.state.interim.is_too_many() {
                        return Err(SendError::TooManyInterim);
                    }
                    if answer.is_ok() {
                        self.0.release(connection);
                    }
                    (answer, None)
                }
                Leased::Http2(mut sender, lease, _) => {
                    let answer = sender.try_send_request(lease.waiting(request(Version::HTTP_2))).await;
                    if answer.is_err() && lease.0.usage.lock().is_left {
                        return Err(SendError::NoStream);
                    }
                    (answer, Some(lease))
                }
            };
            match answer {
                Ok(response) => return Ok(response.map(|incoming| PooledBody { incoming, lease })),
                Err(unsent) if is_reused && unsent.message().is_some() => (),
                Err(failed) => return Err(SendError::Exchange(failed.into_error())),
            }
        }
    }
}

impl Shared {
    fn take(&self) -> Option<Leased> {
        let mut pooled = self.pooled.lock();
        if let Some(connection) = &pooled.http2 {
            if connection.sender.is_ready() {
                return Some(connection.lease(true));
            }
            pooled.http2 = None;
        }
        while let Some(Idle { connection, since }) = pooled.idle.pop() {
            if connection.sender.is_ready() && since.elapsed() <= IDLE_MAX {
                return Some(Leased::Http1(connection, None));
            }
        }
        None
    }

    async fn checkout(self: &Arc<Self>) -> Result<Leased, BoxError> {
        let mut connecting = self.connecting();
        loop {
            let mut returned = pin!(self.returned.notified());
            tokio::select! {
                biased;
                () = &mut returned => (),
                opened = &mut connecting => return opened?,
            }
            let Some(leased) = self.take() else { continue };
            if matches!(leased, Leased::Http1(..)) {
                spawn_detached(async move {
                    if let Ok(Ok(Leased::Http1(connection, Some(driver)))) = connecting.await {
                        *connection.state.parked.lock() = Some(connection.sender);
                        spawn_detached(driver);
                    }
                });
            }
            return Ok(leased);
        }
    }

    /// Makes a connection in its own tokio task, which ends with its request: an unpolled request keeps no turn.
    fn connecting(self: &Arc<Self>) -> oneshot::Receiver<Result<Leased, BoxError>> {
        let ((mut waiting, opened), shared) = (oneshot::channel(), Arc::clone(self));
        spawn_detached(async move {
            let opened = tokio::select! {
                () = waiting.closed() => return,
                opened = shared.connect() => opened,
            };
            let _ = waiting.send(opened);
        });
        opened
    }

    /// Bounded in time.
    async fn connect(self: Arc<Self>) -> Result<Leased, BoxError> {
        let connecting = async {
            let mut turn = None;
            if self.is_http2.load(Ordering::Relaxed) {
                let held = self.turn.lock().await;
                if let Some(pooled) = self.take() {
                    return Ok(pooled);
                }
                // The previous holder may have met HTTP/1.1.
                turn = self.is_http2.load(Ordering::Relaxed).then_some(held);
            }
            let stream = self.connector.connect().await?;
            let is_http2 = stream.connected().is_negotiated_h2();
            self.is_http2.store(is_http2, Ordering::Relaxed);
            let leased = if is_http2 { self.http2_over(stream).await } else { self.http1_over(stream).await };
            drop(turn);
            Ok(leased?)
        };
        tokio::time::timeout(self.connect_max, connecting).await?
    }

    async fn http1_over(self: &Arc<Self>, stream: Stream) -> Result<Leased, hyper::Error> {
        let interim = Arc::<InterimCount>::default();
        let stream = TokioIo::new(CountedStream::new(stream, &interim));
        let (sender, connection) = self.http1.handshake(stream).await?;
        let state = Arc::new(Http1State { parked: Mutex::default(), interim });
        let (waker, shared) = (ConnectionWaker::new(), Arc::downgrade(self));
        let driver = Http1Driver { connection, waker, state: Arc::clone(&state), shared };
        Ok(Leased::Http1(Http1Connection { sender, state }, Some(Box::new(driver))))
    }

    async fn http2_over(self: &Arc<Self>, stream: Stream) -> Result<Leased, hyper::Error> {
        let (sender, connection) = self.http2.handshake(stream).await?;
        let (queue, left) = oneshot::channel();
        let leased;
        {
            let mut pooled = self.pooled.lock();
            // Another request was first: all share its connection.
            if let Some(first) = pooled.http2.as_ref().filter(|first| first.sender.is_ready()) {
                return Ok(first.lease(true));
            }
            let connection = Http2Connection::new(sender, queue);
            leased = connection.lease(false);
            pooled.http2 = Some(connection);
            self.sweep_later(&mut pooled);
        }
        spawn_detached(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to the upstream ended");
                },
                _ = left => (),
            }
        });
        self.returned.notify_waiters();
        Ok(leased)
    }

    /// Returns a connection after its response has begun: at once if the response is complete.
    fn release(self: &Arc<Self>, connection: Http1Connection) {
        let state = Arc::clone(&connection.state);
        let mut parked = state.parked.lock();
        if connection.sender.is_ready() {
            drop(parked);
            self.park_idle(connection);
        } else {
            // It becomes ready only while its driver is polled, which looks here afterwards.
            *parked = Some(connection.sender);
        }
    }

    fn park_idle(self: &Arc<Self>, connection: Http1Connection) {
        let mut pooled = self.pooled.lock();
        pooled.idle.push(Idle { connection, since: Instant::now() });
        self.sweep_later(&mut pooled);
        drop(pooled);
        self.returned.notify_one();
    }

    fn sweep_later(self: &Arc<Self>, pooled: &mut PooledConnections) {
        if !std::mem::replace(&mut pooled.is_swept, true) {
            spawn_detached(sweep(Arc::downgrade(self)));
        }
    }
}

/// Not on the tracker: a drain waits for the exchanges, and a connection without one may be cut.
fn spawn_detached(future: impl Future<Output = ()> + Send + 'static) {
    TokioExecutor::new().execute(future);
}

/// Ends when no connection is pooled.
async fn sweep(shared: Weak<Shared>) {
    let mut until = Instant::now() + IDLE_MAX;
    loop {
        tokio::time::sleep_until(until).await;
        let Some(shared) = shared.upgrade() else { return };
        let mut pooled = shared.pooled.lock();
        pooled.idle.retain(|idle| idle.since.elapsed() < IDLE_MAX);
        pooled.http2.take_if(|connection| connection.idle_since().elapsed() >= IDLE_MAX);
        let stuck_at = |connection: &Http2Connection| connection.usage.lock().stuck_at(shared.connect_max);
        if let Some(stuck) = pooled.http2.take_if(|pooled| stuck_at(pooled).is_some_and(|at| at <= Instant::now())) {
            stuck.usage.lock().is_left = true;
        }
        let of_http2 = pooled.http2.as_ref();
        let oldest = pooled.idle.first().map(|idle| idle.since).into_iter();
        let expires = oldest.chain(of_http2.map(Http2Connection::idle_since)).map(|since| since + IDLE_MAX);
        match expires.chain(of_http2.and_then(stuck_at)).min() {
            Some(next) => until = next,
            None => {
                pooled.is_swept = false;
                return;
            }
        }
    }
}

/// Runs an HTTP/1.1 connection to its end, and keeps it after a complete response.
struct Http1Driver {
    connection: http1::Connection<TokioIo<CountedStream>, RequestBody>,
    /// Without the wake-up after the last piece of a response: the connection is ready for a request before it.
    waker: ConnectionWaker,
    state: Arc<Http1State>,
    shared: Weak<Shared>,
}

impl Future for Http1Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        match this.waker.poll(Pin::new(&mut this.connection), cx) {
            Poll::Ready(Ok(())) => return Poll::Ready(()),
            Poll::Ready(Err(error)) => {
                tracing::debug!(%error, "a connection to the upstream ended");
                return Poll::Ready(());
            }
            // Ends the connection, and so its request.
            Poll::Pending if this.state.interim.is_too_many() => return Poll::Ready(()),
            Poll::Pending => (),
        }
        let ready = this.state.parked.lock().take_if(|sender| sender.is_ready());
        if let Some(sender) = ready
            && let Some(shared) = this.shared.upgrade()
        {
            shared.park_idle(Http1Connection { sender, state: Arc::clone(&this.state) });
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probes and pings leave after a few seconds.
    #[tokio::test(start_paused = true)]
    async fn u78_a_request_that_leaves_without_a_stream_does_not_count_as_one_with_a_stream() {
        let usage = Arc::new(Mutex::new(Http2Usage::new()));
        let stuck_in = || {
            let at = usage.lock().stuck_at(Duration::from_secs(10));
            at.map(|at| at.duration_since(Instant::now()).as_secs())
        };
        for left in [10, 7, 4] {
            let lease = Http2Lease::new(&usage);
            let wait = lease.wait();
            assert_eq!(stuck_in(), Some(left));
            tokio::time::advance(Duration::from_secs(3)).await;
            drop(lease);
            drop(wait);
            assert_eq!(stuck_in(), None);
            tokio::time::advance(Duration::from_secs(3_600)).await;
        }
        let lease = Http2Lease::new(&usage);
        let wait = lease.wait();
        assert_eq!(stuck_in(), Some(1));
        drop(wait);
        let _wait = lease.wait();
        assert_eq!(stuck_in(), Some(10));
    }
}
