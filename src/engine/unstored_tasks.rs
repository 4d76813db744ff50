//! Logs that tasks or their changes cannot be stored: once, until a write succeeds again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::cause::CauseChain;
use crate::store::StoreError;

#[derive(Debug, Default)]
pub(super) struct UnstoredTaskLog {
    is_full: AtomicBool,
    is_away: AtomicBool,
}

impl UnstoredTaskLog {
    pub(super) fn stored(&self) {
        forget(&self.is_full);
        self.changed();
    }

    /// Records that the store replaced a task, which may succeed even where a new task finds no room.
    pub(super) fn changed(&self) {
        forget(&self.is_away);
    }

    /// Logs a refused write. A full share of one owner is counted and returned to its client instead.
    pub(super) fn refused(&self, error: &StoreError) {
        let is_news = match error {
            StoreError::Full { .. } | StoreError::NoRoom => !self.is_full.swap(true, Ordering::Relaxed),
            StoreError::Io(_) | StoreError::UnknownCommit(_) => !self.is_away.swap(true, Ordering::Relaxed),
            StoreError::OwnerFull => false,
            StoreError::Conflict | StoreError::Fenced | StoreError::Exists => true,
        };
        if is_news {
            tracing::warn!(error = %CauseChain(error), "a task could not be stored");
        } else {
            tracing::debug!(error = %CauseChain(error), "a task could not be stored");
        }
    }
}

/// The flag is rarely set, and an atomic load costs less than an atomic store.
fn forget(flag: &AtomicBool) {
    if flag.load(Ordering::Relaxed) {
        flag.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_trouble_of_the_store_is_told_once_until_it_takes_a_task_again() {
        let (log, full) = (UnstoredTaskLog::default(), StoreError::Full { what: "bytes" });
        let away = || io::Error::other("away");
        let logged = || [&log.is_full, &log.is_away].map(|flag| flag.load(Ordering::Relaxed));
        for _ in 0..2 {
            log.refused(&StoreError::OwnerFull);
            assert_eq!(logged(), [false, false]);
            for error in [&full, &StoreError::NoRoom] {
                log.refused(error);
                assert_eq!(logged(), [true, false]);
            }
            for error in [StoreError::Io(away()), StoreError::UnknownCommit(away())] {
                log.refused(&error);
                assert_eq!(logged(), [true, true]);
            }
            log.changed();
            assert_eq!(logged(), [true, false]);
            log.refused(&StoreError::Io(away()));
            log.stored();
            assert_eq!(logged(), [false, false]);
        }
    }
}
