//! Calls whose stream has ended before their answer. An upstream of 2025-11-25 may close a stream once it gave
//! an event id; the client comes back with a GET that names the id, and gets the rest (T-29). Until then the
//! call goes on upstream, so it keeps its place and its deadline. A client that comes back after the deadline is told of it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::PipedCall;
use crate::dialect::faults::gateway_error;
use crate::face::call_stream::request_answer::RequestAnswer;
use crate::face::http::events_body;
use crate::face::pipe::body::{AnsweredRequest as _, PipeTimeouts};
use crate::face::pipe::stream_tail::StreamPause;
use crate::face::session::session_cache::ClientSession;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::recent_map::RecentMap;
use crate::wire::{RequestId, envelope};

/// How long a client may stay away beyond the time that the upstream asked it to.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// Longest time that an upstream may ask a client to wait at the price of a place.
const RETRY_MAX: Duration = Duration::from_secs(60 * 60);
/// Calls that met their deadline while their clients were away; the one that was asked for longest ago falls out, and its
/// client gets a stream without an answer.
const ENDED_MAX: usize = 1_024;
/// How long they are told of.
const ENDED_FOR: Duration = Duration::from_secs(5 * 60);

type PauseKey = (u128, String);

/// Calls that wait for their clients, by session and event id. Each has a place, so there are no more than
/// places.
#[derive(Debug)]
pub(in crate::face) struct PausedCalls {
    waiting: Mutex<HashMap<PauseKey, PausedCall>>,
    /// Written while `waiting` is locked: a client that finds its call neither here nor there has none.
    ended: RecentMap<EndedCall>,
}

impl Default for PausedCalls {
    fn default() -> Self {
        Self { waiting: Mutex::default(), ended: RecentMap::new(ENDED_MAX) }
    }
}

/// A call, and what it is still to keep to.
#[derive(Debug)]
pub(super) struct PausedCall {
    pub(super) call: PipedCall,
    pub(super) pace: PipeTimeouts,
    until: Instant,
}

/// What is left of a call that met its deadline.
#[derive(Clone, Debug)]
struct EndedCall {
    event: String,
    id: RequestId,
    fault: GatewayFault,
    when: Instant,
}

/// What became of a call whose stream is asked for.
pub(super) enum AwaitedCall {
    Paused(PausedCall),
    /// This is its end.
    Ended(RequestAnswer),
}

impl PausedCalls {
    /// The call whose stream `session` takes up again. One that has ended is told of again to a client that lost that, too.
    pub(super) fn take(&self, session: &ClientSession, last_event: &HeaderValue) -> Option<AwaitedCall> {
        let event = String::from_utf8_lossy(last_event.as_bytes()).into_owned();
        let key = (session.token.nonce, event);
        let mut waiting = self.waiting.lock();
        if let Some(paused) = waiting.remove(&key) {
            return Some(AwaitedCall::Paused(paused));
        }
        let ended = self.ended.get(ended_key(&key))?;
        drop(waiting);
        if ended.event != key.1 || ended.when.elapsed() >= ENDED_FOR {
            return None;
        }
        let error = envelope::error(Some(&ended.id), &gateway_error(&ended.fault));
        Some(AwaitedCall::Ended(RequestAnswer::Events(events_body([error]))))
    }

    fn keep(&self, key: PauseKey, paused: PausedCall) {
        let mut waiting = self.waiting.lock();
        // Whatever else had this name before.
        self.ended.remove(ended_key(&key));
        waiting.insert(key, paused);
    }

    /// Gives up the call under this key that was to be given up then, unless its client took it meanwhile. What it ends with,
    /// if with anything, is kept for its client.
    fn give_up(&self, key: PauseKey, until: Instant) -> Option<(PipedCall, Option<GatewayFault>)> {
        let mut waiting = self.waiting.lock();
        // One that was paused again has another end, and its own watcher.
        if waiting.get(&key).is_none_or(|paused| paused.until != until) {
            return None;
        }
        let PausedCall { call, pace, .. } = waiting.remove(&key)?;
        let is_late = pace.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let fault = is_late.then(|| GatewayFault::new(Reason::DeadlineExceeded, Executed::Unknown));
        if let Some(fault) = fault.filter(|_| call.is_wanted()) {
            let (number, id) = (ended_key(&key), call.id.clone());
            self.ended.insert(number, EndedCall { event: key.1, id, fault, when: Instant::now() });
        }
        Some((call, fault))
    }
}

/// Calls of other sessions have other keys, whatever their events: a nonce is random.
fn ended_key((nonce, event): &PauseKey) -> u128 {
    let mut hasher = DefaultHasher::new();
    event.hash(&mut hasher);
    nonce ^ u128::from(hasher.finish())
}

/// Keeps a call until its client comes back, its deadline, or the end of patience, whichever is first. A client
/// that stays away cancels nothing (T-81); a deadline does.
pub(super) fn pause(call: PipedCall, pace: PipeTimeouts, at: &StreamPause) {
    let shared = Arc::clone(&call.shared);
    let key = (call.session.token.nonce, at.event.clone());
    let patience = Instant::now() + at.retry.min(RETRY_MAX) + AWAY_MAX;
    let until = pace.deadline.map_or(patience, |deadline| deadline.min(patience));
    shared.paused.keep(key.clone(), PausedCall { call, pace, until });
    let stop = shared.served.life.stop.clone();
    let tracker = shared.served.life.tracker.clone();
    tracker.spawn(async move {
        let _ = stop.run_until_cancelled(tokio::time::sleep_until(until)).await;
        if let Some((call, Some(fault))) = shared.paused.give_up(key, until) {
            call.cancel(fault.reason);
            call.ended(&fault);
        }
    });
}
