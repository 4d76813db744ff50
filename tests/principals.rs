//! Two principals at one gateway, over real sockets: who may come, what one sees of the other, and what each may use.
//!
//! Read `gate` first: a gateway with API keys in front of a scripted server, and clients that show what they get byte
//! for byte.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "principals/bounds.rs"]
mod bounds;
#[path = "principals/gate.rs"]
mod gate;
#[path = "principals/isolation.rs"]
mod isolation;
#[path = "principals/keys.rs"]
mod keys;
#[path = "principals/proxied.rs"]
mod proxied;
#[allow(dead_code, reason = "other tests have other servers")]
#[path = "support/scripted.rs"]
mod upstream;
