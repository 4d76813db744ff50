//! Where tasks rest. Knows `task`, not `dialect`. Read [`tasks`] first: what every store promises.

#[cfg(test)]
pub(crate) mod contract;
pub mod memory;
pub mod tasks;

pub use memory::MemoryStore;
pub use tasks::{Revision, StoreError, StoreLimits, Stored, TaskStore, Usage};
