//! Counts the calls that are in progress at an upstream, by what becomes of them if the gateway ends now.
//!
//! A call is counted from its beginning, whether it has a permit yet or not, until nobody goes on with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::CallPermitsInner;

/// What becomes of a call if the gateway ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallProspect {
    /// Its client waits for the answer, which nobody can bring any more.
    Held,
    /// It is a task that the next process cannot go on with.
    Lost,
    /// It is a task that the next process sends again.
    Repeated,
    /// It is a task that the next process goes on with.
    Resumed,
}

/// How many there are of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    pub held: usize,
    pub lost: usize,
    pub repeated: usize,
    pub resumed: usize,
}

#[derive(Debug, Default)]
pub(super) struct CallsInProgress([AtomicUsize; 4]);

impl CallsInProgress {
    pub(super) fn counts(&self) -> CallCounts {
        let of = |prospect| self.of(prospect).load(Ordering::Relaxed);
        CallCounts {
            held: of(CallProspect::Held),
            lost: of(CallProspect::Lost),
            repeated: of(CallProspect::Repeated),
            resumed: of(CallProspect::Resumed),
        }
    }

    const fn of(&self, prospect: CallProspect) -> &AtomicUsize {
        let [held, lost, repeated, resumed] = &self.0;
        match prospect {
            CallProspect::Held => held,
            CallProspect::Lost => lost,
            CallProspect::Repeated => repeated,
            CallProspect::Resumed => resumed,
        }
    }
}

/// One call in progress; counted until it is dropped.
#[must_use = "dropping it ends the count"]
#[derive(Debug)]
pub struct CallInProgress {
    shared: Arc<CallPermitsInner>,
    prospect: CallProspect,
}

impl CallInProgress {
    pub(super) fn new(shared: Arc<CallPermitsInner>) -> Self {
        let prospect = CallProspect::Held;
        shared.in_progress.of(prospect).fetch_add(1, Ordering::Relaxed);
        Self { shared, prospect }
    }

    /// Counts it anew where its prospect has changed.
    pub fn now(&mut self, prospect: CallProspect) {
        if prospect != self.prospect {
            let all = &self.shared.in_progress;
            all.of(self.prospect).fetch_sub(1, Ordering::Relaxed);
            all.of(prospect).fetch_add(1, Ordering::Relaxed);
            self.prospect = prospect;
        }
    }
}

impl Drop for CallInProgress {
    fn drop(&mut self) {
        self.shared.in_progress.of(self.prospect).fetch_sub(1, Ordering::Relaxed);
    }
}
