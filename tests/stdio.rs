//! Upstreams that are programs: the gateway in a process of its own, in front of the demo server over stdio, which can
//! be told to be a bad one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "stdio/apart.rs"]
mod apart;
#[path = "stdio/calls.rs"]
mod calls;
#[allow(dead_code, reason = "other tests ask other things of it")]
#[path = "stdio/client.rs"]
mod client;
#[path = "stdio/confined.rs"]
mod confined;
#[path = "stdio/faults.rs"]
mod faults;
#[path = "stdio/gate.rs"]
mod gate;
#[path = "stdio/held.rs"]
mod held;
#[path = "stdio/processes.rs"]
mod processes;
#[path = "stdio/shares.rs"]
mod shares;
#[path = "stdio/stateless.rs"]
mod stateless;
