//! Tracks unclaimed rows that earlier processes left.
//!
//! Only one process has the store open, so rows need not store their holder: it is this process or an ended one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::replica::Incarnation;
use crate::store::tasks::StoredTask;
use crate::task::TaskKey;

const EARLIER: Incarnation = Incarnation(0);
pub(super) const OWN: Incarnation = Incarnation(1);

#[derive(Debug)]
pub(super) struct EarlierRows {
    /// All at once, so that no subtask is without its parent.
    is_claimed: AtomicBool,
    left: Mutex<BTreeSet<TaskKey>>,
}

impl EarlierRows {
    pub(super) const fn new(left: BTreeSet<TaskKey>) -> Self {
        Self { is_claimed: AtomicBool::new(false), left: Mutex::new(left) }
    }

    pub(super) fn holds(&self, key: &TaskKey) -> bool {
        !self.is_claimed.load(Ordering::SeqCst) && self.is_left(key)
    }

    pub(super) fn is_left(&self, key: &TaskKey) -> bool {
        self.left.lock().contains(key)
    }

    pub(super) fn named(&self, mut row: StoredTask) -> StoredTask {
        if row.holder.is_some() && self.holds(&row.task.key) {
            row.holder = Some(EARLIER);
        }
        row
    }

    /// Each is returned once. The row may be gone by now.
    pub(super) fn take(&self) -> Option<TaskKey> {
        let next = self.left.lock().pop_first();
        self.is_claimed.store(true, Ordering::SeqCst);
        next
    }
}
