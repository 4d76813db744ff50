//! Keeps the rows that may or may not have been stored: their commit failed, and the log may have them all the same.
//!
//! Whoever asked for such a row was refused, or told that nobody knows. So it is shown to nobody, and it is removed by
//! the first transaction after the file was opened anew. Only a process that ends before that transaction leaves one
//! behind, which is why nobody is told that a row is not there before it was made.

use std::collections::{BTreeSet, VecDeque};

use parking_lot::Mutex;

use super::resident::RowChange;
use crate::task::TaskKey;

/// Removed rows that are still hidden from readers that read them before.
const REMOVED_MAX: usize = 1_024;

/// At most the rows of one transaction are open at a time: the next one begins with their removal.
#[derive(Debug, Default)]
pub(super) struct DoubtfulRows(Mutex<DoubtfulRowsState>);

#[derive(Debug, Default)]
struct DoubtfulRowsState {
    open: BTreeSet<TaskKey>,
    removed: VecDeque<TaskKey>,
}

impl DoubtfulRows {
    /// Before a commit: from here on it is not known of these changes' new rows whether they are there. Returns them.
    pub(super) fn begin(&self, changes: &[RowChange]) -> Vec<TaskKey> {
        let is_new = |change: &&RowChange| change.before.is_none() && change.after.is_some();
        let keys: Vec<TaskKey> = changes.iter().filter(is_new).map(|change| change.key.clone()).collect();
        self.0.lock().open.extend(keys.iter().cloned());
        keys
    }

    /// After a commit that was made.
    pub(super) fn made(&self, keys: &[TaskKey]) {
        let mut rows = self.0.lock();
        for key in keys {
            rows.open.remove(key);
            if !rows.removed.is_empty() {
                rows.removed.retain(|removed| removed != key);
            }
        }
    }

    /// What is to be removed before anything else is written.
    pub(super) fn open(&self) -> Vec<TaskKey> {
        self.0.lock().open.iter().cloned().collect()
    }

    pub(super) fn is_open(&self, key: &TaskKey) -> bool {
        self.0.lock().open.contains(key)
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.lock().open.is_empty()
    }

    /// After the commit that removed what was open.
    pub(super) fn removed(&self) {
        let mut rows = self.0.lock();
        let open = std::mem::take(&mut rows.open);
        rows.removed.extend(open);
        let more = rows.removed.len().saturating_sub(REMOVED_MAX);
        rows.removed.drain(..more);
    }

    /// Whether a row that a reader found is to be taken for one that is not there.
    pub(super) fn hides(&self, key: &TaskKey) -> bool {
        let rows = self.0.lock();
        rows.open.contains(key) || rows.removed.contains(key)
    }
}
