//! Calls whose stream has ended before their answer. An upstream of 2025-11-25 may close a stream once it gave
//! an event id; the client comes back with a GET that names the id, and gets the rest (T-29). Until then the
//! call goes on upstream, so it keeps its place and its deadline. A client that comes back after the deadline is told of it,
//! unless the upstream has kept the answer since before.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{PipedCall, events_until_leaving};
use crate::dialect::faults::gateway_error;
use crate::engine::CallsEnd;
use crate::face::call_stream::request_answer::RequestAnswer;
use crate::face::http::events_body;
use crate::face::pipe::body::{AnsweredRequest, PipeBody, PipeTimeouts};
use crate::face::pipe::stream_tail::StreamPause;
use crate::face::session::SessionFaceState;
use crate::face::session::session_cache::ClientSession;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::answer_body::BodyKind;
use crate::upstream::recent_map::RecentMap;
use crate::upstream::session::own::ResumedStreamKind;
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
/// How long the upstream of such a call is asked for an answer that it may have kept.
const KEPT_ANSWER_MAX: Duration = Duration::from_secs(2);

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
pub(super) struct EndedCall {
    event: String,
    id: RequestId,
    fault: GatewayFault,
    when: Instant,
}

/// What became of a call whose stream is asked for.
pub(super) enum AwaitedCall {
    Paused(PausedCall),
    Ended(EndedCall),
}

impl PausedCalls {
    /// The call whose stream `session` takes up again. One that has ended is told of again to a client that lost that, too.
    pub(super) fn take(&self, session: &ClientSession, last_event: &HeaderValue) -> Option<AwaitedCall> {
        let event = String::from_utf8_lossy(last_event.as_bytes()).into_owned();
        let key = (session.token.nonce, event);
        let mut waiting = self.waiting.lock();
        if let Some(mut paused) = waiting.remove(&key) {
            paused.call.taken_up_at = Some(key.1);
            return Some(AwaitedCall::Paused(paused));
        }
        let ended = self.ended.get(ended_key(&key))?;
        drop(waiting);
        if ended.event != key.1 || ended.when.elapsed() >= ENDED_FOR {
            return None;
        }
        Some(AwaitedCall::Ended(ended))
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
            self.keep_end(key, &call, fault);
        }
        Some((call, fault))
    }

    /// Takes note of what a call ends with. If it was taken up and met its deadline then, its client may lose what says so, and
    /// come back once more.
    pub(super) fn note_end(&self, call: &PipedCall, fault: &GatewayFault) {
        let Some(event) = call.taken_up_at.as_ref().filter(|_| fault.reason == Reason::DeadlineExceeded) else {
            return;
        };
        if call.is_wanted() {
            let _waiting = self.waiting.lock();
            self.keep_end((call.session.token.nonce, event.clone()), call, *fault);
        }
    }

    fn keep_end(&self, key: PauseKey, call: &PipedCall, fault: GatewayFault) {
        let (number, id) = (ended_key(&key), call.id.clone());
        self.ended.insert(number, EndedCall { event: key.1, id, fault, when: Instant::now() });
    }
}

impl AnsweredRequest for EndedCall {
    fn id(&self) -> &RequestId {
        &self.id
    }

    /// It has ended before.
    fn ended(&self, _: &GatewayFault) {}

    fn cancel(&self, _: Reason) {}

    fn is_resumable(&self) -> bool {
        false
    }

    fn calls_end(&self) -> Option<&CallsEnd> {
        None
    }

    fn told_of(&self, _: &GatewayFault) -> GatewayFault {
        self.fault
    }
}

/// Takes up the stream of a call that met its deadline. The upstream may have ended it in time, while nobody listened; where it
/// brings no answer soon, the client is told of the deadline.
pub(super) async fn kept_answer(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    last_event: Option<HeaderValue>,
    call: EndedCall,
) -> RequestAnswer {
    let deadline = Instant::now() + KEPT_ANSWER_MAX;
    let opening = shared.own.stream_for_client(&session.own, last_event);
    match tokio::time::timeout_at(deadline, opening).await {
        Ok(Ok((response, ResumedStreamKind::Same))) if response.content == BodyKind::Events => {
            let source = shared.edits(session).apply(response.body, &shared.read_limits(session));
            let pace = PipeTimeouts { idle: None, deadline: Some(deadline) };
            events_until_leaving(shared, PipeBody::resumed(source, call, pace))
        }
        Ok(_) | Err(_) => {
            let error = envelope::error(Some(&call.id), &gateway_error(&call.fault));
            RequestAnswer::Events(events_body([error]))
        }
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
