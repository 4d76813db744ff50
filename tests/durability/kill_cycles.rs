//! The program is killed at every step of a call, under load, and restarted on its store. Then all tasks are followed
//! to their end, and the whole history is checked against L1 to L8.
//!
//! `KILL_CYCLES` is how often each fault happens (2), `KILL_SEED` repeats a run. Every cycle prints its seed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod cycle;
pub(crate) mod dice;
pub(crate) mod keeper;
pub(crate) mod people;
mod points;

use support::crowd;
use support::fault_proxy;
use support::history;
use support::ledger;
use support::wire_client;
