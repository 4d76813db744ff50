//! Signals processes, and finds those that came from one.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Sends a signal, named without `SIG`; whether there was such a process.
pub fn signal(id: u32, name: &str) -> bool {
    let mut command = Command::new("kill");
    command.args(["-s", name, &id.to_string()]).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Those that a process started and that live, by process id.
pub fn children(id: u32) -> Vec<u32> {
    let ids = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    ids.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Those that live with a mark in their environment, by process id. At least one process must be visible at all.
pub fn marked(mark: &Path) -> Vec<u32> {
    let mark = format!("MARK={}", mark.display());
    let all = fs::read_dir("/proc").unwrap().flatten();
    let ids: Vec<u32> = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    assert!(ids.len() >= 2, "at least this test and the first process are there");
    let is_marked = |id: &u32| {
        let environ = fs::read(Path::new("/proc").join(id.to_string()).join("environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    ids.into_iter().filter(is_marked).collect()
}
