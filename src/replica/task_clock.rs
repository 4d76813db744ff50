//! Keeps the one time of all tasks, which no wall clock of a replica moves.
//!
//! A replica takes it over from those that live, goes on by what passes on its own machine, and draws near to the one that is
//! furthest. So neither a replica whose clock is wrong nor a failover to such a server ends a task early or late.

use std::time::Duration;

use crate::replica::BootTime;
use crate::task::Timestamp;

/// By how much the clock may run faster than time passes, in millionths: less than what clocks of machines differ by is not
/// enough, and half a second in a quarter of an hour is noticed by nobody.
pub const SLEW_PPM_MAX: u32 = 500;

/// What a new replica knows of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStart {
    /// The highest time of a task clock in the lines of living replicas. If there is one, nothing else counts.
    pub living: Option<Timestamp>,
    /// The wall clock of the store's server.
    pub server: Timestamp,
    /// The newest time in the store: of rows, and of the lines of the dead. Nothing comes back that was gone.
    pub stored: Option<Timestamp>,
}

impl ClockStart {
    /// The time that a clock begins at.
    #[must_use]
    pub fn begin(self) -> Timestamp {
        self.living.unwrap_or_else(|| self.stored.map_or(self.server, |stored| stored.max(self.server)))
    }
}

/// The time of tasks on one replica. It never goes back, and in any span moves on by that span and at most [`SLEW_PPM_MAX`] more.
#[derive(Clone, Debug)]
pub struct TaskClock {
    /// Microseconds since 1970 at `at`: in milliseconds the slew of short spans would be lost.
    micros: u64,
    at: BootTime,
    /// How many microseconds of the way to the furthest replica were left at `at`.
    behind: u64,
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl TaskClock {
    /// A clock that showed `begin` at that instant. See [`ClockStart::begin`].
    #[must_use]
    pub const fn new(begin: Timestamp, at: BootTime) -> Self {
        Self { micros: begin.as_millis().saturating_mul(1_000), at, behind: 0 }
    }

    /// The time at an instant. Before the latest [`Self::steer`] it stands still.
    #[must_use]
    pub fn now(&self, at: BootTime) -> Timestamp {
        Timestamp::from_millis(self.micros_at(at) / 1_000)
    }

    /// Draws nearer to the highest time that a look showed of living replicas, from that instant on. The instant is when the look
    /// came back: the time in a line is that of its replica's last beat, so this clock follows the furthest by less than a beat
    /// and never drives it on. One that is behind changes nothing.
    pub fn steer(&mut self, highest: Timestamp, at: BootTime) {
        // Looks may be handed in out of turn; the clock does not turn back for that.
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
    fn a_new_replica_takes_the_time_of_the_living_whatever_the_server_says() {
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
        // It has caught up, and goes on as time does.
        assert_eq!(clock.now(at(400_000)), ms(1_400_100));
    }

    #[test]
    fn a_clock_that_is_ahead_waits_for_nobody() {
        let mut clock = TaskClock::new(ms(1_000_000), at(0));
        clock.steer(ms(900_000), at(1_000));
        assert_eq!(clock.now(at(2_000)), ms(1_002_000));
    }

    /// Two replicas that look at each other's beats stay together, and drive each other no faster than time passes.
    #[test]
    fn clocks_that_follow_each_other_do_not_run_away() {
        let mut clocks = [TaskClock::new(ms(1_000_000), at(0)), TaskClock::new(ms(1_000_400), at(0))];
        for beat in 1..=1_000_u64 {
            let now = at(beat * 2_000);
            let shown = clocks.clone().map(|clock| clock.now(now));
            for (clock, other) in clocks.iter_mut().zip([shown[1], shown[0]]) {
                clock.steer(other, at(beat * 2_000 + 300));
            }
        }
        let end = at(2_001_000);
        assert_eq!(clocks[1].now(end), ms(1_000_400 + 2_001_000), "the furthest is driven by nobody");
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
