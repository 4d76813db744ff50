//! Session clients over real sockets: the whole gateway between a client that counts bytes and a scripted
//! server that keeps them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "session_wire/batches.rs"]
mod batches;
#[path = "session_wire/bytes.rs"]
mod bytes;
#[allow(dead_code, reason = "other tests spoil certificates")]
#[path = "support/certificates.rs"]
mod certificates;
#[path = "support/session_client.rs"]
mod client;
#[path = "session_wire/face.rs"]
mod face;
#[path = "session_wire/faults.rs"]
mod faults;
#[path = "session_wire/held.rs"]
mod held;
#[path = "session_wire/queued.rs"]
mod queued;
#[path = "session_wire/renewal.rs"]
mod renewal;
#[path = "session_wire/sessions.rs"]
mod sessions;
#[path = "session_wire/signs.rs"]
mod signs;
#[path = "session_wire/streams.rs"]
mod streams;
#[allow(dead_code, reason = "other tests ask other things of it")]
#[path = "support/scripted.rs"]
mod upstream;
#[path = "session_wire/versions.rs"]
mod versions;

use upstream::in_time;
