//! Upstreams that speak HTTP+SSE: the gateway in a process of its own, in front of a scripted server on real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "sse_upstream/calls.rs"]
mod calls;
#[allow(dead_code, reason = "other tests do more with their clients")]
#[path = "stdio/client.rs"]
mod client;
#[path = "sse_upstream/fallback.rs"]
mod fallback;
#[path = "sse_upstream/faults.rs"]
mod faults;
#[allow(dead_code, reason = "other tests look closer at the processes")]
#[path = "stdio/gate.rs"]
mod gate;
#[allow(dead_code, reason = "other tests need more of it")]
#[path = "support/scripted.rs"]
mod scripted;
#[path = "sse_upstream/server.rs"]
mod server;
#[path = "sse_upstream/unreadable.rs"]
mod unreadable;
