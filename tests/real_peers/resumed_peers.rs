//! The program in front of real servers with resumable calls, ended in the middle of them: by `kill -9` and in order.
//! The next process in the same folder continues each (GW-39).
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod caller;
mod event_store;
mod life;
mod native;

use support::peers::install;
use support::peers::process;
use support::peers::upstream as peer;
use support::session_client as client;
use support::talk;
use support::wire_client;
