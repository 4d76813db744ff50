//! The program started without a file: the commands that it prints work.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

/// The longest that any one line of the program, or one command, is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running program that is ended with the test, in a folder of its own.
struct Program {
    child: Child,
    _folder: TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start() -> (Program, Vec<String>) {
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no folder: {error}"));
    let mut child = Command::new(support::taskgate())
        .env_remove("TASKGATE_CONFIG")
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("the program does not start: {error}"));
    let out = child.stdout.take().unwrap_or_else(|| panic!("stdout is piped"));
    let program = Program { child, _folder: folder };
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let printed = std::iter::from_fn(|| lines.recv_timeout(PATIENCE).ok());
    let mut seen = Vec::new();
    for line in printed {
        seen.push(line);
        if seen.iter().filter(|line| line.starts_with("  ")).count() == 3 {
            break;
        }
    }
    (program, seen)
}

/// Runs a printed line as a person would: pasted into a shell.
fn paste(line: &str) -> Output {
    Command::new("sh").args(["-c", line]).output().unwrap_or_else(|error| panic!("sh does not start: {error}"))
}

#[test]
fn the_three_printed_commands_work() {
    let (_program, lines) = start();
    let commands: Vec<_> = lines.iter().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(commands.len(), 3, "{lines:?}");

    let fast = paste(commands[0]);
    assert_eq!(String::from_utf8_lossy(&fast.stdout).trim(), "Hello, Ada!");

    let slow = paste(commands[1]);
    let said = String::from_utf8_lossy(&slow.stderr);
    assert!(slow.status.success(), "{said}");
    assert!(said.contains("working"), "the call did not become a task: {said}");
    assert!(String::from_utf8_lossy(&slow.stdout).contains("8 sections"));

    let handle = paste(commands[2]);
    let handle = String::from_utf8_lossy(&handle.stdout).into_owned();
    assert!(handle.contains(r#""resultType":"task""#), "{handle}");
}

#[test]
fn a_second_quick_start_takes_other_ports() {
    let (_first, one) = start();
    let (_second, two) = start();
    let address = |lines: &[String]| lines.iter().find(|line| line.starts_with("serving ")).cloned();
    assert!(address(&one).is_some());
    assert_ne!(address(&one), address(&two));
}
