//! The program as operators run it: its tasks looked at and cancelled, its configuration read again, its sockets handed
//! over, its end. Real processes, real sockets, real signals.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod answer_memory;
mod bounds;
mod clock;
mod credentials;
mod ended_calls;
mod endpoint_reload;
mod handover;
mod leaving;
mod left_sessions;
mod long_list;
mod lost_output;
mod memory;
mod operators;
mod outside;
pub(crate) mod program;
mod proxied;
mod reload;
mod replicas;
mod shutdown;
mod store_copies;
mod telemetry;
mod units;
mod upstreams;

use support::scripted as upstream;
