//! Calls whose stream has ended before their answer. An upstream of 2025-11-25 may close a stream once it gave
//! an event id; the client comes back with a GET that names the id, and gets the rest (T-29). Until then the
//! call goes on upstream, so it keeps its place and its deadline.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::body::{AnsweredRequest as _, PipeTimeouts};
use super::{PipedCall, read};
use crate::face::session::session_cache::ClientSession;
use crate::task::Reason;
use crate::wire::RequestId;
use crate::wire::framing::SseEvent;

/// How long a client may stay away beyond the time that the upstream asked it to.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// Longest time that an upstream may ask a client to wait at the price of a place.
const RETRY_MAX: Duration = Duration::from_secs(60 * 60);
/// Largest event that is looked into. A larger one is taken for the answer.
pub(super) const EVENT_BYTES_MAX: usize = 64 * 1024;

/// Calls that wait for their clients, by session and event id. Each has a place, so there are no more than
/// places.
#[derive(Debug, Default)]
pub(in crate::face) struct PausedCalls(Mutex<HashMap<(u128, String), PausedCall>>);

/// A call, and what it is still to keep to.
#[derive(Debug)]
pub(super) struct PausedCall {
    pub(super) call: PipedCall,
    pub(super) pace: PipeTimeouts,
    until: Instant,
}

impl PausedCalls {
    /// The call whose stream `session` takes up again.
    pub(super) fn take(&self, session: &ClientSession, last_event: &HeaderValue) -> Option<PausedCall> {
        let event = String::from_utf8_lossy(last_event.as_bytes()).into_owned();
        self.0.lock().remove(&(session.token.nonce, event))
    }
}

/// Keeps a call until its client comes back, its deadline, or the end of patience, whichever is first. A client
/// that stays away cancels nothing (T-81); a deadline does.
pub(super) fn pause(call: PipedCall, pace: PipeTimeouts, at: &StreamPause) {
    let shared = Arc::clone(&call.shared);
    let key = (call.session.token.nonce, at.event.clone());
    let patience = Instant::now() + at.retry.min(RETRY_MAX) + AWAY_MAX;
    let until = pace.deadline.map_or(patience, |deadline| deadline.min(patience));
    shared.paused.0.lock().insert(key.clone(), PausedCall { call, pace, until });
    let stop = shared.served.life.stop.clone();
    let tracker = shared.served.life.tracker.clone();
    tracker.spawn(async move {
        let _ = stop.run_until_cancelled(tokio::time::sleep_until(until)).await;
        let due = {
            let mut all = shared.paused.0.lock();
            // One that was paused again has another end, and its own watcher.
            let is_due = all.get(&key).is_some_and(|paused| paused.until == until);
            if is_due { all.remove(&key) } else { None }
        };
        if let Some(PausedCall { call, pace, .. }) = due
            && pace.deadline.is_some_and(|deadline| Instant::now() >= deadline)
        {
            call.cancel(Reason::DeadlineExceeded);
        }
    });
}

/// Where a stream stands that can be taken up.
#[derive(Debug)]
pub(in crate::face) struct StreamPause {
    event: String,
    /// How long the client was asked to wait.
    retry: Duration,
}

/// Watches the events of a call's stream go by, and holds the last one.
#[derive(Debug)]
pub(super) struct StreamTail {
    id: RequestId,
    /// Whether an event was too large to be looked into.
    is_lost: bool,
    event: Option<String>,
    retry: Duration,
    /// Of the last event that says something.
    data: Bytes,
    /// Whether one before it was the answer.
    was_answered: bool,
}

impl StreamTail {
    /// For the stream of the request `id`.
    pub(super) fn new(id: &RequestId) -> Self {
        let (id, data) = (id.clone(), Bytes::new());
        Self { id, is_lost: false, event: None, retry: Duration::ZERO, data, was_answered: false }
    }

    /// Takes note of the next events; `None` once one is too large.
    pub(super) fn pass(&mut self, events: Option<Vec<SseEvent>>) {
        self.is_lost |= events.is_none();
        for event in events.into_iter().flatten() {
            self.event = event.id.or_else(|| self.event.take());
            self.retry = event.retry_ms.map_or(self.retry, Duration::from_millis);
            if !event.data.is_empty() {
                // Most streams have one event, which is looked into once, at the end.
                self.was_answered |= read::brings_answer(&self.data, &self.id);
                self.data = event.data;
            }
        }
    }

    /// Whether the answer has come. An event that is too large is taken for it.
    pub(super) fn is_answered(&self) -> bool {
        self.was_answered || self.is_lost || read::brings_answer(&self.data, &self.id)
    }

    /// Whether an event had an id that a client can name; `None` once nobody can tell. What is no id to a decoder of
    /// event streams is none (U21).
    pub(super) fn gave_id(&self) -> Option<bool> {
        (!self.is_lost).then(|| self.event.as_ref().is_some_and(|event| !event.is_empty()))
    }

    /// Where the stream stands if it ends here: `None` if it was over, with the answer among its events, or cannot be
    /// taken up.
    pub(super) fn pause(self) -> Option<StreamPause> {
        let is_answered = self.is_answered();
        let event = self.event.filter(|event| !event.is_empty())?;
        (!is_answered).then_some(StreamPause { event, retry: self.retry })
    }
}
