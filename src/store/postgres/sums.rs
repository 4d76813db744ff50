//! Counts the store's contents: exact for this replica, as of the last look for others. Each replica keeps its own
//! deltas per owner; only their sum is a count, and a delta may be negative. Where deltas of several replicas cancel
//! out, each replica reassigns its own to replica 0, where they are removed.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio_postgres::{Error, Row};

use super::columns::count;
use crate::store::tasks::Usage;
use crate::task::Principal;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TaskSums {
    tasks: i64,
    unsettled: i64,
    bytes: i64,
}

impl TaskSums {
    const fn add(&mut self, other: Self) {
        self.tasks = self.tasks.saturating_add(other.tasks);
        self.unsettled = self.unsettled.saturating_add(other.unsettled);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    fn usage(self) -> Usage {
        Usage { tasks: count(self.tasks), unsettled: count(self.unsettled), bytes: count(self.bytes) }
    }

    fn is_zero(self) -> bool {
        self == Self::default()
    }
}

/// Amounts that a write or a row of `tg_usage` adds to an owner's sums.
#[derive(Clone, Debug)]
pub(super) struct SumChange {
    owner: Principal,
    sums: TaskSums,
}

impl SumChange {
    /// Reads a row with the numbers from column `from` on.
    pub(super) fn of(row: &Row, owner: usize, from: usize) -> Result<Self, Error> {
        let sums =
            TaskSums { tasks: row.try_get(from)?, unsettled: row.try_get(from + 1)?, bytes: row.try_get(from + 2)? };
        Ok(Self { owner: Principal::new(&String::from_utf8_lossy(row.try_get(owner)?)), sums })
    }

    pub(super) fn all(rows: &[Row]) -> Result<Vec<Self>, Error> {
        rows.iter().map(|row| Self::of(row, 0, 1)).collect()
    }

    pub(super) fn negated(&self) -> Self {
        let TaskSums { tasks, unsettled, bytes } = self.sums;
        let negated = |value: i64| value.saturating_neg();
        let sums = TaskSums { tasks: negated(tasks), unsettled: negated(unsettled), bytes: negated(bytes) };
        Self { owner: self.owner.clone(), sums }
    }
}

#[derive(Debug, Default)]
struct SumsByOwner {
    all: TaskSums,
    by_owner: HashMap<Principal, TaskSums>,
}

impl SumsByOwner {
    fn add(&mut self, changes: Vec<SumChange>) {
        for SumChange { owner, sums } in changes {
            self.all.add(sums);
            let own = self.by_owner.entry(owner.clone()).or_default();
            own.add(sums);
            if own.is_zero() {
                self.by_owner.remove(&owner);
            }
        }
    }

    fn of(changes: Vec<SumChange>) -> Self {
        let mut sums = Self::default();
        sums.add(changes);
        sums
    }

    fn of_owner(&self, owner: &Principal) -> TaskSums {
        self.by_owner.get(owner).copied().unwrap_or_default()
    }
}

#[derive(Debug, Default)]
pub(super) struct StoreSums(Mutex<(SumsByOwner, SumsByOwner)>);

impl StoreSums {
    pub(super) fn add(&self, changes: Vec<SumChange>) {
        self.0.lock().0.add(changes);
    }

    pub(super) fn take_over(&self, changes: Vec<SumChange>) {
        let mut sums = self.0.lock();
        let taken = changes.iter().map(SumChange::negated).collect();
        sums.1.add(taken);
        sums.0.add(changes);
    }

    pub(super) fn reset_own(&self, sums: Vec<SumChange>) {
        self.0.lock().0 = SumsByOwner::of(sums);
    }

    pub(super) fn reset_others(&self, sums: Vec<SumChange>) {
        let others = SumsByOwner::of(sums);
        self.0.lock().1 = others;
    }

    /// Owners with sums of this replica that cancel out across all replicas: at most `limit`, in order.
    pub(super) fn even(&self, limit: usize) -> Vec<Principal> {
        let sums = self.0.lock();
        let is_even = |(owner, own): &(&Principal, &TaskSums)| {
            let mut total = sums.1.of_owner(owner);
            total.add(**own);
            total.is_zero()
        };
        let mut even: Vec<_> =
            sums.0.by_owner.iter().filter(is_even).map(|(owner, _)| owner.clone()).take(limit).collect();
        even.sort_unstable();
        even
    }

    pub(super) fn usage(&self) -> Usage {
        let sums = self.0.lock();
        let mut total = sums.0.all;
        total.add(sums.1.all);
        total.usage()
    }

    pub(super) fn usage_of(&self, owner: &Principal) -> Usage {
        let sums = self.0.lock();
        let mut total = sums.0.of_owner(owner);
        total.add(sums.1.of_owner(owner));
        total.usage()
    }
}
