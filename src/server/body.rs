//! Reads a complete request body within limits of size, time and rate.

use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Poll, ready};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, Sleep, sleep_until};

use super::ListenerLimits;
use super::refusal::Refusal;
use crate::body_wakes::poll_piece;

/// Bodies up to this are copied: a slice would retain the connection's buffer of 8 KiB or more, and cost it another.
const COPIED_BYTES_MAX: usize = 4 << 10;

/// Reads the whole body; drops trailers (B17). Refuses by `Content-Length` before a byte is read, so that it gets no
/// `100 Continue` (B23, B70), else at the first excess byte (B71). Holds at most `bytes_max` and one frame.
pub(super) async fn collect(body: &mut Incoming, bytes_max: usize, limits: &ListenerLimits) -> Result<Bytes, Refusal> {
    let size = body.size_hint().exact();
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bytes_max {
        return Err(Refusal::BodyTooLarge);
    }
    let mut gathered = BodyBuffer::default();
    let mut pace = None;
    let mut timer = pin!(None::<Sleep>);
    loop {
        let frame = poll_fn(|context| {
            if let Poll::Ready(frame) = poll_piece(Pin::new(&mut *body), context) {
                return Poll::Ready(Ok(frame));
            }
            // A body that has arrived sets no timer.
            let pace = pace.get_or_insert_with(|| BodyPace::begin(limits));
            loop {
                if timer.is_none() {
                    timer.set(Some(sleep_until(pace.next_look(limits))));
                }
                ready!(timer.as_mut().as_pin_mut().map_or(Poll::Pending, |timer| timer.poll(context)));
                if pace.is_too_slow(gathered.len(), limits) {
                    return Poll::Ready(Err(Refusal::BodyTooSlow));
                }
                timer.set(None);
            }
        });
        let frame = frame.await?;
        match frame {
            None => return Ok(gathered.finish()),
            // The body is complete and its client has left: the reset hides the end of the body.
            Some(Err(_)) if size == Some(gathered.len() as u64) => return Ok(gathered.finish()),
            Some(Err(error)) => return Err(broken(&error)),
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                if gathered.len() + data.len() > bytes_max {
                    return Err(Refusal::BodyTooLarge);
                }
                gathered.push(data, announced);
            }
        }
    }
}

/// The time limits of a body from its first wait on: all of it, and a number of bytes in each window.
struct BodyPace {
    window_began: Instant,
    ends_at: Instant,
    /// The bytes before the window.
    seen: usize,
}

impl BodyPace {
    fn begin(limits: &ListenerLimits) -> Self {
        let now = Instant::now();
        Self { window_began: now, ends_at: now + limits.body_deadline, seen: 0 }
    }

    fn next_look(&self, limits: &ListenerLimits) -> Instant {
        (self.window_began + limits.body_window).min(self.ends_at)
    }

    /// Whether the window that ends now had too few bytes, or was the last one. Else the next window begins.
    fn is_too_slow(&mut self, received: usize, limits: &ListenerLimits) -> bool {
        let now = Instant::now();
        if now >= self.ends_at || received - self.seen < limits.body_window_bytes_min {
            return true;
        }
        (self.window_began, self.seen) = (now, received);
        false
    }
}

/// hyper distinguishes the two only by text; a socket test fails if that text changes.
fn broken(error: &hyper::Error) -> Refusal {
    let extensions = error.source().is_some_and(|cause| cause.to_string().contains("extensions over limit"));
    if extensions { Refusal::ChunkExtensions } else { Refusal::BodyBroken }
}

/// The bytes so far. A large body of one frame is never copied.
#[derive(Default)]
struct BodyBuffer {
    only: Bytes,
    joined: BytesMut,
}

impl BodyBuffer {
    fn len(&self) -> usize {
        self.only.len() + self.joined.len()
    }

    fn push(&mut self, data: Bytes, announced: usize) {
        if self.len() == 0 {
            self.only = data;
            return;
        }
        if self.joined.is_empty() {
            self.joined.reserve(announced.max(self.only.len() + data.len()));
            self.joined.extend_from_slice(&std::mem::take(&mut self.only));
        }
        self.joined.extend_from_slice(&data);
    }

    fn finish(self) -> Bytes {
        match self.only.len() {
            0 => self.joined.freeze(),
            1..=COPIED_BYTES_MAX => Bytes::copy_from_slice(&self.only),
            _ => self.only,
        }
    }
}
