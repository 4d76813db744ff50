//! The streams that clients hold open, by session: where the gateway can say something of its own accord.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

/// Streams of one session that are told from each other; beyond that the oldest hears nothing any more.
const PER_SESSION_MAX: usize = 8;
/// Messages that wait for a reader. A reader that is further behind misses notifications.
pub(super) const MESSAGES_MAX: usize = 64;

/// A way to one stream.
#[derive(Clone, Debug)]
pub(super) struct Tap {
    pub(super) number: u64,
    pub(super) sender: mpsc::Sender<Bytes>,
}

/// All streams of one face's clients.
#[derive(Debug, Default)]
pub(in crate::face) struct Streams {
    by_session: Mutex<HashMap<u128, Vec<Tap>>>,
    next: AtomicU64,
    opened: watch::Sender<()>,
}

/// What is to be said on one stream, in order. Dropping it closes the way.
#[derive(Debug)]
pub(in crate::face) struct Inlet {
    messages: mpsc::Receiver<Bytes>,
    /// Taken out already, but not said yet.
    first: Option<Bytes>,
    place: (u128, u64),
    streams: Arc<Streams>,
}

impl Streams {
    /// A stream of the session `nonce`.
    pub(in crate::face) fn open(self: &Arc<Self>, nonce: u128) -> Inlet {
        let (sender, messages) = mpsc::channel(MESSAGES_MAX);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut by_session = self.by_session.lock();
            let taps = by_session.entry(nonce).or_default();
            if taps.len() >= PER_SESSION_MAX {
                taps.remove(0);
            }
            taps.push(Tap { number, sender });
        }
        self.opened.send_replace(());
        Inlet { messages, first: None, place: (nonce, number), streams: Arc::clone(self) }
    }

    /// The way to a session's newest stream.
    pub(super) fn newest(&self, nonce: u128) -> Option<mpsc::Sender<Bytes>> {
        let by_session = self.by_session.lock();
        by_session.get(&nonce)?.iter().rev().map(|tap| &tap.sender).find(|sender| !sender.is_closed()).cloned()
    }

    /// Changes whenever a stream is opened.
    pub(super) fn opened(&self) -> watch::Receiver<()> {
        self.opened.subscribe()
    }

    fn close(&self, (nonce, number): (u128, u64)) {
        let mut by_session = self.by_session.lock();
        if let Some(taps) = by_session.get_mut(&nonce) {
            taps.retain(|tap| tap.number != number);
            if taps.is_empty() {
                by_session.remove(&nonce);
            }
        }
    }
}

impl Inlet {
    /// Returns once there is something to say. Cancel safe.
    pub(in crate::face) async fn filled(&mut self) {
        if self.first.is_none() {
            match self.messages.recv().await {
                Some(message) => self.first = Some(message),
                None => std::future::pending().await,
            }
        }
    }

    /// What is to be said next.
    pub(in crate::face) fn poll(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Bytes> {
        if let Some(first) = self.first.take() {
            return std::task::Poll::Ready(first);
        }
        match self.messages.poll_recv(cx) {
            std::task::Poll::Ready(Some(message)) => std::task::Poll::Ready(message),
            // The oldest of too many streams stays open without us.
            std::task::Poll::Ready(None) | std::task::Poll::Pending => std::task::Poll::Pending,
        }
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        self.streams.close(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_newest_stream_is_told_and_what_is_closed_leaves_nothing_behind() {
        let streams = Arc::new(Streams::default());
        assert!(streams.newest(1).is_none());
        let mut first = streams.open(1);
        let second = streams.open(1);
        drop(second);
        streams.newest(1).unwrap().try_send(Bytes::from_static(b"a")).unwrap();
        first.filled().await;
        assert_eq!(std::future::poll_fn(|cx| first.poll(cx)).await, "a");
        let many: Vec<_> = (0..PER_SESSION_MAX).map(|_| streams.open(1)).collect();
        assert_eq!(streams.by_session.lock()[&1].len(), PER_SESSION_MAX);
        drop((first, many));
        assert!(streams.by_session.lock().is_empty());
    }
}
