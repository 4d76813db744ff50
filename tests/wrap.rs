//! `taskgate wrap` as a program: a host at its pipes, the demo server behind it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "wrap/ends.rs"]
mod ends;
#[path = "wrap/host.rs"]
mod host;
#[path = "wrap/processes.rs"]
mod processes;
#[path = "support/served.rs"]
mod served;
#[path = "wrap/talks.rs"]
mod talks;
