//! Counts what the store holds: this life's own lines exactly, those of the others as they were at the last look.
//!
//! A line says what one life added and took away, so it may be negative; only the sum of all lines is a count. Where one life makes
//! the tasks of an owner and another one removes them, their lines come to nothing together. Then each makes its own nobody's, where
//! they meet, and go.

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

/// What a write, or a line, adds to an owner's sums.
#[derive(Clone, Debug)]
pub(super) struct SumChange {
    owner: Principal,
    line: TaskSums,
}

impl SumChange {
    /// Of a row that has the owner at one place, and the numbers from another one on.
    pub(super) fn of(row: &Row, owner: usize, from: usize) -> Result<Self, Error> {
        let line =
            TaskSums { tasks: row.try_get(from)?, unsettled: row.try_get(from + 1)?, bytes: row.try_get(from + 2)? };
        Ok(Self { owner: Principal::new(&String::from_utf8_lossy(row.try_get(owner)?)), line })
    }

    /// Of rows that have nothing else.
    pub(super) fn all(rows: &[Row]) -> Result<Vec<Self>, Error> {
        rows.iter().map(|row| Self::of(row, 0, 1)).collect()
    }

    pub(super) fn negated(&self) -> Self {
        let TaskSums { tasks, unsettled, bytes } = self.line;
        let negated = |value: i64| value.saturating_neg();
        let line = TaskSums { tasks: negated(tasks), unsettled: negated(unsettled), bytes: negated(bytes) };
        Self { owner: self.owner.clone(), line }
    }
}

#[derive(Debug, Default)]
struct LinesByOwner {
    all: TaskSums,
    by_owner: HashMap<Principal, TaskSums>,
}

impl LinesByOwner {
    fn add(&mut self, changes: Vec<SumChange>) {
        for SumChange { owner, line } in changes {
            self.all.add(line);
            let own = self.by_owner.entry(owner.clone()).or_default();
            own.add(line);
            if own.is_zero() {
                self.by_owner.remove(&owner);
            }
        }
    }

    fn of(changes: Vec<SumChange>) -> Self {
        let mut lines = Self::default();
        lines.add(changes);
        lines
    }

    fn line(&self, owner: &Principal) -> TaskSums {
        self.by_owner.get(owner).copied().unwrap_or_default()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct StoreSums(Mutex<(LinesByOwner, LinesByOwner)>);

impl StoreSums {
    /// After a commit of this life's.
    pub(super) fn add(&self, changes: Vec<SumChange>) {
        self.0.lock().0.add(changes);
    }

    /// What the others' lines said is said by this life's from now on.
    pub(super) fn take_over(&self, changes: Vec<SumChange>) {
        let mut sums = self.0.lock();
        let taken = changes.iter().map(SumChange::negated).collect();
        sums.1.add(taken);
        sums.0.add(changes);
    }

    /// Begins anew with this life's lines as they stand in the store.
    pub(super) fn reset_own(&self, lines: Vec<SumChange>) {
        self.0.lock().0 = LinesByOwner::of(lines);
    }

    /// What the others' lines were at a look.
    pub(super) fn reset_others(&self, lines: Vec<SumChange>) {
        let lines = LinesByOwner::of(lines);
        self.0.lock().1 = lines;
    }

    /// Owners of whom this life has sums, and all together have none; at most `limit`, in order.
    pub(super) fn even(&self, limit: usize) -> Vec<Principal> {
        let sums = self.0.lock();
        let is_even = |(owner, own): &(&Principal, &TaskSums)| {
            let mut line = sums.1.line(owner);
            line.add(**own);
            line.is_zero()
        };
        let mut even: Vec<_> =
            sums.0.by_owner.iter().filter(is_even).map(|(owner, _)| owner.clone()).take(limit).collect();
        even.sort_unstable();
        even
    }

    pub(super) fn usage(&self) -> Usage {
        let sums = self.0.lock();
        let mut line = sums.0.all;
        line.add(sums.1.all);
        line.usage()
    }

    pub(super) fn usage_of(&self, owner: &Principal) -> Usage {
        let sums = self.0.lock();
        let mut line = sums.0.line(owner);
        line.add(sums.1.line(owner));
        line.usage()
    }
}
