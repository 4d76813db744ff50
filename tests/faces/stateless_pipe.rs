//! Stateless clients in front of a server of their own era, over real sockets: the whole gateway between a
//! client that counts bytes and a scripted server that keeps them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod admitted;
mod bytes;
mod edits;
mod eras;
mod life;
mod listening;
pub(crate) mod peers;
mod questions;
mod signs;
mod states;
mod tasks;

use support::scripted as upstream;
use support::session_client as client;
use support::speaker;

use support::scripted::in_time;
