//! Limits the requests, polls and unknown-task requests of each principal (GW-40).
//! Logs refused principals, and likely guessing: many requests for unknown tasks (L25-62).
//! Polls have a separate limit. The single user of a loopback listener has none. The counters of an idle principal are
//! dropped, which permits one more burst.

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use governor::clock::Clock as _;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use metrics::Counter;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metric;
use crate::shared_limits::SharedLimits;
use crate::task::reference::LoggedPrincipal;
use crate::task::{Principal, PrincipalLimits, RateBound, RateRefusal};

/// The cost of all polls of a second; the cost of one depends on how many are allowed.
const POLL_UNITS: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();
/// A settled task is polled once more: it counts as unfinished for up to twice this time.
const POLLED_ON: Duration = Duration::from_secs(10);
/// Requests for unknown tasks, per principal (B124).
const MISSES_PER_MINUTE: NonZeroU32 = NonZeroU32::new(20).unwrap();
/// Further principals are refused until one has been idle.
const PRINCIPALS_MAX: usize = 10_000;
/// The limit for unverified credentials, which leave room for others. Further ones share the rate of one principal.
const UNCHECKED_MAX: usize = PRINCIPALS_MAX - PRINCIPALS_MAX / 4;
/// After this time both counts are zero again.
const IDLE: Duration = Duration::from_secs(60);
/// The interval of searches for idle principals, each of which visits all.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A principal's misses that are logged, once a window.
const MANY: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// Further misses are only counted in the metric.
const WATCHED_MAX: usize = 1_024;

/// tokio's clock for governor; tests can pause it.
#[derive(Clone, Debug)]
pub(crate) struct TokioClock(Instant);

impl Default for TokioClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl governor::clock::Clock for TokioClock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

pub(crate) type Limiter = RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Duration>>;

#[derive(Debug)]
struct RateCounts {
    limits: RateLimits,
    requests: Limiter,
    /// A poll costs its share of a second's units.
    polls: Limiter,
    misses: Limiter,
    unfinished: Mutex<RecentPeak>,
}

/// This replica's share of a principal's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RateLimits {
    requests_per_second: NonZeroU32,
    requests_burst: NonZeroU32,
    polls_per_task: NonZeroU32,
    polls_besides: u32,
    misses_per_minute: NonZeroU32,
}

impl RateLimits {
    /// Each share is rounded up: with any number of replicas, a task may be polled once a second at one of them.
    fn new(limits: PrincipalLimits, gateways: NonZeroUsize) -> Self {
        let gateways = NonZeroU32::try_from(gateways).unwrap_or(NonZeroU32::MAX);
        let part =
            |number: NonZeroU32| NonZeroU32::new(number.get().div_ceil(gateways.get())).unwrap_or(NonZeroU32::MIN);
        Self {
            requests_per_second: part(limits.requests_per_second),
            requests_burst: part(limits.requests_burst),
            polls_per_task: part(limits.polls_per_task),
            polls_besides: PrincipalLimits::POLLS_BESIDES.div_ceil(gateways.get()),
            misses_per_minute: part(MISSES_PER_MINUTE),
        }
    }

    /// The polls allowed with this many unfinished tasks on any replica.
    fn polls_per_second(&self, unfinished: usize) -> u32 {
        let of_tasks = u32::try_from(unfinished).unwrap_or(u32::MAX).saturating_mul(self.polls_per_task.get());
        of_tasks.saturating_add(self.polls_besides)
    }
}

impl RateCounts {
    fn new(clock: &TokioClock, limits: RateLimits) -> Self {
        let limiter = |quota| RateLimiter::direct_with_clock(quota, clock.clone());
        Self {
            limits,
            requests: limiter(Quota::per_second(limits.requests_per_second).allow_burst(limits.requests_burst)),
            polls: limiter(Quota::per_second(POLL_UNITS)),
            misses: limiter(Quota::per_minute(limits.misses_per_minute)),
            unfinished: Mutex::default(),
        }
    }

    /// A batch counts as the burst at most, so that it passes eventually.
    fn ask(&self, many: NonZeroU32, now: Duration) -> Result<(), Duration> {
        match self.requests.check_n(many.min(self.limits.requests_burst)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(early)) => Err(early.wait_time_from(now)),
            Err(_) => Err(IDLE),
        }
    }

    fn poll(&self, unfinished: usize, now: Duration) -> Result<(), (u32, Duration)> {
        let unfinished = self.unfinished.lock().note(unfinished, now);
        let per_second = self.limits.polls_per_second(unfinished);
        let cost = NonZeroU32::new(POLL_UNITS.get() / per_second).unwrap_or(NonZeroU32::MIN);
        match self.polls.check_n(cost) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(early)) => Err((per_second, early.wait_time_from(now))),
            Err(_) => Err((per_second, IDLE)),
        }
    }
}

/// The recent maximum: in the current window of [`POLLED_ON`], and in the one before.
#[derive(Debug, Default)]
struct RecentPeak {
    since: Duration,
    before: usize,
    peak: usize,
}

impl RecentPeak {
    fn note(&mut self, number: usize, now: Duration) -> usize {
        let age = now.saturating_sub(self.since);
        if age >= POLLED_ON {
            let before = if age < 2 * POLLED_ON { self.peak } else { 0 };
            *self = Self { since: now, before, peak: 0 };
        }
        self.peak = self.peak.max(number);
        self.peak.max(self.before)
    }
}

#[derive(Debug)]
struct PrincipalRates {
    counts: Arc<RateCounts>,
    last: Duration,
}

#[derive(Debug, Default)]
struct WatchedPrincipals {
    all: HashMap<Principal, PrincipalRates>,
    unchecked: usize,
    /// The counters of further principals with unverified credentials.
    beyond: Option<Arc<RateCounts>>,
    looked: Option<Duration>,
}

impl WatchedPrincipals {
    fn has_room_for(&self, principal: &Principal) -> bool {
        self.all.len() < PRINCIPALS_MAX && (!principal.is_unchecked() || self.unchecked < UNCHECKED_MAX)
    }

    fn remove_idle(&mut self, now: Duration) {
        if self.looked.is_some_and(|at| now.saturating_sub(at) < LOOK_EVERY) {
            return;
        }
        self.looked = Some(now);
        self.all.retain(|_, watched| now.saturating_sub(watched.last) < IDLE);
        self.unchecked = self.all.keys().filter(|principal| principal.is_unchecked()).count();
    }
}

/// The counters of all principals, for all upstreams.
pub struct Rates {
    clock: TokioClock,
    limits: SharedLimits,
    principals: Mutex<WatchedPrincipals>,
    requests_refused: Counter,
    polls_refused: Counter,
    misses_refused: Counter,
}

debug_members!(Rates, |rates| principals: rates.principals.lock().all.len());

impl Rates {
    /// The metrics recorder must be installed before. Replaced limits apply from the next request on.
    pub fn new(limits: SharedLimits) -> Self {
        let refused = |limit: &'static str| metrics::counter!(metric::RATE_LIMITED, "limit" => limit);
        let clock = TokioClock::default();
        Self {
            clock,
            limits,
            principals: Mutex::default(),
            requests_refused: refused("requests"),
            polls_refused: refused("polls"),
            misses_refused: refused("unknown_tasks"),
        }
    }

    /// Fails with the time after which the requests will pass; then nothing is counted.
    pub(super) fn admit(&self, principal: &Principal, requests: usize) -> Result<(), RateRefusal> {
        let many = u32::try_from(requests).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
        self.count(principal, |counts, now| {
            let RateLimits { requests_per_second: per_second, requests_burst: burst, .. } = counts.limits;
            counts.ask(many, now).map_err(|wait| (RateBound::Requests { per_second, burst }, wait))
        })
    }

    /// Counts a poll; fails as [`Rates::admit`].
    pub(super) fn poll(&self, principal: &Principal, unfinished: impl FnOnce() -> usize) -> Result<(), RateRefusal> {
        self.count(principal, |counts, now| {
            counts.poll(unfinished(), now).map_err(|(per_second, wait)| (RateBound::Polls { per_second }, wait))
        })
    }

    /// Counts a request for a task that is unknown, or another principal's; fails as [`Rates::admit`].
    pub(super) fn missed(&self, principal: &Principal) -> Result<(), RateRefusal> {
        self.count(principal, |counts, now| {
            let early = |early: governor::NotUntil<Duration>| early.wait_time_from(now);
            let per_minute = counts.limits.misses_per_minute;
            counts.misses.check().map_err(|wait| (RateBound::UnknownTasks { per_minute }, early(wait)))
        })
    }

    fn count(
        &self,
        principal: &Principal,
        take: impl FnOnce(&RateCounts, Duration) -> Result<(), (RateBound, Duration)>,
    ) -> Result<(), RateRefusal> {
        if principal.is_local() {
            return Ok(());
        }
        let now = self.clock.now();
        let Some(counts) = self.counts(principal) else {
            self.requests_refused.increment(1);
            return Err(RateRefusal { bound: RateBound::Principals, principal: principal.clone(), wait: IDLE });
        };
        let Err((bound, wait)) = take(&counts, now) else { return Ok(()) };
        let (counter, key) = match bound {
            RateBound::Requests { .. } | RateBound::Principals => (&self.requests_refused, "requests_per_second"),
            RateBound::Polls { .. } => (&self.polls_refused, "polls_per_task"),
            RateBound::UnknownTasks { .. } => (&self.misses_refused, "unknown tasks"),
        };
        counter.increment(1);
        self.limits.refused(principal, key, &bound);
        Err(RateRefusal { bound, principal: principal.clone(), wait })
    }

    /// `None` if too many principals are tracked.
    fn counts(&self, principal: &Principal) -> Option<Arc<RateCounts>> {
        let now = self.clock.now();
        let mut principals = self.principals.lock();
        let gateways = self.limits.gateways();
        let limits = RateLimits::new(self.limits.of(principal), gateways);
        if let Some(watched) = principals.all.get_mut(principal) {
            watched.last = now;
            if watched.counts.limits != limits {
                watched.counts = Arc::new(RateCounts::new(&self.clock, limits));
            }
            return Some(Arc::clone(&watched.counts));
        }
        if !principals.has_room_for(principal) {
            principals.remove_idle(now);
        }
        if !principals.has_room_for(principal) {
            return principal.is_unchecked().then(|| {
                let limits = RateLimits::new(PrincipalLimits::default(), gateways);
                let counts = principals.beyond.take().filter(|counts| counts.limits == limits);
                let counts = counts.unwrap_or_else(|| Arc::new(RateCounts::new(&self.clock, limits)));
                Arc::clone(principals.beyond.insert(counts))
            });
        }
        let counts = Arc::new(RateCounts::new(&self.clock, limits));
        principals.all.insert(principal.clone(), PrincipalRates { counts: Arc::clone(&counts), last: now });
        principals.unchecked += usize::from(principal.is_unchecked());
        Some(counts)
    }
}

#[derive(Debug, Default)]
pub(super) struct UnknownTaskWatch(Mutex<HashMap<Principal, UnknownTaskCount>>);

#[derive(Debug)]
struct UnknownTaskCount {
    since: Instant,
    count: u32,
}

impl UnknownTaskWatch {
    pub(super) fn note(&self, owner: &Principal) {
        metrics::counter!(metric::TASK_MISSES).increment(1);
        if self.are_many(owner) {
            // Only the digest: a log has more readers than a store.
            tracing::warn!(principal = %LoggedPrincipal(owner), misses = MANY, "many look-ups of unknown tasks within a minute");
        }
    }

    /// True for the miss that reaches the threshold.
    fn are_many(&self, owner: &Principal) -> bool {
        let now = Instant::now();
        let is_over = |seen: &UnknownTaskCount| now.duration_since(seen.since) >= WINDOW;
        let mut all = self.0.lock();
        if all.len() >= WATCHED_MAX && !all.contains_key(owner) {
            all.retain(|_, seen| !is_over(seen));
            if all.len() >= WATCHED_MAX {
                return false;
            }
        }
        let seen = all.entry(owner.clone()).or_insert(UnknownTaskCount { since: now, count: 0 });
        if is_over(seen) {
            *seen = UnknownTaskCount { since: now, count: 0 };
        }
        seen.count = seen.count.saturating_add(1);
        seen.count == MANY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::faults::rate_error;
    use crate::task::PrincipalLimitTable;

    fn admitted(rates: &Rates, principal: &Principal, tries: usize) -> usize {
        (0..tries).filter(|_| rates.admit(principal, 1).is_ok()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn b125_a_principal_has_its_burst_and_then_its_rate_and_others_do_not_feel_it() {
        let rates = Rates::new(SharedLimits::default());
        let (ada, bob) = (Principal::new("key:ada"), Principal::new("key:bob"));
        assert_eq!(admitted(&rates, &ada, 300), 100);
        let refusal = rates.admit(&ada, 1).unwrap_err();
        assert_eq!(refusal.wait, Duration::from_millis(20));
        assert!(rate_error(&refusal).message.contains("50 requests a second, 100 at once"), "{refusal}");
        assert_eq!(admitted(&rates, &bob, 1), 1);
        assert_eq!(admitted(&rates, &Principal::local(), 1_000), 1_000, "loopback is one person's own");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(admitted(&rates, &ada, 300), 50);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(rates.admit(&ada, 100).is_ok(), "an array counts as its messages");
        assert!(rates.admit(&ada, 1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn gateways_that_keep_rates_together_let_through_a_part_each() {
        let limits = SharedLimits::default();
        let (rates, ada) = (Rates::new(limits.clone()), Principal::new("key:ada"));
        assert!(limits.divide_by(NonZeroUsize::new(3).unwrap()));
        assert_eq!(admitted(&rates, &ada, 300), 34);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(admitted(&rates, &ada, 300), 17);
        assert_eq!((0..99).filter(|_| rates.missed(&ada).is_ok()).count(), 7);
        assert_eq!((0..999).filter(|_| rates.poll(&ada, || 100).is_ok()).count(), 117);
        assert!(limits.divide_by(NonZeroUsize::MIN) && !limits.divide_by(NonZeroUsize::MIN));
        assert_eq!(admitted(&rates, &ada, 300), 100, "the others are gone");
    }

    /// A fleet that polls every task each second, and as often again, meets no limit; nor does it when all its tasks settle at
    /// once, each of which is polled once more.
    #[tokio::test(start_paused = true)]
    async fn honest_pollers_are_never_refused_and_one_task_polled_like_mad_is() {
        let rates = Rates::new(SharedLimits::default());
        let (fleet, hasty) = (Principal::new("key:fleet"), Principal::new("key:hasty"));
        for _ in 0..30 {
            // Within a tenth of each second.
            for tenth in 0..10 {
                let polls = if tenth == 0 { 2_000 } else { 0 };
                assert!((0..polls).all(|_| rates.poll(&fleet, || 1_000).is_ok()));
                tokio::time::advance(Duration::from_millis(100)).await;
            }
        }
        assert!((0..2_000).all(|_| rates.poll(&fleet, || 0).is_ok()), "they ended a moment ago");
        tokio::time::advance(2 * POLLED_ON).await;
        assert_eq!((0..2_000).filter(|_| rates.poll(&fleet, || 0).is_ok()).count(), 50);
        let mut served = 0;
        for _ in 0..200 {
            served += usize::from(rates.poll(&hasty, || 1).is_ok());
            tokio::time::advance(Duration::from_millis(5)).await;
        }
        assert!((52..=104).contains(&served), "{served}");
        let refusal = (0..200).find_map(|_| rates.poll(&hasty, || 1).err()).unwrap();
        assert_eq!(refusal.bound, RateBound::Polls { per_second: 52 });
        assert_eq!(admitted(&rates, &hasty, 300), 100, "polls are counted apart");
    }

    #[tokio::test(start_paused = true)]
    async fn limits_of_one_principal_are_its_own_and_hold_from_the_next_request_on() {
        let (ada, bob) = (Principal::new("key:ada"), Principal::new("key:bob"));
        let number = |number| NonZeroU32::new(number).unwrap();
        let own = |burst| PrincipalLimits { requests_burst: number(burst), ..PrincipalLimits::default() };
        let table = |burst| {
            let own = HashMap::from([(ada.clone(), own(burst))]);
            Arc::new(PrincipalLimitTable { own, ..PrincipalLimitTable::default() })
        };
        let limits = SharedLimits::new(table(7));
        let rates = Rates::new(limits.clone());
        assert_eq!((admitted(&rates, &ada, 300), admitted(&rates, &bob, 300)), (7, 100));
        limits.replace(table(200));
        assert_eq!((admitted(&rates, &ada, 300), admitted(&rates, &bob, 300)), (200, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn b124_twenty_unknown_tasks_a_minute_are_answered() {
        let rates = Rates::new(SharedLimits::default());
        let ada = Principal::new("key:ada");
        let missed = |n: usize| (0..n).filter(|_| rates.missed(&ada).is_ok()).count();
        assert_eq!(missed(1_000), 20);
        assert_eq!(rates.missed(&ada).unwrap_err().wait, Duration::from_secs(3));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(missed(1_000), 20);
        assert!((0..1_000).all(|_| rates.missed(&Principal::local()).is_ok()));
    }

    #[tokio::test(start_paused = true)]
    async fn watched_principals_are_bounded_and_idle_ones_make_room() {
        let rates = Rates::new(SharedLimits::default());
        let nth = |n: usize| Principal::new(&format!("key:{n}"));
        assert!((0..PRINCIPALS_MAX).all(|n| rates.admit(&nth(n), 1).is_ok()));
        assert_eq!(rates.admit(&nth(PRINCIPALS_MAX), 1).unwrap_err().bound, RateBound::Principals);
        tokio::time::advance(IDLE).await;
        assert!(rates.admit(&nth(0), 1).is_ok());
        assert!(rates.admit(&nth(PRINCIPALS_MAX), 1).is_ok());
        assert_eq!(rates.principals.lock().all.len(), 2);
    }

    /// A client may send another credential with each request.
    #[tokio::test(start_paused = true)]
    async fn unchecked_credentials_leave_room_for_other_principals() {
        let limits = SharedLimits::default();
        let rates = Rates::new(limits.clone());
        let nth = |n: usize| Principal::bearing(format!("Bearer {n}").as_bytes());
        for n in 0..2 * PRINCIPALS_MAX {
            let _ = rates.admit(&nth(n), 1);
        }
        assert_eq!(rates.principals.lock().all.len(), UNCHECKED_MAX);
        for other in [Principal::anonymous(), Principal::new("key:ada")] {
            assert_eq!(admitted(&rates, &other, 300), 100, "{other:?}");
        }
        assert_eq!(admitted(&rates, &nth(0), 300), 99, "who was there first is watched on");
        assert_eq!(
            admitted(&rates, &nth(2 * PRINCIPALS_MAX), 1),
            0,
            "those beyond have used up what they have together"
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        let beyond = || (0..100).filter(|n| rates.admit(&nth(2 * PRINCIPALS_MAX + n), 1).is_ok()).count();
        assert_eq!(beyond(), 50, "and have the rate of one");
        limits.divide_by(NonZeroUsize::new(3).unwrap());
        assert_eq!(beyond(), 34, "of which this gateway has a part");
        limits.divide_by(NonZeroUsize::MIN);
        tokio::time::advance(IDLE).await;
        assert_eq!(admitted(&rates, &nth(2 * PRINCIPALS_MAX), 300), 100, "idle ones make room");
    }

    /// L25-62, D86-30.
    #[tokio::test(start_paused = true)]
    async fn l25_62_the_twentieth_miss_within_a_minute_is_told_once_for_each_principal() {
        let misses = UnknownTaskWatch::default();
        let (one, other) = (Principal::new("key:one"), Principal::new("key:other"));
        let told = |owner, count| (0..count).filter(|_| misses.are_many(owner)).count();
        assert_eq!((told(&one, 19), told(&other, 19)), (0, 0));
        assert_eq!((told(&one, 1), told(&one, 100)), (1, 0));
        tokio::time::advance(WINDOW).await;
        assert_eq!((told(&one, 19), told(&other, 1)), (0, 0), "a minute later all begins anew");
        assert_eq!(told(&one, 1), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn l25_62_watched_principals_are_bounded_and_make_room_after_a_minute() {
        let misses = UnknownTaskWatch::default();
        for n in 0..=WATCHED_MAX {
            misses.are_many(&Principal::new(&format!("key:{n}")));
        }
        assert_eq!(misses.0.lock().len(), WATCHED_MAX);
        tokio::time::advance(WINDOW).await;
        misses.are_many(&Principal::new("key:new"));
        assert_eq!(misses.0.lock().len(), 1);
    }
}
