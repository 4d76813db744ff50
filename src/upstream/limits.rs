//! Limits the calls at an upstream: grants permits, and queues calls in fair order.
//! A call holds a [`CallPermit`] until the permit is dropped. Calls wait in a lane for each principal, and lanes are
//! served in turn, so that no principal's calls delay others'. With several principals, each has at most its share of
//! permits and queue: a running call may last for hours, and is never ended for another. Replicas may divide permits.

mod calls_in_progress;
mod state;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::answer_budget::AnswerShare;
use crate::metric;
use crate::shared_limits::SharedLimits;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use calls_in_progress::CallsInProgress;
pub use calls_in_progress::{CallCounts, CallInProgress, CallProspect, HeldCallEntry};
use state::{CallPermitsState, PermitDivision, PermitWaiter};

/// The resolved limits of one upstream. They apply to `tools/call` only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPermitSettings {
    pub in_flight_max: NonZeroUsize,
    pub queue_max: usize,
}

impl CallPermitSettings {
    fn state(self, division: PermitDivision, limits: SharedLimits) -> CallPermitsState {
        CallPermitsState::new(self.in_flight_max.get(), division, self.queue_max, limits)
    }
}

/// By default one principal's share of the queue holds all its tasks, as a task with a handle waits there.
impl Default for CallPermitSettings {
    fn default() -> Self {
        Self { in_flight_max: const { NonZeroUsize::new(256).unwrap() }, queue_max: 1_536 }
    }
}

/// The permits of one upstream. One principal's calls are served in order of arrival, principals in turn.
#[derive(Debug)]
pub struct CallPermits(Arc<CallPermitsInner>);

#[derive(Debug)]
struct CallPermitsInner {
    state: Mutex<CallPermitsState>,
    in_progress: CallsInProgress,
    /// Looked up once: every call counts in the first of them.
    in_flight: Gauge,
    queued: Gauge,
    shed: Counter,
}

/// The permits of upstreams by name, while in use. Running calls keep counting across a reload.
#[derive(Debug, Default)]
pub struct CallPermitsByName {
    all: Mutex<HashMap<Arc<str>, Weak<CallPermitsInner>>>,
    limits: SharedLimits,
}

impl CallPermitsByName {
    /// No permits yet. With several principals, each has at most the share that `limits` give it.
    pub fn new(limits: SharedLimits) -> Self {
        Self { all: Mutex::default(), limits }
    }

    /// The existing permits with their limits until [`CallPermits::rebound`], else new ones.
    pub fn of(&self, upstream: &Arc<str>, settings: CallPermitSettings) -> CallPermits {
        self.shared(upstream, || CallPermits::new(Arc::clone(upstream), settings, self.limits.clone()))
    }

    /// As [`Self::of`], for permits of something other than calls, which no metric counts.
    pub fn unmetered_of(&self, upstream: &Arc<str>, settings: CallPermitSettings) -> CallPermits {
        self.shared(upstream, || CallPermits::unmetered(settings, self.limits.clone()))
    }

    /// Grants permits to waiting calls, after the number of permits has risen.
    pub fn call_waiting(&self) {
        let all: Vec<_> = self.all.lock().values().filter_map(Weak::upgrade).collect();
        for permits in all.into_iter().map(CallPermits) {
            let called = permits.0.state.lock().call_all();
            permits.hand_out(called);
        }
    }

    pub fn in_progress(&self) -> Vec<(Arc<str>, CallCounts)> {
        let all = self.all.lock();
        let living = all.iter().filter_map(|(name, permits)| Some((Arc::clone(name), permits.upgrade()?)));
        let counted = living.map(|(name, permits)| (name, permits.in_progress.counts()));
        counted.filter(|(_, counts)| *counts != CallCounts::default()).collect()
    }

    /// The held calls, each with its upstream, oldest first.
    pub fn held_calls(&self) -> Vec<(Arc<str>, HeldCallEntry)> {
        let all: Vec<_> =
            self.all.lock().iter().filter_map(|(name, permits)| Some((Arc::clone(name), permits.upgrade()?))).collect();
        let held =
            all.iter().flat_map(|(name, permits)| permits.in_progress.held().into_iter().map(move |call| (name, call)));
        let mut held: Vec<_> = held.map(|(name, call)| (Arc::clone(name), call)).collect();
        held.sort_by_key(|(_, call)| call.began);
        held
    }

    pub fn silence(&self, upstream: &str) -> Option<Duration> {
        let permits = self.all.lock().get(upstream).and_then(Weak::upgrade)?;
        permits.in_progress.silence()
    }

    fn shared(&self, upstream: &Arc<str>, make: impl FnOnce() -> CallPermits) -> CallPermits {
        let mut all = self.all.lock();
        all.retain(|_, permits| permits.strong_count() > 0);
        if let Some(shared) = all.get(upstream).and_then(Weak::upgrade) {
            return CallPermits(shared);
        }
        let permits = make();
        all.insert(Arc::clone(upstream), Arc::downgrade(&permits.0));
        permits
    }
}

impl CallPermits {
    /// The metrics recorder must be installed before.
    pub fn new(upstream: Arc<str>, settings: CallPermitSettings, limits: SharedLimits) -> Self {
        Self(Arc::new(CallPermitsInner {
            state: Mutex::new(settings.state(PermitDivision::Divided, limits)),
            in_progress: CallsInProgress::default(),
            in_flight: metrics::gauge!(metric::UPSTREAM_IN_FLIGHT, "upstream" => Arc::clone(&upstream)),
            queued: metrics::gauge!(metric::UPSTREAM_QUEUED, "upstream" => Arc::clone(&upstream)),
            shed: metrics::counter!(metric::UPSTREAM_SHED, "upstream" => upstream),
        }))
    }

    /// Permits for something other than calls: no metric counts them, and replicas do not divide them.
    pub(crate) fn unmetered(settings: CallPermitSettings, limits: SharedLimits) -> Self {
        Self(Arc::new(CallPermitsInner {
            state: Mutex::new(settings.state(PermitDivision::Own, limits)),
            in_progress: CallsInProgress::default(),
            in_flight: Gauge::noop(),
            queued: Gauge::noop(),
            shed: Counter::noop(),
        }))
    }

    /// Changes the limits. Permits taken beyond a lower limit stay taken; none is granted until enough are free.
    pub fn rebound(&self, settings: CallPermitSettings) {
        let called = {
            let mut state = self.0.state.lock();
            state.rebound(settings.in_flight_max.get(), settings.queue_max);
            state.call_all()
        };
        self.hand_out(called);
    }

    #[must_use]
    pub fn try_acquire(&self, owner: &Principal) -> Option<CallPermit> {
        self.0.state.lock().take(owner).then(|| CallPermit::new(&self.0, owner.clone()))
    }

    /// Takes a permit for a call of `owner`, waiting at most `wait_max`; `None` waits without limit. Cancel safe: a
    /// dropped wait gives its turn to the next. Fails with `QueueFull`, or `QueueDeadline` if the wait was too long.
    pub async fn acquire(&self, owner: &Principal, wait_max: Option<Duration>) -> Result<CallPermit, GatewayFault> {
        self.enter(owner)?.permit(wait_max).await
    }

    /// Takes a permit for a call of `owner` if one is free, else a queue position. Never waits. Fails with `QueueFull`.
    pub fn enter(&self, owner: &Principal) -> Result<PermitTurn, GatewayFault> {
        match self.queue(owner, true) {
            PermitRequest::Taken(turn) => Ok(turn),
            PermitRequest::Full => Err(self.shed(Reason::QueueFull)),
        }
    }

    /// As [`Self::acquire`], for an earlier process's call, or a poll: callers bound these. Cancel safe. `Internal`.
    pub async fn acquire_again(&self, owner: &Principal) -> Result<CallPermit, GatewayFault> {
        match self.queue(owner, false) {
            PermitRequest::Taken(turn) => turn.permit(None).await,
            PermitRequest::Full => Err(self.shed(Reason::QueueFull)),
        }
    }

    fn queue(&self, owner: &Principal, is_bounded: bool) -> PermitRequest {
        let mut state = self.0.state.lock();
        if state.take(owner) {
            drop(state);
            return PermitRequest::Taken(PermitTurn::Called(CallPermit::new(&self.0, owner.clone())));
        }
        if is_bounded && state.has_full_queue(owner) {
            return PermitRequest::Full;
        }
        let (sender, grant) = oneshot::channel();
        let ticket = state.enter(owner, sender);
        self.0.queued.increment(1.0);
        let guard = QueueGuard { shared: Arc::clone(&self.0), owner: owner.clone(), ticket };
        PermitRequest::Taken(PermitTurn::Waits(guard, grant))
    }

    /// Counts a call from its beginning: as held, until its prospect changes.
    pub fn call_begins(&self, tool: Arc<str>, owner: Principal) -> CallInProgress {
        CallInProgress::new(Arc::clone(&self.0), tool, owner)
    }

    pub fn has_calls_begun_by(&self, time: Instant) -> bool {
        self.0.in_progress.has_calls_begun_by(time)
    }

    /// The bytes that responses to `owner` may hold.
    pub(crate) fn answers_to(&self, owner: &Principal) -> AnswerShare {
        self.0.state.lock().principals().answers_to(owner)
    }

    pub(crate) fn held_by(&self, owner: &Principal) -> usize {
        self.0.state.lock().held_by(owner)
    }

    /// Whether `owner` has its whole share of permits, even if others are free.
    pub(crate) fn has_share(&self, owner: &Principal) -> bool {
        self.0.state.lock().has_share(owner)
    }

    /// Not within the lock: an unclaimed permit is dropped here, and is handed out again.
    fn hand_out(&self, called: Vec<(Principal, PermitWaiter)>) {
        for (owner, waiter) in called {
            drop(waiter.grant.send(CallPermit::new(&self.0, owner)));
        }
    }

    /// Counts a call that waited too long, and is not sent; returns its fault.
    pub fn waited_too_long(&self, owner: &Principal) -> GatewayFault {
        self.0.state.lock().note_long_wait(owner);
        self.shed(Reason::QueueDeadline)
    }

    fn shed(&self, reason: Reason) -> GatewayFault {
        self.0.shed.increment(1);
        GatewayFault::new(reason, Executed::No)
    }

    pub fn waiting(&self) -> usize {
        self.0.state.lock().waiting()
    }
}

enum PermitRequest {
    Taken(PermitTurn),
    Full,
}

/// A permit, or a position in the queue for one. Dropping it gives either to the next.
#[derive(Debug)]
pub enum PermitTurn {
    Called(CallPermit),
    Waits(QueueGuard, oneshot::Receiver<CallPermit>),
}

impl PermitTurn {
    /// Waits for the permit at most `wait_max`, then fails with `QueueDeadline`; `None` has no limit. Cancel safe.
    pub async fn permit(self, wait_max: Option<Duration>) -> Result<CallPermit, GatewayFault> {
        let (guard, mut grant) = match self {
            Self::Called(permit) => return Ok(permit),
            Self::Waits(guard, grant) => (guard, grant),
        };
        let called = match wait_max {
            Some(max) => match tokio::time::timeout(max, &mut grant).await {
                Ok(called) => called.ok(),
                Err(_) => {
                    let (permits, owner) = (CallPermits(Arc::clone(&guard.shared)), guard.owner.clone());
                    drop(guard);
                    // A permit may have been granted at the very moment of the timeout.
                    return grant.try_recv().map_err(|_| permits.waited_too_long(&owner));
                }
            },
            None => grant.await.ok(),
        };
        // The sender is kept until a permit is granted, or until this receiver is dropped.
        called.ok_or(GatewayFault::new(Reason::Internal, Executed::No))
    }
}

#[derive(Debug)]
#[must_use]
pub struct QueueGuard {
    shared: Arc<CallPermitsInner>,
    owner: Principal,
    ticket: u64,
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        self.shared.state.lock().leave(&self.owner, self.ticket);
        self.shared.queued.decrement(1.0);
    }
}

#[must_use]
pub struct CallPermit {
    shared: Arc<CallPermitsInner>,
    owner: Principal,
}

impl CallPermit {
    fn new(shared: &Arc<CallPermitsInner>, owner: Principal) -> Self {
        shared.in_flight.increment(1.0);
        Self { shared: Arc::clone(shared), owner }
    }

    pub(crate) const fn owner(&self) -> &Principal {
        &self.owner
    }

    /// Transfers the permit to another principal, even beyond that one's share.
    pub(crate) fn pass_to(&mut self, owner: &Principal) {
        let called = {
            let mut state = self.shared.state.lock();
            state.pass(&self.owner, owner);
            state.call_all()
        };
        self.owner = owner.clone();
        CallPermits(Arc::clone(&self.shared)).hand_out(called);
    }
}

debug_members!(CallPermit);

impl Drop for CallPermit {
    /// Grants the permit to the next waiting call. A call that left meanwhile grants it in turn.
    fn drop(&mut self) {
        self.shared.in_flight.decrement(1.0);
        let called = {
            let mut state = self.shared.state.lock();
            state.give_back(&self.owner);
            state.call_all()
        };
        CallPermits(Arc::clone(&self.shared)).hand_out(called);
    }
}

#[cfg(test)]
mod tests;
