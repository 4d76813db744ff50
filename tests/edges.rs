//! What an operator sets between clients and one upstream: names of tools, credentials, headers that go on, bounds of
//! calls. And what no client is shown, nor any bound meets on one face alone. Over real sockets, for clients and servers of
//! both kinds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "edges/bounds.rs"]
mod bounds;
#[allow(dead_code, reason = "other tests ask other things of it")]
#[path = "support/session_client.rs"]
mod client;
#[path = "edges/faces.rs"]
mod faces;
#[path = "edges/headers.rs"]
mod headers;
#[path = "edges/names.rs"]
mod names;
#[path = "edges/peers.rs"]
mod peers;
#[path = "edges/questions.rs"]
mod questions;
#[path = "edges/secrets.rs"]
mod secrets;
#[allow(dead_code, reason = "other tests ask other things of it")]
#[path = "support/scripted.rs"]
mod upstream;
