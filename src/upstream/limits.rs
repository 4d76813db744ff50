//! Places at an upstream: how many calls run at once, and who waits.
//!
//! Knows nothing of what a call is; whoever holds a [`Slot`] has a place until it is dropped.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metric;
use crate::task::{Executed, GatewayFault, Reason};

/// The places of one upstream, resolved. They hold for `tools/call` only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSettings {
    pub in_flight_max: NonZeroUsize,
    pub queue_max: usize,
    /// How long a call without a handle waits for a place.
    pub queue_deadline: Duration,
}

/// The places themselves. Waiters are served in the order in which they came.
#[derive(Debug)]
pub struct Slots {
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    queue_max: usize,
    /// Looked up once: every call counts in the first of them.
    in_flight: Gauge,
    queued: Gauge,
    shed: Counter,
}

impl Slots {
    /// The metrics recorder must be installed before.
    #[must_use]
    pub fn new(upstream: Arc<str>, settings: SlotSettings) -> Self {
        // A semaphore has a largest size of its own, far above what any machine can run.
        let places = settings.in_flight_max.get().min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(places)),
            waiting: AtomicUsize::new(0),
            queue_max: settings.queue_max,
            in_flight: metrics::gauge!(metric::UPSTREAM_IN_FLIGHT, "upstream" => Arc::clone(&upstream)),
            queued: metrics::gauge!(metric::UPSTREAM_QUEUED, "upstream" => Arc::clone(&upstream)),
            shed: metrics::counter!(metric::UPSTREAM_SHED, "upstream" => upstream),
        }
    }

    /// Takes a place if one is free.
    #[must_use]
    pub fn try_acquire(&self) -> Option<Slot> {
        Arc::clone(&self.free).try_acquire_owned().ok().map(|permit| self.slot(permit))
    }

    /// Takes a place, waiting at most `wait_max` for it; `None` waits as long as it takes.
    ///
    /// Cancel safe: a dropped wait gives its turn to the next.
    ///
    /// # Errors
    /// `QueueFull` if as many wait as may, `QueueDeadline` if the wait was too long.
    pub async fn acquire(&self, wait_max: Option<Duration>) -> Result<Slot, GatewayFault> {
        if let Some(slot) = self.try_acquire() {
            return Ok(slot);
        }
        let _turn = self.queue()?;
        let turn = Arc::clone(&self.free).acquire_owned();
        let permit = match wait_max {
            Some(max) => tokio::time::timeout(max, turn).await.map_err(|_| self.shed(Reason::QueueDeadline))?,
            None => turn.await,
        };
        Ok(self.slot(permit.expect("the semaphore is never closed")))
    }

    fn queue(&self) -> Result<Turn<'_>, GatewayFault> {
        let queued = |n| (n < self.queue_max).then_some(n + 1);
        match self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, queued) {
            Ok(_) => {
                self.queued.increment(1.0);
                Ok(Turn(self))
            }
            Err(_) => Err(self.shed(Reason::QueueFull)),
        }
    }

    fn slot(&self, permit: OwnedSemaphorePermit) -> Slot {
        self.in_flight.increment(1.0);
        Slot { _permit: permit, in_flight: self.in_flight.clone() }
    }

    /// Counts a call that is turned away unsent, and says so.
    pub fn shed(&self, reason: Reason) -> GatewayFault {
        self.shed.increment(1);
        GatewayFault::new(reason, Executed::No)
    }
}

/// A place in the queue.
struct Turn<'a>(&'a Slots);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.queued.decrement(1.0);
    }
}

/// A place at the upstream, free again when dropped.
#[must_use = "dropping the slot frees the place"]
pub struct Slot {
    _permit: OwnedSemaphorePermit,
    in_flight: Gauge,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Slot")
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.in_flight.decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(in_flight_max: usize, queue_max: usize) -> Slots {
        let in_flight_max = NonZeroUsize::new(in_flight_max).unwrap();
        let settings = SlotSettings { in_flight_max, queue_max, queue_deadline: Duration::from_secs(30) };
        Slots::new(Arc::from("reports"), settings)
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_refuses_at_once_and_a_long_wait_ends() {
        let slots = slots(1, 1);
        let held = slots.acquire(None).await.unwrap();
        let (late, refused) =
            tokio::join!(slots.acquire(Some(Duration::from_secs(2))), slots.acquire(Some(Duration::from_secs(2))));
        assert_eq!(late.unwrap_err(), GatewayFault::new(Reason::QueueDeadline, Executed::No));
        assert_eq!(refused.unwrap_err(), GatewayFault::new(Reason::QueueFull, Executed::No));
        drop(held);
        let again = slots.acquire(Some(Duration::ZERO)).await;
        assert!(again.is_ok(), "a dropped slot is free again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_wait_leaves_its_turn_to_the_next() {
        let slots = slots(1, 1);
        let held = slots.acquire(None).await.unwrap();
        let wait = tokio::time::timeout(Duration::from_secs(1), slots.acquire(None)).await;
        assert!(wait.is_err(), "nothing is free");
        let (next, ()) = tokio::join!(slots.acquire(Some(Duration::from_secs(2))), async { drop(held) });
        assert!(next.is_ok(), "the queue has room again");
    }
}
