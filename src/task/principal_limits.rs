//! Defines what one principal may have and do, beside what all may together.

use std::collections::HashMap;
use std::num::NonZeroU32;

use super::Principal;

const REQUESTS_PER_SECOND: NonZeroU32 = NonZeroU32::new(50).unwrap();
const REQUESTS_BURST: NonZeroU32 = NonZeroU32::new(100).unwrap();
const POLLS_PER_TASK: NonZeroU32 = NonZeroU32::new(2).unwrap();

/// The bounds of one principal. Where nobody is asked for credentials, requests, polls and streams are counted by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrincipalLimits {
    /// Requests other than polls.
    pub requests_per_second: NonZeroU32,
    /// How many of them may come at once.
    pub requests_burst: NonZeroU32,
    /// Polls a second for each unfinished task, and [`PrincipalLimits::POLLS_BESIDES`] besides.
    pub polls_per_task: NonZeroU32,
    /// Unsettled tasks, reserved places included.
    pub tasks_max: usize,
    /// Bytes of all its rows in the store. Several results that come at once may pass it together.
    pub stored_bytes_max: usize,
    /// Bytes that answers to it may hold until it has read them.
    pub answer_bytes_max: usize,
    /// Open streams of notifications; of HTTP+SSE clients [`PrincipalLimits::SSE_STREAMS`] times as many.
    pub streams_max: usize,
    pub places: PlaceShare,
}

impl PrincipalLimits {
    /// Polls a second that everybody may make.
    pub const POLLS_BESIDES: u32 = 50;
    /// A stream of HTTP+SSE is the whole session of its client, so there are more of them.
    pub const SSE_STREAMS: usize = 4;
}

impl Default for PrincipalLimits {
    fn default() -> Self {
        Self {
            requests_per_second: REQUESTS_PER_SECOND,
            requests_burst: REQUESTS_BURST,
            polls_per_task: POLLS_PER_TASK,
            tasks_max: 1_000,
            stored_bytes_max: 256 << 20,
            answer_bytes_max: 64 << 20,
            streams_max: 64,
            places: PlaceShare::default(),
        }
    }
}

/// Of a server's places for calls, of its queue and of its processes: how many one of several principals may have, in per
/// cent. The rest is for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceShare(u8);

impl Default for PlaceShare {
    fn default() -> Self {
        Self(75)
    }
}

impl PlaceShare {
    /// All of them.
    pub const WHOLE: Self = Self(100);

    /// `None` unless it is from 1 to 100.
    #[must_use]
    pub const fn percent(number: u8) -> Option<Self> {
        match number {
            1..=100 => Some(Self(number)),
            0 | 101.. => None,
        }
    }

    /// How many of `max` that is: rounded up, so that there is always one and of fewer than four nothing is set aside.
    #[must_use]
    pub fn of(self, max: usize) -> usize {
        let rest = max / 100 * usize::from(100 - self.0) + max % 100 * usize::from(100 - self.0) / 100;
        (max - rest).max(1)
    }
}

/// What each principal may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrincipalLimitTable {
    /// Bytes that answers to all of them may hold.
    pub answer_bytes_max: usize,
    /// Of those who have no limits of their own.
    pub others: PrincipalLimits,
    pub own: HashMap<Principal, PrincipalLimits>,
}

impl Default for PrincipalLimitTable {
    fn default() -> Self {
        Self { answer_bytes_max: 128 << 20, others: PrincipalLimits::default(), own: HashMap::new() }
    }
}

impl PrincipalLimitTable {
    /// The one person behind a loopback listener has nobody beside, for whom places were kept.
    #[must_use]
    pub fn of(&self, principal: &Principal) -> PrincipalLimits {
        match self.own.get(principal) {
            Some(own) => *own,
            None if *principal == Principal::local() => PrincipalLimits { places: PlaceShare::WHOLE, ..self.others },
            None => self.others,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_leaves_something_where_there_is_something_to_leave() {
        for (percent, max, expected) in
            [(75, 0, 1), (75, 1, 1), (75, 3, 3), (75, 4, 3), (75, 256, 192), (75, 64, 48), (100, 64, 64), (1, 64, 1)]
        {
            assert_eq!(PlaceShare::percent(percent).unwrap().of(max), expected, "{percent} % of {max}");
        }
        assert_eq!(PlaceShare::percent(1).unwrap().of(usize::MAX), usize::MAX - usize::MAX / 100 * 99 - 14);
        assert!(PlaceShare::percent(0).is_none() && PlaceShare::percent(101).is_none());
    }

    #[test]
    fn limits_of_ones_own_stand_in_place_of_those_of_others() {
        let (ada, bob) = (Principal::new("key:ada"), Principal::new("key:bob"));
        let own = PrincipalLimits { tasks_max: 7, ..PrincipalLimits::default() };
        let table = PrincipalLimitTable { own: HashMap::from([(ada.clone(), own)]), ..PrincipalLimitTable::default() };
        assert_eq!((table.of(&ada), table.of(&bob)), (own, PrincipalLimits::default()));
        assert_eq!(table.of(&Principal::local()).places, PlaceShare::WHOLE);
    }
}
