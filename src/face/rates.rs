//! Limits how often one principal may ask, and how often it may ask for tasks that are not there (GW-40). Logs who asks for
//! many of those (L25-62): one or two are a client that came too late, many in a short time are somebody who guesses.
//!
//! The one person behind a loopback listener meets neither bound. A principal that was not heard of for a while is
//! forgotten, which gives it no more than its burst.

use std::collections::HashMap;
use std::num::NonZeroU32;
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
use crate::task::reference::LoggedPrincipal;
use crate::task::{Executed, GatewayFault, Principal, Reason};

/// Requests of one principal, and how many may come at once.
const REQUESTS_PER_SECOND: NonZeroU32 = NonZeroU32::new(50).unwrap();
const REQUESTS_BURST: NonZeroU32 = NonZeroU32::new(100).unwrap();
/// Task ids that are not there, of one principal (B124).
const MISSES_PER_MINUTE: NonZeroU32 = NonZeroU32::new(20).unwrap();
/// Principals that are watched at a time; further ones are refused until one was idle for long enough.
const PRINCIPALS_MAX: usize = 10_000;
/// Those among them that are made of credentials which nobody has checked: whoever sends many of them leaves room for all
/// others. Further ones have the rate of one principal together.
const UNCHECKED_MAX: usize = PRINCIPALS_MAX - PRINCIPALS_MAX / 4;
/// After so long both counts are back to nothing.
const IDLE: Duration = Duration::from_secs(60);
/// How often those who were idle are looked for, as that goes through all.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Misses of one principal within a window that are worth a line in the log, once a window.
const MANY: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// Principals that are watched at a time; those beyond are counted in the metric alone.
const WATCHED_MAX: usize = 1_024;

/// tokio's clock as governor reads it, which stands still where tests want it to.
#[derive(Clone, Debug)]
struct TokioClock(Instant);

impl governor::clock::Clock for TokioClock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<Duration>>;

/// What is counted of one principal.
#[derive(Debug)]
struct RateCounts {
    requests: Limiter,
    misses: Limiter,
}

impl RateCounts {
    fn new(clock: &TokioClock) -> Self {
        let limiter = |quota| RateLimiter::direct_with_clock(quota, clock.clone());
        Self {
            requests: limiter(Quota::per_second(REQUESTS_PER_SECOND).allow_burst(REQUESTS_BURST)),
            misses: limiter(Quota::per_minute(MISSES_PER_MINUTE)),
        }
    }
}

#[derive(Debug)]
struct PrincipalRates {
    counts: Arc<RateCounts>,
    last: Duration,
}

/// Those who are watched.
#[derive(Debug, Default)]
struct WatchedPrincipals {
    all: HashMap<Principal, PrincipalRates>,
    unchecked: usize,
    /// When those who were idle were forgotten last.
    looked: Option<Duration>,
}

impl WatchedPrincipals {
    fn has_room_for(&self, principal: &Principal) -> bool {
        self.all.len() < PRINCIPALS_MAX && (!principal.is_unchecked() || self.unchecked < UNCHECKED_MAX)
    }

    fn forget_idle(&mut self, now: Duration) {
        if self.looked.is_some_and(|at| now.saturating_sub(at) < LOOK_EVERY) {
            return;
        }
        self.looked = Some(now);
        self.all.retain(|_, watched| now.saturating_sub(watched.last) < IDLE);
        self.unchecked = self.all.keys().filter(|principal| principal.is_unchecked()).count();
    }
}

/// The counts of all principals, whatever upstream they ask for.
pub struct Rates {
    clock: TokioClock,
    principals: Mutex<WatchedPrincipals>,
    /// Of all together whose credential nobody has checked, and for whom there is no room.
    beyond: Arc<RateCounts>,
    requests_refused: Counter,
    misses_refused: Counter,
}

impl std::fmt::Debug for Rates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rates").field("principals", &self.principals.lock().all.len()).finish_non_exhaustive()
    }
}

impl Default for Rates {
    /// The metrics recorder must be installed before.
    fn default() -> Self {
        let refused = |limit: &'static str| metrics::counter!(metric::RATE_LIMITED, "limit" => limit);
        let clock = TokioClock(Instant::now());
        Self {
            beyond: Arc::new(RateCounts::new(&clock)),
            clock,
            principals: Mutex::default(),
            requests_refused: refused("requests"),
            misses_refused: refused("unknown_tasks"),
        }
    }
}

impl Rates {
    /// Counts `requests` that come together.
    ///
    /// # Errors
    /// `RateLimited`, with the time after which they will fit. Nothing is counted then.
    pub(super) fn admit(&self, principal: &Principal, requests: usize) -> Result<(), GatewayFault> {
        if *principal == Principal::local() {
            return Ok(());
        }
        let many = u32::try_from(requests).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
        // An array is never longer than the burst, so that it fits at some time.
        let many = many.min(REQUESTS_BURST);
        let wait = match self.counts(principal) {
            None => IDLE,
            Some(counts) => match counts.requests.check_n(many) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(early)) => early.wait_time_from(self.clock.now()),
                Err(_) => IDLE,
            },
        };
        self.requests_refused.increment(1);
        tracing::debug!(principal = %LoggedPrincipal(principal), "the request rate of a principal is reached");
        Err(limited(wait))
    }

    /// Counts a task id that is not there, or not this principal's.
    ///
    /// # Errors
    /// `RateLimited`, as [`Rates::admit`].
    pub(super) fn missed(&self, principal: &Principal) -> Result<(), GatewayFault> {
        if *principal == Principal::local() {
            return Ok(());
        }
        let Some(counts) = self.counts(principal) else { return Err(limited(IDLE)) };
        let Err(early) = counts.misses.check() else { return Ok(()) };
        self.misses_refused.increment(1);
        // That they are many is in the log already, once a minute.
        tracing::debug!(principal = %LoggedPrincipal(principal), "a principal asks for many tasks that are not there");
        Err(limited(early.wait_time_from(self.clock.now())))
    }

    /// `None` where too many principals are watched already.
    fn counts(&self, principal: &Principal) -> Option<Arc<RateCounts>> {
        let now = self.clock.now();
        let mut principals = self.principals.lock();
        if let Some(watched) = principals.all.get_mut(principal) {
            watched.last = now;
            return Some(Arc::clone(&watched.counts));
        }
        if !principals.has_room_for(principal) {
            principals.forget_idle(now);
        }
        if !principals.has_room_for(principal) {
            return principal.is_unchecked().then(|| Arc::clone(&self.beyond));
        }
        let counts = Arc::new(RateCounts::new(&self.clock));
        principals.all.insert(principal.clone(), PrincipalRates { counts: Arc::clone(&counts), last: now });
        principals.unchecked += usize::from(principal.is_unchecked());
        Some(counts)
    }
}

const fn limited(wait: Duration) -> GatewayFault {
    GatewayFault { retry_after: Some(wait), ..GatewayFault::new(Reason::RateLimited, Executed::No) }
}

/// The misses of late, by principal.
#[derive(Debug, Default)]
pub(super) struct UnknownTaskWatch(Mutex<HashMap<Principal, UnknownTaskCount>>);

#[derive(Debug)]
struct UnknownTaskCount {
    since: Instant,
    count: u32,
}

impl UnknownTaskWatch {
    /// Takes note of a look-up of `owner`'s that found no task.
    pub(super) fn note(&self, owner: &Principal) {
        metrics::counter!(metric::TASK_MISSES).increment(1);
        if self.are_many(owner) {
            // Who it is stays in the digest: a log is read by more people than a store.
            tracing::warn!(principal = %LoggedPrincipal(owner), misses = MANY, "many look-ups of unknown tasks within a minute");
        }
    }

    /// Counts; true for the one miss that makes them many.
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
    use crate::dialect::faults::gateway_error;

    fn admitted(rates: &Rates, principal: &Principal, tries: usize) -> usize {
        (0..tries).filter(|_| rates.admit(principal, 1).is_ok()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn b125_a_principal_has_its_burst_and_then_its_rate_and_others_do_not_feel_it() {
        let rates = Rates::default();
        let (ada, bob) = (Principal::new("key:ada"), Principal::new("key:bob"));
        assert_eq!(admitted(&rates, &ada, 300), 100);
        let fault = rates.admit(&ada, 1).unwrap_err();
        assert_eq!((fault.reason, fault.executed), (Reason::RateLimited, Executed::No));
        assert_eq!(fault.retry_after, Some(Duration::from_millis(20)));
        let (rate, misses) = (REQUESTS_PER_SECOND, MISSES_PER_MINUTE);
        let words = format!("{rate} a second and {REQUESTS_BURST} at once are served, {misses} a minute for tasks");
        assert!(gateway_error(&fault).message.contains(&words), "{words}");
        assert_eq!(admitted(&rates, &bob, 1), 1);
        assert_eq!(admitted(&rates, &Principal::local(), 1_000), 1_000, "loopback is one person's own");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(admitted(&rates, &ada, 300), 50);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(rates.admit(&ada, 100).is_ok(), "an array counts as what is in it");
        assert!(rates.admit(&ada, 1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn b124_twenty_unknown_tasks_a_minute_are_answered() {
        let rates = Rates::default();
        let ada = Principal::new("key:ada");
        let missed = |n: usize| (0..n).filter(|_| rates.missed(&ada).is_ok()).count();
        assert_eq!(missed(1_000), 20);
        assert_eq!(rates.missed(&ada).unwrap_err().retry_after, Some(Duration::from_secs(3)));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(missed(1_000), 20);
        assert!((0..1_000).all(|_| rates.missed(&Principal::local()).is_ok()));
    }

    #[tokio::test(start_paused = true)]
    async fn watched_principals_are_bounded_and_idle_ones_make_room() {
        let rates = Rates::default();
        let nth = |n: usize| Principal::new(&format!("key:{n}"));
        assert!((0..PRINCIPALS_MAX).all(|n| rates.admit(&nth(n), 1).is_ok()));
        assert_eq!(rates.admit(&nth(PRINCIPALS_MAX), 1).unwrap_err().reason, Reason::RateLimited);
        tokio::time::advance(IDLE).await;
        assert!(rates.admit(&nth(0), 1).is_ok());
        assert!(rates.admit(&nth(PRINCIPALS_MAX), 1).is_ok());
        assert_eq!(rates.principals.lock().all.len(), 2);
    }

    /// Whoever likes can send another credential with each request.
    #[tokio::test(start_paused = true)]
    async fn credentials_that_nobody_has_checked_leave_room_for_everybody_else() {
        let rates = Rates::default();
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
        let beyond = (0..100).filter(|n| rates.admit(&nth(2 * PRINCIPALS_MAX + n), 1).is_ok()).count();
        assert_eq!(beyond, 50, "and have the rate of one");
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
    async fn l25_62_those_who_are_watched_are_bounded_and_make_room_after_a_minute() {
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
