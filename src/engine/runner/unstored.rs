//! Logs that tasks cannot be stored: for a full store once, until it has taken one again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::cause::CauseChain;
use crate::store::StoreError;

/// Whether the log says already that the store is full.
#[derive(Debug, Default)]
pub(in crate::engine) struct UnstoredTaskLog {
    is_told: AtomicBool,
}

impl UnstoredTaskLog {
    /// The store took a task.
    pub(super) fn stored(&self) {
        // Nearly always it was not told, and a look costs less than a write.
        if self.is_told.load(Ordering::Relaxed) {
            self.is_told.store(false, Ordering::Relaxed);
        }
    }

    /// The store did not take one. That somebody's own share is full is counted, and said to whoever called.
    pub(super) fn refused(&self, error: &StoreError) {
        let is_news = match error {
            StoreError::Full { .. } => !self.is_told.swap(true, Ordering::Relaxed),
            StoreError::OwnerFull => false,
            StoreError::Conflict
            | StoreError::Fenced
            | StoreError::Exists
            | StoreError::Io(_)
            | StoreError::Unsure(_) => true,
        };
        if is_news {
            tracing::warn!(error = %CauseChain(error), "a task could not be stored");
        } else {
            tracing::debug!(error = %CauseChain(error), "a task could not be stored");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_store_is_told_once_until_it_takes_a_task_again() {
        let (log, full) = (UnstoredTaskLog::default(), StoreError::Full { what: "bytes" });
        let told = || log.is_told.load(Ordering::Relaxed);
        for _ in 0..2 {
            log.refused(&StoreError::OwnerFull);
            assert!(!told());
            log.refused(&full);
            log.refused(&full);
            assert!(told());
            log.stored();
            assert!(!told());
        }
    }
}
