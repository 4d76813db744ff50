//! Resets answers over HTTP/2 that nobody reads (B28).
//!
//! A peer may keep the window of one stream closed while the socket takes the bytes of all others. A stream asks
//! for more of its answer only once the peer has room for what it was given; so what counts is how long a piece
//! has been waited with. Pieces are small enough for a slow reader to take one in time.

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

/// Largest piece of an answer: what one frame holds unless the peer allows more (RFC 9113, 4.2).
pub(super) const PIECE_MAX: usize = 16 << 10;
/// From this size on the last byte of an answer is a piece of its own. A piece is taken as soon as there is room
/// for its first byte, so only then is it sure that all before it has left. Smaller rests may stay behind
/// unnoticed; they are no more than what an idle connection costs.
const REST_MAX: usize = 1 << 10;

/// Cuts the next piece off `data`.
pub(super) fn next_piece(data: &mut BodyPart) -> Bytes {
    let length = match data.len() {
        length if length > PIECE_MAX => PIECE_MAX,
        length if length > REST_MAX => length - 1,
        length => length,
    };
    data.copy_to_bytes(length)
}

/// Which answers of a connection wait for their peer, and since when. As many entries as open streams.
#[derive(Debug, Default)]
pub(in crate::server) struct UnreadAnswers(Mutex<BTreeMap<u32, Instant>>);

impl UnreadAnswers {
    /// A piece of the answer to `request` was handed over.
    pub(in crate::server) fn handed(&self, request: u32) {
        self.0.lock().insert(request, Instant::now());
    }

    /// The answer to `request` is asked for more, or is over.
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

/// Looks from time to time whether an answer has waited for too long.
#[derive(Debug)]
pub(in crate::server) struct ReadWatch {
    trail: Arc<ConnectionState>,
    /// Which one; all of the connection without.
    request: Option<u32>,
    span: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl ReadWatch {
    pub(in crate::server) const fn new(trail: Arc<ConnectionState>, span: Duration) -> Self {
        Self { trail, request: None, span, timer: None }
    }

    /// The same for the answer to one request. To be polled after each piece that is handed over.
    pub(in crate::server) const fn of(trail: Arc<ConnectionState>, span: Duration, request: u32) -> Self {
        Self { trail, request: Some(request), span, timer: None }
    }

    /// Ready once an answer has waited for the whole span. The timer never stands later than the first moment
    /// at which that may be, and moves only when it fires: it costs a request nothing.
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
