//! Upstreams that fail or lie (rules U01, U02 and so on): what a hostile or broken upstream sends, and what the client of
//! a whole gateway sees of it, over real sockets: for a plain call, for a task of either flavour, and through the pipes of both eras,
//! at servers of both eras.
//!
//! Read `server` (an upstream that says what it is told to, byte for byte), `gate` (the gateway and its clients), then `table`,
//! `verdicts` and `version_rules`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod flow;
mod gate;
mod health;
mod server;
mod table;
mod talk;
mod verdicts;
mod version_rules;
