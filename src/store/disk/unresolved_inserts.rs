//! Tracks rows with an unknown insert: their commit failed, but the log may contain them.
//!
//! The caller got an error. So the row is invisible, and the first transaction after the file is reopened removes it.
//! Only a process that ends before that leaves such a row behind.

use std::collections::{BTreeSet, VecDeque};

use parking_lot::Mutex;

use super::resident::RowChange;
use crate::task::TaskKey;

const REMOVED_MAX: usize = 1_024;

/// Of at most one transaction: the next one starts by removing them.
#[derive(Debug, Default)]
pub(super) struct UnresolvedInserts(Mutex<UnresolvedInsertsState>);

#[derive(Debug, Default)]
struct UnresolvedInsertsState {
    open: BTreeSet<TaskKey>,
    removed: VecDeque<TaskKey>,
}

impl UnresolvedInserts {
    /// Returns the new rows.
    pub(super) fn begin(&self, changes: &[RowChange]) -> Vec<TaskKey> {
        let is_new = |change: &&RowChange| change.before.is_none() && change.after.is_some();
        let keys: Vec<TaskKey> = changes.iter().filter(is_new).map(|change| change.key.clone()).collect();
        self.0.lock().open.extend(keys.iter().cloned());
        keys
    }

    pub(super) fn made(&self, keys: &[TaskKey]) {
        let mut rows = self.0.lock();
        for key in keys {
            rows.open.remove(key);
            if !rows.removed.is_empty() {
                rows.removed.retain(|removed| removed != key);
            }
        }
    }

    pub(super) fn open(&self) -> Vec<TaskKey> {
        self.0.lock().open.iter().cloned().collect()
    }

    pub(super) fn is_open(&self, key: &TaskKey) -> bool {
        self.0.lock().open.contains(key)
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.lock().open.is_empty()
    }

    pub(super) fn removed(&self) {
        let mut rows = self.0.lock();
        let open = std::mem::take(&mut rows.open);
        rows.removed.extend(open);
        let more = rows.removed.len().saturating_sub(REMOVED_MAX);
        rows.removed.drain(..more);
    }

    pub(super) fn hides(&self, key: &TaskKey) -> bool {
        let rows = self.0.lock();
        rows.open.contains(key) || rows.removed.contains(key)
    }
}
