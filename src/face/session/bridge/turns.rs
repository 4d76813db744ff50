//! Which of a session's own streams is told what: the newest. All of it is gone with the streams.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Most streams of one session, and of all.
const PER_SESSION_MAX: usize = 8;
const STREAMS_MAX: usize = 16_384;

/// The open streams of all bridged sessions, by nonce.
#[derive(Debug, Default)]
pub(in crate::face::session) struct Turns(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    streams: usize,
    by_session: HashMap<u128, Place>,
}

#[derive(Debug, Default)]
struct Place {
    /// In the order in which they were opened.
    streams: Vec<u64>,
    now: watch::Sender<Now>,
}

/// What the streams of a session have to know.
#[derive(Clone, Copy, Debug, Default)]
struct Now {
    newest: u64,
    is_over: bool,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Own,
    Another,
    /// The session has ended.
    Over,
}

/// One stream's place.
#[derive(Debug)]
pub(super) struct Seat {
    turns: Arc<Turns>,
    nonce: u128,
    number: u64,
    now: watch::Receiver<Now>,
}

impl Turns {
    /// A place for a new stream, whose turn it is at once; `None` if there are too many.
    pub(super) fn take(self: &Arc<Self>, nonce: u128) -> Option<Seat> {
        let mut open = self.0.lock();
        let own = open.by_session.get(&nonce).map_or(0, |place| place.streams.len());
        if own >= PER_SESSION_MAX || open.streams >= STREAMS_MAX {
            return None;
        }
        open.streams += 1;
        open.next += 1;
        let number = open.next;
        let place = open.by_session.entry(nonce).or_default();
        place.streams.push(number);
        place.now.send_replace(Now { newest: number, is_over: false });
        Some(Seat { turns: Arc::clone(self), nonce, number, now: place.now.subscribe() })
    }

    /// Whether a session has a stream.
    pub(super) fn is_open(&self, nonce: u128) -> bool {
        self.0.lock().by_session.contains_key(&nonce)
    }

    /// Has the streams of a session look at what it wants.
    pub(super) fn changed(&self, nonce: u128) {
        if let Some(place) = self.0.lock().by_session.get(&nonce) {
            place.now.send_modify(|_| ());
        }
    }

    /// Ends the streams of a session.
    pub(super) fn end(&self, nonce: u128) {
        if let Some(place) = self.0.lock().by_session.get(&nonce) {
            place.now.send_modify(|now| now.is_over = true);
        }
    }
}

impl Seat {
    pub(super) fn turn(&self) -> Turn {
        let now = *self.now.borrow();
        match (now.is_over, now.newest == self.number) {
            (true, _) => Turn::Over,
            (false, true) => Turn::Own,
            (false, false) => Turn::Another,
        }
    }

    /// Returns once there is something to look at. Cancel safe.
    pub(super) async fn changed(&mut self) {
        // The other end is there as long as this seat is.
        if self.now.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.turns.0.lock();
        open.streams = open.streams.saturating_sub(1);
        let Some(place) = open.by_session.get_mut(&self.nonce) else { return };
        place.streams.retain(|number| *number != self.number);
        match place.streams.last() {
            Some(newest) if place.now.borrow().newest != *newest => {
                place.now.send_modify(|now| now.newest = *newest);
            }
            Some(_) => (),
            None => _ = open.by_session.remove(&self.nonce),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stream_has_its_turn_and_nothing_is_left_of_any() {
        let turns = Arc::new(Turns::default());
        let (first, other) = (turns.take(1).unwrap(), turns.take(2).unwrap());
        assert_eq!((first.turn(), other.turn()), (Turn::Own, Turn::Own));
        let second = turns.take(1).unwrap();
        assert_eq!((first.turn(), second.turn()), (Turn::Another, Turn::Own));
        drop(second);
        assert_eq!(first.turn(), Turn::Own);
        let many: Vec<_> = (1..PER_SESSION_MAX).map(|_| turns.take(1).unwrap()).collect();
        assert!(turns.take(1).is_none() && turns.take(2).is_some());
        turns.end(1);
        assert_eq!((first.turn(), other.turn()), (Turn::Over, Turn::Own));
        drop((first, many, other));
        assert!(!turns.is_open(1) && !turns.is_open(2));
        assert_eq!(turns.0.lock().streams, 0);
    }
}
