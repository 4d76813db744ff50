//! Logs a program's standard error, and lines of its standard output that are no messages.
//!
//! Lines per second and bytes per line are limited; further lines are counted.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::AsyncReadExt as _;
use tokio::process::ChildStderr;
use tokio::time::Instant;

use crate::metric;

/// The rest of a line is cut off.
const LINE_BYTES_MAX: usize = 1024;
/// Lines at once, then lines per second.
const LINES_BURST: f64 = 100.0;
const LINES_PER_SECOND: f64 = 20.0;
const READ_BYTES: usize = 8 * 1024;
/// Lines of standard error kept for a program started by hand.
const LAST_MAX: usize = 10;

/// The last lines of standard error: for the person who runs the program, never for a log, since they may hold its
/// arguments.
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
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }
}

#[derive(Debug)]
pub(super) struct ProgramOutputLog {
    upstream: Arc<str>,
    budget: Mutex<LogBudget>,
    last: Option<Arc<LastLines>>,
}

#[derive(Debug)]
struct LogBudget {
    lines: f64,
    at: Instant,
    left_out: u64,
}

impl ProgramOutputLog {
    pub(super) fn new(upstream: Arc<str>, last: Option<Arc<LastLines>>) -> Self {
        let budget = LogBudget { lines: LINES_BURST, at: Instant::now(), left_out: 0 };
        Self { upstream, budget: Mutex::new(budget), last }
    }

    pub(super) fn stray(&self, line: &[u8]) {
        self.count("stray_line");
        if let Some(left_out) = self.admit() {
            tracing::warn!(upstream = %self.upstream, left_out, line = shown(line), "a program wrote a line to standard output that is no message");
        }
    }

    /// Programs may write their arguments there, so the level is lower.
    fn said(&self, line: &[u8]) {
        if let Some(last) = &self.last {
            last.keep(shown(line));
        }
        match self.admit() {
            Some(left_out) => {
                tracing::debug!(upstream = %self.upstream, left_out, line = shown(line), "a program wrote to standard error")
            }
            None => self.count("stderr_line"),
        }
    }

    fn count(&self, reason: &'static str) {
        metric::count_dropped(&self.upstream, reason);
    }

    /// How many lines were left out before this one; `None` if it is left out too.
    fn admit(&self) -> Option<u64> {
        let mut budget = self.budget.lock();
        let now = Instant::now();
        let refilled = now.duration_since(budget.at).as_secs_f64() * LINES_PER_SECOND;
        budget.at = now;
        budget.lines = (budget.lines + refilled).min(LINES_BURST);
        if budget.lines < 1.0 {
            budget.left_out += 1;
            return None;
        }
        budget.lines -= 1.0;
        Some(std::mem::take(&mut budget.left_out))
    }
}

/// Without control characters, and of limited length.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(LINE_BYTES_MAX)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Reads to the end: a program without a reader would block on a full pipe.
pub(super) async fn log(mut stderr: ChildStderr, noise: Arc<ProgramOutputLog>) {
    let mut buffer = vec![0; READ_BYTES];
    let mut line = Vec::new();
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        for piece in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            line.extend_from_slice(&text[..text.len().min(LINE_BYTES_MAX.saturating_sub(line.len()))]);
            if piece.len() > text.len() {
                if !line.trim_ascii().is_empty() {
                    noise.said(line.trim_ascii_end());
                }
                line.clear();
            }
        }
    }
    if !line.is_empty() {
        noise.said(&line);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// F45.
    #[tokio::test(start_paused = true)]
    async fn f45_a_flood_of_lines_is_logged_in_part_and_the_rest_counted() {
        let noise = ProgramOutputLog::new(Arc::from("local"), None);
        let logged = (0..10_000).filter(|_| noise.admit().is_some()).count();
        assert_eq!(logged, 100);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(noise.admit(), Some(9_900), "the next line says how many are missing");
    }

    #[test]
    fn of_what_a_program_says_the_last_lines_are_kept() {
        let last = Arc::new(LastLines::default());
        let noise = ProgramOutputLog::new(Arc::from("local"), Some(Arc::clone(&last)));
        (0..1_000).for_each(|n| noise.said(format!("line {n}").as_bytes()));
        let expected: Vec<_> = (990..1_000).map(|n| format!("line {n}")).collect();
        assert_eq!(last.all(), expected, "however many of them are logged");
    }

    #[test]
    fn a_logged_line_is_short_and_plain() {
        let line = [b"\x1b[31mred\xff".as_slice(), &[b'x'; 5_000]].concat();
        let shown = shown(&line);
        assert!(shown.starts_with(" [31mred\u{fffd}x") && shown.len() < 1_100, "{shown}");
    }
}
