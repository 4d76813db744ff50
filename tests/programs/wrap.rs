//! `taskgate wrap` as a program: a host at its pipes, the demo server behind it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod ends;
mod file;
mod host;
mod talks;

use support::processes;
use support::served;
