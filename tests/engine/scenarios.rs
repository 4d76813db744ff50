//! Calls in the engine and the stateless face, in paused time and without a socket: clients, upstreams and the clock
//! are scripted, so that every race has one outcome.
//!
//! Read `script` (the upstream) and `world` (the rest) first.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod answer;
mod ask_first;
mod beside;
mod bridged;
mod cancelling;
mod crowd;
mod demands;
mod doubts;
mod draining;
mod dropped;
mod dropped_stores;
mod duplex;
mod elements;
mod failing_stores;
mod faults;
mod fenced;
mod fleet;
mod grace;
mod inputs;
mod leaving;
mod lifetime;
mod listening;
mod lives;
mod moment;
mod named;
mod native;
mod places;
mod progress;
mod questions;
mod recovering;
mod renamed;
mod rounds;
mod rules;
mod script;
mod splitting;
mod stores;
mod streaming;
mod trees;
mod unmarked;
mod waiting;
mod waiting_trees;
mod without_room;
mod world;

use support::store_faults;
