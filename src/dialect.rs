//! Translates between protocol messages and canonical values. No I/O, no clock. A dialect knows the canonical task, but
//! no other dialect. Read [`face_dialect`], [`plain`] and [`negotiate`] first.

pub mod core_2025_11_25;
pub mod draft_sep_1686;
pub mod ext_tasks;
pub mod face_dialect;
pub mod fallback_tools;
pub mod faults;
pub mod inputs;
pub mod lifecycle;
pub mod negotiate;
pub mod plain;
pub mod related_task;
pub mod relay_core_2025_11_25;
pub mod relay_ext_tasks;
pub mod session_results;
pub mod split_call;
pub mod subscriptions;

pub use face_dialect::{FaceDialect, TaskCommand, TaskReply};
pub use faults::RequestError;
