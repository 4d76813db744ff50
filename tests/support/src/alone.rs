//! Runs a test in a process of its own, for changes that concern the whole process.

use std::env;
use std::process::Command;

/// Set in the process that a test has to itself.
const ALONE: &str = "TASKGATE_TEST_ALONE";

/// Whether this process runs `test` alone; otherwise it is run so now, to its end. `test` is its path in the binary.
///
/// # Panics
/// If it fails there, or no test has this name.
pub fn is(test: &str) -> bool {
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let mut child = Command::new(env::current_exe().unwrap());
    let output = child.args(["--exact", test]).env(ALONE, "1").output().unwrap();
    let (said, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{log}");
    false
}
