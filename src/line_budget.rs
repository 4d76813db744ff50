//! Limits lines per second, and counts the lines that are left out.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Lines at once, then lines per second.
const LINES_BURST: f64 = 100.0;
const LINES_PER_SECOND: f64 = 20.0;

/// The least time between two lines about the same trouble.
const SAME_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct LineBudget(Mutex<Balance>);

#[derive(Debug)]
struct Balance {
    lines: f64,
    at: Instant,
    left_out: u64,
}

impl LineBudget {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Balance { lines: LINES_BURST, at: Instant::now(), left_out: 0 }))
    }

    /// How many lines were left out before this one; `None` if it is left out too.
    pub(crate) fn admit(&self) -> Option<u64> {
        let mut balance = self.0.lock();
        let now = Instant::now();
        let refilled = now.duration_since(balance.at).as_secs_f64() * LINES_PER_SECOND;
        balance.at = now;
        balance.lines = (balance.lines + refilled).min(LINES_BURST);
        if balance.lines < 1.0 {
            balance.left_out += 1;
            return None;
        }
        balance.lines -= 1.0;
        Some(std::mem::take(&mut balance.left_out))
    }
}

/// Limits the lines about one trouble: one a minute.
#[derive(Debug, Default)]
pub(crate) struct LogPace {
    last: Option<Instant>,
    pub(crate) left_out: u64,
}

impl LogPace {
    pub(crate) fn is_recent(&self) -> bool {
        self.last.is_some_and(|last| last.elapsed() < SAME_EVERY)
    }

    /// As [`LineBudget::admit`].
    pub(crate) fn admit(&mut self) -> Option<u64> {
        if self.is_recent() {
            self.left_out += 1;
            return None;
        }
        self.last = Some(Instant::now());
        Some(std::mem::take(&mut self.left_out))
    }
}

#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<LogPace>);

impl LogLimit {
    pub(crate) fn is_due(&self) -> bool {
        self.0.lock().admit().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn f45_a_flood_of_lines_is_logged_in_part_and_the_rest_counted() {
        let budget = LineBudget::new();
        let logged = (0..10_000).filter(|_| budget.admit().is_some()).count();
        assert_eq!(logged, 100);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(budget.admit(), Some(9_900), "the next line says how many are missing");
    }
}
