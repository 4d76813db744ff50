//! Requests that HTTP refuses and admits, over real sockets and byte for byte (B01 to B77).

#![allow(clippy::unwrap_used, reason = "a helper that cannot go on fails its test")]

mod admin;
mod column;
mod frames;
mod framing;
mod harness;
mod http2;
mod http2_heads;
mod leaving;
mod life;
mod semantics;
mod session;
mod tls;

use support::certificates;
use support::scripted as upstream;
use support::session_client as client;
