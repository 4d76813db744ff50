//! The rules for several replicas: membership, commit outcomes, trusted reads, row ownership, task time.
//!
//! Pure: callers pass in the store's answers and their times ([`BootTime`]); this module reads no clock, draws no id,
//! waits for nothing. `tests/engine/replicas.rs` runs [`commit_trust::fate`], [`ReadTrust`], [`GuardedWrite::judge`]
//! and claims through random faults. It models the store's SQL and the engine's handling of unresolved writes itself.
//!
//! [`fencing`] (writes name revision and holder) and [`commit_trust`] (a fact that a failover can undo is not trusted)
//! give the guarantees. [`membership`] only decides when rows are claimed: a wrong verdict loses nothing.

pub mod commit_trust;
pub mod directory;
pub mod fencing;
pub mod forwarded_numbers;
pub mod membership;
pub mod read_trust;
pub mod task_clock;

use std::fmt;
use std::time::Duration;

pub use commit_trust::{CommitEnd, Durability, DurabilitySettings, SqlNotice, UnknownCommitCause, WriteFate};
pub use directory::{OwnerReplica, OwnerRequest, ReplicaDirectory, ReplicaMember, ReplicaPeer};
pub use fencing::{GuardedRow, GuardedWrite, WriteVerdict};
pub use forwarded_numbers::{ForwardedNumberRefusal, ForwardedNumbers};
pub use membership::{
    DeathClaim, HeartbeatAnswer, LeaseTerms, Membership, OwnStanding, ReplicaLook, ReplicaRow, StoreGeneration,
    StoreLoss,
};
pub use read_trust::{ReadTrust, ReadVerdict, ServerMark};
pub use task_clock::{ClockStart, TaskClock};

/// One process of a replica, numbered by the store at its registration. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The time since boot, including sleep (`CLOCK_BOOTTIME`): never set, and meaningless on other machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(pub Duration);

impl BootTime {
    /// Zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Saturates.
    #[must_use]
    pub const fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}
