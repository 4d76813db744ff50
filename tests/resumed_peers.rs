//! The program in front of real servers whose calls can be taken up again, ended in the middle of them: by `kill -9`
//! and in order. Its next life on the same folder goes on with each (GW-39).
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "resumed_peers/caller.rs"]
mod caller;
#[allow(dead_code, reason = "other tests look closer")]
#[path = "support/session_client.rs"]
mod client;
#[path = "resumed_peers/event_store.rs"]
mod event_store;
#[allow(dead_code, reason = "other tests have other peers")]
#[path = "peers/support/install.rs"]
mod install;
#[path = "resumed_peers/life.rs"]
mod life;
#[path = "resumed_peers/native.rs"]
mod native;
#[allow(dead_code, reason = "other tests have other upstreams, or restart them")]
#[path = "peers/support/upstream.rs"]
mod peer;
#[allow(dead_code, reason = "other tests talk to their children, or kill them")]
#[path = "peers/support/process.rs"]
mod process;
#[allow(dead_code, reason = "other tests say more")]
#[path = "session_tasks/talk.rs"]
mod talk;
#[allow(dead_code, reason = "other tests script more of it")]
#[path = "support/scripted.rs"]
mod upstream;
#[allow(dead_code, reason = "other tests look at bytes")]
#[path = "support/wire_client.rs"]
mod wire_client;

use upstream::in_time;
