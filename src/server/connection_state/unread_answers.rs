//! Resets HTTP/2 responses that their clients do not read (B28).
//!
//! A peer may keep the window of one stream closed while the socket takes the bytes of all others. A stream polls for more of its
//! response only once the peer has room for the previous piece, so the measure is how long a piece has been waiting. Pieces are
//! small enough for a slow reader to take one in time.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep};

use super::ConnectionState;
use crate::wire::framing::BodyPart;

/// The largest piece of a response: the default maximum frame size (RFC 9113, 4.2).
pub(super) const PIECE_MAX: usize = 16 << 10;
/// From this size on, the last byte of a response is a separate piece. A piece is taken as soon as there is room for its first
/// byte, so only the next poll proves that the peer took all of it. A smaller rest may stay behind unnoticed; it costs no more
/// than an idle connection.
const REST_MAX: usize = 1 << 10;

pub(super) fn next_piece(data: &mut BodyPart) -> Bytes {
    let length = match data.len() {
        length if length > PIECE_MAX => PIECE_MAX,
        length if length > REST_MAX => length - 1,
        length => length,
    };
    data.copy_to_bytes(length)
}

/// The responses of a connection that wait for their peer, with the time of their last piece. At most one entry per open stream.
#[derive(Debug, Default)]
pub(in crate::server) struct UnreadAnswers(Mutex<BTreeMap<u32, Instant>>);

impl UnreadAnswers {
    /// Records that a piece of the response to `request` was handed to hyper.
    pub(in crate::server) fn handed(&self, request: u32) {
        self.0.lock().insert(request, Instant::now());
    }

    /// Records that hyper polled the response to `request` again, or finished it.
    pub(in crate::server) fn taken(&self, request: u32) {
        self.0.lock().remove(&request);
    }

    fn oldest(&self) -> Option<Instant> {
        self.0.lock().values().min().copied()
    }

    fn since(&self, request: u32) -> Option<Instant> {
        self.0.lock().get(&request).copied()
    }
}

/// A timer that fires when a response has waited too long.
#[derive(Debug)]
pub(in crate::server) struct ReadWatch {
    trail: Arc<ConnectionState>,
    /// The request it watches; without it, all of the connection.
    request: Option<u32>,
    span: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl ReadWatch {
    pub(in crate::server) const fn new(trail: Arc<ConnectionState>, span: Duration) -> Self {
        Self { trail, request: None, span, timer: None }
    }

    /// A watch over the response to one request. Poll it after each piece.
    pub(in crate::server) const fn of(trail: Arc<ConnectionState>, span: Duration, request: u32) -> Self {
        Self { trail, request: Some(request), span, timer: None }
    }

    /// Ready once a response has waited for the whole span. The timer is set no later than the earliest such moment, and is reset
    /// only when it fires, so it costs a request nothing.
    pub(in crate::server) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Self { trail, request, span, timer } = self;
        if request.is_some_and(|request| trail.unread().since(request).is_none()) {
            return Poll::Pending;
        }
        let timer = timer.get_or_insert_with(|| Box::pin(sleep(*span)));
        loop {
            ready!(timer.as_mut().poll(context));
            let now = Instant::now();
            let since = request.map_or_else(|| trail.unread().oldest(), |request| trail.unread().since(request));
            let ends_at = since.unwrap_or(now) + *span;
            if ends_at <= now {
                return Poll::Ready(());
            }
            timer.as_mut().reset(ends_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio_util::sync::CancellationToken;

    use super::*;

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
    async fn the_watch_ends_with_the_answer_that_waited_longest() {
        let span = Duration::from_secs(30);
        let trail = Arc::new(ConnectionState::new(CancellationToken::new()));
        let mut watch = ReadWatch::new(Arc::clone(&trail), span);
        let began = Instant::now();
        tokio::time::advance(Duration::from_secs(10)).await;
        trail.unread().handed(1);
        tokio::time::advance(Duration::from_secs(10)).await;
        trail.unread().handed(2);
        trail.unread().taken(1);
        poll_fn(|context| watch.poll(context)).await;
        assert_eq!(began.elapsed(), Duration::from_secs(50));
    }
}
