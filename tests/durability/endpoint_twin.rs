//! Runs this binary again at an endpoint of two servers, the other of which is hostile.
//!
//! `endpoint_twin.txt` lists the suites and tests that are left out, each under its reason; a new suite is in.

#[test]
fn what_a_kill_leaves_at_a_servers_own_path_it_leaves_at_an_endpoint_beside_a_hostile_one() {
    support::hostile_twin::run_again(include_str!("endpoint_twin.txt"), 4);
}
