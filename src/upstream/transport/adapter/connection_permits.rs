//! Decides which principal may open a connection, and which connection is evicted for it.
//!
//! With several principals each has at most its share of the permits, so that no other waits for one. If none is left,
//! an idle connection of the principal with the most is evicted, even if recently used or with listeners: its session
//! is renewed at the next use. Connections with a call or a task of the server are never evicted for another principal.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::TransportAdapter;
use super::connection::AdapterConnection;
use crate::shared_limits::SharedLimits;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::limits::{CallPermit, CallPermitSettings, CallPermits};

/// An unused connection is evicted after this even for a principal with as many.
const YIELDS_AFTER: Duration = Duration::from_secs(10);
/// How long a call with its own connection waits for a permit, and a principal without a connection for its first; and
/// how often eviction is tried meanwhile.
const PLACE_WAIT: Duration = Duration::from_secs(30);
const FIRST_WAIT: Duration = Duration::from_secs(25);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a server may take to end, including all limits for programs.
const ENDING_MAX: Duration = Duration::from_secs(8);
pub const WAITING_MAX: usize = 4_096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermitWait {
    /// Only for a connection that is ending, or for the principal's first.
    First,
    Waits,
}

pub(super) fn new(max: NonZeroUsize, limits: SharedLimits) -> CallPermits {
    CallPermits::unmetered(CallPermitSettings { in_flight_max: max, queue_max: WAITING_MAX }, limits)
}

/// Why a connection may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvictionReason {
    /// Its owner has at least two more: only calls and tasks protect it.
    AtOnce,
    /// Its owner has one more: recent use protects it too.
    Quiet,
    /// Listeners protect it as well.
    Unused,
}

impl TransportAdapter {
    /// A permit for one more connection of `owner`. Fails with `QueueFull` if it does not wait, else with
    /// `QueueDeadline`.
    pub(super) async fn place(&self, owner: &Principal, patience: PermitWait) -> Result<CallPermit, GatewayFault> {
        let places = &self.shared.places;
        if let Some(place) = places.try_acquire(owner).or_else(|| self.make_room(owner)) {
            return Ok(place);
        }
        // A program that was only probed may be ending.
        let is_ending = || self.shared.sessions.lock().values().any(|session| session.is_over());
        let longest = match patience {
            PermitWait::Waits => PLACE_WAIT,
            PermitWait::First if places.held_by(owner) == 0 => FIRST_WAIT,
            PermitWait::First if is_ending() => ENDING_MAX,
            PermitWait::First => return Err(GatewayFault::new(Reason::QueueFull, Executed::No)),
        };
        let mut look = tokio::time::interval(LOOK_EVERY);
        let free = places.acquire(owner, Some(longest));
        tokio::pin!(free);
        loop {
            tokio::select! {
                place = &mut free => return place,
                _ = look.tick() => {
                    if let Some(place) = self.make_room(owner) {
                        return Ok(place);
                    }
                }
            }
        }
    }

    /// Evicts a connection; its permit passes to `owner`.
    fn make_room(&self, owner: &Principal) -> Option<CallPermit> {
        let places = &self.shared.places;
        let (own, has_share) = (places.held_by(owner), places.has_share(owner));
        let mut sessions = self.shared.sessions.lock();
        let giving = sessions.iter().filter_map(|(id, session)| {
            let other = session.owner().filter(|other| other == owner || !has_share)?;
            let held = places.held_by(&other);
            let yields = match held {
                _ if other == *owner || held <= own => EvictionReason::Unused,
                held if held > own + 1 => EvictionReason::AtOnce,
                _ => EvictionReason::Quiet,
            };
            Some((held, quiet_for(session, yields)?, id))
        });
        let id = giving.max_by_key(|(held, quiet, _)| (*held, *quiet)).map(|(.., id)| id.clone())?;
        let session = sessions.get(&id)?;
        let mut place = session.give_way()?;
        sessions.remove(&id);
        drop(sessions);
        tracing::debug!(upstream = %self.shared.name, "evicted an idle connection for another client");
        place.pass_to(owner);
        Some(place)
    }
}

/// Time without use; `None` if the connection may not be evicted yet.
fn quiet_for(session: &AdapterConnection, yields: EvictionReason) -> Option<Duration> {
    let idle = session.idle()?;
    let unused = || (idle.unused >= YIELDS_AFTER).then_some(idle.unused);
    match yields {
        EvictionReason::AtOnce if !idle.has_task => Some(idle.quiet),
        EvictionReason::Quiet if !idle.has_task && idle.quiet >= YIELDS_AFTER => Some(idle.quiet),
        EvictionReason::AtOnce | EvictionReason::Quiet | EvictionReason::Unused => unused(),
    }
}
