//! Real servers with tasks of their own behind the whole gateway: in front of clients with sessions, which know nothing
//! of those tasks, and one of Rust's SDK in front of every kind of client.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it the servers of other languages are
//! left out, and the output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod rust;
mod server;
mod sessions;

use support::pair_client as speaker;
use support::peers::install;
use support::peers::upstream as peer;
use support::scripted as upstream;
use support::session_client as client;
use support::talk;

use upstream::in_time;
