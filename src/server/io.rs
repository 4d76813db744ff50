//! Wraps a connection's byte stream: replays its prefix and enforces limits on the peer. Resets peers that do not read,
//! counts HTTP/2 control frames, and returns the socket when hyper has finished.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::ListenerLimits;
use super::connection_state::ConnectionState;
use super::frames::{ControlBudget, FrameCursor};

pub(super) trait ResettableStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Makes the drop of this socket a reset instead of an orderly end.
    fn reset_on_drop(&self);
}

impl ResettableStream for TcpStream {
    fn reset_on_drop(&self) {
        // It fails only if the socket is closed already.
        let _ = self.set_zero_linger();
    }
}

/// A peer that reads fewer bytes per second while bytes wait for it is treated as stalled.
const READ_RATE_MIN: u128 = 1 << 10;

/// Counts the bytes that a peer read since the first one waited for it.
#[derive(Clone, Copy, Debug)]
struct SlowReader {
    since: Instant,
    taken: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misconduct {
    None,
    /// It left a response unread for too long (B28).
    Stalled,
    /// It sent too many control frames (B41 to B43).
    Flooded,
    /// It began a request head and did not finish it (B25).
    Late,
}

#[derive(Debug)]
pub(super) struct ReleasedSocket<T> {
    pub(super) socket: T,
    pub(super) misconduct: Misconduct,
    /// Whether a frame may be written now without splitting another.
    pub(super) between_frames: bool,
}

#[derive(Debug)]
pub(super) struct WatchedSocket<T> {
    socket: Option<T>,
    release: Option<oneshot::Sender<ReleasedSocket<T>>>,
    prefix: Bytes,
    limits: Arc<ListenerLimits>,
    stalled: Option<Pin<Box<Sleep>>>,
    /// Set while bytes wait for the peer.
    slow: Option<SlowReader>,
    /// As `stalled`, for bytes that the socket has buffered and not sent; only TLS buffers bytes.
    unflushed: Option<Pin<Box<Sleep>>>,
    /// Over HTTP/1.
    header_timeout: Option<HeaderTimeout>,
    /// The position of the next HTTP/1 byte.
    request_line: RequestLine,
    /// Over HTTP/2.
    frames: Option<Box<FrameCounters>>,
    /// Over HTTP/2, once the peer has closed its side: the delay before hyper sees it.
    ending: Option<Pin<Box<Sleep>>>,
    misconduct: Misconduct,
}

#[derive(Debug)]
struct FrameCounters {
    inbound: FrameCursor,
    outbound: FrameCursor,
    budget: ControlBudget,
}

impl FrameCounters {
    fn new(limits: &ListenerLimits) -> Self {
        Self {
            inbound: FrameCursor::after(super::frames::PREFACE.len()),
            outbound: FrameCursor::default(),
            budget: ControlBudget::new(limits.control_frames_max, limits.control_window),
        }
    }
}

/// How long the end of the peer's stream is held back, so that hyper accepts the streams right before it.
const CLOSE_NOTICED_AFTER: Duration = Duration::from_millis(1);

const GONE: &str = "the socket is there until drop";

impl<T: ResettableStream> WatchedSocket<T> {
    /// Wraps `socket`, of which `prefix` has been read. Dropping the wrapper sends the socket to the receiver.
    pub(super) fn new(
        socket: T,
        protocol: Protocol,
        prefix: Bytes,
        limits: Arc<ListenerLimits>,
        trail: Arc<ConnectionState>,
    ) -> (Self, oneshot::Receiver<ReleasedSocket<T>>) {
        let (release, returned) = oneshot::channel();
        let (header_timeout, frames) = match protocol {
            Protocol::Http1 => (Some(HeaderTimeout::new(trail)), None),
            Protocol::Http2 => (None, Some(Box::new(FrameCounters::new(&limits)))),
        };
        let watched = Self {
            socket: Some(socket),
            release: Some(release),
            prefix,
            limits,
            stalled: None,
            slow: None,
            unflushed: None,
            header_timeout,
            request_line: RequestLine::Over,
            frames,
            ending: None,
            misconduct: Misconduct::None,
        };
        (watched, returned)
    }

    fn socket(&mut self) -> Pin<&mut T> {
        Pin::new(self.socket.as_mut().expect(GONE))
    }

    fn inspect(&mut self, read: &[u8]) -> io::Result<()> {
        let Some(frames) = &mut self.frames else {
            return Ok(());
        };
        let budget = &mut frames.budget;
        frames.inbound.advance(read, |kind| budget.spend(kind));
        if budget.is_overdrawn() {
            self.misconduct = Misconduct::Flooded;
            return Err(io::Error::other("too many control frames"));
        }
        Ok(())
    }

    /// Returns the outcome of a write, or fails once writes have been pending for too long.
    fn watch(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let span = self.limits.write_stall;
        if let Poll::Ready(outcome) = written {
            self.stalled = None;
            let taken = outcome?;
            if let Some(slow) = &mut self.slow {
                slow.taken += taken;
                if slow.since.elapsed() >= span {
                    if (slow.taken as u128) < READ_RATE_MIN * span.as_millis() / 1_000 {
                        self.misconduct = Misconduct::Stalled;
                        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                    }
                    self.slow = None;
                }
            }
            return Poll::Ready(Ok(taken));
        }
        self.slow.get_or_insert_with(|| SlowReader { since: Instant::now(), taken: 0 });
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(span)));
        std::task::ready!(stalled.as_mut().poll(context));
        self.misconduct = Misconduct::Stalled;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// As [`WatchedSocket::watch`], with a separate timer: a socket without TLS flushes at once even while it takes no byte.
    fn watch_flush(&mut self, context: &mut Context<'_>, flushed: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        if flushed.is_ready() {
            self.unflushed = None;
            return flushed;
        }
        let span = self.limits.write_stall;
        let unflushed = self.unflushed.get_or_insert_with(|| Box::pin(sleep(span)));
        std::task::ready!(unflushed.as_mut().poll(context));
        self.misconduct = Misconduct::Stalled;
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// A write to an HTTP/2 peer that reads no more succeeds: its last streams may be unread here; reads show the end.
    fn unless_gone<R>(&self, outcome: Poll<io::Result<R>>, all: R) -> Poll<io::Result<R>> {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};

        match &outcome {
            Poll::Ready(Err(error))
                if self.frames.is_some()
                    && matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected) =>
            {
                Poll::Ready(Ok(all))
            }
            Poll::Ready(_) | Poll::Pending => outcome,
        }
    }

    fn track<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]>, written: &Poll<io::Result<usize>>) {
        if let (Some(frames), Poll::Ready(Ok(written))) = (&mut self.frames, written) {
            let mut left = *written;
            for slice in slices {
                let passed = left.min(slice.len());
                let budget = &mut frames.budget;
                frames.outbound.advance(&slice[..passed], |kind| budget.sent(kind));
                left -= passed;
            }
        }
    }
}

impl<T: ResettableStream> AsyncRead for WatchedSocket<T> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if this.prefix.is_empty() {
            let read = this.socket().poll_read(context, buf);
            if let Some(header_timeout) = &mut this.header_timeout {
                if read.is_ready() {
                    this.request_line.begins_if(header_timeout.note_bytes());
                } else if let Poll::Ready(stage) = header_timeout.poll(context, &this.limits) {
                    if stage == HeaderTimeoutStage::Head {
                        this.misconduct = Misconduct::Late;
                    }
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            let read = std::task::ready!(read);
            if this.frames.is_some() && (read.is_err() || buf.filled().len() == before) {
                // h2 drops the streams that it has not yet accepted.
                let ending = this.ending.get_or_insert_with(|| Box::pin(sleep(CLOSE_NOTICED_AFTER)));
                return ending.as_mut().poll(context).map(Ok);
            }
            read?;
        } else {
            let head = this.prefix.split_to(this.prefix.len().min(buf.remaining()));
            buf.put_slice(&head);
            this.request_line.begins_if(this.header_timeout.as_mut().is_some_and(HeaderTimeout::note_bytes));
        }
        this.request_line.spoil_fragment(&mut buf.filled_mut()[before..]);
        Poll::Ready(this.inspect(&buf.filled()[before..]))
    }
}

impl<T: ResettableStream> AsyncWrite for WatchedSocket<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        #[cfg(debug_assertions)]
        half_write(this.socket(), context, &[buf]);
        let written = this.socket().poll_write(context, buf);
        let written = this.unless_gone(written, buf.len());
        this.track(std::iter::once(buf), &written);
        this.watch(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        #[cfg(debug_assertions)]
        half_write(this.socket(), context, &bufs.iter().map(|slice| &**slice).collect::<Vec<_>>());
        let written = this.socket().poll_write_vectored(context, bufs);
        let written = this.unless_gone(written, bufs.iter().map(|slice| slice.len()).sum());
        this.track(bufs.iter().map(|slice| &**slice), &written);
        this.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // hyper has written everything it had.
        this.slow = None;
        let flushed = this.socket().poll_flush(context);
        let flushed = this.unless_gone(flushed, ());
        this.watch_flush(context, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let ended = this.socket().poll_shutdown(context);
        this.watch_flush(context, ended)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderTimeoutStage {
    /// The first byte of a request.
    Idle,
    Head,
}

/// Ends HTTP/1 connections that are idle too long, or too slow with a request head. hyper's one timer is created for
/// each request. Here idling may last longer than a head, and a timer is rarely reset.
#[derive(Debug)]
struct HeaderTimeout {
    trail: Arc<ConnectionState>,
    stage: HeaderTimeoutStage,
    since: Instant,
    /// The number of requests when the stage began: another number means that the stage is over.
    begun: u32,
    timer: Option<Pin<Box<Sleep>>>,
    woken: Option<Waker>,
}

impl HeaderTimeout {
    fn new(trail: Arc<ConnectionState>) -> Self {
        let begun = trail.begun();
        Self { trail, stage: HeaderTimeoutStage::Idle, since: Instant::now(), begun, timer: None, woken: None }
    }

    /// Records received bytes. Returns whether a head begins with them; bytes of a body or a pipelined request begin none.
    fn note_bytes(&mut self) -> bool {
        let begins = self.stage == HeaderTimeoutStage::Idle && !self.trail.is_busy();
        if begins {
            self.enter(HeaderTimeoutStage::Head);
        }
        begins
    }

    /// Ready with the stage that timed out. A timer is always set: when hyper stops reading, only the timer wakes it.
    fn poll(&mut self, context: &mut Context<'_>, limits: &ListenerLimits) -> Poll<HeaderTimeoutStage> {
        if self.trail.is_busy() {
            // The stage begins when the request is over: the clock is read then.
            (self.stage, self.begun) = (HeaderTimeoutStage::Idle, self.trail.begun().wrapping_sub(1));
            if self.is_armed_for(context) {
                return Poll::Pending;
            }
        }
        loop {
            if self.trail.is_busy() || self.trail.begun() != self.begun {
                self.enter(HeaderTimeoutStage::Idle);
            }
            let ends_at = self.since
                + match self.stage {
                    HeaderTimeoutStage::Idle => limits.idle_deadline,
                    HeaderTimeoutStage::Head => limits.head_deadline,
                };
            let is_armed = self.is_armed_for(context);
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(ends_at)));
            // A timer that fires too early is set again; only a timer that would fire too late is moved at once.
            if timer.deadline() > ends_at {
                timer.as_mut().reset(ends_at);
            } else if is_armed {
                return Poll::Pending;
            }
            self.woken = Some(context.waker().clone());
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            if Instant::now() >= ends_at {
                return Poll::Ready(self.stage);
            }
            // One that has fired wakes no task until it is polled again.
            self.woken = None;
            timer.as_mut().reset(ends_at);
        }
    }

    /// Whether the timer will wake this task.
    fn is_armed_for(&self, context: &Context<'_>) -> bool {
        self.timer.as_ref().is_some_and(|timer| !timer.is_elapsed())
            && self.woken.as_ref().is_some_and(|task| task.will_wake(context.waker()))
    }

    fn enter(&mut self, stage: HeaderTimeoutStage) {
        self.stage = stage;
        self.since = Instant::now();
        self.begun = self.trail.begun();
    }
}

/// The position of the next byte relative to a request line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestLine {
    /// Before a request line. The parser skips empty lines there, too.
    Before,
    Method,
    Target,
    /// After a target, or elsewhere.
    Over,
}

impl RequestLine {
    fn begins_if(&mut self, is_head: bool) {
        if is_head {
            *self = Self::Before;
        }
    }

    /// Replaces a `#` in a target by an invalid byte, so that hyper refuses the request (RFC 9112, 3.2): it would serve the
    /// path before it (B56). The rest of a pipelined request, which may come here, looks like no request line.
    fn spoil_fragment(&mut self, read: &mut [u8]) {
        for byte in read {
            *self = match (*self, *byte) {
                (Self::Over, _) => return,
                (Self::Before, b'\r' | b'\n') => Self::Before,
                (Self::Before | Self::Method, b'A'..=b'Z') => Self::Method,
                (Self::Method, b' ') => Self::Target,
                (Self::Before | Self::Method, _) | (Self::Target, b' ' | b'\n') => Self::Over,
                (Self::Target, next) => {
                    *byte = if next == b'#' { 0 } else { next };
                    Self::Target
                }
            };
        }
    }
}

/// Failpoint: writes half of a handle's response and ends the process (F08).
#[cfg(debug_assertions)]
fn half_write<T: ResettableStream>(socket: Pin<&mut T>, context: &mut Context<'_>, bufs: &[&[u8]]) {
    let point = "handle-half-written";
    if !crate::failpoint::is_armed(point) {
        return;
    }
    let answer = bufs.concat();
    let has = |needle: &[u8]| answer.windows(needle.len()).any(|found| found == needle);
    if (has(br#""resultType":"task""#) || has(br#""task":{"#)) && crate::failpoint::is_due(point) {
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |at| at + 4);
        let _ = socket.poll_write(context, &answer[..usize::midpoint(head, answer.len())]);
        crate::failpoint::die();
    }
}

impl<T> Drop for WatchedSocket<T> {
    fn drop(&mut self) {
        if let (Some(socket), Some(release)) = (self.socket.take(), self.release.take()) {
            let between_frames = self.frames.as_ref().is_some_and(|frames| frames.outbound.at_boundary());
            // The receiver is gone if the connection was aborted; the socket is then dropped here.
            drop(release.send(ReleasedSocket { socket, misconduct: self.misconduct, between_frames }));
        }
    }
}

/// Closes the connection so that the peer receives the last response: shuts down the write side, then reads for a while, because
/// closing a socket with unread bytes would send a reset and discard the response.
pub(super) async fn linger<T: ResettableStream>(mut socket: T, span: Duration) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let ends_at = Instant::now() + span;
    // Fails if hyper has shut it down, or the peer is gone: reads then end at once. Waits for TLS bytes of a slow peer.
    let _ = tokio::time::timeout_at(ends_at, socket.shutdown()).await;
    // On the heap: the awaiting future exists as long as the connection.
    let mut scratch = vec![0; 4096];
    while let Ok(Ok(1..)) = tokio::time::timeout_at(ends_at, socket.read(&mut scratch)).await {}
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// A peer that takes `bytes` each second, and nothing in between.
    struct DrippingPeer {
        bytes: usize,
        pause: Pin<Box<Sleep>>,
    }

    impl AsyncRead for DrippingPeer {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for DrippingPeer {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            std::task::ready!(self.pause.as_mut().poll(context));
            self.pause = Box::pin(sleep(Duration::from_secs(1)));
            Poll::Ready(Ok(self.bytes.min(buf.len())))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl ResettableStream for DrippingPeer {
        fn reset_on_drop(&self) {}
    }

    /// B190: the bytes of answers that such a reader holds are free then.
    #[tokio::test(start_paused = true)]
    async fn b190_a_reader_slower_than_a_kibibyte_a_second_is_cut_off_after_half_a_minute_and_a_faster_one_never() {
        use tokio::io::AsyncWriteExt as _;

        for (bytes, expected) in [(1_000, Misconduct::Stalled), (1_100, Misconduct::None)] {
            let limits = Arc::new(ListenerLimits { write_stall: Duration::from_secs(30), ..ListenerLimits::default() });
            let trail = Arc::new(ConnectionState::new(CancellationToken::new(), metrics::Gauge::noop()));
            let peer = DrippingPeer { bytes, pause: Box::pin(sleep(Duration::from_secs(1))) };
            let began = Instant::now();
            let (mut socket, returned) = WatchedSocket::new(peer, Protocol::Http1, Bytes::new(), limits, trail);
            let written = socket.write_all(&vec![0; 200 * bytes]).await;
            drop(socket);
            assert_eq!((returned.await.unwrap().misconduct, written.is_ok()), (expected, expected == Misconduct::None));
            let took = if expected == Misconduct::Stalled { 31 } else { 200 };
            assert!(began.elapsed() <= Duration::from_secs(took), "{bytes}: {:?}", began.elapsed());
        }
    }

    /// B56: in any split of the bytes.
    #[test]
    fn b56_a_fragment_of_a_request_line_is_spoiled_and_nothing_else() {
        let sent = b"\r\nPOST /u/mcp#x HTTP/1.1\r\nx-note: a#b\r\n\r\n#";
        let mut expected = *sent;
        expected[13] = 0;
        for piece in 1..=sent.len() {
            let (mut line, mut read) = (RequestLine::Over, *sent);
            line.begins_if(true);
            read.chunks_mut(piece).for_each(|piece| line.spoil_fragment(piece));
            assert_eq!(read, expected, "{piece} at a time");
        }
        for (mut line, rest) in [
            (RequestLine::Over, "POST /u/mcp#x"),
            (RequestLine::Before, "sh: #1\r\n\r\n{}"),
            (RequestLine::Before, "SH: #1\r\n\r\n{}"),
            (RequestLine::Before, "{\"id\":\"#\"}"),
        ] {
            let mut read = rest.as_bytes().to_vec();
            line.spoil_fragment(&mut read);
            assert_eq!(read, rest.as_bytes(), "this begins no request");
        }
    }
}
