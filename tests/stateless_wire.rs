//! What a 2026-07-28 client sends and gets, over real sockets and byte for byte (B78 to B135), discovery,
//! lists, results.
//!
//! Read `gate` (the gateway and its client) and `odd` (an upstream that writes JSON in its own way) first.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "stateless_wire/crowd.rs"]
mod crowd;
#[path = "stateless_wire/gate.rs"]
mod gate;
#[path = "stateless_wire/messages.rs"]
mod messages;
#[path = "stateless_wire/metadata.rs"]
mod metadata;
#[path = "stateless_wire/odd.rs"]
mod odd;
#[path = "stateless_wire/questions.rs"]
mod questions;
#[path = "stateless_wire/results.rs"]
mod results;
#[path = "stateless_wire/tasks.rs"]
mod tasks;
