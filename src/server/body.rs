//! Reads a complete request body within limits of size, time and rate.

use std::error::Error;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::{Instant, sleep_until};

use super::ListenerLimits;
use super::refusal::Refusal;

/// Bodies up to this size are copied out of the connection's buffer of at least 8 KiB. A slice of the body would otherwise retain
/// the whole buffer, and the connection would allocate another for its next request.
const COPIED_BYTES_MAX: usize = 4 << 10;

/// Reads the whole body; trailers are dropped (B17). Refuses by `Content-Length` before a byte is read, so that `100
/// Continue` is never sent for it (B23, B70), otherwise at the first excess byte (B71). Holds at most `bytes_max` and
/// one frame.
pub(super) async fn collect(body: &mut Incoming, bytes_max: usize, limits: &ListenerLimits) -> Result<Bytes, Refusal> {
    let size = body.size_hint().exact();
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bytes_max {
        return Err(Refusal::BodyTooLarge);
    }
    let started = Instant::now();
    let ends_at = started + limits.body_deadline;
    let timer = sleep_until((started + limits.body_window).min(ends_at));
    tokio::pin!(timer);
    let mut gathered = BodyBuffer::default();
    let mut seen_by_window = 0;
    loop {
        // The body is polled first: a body that has arrived never polls the timer.
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            () = &mut timer => {
                let now = Instant::now();
                if now >= ends_at || gathered.len() - seen_by_window < limits.body_window_bytes_min {
                    return Err(Refusal::BodyTooSlow);
                }
                seen_by_window = gathered.len();
                timer.as_mut().reset((now + limits.body_window).min(ends_at));
                continue;
            }
        };
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
