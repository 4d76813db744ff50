//! Logs a program's standard error, and lines of its standard output that are no messages. Lines per second and bytes
//! per line are limited; further lines are counted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStderr;

use crate::dev_output::{self, DevSource};
use crate::died_programs;
use crate::line_budget::LineBudget;
use crate::metric;
use crate::task::ProcessExit;

/// The rest of a line is cut off.
const LINE_BYTES_MAX: usize = 1024;
const READ_BYTES: usize = 8 * 1024;
/// Lines of standard error that are kept.
const LAST_MAX: usize = 20;

/// The last lines of standard error: they may hold arguments, so the log and tasks get them only by configuration.
#[derive(Debug, Default)]
pub struct LastLines(Mutex<VecDeque<String>>);

impl LastLines {
    fn keep(&self, line: String) {
        let mut lines = self.0.lock();
        if lines.len() == LAST_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// Without control characters, and of limited length.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }
}

/// The use of a program's last lines of standard error when it dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StderrUse {
    /// They are kept from log and tasks.
    #[default]
    Never,
    /// The log and the tasks that failed with the program show them.
    OnDeath,
}

#[derive(Debug)]
pub(super) struct ProgramOutputLog {
    upstream: Arc<str>,
    number: u64,
    budget: LineBudget,
    /// Of all processes, for the person who started them.
    last: Option<Arc<LastLines>>,
    stderr_use: StderrUse,
    of_process: LastLines,
    /// The newest lines that were not printed.
    unshown: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessEnd {
    pub(super) exit: Option<ProcessExit>,
    /// Whether the gateway did not stop it.
    pub(super) is_own: bool,
}

impl ProgramOutputLog {
    /// `number` is the process's.
    pub(super) fn new(upstream: Arc<str>, number: u64, last: Option<Arc<LastLines>>, stderr_use: StderrUse) -> Self {
        let (budget, of_process, unshown) = (LineBudget::new(), LastLines::default(), AtomicU64::new(0));
        Self { upstream, number, budget, last, stderr_use, of_process, unshown }
    }

    /// The text may hold arguments or results, so only its length is logged at the usual level (B236).
    pub(super) fn stray(&self, line: &[u8]) {
        self.count("stray_line");
        if let Some(left_out) = self.budget.admit() {
            let (bytes, line) = (line.len(), shown(line));
            dev_output::show_output(DevSource::Stdout, left_out, &format!("is not a message: {line}"));
            tracing::warn!(upstream = %self.upstream, left_out, bytes, "a program wrote a line to standard output that is not a message");
            tracing::debug!(upstream = %self.upstream, line, "the line of standard output that is not a message");
        }
    }

    /// Programs may write their arguments there, so the level is lower.
    fn said(&self, line: &[u8]) {
        let line = shown(line);
        if let Some(last) = &self.last {
            last.keep(line.clone());
        }
        if self.stderr_use == StderrUse::OnDeath || dev_output::is_on() {
            self.of_process.keep(line.clone());
        }
        match self.budget.admit() {
            Some(left_out) => {
                self.unshown.store(0, Ordering::Relaxed);
                dev_output::show_output(DevSource::Stderr, left_out, &line);
                tracing::debug!(upstream = %self.upstream, left_out, line, "a program wrote to standard error")
            }
            None => {
                self.unshown.fetch_add(1, Ordering::Relaxed);
                self.count("stderr_line");
            }
        }
    }

    /// Records the process's end, after its last line.
    pub(super) fn ended(&self, end: ProcessEnd) {
        let lines = self.of_process.all();
        let how = end.exit.map(|exit| format!(" {exit}")).unwrap_or_default();
        let (kept, unshown) = (lines.len() as u64, self.unshown.load(Ordering::Relaxed));
        let mut left_out = unshown.saturating_sub(kept);
        for (_, line) in (0..).zip(&lines).skip_while(|(at, _)| at + unshown < kept) {
            dev_output::show_output(DevSource::Stderr, std::mem::take(&mut left_out), line);
        }
        dev_output::show(DevSource::Program, format_args!("ended{how}"));
        if end.is_own && self.stderr_use == StderrUse::OnDeath {
            // `taskgate dev` has shown them.
            if !dev_output::is_on() {
                tracing::warn!(upstream = %self.upstream, stderr = ?lines, "a program ended{how}");
            }
            died_programs::keep(self.number, lines);
        }
    }

    fn count(&self, reason: &'static str) {
        metric::count_dropped(&self.upstream, reason);
    }
}

fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(LINE_BYTES_MAX)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Reads to the end: a program without a reader would block on a full pipe.
pub(super) async fn log(mut stderr: ChildStderr, output_log: &ProgramOutputLog) {
    let mut buffer = vec![0; READ_BYTES];
    let mut line = Vec::new();
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        for piece in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            line.extend_from_slice(&text[..text.len().min(LINE_BYTES_MAX.saturating_sub(line.len()))]);
            if piece.len() > text.len() {
                if !line.trim_ascii().is_empty() {
                    output_log.said(line.trim_ascii_end());
                }
                line.clear();
            }
        }
    }
    if !line.is_empty() {
        output_log.said(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_a_programs_output_are_kept() {
        let last = Arc::new(LastLines::default());
        let output_log = ProgramOutputLog::new(Arc::from("local"), 1, Some(Arc::clone(&last)), StderrUse::Never);
        (0..1_000).for_each(|n| output_log.said(format!("line {n}").as_bytes()));
        let expected: Vec<_> = (980..1_000).map(|n| format!("line {n}")).collect();
        assert_eq!(last.all(), expected, "however many of them are logged");
    }

    #[test]
    fn a_logged_line_is_short_and_plain() {
        let line = [b"\x1b[31mred\xff".as_slice(), &[b'x'; 5_000]].concat();
        let shown = shown(&line);
        assert!(shown.starts_with(" [31mred\u{fffd}x") && shown.len() < 1_100, "{shown}");
    }
}
