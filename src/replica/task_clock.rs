//! The common time of all tasks, which no replica's wall clock moves. A replica adopts the time from living replicas,
//! advances it with its machine's clock, and slews it towards the furthest one. So neither a replica nor a database
//! server with a wrong clock ends a task early or late.

use std::time::Duration;

use crate::replica::BootTime;
use crate::task::Timestamp;

/// Maximum speed-up in millionths: more than machines' clocks drift. Half a second in a quarter of an hour is unseen.
pub const SLEW_PPM_MAX: u32 = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStart {
    /// The highest task time in living replicas' rows. Overrides the others.
    pub living: Option<Timestamp>,
    /// The wall clock of the store's server.
    pub server: Timestamp,
    /// The newest time in the store, of rows and of dead replicas, so that no expired task returns.
    pub stored: Option<Timestamp>,
}

impl ClockStart {
    pub fn begin(self) -> Timestamp {
        self.living.unwrap_or_else(|| self.stored.map_or(self.server, |stored| stored.max(self.server)))
    }
}

/// One replica's task clock. It never goes back, and runs at most [`SLEW_PPM_MAX`] faster than time passes.
#[derive(Clone, Debug)]
pub struct TaskClock {
    /// Microseconds since 1970 at `at`; in milliseconds, the slew of short spans would be lost.
    micros: u64,
    at: BootTime,
    /// Microseconds behind the furthest replica, at `at`.
    behind: u64,
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl TaskClock {
    pub const fn new(begin: Timestamp, at: BootTime) -> Self {
        Self { micros: begin.as_millis().saturating_mul(1_000), at, behind: 0 }
    }

    /// The time at an instant. It stands still before the latest [`Self::steer`].
    pub fn now(&self, at: BootTime) -> Timestamp {
        Timestamp::from_millis(self.micros_at(at) / 1_000)
    }

    /// Slews towards the highest time of living replicas in a look. A row has the time of its replica's last heartbeat,
    /// so this clock trails the furthest by less than a heartbeat interval and never drives it forward.
    pub fn steer(&mut self, highest: Timestamp, at: BootTime) {
        // Looks may arrive out of order; the clock never goes back.
        let at = at.max(self.at);
        let now = self.micros_at(at);
        self.behind = highest.as_millis().saturating_mul(1_000).saturating_sub(now);
        (self.micros, self.at) = (now, at);
    }

    fn micros_at(&self, at: BootTime) -> u64 {
        let passed = micros(at.since(self.at));
        let slewed = (passed / 1_000_000 * u64::from(SLEW_PPM_MAX))
            .saturating_add(passed % 1_000_000 * u64::from(SLEW_PPM_MAX) / 1_000_000);
        self.micros.saturating_add(passed).saturating_add(slewed.min(self.behind))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    const fn at(millis: u64) -> BootTime {
        BootTime(Duration::from_millis(millis))
    }

    #[test]
    fn a_new_replica_takes_the_time_of_living_replicas_and_not_the_servers() {
        let hour_ahead = ms(3_600_000 + 10_000);
        assert_eq!(
            ClockStart { living: Some(ms(10_000)), server: hour_ahead, stored: Some(hour_ahead) }.begin(),
            ms(10_000)
        );
        assert_eq!(ClockStart { living: None, server: ms(9_000), stored: Some(ms(10_000)) }.begin(), ms(10_000));
        assert_eq!(ClockStart { living: None, server: ms(11_000), stored: Some(ms(10_000)) }.begin(), ms(11_000));
        assert_eq!(ClockStart { living: None, server: ms(11_000), stored: None }.begin(), ms(11_000));
    }

    #[test]
    fn a_clock_that_is_behind_catches_up_by_half_a_thousandth() {
        let mut clock = TaskClock::new(ms(1_000_000), at(0));
        clock.steer(ms(1_000_100), at(0));
        assert_eq!(clock.now(at(100_000)), ms(1_100_050));
        assert_eq!(clock.now(at(200_000)), ms(1_200_100));
        // It has caught up, and runs at normal speed.
        assert_eq!(clock.now(at(400_000)), ms(1_400_100));
    }

    #[test]
    fn a_clock_that_is_ahead_does_not_wait() {
        let mut clock = TaskClock::new(ms(1_000_000), at(0));
        clock.steer(ms(900_000), at(1_000));
        assert_eq!(clock.now(at(2_000)), ms(1_002_000));
    }

    /// Two replicas that follow each other's heartbeats stay together, and do not speed each other up.
    #[test]
    fn clocks_that_follow_each_other_do_not_run_away() {
        let mut clocks = [TaskClock::new(ms(1_000_000), at(0)), TaskClock::new(ms(1_000_400), at(0))];
        for heartbeat in 1..=1_000_u64 {
            let now = at(heartbeat * 2_000);
            let shown = clocks.clone().map(|clock| clock.now(now));
            for (clock, other) in clocks.iter_mut().zip([shown[1], shown[0]]) {
                clock.steer(other, at(heartbeat * 2_000 + 300));
            }
        }
        let end = at(2_001_000);
        assert_eq!(clocks[1].now(end), ms(1_000_400 + 2_001_000), "no clock drives the furthest");
        let apart = clocks[1].now(end).since(clocks[0].now(end));
        assert!(apart <= Duration::from_millis(301), "{apart:?}");
    }

    proptest! {
        #[test]
        fn the_clock_never_goes_back_and_gains_at_most_its_slew(
            begin in 0_u64..1 << 42,
            steps in prop::collection::vec((0_u64..100_000_000, prop::option::of(0_u64..1 << 43)), 1..60),
        ) {
            let mut clock = TaskClock::new(ms(begin), at(0));
            let (mut passed, mut before) = (0_u64, ms(begin));
            for (step, highest) in steps {
                passed += step;
                let now = BootTime(Duration::from_micros(passed));
                prop_assert!(clock.now(now) >= before, "it went back");
                if let Some(highest) = highest {
                    let shown = clock.now(now);
                    clock.steer(ms(highest), now);
                    prop_assert_eq!(clock.now(now), shown, "it jumped");
                }
                before = clock.now(now);
                let gained = before.as_millis() * 1_000 - begin * 1_000;
                let most = passed + passed * u64::from(SLEW_PPM_MAX) / 1_000_000;
                prop_assert!(gained <= most && gained + 1_000 > passed, "{gained} µs in {passed} µs");
            }
        }

        #[test]
        fn an_instant_that_comes_late_turns_nothing_back(early in 0_u64..1_000, late in 1_000_u64..2_000, highest in 0_u64..1 << 40) {
            let mut clock = TaskClock::new(ms(1 << 30), at(0));
            clock.steer(ms(highest), at(late));
            let shown = clock.now(at(late));
            clock.steer(ms(highest), at(early));
            prop_assert!(clock.now(at(late)) >= shown && clock.now(at(early)) >= shown);
        }
    }
}
