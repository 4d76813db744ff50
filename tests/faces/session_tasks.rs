//! Tasks of 2025-11-25 over real sockets: a client that reads every event, the whole gateway, and a server whose
//! calls wait for the test.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod arrays;
mod chosen_ids;
mod filtered;
mod handles;
mod hybrid;
mod later;
mod lists;
mod named;
mod native;
mod outcomes;
mod questions;
mod relay;
mod sessions;
mod telling;

use support::scripted as upstream;
use support::session_client as client;
use support::talk;

use upstream::in_time;
