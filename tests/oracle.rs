//! The judge is judged: histories made by hand, each of which breaks one law, and the tools that make faults.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "oracle/faults.rs"]
mod faults;
#[path = "oracle/laws.rs"]
mod laws;

#[allow(dead_code, reason = "other tests use other verbs")]
#[path = "support/fault_proxy.rs"]
mod fault_proxy;
#[allow(dead_code, reason = "other tests write histories as they happen")]
#[path = "support/history.rs"]
mod history;
