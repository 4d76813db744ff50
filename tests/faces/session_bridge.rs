//! Clients with sessions in front of servers that know none, over real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod calls;
mod handshake;
mod listening;
mod questions;
mod resuming;
pub(crate) mod server;
mod sessions;

use support::scripted as upstream;
use support::session_client as client;
use support::speaker;
