//! Chooses the era for clients that can be asked, at a server of both eras.
//! Servers of today's SDKs serve both eras, and their tools ask during a call (`elicitation/create`), which works in
//! sessions only: at 2026-07-28 such a call fails. So clients that can be asked are served in sessions, unless the
//! server is known to ask at 2026-07-28: it declares the tasks extension, or has answered an `InputRequiredResult`.
//! `server/discover` lists no session versions: only a handshake shows sessions (UPC-28).

use std::time::Duration;

use tokio::time::Instant;

use super::contradicts;
use crate::task::{GatewayFault, Reason};
use crate::upstream::{BeginError, ServerFacts};
use crate::wire::meta::TASKS_EXTENSION;
use crate::wire::{Object, Payload};

/// How soon another handshake is tried after one without a verdict.
const PROBE_AGAIN: Duration = Duration::from_secs(30);

/// How a server of 2026-07-28 can ask a call's client.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuestionEra {
    declares_tasks: bool,
    has_asked: bool,
    sessions: SessionOffer,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SessionOffer {
    #[default]
    Unknown,
    NoVerdict(Instant),
    Yes,
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionRoute {
    /// In sessions: only there may a call ask.
    Sessions,
    Stateless(StatelessReason),
    Handshake,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatelessReason {
    DeclaresTasks,
    HasAsked,
    NoSessions,
    /// Unknown whether the server has sessions.
    NoVerdict,
}

impl StatelessReason {
    pub const fn text(self) -> &'static str {
        match self {
            Self::DeclaresTasks => "the server declares the tasks extension there",
            Self::HasAsked => "the server has asked by an InputRequiredResult there",
            Self::NoSessions => "the server offers no sessions",
            Self::NoVerdict => "the server gave no verdict on sessions",
        }
    }
}

impl QuestionEra {
    pub fn discovered(&mut self, capabilities: &Payload) {
        let extensions = Object::of(capabilities).and_then(|all| all.get_object("extensions"));
        self.declares_tasks = extensions.is_some_and(|all| all.has_object(TASKS_EXTENSION));
    }

    /// Records that the server answered a request with an `InputRequiredResult`.
    pub(super) const fn asked(&mut self) {
        self.has_asked = true;
    }

    /// A server that offered sessions before may be failing: its refusal is no verdict until the next one repeats it.
    pub fn handshake(&mut self, outcome: Result<&ServerFacts, &BeginError>, now: Instant) {
        self.sessions = match (outcome, self.sessions) {
            (Ok(facts), _) if facts.has_session => SessionOffer::Yes,
            // The answer to a question of such a server could not be routed.
            (Ok(_), _) => SessionOffer::No,
            (Err(error), SessionOffer::Yes) if is_for_good(error) => SessionOffer::Unknown,
            (Err(_), SessionOffer::Yes) => SessionOffer::Yes,
            (Err(error), _) if is_for_good(error) => SessionOffer::No,
            (Err(_), _) => SessionOffer::NoVerdict(now),
        };
    }

    /// Forgets whether there are sessions: another server may be at the address.
    pub(super) const fn forget_sessions(&mut self) {
        self.sessions = SessionOffer::Unknown;
    }

    pub fn route(&self, now: Instant) -> QuestionRoute {
        match self.sessions {
            _ if self.declares_tasks => QuestionRoute::Stateless(StatelessReason::DeclaresTasks),
            _ if self.has_asked => QuestionRoute::Stateless(StatelessReason::HasAsked),
            SessionOffer::Yes => QuestionRoute::Sessions,
            SessionOffer::No => QuestionRoute::Stateless(StatelessReason::NoSessions),
            SessionOffer::NoVerdict(at) if now.duration_since(at) < PROBE_AGAIN => {
                QuestionRoute::Stateless(StatelessReason::NoVerdict)
            }
            SessionOffer::Unknown | SessionOffer::NoVerdict(_) => QuestionRoute::Handshake,
        }
    }
}

/// Whether an error means that the server has no sessions, rather than a temporary state.
fn is_for_good(error: &BeginError) -> bool {
    match error {
        BeginError::Refused(_) => true,
        BeginError::Gateway(GatewayFault { reason: Reason::UpstreamMalformed | Reason::UpstreamRefused, .. }) => true,
        BeginError::Gateway(fault) => fault.http_status.is_some() && contradicts(fault.http_status, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Executed;
    use crate::wire::{ProtocolVersion, RpcError};

    fn facts(has_session: bool) -> ServerFacts {
        let (version, capabilities) = (ProtocolVersion::V2025_11_25, Payload::empty_object());
        ServerFacts { version, capabilities, server_info: None, instructions: None, has_session }
    }

    fn fault(reason: Reason, http_status: Option<u16>) -> BeginError {
        BeginError::Gateway(GatewayFault { http_status, ..GatewayFault::new(reason, Executed::No) })
    }

    /// UPC-28.
    #[tokio::test(start_paused = true)]
    async fn upc28_sessions_are_for_servers_that_do_not_ask_at_2026_07_28() {
        use QuestionRoute::{Handshake, Sessions, Stateless};
        let now = Instant::now();
        let refused = BeginError::Refused(RpcError::new(-32601, "m"));
        let (gone, status) = (Reason::UpstreamUnreachable, Reason::UpstreamHttpStatus);
        for (what, outcome, expected) in [
            ("nothing is known", None, Handshake),
            ("a session", Some(Ok(facts(true))), Sessions),
            ("a handshake without a session", Some(Ok(facts(false))), Stateless(StatelessReason::NoSessions)),
            ("a refusal", Some(Err(refused.clone())), Stateless(StatelessReason::NoSessions)),
            ("404", Some(Err(fault(status, Some(404)))), Stateless(StatelessReason::NoSessions)),
            ("no MCP", Some(Err(fault(Reason::UpstreamMalformed, None))), Stateless(StatelessReason::NoSessions)),
            ("503", Some(Err(fault(status, Some(503)))), Stateless(StatelessReason::NoVerdict)),
            ("no connection", Some(Err(fault(gone, None))), Stateless(StatelessReason::NoVerdict)),
        ] {
            let mut era = QuestionEra::default();
            if let Some(outcome) = &outcome {
                era.handshake(outcome.as_ref(), now);
            }
            assert_eq!(era.route(now), expected, "{what}");
            let later = if expected == Stateless(StatelessReason::NoVerdict) { Handshake } else { expected };
            assert_eq!(era.route(now + PROBE_AGAIN), later, "{what}, later");

            let mut asks = era;
            asks.asked();
            assert_eq!(asks.route(now), Stateless(StatelessReason::HasAsked), "{what}");

            era.discovered(&Payload::of(&serde_json::json!({ "extensions": { TASKS_EXTENSION: {} } })));
            assert_eq!(era.route(now), Stateless(StatelessReason::DeclaresTasks), "{what}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn trouble_takes_no_sessions_from_a_server_that_offered_them() {
        let now = Instant::now();
        let refused = BeginError::Refused(RpcError::new(-32601, "m"));
        let mut era = QuestionEra::default();
        era.handshake(Ok(&facts(true)), now);
        era.handshake(Err(&fault(Reason::UpstreamUnreachable, None)), now);
        assert_eq!(era.route(now), QuestionRoute::Sessions);
        era.handshake(Err(&refused), now);
        assert_eq!(era.route(now), QuestionRoute::Handshake, "another handshake decides");
        era.handshake(Err(&refused), now);
        assert_eq!(era.route(now), QuestionRoute::Stateless(StatelessReason::NoSessions));
    }
}
