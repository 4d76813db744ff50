//! Two principals at one gateway, over real sockets: who may come, what one sees of the other, and what each may use.
//!
//! Read `gate` first: a gateway with API keys in front of a scripted server, and clients that show what they get byte
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
