//! Stateless clients in front of a server of their own era, over real sockets: the whole gateway between a
//! client that counts bytes and a scripted server that keeps them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bytes;
mod edits;
mod eras;
mod life;
mod listening;
mod peers;
mod questions;
mod signs;
mod states;
mod tasks;

use support::scripted as upstream;
use support::session_client as client;
use support::speaker;

use std::time::Duration;

/// Nothing here takes long; what takes this long hangs.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it happens in time")
}
