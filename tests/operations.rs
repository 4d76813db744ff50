//! The program as operators run it: its tasks looked at and cancelled, its configuration read again, its sockets handed
//! over, its end. Real processes, real sockets, real signals.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "operations/clock.rs"]
mod clock;
#[path = "operations/handover.rs"]
mod handover;
#[path = "operations/leaving.rs"]
mod leaving;
#[path = "operations/long_list.rs"]
mod long_list;
#[path = "operations/memory.rs"]
mod memory;
#[path = "operations/operators.rs"]
mod operators;
#[path = "operations/program.rs"]
mod program;
#[path = "operations/reload.rs"]
mod reload;
#[path = "operations/shutdown.rs"]
mod shutdown;
#[path = "operations/units.rs"]
mod units;
#[allow(dead_code, reason = "other tests script more of it")]
#[path = "support/scripted.rs"]
mod upstream;
#[path = "operations/upstreams.rs"]
mod upstreams;
