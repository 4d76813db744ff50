//! Limits the introspection of inactive tokens, by the clients' network (SEC-51).

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use governor::clock::Clock as _;
use governor::{Quota, RateLimiter};
use parking_lot::Mutex;

use crate::face::rates::{Limiter, TokioClock};
use crate::upstream::shared_lookups::SHARE_MAX;

/// A client sends an expired token once, then refreshes it: 36,000 people at one address, hourly, send ten a second.
const PER_SECOND: NonZeroU32 = NonZeroU32::new(10).unwrap();
/// Questions of one network in progress: until one has failed, no client with a valid token is refused.
const BURST: NonZeroU32 = NonZeroU32::new(256).unwrap();
const _: () = assert!(BURST.get() as usize == SHARE_MAX, "see SEC-44");
/// After this time a network may send its whole burst again.
const IDLE: Duration = Duration::from_secs(BURST.get() as u64 / PER_SECOND.get() as u64 + 1);
/// Further networks share the budget of one.
const NETWORKS_MAX: usize = 10_000;
/// The interval of searches for idle networks, each of which visits all.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct QuestionBudget {
    clock: TokioClock,
    networks: Mutex<NetworkTable>,
}

#[derive(Debug, Default)]
struct NetworkTable {
    by_network: HashMap<IpAddr, RecentNetwork>,
    beyond: Option<Arc<NetworkCounts>>,
    looked: Option<Duration>,
}

#[derive(Debug)]
struct RecentNetwork {
    counts: Arc<NetworkCounts>,
    last: Duration,
}

#[derive(Debug)]
struct NetworkCounts {
    limiter: Limiter,
    /// Questions that were counted and then refunded; the next ones are not counted. At most [`BURST`].
    given_back: AtomicU32,
    /// Refunds of questions that the issuer did not answer.
    unanswered: Limiter,
}

#[derive(Debug)]
pub(super) struct PaidQuestion(Arc<NetworkCounts>);

impl QuestionBudget {
    /// Counts a question before its answer is known. Fails with the time after which the network may ask.
    pub(super) fn take(&self, network: IpAddr) -> Result<PaidQuestion, Duration> {
        let now = self.clock.now();
        let counts = self.networks.lock().counts(network, now, &self.clock);
        let spend = |left: u32| left.checked_sub(1);
        if counts.given_back.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err() {
            counts.limiter.check().map_err(|early| early.wait_time_from(now))?;
        }
        Ok(PaidQuestion(counts))
    }
}

impl PaidQuestion {
    /// Refunds an unanswered question: at most [`PER_SECOND`], so that an unavailable issuer is asked at a rate, too.
    pub(super) fn give_back_unanswered(self) {
        if self.0.unanswered.check().is_ok() {
            self.give_back();
        }
    }

    pub(super) fn give_back(self) {
        let add = |left: u32| (left < BURST.get()).then_some(left + 1);
        // At the maximum, the network has as many questions as it can ever have.
        let _ = self.0.given_back.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

impl NetworkTable {
    fn counts(&mut self, network: IpAddr, now: Duration, clock: &TokioClock) -> Arc<NetworkCounts> {
        if let Some(known) = self.by_network.get_mut(&network) {
            known.last = now;
            return Arc::clone(&known.counts);
        }
        if self.by_network.len() >= NETWORKS_MAX {
            self.remove_idle(now);
        }
        if self.by_network.len() >= NETWORKS_MAX {
            return Arc::clone(self.beyond.get_or_insert_with(|| NetworkCounts::new(clock)));
        }
        let counts = NetworkCounts::new(clock);
        self.by_network.insert(network, RecentNetwork { counts: Arc::clone(&counts), last: now });
        counts
    }

    fn remove_idle(&mut self, now: Duration) {
        if self.looked.is_some_and(|at| now.saturating_sub(at) < LOOK_EVERY) {
            return;
        }
        self.looked = Some(now);
        self.by_network.retain(|_, known| now.saturating_sub(known.last) < IDLE);
    }
}

impl NetworkCounts {
    fn new(clock: &TokioClock) -> Arc<Self> {
        let quota = Quota::per_second(PER_SECOND);
        let limiter = |quota| RateLimiter::direct_with_clock(quota, clock.clone());
        let (limiter, unanswered) = (limiter(quota.allow_burst(BURST)), limiter(quota));
        Arc::new(Self { limiter, given_back: AtomicU32::new(0), unanswered })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn taken(budget: &QuestionBudget, network: IpAddr) -> u32 {
        let mut taken = 0;
        while budget.take(network).is_ok() {
            taken += 1;
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_pays_for_inactive_tokens_and_other_networks_do_not() {
        let budget = QuestionBudget::default();
        for _ in 0..10_000 {
            budget.take(HERE).unwrap().give_back();
        }
        assert_eq!(taken(&budget, HERE), BURST.get(), "good tokens cost nothing, and save nothing up");
        let wait = budget.take(HERE).unwrap_err();
        assert!(!wait.is_zero() && wait <= Duration::from_millis(100), "{wait:?}");
        assert_eq!(taken(&budget, IpAddr::from([192, 0, 2, 7])), BURST.get(), "another network");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(taken(&budget, HERE), PER_SECOND.get());
        tokio::time::advance(IDLE).await;
        assert_eq!(taken(&budget, HERE), BURST.get());
    }

    #[tokio::test(start_paused = true)]
    async fn sec_79_questions_to_an_unavailable_issuer_are_limited() {
        let budget = QuestionBudget::default();
        let mut asked = 0;
        for _ in 0..10 {
            while let Ok(paid) = budget.take(HERE) {
                asked += 1;
                assert!(asked < 10_000, "an unavailable issuer lifts the limit");
                paid.give_back_unanswered();
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let allowed = BURST.get() + 20 * PER_SECOND.get();
        assert!((BURST.get()..=allowed).contains(&asked), "{asked} questions in 10 s");
    }

    /// All questions in progress have good tokens: each is given back, and none beyond the burst.
    #[tokio::test(start_paused = true)]
    async fn questions_in_progress_are_bounded_by_the_burst_and_come_back_once() {
        let budget = QuestionBudget::default();
        for _ in 0..3 {
            let paid: Vec<_> = (0..BURST.get()).map(|_| budget.take(HERE).unwrap()).collect();
            paid.into_iter().for_each(PaidQuestion::give_back);
            tokio::time::advance(IDLE).await;
        }
        assert!(taken(&budget, HERE) <= 2 * BURST.get());
    }

    #[tokio::test(start_paused = true)]
    async fn further_networks_share_one_budget_until_others_are_idle() {
        let budget = QuestionBudget::default();
        let network = |n: usize| IpAddr::from(u128::try_from(n).unwrap().to_be_bytes());
        for n in 0..NETWORKS_MAX {
            budget.take(network(n)).unwrap();
        }
        assert_eq!(taken(&budget, network(NETWORKS_MAX)), BURST.get());
        assert_eq!(taken(&budget, network(NETWORKS_MAX + 1)), 0);
        tokio::time::advance(IDLE).await;
        assert_eq!(taken(&budget, network(NETWORKS_MAX + 1)), BURST.get());
        assert_eq!(budget.networks.lock().by_network.len(), 1);
    }
}
