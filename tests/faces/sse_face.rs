//! Clients of HTTP+SSE over real sockets: the whole gateway between a client that shows each event and a scripted
//! server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub(crate) mod client;
mod ending;
mod opening;
mod talking;

use support::scripted as upstream;
use support::standalone::gate as program;
