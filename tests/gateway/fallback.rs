//! Clients without tasks where `fallback = "tools"`: a result speaks of the task, and three tools do the rest. Over real
//! sockets, for clients and servers of both kinds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod calls;
mod lists;
mod owners;
pub(crate) mod people;

use support::scripted as upstream;
use support::session_client as client;
