//! Defines time as the core sees it: a number that a caller hands in.

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
        // Years past 9999 have no such form; no clock of ours shows one.
        let millis = self.0.min(253_402_300_799_000);
        let (days, of_day) = (millis / 86_400_000, millis % 86_400_000);
        let (year, month, day) = date(days);
        let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
        let (second, milli) = (of_day / 1_000 % 60, of_day % 1_000);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        for (at, number) in [
            (0..4, year),
            (5..7, month),
            (8..10, day),
            (11..13, hour),
            (14..16, minute),
            (17..19, second),
            (20..23, milli),
        ] {
            text[at].iter_mut().rev().fold(number, |rest, digit| {
                *digit += (rest % 10) as u8;
                rest / 10
            });
        }
        f.write_str(std::str::from_utf8(&text).expect("digits are ASCII"))
    }
}

/// Year, month and day of so many days after 1970 began. Counted in years that begin in March, so that a leap day is the
/// last of its year, and in the 400 years after which all comes again.
const fn date(days: u64) -> (u64, u64, u64) {
    const CYCLE: u64 = 146_097;
    // Days from March of the year 0 to 1970.
    let days = days + 719_468;
    let (cycle, day) = (days / CYCLE, days % CYCLE);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, is_next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year + 400 * cycle + is_next, month, day)
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

/// The time of tasks within one life of the process: the wall clock is read once, at the beginning, and from then on
/// only what has passed counts. Whoever sets the wall clock, forwards, back or bit by bit, ends no task early, extends
/// none, and no time that was shown is followed by an earlier one (F58). It begins at the latest time
/// that an earlier life knew of, so that nothing comes back that was gone.
pub struct SteadyClock<E> {
    begin: Timestamp,
    elapsed: E,
}

impl<E: Fn() -> Duration + Send + Sync> SteadyClock<E> {
    /// `elapsed` is what has passed since `begin`, by a clock that nobody sets.
    #[must_use]
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

    #[test]
    fn timestamps_are_written_as_rfc_3339_with_milliseconds() {
        assert_eq!(Timestamp::from_millis(1_785_196_800_007).to_string(), "2026-07-28T00:00:00.007Z");
        assert_eq!(Timestamp::from_millis(u64::MAX).to_string(), "9999-12-31T23:59:59.000Z");
    }

    #[test]
    fn every_day_has_its_date() {
        for day in (0..40_000_u64).chain((0..=2_932_896).step_by(61)) {
            let at = Duration::from_secs(day * 86_400) + Duration::from_millis(day % 86_400_000);
            let expected = humantime::format_rfc3339_millis(UNIX_EPOCH + at).to_string();
            assert_eq!(Timestamp::from_millis(millis(at)).to_string(), expected);
        }
    }
}
