//! Two principals at one gateway, over real sockets: who has access, what one sees of the other, and the bounds of each.
//!
//! Read `gate` first: a gateway with API keys in front of a scripted server, and clients that show their responses byte
//! for byte.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod access;
mod bounds;
mod certificates;
mod credentials;
mod gate;
mod introspection;
mod isolation;
mod issuers;
mod keys;
mod proofs;
mod proxied;
mod recorded;
mod rights;
mod rules;
mod tokens;
mod withdrawn;

use support::scripted as upstream;
