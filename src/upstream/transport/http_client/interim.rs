//! Counts the interim responses (1xx) of a server in the bytes of its HTTP/1.1 connection. hyper reports them to a callback
//! of each request, which takes four allocations.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connector::Stream;

/// Most interim responses to one request (U13).
const INTERIM_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct InterimCount {
    /// Whether the head of the response is still to come.
    is_awaited: AtomicBool,
    seen: AtomicUsize,
}

impl InterimCount {
    pub(super) fn begin(&self) {
        self.seen.store(0, Ordering::Relaxed);
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_too_many(&self) -> bool {
        self.seen.load(Ordering::Relaxed) > INTERIM_MAX
    }
}

#[derive(Debug)]
pub(super) struct CountedStream {
    stream: TokioIo<Stream>,
    count: Arc<InterimCount>,
    head: HeadPosition,
}

impl CountedStream {
    pub(super) fn new(stream: Stream, count: &Arc<InterimCount>) -> Self {
        Self { stream: TokioIo::new(stream), count: Arc::clone(count), head: HeadPosition::default() }
    }
}

/// The offset of the first digit in `HTTP/1.1 100`.
const STATUS_AT: usize = 9;

/// The position in a response's head. Empty lines before a head are skipped, and a line feed ends a line, as hyper's parser reads.
#[derive(Debug, Default)]
struct HeadPosition {
    line: usize,
    is_after_first: bool,
    is_interim: bool,
}

impl HeadPosition {
    /// Reads on in heads of interim responses; returns how many have ended, and whether another response has begun.
    fn pass(&mut self, bytes: &[u8]) -> (usize, bool) {
        let mut ended = 0;
        for byte in bytes {
            match byte {
                b'\n' if self.line == 0 => {
                    ended += usize::from(self.is_interim);
                    *self = Self::default();
                }
                b'\n' => (self.line, self.is_after_first) = (0, true),
                b'\r' => (),
                _ if !self.is_after_first && self.line == STATUS_AT && *byte != b'1' => {
                    *self = Self::default();
                    return (ended, true);
                }
                _ => {
                    self.is_interim |= !self.is_after_first && self.line == STATUS_AT;
                    self.line += 1;
                }
            }
        }
        (ended, false)
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, count, head } = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(stream).poll_read(context, buf);
        if count.is_awaited.load(Ordering::Relaxed) {
            let (ended, has_begun) = head.pass(&buf.filled()[before..]);
            count.seen.fetch_add(ended, Ordering::Relaxed);
            count.is_awaited.store(!has_begun, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\nlink: <1>\r\n\r\n";

    /// U13.
    #[test]
    fn interim_responses_are_counted_wherever_their_bytes_are_cut() {
        for (text, expected) in [
            (String::new(), (0, false)),
            ("HTTP/1.1 200 OK\r\n\r\n".to_owned(), (0, true)),
            ("HTTP/1.0 404\n\n".to_owned(), (0, true)),
            (INTERIM.to_owned(), (1, false)),
            (INTERIM.replace('\r', ""), (1, false)),
            (format!("\r\n\n{INTERIM}\r\n{INTERIM}HTTP/1.1 200 OK\r\n\r\n{INTERIM}"), (2, true)),
            (INTERIM.repeat(17), (17, false)),
            ("HTTP/1.1 100 Continue\r\n\r\n".repeat(3), (3, false)),
            ("HTTP/1.1 100 Continue\r\nx: HTTP/1.1 200\r\n".to_owned(), (0, false)),
        ] {
            for cut in 0..=text.len() {
                let mut head = HeadPosition::default();
                let (first, has_begun) = head.pass(&text.as_bytes()[..cut]);
                let (second, begins) = if has_begun { (0, true) } else { head.pass(&text.as_bytes()[cut..]) };
                assert_eq!((first + second, begins), expected, "{text:?} cut at {cut}");
            }
        }
    }
}
