//! Schedules the polls of an upstream's own task. Pure, except for jitter.

use std::time::Duration;

use tokio::time::Instant;

/// The poll interval if the upstream names none.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
/// Bounds on the upstream's interval: below, polls flood it; above, it looks forgotten.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(5 * 60);
/// Shortest time between two polls caused by hints: some upstreams hint at every step.
const HINTS_APART: Duration = Duration::from_millis(250);
const BACKOFF_MIN: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How long before the call's deadline its task is polled a last time.
const LAST_LOOK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct PollSchedule {
    /// The call's start, before its task was made.
    began: Instant,
    deadline: Option<Instant>,
    /// When the upstream may forget the task, if before the deadline.
    expires: Option<Instant>,
    interval: Duration,
    failures: u32,
    last: Instant,
}

impl PollSchedule {
    pub(super) const fn new(began: Instant, deadline: Option<Instant>) -> Self {
        Self { began, deadline, expires: None, interval: INTERVAL_DEFAULT, failures: 0, last: began }
    }

    /// `ttl` counts from the task's creation.
    pub(super) fn learn(&mut self, now: Instant, interval: Option<Duration>, ttl: Option<Duration>) {
        self.interval = interval.unwrap_or(INTERVAL_DEFAULT).clamp(INTERVAL_MIN, INTERVAL_MAX);
        let expires = ttl.and_then(|ttl| self.began.checked_add(ttl));
        self.expires = expires.filter(|expires| self.deadline.is_none_or(|deadline| *expires < deadline));
        self.failures = 0;
        self.last = now;
    }

    pub(super) const fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.last = now;
    }

    /// The next poll: after the interval and up to a tenth of it, by `dice` (UPC-01). Sooner if the upstream may soon
    /// forget the task, and once just before the call's deadline.
    pub(super) fn next(&self, dice: u8) -> Instant {
        let base = match self.failures {
            0 => self.interval,
            failures => {
                let backoff = self.interval.max(BACKOFF_MIN) * 2_u32.pow(failures.min(16) - 1);
                backoff.min(BACKOFF_MAX.max(self.interval))
            }
        };
        let mut next = self.last + base + base / 10 * u32::from(dice) / u32::from(u8::MAX);
        if let Some(left) = self.expires.and_then(|expires| expires.checked_duration_since(self.last)) {
            next = next.min(self.last + (left / 2).max(INTERVAL_MIN));
        }
        if let Some(look) = self.deadline.and_then(|deadline| deadline.checked_sub(LAST_LOOK))
            && look > self.last
        {
            next = next.min(look);
        }
        next
    }

    /// The earliest poll after a hint.
    pub(super) fn soonest(&self) -> Instant {
        self.last + HINTS_APART
    }
}

/// Jitter, so that tasks of one moment are not polled at one moment.
pub(super) fn dice() -> u8 {
    let mut byte = [0];
    // Without randomness all tasks are polled together.
    let _ = getrandom::fill(&mut byte);
    byte[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn pace(deadline: Option<u64>) -> (Instant, PollSchedule) {
        let start = Instant::now();
        (start, PollSchedule::new(start, deadline.map(|deadline| start + s(deadline))))
    }

    #[track_caller]
    fn check(pace: &PollSchedule, dice: u8, from: Instant, expected: Duration) {
        assert_eq!(pace.next(dice).duration_since(from), expected);
    }

    #[test]
    fn upc_01_the_upstreams_interval_is_kept_within_bounds() {
        for (asked, kept) in [
            (None, s(1)),
            (Some(s(5)), s(5)),
            (Some(Duration::ZERO), Duration::from_millis(100)),
            (Some(s(3_600)), s(300)),
        ] {
            let (start, mut pace) = pace(None);
            pace.learn(start, asked, None);
            check(&pace, 0, start, kept);
            assert_eq!(pace.next(u8::MAX).duration_since(start), kept + kept / 10, "at most a tenth later");
        }
    }

    #[test]
    fn polls_that_fail_back_off_to_half_a_minute() {
        let (start, mut pace) = pace(None);
        pace.learn(start, Some(Duration::from_millis(200)), None);
        let mut waits = Vec::new();
        for _ in 0..40 {
            pace.failed(start);
            waits.push(u64::try_from(pace.next(0).duration_since(start).as_millis()).unwrap());
        }
        assert_eq!(waits[..9], [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        assert_eq!(waits.last(), Some(&30_000));
        pace.learn(start, Some(s(60)), None);
        pace.failed(start);
        check(&pace, 0, start, s(60));
    }

    #[test]
    fn a_task_that_the_upstream_will_forget_before_the_deadline_is_polled_faster_near_its_end() {
        let (start, mut pace) = pace(Some(1_800));
        pace.learn(start, Some(s(5)), Some(s(60)));
        check(&pace, 0, start, s(5));
        pace.learn(start + s(55), Some(s(5)), Some(s(60)));
        check(&pace, 0, start + s(55), Duration::from_millis(2_500));
        pace.learn(start + s(59), Some(s(5)), Some(s(60)));
        check(&pace, 0, start + s(59), Duration::from_millis(500));
        pace.learn(start + Duration::from_millis(59_999), Some(s(5)), Some(s(60)));
        check(&pace, 0, start + Duration::from_millis(59_999), Duration::from_millis(100));
        // Some count the time to live from the end (T-68): then the task is still there, and there is no hurry.
        pace.learn(start + s(61), Some(s(5)), Some(s(60)));
        check(&pace, 0, start + s(61), s(5));
        pace.learn(start + s(1_000), Some(s(5)), Some(s(1_800)));
        check(&pace, 0, start + s(1_000), s(5));
    }

    #[test]
    fn the_last_poll_is_a_second_before_the_deadline() {
        let (start, mut pace) = pace(Some(10));
        pace.learn(start + s(4), Some(s(60)), None);
        check(&pace, u8::MAX, start, s(9));
        pace.failed(start + s(4));
        check(&pace, 0, start, s(9));
        pace.learn(start + s(9), Some(s(60)), None);
        check(&pace, 0, start, s(69));
    }
}
