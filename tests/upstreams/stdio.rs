//! Upstreams that are programs: the gateway in a process of its own, in front of the demo server over stdio, with or
//! without faults.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod apart;
mod calls;
mod confined;
mod faults;
mod held;
mod processes;
mod shares;
mod stateless;

use support::standalone::client;
use support::standalone::gate;
