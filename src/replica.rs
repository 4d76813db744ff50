//! Decides what several gateways on one store may do: who is alive, what a commit's end means, which reads count, whose a row
//! is, what time it is.
//!
//! Pure: whoever uses it hands in what the store said and when, by a clock that no one sets ([`BootTime`]). Nothing here reads a
//! clock, draws an id, waits or speaks to a server; `tests/engine/replicas.rs` runs [`commit_trust::fate`], [`ReadTrust`],
//! [`GuardedWrite::judge`] and who may claim a row through random schedules of faults. What the store says in SQL, and the engine of
//! writes in doubt, is restated there: which batches the line of a writer admits, and what a row says of a write.
//!
//! What carries the promises: [`fencing`] (each write names the row's revision, a holder's write itself too) and
//! [`commit_trust`] (nothing is believed that a failover can take back). [`membership`] decides only how soon a replica's rows
//! are taken over: it may be wrong at any moment, and nothing is lost or done twice. [`task_clock`] is the one time of all tasks.

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
pub use commit_trust::{CommitEnd, Durability, DurabilitySettings, SqlNotice, WriteDoubt, WriteFate};
pub use directory::{HomeErrand, ReplicaDirectory, ReplicaMember, ReplicaPeer, SessionHome};
pub use fencing::{GuardedRow, GuardedWrite, WriteVerdict};
pub use forwarded_numbers::{ForwardedNumberRefusal, ForwardedNumbers};
pub use incarnation::Incarnation;
pub use membership::{
    BeatAnswer, DeathClaim, LeaseTerms, Membership, OwnStanding, ReplicaLine, ReplicaLook, StoreGeneration, StoreLoss,
};
pub use read_trust::{ReadBelief, ReadTrust, ServerMark};
pub use task_clock::{ClockStart, TaskClock};
