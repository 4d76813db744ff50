//! Registers sessions' open requests, streams and questions in this process, by nonce.

use std::sync::Arc;

use super::bridged_questions::BridgedQuestions;
use super::in_flight::InFlight;
use super::session_streams::SessionStreams;
use crate::face::call_stream::replay_buffer::ReplayBuffers;

/// The open objects of one face's sessions, isolated by session.
#[derive(Debug, Default)]
pub(in crate::face) struct SessionRegistry {
    /// Requests that can be cancelled.
    pub(in crate::face) in_flight: Arc<InFlight>,
    /// Streams on which the gateway can send messages itself.
    pub(in crate::face) streams: Arc<SessionStreams>,
    /// Calls' buffered events, for clients that lost their streams.
    pub(in crate::face) replays: ReplayBuffers,
    /// Open questions; each ends with its call.
    pub(super) questions: Arc<BridgedQuestions>,
}

impl SessionRegistry {
    /// Ends a session's open objects. Plain calls end with it: no client could get their responses (T-81).
    pub(super) fn end(&self, nonce: u128) {
        self.streams.end(nonce);
        self.replays.forget(nonce);
        self.in_flight.end_session(nonce);
    }
}
