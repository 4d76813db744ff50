//! Clients with sessions in front of servers that know none, over real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "session_bridge/calls.rs"]
mod calls;
#[allow(dead_code, reason = "other tests look closer")]
#[path = "support/session_client.rs"]
mod client;
#[path = "session_bridge/handshake.rs"]
mod handshake;
#[path = "session_bridge/listening.rs"]
mod listening;
#[path = "session_bridge/questions.rs"]
mod questions;
#[path = "session_bridge/resuming.rs"]
mod resuming;
#[path = "session_bridge/server.rs"]
mod server;
#[path = "session_bridge/sessions.rs"]
mod sessions;
#[path = "support/speaker.rs"]
mod speaker;
#[allow(dead_code, reason = "other tests ask other things of it")]
#[path = "support/scripted.rs"]
mod upstream;
