//! Measures the memory of a call: of waiting futures, and of those that each step moves.

use super::call_state::StageEvent;
use super::{Runner, RunnerEvent};
use crate::task::{Event, Outcome, TaskKey};
use crate::upstream::ExchangeEvent;

/// The size of a function's return type.
const fn returned_bytes<A, R>(_: fn(A) -> R) -> usize {
    size_of::<R>()
}

/// With ten thousand waiting calls, their futures take most of the gateway's memory.
#[test]
fn a_waiting_call_has_no_memory_for_later_steps() {
    let bytes = returned_bytes(|runner: Box<Runner>| runner.run());
    assert!(bytes <= 2_048, "{bytes}");
}

/// A future is copied as a whole wherever another awaits it: rare branches are boxed, so that each call does not move
/// their memory.
#[test]
fn no_step_of_a_call_moves_the_memory_of_a_rare_one() {
    type Steps = &'static mut Runner;
    let sizes = [
        ("prepare", returned_bytes(|runner: Steps| runner.prepare())),
        ("handle_step", returned_bytes(|(runner, step): (Steps, RunnerEvent)| runner.handle_step(step))),
        ("exchange_event", returned_bytes(|(runner, event): (Steps, ExchangeEvent)| runner.exchange_event(event))),
        ("dispatched", returned_bytes(|runner: Steps| runner.dispatched(None))),
        ("promote", returned_bytes(|runner: Steps| runner.promote(None))),
        ("end", returned_bytes(|(runner, outcome): (Steps, Outcome)| runner.end(outcome))),
        (
            "write_outcome",
            returned_bytes(|(runner, key, event): (Steps, &'static TaskKey, Event)| runner.write_outcome(key, event)),
        ),
        ("next_event", returned_bytes(|runner: Steps| runner.next_event())),
        ("an event", size_of::<StageEvent>()),
    ];
    println!("{sizes:?}");
    for (step, bytes) in sizes {
        assert!(bytes <= 2_048, "{step}: {bytes}");
    }
}
