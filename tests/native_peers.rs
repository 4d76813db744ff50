//! Real servers with tasks of their own behind the whole gateway: in front of clients with sessions, which know nothing
//! of those tasks, and one of Rust's SDK in front of every kind of client.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it the servers of other languages are
//! left out, and the output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[allow(dead_code, reason = "other tests look closer")]
#[path = "support/session_client.rs"]
mod client;
#[allow(dead_code, reason = "other tests have other peers")]
#[path = "peers/support/install.rs"]
mod install;
#[allow(dead_code, reason = "other tests make tables")]
#[path = "pairs/kind.rs"]
mod kind;
#[allow(dead_code, reason = "other tests have other upstreams, or restart them")]
#[path = "peers/support/upstream.rs"]
mod peer;
#[allow(dead_code, reason = "other tests talk to their children, or kill them")]
#[path = "peers/support/process.rs"]
mod process;
#[path = "native_peers/rust.rs"]
mod rust;
#[path = "native_peers/rust_server.rs"]
mod server;
#[path = "native_peers/sessions.rs"]
mod sessions;
#[allow(dead_code, reason = "other tests cancel more")]
#[path = "pairs/speaker.rs"]
mod speaker;
#[allow(dead_code, reason = "other tests say more")]
#[path = "session_tasks/talk.rs"]
mod talk;
#[allow(dead_code, reason = "other tests script more of it")]
#[path = "support/scripted.rs"]
mod upstream;

use std::time::Duration;

use upstream::in_time;

/// How long a question may be open.
pub(crate) const INPUT_DEADLINE: Duration = Duration::from_secs(2);
