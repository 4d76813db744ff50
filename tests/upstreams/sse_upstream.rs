//! Upstreams that speak HTTP+SSE: the gateway in a process of its own, in front of a scripted server on real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod calls;
mod fallback;
mod faults;
mod server;
mod unreadable;
mod verdicts;

use support::scripted;
use support::standalone::client;
use support::standalone::gate;
