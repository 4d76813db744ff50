//! Registers sessions' open requests, streams and questions in this process, by nonce.

use std::sync::Arc;

use super::bridged_questions::BridgedQuestions;
use super::in_flight::InFlight;
use super::session_streams::SessionStreams;
use crate::face::call_stream::replay_buffer::ReplayBuffers;

#[derive(Debug, Default)]
pub(in crate::face) struct SessionRegistry {
    pub(in crate::face) in_flight: Arc<InFlight>,
    /// Streams on which the gateway can send messages itself.
    pub(in crate::face) streams: Arc<SessionStreams>,
    /// Buffered events of calls, for clients that lost their streams.
    pub(in crate::face) replays: ReplayBuffers,
    /// Open questions; each ends with its call.
    pub(super) questions: Arc<BridgedQuestions>,
}

impl SessionRegistry {
    /// Plain calls end with their session: no client could get their responses (T-81).
    pub(super) fn end(&self, nonce: u128) {
        self.streams.end(nonce);
        self.replays.forget(nonce);
        self.in_flight.end_session(nonce);
    }
}
