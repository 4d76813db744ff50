//! Stores tasks. Depends on `task`, not on `dialect`. Start with [`tasks`], the contract of every store.

mod clock_trust;
#[cfg(test)]
pub(crate) mod contract;
pub mod disk;
mod integers;
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
