//! Runs this binary again at an endpoint of two servers, the other of which is hostile.
//!
//! `endpoint_twin.txt` lists the suites and tests that are left out, each under its reason; a new suite is in.

#[test]
fn tests_of_a_servers_own_path_pass_at_an_endpoint_with_a_hostile_server() {
    support::hostile_twin::run_again(include_str!("endpoint_twin.txt"), 50);
}
