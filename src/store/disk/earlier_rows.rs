//! Knows which rows earlier processes left that nobody has taken over yet.
//!
//! One process has the store open at a time, so a row's holder need not be written down: it is this process, or one that has
//! ended.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::replica::Incarnation;
use crate::store::tasks::StoredTask;
use crate::task::TaskKey;

/// Any process before this one.
const EARLIER: Incarnation = Incarnation(0);
/// This process.
pub(super) const OWN: Incarnation = Incarnation(1);

#[derive(Debug)]
pub(super) struct EarlierRows {
    /// Whether this process has begun to take them over: all of them at once, so that no subtask is without its parent.
    is_claimed: AtomicBool,
    left: Mutex<BTreeSet<TaskKey>>,
}

impl EarlierRows {
    /// Of rows that somebody has to do something about.
    pub(super) const fn new(left: BTreeSet<TaskKey>) -> Self {
        Self { is_claimed: AtomicBool::new(false), left: Mutex::new(left) }
    }

    /// Whether an earlier process holds a row still.
    pub(super) fn holds(&self, key: &TaskKey) -> bool {
        !self.is_claimed.load(Ordering::SeqCst) && self.is_left(key)
    }

    /// Whether a row waits to be taken over.
    pub(super) fn is_left(&self, key: &TaskKey) -> bool {
        self.left.lock().contains(key)
    }

    /// A row with its holder.
    pub(super) fn named(&self, mut row: StoredTask) -> StoredTask {
        if row.holder.is_some() && self.holds(&row.task.key) {
            row.holder = Some(EARLIER);
        }
        row
    }

    /// The next of them, for this process; each once. Whether one is still there is to be seen.
    pub(super) fn take(&self) -> Option<TaskKey> {
        let next = self.left.lock().pop_first();
        self.is_claimed.store(true, Ordering::SeqCst);
        next
    }
}
