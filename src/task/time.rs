//! Time as the core sees it: a number from the caller.

use std::fmt;
use std::ops::Range;
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

/// The last second of the year 9999: no real clock shows a later one.
const LAST_MILLIS: u64 = 253_402_300_799_000;
const DAY_MILLIS: u64 = 24 * 60 * 60 * 1_000;

impl Timestamp {
    /// RFC 3339 with milliseconds and `Z` (T-63), in the same number of bytes for every time.
    pub fn text(self) -> [u8; 24] {
        let millis = self.0.min(LAST_MILLIS);
        let ((year, month, day), clock) = (civil_date(millis / DAY_MILLIS), millis % DAY_MILLIS);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let mut put = |at: Range<usize>, mut number: u64| {
            for digit in text[at].iter_mut().rev() {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
        };
        put(0..4, year);
        put(5..7, month);
        put(8..10, day);
        put(11..13, clock / 3_600_000);
        put(14..16, clock / 60_000 % 60);
        put(17..19, clock / 1_000 % 60);
        put(20..23, clock % 1_000);
        text
    }
}

/// Year, month and day so many days after 1970 began, by eras of 400 years and years that begin in March.
const fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let (month, next_year) = if from_march < 10 { (from_march + 3, 0) } else { (from_march - 9, 1) };
    (era * 400 + year + next_year, month, day)
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).expect("digits are UTF-8"))
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
        for millis in (0..LAST_MILLIS).step_by(usize::try_from(29 * DAY_MILLIS + 3_723_456).unwrap()) {
            let at = Duration::from_millis(millis);
            let expected = humantime::format_rfc3339_millis(UNIX_EPOCH + at).to_string();
            assert_eq!(Timestamp::from_millis(millis).to_string(), expected);
        }
        for leap in ["2000-02-29", "2024-02-29", "2100-02-28", "2100-03-01", "2400-02-29", "2024-12-31"] {
            let expected = [leap, "23:59:59.999Z"].join("T");
            let at = humantime::parse_rfc3339(&expected).unwrap().duration_since(UNIX_EPOCH).unwrap();
            assert_eq!(Timestamp::from_millis(millis(at)).to_string(), expected);
        }
    }
}
