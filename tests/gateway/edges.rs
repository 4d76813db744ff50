//! What an operator sets between clients and one upstream: names of tools, credentials, headers that go on, bounds of
//! calls. And what no client is shown, nor any bound meets on one face alone. Over real sockets, for clients and servers of
//! both kinds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod bounds;
mod faces;
mod headers;
mod keys;
mod names;
pub(crate) mod peers;
mod questions;
mod secrets;

use support::scripted as upstream;
use support::session_client as client;
