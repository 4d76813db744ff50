//! Holds the principals' limits in force, which reloads replace and replicas divide.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::answer_budget::{AnswerBudget, AnswerShare, BudgetRefusal};
use crate::task::reference::LoggedPrincipal;
use crate::task::{Principal, PrincipalLimitTable, PrincipalLimits};

/// The interval between log lines for one principal and bound.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// The most pairs of a principal and a bound that are logged; further refusals are only counted in metrics.
const LOGGED_MAX: usize = 1_024;

#[derive(Clone, Debug, Default)]
pub struct SharedLimits(Arc<LimitState>);

#[derive(Debug, Default)]
struct LimitState {
    table: ArcSwap<PrincipalLimitTable>,
    refusals: Mutex<HashMap<(Principal, &'static str), RefusalCount>>,
    answers: AnswerBudget,
    /// The number of other replicas that divide the limits with this one.
    beside: AtomicUsize,
}

/// The time of the last log line, and the refusals since.
#[derive(Debug)]
struct RefusalCount {
    last: Instant,
    refused: u64,
}

impl SharedLimits {
    pub fn new(table: Arc<PrincipalLimitTable>) -> Self {
        let limits = Self::default();
        limits.replace(table);
        limits
    }

    /// Applies from the next request on.
    pub fn replace(&self, table: Arc<PrincipalLimitTable>) {
        self.0.answers.resize(table.answer_bytes_max);
        self.0.table.store(table);
    }

    pub fn of(&self, principal: &Principal) -> PrincipalLimits {
        self.0.table.load().of(principal)
    }

    /// Divides the limits among this many replicas, this one included; returns whether the number changed.
    pub fn divide_by(&self, gateways: NonZeroUsize) -> bool {
        let beside = gateways.get() - 1;
        self.0.beside.swap(beside, Ordering::Relaxed) != beside
    }

    pub fn gateways(&self) -> NonZeroUsize {
        NonZeroUsize::MIN.saturating_add(self.0.beside.load(Ordering::Relaxed))
    }

    #[must_use]
    pub fn answers_to(&self, principal: &Principal) -> AnswerShare {
        self.0.answers.share(principal, self.of(principal).answer_bytes_max)
    }

    pub fn refusal_of_answers(&self, principal: &Principal) -> Option<BudgetRefusal> {
        let refusal = self.0.answers.refusal(principal, || self.of(principal).answer_bytes_max)?;
        self.refused(principal, refusal.key(), &refusal.bytes_max);
        Some(refusal)
    }

    /// How many of `max` permits one of several principals may hold.
    pub fn share_of(&self, owner: &Principal, max: usize) -> usize {
        self.of(owner).permits.of(max)
    }

    /// Records that a principal reached the bound `allowed`: logs once a minute for each principal and key.
    pub fn refused(&self, principal: &Principal, key: &'static str, allowed: &dyn std::fmt::Display) {
        if let Some(refused) = self.refusals_to_log(principal, key) {
            let principal = LoggedPrincipal(principal);
            tracing::warn!(%principal, key, bound = %allowed, refused, "a principal's requests are refused: it has reached a limit");
        }
    }

    /// The number of refusals since the last log line, if another one is due.
    fn refusals_to_log(&self, principal: &Principal, key: &'static str) -> Option<u64> {
        let now = Instant::now();
        let is_old = |count: &RefusalCount| now.duration_since(count.last) >= LOG_EVERY;
        let mut refusals = self.0.refusals.lock();
        if refusals.len() >= LOGGED_MAX {
            refusals.retain(|_, count| !is_old(count));
        }
        let is_full = refusals.len() >= LOGGED_MAX;
        match refusals.entry((principal.clone(), key)) {
            Entry::Occupied(mut count) => {
                let count = count.get_mut();
                count.refused += 1;
                is_old(count).then(|| {
                    count.last = now;
                    std::mem::take(&mut count.refused)
                })
            }
            Entry::Vacant(_) if is_full => None,
            Entry::Vacant(first) => {
                first.insert(RefusalCount { last: now, refused: 0 });
                Some(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_principal_is_told_of_once_a_minute_for_each_bound() {
        let (limits, ada, bob) = (SharedLimits::default(), Principal::holding("ada"), Principal::holding("bob"));
        assert_eq!(limits.refusals_to_log(&ada, "polls_per_task"), Some(1));
        for _ in 0..7 {
            assert_eq!(limits.refusals_to_log(&ada, "polls_per_task"), None);
        }
        assert_eq!(limits.refusals_to_log(&ada, "requests_per_second"), Some(1), "another bound");
        assert_eq!(limits.refusals_to_log(&bob, "polls_per_task"), Some(1), "another one");
        tokio::time::advance(LOG_EVERY).await;
        assert_eq!(limits.refusals_to_log(&ada, "polls_per_task"), Some(8));
        assert_eq!(limits.refusals_to_log(&ada, "polls_per_task"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_are_refused_few_are_remembered() {
        let limits = SharedLimits::default();
        let refusals = |n: usize| limits.refusals_to_log(&Principal::holding(&n.to_string()), "polls_per_task");
        assert!((0..LOGGED_MAX).all(|n| refusals(n) == Some(1)));
        assert_eq!(refusals(LOGGED_MAX), None);
        tokio::time::advance(LOG_EVERY).await;
        assert_eq!(refusals(LOGGED_MAX), Some(1), "the others are forgotten");
    }
}
