//! The judge is judged: histories made by hand, each of which breaks one law, and the tools that make faults.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod faults;
mod laws;

use support::fault_proxy;
use support::history;
