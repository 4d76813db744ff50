//! Clients of HTTP+SSE over real sockets: the whole gateway between a client that shows each event and a scripted
//! server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "sse_face/client.rs"]
mod client;
#[path = "sse_face/ending.rs"]
mod ending;
#[path = "sse_face/opening.rs"]
mod opening;
#[allow(dead_code, reason = "other tests look closer at the processes")]
#[path = "stdio/gate.rs"]
mod program;
#[path = "sse_face/talking.rs"]
mod talking;
#[allow(dead_code, reason = "other tests ask other things of it")]
#[path = "support/scripted.rs"]
mod upstream;
