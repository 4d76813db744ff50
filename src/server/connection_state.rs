//! Shares state between a connection's requests and its I/O layer.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http::{StatusCode, Version};
use hyper::body::{Body, Frame, SizeHint};
use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;

use crate::face::http::ResponseBody;
use crate::metric;
use crate::wire::framing::BodyPart;

/// The state of one connection, written by its requests. All of it is advisory, so relaxed ordering suffices.
#[derive(Debug)]
pub(super) struct ConnectionState {
    begun: AtomicU32,
    open: AtomicU32,
    glitches: AtomicU32,
    pub(super) close_announced: AtomicBool,
    pub(super) close_begun: CancellationToken,
    in_flight: Gauge,
    pub(super) unread: UnreadAnswers,
}

impl ConnectionState {
    /// Cancelling `close_begun` ends the connection after the responses in progress.
    pub(super) fn new(close_begun: CancellationToken, in_flight: Gauge) -> Self {
        Self {
            begun: 0.into(),
            open: 0.into(),
            glitches: 0.into(),
            close_announced: false.into(),
            close_begun,
            in_flight,
            unread: UnreadAnswers::default(),
        }
    }

    /// Counts a refused request. The request after `max` ends the connection gracefully.
    pub(super) fn glitch(&self, max: u32) -> PeerState {
        if self.glitches.fetch_add(1, Ordering::Relaxed) < max {
            return PeerState::Good;
        }
        self.close_begun.cancel();
        PeerState::Leaving
    }

    /// The number of requests that have begun; wraps.
    pub(super) fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    Good,
    Leaving,
}

/// One request, from its head to the last byte of its response or the departure of its client.
#[derive(Debug)]
pub(super) struct OpenRequest {
    trail: Arc<ConnectionState>,
    number: u32,
}

impl OpenRequest {
    pub(super) fn new(trail: Arc<ConnectionState>) -> Self {
        let number = trail.begun.fetch_add(1, Ordering::Relaxed);
        trail.open.fetch_add(1, Ordering::Relaxed);
        trail.in_flight.increment(1.0);
        Self { trail, number }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.trail.open.fetch_sub(1, Ordering::Relaxed);
        self.trail.in_flight.decrement(1.0);
    }
}

/// The body of a response; it keeps its request open.
#[derive(Debug)]
pub(super) struct OpenRequestBody {
    body: ResponseBody,
    open: OpenRequest,
    carriage: BodyDelivery,
}

#[derive(Debug)]
enum BodyDelivery {
    /// Over HTTP/1: only the socket shows whether the peer reads.
    Socket,
    /// Over HTTP/2 in pieces; holds the rest of a frame.
    Stream(BodyPart),
}

impl OpenRequestBody {
    pub(super) const fn new(body: ResponseBody, open: OpenRequest, version: Version) -> Self {
        let carriage = match version {
            Version::HTTP_2 => BodyDelivery::Stream(BodyPart::Bytes(Bytes::new())),
            _ => BodyDelivery::Socket,
        };
        Self { body, open, carriage }
    }
}

impl Body for OpenRequestBody {
    type Data = BodyPart;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<BodyPart>, std::io::Error>>> {
        let this = self.get_mut();
        let BodyDelivery::Stream(left) = &mut this.carriage else {
            return Pin::new(&mut this.body).poll_frame(context);
        };
        let OpenRequest { trail, number, .. } = &this.open;
        trail.unread.taken(*number);
        // An empty frame carries nothing, and peers count them (h2 ends a connection after a hundred).
        while left.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    // A small event is sent as one piece; a large one is not copied as a whole.
                    Ok(data) if data.len() <= PIECE_MAX => *left = BodyPart::Bytes(data.into_bytes()),
                    Ok(data) => *left = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other @ (Some(Err(_)) | None) => return Poll::Ready(other),
            }
        }
        trail.unread.handed(*number);
        Poll::Ready(Some(Ok(Frame::data(BodyPart::Bytes(next_piece(left))))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.carriage {
            BodyDelivery::Stream(left) if !left.is_empty() => false,
            BodyDelivery::Stream(_) | BodyDelivery::Socket => self.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.carriage {
            // hyper asks only before the first frame.
            BodyDelivery::Stream(left) if !left.is_empty() => SizeHint::default(),
            BodyDelivery::Stream(_) | BodyDelivery::Socket => self.body.size_hint(),
        }
    }
}

impl Drop for OpenRequestBody {
    fn drop(&mut self) {
        self.open.trail.unread.taken(self.open.number);
    }
}

/// The largest piece of a response: the default maximum frame size (RFC 9113, 4.2).
const PIECE_MAX: usize = 16 << 10;
/// From this size on, a response's last byte is a separate piece: only the next poll proves that the peer took all of a
/// piece. A smaller rest may stay behind unnoticed; it costs no more than an idle connection.
const REST_MAX: usize = 1 << 10;

fn next_piece(data: &mut BodyPart) -> Bytes {
    let length = match data.len() {
        length if length > PIECE_MAX => PIECE_MAX,
        length if length > REST_MAX => length - 1,
        length => length,
    };
    data.copy_to_bytes(length)
}

/// HTTP/2 responses that wait for their peer (B28), with their last piece's time: at most one per open stream. A peer
/// may close one stream's window while the socket takes all others' bytes. A stream polls for more only once its peer
/// has room for the previous piece: its wait is measured. A slow reader takes a piece in time.
#[derive(Debug, Default)]
pub(super) struct UnreadAnswers(Mutex<BTreeMap<u32, Instant>>);

impl UnreadAnswers {
    /// Records that a piece of the response to `request` was handed to hyper.
    pub(super) fn handed(&self, request: u32) {
        self.0.lock().insert(request, Instant::now());
    }

    /// Records that hyper polled the response to `request` again, or finished it.
    pub(super) fn taken(&self, request: u32) {
        self.0.lock().remove(&request);
    }

    fn since(&self, request: u32) -> Option<Instant> {
        self.0.lock().get(&request).copied()
    }
}

/// A timer that fires when the response to one request has waited too long.
#[derive(Debug)]
pub(super) struct ReadWatch {
    trail: Arc<ConnectionState>,
    request: u32,
    span: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl ReadWatch {
    pub(super) const fn new(trail: Arc<ConnectionState>, span: Duration, request: u32) -> Self {
        Self { trail, request, span, timer: None }
    }

    /// Ready once the response has waited for the span. Poll it after each piece. The timer is reset only when it fires, and so costs nothing.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Self { trail, request, span, timer } = self;
        let Some(since) = trail.unread.since(*request) else { return Poll::Pending };
        let timer = timer.get_or_insert_with(|| Box::pin(sleep(*span)));
        loop {
            ready!(timer.as_mut().poll(context));
            let ends_at = since + *span;
            if ends_at <= Instant::now() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(ends_at);
        }
    }
}

const STATUS_FIRST: u16 = 100;
const STATUS_COUNT: usize = 900;

/// The metrics of one listener. The recorder must be installed before a listener starts.
pub(super) struct ListenerMetrics {
    listener: &'static str,
    pub(super) in_flight: Gauge,
    connections: Gauge,
    answers: Vec<OnceLock<Counter>>,
    pub(super) accept_pauses: Counter,
}

impl ListenerMetrics {
    pub(super) fn new(listener: &'static str) -> Self {
        let metrics = Self {
            listener,
            in_flight: metrics::gauge!(metric::HTTP_IN_FLIGHT, "listener" => listener),
            connections: metrics::gauge!(metric::CONNECTIONS, "listener" => listener),
            answers: (0..STATUS_COUNT).map(|_| OnceLock::new()).collect(),
            accept_pauses: metrics::counter!(metric::ACCEPT_PAUSES, "listener" => listener),
        };
        // Creates the series before the first request.
        let _ = metrics.counter_of(StatusCode::OK);
        metrics
    }

    pub(super) const fn name(&self) -> &'static str {
        self.listener
    }

    pub(super) fn answered(&self, status: StatusCode) {
        if let Some(counter) = self.counter_of(status) {
            counter.increment(1);
        }
    }

    fn counter_of(&self, status: StatusCode) -> Option<&Counter> {
        let counter = self.answers.get(usize::from(status.as_u16().saturating_sub(STATUS_FIRST)))?;
        Some(counter.get_or_init(|| {
            let status = status.as_str().to_owned();
            metrics::counter!(metric::HTTP_REQUESTS, "listener" => self.listener, "status" => status)
        }))
    }

    pub(super) fn connection(&self) -> GaugeGuard {
        self.connections.increment(1.0);
        GaugeGuard(self.connections.clone())
    }

    /// Counts a connection or request that hyper refused.
    pub(super) fn refused(&self, reason: &'static str) {
        metrics::counter!(metric::HTTP_REFUSED, "reason" => reason).increment(1);
        tracing::debug!(listener = self.listener, reason, "connection refused");
    }
}

debug_members!(ListenerMetrics, |metrics| listener: metrics.listener);

#[derive(Debug)]
#[must_use]
pub(super) struct GaugeGuard(Gauge);

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::stream;
    use http_body_util::StreamBody;

    use super::*;

    #[tokio::test]
    async fn an_empty_piece_of_an_answer_is_not_sent_on() {
        let pieces = ["", "a", "", "", "b", ""].map(|piece| Ok(Frame::data(BodyPart::Bytes(Bytes::from(piece)))));
        let body = ResponseBody::new(StreamBody::new(stream::iter(pieces)));
        let trail = Arc::new(ConnectionState::new(CancellationToken::new(), Gauge::noop()));
        let open = OpenRequest::new(trail);
        let mut body = OpenRequestBody::new(body, open, Version::HTTP_2);
        let mut sent = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            sent.push(frame.unwrap().into_data().unwrap().into_bytes());
        }
        assert_eq!(sent, ["a", "b"]);
    }

    #[test]
    fn an_answer_is_cut_so_that_its_end_needs_room_of_its_own() {
        for (length, expected) in [
            (0, vec![]),
            (REST_MAX, vec![REST_MAX]),
            (REST_MAX + 1, vec![REST_MAX, 1]),
            (PIECE_MAX, vec![PIECE_MAX - 1, 1]),
            (2 * PIECE_MAX + 7, vec![PIECE_MAX, PIECE_MAX, 7]),
        ] {
            let mut data = BodyPart::Bytes(Bytes::from(vec![0; length]));
            let mut pieces = Vec::new();
            while !data.is_empty() {
                pieces.push(next_piece(&mut data).len());
            }
            assert_eq!(pieces, expected, "{length}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_watch_ends_with_the_last_piece_of_its_own_answer() {
        let span = Duration::from_secs(30);
        let trail = Arc::new(ConnectionState::new(CancellationToken::new(), Gauge::noop()));
        let mut watch = ReadWatch::new(Arc::clone(&trail), span, 2);
        let began = Instant::now();
        trail.unread.handed(1);
        tokio::time::advance(Duration::from_secs(10)).await;
        trail.unread.handed(2);
        assert!(futures_util::poll!(poll_fn(|context| watch.poll(context))).is_pending());
        tokio::time::advance(Duration::from_secs(10)).await;
        trail.unread.handed(2);
        poll_fn(|context| watch.poll(context)).await;
        assert_eq!(began.elapsed(), Duration::from_secs(50));
    }
}
