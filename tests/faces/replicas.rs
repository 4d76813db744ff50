//! Several gateways on one store over real sockets: a request in a session, or on a stream of HTTP+SSE, is answered by
//! its owner.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod counts;
mod gone;
mod leaving;
mod link;
mod postgres;
mod raw_replica;
mod refusals;
mod rounds;
mod scopes;
mod sessions;
mod sse;
mod tls;

use support::certificates;
use support::replicas as harness;
use support::scripted as upstream;
use support::session_client as client;
use support::talk;
