//! Places at an upstream: how many calls run at once, and who waits.
//!
//! Knows nothing of what a call is; whoever holds a [`Slot`] has a place until it is dropped. Those who wait do so in
//! a lane for each principal, served in turn, so that many calls of one do not put off those of the others.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::metric;
use crate::task::{Executed, GatewayFault, Principal, Reason};

/// The places of one upstream, resolved. They hold for `tools/call` only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSettings {
    pub in_flight_max: NonZeroUsize,
    pub queue_max: usize,
    /// How long a call without a handle waits for a place.
    pub queue_deadline: Duration,
}

/// The places themselves. Those of one principal are served in the order in which they came, principals in turn.
#[derive(Debug)]
pub struct Slots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    queue_max: usize,
    /// Looked up once: every call counts in the first of them.
    in_flight: Gauge,
    queued: Gauge,
    shed: Counter,
}

/// While a place is free nobody waits.
#[derive(Debug, Default)]
struct State {
    free: usize,
    waiting: usize,
    /// Counts those who wait, to find them again; within a lane it rises.
    next_ticket: u64,
    /// Never empty ones.
    lanes: HashMap<Principal, VecDeque<Waiter>>,
    /// Each lane once, the next one to be served first.
    turns: VecDeque<Principal>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    place: oneshot::Sender<Slot>,
}

impl State {
    fn enter(&mut self, owner: &Principal, place: oneshot::Sender<Slot>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting += 1;
        let lane = self.lanes.entry(owner.clone()).or_insert_with(|| {
            self.turns.push_back(owner.clone());
            VecDeque::new()
        });
        lane.push_back(Waiter { ticket, place });
        ticket
    }

    /// The one whose turn it is; its principal goes to the end of the line.
    fn call_next(&mut self) -> Option<Waiter> {
        let owner = self.turns.pop_front()?;
        let Entry::Occupied(mut lane) = self.lanes.entry(owner.clone()) else { return None };
        let waiter = lane.get_mut().pop_front();
        if lane.get().is_empty() {
            lane.remove();
        } else {
            self.turns.push_back(owner);
        }
        self.waiting -= usize::from(waiter.is_some());
        waiter
    }

    /// Takes back a turn that nobody waits for any more, if it was not called.
    fn leave(&mut self, owner: &Principal, ticket: u64) {
        let Entry::Occupied(mut lane) = self.lanes.entry(owner.clone()) else { return };
        let Ok(at) = lane.get().binary_search_by_key(&ticket, |waiter| waiter.ticket) else { return };
        drop(lane.get_mut().remove(at));
        self.waiting -= 1;
        if lane.get().is_empty() {
            lane.remove();
            self.turns.retain(|other| other != owner);
        }
    }
}

impl Slots {
    /// The metrics recorder must be installed before.
    #[must_use]
    pub fn new(upstream: Arc<str>, settings: SlotSettings) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State { free: settings.in_flight_max.get(), ..State::default() }),
            queue_max: settings.queue_max,
            in_flight: metrics::gauge!(metric::UPSTREAM_IN_FLIGHT, "upstream" => Arc::clone(&upstream)),
            queued: metrics::gauge!(metric::UPSTREAM_QUEUED, "upstream" => Arc::clone(&upstream)),
            shed: metrics::counter!(metric::UPSTREAM_SHED, "upstream" => upstream),
        }))
    }

    /// Takes a place if one is free.
    #[must_use]
    pub fn try_acquire(&self) -> Option<Slot> {
        let mut state = self.0.state.lock();
        state.free = state.free.checked_sub(1)?;
        drop(state);
        Some(Slot::new(&self.0))
    }

    /// Takes a place for a call of `owner`, waiting at most `wait_max` for it; `None` waits as long as it takes.
    ///
    /// Cancel safe: a dropped wait gives its turn to the next.
    ///
    /// # Errors
    /// `QueueFull` if as many wait as may, `QueueDeadline` if the wait was too long.
    pub async fn acquire(&self, owner: &Principal, wait_max: Option<Duration>) -> Result<Slot, GatewayFault> {
        let (turn, mut place) = match self.queue(owner, Some(self.0.queue_max)) {
            Queued::Called(slot) => return Ok(slot),
            Queued::Waits(turn, place) => (turn, place),
            Queued::Full => return Err(self.shed(Reason::QueueFull)),
        };
        let called = match wait_max {
            Some(max) => match tokio::time::timeout(max, &mut place).await {
                Ok(called) => called.ok(),
                Err(_) => {
                    drop(turn);
                    // It may have been called in the very moment in which it gave up.
                    return place.try_recv().map_err(|_| self.shed(Reason::QueueDeadline));
                }
            },
            None => place.await.ok(),
        };
        // Whoever holds the sender hands out a place or finds this end gone.
        called.ok_or(GatewayFault::new(Reason::Internal, Executed::No))
    }

    /// Waits for a place as long as it takes, for a call of `owner` that was let in by an earlier life of the process:
    /// it is never turned away. Whoever calls bounds how many such calls there are. Cancel safe.
    ///
    /// # Errors
    /// `Internal` by a bug.
    pub async fn acquire_again(&self, owner: &Principal) -> Result<Slot, GatewayFault> {
        match self.queue(owner, None) {
            Queued::Called(slot) => Ok(slot),
            Queued::Waits(_turn, place) => place.await.map_err(|_| GatewayFault::new(Reason::Internal, Executed::No)),
            Queued::Full => Err(self.shed(Reason::QueueFull)),
        }
    }

    /// Takes a free place, or one in the owner's lane where fewer than `max` wait.
    fn queue<'a>(&'a self, owner: &'a Principal, max: Option<usize>) -> Queued<'a> {
        let mut state = self.0.state.lock();
        if state.free > 0 {
            state.free -= 1;
            drop(state);
            return Queued::Called(Slot::new(&self.0));
        }
        if max.is_some_and(|max| state.waiting >= max || state.has_share(owner, max)) {
            return Queued::Full;
        }
        let (sender, place) = oneshot::channel();
        let ticket = state.enter(owner, sender);
        self.0.queued.increment(1.0);
        Queued::Waits(Turn { shared: &self.0, owner, ticket }, place)
    }

    /// Counts a call that is turned away unsent, and says so.
    pub fn shed(&self, reason: Reason) -> GatewayFault {
        self.0.shed.increment(1);
        GatewayFault::new(reason, Executed::No)
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.state.lock().waiting
    }
}

impl State {
    /// Whether one of several principals has three quarters of the queue for itself: the rest is for the others. The
    /// one person behind a loopback listener has nobody beside.
    fn has_share(&self, owner: &Principal, queue_max: usize) -> bool {
        let share = if *owner == Principal::local() { queue_max } else { (queue_max - queue_max / 4).max(1) };
        self.lanes.get(owner).is_some_and(|lane| lane.len() >= share)
    }
}

/// How a call that wants a place stands.
enum Queued<'a> {
    Called(Slot),
    Waits(Turn<'a>, oneshot::Receiver<Slot>),
    Full,
}

/// A place in the queue.
struct Turn<'a> {
    shared: &'a Shared,
    owner: &'a Principal,
    ticket: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.shared.state.lock().leave(self.owner, self.ticket);
        self.shared.queued.decrement(1.0);
    }
}

/// A place at the upstream, free again when dropped.
#[must_use = "dropping the slot frees the place"]
pub struct Slot {
    shared: Arc<Shared>,
}

impl Slot {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.in_flight.increment(1.0);
        Self { shared: Arc::clone(shared) }
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

impl Drop for Slot {
    /// Hands the place to whoever is next. One who left meanwhile hands it on in turn.
    fn drop(&mut self) {
        self.shared.in_flight.decrement(1.0);
        let next = {
            let mut state = self.shared.state.lock();
            let next = state.call_next();
            state.free += usize::from(next.is_none());
            next
        };
        if let Some(waiter) = next {
            // Not within the lock: a place that nobody takes is dropped here, and comes by again.
            drop(waiter.place.send(Self::new(&self.shared)));
        }
    }
}

#[cfg(test)]
mod tests;
