//! Holds the limits of principals, counts their use, and defines why a request exceeds one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::Hash;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use super::{Executed, GatewayFault, Principal, Reason};

const REQUESTS_PER_SECOND: NonZeroU32 = NonZeroU32::new(50).unwrap();
const REQUESTS_BURST: NonZeroU32 = NonZeroU32::new(100).unwrap();
const POLLS_PER_TASK: NonZeroU32 = NonZeroU32::new(2).unwrap();

/// One principal's limits. Without authentication, requests, polls and streams are counted by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrincipalLimits {
    pub requests_per_second: NonZeroU32,
    pub requests_burst: NonZeroU32,
    /// Polls per second for each unfinished task, in addition to [`PrincipalLimits::POLLS_BESIDES`].
    pub polls_per_task: NonZeroU32,
    /// Unsettled tasks, including reserved ones.
    pub tasks_max: usize,
    /// Total size of its rows in the store. Several concurrent results may exceed it together.
    pub stored_bytes_max: usize,
    pub answer_bytes_max: usize,
    /// Open notification streams; HTTP+SSE clients get [`PrincipalLimits::SSE_STREAMS`] times as many.
    pub streams_max: usize,
    pub permits: PermitShare,
}

impl PrincipalLimits {
    /// Polls per second for every principal, besides those for its tasks.
    pub const POLLS_BESIDES: u32 = 50;
    /// An HTTP+SSE stream carries a whole session, so more of them are allowed.
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
            permits: PermitShare::default(),
        }
    }
}

/// One principal's maximum percentage of a server's call permits, queue and processes. The rest is for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitShare(u8);

impl Default for PermitShare {
    fn default() -> Self {
        Self(75)
    }
}

impl PermitShare {
    pub const WHOLE: Self = Self(100);

    /// `None` unless it is from 1 to 100.
    pub const fn percent(number: u8) -> Option<Self> {
        match number {
            1..=100 => Some(Self(number)),
            0 | 101.. => None,
        }
    }

    /// The share of `max`, rounded up: it is at least one, and of fewer than four it is all.
    pub fn of(self, max: usize) -> usize {
        let rest = max / 100 * usize::from(100 - self.0) + max % 100 * usize::from(100 - self.0) / 100;
        (max - rest).max(1)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrincipalLimitTable {
    /// Bytes of unread answers to all principals.
    pub answer_bytes_max: usize,
    pub others: PrincipalLimits,
    pub own: HashMap<Principal, PrincipalLimits>,
}

impl Default for PrincipalLimitTable {
    fn default() -> Self {
        Self { answer_bytes_max: 128 << 20, others: PrincipalLimits::default(), own: HashMap::new() }
    }
}

impl PrincipalLimitTable {
    /// The single user of a loopback listener shares permits with no other principal.
    pub fn of(&self, principal: &Principal) -> PrincipalLimits {
        match self.own.get(principal) {
            Some(own) => *own,
            None if principal.is_local() => PrincipalLimits { permits: PermitShare::WHOLE, ..self.others },
            None => self.others,
        }
    }
}

pub type PrincipalCounts = OwnerCounts<Principal>;

/// Amounts in use. Keeps an entry only for owners with a nonzero amount.
#[derive(Debug)]
pub struct OwnerCounts<K> {
    all: usize,
    by_owner: HashMap<K, usize>,
}

impl<K> Default for OwnerCounts<K> {
    fn default() -> Self {
        Self { all: 0, by_owner: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> OwnerCounts<K> {
    pub const fn all(&self) -> usize {
        self.all
    }

    pub fn of(&self, owner: &K) -> usize {
        self.by_owner.get(owner).copied().unwrap_or(0)
    }

    pub fn add_below(&mut self, owner: &K, max: usize) -> bool {
        match self.by_owner.entry(owner.clone()) {
            Entry::Occupied(mut own) if *own.get() < max => *own.get_mut() += 1,
            Entry::Vacant(first) if max > 0 => *first.insert(0) += 1,
            Entry::Occupied(_) | Entry::Vacant(_) => return false,
        }
        self.all += 1;
        true
    }

    /// Adds one. The caller checks the limits.
    pub fn add(&mut self, owner: &K) {
        self.add_many(owner, NonZeroUsize::MIN);
    }

    pub fn add_many(&mut self, owner: &K, number: NonZeroUsize) {
        self.all += number.get();
        *self.by_owner.entry(owner.clone()).or_default() += number.get();
    }

    pub fn remove(&mut self, owner: &K) {
        self.remove_many(owner, NonZeroUsize::MIN);
    }

    pub fn remove_many(&mut self, owner: &K, number: NonZeroUsize) {
        if let Entry::Occupied(mut own) = self.by_owner.entry(owner.clone()) {
            self.all -= number.get();
            *own.get_mut() -= number.get();
            if *own.get() == 0 {
                own.remove();
            }
        }
    }

    #[cfg(test)]
    pub fn owners(&self) -> usize {
        self.by_owner.len()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.all == 0 && self.by_owner.is_empty()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateBound {
    Requests {
        per_second: NonZeroU32,
        burst: NonZeroU32,
    },
    /// Depends on the current number of tasks.
    Polls {
        per_second: u32,
    },
    UnknownTasks {
        per_minute: NonZeroU32,
    },
    /// Too many principals at the same time.
    Principals,
}

impl fmt::Display for RateBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests { per_second, burst } => {
                write!(f, "{per_second} requests a second, {burst} at once (`requests_per_second`, `requests_burst`)")
            }
            Self::Polls { per_second } => {
                write!(f, "{per_second} polls a second for the present number of unfinished tasks (`polls_per_task`)")
            }
            Self::UnknownTasks { per_minute } => {
                write!(f, "{per_minute} requests a minute for missing tasks")
            }
            Self::Principals => f.write_str("requests of 10,000 clients within a minute"),
        }
    }
}

/// Why a request is refused. It had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateRefusal {
    pub bound: RateBound,
    pub principal: Principal,
    pub wait: Duration,
}

impl RateRefusal {
    pub const fn fault(&self) -> GatewayFault {
        GatewayFault { retry_after: Some(self.wait), ..GatewayFault::new(Reason::RateLimited, Executed::No) }
    }
}

impl fmt::Display for RateRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Too many requests: the limit is ")?;
        if self.bound == RateBound::Principals {
            return write!(f, "{}", self.bound);
        }
        write!(f, "{}, for ", self.bound)?;
        // The client knows its own credential.
        match self.principal.key_id() {
            Some(id) => write!(f, "the key `{id}`"),
            None if self.principal.certificate_name().is_some() => f.write_str("each certificate's name"),
            None if self.principal.address().is_some() || !self.principal.is_identified() => {
                f.write_str("each address")
            }
            None => f.write_str("each credential"),
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
            assert_eq!(PermitShare::percent(percent).unwrap().of(max), expected, "{percent} % of {max}");
        }
        assert_eq!(PermitShare::percent(1).unwrap().of(usize::MAX), usize::MAX - usize::MAX / 100 * 99 - 14);
        assert!(PermitShare::percent(0).is_none() && PermitShare::percent(101).is_none());
    }

    #[test]
    fn limits_of_ones_own_stand_in_place_of_those_of_others() {
        let (ada, bob) = (Principal::new("key:ada"), Principal::new("key:bob"));
        let own = PrincipalLimits { tasks_max: 7, ..PrincipalLimits::default() };
        let table = PrincipalLimitTable { own: HashMap::from([(ada.clone(), own)]), ..PrincipalLimitTable::default() };
        assert_eq!((table.of(&ada), table.of(&bob)), (own, PrincipalLimits::default()));
        assert_eq!(table.of(&Principal::local()).permits, PermitShare::WHOLE);
    }

    #[test]
    fn each_principal_counts_its_own_and_is_forgotten_with_its_last() {
        let (ada, bob) = (Principal::new("key:ada"), Principal::new("key:bob"));
        let mut counts = PrincipalCounts::default();
        counts.add(&ada);
        counts.add(&ada);
        counts.add(&bob);
        assert_eq!((counts.of(&ada), counts.of(&bob), counts.all()), (2, 1, 3));
        counts.remove(&bob);
        counts.remove(&bob);
        assert_eq!((counts.of(&bob), counts.all()), (0, 2), "a count that is not held is not returned");
        counts.remove(&ada);
        counts.remove(&ada);
        assert!(counts.is_empty());
        assert_eq!([0, 1, 1].map(|max| counts.add_below(&ada, max)), [false, true, false]);
        assert_eq!((counts.of(&ada), counts.all(), counts.owners()), (1, 1, 1), "a refusal leaves no entry");
    }

    #[test]
    fn a_refusal_names_bound_and_principal_and_shows_no_credential() {
        let number = |number| NonZeroU32::new(number).unwrap();
        let requests = RateBound::Requests { per_second: number(50), burst: number(100) };
        let address = Principal::anonymous().counted_at(Some("192.0.2.7"));
        for (principal, bound, expected) in [
            (
                Principal::new("key:ada"),
                requests,
                "50 requests a second, 100 at once (`requests_per_second`, `requests_burst`), for the key `ada`",
            ),
            (
                Principal::bearing(b"Bearer secret"),
                requests,
                "50 requests a second, 100 at once (`requests_per_second`, `requests_burst`), for each credential",
            ),
            (
                address,
                RateBound::Polls { per_second: 52 },
                "52 polls a second for the present number of unfinished tasks (`polls_per_task`), for each address",
            ),
            (
                Principal::anonymous(),
                RateBound::UnknownTasks { per_minute: number(20) },
                "20 requests a minute for missing tasks, for each address",
            ),
            (Principal::new("key:ada"), RateBound::Principals, "requests of 10,000 clients within a minute"),
        ] {
            let refusal = RateRefusal { bound, principal, wait: Duration::from_millis(20) };
            assert_eq!(refusal.to_string(), format!("Too many requests: the limit is {expected}"));
            assert_eq!(refusal.fault().retry_after, Some(Duration::from_millis(20)));
        }
    }
}
