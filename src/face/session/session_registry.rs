//! Registers what sessions have open in this process, by the nonce of the session.

use std::sync::Arc;

use super::bridged_questions::BridgedQuestions;
use super::in_flight::InFlight;
use super::session_streams::SessionStreams;
use crate::face::call_stream::replay_buffer::ReplayBuffers;

/// What the sessions of one face have open. None of it reaches from one session into another.
#[derive(Debug, Default)]
pub(in crate::face) struct SessionRegistry {
    /// Requests that can be cancelled.
    pub(in crate::face) in_flight: Arc<InFlight>,
    /// Streams on which the gateway can say something of its own accord.
    pub(in crate::face) streams: Arc<SessionStreams>,
    /// What calls said, for clients that lost their streams.
    pub(in crate::face) replays: ReplayBuffers,
    /// Questions that wait for an answer; each ends with its call.
    pub(super) questions: Arc<BridgedQuestions>,
}

impl SessionRegistry {
    /// Ends what a session has open. Plain calls end with it: nobody is left who could have their answers (T-81).
    pub(super) fn end(&self, nonce: u128) {
        self.streams.end(nonce);
        self.replays.forget(nonce);
        self.in_flight.end_session(nonce);
    }
}
