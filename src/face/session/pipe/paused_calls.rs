//! Calls whose stream has ended before their answer. An upstream of 2025-11-25 may close a stream once it gave
//! an event id; the client comes back with a GET that names the id, and gets the rest (T-29). Until then the
//! call goes on upstream, so it keeps its place and its deadline.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::PipedCall;
use crate::face::pipe::body::{AnsweredRequest as _, PipeTimeouts};
use crate::face::pipe::stream_tail::StreamPause;
use crate::face::session::session_cache::ClientSession;
use crate::task::Reason;

/// How long a client may stay away beyond the time that the upstream asked it to.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// Longest time that an upstream may ask a client to wait at the price of a place.
const RETRY_MAX: Duration = Duration::from_secs(60 * 60);

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
