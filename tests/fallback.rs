//! Clients without tasks: `fallback = "tools"`, where a result speaks of the task and three tools do the rest, and
//! `fallback = "hold"`, where a stream that was lost is taken up again. Over real sockets, for clients and servers of
//! both kinds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fallback/calls.rs"]
mod calls;
#[allow(dead_code, reason = "other tests ask other things of it")]
#[path = "support/session_client.rs"]
mod client;
#[path = "fallback/held.rs"]
mod held;
#[path = "fallback/lists.rs"]
mod lists;
#[path = "fallback/owners.rs"]
mod owners;
#[path = "fallback/people.rs"]
mod people;
#[allow(dead_code, reason = "other tests ask other things of it")]
#[path = "support/scripted.rs"]
mod upstream;
