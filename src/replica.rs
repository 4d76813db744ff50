//! The rules for several replicas: membership, commit outcomes, trusted reads, row ownership, task time.
//!
//! Pure: callers pass in the store's answers and their times ([`BootTime`]); this module reads no clock, draws no id,
//! waits for nothing. `tests/engine/replicas.rs` runs [`commit_trust::fate`], [`ReadTrust`], [`GuardedWrite::judge`]
//! and claims through random schedules of faults. It models the store's SQL and the engine's handling of unresolved
//! writes itself.
//!
//! Two modules carry the guarantees: [`fencing`] (writes name the row's revision and holder) and [`commit_trust`] (no
//! fact is believed that a failover can roll back). [`membership`] only decides how soon rows are claimed: a wrong
//! verdict loses nothing.

pub mod boot_time;
pub mod commit_trust;
pub mod directory;
pub mod fencing;
pub mod forwarded_numbers;
pub mod incarnation;
pub mod membership;
pub mod read_trust;
pub mod task_clock;

pub use boot_time::BootTime;
pub use commit_trust::{CommitEnd, Durability, DurabilitySettings, SqlNotice, UnknownCommitCause, WriteFate};
pub use directory::{OwnerReplica, OwnerRequest, ReplicaDirectory, ReplicaMember, ReplicaPeer};
pub use fencing::{GuardedRow, GuardedWrite, WriteVerdict};
pub use forwarded_numbers::{ForwardedNumberRefusal, ForwardedNumbers};
pub use incarnation::Incarnation;
pub use membership::{
    DeathClaim, HeartbeatAnswer, LeaseTerms, Membership, OwnStanding, ReplicaLook, ReplicaRow, StoreGeneration,
    StoreLoss,
};
pub use read_trust::{ReadBelief, ReadTrust, ServerMark};
pub use task_clock::{ClockStart, TaskClock};
