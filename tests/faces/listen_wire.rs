//! `subscriptions/listen` in front of session servers, over real sockets: notifications of the server reach the clients
//! that subscribed, and the gateway subscribes to no more than that.
//!
//! The server and the client are those of the `session_wire` tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod listener;
mod lists;
mod resources;

use support::scripted as upstream;
use support::session_client as client;

use support::scripted::in_time;
