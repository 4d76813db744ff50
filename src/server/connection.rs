//! Serves one connection: detects its HTTP version, runs the stack, and closes it.

use std::convert::Infallible;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use http::header::CONNECTION;
use http::{HeaderValue, Request, Version};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection_state::{ConnectionState, ListenerMetrics, OpenRequest, OpenRequestBody, PeerState, ReadWatch};
use super::frames::PREFACE;
use super::io::{Misconduct, Protocol, ReleasedSocket, ResettableStream, WatchedSocket, linger};
use super::refusal::RefusalMarker;
use super::stack::{ConnectionOrigin, Layers};
use super::{ListenerLimits, frames};
use crate::body_wakes::ConnectionWaker;
use crate::connection_timer::ConnectionTimer;
use crate::face::arrival::{ALONE_MAX, Arrival};
use crate::waits::poll_cancelled;

/// Room for a target of 64 KiB, for which hyper sends 414 and not 431 (B21); [`super::head`] is stricter.
const READ_BUFFER: usize = 96 << 10;
const FIRST_READ: usize = 2 << 10;
/// How long a connection that was accepted just before the end may take to send its first byte.
const FIRST_BYTE_MAX: Duration = Duration::from_millis(500);
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const SEND_BUFFER_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct ListenerState {
    pub(super) limits: Arc<ListenerLimits>,
    pub(super) layers: ArcSwap<Layers>,
    /// Notified when the certificate must be read again at once.
    pub(super) reread: Notify,
    pub(super) meter: ListenerMetrics,
    pub(super) tracker: TaskTracker,
    pub(super) phases: Phases,
}

/// Serves one connection until either side ends it. Only the future of the connection's protocol is allocated.
pub(super) async fn serve<T: ResettableStream>(shared: Arc<ListenerState>, mut socket: T, ends: ConnectionOrigin) {
    let _counted = shared.meter.connection();
    let deadline = Instant::now() + shared.limits.head_deadline;
    let detected = {
        let mut detection = pin!(detect(&mut socket));
        tokio::select! {
            biased;
            detected = timeout_at(deadline, detection.as_mut()) => detected,
            // Its first request may be on its way, and no other listener would receive it.
            () = shared.phases.accept_ended.cancelled() => timeout(FIRST_BYTE_MAX, detection).await,
        }
    };
    // Silence, a slow preface and a broken socket end alike: no response is possible (B27).
    let Ok(Ok((protocol, prefix))) = detected else { return };
    // One token per connection: a shared one would make all contend for its lock at each wake-up.
    let (close_begun, in_flight) = (shared.phases.close_begun().child_token(), shared.meter.in_flight.clone());
    let trail = Arc::new(ConnectionState::new(close_begun, in_flight));
    let (io, returned) = WatchedSocket::new(socket, protocol, prefix, Arc::clone(&shared.limits), Arc::clone(&trail));
    let peer = ends.peer;
    let service = service(ServedConnection { shared: Arc::clone(&shared), trail: Arc::clone(&trail), ends });
    let outcome = match protocol {
        Protocol::Http1 => {
            let connection = http1(&shared).serve_connection(TokioIo::new(io), service);
            let (waker, mut timer) = (ConnectionWaker::new(), ConnectionTimer::default());
            let timed = drive(
                Box::pin(connection),
                |mut it, context| {
                    let timed = poll_fn(|context| timer.poll(context, |context| it.as_mut().poll(context)));
                    waker.poll(pin!(timed), context)
                },
                &trail,
                &shared.phases,
            );
            timed.await
        }
        Protocol::Http2 => {
            let connection = http2(&shared, &trail, peer).serve_connection(TokioIo::new(io), service);
            drive(Box::pin(connection), Future::poll, &trail, &shared.phases).await
        }
    };
    let broken = outcome.as_ref().err().and_then(|error| reason(protocol, error));
    if let Some(reason) = broken {
        shared.meter.refused(reason);
    }
    let is_announced = trail.close_announced.load(Ordering::Relaxed);
    let unread = if outcome.is_err() || is_announced { UnreadRequest::Possible } else { UnreadRequest::None };
    // hyper has dropped the connection, so the socket has been returned.
    if let Ok(returned) = returned.await {
        Box::pin(finish(&shared, returned, unread)).await;
    }
}

/// The metric label of the error that ended a connection; `None` for a peer that merely left.
fn reason(protocol: Protocol, error: &hyper::Error) -> Option<&'static str> {
    match protocol {
        Protocol::Http1 if error.is_parse() => Some("malformed"),
        Protocol::Http2 if error.is_timeout() => Some("ping_timeout"),
        Protocol::Http2 if !error.source().is_some_and(|cause| cause.is::<io::Error>()) => Some("http2"),
        Protocol::Http1 | Protocol::Http2 => None,
    }
}

/// Reads until the first bytes distinguish HTTP/1 from HTTP/2 with prior knowledge.
async fn detect<T: ResettableStream>(socket: &mut T) -> io::Result<(Protocol, Bytes)> {
    let mut read = BytesMut::with_capacity(FIRST_READ);
    loop {
        if socket.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let known = read.len().min(PREFACE.len());
        if read[..known] != PREFACE[..known] {
            return Ok((Protocol::Http1, read.freeze()));
        }
        if known == PREFACE.len() {
            return Ok((Protocol::Http2, read.freeze()));
        }
    }
}

type ConnectionAnswer = Result<http::Response<OpenRequestBody>, Infallible>;

/// The state that the requests of one connection share. A request counts one reference to it, not one to each part.
struct ServedConnection {
    shared: Arc<ListenerState>,
    trail: Arc<ConnectionState>,
    ends: ConnectionOrigin,
}

fn service(
    connection: ServedConnection,
) -> impl Service<
    Request<Incoming>,
    Response = http::Response<OpenRequestBody>,
    Error = Infallible,
    Future: Future<Output = ConnectionAnswer> + Send,
> {
    let connection = Arc::new(connection);
    service_fn(move |request: Request<Incoming>| {
        let (request, served) = (Box::new(request), Arc::clone(&connection));
        // Now, and not when the response is first polled: see `StreamExecutor`.
        let open = OpenRequest::new(Arc::clone(&connection.trail));
        let arrival = Arrival::of(request.method(), request.headers());
        let seen = arrival.clone();
        let work = Box::pin(async move {
            let ServedConnection { shared, trail, ends } = &*served;
            let version = request.version();
            let mut response = shared.layers.load_full().answer(request, ends.clone(), seen).await;
            shared.meter.answered(response.status());
            let refused = response.extensions().get::<RefusalMarker>().is_some();
            if refused && trail.glitch(shared.limits.glitches_max) == PeerState::Leaving && version <= Version::HTTP_11
            {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            if response.headers().keys().any(|name| *name == CONNECTION) {
                trail.close_announced.store(true, Ordering::Relaxed);
            }
            Ok(response.map(|body| OpenRequestBody::new(body, open, version)))
        });
        KeptWork { work: Some(work), arrival, connection: Arc::clone(&connection) }
    })
}

fn http1(shared: &ListenerState) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        // The socket enforces this timeout, see `HeaderTimeout`.
        .header_read_timeout(None)
        .max_buf_size(READ_BUFFER)
        // A connection that is accepted during the notice phase gets one response.
        .keep_alive(!shared.phases.notice_begun.is_cancelled());
    builder
}

fn http2(shared: &Arc<ListenerState>, trail: &Arc<ConnectionState>, peer: IpAddr) -> http2::Builder<StreamExecutor> {
    let is_shared = shared.layers.load().proxies.trusts(peer);
    let resets_max = if is_shared { shared.limits.shared_resets_max } else { shared.limits.unseen_resets_max };
    let executor = StreamExecutor { shared: Arc::clone(shared), trail: Arc::clone(trail) };
    let mut builder = http2::Builder::new(executor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(shared.limits.streams_max)
        .max_header_list_size(shared.limits.header_list_bytes_max)
        .max_pending_accept_reset_streams(resets_max)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER_MAX)
        .keep_alive_interval(shared.limits.ping_interval)
        .keep_alive_timeout(shared.limits.ping_timeout);
    builder
}

/// Spawns the HTTP/2 streams of a connection into the tracker that a drain waits for.
#[derive(Clone, Debug)]
struct StreamExecutor {
    shared: Arc<ListenerState>,
    trail: Arc<ConnectionState>,
}

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let Self { shared, trail } = self;
        // hyper has just called the service for this stream.
        let request = trail.begun().wrapping_sub(1);
        let watch = ReadWatch::new(Arc::clone(trail), shared.limits.write_stall, request);
        drop(shared.tracker.spawn(unless_unread(stream, watch, Arc::clone(shared))));
    }
}

/// Drops the stream of a response that stays unread, which resets it.
async fn unless_unread(stream: impl Future, mut watch: ReadWatch, shared: Arc<ListenerState>) {
    let mut stream = pin!(stream);
    let is_unread = poll_fn(|context| match stream.as_mut().poll(context) {
        Poll::Ready(_) => Poll::Ready(false),
        Poll::Pending => watch.poll(context).map(|()| true),
    });
    if is_unread.await {
        shared.meter.refused("write_stall");
    }
}

/// Drives a connection to its end: shuts it down gracefully once `close_begun` is cancelled, and drops it at `abort`.
async fn drive<C>(
    mut connection: Pin<Box<C>>,
    mut poll: impl FnMut(Pin<&mut C>, &mut Context<'_>) -> Poll<Result<(), hyper::Error>>,
    trail: &ConnectionState,
    phases: &Phases,
) -> Result<(), hyper::Error>
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let (mut closing, mut registered) = (pin!(trail.close_begun.cancelled()), None);
    let ended = poll_fn(|context| match poll(connection.as_mut(), context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
        Poll::Pending => poll_cancelled(&trail.close_begun, closing.as_mut(), &mut registered, context).map(|()| None),
    })
    .await;
    match ended {
        Some(outcome) => return outcome,
        None => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        biased;
        outcome = poll_fn(|context| poll(connection.as_mut(), context)) => outcome,
        () = phases.abort.cancelled() => Ok(()),
    }
}

/// Whether the peer may still be sending, so that a reset could discard the last response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnreadRequest {
    None,
    Possible,
}

async fn finish<T: ResettableStream>(shared: &ListenerState, returned: ReleasedSocket<T>, unread: UnreadRequest) {
    let ReleasedSocket { mut socket, misconduct, between_frames } = returned;
    match misconduct {
        Misconduct::Stalled => {
            shared.meter.refused("write_stall");
            socket.reset_on_drop();
        }
        Misconduct::Flooded => {
            shared.meter.refused("control_frames");
            let sent = timeout(shared.limits.linger, socket.write_all(&frames::CALM_DOWN));
            if between_frames && matches!(sent.await, Ok(Ok(()))) {
                linger(socket, shared.limits.linger).await;
            }
        }
        Misconduct::Late => shared.meter.refused("head_deadline"),
        Misconduct::None => match unread {
            UnreadRequest::None => (),
            UnreadRequest::Possible => linger(socket, shared.limits.linger).await,
        },
    }
}

/// The drain's phases as connections see them. Each token is cancelled once.
#[derive(Clone, Debug, Default)]
pub(super) struct Phases {
    /// Connections end after their responses in progress; new ones get one response.
    pub(super) notice_begun: CancellationToken,
    /// The notice is over: connections accepted until then are served as usual.
    pub(super) notice_ended: CancellationToken,
    /// No connection is accepted any more.
    pub(super) accept_ended: CancellationToken,
    /// Connections still running are dropped.
    pub(super) abort: CancellationToken,
}

impl Phases {
    pub(super) fn close_begun(&self) -> &CancellationToken {
        if self.notice_begun.is_cancelled() { &self.accept_ended } else { &self.notice_begun }
    }

    pub(super) fn end(&self) {
        self.notice_begun.cancel();
        self.notice_ended.cancel();
        self.accept_ended.cancel();
        self.abort.cancel();
    }
}

/// The future of a request. If it is dropped early and the request outlives its client, it continues in a task of the listener.
struct KeptWork<F: Future<Output: Send> + Send + 'static> {
    /// Boxed where it is created: moving a large future costs its size.
    work: Option<Pin<Box<F>>>,
    arrival: Arrival,
    connection: Arc<ServedConnection>,
}

impl<F: Future<Output: Send> + Send + 'static> Future for KeptWork<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let work = self.work.as_mut().expect("it is not polled after its end");
        let response = ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(response)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for KeptWork<F> {
    fn drop(&mut self) {
        // A future that panicked cannot continue.
        let Some(work) = self.work.take().filter(|_| !std::thread::panicking()) else { return };
        if let (true, Ok(runtime)) = (self.arrival.leave(), Handle::try_current()) {
            self.connection.shared.tracker.spawn_on(async { drop(timeout(ALONE_MAX, work).await) }, &runtime);
        }
    }
}
