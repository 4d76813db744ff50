//! Registers sessions' open streams, on which the gateway can send its own messages. Only the newest stream of a
//! session receives them, since nothing may be sent twice.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::face::notification_subscriber::AgreedResources;
use crate::task::Caller;
use crate::upstream::NotificationSubscription;

const PER_SESSION_MAX: usize = 8;
/// The most streams of bridged sessions.
const STREAMS_MAX: usize = 16_384;
/// Messages queued for a reader. A slower reader misses notifications.
pub(super) const MESSAGES_MAX: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct StreamSender {
    pub(super) number: u64,
    pub(super) sender: mpsc::Sender<Bytes>,
    /// Who opened it: others of the session may have other rights.
    pub(super) caller: Caller,
}

#[derive(Debug, Default)]
pub(in crate::face) struct SessionStreams {
    open: Mutex<OpenSessionStreams>,
    opened: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct OpenSessionStreams {
    next: u64,
    /// The streams that count towards [`STREAMS_MAX`].
    counted: usize,
    by_session: HashMap<u128, StreamsOfSession>,
}

#[derive(Debug, Default)]
struct StreamsOfSession {
    streams: Vec<StreamSender>,
    now: watch::Sender<NewestStream>,
    /// Confirmed by the server, until the newest stream takes them over.
    agreed: AgreedResources,
}

/// Watched by all streams of a session.
#[derive(Clone, Copy, Debug, Default)]
struct NewestStream {
    newest: u64,
    /// The number of the last stream of a session that has ended: the next one may have the same nonce.
    over_to: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamTurn {
    Newest,
    Older,
    Over,
}

/// The receiver of one stream's messages. Dropping it unregisters the stream.
#[derive(Debug)]
pub(in crate::face) struct SessionStream {
    messages: mpsc::Receiver<Bytes>,
    now: watch::Receiver<NewestStream>,
    nonce: u128,
    number: u64,
    is_counted: bool,
    streams: Arc<SessionStreams>,
}

impl SessionStreams {
    /// Opens the newest stream of the session `nonce`. With too many, the oldest receives nothing more.
    pub(in crate::face) fn open(self: &Arc<Self>, nonce: u128, caller: &Caller) -> SessionStream {
        let mut open = self.open.lock();
        if let Some(session) = open.by_session.get_mut(&nonce)
            && session.streams.len() >= PER_SESSION_MAX
        {
            session.streams.remove(0);
        }
        self.enter(&mut open, nonce, caller, false)
    }

    /// As [`Self::open`], for a bridged session; `None` if there are too many streams.
    pub(super) fn try_open(self: &Arc<Self>, nonce: u128, caller: &Caller) -> Option<SessionStream> {
        let mut open = self.open.lock();
        let own = open.by_session.get(&nonce).map_or(0, |session| session.streams.len());
        if own >= PER_SESSION_MAX || open.counted >= STREAMS_MAX {
            return None;
        }
        open.counted += 1;
        Some(self.enter(&mut open, nonce, caller, true))
    }

    fn enter(
        self: &Arc<Self>,
        open: &mut OpenSessionStreams,
        nonce: u128,
        caller: &Caller,
        is_counted: bool,
    ) -> SessionStream {
        let (sender, messages) = mpsc::channel(MESSAGES_MAX);
        open.next += 1;
        let number = open.next;
        let session = open.by_session.entry(nonce).or_default();
        session.streams.push(StreamSender { number, sender, caller: caller.clone() });
        session.now.send_modify(|now| now.newest = number);
        self.opened.send_replace(());
        let now = session.now.subscribe();
        SessionStream { messages, now, nonce, number, is_counted, streams: Arc::clone(self) }
    }

    pub(super) fn is_open(&self, nonce: u128) -> bool {
        self.open.lock().by_session.contains_key(&nonce)
    }

    /// The newest of a session's streams whose caller may have a message.
    pub(super) fn newest(&self, nonce: u128, may_have: impl Fn(&Caller) -> bool) -> Option<mpsc::Sender<Bytes>> {
        newest(&self.open.lock().by_session.get(&nonce)?.streams, may_have).map(|stream| stream.sender.clone())
    }

    pub(super) fn last_number(&self) -> u64 {
        self.open.lock().next
    }

    /// Returns once the session has a stream that was opened after stream `last`.
    pub(super) async fn opened_after(&self, nonce: u128, last: u64) {
        let mut opened = self.opened.subscribe();
        while self.open.lock().by_session.get(&nonce).is_none_or(|session| session.now.borrow().newest <= last) {
            // The sender exists as long as this.
            let _ = opened.changed().await;
        }
    }

    /// Keeps a confirmed subscription to a resource, until the newest stream takes it over.
    pub(super) fn agreed(&self, nonce: u128, uri: String, agreed: NotificationSubscription) {
        if let Some(session) = self.open.lock().by_session.get_mut(&nonce) {
            session.agreed.add(uri, agreed);
        }
    }

    /// Drops such a subscription, if it was not taken over.
    pub(super) fn unwanted(&self, nonce: u128, uri: &str) {
        if let Some(session) = self.open.lock().by_session.get_mut(&nonce) {
            session.agreed.remove(uri);
        }
    }

    /// Makes a session's streams read its current wishes.
    pub(super) fn changed(&self, nonce: u128) {
        if let Some(session) = self.open.lock().by_session.get(&nonce) {
            session.now.send_modify(|_| ());
        }
    }

    pub(super) fn end(&self, nonce: u128) {
        let open = self.open.lock();
        if let Some(session) = open.by_session.get(&nonce) {
            session.now.send_modify(|now| now.over_to = open.next);
        }
    }
}

pub(super) fn newest(streams: &[StreamSender], may_have: impl Fn(&Caller) -> bool) -> Option<&StreamSender> {
    streams.iter().rev().find(|stream| !stream.sender.is_closed() && may_have(&stream.caller))
}

impl SessionStream {
    pub(super) fn turn(&self) -> StreamTurn {
        let now = *self.now.borrow();
        match (self.number <= now.over_to, now.newest == self.number) {
            (true, _) => StreamTurn::Over,
            (false, true) => StreamTurn::Newest,
            (false, false) => StreamTurn::Older,
        }
    }

    pub(super) fn session_ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let (mut now, number) = (self.now.clone(), self.number);
        async move {
            // The oldest of too many streams may outlive the sender.
            if now.wait_for(|now| number <= now.over_to).await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// The subscriptions confirmed since the last call; only for the session's newest stream.
    pub(super) fn agreed(&self) -> AgreedResources {
        let mut open = self.streams.open.lock();
        open.by_session.get_mut(&self.nonce).map(|session| std::mem::take(&mut session.agreed)).unwrap_or_default()
    }

    /// The next message. Cancel safe.
    pub(in crate::face) async fn next(&mut self) -> Bytes {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// `None` if the stream's rank or the session's wishes may have changed. Cancel safe.
    pub(super) async fn news(&mut self) -> Option<Bytes> {
        tokio::select! {
            Some(message) = self.messages.recv() => Some(message),
            Ok(()) = self.now.changed() => None,
            // The sender exists as long as this stream.
            else => std::future::pending().await,
        }
    }

    pub(in crate::face) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        // The oldest of too many streams stays open without a sender.
        if let Poll::Ready(Some(message)) = self.messages.poll_recv(cx) { Poll::Ready(message) } else { Poll::Pending }
    }
}

impl Drop for SessionStream {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock();
        open.counted -= usize::from(self.is_counted);
        let Some(session) = open.by_session.get_mut(&self.nonce) else { return };
        session.streams.retain(|stream| stream.number != self.number);
        match session.streams.last() {
            Some(last) if session.now.borrow().newest != last.number => {
                let newest = last.number;
                session.now.send_modify(|now| now.newest = newest);
            }
            Some(_) => (),
            None => _ = open.by_session.remove(&self.nonce),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Principal;

    #[tokio::test]
    async fn the_newest_stream_gets_messages_and_closed_streams_leave_nothing() {
        let (streams, caller) = (Arc::new(SessionStreams::default()), Caller::of(Principal::local()));
        assert!(streams.newest(1, |_| true).is_none());
        let mut first = streams.open(1, &caller);
        let second = streams.open(1, &caller);
        drop(second);
        streams.newest(1, |_| true).unwrap().try_send(Bytes::from_static(b"a")).unwrap();
        assert_eq!(first.next().await, "a");
        let many: Vec<_> = (0..PER_SESSION_MAX).map(|_| streams.open(1, &caller)).collect();
        assert_eq!(streams.open.lock().by_session[&1].streams.len(), PER_SESSION_MAX);
        drop((first, many));
        assert!(streams.open.lock().by_session.is_empty());
    }

    #[tokio::test]
    async fn a_stream_of_another_session_is_no_news_for_a_session() {
        let (streams, caller) = (Arc::new(SessionStreams::default()), Caller::of(Principal::local()));
        let _first = streams.open(1, &caller);
        let last = streams.last_number();
        let mut opened = Box::pin(streams.opened_after(1, last));
        assert!(futures_util::poll!(&mut opened).is_pending(), "the first stream is known");
        let _other = streams.open(2, &caller);
        assert!(futures_util::poll!(&mut opened).is_pending());
        let _second = streams.open(1, &caller);
        opened.await;
    }

    #[test]
    fn the_newest_stream_has_its_turn_and_nothing_is_left_of_any() {
        let (streams, caller) = (Arc::new(SessionStreams::default()), Caller::of(Principal::local()));
        let (first, other) = (streams.try_open(1, &caller).unwrap(), streams.try_open(2, &caller).unwrap());
        assert_eq!((first.turn(), other.turn()), (StreamTurn::Newest, StreamTurn::Newest));
        let second = streams.try_open(1, &caller).unwrap();
        assert_eq!((first.turn(), second.turn()), (StreamTurn::Older, StreamTurn::Newest));
        drop(second);
        assert_eq!(first.turn(), StreamTurn::Newest);
        let many: Vec<_> = (1..PER_SESSION_MAX).map(|_| streams.try_open(1, &caller).unwrap()).collect();
        assert!(streams.try_open(1, &caller).is_none() && streams.try_open(2, &caller).is_some());
        streams.end(1);
        assert_eq!((first.turn(), other.turn()), (StreamTurn::Over, StreamTurn::Newest));
        drop(many);
        let next = streams.try_open(1, &caller).unwrap();
        assert_eq!((first.turn(), next.turn()), (StreamTurn::Over, StreamTurn::Newest), "of the next session");
        drop((first, next, other));
        assert!(!streams.is_open(1) && !streams.is_open(2));
        assert_eq!(streams.open.lock().counted, 0);
    }
}
