//! One connection: which HTTP it speaks, the stack that answers it, and how it ends.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use http::Request;
use http::header::CONNECTION;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::drain::Phases;
use super::io::{Misconduct, Protocol, Returned, Transport, Watched, linger};
use super::meter::Meter;
use super::stack::{Layers, stack};
use super::{Limits, frames};
use crate::face::http::Response;

/// What an HTTP/2 client says first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Room for a target of 64 KiB, which hyper answers with 414 and not with 431 (B21); [`super::head`] is stricter.
const READ_BUFFER: usize = 96 << 10;
/// Enough for the head of nearly every request.
const FIRST_READ: usize = 2 << 10;
const HEADER_LIST_MAX: u32 = 16 << 10;
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
const SEND_BUFFER_MAX: usize = 1 << 20;

/// What all connections of a listener share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) limits: Limits,
    pub(super) layers: Layers,
    pub(super) meter: Meter,
    pub(super) tracker: TaskTracker,
    pub(super) phases: Phases,
}

/// Serves one connection until either side ends it. `local` is the address that the peer dialled.
pub(super) async fn serve<T: Transport>(shared: Arc<Shared>, mut socket: T, local: IpAddr) {
    let _counted = shared.meter.connection();
    let deadline = Instant::now() + shared.limits.head_deadline;
    let detected = tokio::select! {
        detected = timeout_at(deadline, detect(&mut socket)) => detected,
        () = shared.phases.stop.cancelled() => return,
    };
    // Silence, a slow preface and a broken socket end alike: there is nobody to answer (B27).
    let Ok(Ok((protocol, prefix))) = detected else { return };
    let (io, returned) = Watched::new(socket, prefix, protocol, shared.limits);
    let trail = Arc::new(Trail::default());
    let service = service(Arc::clone(&shared), Arc::clone(&trail), local);
    let outcome = match protocol {
        Protocol::Http1 => drive(http1(&shared).serve_connection(TokioIo::new(io), service), &shared.phases).await,
        Protocol::Http2 => drive(http2(&shared).serve_connection(TokioIo::new(io), service), &shared.phases).await,
    };
    let malformed = protocol == Protocol::Http1 && outcome.is_err_and(|error| error.is_parse());
    if malformed {
        shared.meter.refused("malformed");
    }
    // HTTP has dropped its end, so the socket is here.
    if let Ok(returned) = returned.await {
        finish(&shared, returned, malformed || trail.in_doubt.load(Ordering::Relaxed)).await;
    }
}

/// Reads until the first bytes tell HTTP/1 from HTTP/2 by prior knowledge.
async fn detect<T: Transport>(socket: &mut T) -> io::Result<(Protocol, Bytes)> {
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

/// What the answers of one connection leave behind.
#[derive(Debug, Default)]
struct Trail {
    /// An answer announced the end of the connection, perhaps before the peer had sent everything.
    in_doubt: AtomicBool,
}

type Answered = Result<Response, Infallible>;

fn service(
    shared: Arc<Shared>,
    trail: Arc<Trail>,
    local: IpAddr,
) -> impl Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Future<Output = Answered> + Send>
{
    let stack = stack(shared.layers.on(local));
    service_fn(move |request| {
        let (shared, trail, stack) = (Arc::clone(&shared), Arc::clone(&trail), stack.clone());
        async move {
            let _counted = shared.meter.request();
            let Ok(response) = stack.oneshot(request).await;
            shared.meter.answered(response.status());
            if response.headers().contains_key(CONNECTION) {
                trail.in_doubt.store(true, Ordering::Relaxed);
            }
            Ok(response)
        }
    })
}

fn http1(shared: &Shared) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(shared.limits.head_deadline)
        .max_buf_size(READ_BUFFER)
        // A connection that came in while the listener says farewell gets one answer.
        .keep_alive(!shared.phases.notice.is_cancelled());
    builder
}

fn http2(shared: &Shared) -> http2::Builder<OnTracker> {
    let mut builder = http2::Builder::new(OnTracker(shared.tracker.clone()));
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(shared.limits.streams_max)
        .max_header_list_size(HEADER_LIST_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER_MAX)
        .keep_alive_interval(shared.limits.ping_interval)
        .keep_alive_timeout(shared.limits.ping_timeout);
    builder
}

/// Spawns the streams of HTTP/2 where a drain can wait for them.
#[derive(Clone, Debug)]
struct OnTracker(TaskTracker);

impl<F> hyper::rt::Executor<F> for OnTracker
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        self.0.spawn(stream);
    }
}

/// Runs a connection to its end; asks it to end gracefully once the drain says so, and drops it at `abort`.
async fn drive<C>(connection: C, phases: &Phases) -> Result<(), hyper::Error>
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let mut connection = pin!(connection);
    // Each connection asks a token of its own: all would contend for the lock of a shared one at each wake-up.
    let farewell = phases.farewell().child_token();
    tokio::select! {
        biased;
        outcome = connection.as_mut() => return outcome,
        () = farewell.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        biased;
        outcome = connection => outcome,
        () = phases.abort.cancelled() => Ok(()),
    }
}

/// Ends a socket that HTTP has let go of.
async fn finish<T: Transport>(shared: &Shared, returned: Returned<T>, in_doubt: bool) {
    let Returned { mut socket, misconduct, between_frames } = returned;
    match misconduct {
        Misconduct::Stalled => {
            shared.meter.refused("write_stall");
            socket.reset_on_drop();
        }
        Misconduct::Flooded => {
            shared.meter.refused("control_frames");
            if between_frames && socket.write_all(&frames::CALM_DOWN).await.is_ok() {
                linger(socket, shared.limits.linger).await;
            }
        }
        Misconduct::None if in_doubt => linger(socket, shared.limits.linger).await,
        Misconduct::None => (),
    }
}
