//! What HTTP refuses and admits, over real sockets and byte for byte (B01 to B77).

#![allow(clippy::unwrap_used, reason = "a helper that cannot go on fails its test")]

#[path = "sockets_http/admin.rs"]
mod admin;
#[allow(dead_code, reason = "other tests are servers too")]
#[path = "support/certificates.rs"]
mod certificates;
#[allow(dead_code, reason = "other tests ask for more")]
#[path = "support/session_client.rs"]
mod client;
#[path = "sockets_http/column.rs"]
mod column;
#[path = "sockets_http/frames.rs"]
mod frames;
#[path = "sockets_http/framing.rs"]
mod framing;
#[path = "sockets_http/harness.rs"]
mod harness;
#[path = "sockets_http/http2.rs"]
mod http2;
#[path = "sockets_http/http2_heads.rs"]
mod http2_heads;
#[path = "sockets_http/life.rs"]
mod life;
#[path = "sockets_http/semantics.rs"]
mod semantics;
#[path = "sockets_http/session.rs"]
mod session;
#[path = "sockets_http/tls.rs"]
mod tls;
#[allow(dead_code, reason = "other tests ask other things of it")]
#[path = "support/scripted.rs"]
mod upstream;
