//! Defines what one upstream is served with, whichever face its client meets.

use std::fmt;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::listen_permits::ListenPermits;
use super::rates::Rates;
use super::sealed::Sealer;
use super::session_homes::SessionHomes;
use super::unmatched_rules::UnmatchedRules;
use crate::engine::{CallTarget, Engine, ServiceSettings};
use crate::replica::Incarnation;
use crate::task::Clock;
use crate::upstream::limits::CallPermits;
use crate::upstream::{OwnSessionChannel, TaskScope, Upstream};

/// What one upstream is served with. There is one for each upstream, shared by all its faces.
pub struct Served {
    pub settings: Arc<ServiceSettings>,
    /// Looks at each tool list that is read by the names that clients know.
    pub unmatched_rules: Arc<UnmatchedRules>,
    pub engine: Arc<Engine>,
    /// The server, of whichever era.
    pub upstream: Arc<dyn Upstream>,
    /// The same for what is passed on as it came.
    pub channel: Arc<dyn OwnSessionChannel>,
    /// The same in sessions of the gateway's own alone: there it is asked about its tools.
    pub pool: Arc<dyn Upstream>,
    /// The same without sessions.
    pub stateless: Arc<dyn Upstream>,
    /// Whether the operator says that the server knows no sessions: then it is never asked for one.
    pub is_stateless: bool,
    pub permits: Arc<CallPermits>,
    /// What principals ask for, whatever upstream they ask.
    pub rates: Arc<Rates>,
    /// Permits of streams that are open for as long as their clients like, of all upstreams together.
    pub listeners: Arc<ListenPermits>,
    /// Seals what clients keep for the gateway.
    pub sealer: Arc<Sealer>,
    /// Where sessions are at home, where other gateways share the store.
    pub homes: Option<Arc<SessionHomes>>,
    /// The one of tasks: what is sealed at one gateway may be opened at another.
    pub clock: Arc<dyn Clock>,
    /// 128 random bits, new at each call.
    pub random: fn() -> u128,
    pub life: TaskScope,
    /// Ends streams that would hold up a shutdown, as they end by no other means: those of sessions, and subscriptions.
    pub leaving: CancellationToken,
}

impl Served {
    /// The home of a session that is begun now.
    #[must_use]
    pub fn home(&self) -> Option<Incarnation> {
        self.homes.as_ref().map(|homes| homes.own())
    }

    /// 128 bits for the id of something that is in this process's memory alone. Nobody can guess them; to other replicas they
    /// say where it is.
    #[must_use]
    pub fn draw_id(&self) -> u128 {
        let random = (self.random)();
        self.homes.as_ref().map_or(random, |homes| homes.name(random as u64))
    }

    /// What calls of the engine's are made with.
    #[must_use]
    pub fn target(&self) -> CallTarget {
        CallTarget {
            upstream: Arc::clone(&self.upstream),
            permits: Arc::clone(&self.permits),
            settings: Arc::clone(&self.settings),
        }
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("upstream", self.upstream.name()).finish_non_exhaustive()
    }
}
