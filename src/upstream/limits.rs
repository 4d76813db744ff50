//! Grants permits for calls at an upstream: how many run at once, and who waits.
//!
//! Knows nothing of what a call is; whoever holds a [`Slot`] has a place until it is dropped. Those who wait do so in
//! a lane for each principal, served in turn, so that many calls of one do not put off those of the others. One of
//! several principals has at most three quarters of the places, and of those that wait: what is in progress may last
//! for hours, and is ended for nobody.

mod state;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::metric;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use state::{State, Waiter};

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
    /// Looked up once: every call counts in the first of them.
    in_flight: Gauge,
    queued: Gauge,
    shed: Counter,
}

/// The places of upstreams by their names, as long as anybody holds them: whatever else a reload replaces, the calls
/// that run at a server go on counting.
#[derive(Debug, Default)]
pub struct SlotsByName(Mutex<HashMap<Arc<str>, Weak<Shared>>>);

impl SlotsByName {
    /// The places of an upstream: those that are there, with the bounds that they have until [`Slots::rebound`] is
    /// called, else new ones. The metrics recorder must be installed before.
    #[must_use]
    pub fn of(&self, upstream: &Arc<str>, settings: SlotSettings) -> Slots {
        let mut all = self.0.lock();
        all.retain(|_, slots| slots.strong_count() > 0);
        if let Some(shared) = all.get(upstream).and_then(Weak::upgrade) {
            return Slots(shared);
        }
        let slots = Slots::new(Arc::clone(upstream), settings);
        all.insert(Arc::clone(upstream), Arc::downgrade(&slots.0));
        slots
    }
}

/// How many of `max` one of several principals may have: the rest is for the others. The one person behind a loopback
/// listener has nobody beside; of fewer than four there is nothing to set aside.
pub(crate) fn share(owner: &Principal, max: usize) -> usize {
    if *owner == Principal::local() { max } else { (max - max / 4).max(1) }
}

impl Slots {
    /// The metrics recorder must be installed before.
    #[must_use]
    pub fn new(upstream: Arc<str>, settings: SlotSettings) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State::new(settings.in_flight_max.get(), settings.queue_max)),
            in_flight: metrics::gauge!(metric::UPSTREAM_IN_FLIGHT, "upstream" => Arc::clone(&upstream)),
            queued: metrics::gauge!(metric::UPSTREAM_QUEUED, "upstream" => Arc::clone(&upstream)),
            shed: metrics::counter!(metric::UPSTREAM_SHED, "upstream" => upstream),
        }))
    }

    /// Places of something else than calls, which no metric shows.
    pub(crate) fn unmetered(max: usize, queue_max: usize) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State::new(max, queue_max)),
            in_flight: Gauge::noop(),
            queued: Gauge::noop(),
            shed: Counter::noop(),
        }))
    }

    /// Changes the bounds. Where there are fewer places than are taken, none is given until enough are free again;
    /// nobody who waits is turned away.
    pub fn rebound(&self, settings: SlotSettings) {
        let called = {
            let mut state = self.0.state.lock();
            state.rebound(settings.in_flight_max.get(), settings.queue_max);
            state.call_all()
        };
        self.hand_out(called);
    }

    /// Takes a place for a call of `owner` if one is free.
    #[must_use]
    pub fn try_acquire(&self, owner: &Principal) -> Option<Slot> {
        self.0.state.lock().take(owner).then(|| Slot::new(&self.0, owner.clone()))
    }

    /// Takes a place for a call of `owner`, waiting at most `wait_max` for it; `None` waits as long as it takes.
    ///
    /// Cancel safe: a dropped wait gives its turn to the next.
    ///
    /// # Errors
    /// `QueueFull` if as many wait as may, `QueueDeadline` if the wait was too long.
    pub async fn acquire(&self, owner: &Principal, wait_max: Option<Duration>) -> Result<Slot, GatewayFault> {
        let (turn, mut place) = match self.queue(owner, true) {
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
        match self.queue(owner, false) {
            Queued::Called(slot) => Ok(slot),
            Queued::Waits(_turn, place) => place.await.map_err(|_| GatewayFault::new(Reason::Internal, Executed::No)),
            Queued::Full => Err(self.shed(Reason::QueueFull)),
        }
    }

    /// Takes a free place, or one in the owner's lane where it is bounded and has room.
    fn queue<'a>(&'a self, owner: &'a Principal, is_bounded: bool) -> Queued<'a> {
        let mut state = self.0.state.lock();
        if state.take(owner) {
            drop(state);
            return Queued::Called(Slot::new(&self.0, owner.clone()));
        }
        if is_bounded && state.has_full_queue(owner) {
            return Queued::Full;
        }
        let (sender, place) = oneshot::channel();
        let ticket = state.enter(owner, sender);
        self.0.queued.increment(1.0);
        Queued::Waits(Turn { shared: &self.0, owner, ticket }, place)
    }

    /// How many places `owner` has.
    pub(crate) fn held_by(&self, owner: &Principal) -> usize {
        self.0.state.lock().held_by(owner)
    }

    /// Whether `owner` has all the places that it may have, free ones or not.
    pub(crate) fn has_share(&self, owner: &Principal) -> bool {
        self.0.state.lock().has_share(owner)
    }

    /// Not within the lock: a place that nobody takes is dropped here, and comes by again.
    fn hand_out(&self, called: Vec<(Principal, Waiter)>) {
        for (owner, waiter) in called {
            drop(waiter.place.send(Slot::new(&self.0, owner)));
        }
    }

    /// Counts a call that is turned away unsent, and says so.
    pub fn shed(&self, reason: Reason) -> GatewayFault {
        self.0.shed.increment(1);
        GatewayFault::new(reason, Executed::No)
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.state.lock().waiting()
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
    owner: Principal,
}

impl Slot {
    fn new(shared: &Arc<Shared>, owner: Principal) -> Self {
        shared.in_flight.increment(1.0);
        Self { shared: Arc::clone(shared), owner }
    }

    /// Whose place it is.
    pub(crate) const fn owner(&self) -> &Principal {
        &self.owner
    }

    /// Makes it another's place, whatever share that has.
    pub(crate) fn pass_to(&mut self, owner: &Principal) {
        self.shared.state.lock().pass(&self.owner, owner);
        self.owner = owner.clone();
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
        let called = {
            let mut state = self.shared.state.lock();
            state.give_back(&self.owner);
            state.call_all()
        };
        Slots(Arc::clone(&self.shared)).hand_out(called);
    }
}

#[cfg(test)]
mod tests;
