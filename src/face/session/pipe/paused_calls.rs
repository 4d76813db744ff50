//! Keeps calls that lost their stream before the response, until their client resumes. An upstream of 2025-11-25 may
//! close a stream after an event id, by which the client resumes (T-29). Meanwhile the call keeps permit and deadline.
//! A client that resumes later gets the fault, unless the upstream has kept a response from before the deadline.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{SessionPipeEra, events_until_leaving};
use crate::dialect::faults::gateway_error;
use crate::face::call_stream::request_answer::RequestAnswer;
use crate::face::http::events_body;
use crate::face::named_item::NAME_BYTES_MAX;
use crate::face::pipe::body::{AnsweredRequest, PipeBody, PipeTimeouts, StreamPause};
use crate::face::pipe::forward::{PipeEra as _, PipedCall};
use crate::face::session::SessionFaceState;
use crate::face::session::session_cache::ClientSession;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::answer_body::BodyKind;
use crate::upstream::recent_map::{RecentMap, RecentValue};
use crate::upstream::session::own::ResumedStreamKind;
use crate::wire::{RequestId, envelope};

/// The longest absence of a client beyond the upstream's `retry`.
const ABSENCE_MAX: Duration = Duration::from_secs(60);
/// The longest `retry` during which a call holds its permit.
const RETRY_MAX: Duration = Duration::from_secs(60 * 60);
/// The most calls that are kept after they missed their deadline. The client of a dropped one gets a stream without a response.
const ENDED_MAX: usize = 1_024;
/// How long such a call is kept.
const ENDED_FOR: Duration = Duration::from_secs(5 * 60);
/// How long the upstream is asked for a kept response of such a call.
const KEPT_ANSWER_MAX: Duration = Duration::from_secs(2);

type PauseKey = (u128, String);

/// Paused calls by session and event id. Each holds a permit, which limits their number.
#[derive(Debug)]
pub(in crate::face) struct PausedCalls {
    waiting: Mutex<HashMap<PauseKey, PausedCall>>,
    /// Written while `waiting` is locked: a client finds its call in one of the two.
    ended: RecentMap<EndedCall>,
}

impl Default for PausedCalls {
    fn default() -> Self {
        Self { waiting: Mutex::default(), ended: RecentMap::new(ENDED_MAX) }
    }
}

#[derive(Debug)]
pub(super) struct PausedCall {
    pub(super) call: PipedCall<SessionPipeEra>,
    pub(super) pace: PipeTimeouts,
    until: Instant,
}

/// A call that missed its deadline.
#[derive(Clone, Debug)]
pub(super) struct EndedCall {
    event: String,
    id: RequestId,
    tool: Option<Arc<str>>,
    fault: GatewayFault,
    when: Instant,
}

impl RecentValue for EndedCall {}

/// A call with a client that awaits the rest of its stream. It is paused again if the client leaves before that.
pub(super) struct ResumingCall(Option<PausedCall>);

impl ResumingCall {
    pub(super) fn into_call(mut self) -> Option<PausedCall> {
        self.0.take()
    }
}

impl Drop for ResumingCall {
    fn drop(&mut self) {
        let Some(PausedCall { mut call, pace, .. }) = self.0.take() else { return };
        let event = call.era.resumed_at.take().unwrap_or_default();
        pause(call, pace, &StreamPause { event, retry: Duration::ZERO });
    }
}

pub(super) enum AwaitedCall {
    Paused(ResumingCall),
    Ended(EndedCall),
}

impl PausedCalls {
    /// The call that `session` resumes by its stream. An ended one is kept, in case its client loses this stream, too.
    pub(super) fn take(&self, session: &ClientSession, last_event: &HeaderValue) -> Option<AwaitedCall> {
        let event = String::from_utf8_lossy(last_event.as_bytes()).into_owned();
        let key = (session.token.nonce, event);
        let mut waiting = self.waiting.lock();
        if let Some(mut paused) = waiting.remove(&key) {
            paused.call.era.resumed_at = Some(key.1);
            return Some(AwaitedCall::Paused(ResumingCall(Some(paused))));
        }
        let ended = self.ended.get(ended_key(&key))?;
        drop(waiting);
        (ended.event == key.1 && ended.when.elapsed() < ENDED_FOR).then_some(AwaitedCall::Ended(ended))
    }

    /// The tool of the call that `session` would resume.
    pub(super) fn tool_of(&self, session: &ClientSession, last_event: &HeaderValue) -> Option<Arc<str>> {
        let key = (session.token.nonce, String::from_utf8_lossy(last_event.as_bytes()).into_owned());
        if let Some(paused) = self.waiting.lock().get(&key) {
            return paused.call.era.request.tool.clone();
        }
        self.ended.get(ended_key(&key)).and_then(|ended| ended.tool)
    }

    /// Drops the session's paused calls that no client resumes: after its end all, before it the cancelled ones (U64, U90).
    pub(in crate::face::session) fn release(&self, nonce: u128) {
        let is_released = |(of, _): &PauseKey, PausedCall { call, .. }: &mut PausedCall| {
            *of == nonce && (call.era.shared.sessions.is_over(&call.era.session) || !call.era.is_wanted())
        };
        let released: Vec<_> = self.waiting.lock().extract_if(is_released).collect();
        drop(released);
    }

    fn keep(&self, key: PauseKey, paused: PausedCall) {
        let mut waiting = self.waiting.lock();
        // Replaces an earlier call with this event id.
        self.ended.remove(ended_key(&key));
        waiting.insert(key, paused);
    }

    /// Ends the call that expires at `until`, unless its client has resumed it, and keeps its fault for the client.
    fn give_up(&self, key: PauseKey, until: Instant) -> Option<(PipedCall<SessionPipeEra>, Option<GatewayFault>)> {
        let mut waiting = self.waiting.lock();
        // A call that was paused again has another expiry and another watcher.
        if waiting.get(&key).is_none_or(|paused| paused.until != until) {
            return None;
        }
        let PausedCall { call, pace, .. } = waiting.remove(&key)?;
        let is_late = pace.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let fault = is_late.then(|| GatewayFault::new(Reason::DeadlineExceeded, Executed::Unknown));
        if let Some(fault) = fault.filter(|_| call.era.is_wanted()) {
            self.keep_end(key, &call.era, fault);
        }
        Some((call, fault))
    }

    /// Records the fault of a call that its client had resumed before the deadline: the client may lose the fault.
    pub(super) fn note_end(&self, call: &SessionPipeEra, fault: &GatewayFault) {
        let Some(event) = call.resumed_at.as_ref().filter(|_| fault.reason == Reason::DeadlineExceeded) else {
            return;
        };
        if call.is_wanted() {
            let _waiting = self.waiting.lock();
            self.keep_end((call.session.token.nonce, event.clone()), call, *fault);
        }
    }

    /// Keeps nothing for a tool's name above `NAME_BYTES_MAX`: a client that resumes then gets a stream without a response.
    fn keep_end(&self, key: PauseKey, call: &SessionPipeEra, fault: GatewayFault) {
        if call.request.tool.as_ref().is_some_and(|tool| tool.len() > NAME_BYTES_MAX) {
            return;
        }
        let (number, id, tool) = (ended_key(&key), call.request.id.clone(), call.request.tool.clone());
        let ended = EndedCall { event: key.1, id, tool, fault, when: Instant::now() };
        self.ended.insert(number, call.session.counted_as(), ended);
    }
}

impl AnsweredRequest for EndedCall {
    fn id(&self) -> &RequestId {
        &self.id
    }

    fn fault_for_client(&self, _: &GatewayFault) -> GatewayFault {
        self.fault
    }
}

/// Resumes a call's stream after its deadline: the upstream may have completed it; else the client gets the fault.
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

fn ended_key((nonce, event): &PauseKey) -> u128 {
    let mut hasher = DefaultHasher::new();
    event.hash(&mut hasher);
    nonce ^ u128::from(hasher.finish())
}

/// Keeps a call until its client resumes, its deadline (which cancels it), or the longest absence (T-81: no cancel).
pub(super) fn pause(call: PipedCall<SessionPipeEra>, pace: PipeTimeouts, at: &StreamPause) {
    let shared = Arc::clone(&call.era.shared);
    let key = (call.era.session.token.nonce, at.event.clone());
    let patience = Instant::now() + at.retry.min(RETRY_MAX) + ABSENCE_MAX;
    let until = pace.deadline.map_or(patience, |deadline| deadline.min(patience));
    shared.paused.keep(key.clone(), PausedCall { call, pace, until });
    // Its client may have cancelled it meanwhile, or ended the session.
    shared.paused.release(key.0);
    let stop = shared.served.scope.stop.clone();
    let tracker = shared.served.scope.tracker.clone();
    tracker.spawn(async move {
        let _ = stop.run_until_cancelled(tokio::time::sleep_until(until)).await;
        if let Some((call, Some(fault))) = shared.paused.give_up(key, until) {
            call.cancel(fault.reason);
            call.ended(&fault);
        }
    });
}
