//! The program is killed at every point of a call's way, under load, and started again on what it left. Then all tasks
//! are followed to their end, and the whole history is held against L1 to L8.
//!
//! `KILL_CYCLES` is how often each fault happens (5), `KILL_SEED` repeats a run. Every cycle prints its seed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "support/crowd.rs"]
mod crowd;
#[path = "kill_cycles/cycle.rs"]
mod cycle;
#[path = "kill_cycles/dice.rs"]
mod dice;
#[allow(dead_code, reason = "other tests have other faults")]
#[path = "support/fault_proxy.rs"]
mod fault_proxy;
#[allow(dead_code, reason = "no store fails here")]
#[path = "support/history.rs"]
mod history;
#[path = "kill_cycles/keeper.rs"]
mod keeper;
#[allow(dead_code, reason = "other tests look at what was sent")]
#[path = "support/ledger.rs"]
mod ledger;
#[path = "kill_cycles/points.rs"]
mod points;
#[allow(dead_code, reason = "the ledger needs little of it")]
#[path = "support/scripted.rs"]
mod upstream;
#[path = "support/wire_client.rs"]
mod wire_client;
