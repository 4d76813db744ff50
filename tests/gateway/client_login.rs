//! Servers that let clients in by credentials of their own: how clients learn of it, and whose credential goes where. Over
//! real sockets, for clients and servers of both kinds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod credentials;
mod fixture;
mod metadata;
mod refusals;
