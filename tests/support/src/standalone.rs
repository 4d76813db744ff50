//! Runs the gateway in a process of its own, with clients in front of it.

pub mod client;
pub mod gate;
