//! Stateless clients in front of a server of their own era, over real sockets: the whole gateway between a
//! client that counts bytes and a scripted server that keeps them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "stateless_pipe/bytes.rs"]
mod bytes;
#[allow(dead_code, reason = "session clients use the rest of it")]
#[path = "support/session_client.rs"]
mod client;
#[path = "stateless_pipe/edits.rs"]
mod edits;
#[path = "stateless_pipe/eras.rs"]
mod eras;
#[path = "stateless_pipe/life.rs"]
mod life;
#[path = "stateless_pipe/listening.rs"]
mod listening;
#[path = "stateless_pipe/peers.rs"]
mod peers;
#[path = "stateless_pipe/signs.rs"]
mod signs;
#[allow(dead_code, reason = "session clients use the rest of it")]
#[path = "support/speaker.rs"]
mod speaker;
#[path = "stateless_pipe/states.rs"]
mod states;
#[path = "stateless_pipe/tasks.rs"]
mod tasks;
#[allow(dead_code, reason = "sessions use the rest of it")]
#[path = "support/scripted.rs"]
mod upstream;

use std::time::Duration;

/// Nothing here takes long; what takes this long hangs.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it happens in time")
}
