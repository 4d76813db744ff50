//! Decides which principal may open a connection, and which connection is evicted for it.
//! With several principals each has at most its share of the permits, so that no other principal waits for a permit. If none is free,
//! an idle connection of the principal with the most is evicted, even if recently used or with listeners: its session
//! is renewed at the next use. Connections with a call or a task of the server are never evicted for another principal.
//! Also delays the next start of a server that ended by itself.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::TransportAdapter;
use super::connection::AdapterConnection;
use crate::shared_limits::SharedLimits;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::limits::{CallPermit, CallPermitSettings, CallPermits};

/// An unused connection is evicted after this even for a principal with as many.
const YIELDS_AFTER: Duration = Duration::from_secs(10);
/// How long a dedicated connection, or a principal's first, waits for a permit; and how often eviction is tried.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const FIRST_WAIT: Duration = Duration::from_secs(25);
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a server may take to end, including all limits for programs.
pub(super) const ENDING_MAX: Duration = Duration::from_secs(8);
pub const WAITING_MAX: usize = 4_096;
/// Duration after which a connection was useful, so that failures before it no longer count.
const USEFUL_AFTER: Duration = Duration::from_secs(10);
/// Pause after the second consecutive failure; each further one doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause that a request waits for; a longer one is a fault.
const WAIT_MAX: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermitWait {
    /// Only for a connection that is ending, or for the principal's first.
    First,
    Waits,
}

pub(super) fn new(max: NonZeroUsize, limits: SharedLimits) -> CallPermits {
    CallPermits::unmetered(CallPermitSettings { in_flight_max: max, queue_max: WAITING_MAX }, limits)
}

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
    /// A permit for one more connection of `owner`. Fails with `QueueFull` if it does not wait, else `QueueDeadline`.
    pub(super) async fn acquire_permit(&self, owner: &Principal, wait: PermitWait) -> Result<CallPermit, GatewayFault> {
        let permits = &self.shared.permits;
        if let Some(permit) = permits.try_acquire(owner).or_else(|| self.make_room(owner)) {
            return Ok(permit);
        }
        // A program that was only probed may be ending.
        let is_ending = || self.shared.sessions.lock().values().any(|session| session.is_closed());
        let longest = match wait {
            PermitWait::Waits => LONGEST_WAIT,
            PermitWait::First if permits.held_by(owner) == 0 => FIRST_WAIT,
            PermitWait::First if is_ending() => ENDING_MAX,
            PermitWait::First => return Err(GatewayFault::new(Reason::QueueFull, Executed::No)),
        };
        let mut look = tokio::time::interval(LOOK_EVERY);
        let free = permits.acquire(owner, Some(longest));
        tokio::pin!(free);
        loop {
            tokio::select! {
                permit = &mut free => return permit,
                _ = look.tick() => {
                    if let Some(permit) = self.make_room(owner) {
                        return Ok(permit);
                    }
                }
            }
        }
    }

    /// Evicts a connection; its permit passes to `owner`.
    fn make_room(&self, owner: &Principal) -> Option<CallPermit> {
        let permits = &self.shared.permits;
        let (own, has_share) = (permits.held_by(owner), permits.has_share(owner));
        let mut sessions = self.shared.sessions.lock();
        let giving = sessions.iter().filter_map(|(id, session)| {
            let other = session.owner().filter(|other| other == owner || !has_share)?;
            let held = permits.held_by(&other);
            let yields = match held {
                _ if other == *owner || held <= own => EvictionReason::Unused,
                held if held > own + 1 => EvictionReason::AtOnce,
                _ => EvictionReason::Quiet,
            };
            Some((held, quiet_for(session, yields)?, id))
        });
        let id = giving.max_by_key(|(held, quiet, _)| (*held, *quiet)).map(|(.., id)| id.clone())?;
        let session = sessions.get(&id)?;
        let mut permit = session.give_way()?;
        sessions.remove(&id);
        drop(sessions);
        tracing::debug!(upstream = %self.shared.name, "evicted an idle connection for another client");
        permit.pass_to(owner);
        Some(permit)
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

/// Consecutive failures of one server. The first has no pause: many servers crash on one input.
#[derive(Debug)]
pub(super) struct RestartBackoff {
    /// The failures of each principal's connections in which the server had answered (SEC-91); under `None` those without an answer.
    states: Mutex<HashMap<Option<Principal>, BackoffState>>,
    pause_max: Duration,
}

#[derive(Debug)]
struct BackoffState {
    failures: u32,
    until: Instant,
}

impl RestartBackoff {
    pub(super) fn new(pause_max: Duration) -> Self {
        Self { states: Mutex::default(), pause_max }
    }

    /// Waits until the server may be started for `owner`, or fails with the time to retry.
    pub(super) async fn wait(&self, owner: &Principal) -> Result<(), GatewayFault> {
        let until = {
            let states = self.states.lock();
            [None, Some(owner.clone())].iter().filter_map(|of| Some(states.get(of)?.until)).max()
        };
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(());
        }
        if left > WAIT_MAX {
            let fault = GatewayFault::new(Reason::UpstreamUnreachable, Executed::No);
            return Err(GatewayFault { retry_after: Some(left), ..fault });
        }
        tokio::time::sleep(left).await;
        Ok(())
    }

    /// Resets the counts of failures: another server was started.
    pub(super) fn reset(&self) {
        self.states.lock().clear();
    }

    pub(super) fn note_failure(&self) {
        self.note_end(None, Duration::ZERO, false);
    }

    /// Records a connection's end, with its owner if the server had answered. A long one, or a tool's result, resets the count.
    pub(super) fn note_end(&self, owner: Option<Principal>, lasted: Duration, has_served: bool) {
        let (now, is_useful) = (Instant::now(), has_served || lasted >= USEFUL_AFTER);
        let mut states = self.states.lock();
        states.retain(|of, state| now < state.until + self.pause_max && !(is_useful && of.is_none()));
        let state = states.entry(owner).or_insert(BackoffState { failures: 0, until: now });
        state.failures = if is_useful { 1 } else { state.failures.saturating_add(1) };
        let pause = state.failures.checked_sub(2).map(|more| PAUSE_MIN.saturating_mul(2_u32.saturating_pow(more)));
        state.until = now + pause.unwrap_or_default().min(self.pause_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn f45_pauses_begin_with_the_second_failure_and_have_a_cap() {
        let (backoff, owner) = (RestartBackoff::new(Duration::from_secs(30)), Principal::local());
        let mut waited = Vec::new();
        for _ in 0..6 {
            backoff.note_failure();
            let began = Instant::now();
            backoff.wait(&owner).await.unwrap();
            waited.push(began.elapsed().as_millis());
        }
        assert_eq!(waited, [0, 100, 200, 400, 800, 1600]);
        for _ in 0..100 {
            backoff.note_failure();
        }
        let refused = backoff.wait(&owner).await.unwrap_err();
        assert_eq!((refused.executed, refused.retry_after), (Executed::No, Some(Duration::from_secs(30))));
        for (lasted, has_served) in [(USEFUL_AFTER, false), (Duration::ZERO, true)] {
            (0..10).for_each(|_| backoff.note_failure());
            backoff.note_end(None, lasted, has_served);
            let began = Instant::now();
            backoff.wait(&owner).await.unwrap();
            assert_eq!(began.elapsed(), Duration::ZERO, "it was of use");
        }
    }
}
