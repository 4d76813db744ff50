//! Time as the core sees it: a number that somebody hands in.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The moment `span` later; saturates far in the future.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }

    /// The moment `span` earlier; 1970 at the earliest.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }

    /// Time since `earlier`; zero if that lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 with milliseconds and `Z` (T-63).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // humantime refuses years past 9999; no clock of ours shows one.
        let last = Duration::from_secs(253_402_300_799);
        let at = UNIX_EPOCH + Duration::from_millis(self.0).min(last);
        humantime::format_rfc3339_millis(at).fmt(f)
    }
}

/// A duration in whole milliseconds; saturates.
#[must_use]
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Where time comes from. Everything that decides by time asks this, so that tests can move it.
pub trait Clock: Send + Sync + fmt::Debug {
    fn now(&self) -> Timestamp;
}

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Timestamp(millis(since))
    }
}

/// A clock that never goes back: not behind what it showed before, and not behind where it begins. While the one below
/// it is behind, time stands still: nothing comes back that was gone, and nothing ends early (reliability.md d.6).
#[derive(Debug)]
pub struct SteadyClock<C> {
    below: C,
    shown: AtomicU64,
}

impl<C: Clock> SteadyClock<C> {
    #[must_use]
    pub const fn new(below: C, begin: Timestamp) -> Self {
        Self { below, shown: AtomicU64::new(begin.0) }
    }
}

impl<C: Clock> Clock for SteadyClock<C> {
    fn now(&self) -> Timestamp {
        let now = self.below.now();
        Timestamp(self.shown.fetch_max(now.0, Ordering::Relaxed)).max(now)
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    #[must_use]
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

    /// F58.
    #[test]
    fn f58_a_steady_clock_stands_while_the_one_below_it_is_set_back() {
        let shown = [1_000, 2_000, 2_000, 2_000, 2_500];
        let clock = SteadyClock::new(ManualClock::at(Timestamp(900)), Timestamp(1_000));
        for (below, expected) in [900, 2_000, 0, 1_999, 2_500].into_iter().zip(shown) {
            clock.below.0.store(below, Ordering::SeqCst);
            assert_eq!(clock.now(), Timestamp(expected), "below it: {below}");
        }
    }

    #[test]
    fn timestamps_are_written_as_rfc_3339_with_milliseconds() {
        assert_eq!(Timestamp::from_millis(1_785_196_800_007).to_string(), "2026-07-28T00:00:00.007Z");
        assert_eq!(Timestamp::from_millis(u64::MAX).to_string(), "9999-12-31T23:59:59.000Z");
    }
}
