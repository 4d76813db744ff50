//! Session clients over real sockets: the whole gateway between a client that counts bytes and a scripted
//! server that keeps them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "session_wire/batches.rs"]
mod batches;
#[path = "session_wire/bytes.rs"]
mod bytes;
#[path = "session_wire/client.rs"]
mod client;
#[path = "session_wire/face.rs"]
mod face;
#[path = "session_wire/faults.rs"]
mod faults;
#[path = "session_wire/renewal.rs"]
mod renewal;
#[path = "session_wire/sessions.rs"]
mod sessions;
#[path = "session_wire/streams.rs"]
mod streams;
#[path = "session_wire/upstream.rs"]
mod upstream;
#[path = "session_wire/versions.rs"]
mod versions;

use std::time::Duration;

/// Nothing here takes long; what takes this long hangs.
async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("it happens in time")
}
