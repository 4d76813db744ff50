//! Watches look-ups of tasks that fail (L25-62): one or two are a client that came too late, many in a short time are
//! somebody who guesses.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metric;
use crate::task::Principal;
use crate::task::reference::LoggedPrincipal;

/// Misses of one principal within a window that are worth a line in the log, once a window.
const MANY: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// Principals that are watched at a time; those beyond are counted in the metric alone.
const WATCHED_MAX: usize = 1_024;

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

    /// L25-62.
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
