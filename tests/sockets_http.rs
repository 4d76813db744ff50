//! What HTTP refuses and admits, over real sockets and byte for byte: groups 1 to 3 of the table of bad inputs.

#![allow(clippy::unwrap_used, reason = "a helper that cannot go on fails its test")]

#[path = "sockets_http/admin.rs"]
mod admin;
#[path = "sockets_http/certificates.rs"]
mod certificates;
#[path = "sockets_http/framing.rs"]
mod framing;
#[path = "sockets_http/harness.rs"]
mod harness;
#[path = "sockets_http/http2.rs"]
mod http2;
#[path = "sockets_http/life.rs"]
mod life;
#[path = "sockets_http/semantics.rs"]
mod semantics;
#[path = "sockets_http/tls.rs"]
mod tls;
