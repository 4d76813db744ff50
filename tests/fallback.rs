//! Clients without tasks where `fallback = "tools"`: a result speaks of the task, and three tools do the rest. Over real
//! sockets, for clients and servers of both kinds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "fallback/calls.rs"]
mod calls;
#[allow(dead_code, reason = "other tests ask other things of it")]
#[path = "support/session_client.rs"]
mod client;
#[path = "fallback/lists.rs"]
mod lists;
#[path = "fallback/owners.rs"]
mod owners;
#[path = "fallback/people.rs"]
mod people;
#[allow(dead_code, reason = "other tests ask other things of it")]
#[path = "support/scripted.rs"]
mod upstream;
