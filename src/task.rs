//! Defines one canonical task and its pure transition function.
//!
//! Uses `wire::{Payload, RpcError, words}` and a hash, and nothing else; reads no clock, mints no id, does no I/O.
//! Read [`model`], then [`mod@transition`].

pub mod digest;
mod exact;
pub mod id;
pub mod model;
pub mod names;
pub mod policy;
pub mod principal;
pub mod summary;
pub mod time;
pub mod transition;

pub use digest::Reference;
pub use id::{TaskId, TaskKey};

pub use model::{
    Answer, Attempt, Digest, Executed, Exit, Failure, GatewayFault, Idempotency, InputKey, Maker, Origin, Outcome,
    Phase, Question, Reason, Recovery, Shown, StoredCall, Task,
};
pub use names::{NamePattern, Naming, ShownAs, ToolNames};
pub use policy::{
    AfterCrash, CallLimits, EarlyInput, Fallback, Mode, Plan, TTL_MAX_ANONYMOUS, TakesTasks, ToolPolicy, ToolRules,
};
pub use principal::Principal;
pub use summary::{Standing, Summary};
pub use time::{Clock, ManualClock, SteadyClock, SystemClock, Timestamp};
pub use transition::{Effect, Event, transition};
