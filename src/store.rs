//! Stores tasks. Depends on `task`, not on `dialect`. Start with [`tasks`], the contract of every store.

mod clock_trust;
#[cfg(test)]
pub(crate) mod contract;
pub mod disk;
pub mod memory;
pub mod postgres;
pub mod record;
pub mod tasks;

pub use disk::{DiskSettings, DiskStore, OpenError, StoreHealth};
pub use memory::MemoryStore;
pub use postgres::{DatabaseAccess, DatabaseUrl, PostgresSettings, PostgresStore, check_database_url, is_schema_name};
pub use tasks::{
    NewestCursor, PageRange, Reach, Revision, StoreError, StoreHint, StoreLimits, StoredTask, SummaryPage, TaskStore,
    Usage, WriteRole, needs_holder,
};

/// Converts values to and from the integers of a database's columns, rounded to their range.
mod integers {
    use crate::store::tasks::Revision;
    use crate::task::{TaskKey, Timestamp};

    pub(super) fn at(time: Timestamp) -> i64 {
        i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
    }

    pub(super) fn time(column: i64) -> Timestamp {
        Timestamp::from_millis(u64::try_from(column).unwrap_or(0))
    }

    pub(super) fn number(value: usize) -> i64 {
        i64::try_from(value).unwrap_or(i64::MAX)
    }

    pub(super) fn count(column: i64) -> usize {
        usize::try_from(column).unwrap_or(0)
    }

    pub(super) const fn id(key: &TaskKey) -> [u8; 16] {
        key.id.bits().to_be_bytes()
    }

    pub(super) fn revision(column: i64) -> Revision {
        Revision(u64::try_from(column).unwrap_or(0))
    }

    pub(super) fn revision_column(revision: Revision) -> i64 {
        i64::try_from(revision.0).unwrap_or(i64::MAX)
    }
}
