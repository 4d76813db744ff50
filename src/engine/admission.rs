//! Grants permits for unsettled tasks. A call has one before it is sent, since `auto` can become a task, and until that
//! settles; it counts from the permit, not from the row. A principal's limit is checked first (GW-40).

use std::num::NonZeroUsize;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::metric;
use crate::shared_limits::SharedLimits;
use crate::task::{Principal, PrincipalCounts, Reason};

/// Unsettled rows of a shared store, including the rows of this replica, which hold permits here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnsettledRows {
    pub(super) all: usize,
    pub(super) of_owner: usize,
}

/// Counts the permits taken, including those for hidden tasks and reservations.
#[derive(Debug)]
pub struct TaskAdmission {
    taken: Mutex<AdmissionState>,
    principals: SharedLimits,
}

#[derive(Debug, Default)]
struct AdmissionState {
    tasks_max: usize,
    closed: bool,
    counts: PrincipalCounts,
    /// The part of `counts` that has a row in the store, or is about to get one.
    stored: PrincipalCounts,
}

impl AdmissionState {
    /// Permits taken, plus unsettled rows of other replicas. The store does not count a permit without a row.
    fn used(&self, stored: UnsettledRows) -> usize {
        self.counts.all().max(stored.all + self.counts.all().saturating_sub(self.stored.all()))
    }

    fn used_by(&self, owner: &Principal, stored: UnsettledRows) -> usize {
        let taken = self.counts.of(owner);
        taken.max(stored.of_owner + taken.saturating_sub(self.stored.of(owner)))
    }
}

impl TaskAdmission {
    pub fn new(tasks_max: usize, principals: SharedLimits) -> Self {
        let taken = AdmissionState { tasks_max, closed: false, ..AdmissionState::default() };
        Self { taken: Mutex::new(taken), principals }
    }

    /// The known rows of other replicas count, too. Fails with `TooManyTasks` or `Draining`.
    pub(super) fn take_beside(
        self: &Arc<Self>,
        owner: &Principal,
        number: NonZeroUsize,
        stored: UnsettledRows,
    ) -> Result<TaskPermit, Reason> {
        // A drain that begins after this check waits for the call.
        if self.taken.lock().closed { Err(Reason::Draining) } else { self.take_within(owner, number, stored) }
    }

    /// Like `take_beside`, for a call in progress, which may need permits during a drain. Fails with `TooManyTasks`.
    pub(super) fn take_within(
        self: &Arc<Self>,
        owner: &Principal,
        number: NonZeroUsize,
        stored: UnsettledRows,
    ) -> Result<TaskPermit, Reason> {
        let own_max = self.principals.of(owner).tasks_max;
        let mut taken = self.taken.lock();
        if taken.used_by(owner, stored) + number.get() > own_max || taken.used(stored) + number.get() > taken.tasks_max
        {
            return Err(Reason::TooManyTasks);
        }
        taken.counts.add_many(owner, number);
        Ok(TaskPermit { admission: Arc::clone(self), owner: owner.clone(), number, is_stored: false })
    }

    /// Takes a permit for a task of an earlier process, which exists even above today's limits.
    pub fn take_again(self: &Arc<Self>, owner: &Principal) -> TaskPermit {
        let mut taken = self.taken.lock();
        taken.counts.add(owner);
        taken.stored.add(owner);
        drop(taken);
        TaskPermit { admission: Arc::clone(self), owner: owner.clone(), number: NonZeroUsize::MIN, is_stored: true }
    }

    /// Whether a principal's stored bytes may change from `before` to `after`; a decrease always may.
    pub(super) fn has_room(&self, owner: &Principal, before: usize, after: usize) -> bool {
        let own_max = self.principals.of(owner).stored_bytes_max;
        let fits = after <= before || after <= own_max;
        if !fits {
            metrics::counter!(metric::QUOTA_REFUSED, "limit" => "principal_bytes").increment(1);
            self.principals.refused(owner, "stored_bytes_per_principal_max", &own_max);
        }
        fits
    }

    /// The reason to refuse a call without permits. Counts it and logs a principal at its limit, unlike a plain call's.
    pub(super) fn refuse(&self, owner: &Principal, number: NonZeroUsize, stored: UnsettledRows) -> Reason {
        let own_max = self.principals.of(owner).tasks_max;
        let taken = self.taken.lock();
        if taken.closed {
            return Reason::Draining;
        }
        let is_own = taken.used_by(owner, stored) + number.get() > own_max;
        drop(taken);
        metrics::counter!(metric::QUOTA_REFUSED, "limit" => if is_own { "principal" } else { "all" }).increment(1);
        if is_own {
            self.principals.refused(owner, "tasks_per_principal_max", &own_max);
        }
        Reason::TooManyTasks
    }

    pub fn set_tasks_max(&self, tasks_max: usize) {
        self.taken.lock().tasks_max = tasks_max;
    }

    pub fn close(&self) {
        self.taken.lock().closed = true;
    }

    pub fn taken(&self) -> usize {
        self.taken.lock().counts.all()
    }

    /// Permits taken by one principal here, plus its unsettled tasks in other replicas.
    pub(super) fn used_by(&self, owner: &Principal, stored: UnsettledRows) -> usize {
        self.taken.lock().used_by(owner, stored)
    }
}

/// Permits for unsettled tasks; released when dropped.
#[derive(Debug)]
#[must_use]
pub struct TaskPermit {
    admission: Arc<TaskAdmission>,
    owner: Principal,
    number: NonZeroUsize,
    is_stored: bool,
}

impl TaskPermit {
    /// Marks that its rows are about to be added to the store, which counts them from then on.
    pub(super) fn begin_storing(&mut self) {
        if !std::mem::replace(&mut self.is_stored, true) {
            self.admission.taken.lock().stored.add_many(&self.owner, self.number);
        }
    }

    /// Splits off one permit for a subtask; `None` where only one is left.
    pub fn take_one(&mut self) -> Option<Self> {
        self.number = NonZeroUsize::new(self.number.get() - 1)?;
        let (admission, owner) = (Arc::clone(&self.admission), self.owner.clone());
        Some(Self { admission, owner, number: NonZeroUsize::MIN, is_stored: self.is_stored })
    }
}

impl Drop for TaskPermit {
    fn drop(&mut self) {
        let mut taken = self.admission.taken.lock();
        taken.counts.remove_many(&self.owner, self.number);
        if self.is_stored {
            taken.stored.remove_many(&self.owner, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{PrincipalLimitTable, PrincipalLimits};

    impl TaskAdmission {
        fn take(self: &Arc<Self>, owner: &Principal) -> Result<TaskPermit, Reason> {
            self.take_many(owner, NonZeroUsize::MIN)
        }

        fn take_many(self: &Arc<Self>, owner: &Principal, number: NonZeroUsize) -> Result<TaskPermit, Reason> {
            self.take_beside(owner, number, UnsettledRows::default())
        }
    }

    fn of_each(tasks_max: usize) -> Arc<PrincipalLimitTable> {
        let others = PrincipalLimits { tasks_max, stored_bytes_max: 100, ..PrincipalLimits::default() };
        Arc::new(PrincipalLimitTable { others, ..PrincipalLimitTable::default() })
    }

    fn admission(tasks_max: usize, of_each_max: usize) -> Arc<TaskAdmission> {
        Arc::new(TaskAdmission::new(tasks_max, SharedLimits::new(of_each(of_each_max))))
    }

    #[test]
    fn a_principal_meets_its_own_bound_before_that_of_all() {
        let admission = admission(3, 2);
        let (a, b) = (Principal::new("a"), Principal::new("b"));
        let first = admission.take(&a).unwrap();
        let _second = admission.take(&a).unwrap();
        assert_eq!(admission.take(&a).unwrap_err(), Reason::TooManyTasks);
        let _third = admission.take(&b).unwrap();
        assert_eq!(admission.take(&b).unwrap_err(), Reason::TooManyTasks);
        drop(first);
        let _again = admission.take(&b).unwrap();
        assert_eq!(admission.taken(), 3);
    }

    #[test]
    fn places_for_a_tree_are_taken_together_and_given_back_one_by_one() {
        let admission = admission(10, 4);
        let owner = Principal::local();
        let number = |number| NonZeroUsize::new(number).unwrap();
        assert_eq!(admission.take_many(&owner, number(5)).unwrap_err(), Reason::TooManyTasks);
        let mut tree = admission.take_many(&owner, number(3)).unwrap();
        let children: Vec<_> = std::iter::from_fn(|| tree.take_one()).collect();
        assert_eq!((children.len(), admission.taken()), (2, 3));
        drop(children);
        assert_eq!(admission.taken(), 1);
        drop(tree);
        assert!(admission.taken.lock().counts.is_empty());
    }

    /// T5: a permit without a row counts in addition to the rows of all replicas; a permit with a row is among them.
    #[test]
    fn places_without_a_row_count_beside_the_rows_of_all_gateways() {
        let owner = Principal::local();
        for (places, stored_here, stored_elsewhere, fits) in [
            (3, 3, 6, true),
            (3, 3, 7, false),
            (3, 0, 6, true),
            (3, 0, 7, false),
            (5, 2, 4, true),
            (5, 2, 5, false),
            (10, 10, 0, false),
        ] {
            let admission = admission(10, 10);
            let mut taken: Vec<_> = (0..places).map(|_| admission.take(&owner).unwrap()).collect();
            taken.iter_mut().take(stored_here).for_each(TaskPermit::begin_storing);
            let rows = stored_here + stored_elsewhere;
            let rows = UnsettledRows { all: rows, of_owner: rows };
            let next = admission.take_beside(&owner, NonZeroUsize::MIN, rows);
            assert_eq!(next.is_ok(), fits, "{places} places, {stored_here} and {stored_elsewhere} rows");
            drop((taken, next));
            assert!(admission.taken.lock().stored.is_empty());
        }
    }

    #[test]
    fn places_given_back_leave_nothing_behind() {
        let admission = admission(10, 10);
        drop((0..10).map(|_| admission.take(&Principal::local()).unwrap()).collect::<Vec<_>>());
        assert_eq!(admission.taken(), 0);
        assert!(admission.taken.lock().counts.is_empty());
    }

    #[test]
    fn other_bounds_hold_from_the_next_place_on() {
        let admission = admission(2, 2);
        let owner = Principal::local();
        let bound = |tasks_max| {
            admission.principals.replace(of_each(tasks_max));
            admission.set_tasks_max(tasks_max);
        };
        let _two = [admission.take(&owner).unwrap(), admission.take(&owner).unwrap()];
        bound(3);
        let third = admission.take(&owner).unwrap();
        bound(1);
        drop(third);
        assert_eq!((admission.take(&owner).unwrap_err(), admission.taken()), (Reason::TooManyTasks, 2));
    }

    #[test]
    fn a_principals_bytes_may_shrink_and_grow_to_its_bound() {
        let admission = admission(1, 1);
        for (before, after, fits) in
            [(0, 100, true), (0, 101, false), (200, 200, true), (200, 201, false), (200, 150, true)]
        {
            assert_eq!(admission.has_room(&Principal::local(), before, after), fits, "{before} to {after}");
        }
    }

    #[test]
    fn a_closed_admission_gives_out_no_place() {
        let admission = admission(10, 10);
        admission.close();
        assert_eq!(admission.take(&Principal::local()).unwrap_err(), Reason::Draining);
    }
}
