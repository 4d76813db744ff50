//! Measures the memory of a waiting call.

use super::Runner;

/// The size of a function's return type.
const fn returned_bytes<A, R>(_: fn(A) -> R) -> usize {
    size_of::<R>()
}

/// With ten thousand waiting calls, their futures take most of the gateway's memory.
#[test]
fn a_call_that_waits_takes_no_room_for_what_it_may_do_next() {
    let bytes = returned_bytes(|runner: Box<Runner>| runner.run());
    assert!(bytes <= 2_048, "{bytes}");
}
