//! Time as the core sees it: a number from the caller.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The time `span` later; saturates far in the future.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }

    /// The time `span` earlier; 1970 at the earliest.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }

    /// The time since `earlier`; zero if that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 with milliseconds and `Z` (T-63).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // humantime rejects years past 9999, which no real clock shows.
        let last = Duration::from_secs(253_402_300_799);
        let at = UNIX_EPOCH + Duration::from_millis(self.0).min(last);
        humantime::format_rfc3339_millis(at).fmt(f)
    }
}

/// A duration in whole milliseconds; saturates.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The source of time for every time-based decision, so that tests can control it.
pub trait Clock: Send + Sync + fmt::Debug {
    fn now(&self) -> Timestamp;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Timestamp(millis(since))
    }
}

/// The task clock of one process: reads the wall clock once, at startup, and then counts elapsed time, so that setting
/// it ends no task early and extends none (F58). Starts no earlier than the last time known to an earlier process.
pub struct SteadyClock<E> {
    begin: Timestamp,
    elapsed: E,
}

impl<E: Fn() -> Duration + Send + Sync> SteadyClock<E> {
    /// `elapsed` is the time since `begin`, on a clock that is never set.
    pub const fn new(begin: Timestamp, elapsed: E) -> Self {
        Self { begin, elapsed }
    }
}

impl<E> fmt::Debug for SteadyClock<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteadyClock").field("begin", &self.begin).finish_non_exhaustive()
    }
}

impl<E: Fn() -> Duration + Send + Sync> Clock for SteadyClock<E> {
    fn now(&self) -> Timestamp {
        self.begin.after((self.elapsed)())
    }
}

#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    pub const fn at(start: Timestamp) -> Self {
        Self(AtomicU64::new(start.0))
    }

    pub fn advance(&self, span: Duration) {
        self.0.fetch_add(millis(span), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_written_as_rfc_3339_with_milliseconds() {
        assert_eq!(Timestamp::from_millis(1_785_196_800_007).to_string(), "2026-07-28T00:00:00.007Z");
        assert_eq!(Timestamp::from_millis(u64::MAX).to_string(), "9999-12-31T23:59:59.000Z");
    }
}
