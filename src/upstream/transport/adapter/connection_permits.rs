//! Decides who may open one more connection, and which one gives way for it.
//!
//! One of several principals has at most its share of the places, so that
//! no other waits for one. Where none is left, an idle connection of whoever has most gives way, whatever it was used
//! last and whoever listens on it: its session is opened anew when it is next used. A call in progress is never ended
//! for another, nor is a connection on which the server runs a task.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::TransportAdapter;
use super::connection::AdapterConnection;
use crate::shared_limits::SharedLimits;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::limits::{CallPermit, CallPermitSettings, CallPermits};

/// A connection that nobody uses gives its place to whoever has as many after this.
const YIELDS_AFTER: Duration = Duration::from_secs(10);
/// How long a call waits for a connection of its own while there are as many as there may be, and whoever has none at
/// all for the first; and how often it is looked whether one gives way by now.
const PLACE_WAIT: Duration = Duration::from_secs(30);
const FIRST_WAIT: Duration = Duration::from_secs(25);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a server may take to end, with all the patience that there is for programs.
const ENDING_MAX: Duration = Duration::from_secs(8);
/// Those who wait for a place at one time.
pub const WAITING_MAX: usize = 4_096;

/// Whether to wait for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermitWait {
    /// Only for what is ending already, and for the first one.
    First,
    Waits,
}

pub(super) fn new(max: NonZeroUsize) -> CallPermits {
    let settings = CallPermitSettings { in_flight_max: max, queue_max: WAITING_MAX };
    CallPermits::unmetered(settings, SharedLimits::default())
}

/// Why a connection may give way to whoever wants its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvictionReason {
    /// Its owner has at least two more: nothing but calls holds it.
    AtOnce,
    /// Its owner has one more: not while it is in use every few seconds.
    Quiet,
    /// Nobody uses it, or listens.
    Unused,
}

impl TransportAdapter {
    /// A place for one more connection of `owner`.
    ///
    /// # Errors
    /// `QueueFull` if there is none, and none is to be waited for; `QueueDeadline` if the wait was too long.
    pub(super) async fn place(&self, owner: &Principal, patience: PermitWait) -> Result<CallPermit, GatewayFault> {
        let places = &self.shared.places;
        if let Some(place) = places.try_acquire(owner).or_else(|| self.make_room(owner)) {
            return Ok(place);
        }
        // One that is ending already is waited for: a program that was only asked what it speaks, say.
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

    /// Ends a connection that gives way to `owner`, whose its place is from then on.
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
        tracing::debug!(upstream = %self.shared.name, "an idle connection gave way to another client's");
        place.pass_to(owner);
        Some(place)
    }
}

/// How long a connection was not used, if it may give way by now.
fn quiet_for(session: &AdapterConnection, yields: EvictionReason) -> Option<Duration> {
    let idle = session.idle()?;
    let unused = || (idle.unused >= YIELDS_AFTER).then_some(idle.unused);
    match yields {
        EvictionReason::AtOnce if !idle.has_task => Some(idle.quiet),
        EvictionReason::Quiet if !idle.has_task && idle.quiet >= YIELDS_AFTER => Some(idle.quiet),
        EvictionReason::AtOnce | EvictionReason::Quiet | EvictionReason::Unused => unused(),
    }
}
