//! Holds pure codecs between envelopes and canonical values. No I/O, no clock.
//!
//! A dialect knows itself and the canonical task, never another dialect. Read [`face`] (the client's
//! side) and [`peer`] (the upstream's side) first; [`negotiate`] decides who is spoken to how, and
//! nobody asks for the version after that.

pub mod core_2025_11_25;
pub mod ext_tasks;
pub mod face;
pub mod fallback_tools;
pub mod faults;
pub mod inputs;
pub mod lifecycle;
pub mod negotiate;
pub mod peer;
pub mod plain;
pub mod reintroduction;
pub mod relay_core_2025_11_25;
pub mod subscriptions;

pub use face::{FaceDialect, TaskCommand, TaskReply};
pub use faults::RequestError;
pub use peer::UpstreamDialect;
