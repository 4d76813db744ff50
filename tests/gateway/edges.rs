//! Operators' settings between clients and one upstream: names of tools, credentials, forwarded headers, bounds of
//! calls. And questions that no client may get, and bounds that hold on every face. Over real sockets, for clients and
//! servers of both kinds.

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
