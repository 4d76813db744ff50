//! Child processes of a test: started by their arguments, read while they run, ended by their id.
//!
//! Knows nothing of MCP. A child's output goes to a file under `target/peers-logs`, so that a failed run can be
//! examined.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::WAIT_MAX;
use crate::processes;

/// How long a child may take to end after it was asked to.
const END_MAX: Duration = Duration::from_secs(3);
const END_CHECK_PERIOD: Duration = Duration::from_millis(20);
/// Lines that wait to be looked at. Further ones only go to the log.
const LINES_MAX: usize = 64;

/// Where a child's output goes. `name` is one that no other child of this test has.
///
/// # Errors
/// If the folder cannot be created.
pub fn log_file(name: &str) -> Result<PathBuf, String> {
    let dir = crate::target_dir().join("peers-logs");
    std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir.join(format!("{name}.log")))
}

/// A running child. Dropping it asks it to end, makes it if need be, and reaps it.
#[derive(Debug)]
pub struct Child {
    process: tokio::process::Child,
    name: String,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    _readers: JoinSet<()>,
}

impl Child {
    /// Starts `command`; both of its outputs are read until it ends.
    ///
    /// # Errors
    /// If the program cannot be started, or its log cannot be written.
    pub fn start(name: &str, mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::null());
        Self::spawn(name, command)
    }

    /// As [`Child::start`], for a program that [`Child::send`] can talk to.
    ///
    /// # Errors
    /// As there.
    pub fn start_talking(name: &str, mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped());
        Self::spawn(name, command)
    }

    fn spawn(name: &str, mut command: Command) -> Result<Self, String> {
        let log = log_file(name)?;
        let log = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let copy = log.try_clone().map_err(|error| format!("the log of {name}: {error}"))?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("{name} cannot be started: {error}"))?;
        let (sender, lines) = mpsc::channel(LINES_MAX);
        let mut readers = JoinSet::new();
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
        readers.spawn(read(stdout.expect("stdout is piped"), log, sender.clone()));
        readers.spawn(read(stderr.expect("stderr is piped"), copy, sender));
        let input = process.stdin.take();
        Ok(Self { process, name: name.to_owned(), input, lines, _readers: readers })
    }

    /// The rest of the next line that begins with `start`; earlier lines are skipped.
    ///
    /// # Errors
    /// If the child ends or [`WAIT_MAX`] passes first.
    pub async fn line(&mut self, start: &str) -> Result<String, String> {
        let found = async {
            while let Some(line) = self.lines.recv().await {
                if let Some(rest) = line.strip_prefix(start) {
                    return Ok(rest.trim().to_owned());
                }
            }
            Err(format!("{} ended without the line `{start}…`", self.name))
        };
        let late = |_| Err(format!("{} printed no line `{start}…` in time", self.name));
        timeout(WAIT_MAX, found).await.unwrap_or_else(late)
    }

    /// The next line of either output; `None` once it has closed both.
    ///
    /// # Errors
    /// If there is none within `limit`.
    pub async fn next_line(&mut self, limit: Duration) -> Result<Option<String>, String> {
        let line = timeout(limit, self.lines.recv()).await;
        line.map_err(|_| format!("{} said nothing in time", self.name))
    }

    /// Writes a line to its input.
    ///
    /// # Errors
    /// If it does not read any more.
    pub async fn send(&mut self, line: &str) -> Result<(), String> {
        let deaf = || format!("{} does not listen", self.name);
        let input = self.input.as_mut().ok_or_else(deaf)?;
        input.write_all(format!("{line}\n").as_bytes()).await.map_err(|error| format!("{}: {error}", deaf()))
    }

    /// Ends it at once, as a crash would.
    ///
    /// # Errors
    /// If the system cannot.
    pub async fn kill(&mut self) -> Result<(), String> {
        self.process.kill().await.map_err(|error| format!("{} cannot be killed: {error}", self.name))
    }

    /// Asks it to end, as a person at a terminal does.
    ///
    /// # Errors
    /// If it has ended, or the system cannot.
    pub fn interrupt(&self) -> Result<(), String> {
        let id = self.process.id().ok_or_else(|| format!("{} has ended", self.name))?;
        if processes::signal(id, "INT") { Ok(()) } else { Err(format!("{} cannot be asked to end", self.name)) }
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // An id exists as long as the child was not reaped, so that no other process can have it.
        let Some(id) = self.process.id() else { return };
        // The standard library can only kill; a gateway that is asked politely closes its upstream sessions.
        let was_asked = processes::signal(id, "TERM");
        let mut left = END_MAX;
        while was_asked && !self.has_ended() && !left.is_zero() {
            thread::sleep(END_CHECK_PERIOD);
            left = left.saturating_sub(END_CHECK_PERIOD);
        }
        if !self.has_ended() {
            let _ = self.process.start_kill();
            while !self.has_ended() {
                thread::sleep(END_CHECK_PERIOD);
            }
        }
    }
}

async fn read(output: impl AsyncRead + Unpin, mut log: File, lines: mpsc::Sender<String>) {
    let mut output = BufReader::new(output).lines();
    while let Ok(Some(line)) = output.next_line().await {
        let _ = writeln!(log, "{line}");
        let _ = lines.try_send(line);
    }
}
