//! Runs the tests of a server's own path again at an endpoint of two servers, the other of which is hostile: what a client gets of
//! its server is the same there. `endpoint_twin.txt` lists the suites and tests that are left out, each under its reason; a new
//! suite of faces is in.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::collections::BTreeSet;
use std::env;
use std::process::Command;

use support::hostile_twin::{TWIN, is_wanted};

/// Names under their reasons, which begin with `# `. One that ends in `::` is of a suite.
const LEFT_OUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faces/endpoint_twin.txt");

/// The names of all tests of this binary.
fn names() -> BTreeSet<String> {
    let listed = Command::new(env::current_exe().unwrap()).args(["--list", "--format", "terse"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Takes out the names of the list. Each of them is there, and has a reason.
fn without_left_out(mut names: BTreeSet<String>, list: &str) -> BTreeSet<String> {
    let mut reason = "";
    for line in list.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("# ") {
            Some(stated) => reason = stated,
            None => {
                let before = names.len();
                names.retain(|name| if line.ends_with("::") { !name.starts_with(line) } else { name != line });
                assert!(reason.len() > 20, "{line} has no reason");
                assert!(names.len() < before, "{line} is left out, and no such test is there");
            }
        }
    }
    names
}

#[test]
fn what_holds_at_a_servers_own_path_holds_at_an_endpoint_beside_a_hostile_one() {
    if is_wanted() {
        return;
    }
    let names = without_left_out(names(), &std::fs::read_to_string(LEFT_OUT).unwrap());
    assert!(names.len() >= 200, "only {} tests are left", names.len());
    let mut child = Command::new(env::current_exe().unwrap());
    // Most of them wait.
    let output = child.args(["--test-threads", "8", "--exact"]).args(&names).env(TWIN, "1").output().unwrap();
    let (said, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{log}");
}
