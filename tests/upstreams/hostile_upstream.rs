//! Upstreams that fail or lie (rules U01, U02 and so on): the answers of a hostile or broken upstream, and the
//! responses of a whole gateway to its client, over real sockets: for a plain call, for a task of either flavour, and
//! through the pipes of both eras, at servers of both eras.
//!
//! Read `server` (an upstream with scripted answers, byte for byte), `gate` (the gateway and its clients), then
//! `table`, `verdicts` and `version_rules`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod flow;
mod gate;
mod health;
mod server;
mod table;
mod talk;
mod verdicts;
mod version_rules;
