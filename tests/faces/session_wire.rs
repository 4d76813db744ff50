//! Session clients over real sockets: the whole gateway between a client that counts bytes and a scripted
//! server that keeps them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod batches;
mod bytes;
mod face;
mod faults;
mod held;
mod queued;
mod renewal;
mod sessions;
mod signs;
mod streams;
mod versions;

use support::certificates;
use support::scripted as upstream;
use support::session_client as client;
