//! `subscriptions/listen` in front of session servers, over real sockets: what the server pushes reaches those
//! who asked for it, and the server is asked for no more than that.
//!
//! The server and the client are those of the `session_wire` tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "other tests have sessions of their own")]
#[path = "support/session_client.rs"]
mod client;
#[path = "listen_wire/listener.rs"]
mod listener;
#[path = "listen_wire/lists.rs"]
mod lists;
#[path = "listen_wire/resources.rs"]
mod resources;
#[allow(dead_code, reason = "other tests have other servers")]
#[path = "support/scripted.rs"]
mod upstream;

use std::time::Duration;

/// Nothing here takes long; what takes this long hangs.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it happens in time")
}
