//! What the engine and the stateless face do with calls, in paused time and without a socket: clients, upstreams
//! and the clock are scripted, so that every race has one outcome.
//!
//! Read `script` (the upstream) and `world` (the rest) first.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "scenarios/answer.rs"]
mod answer;
#[path = "scenarios/ask_first.rs"]
mod ask_first;
#[path = "scenarios/bridged.rs"]
mod bridged;
#[path = "scenarios/cancelling.rs"]
mod cancelling;
#[path = "scenarios/crowd.rs"]
mod crowd;
#[path = "scenarios/demands.rs"]
mod demands;
#[path = "scenarios/doubts.rs"]
mod doubts;
#[path = "scenarios/draining.rs"]
mod draining;
#[path = "scenarios/dropped.rs"]
mod dropped;
#[path = "scenarios/dropped_stores.rs"]
mod dropped_stores;
#[path = "scenarios/duplex.rs"]
mod duplex;
#[path = "scenarios/store_faults.rs"]
mod failing_stores;
#[path = "scenarios/faults.rs"]
mod faults;
#[path = "scenarios/grace.rs"]
mod grace;
#[path = "scenarios/inputs.rs"]
mod inputs;
#[path = "scenarios/leaving.rs"]
mod leaving;
#[path = "scenarios/lifetime.rs"]
mod lifetime;
#[path = "scenarios/listening.rs"]
mod listening;
#[path = "scenarios/lives.rs"]
mod lives;
#[path = "scenarios/moment.rs"]
mod moment;
#[path = "scenarios/named.rs"]
mod named;
#[path = "scenarios/native.rs"]
mod native;
#[path = "scenarios/places.rs"]
mod places;
#[path = "scenarios/progress.rs"]
mod progress;
#[path = "scenarios/questions.rs"]
mod questions;
#[path = "scenarios/recovering.rs"]
mod recovering;
#[path = "scenarios/renamed.rs"]
mod renamed;
#[path = "scenarios/rounds.rs"]
mod rounds;
#[path = "scenarios/rules.rs"]
mod rules;
#[path = "scenarios/script.rs"]
mod script;
#[path = "support/store_faults.rs"]
mod store_faults;
#[path = "scenarios/stores.rs"]
mod stores;
#[path = "scenarios/streaming.rs"]
mod streaming;
#[path = "scenarios/world.rs"]
mod world;
