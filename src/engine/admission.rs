//! Who may have another unsettled task: counted when a place is taken, not when a row is written.
//!
//! A place is held from before the upstream is called until the task settles, so `auto` can be sure of
//! its promotion. The principal's own bound is asked before the one of all (reliability.md d.7).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::task::{Principal, Reason};

/// Bounds on unsettled tasks, hidden ones and reserved places included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    pub tasks_max: usize,
    pub tasks_per_principal_max: usize,
}

/// The count of places taken.
#[derive(Debug)]
pub struct Admission {
    limits: AdmissionLimits,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    closed: bool,
    all: usize,
    by_owner: HashMap<Principal, usize>,
}

impl Admission {
    #[must_use]
    pub fn new(limits: AdmissionLimits) -> Self {
        Self { limits, taken: Mutex::default() }
    }

    /// Takes a place.
    ///
    /// # Errors
    /// `TooManyTasks` or `Draining`.
    pub fn take(self: &Arc<Self>, owner: &Principal) -> Result<Place, Reason> {
        let mut taken = self.taken.lock();
        if taken.closed {
            return Err(Reason::Draining);
        }
        let own = taken.by_owner.get(owner).copied().unwrap_or(0);
        if own >= self.limits.tasks_per_principal_max || taken.all >= self.limits.tasks_max {
            return Err(Reason::TooManyTasks);
        }
        taken.all += 1;
        taken.by_owner.insert(owner.clone(), own + 1);
        Ok(Place { admission: Arc::clone(self), owner: owner.clone() })
    }

    /// Why a place was refused a moment ago.
    #[must_use]
    pub fn refusal(&self) -> Reason {
        if self.taken.lock().closed { Reason::Draining } else { Reason::TooManyTasks }
    }

    /// Gives out no more places.
    pub fn close(&self) {
        self.taken.lock().closed = true;
    }

    /// Places taken, in all.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.lock().all
    }
}

/// A place for one unsettled task; given back when dropped.
#[derive(Debug)]
pub struct Place {
    admission: Arc<Admission>,
    owner: Principal,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.admission.taken.lock();
        taken.all -= 1;
        if let Entry::Occupied(mut own) = taken.by_owner.entry(self.owner.clone()) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(tasks_max: usize, tasks_per_principal_max: usize) -> Arc<Admission> {
        Arc::new(Admission::new(AdmissionLimits { tasks_max, tasks_per_principal_max }))
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
    fn places_given_back_leave_nothing_behind() {
        let admission = admission(10, 10);
        drop((0..10).map(|_| admission.take(&Principal::local()).unwrap()).collect::<Vec<_>>());
        assert_eq!(admission.taken(), 0);
        assert!(admission.taken.lock().by_owner.is_empty());
    }

    #[test]
    fn a_closed_admission_gives_out_no_place() {
        let admission = admission(10, 10);
        admission.close();
        assert_eq!(admission.take(&Principal::local()).unwrap_err(), Reason::Draining);
    }
}
