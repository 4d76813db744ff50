//! The rules for several replicas: membership, commit outcomes, trusted reads, row ownership, task time.
//!
//! Pure: callers pass in the store's answers and their times, on a clock that is never set ([`BootTime`]). This module reads no
//! clock, draws no id, waits for nothing and contacts no server. `tests/engine/replicas.rs` runs [`commit_trust::fate`],
//! [`ReadTrust`], [`GuardedWrite::judge`] and claims through random schedules of faults. It models the store's SQL and the
//! engine's handling of unresolved writes itself: the batches that a writer's row admits, and the evidence that a row gives about
//! a write.
//!
//! Two modules carry the guarantees: [`fencing`] (each write names the row's revision, and a holder's write also the holder) and
//! [`commit_trust`] (no fact is believed that a failover can roll back). [`membership`] only decides how soon a replica's rows
//! are claimed: a wrong verdict loses nothing and repeats nothing. [`task_clock`] is the common time of all tasks.

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
