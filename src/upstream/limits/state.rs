//! Decides which calls get permits and which wait. Sans-IO.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use tokio::sync::oneshot;

use super::CallPermit;
use crate::shared_limits::SharedLimits;
use crate::task::{Principal, PrincipalCounts};

/// Invariant: while a permit is free, each waiting principal has its full share.
#[derive(Debug)]
pub(super) struct CallPermitsState {
    in_all: usize,
    division: PermitDivision,
    queue_max: usize,
    limits: SharedLimits,
    held: PrincipalCounts,
    waiting: usize,
    /// Numbers the waiting calls, to find them again; within a lane it rises.
    next_ticket: u64,
    /// The waiting calls of each principal, in order of arrival. No lane is empty.
    lanes: HashMap<Principal, VecDeque<PermitWaiter>>,
    /// Each lane once, the next one to be served first.
    turns: VecDeque<Principal>,
}

/// How permits are divided among replicas with the same server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermitDivision {
    Divided,
    Own,
}

#[derive(Debug)]
pub(super) struct PermitWaiter {
    ticket: u64,
    pub(super) grant: oneshot::Sender<CallPermit>,
}

impl CallPermitsState {
    pub(super) fn new(in_all: usize, division: PermitDivision, queue_max: usize, limits: SharedLimits) -> Self {
        Self {
            in_all,
            division,
            queue_max,
            limits,
            held: PrincipalCounts::default(),
            waiting: 0,
            next_ticket: 0,
            lanes: HashMap::new(),
            turns: VecDeque::new(),
        }
    }

    pub(super) const fn rebound(&mut self, in_all: usize, queue_max: usize) {
        (self.in_all, self.queue_max) = (in_all, queue_max);
    }

    /// The number of permits here: rounded up, so at least one.
    fn max(&self) -> usize {
        match self.division {
            PermitDivision::Divided => self.in_all.div_ceil(self.limits.gateways().get()),
            PermitDivision::Own => self.in_all,
        }
    }

    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) const fn principals(&self) -> &SharedLimits {
        &self.limits
    }

    pub(super) fn held_by(&self, owner: &Principal) -> usize {
        self.held.of(owner)
    }

    pub(super) fn has_share(&self, owner: &Principal) -> bool {
        self.held_by(owner) >= self.limits.share_of(owner, self.max())
    }

    /// Whether no further call of this owner may wait. Logs the bound: the owner's share of the queue, or the queue.
    pub(super) fn has_full_queue(&self, owner: &Principal) -> bool {
        let of_owner = self.lanes.get(owner).map_or(0, VecDeque::len);
        let share = self.limits.share_of(owner, self.queue_max);
        let (is_own, is_full) = (of_owner >= share && self.queue_max > 0, self.waiting >= self.queue_max);
        if is_own {
            self.limits.refused(owner, "permits_percent_max", &share);
        } else if is_full && self.division == PermitDivision::Divided {
            self.limits.refused(owner, "queue_max", &self.queue_max);
        }
        is_own || is_full
    }

    /// Logs a call that waited too long: longer than its deadline, in a queue of so many.
    pub(super) fn note_long_wait(&self, owner: &Principal) {
        if self.division == PermitDivision::Divided {
            self.limits.refused(owner, "queue_deadline", &format_args!("in_flight_max = {}", self.in_all));
        }
    }

    pub(super) fn take(&mut self, owner: &Principal) -> bool {
        let max = self.max();
        self.held.all() < max && self.held.add_below(owner, self.limits.share_of(owner, max))
    }

    pub(super) fn give_back(&mut self, owner: &Principal) {
        self.held.remove(owner);
    }

    pub(super) fn pass(&mut self, from: &Principal, to: &Principal) {
        self.give_back(from);
        self.held.add(to);
    }

    pub(super) fn enter(&mut self, owner: &Principal, grant: oneshot::Sender<CallPermit>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting += 1;
        let lane = self.lanes.entry(owner.clone()).or_insert_with(|| {
            self.turns.push_back(owner.clone());
            VecDeque::new()
        });
        lane.push_back(PermitWaiter { ticket, grant });
        ticket
    }

    /// The calls to serve now, each with a permit taken for it.
    pub(super) fn call_all(&mut self) -> Vec<(Principal, PermitWaiter)> {
        std::iter::from_fn(|| self.call_next()).collect()
    }

    /// The next call to serve; its principal goes to the end. A principal with a full share keeps its turn.
    fn call_next(&mut self) -> Option<(Principal, PermitWaiter)> {
        if self.held.all() >= self.max() {
            return None;
        }
        let at = self.turns.iter().position(|owner| !self.has_share(owner))?;
        let owner = self.turns.remove(at)?;
        let Entry::Occupied(mut lane) = self.lanes.entry(owner.clone()) else { return None };
        let waiter = lane.get_mut().pop_front();
        if lane.get().is_empty() {
            lane.remove();
        } else {
            self.turns.push_back(owner.clone());
        }
        let waiter = waiter?;
        self.waiting -= 1;
        self.held.add(&owner);
        Some((owner, waiter))
    }

    /// Removes a waiting call that was dropped, if it was not served.
    pub(super) fn leave(&mut self, owner: &Principal, ticket: u64) {
        let Entry::Occupied(mut lane) = self.lanes.entry(owner.clone()) else { return };
        let Ok(at) = lane.get().binary_search_by_key(&ticket, |waiter| waiter.ticket) else { return };
        drop(lane.get_mut().remove(at));
        self.waiting -= 1;
        if lane.get().is_empty() {
            lane.remove();
            self.turns.retain(|other| other != owner);
        }
    }

    #[cfg(test)]
    pub(super) fn is_bare(&self) -> bool {
        self.lanes.is_empty() && self.turns.is_empty()
    }
}
