//! Several gateways on one store over real sockets: what is asked of one about a session, or a stream of HTTP+SSE, is answered
//! where that is at home.

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
