//! What a call takes while it waits.

use super::Runner;

/// Bytes of what a function returns.
const fn returned_bytes<A, R>(_: fn(A) -> R) -> usize {
    size_of::<R>()
}

/// The futures of ten thousand calls that wait are what the gateway's memory goes to.
#[test]
fn a_call_that_waits_takes_no_room_for_what_it_may_do_next() {
    let bytes = returned_bytes(|runner: Box<Runner>| runner.run());
    assert!(bytes <= 2_048, "{bytes}");
}
