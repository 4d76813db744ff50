//! Requests and responses of a 2026-07-28 client, over real sockets and byte for byte (B78 to B135), discovery, lists,
//! results.
//!
//! Read `gate` (the gateway and its client) and `odd` (an upstream that writes JSON in its own way) first.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod crowd;
mod gate;
mod messages;
mod metadata;
mod odd;
mod questions;
mod results;
mod tasks;
