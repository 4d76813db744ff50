//! Judges whether a clock can be right, for every store that outlives a process. A wrong clock at startup must not
//! delete tasks: if it is ahead of the store's last use by more than a day, and no stored task had so long to live then,
//! nothing is freed at first and the time is not recorded. [`RESET`] discards a wrong recorded time.

use std::time::Duration;

use tokio::time::Instant;

use crate::task::Timestamp;

/// The operator creates this file in the gateway's folder; the next start discards the time of the store's last use.
pub(super) const RESET: &str = "tasks.reset-clock";

/// Larger differences are logged.
pub(super) const DIFFERENCE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a clock that jumped ahead frees nothing.
pub(super) const DISTRUST: Duration = Duration::from_secs(10 * 60);

#[derive(Clone, Copy, Debug)]
pub(super) struct ClockTrust {
    distrusted_until: Option<Instant>,
    /// The store's last use before this start, as far as it is known.
    last_use: Timestamp,
}

impl ClockTrust {
    /// For a replica that joins others with a distrusted time.
    pub(super) fn distrusted(distrust: Duration) -> Self {
        tracing::warn!(?distrust, "the clock of the other replicas jumped ahead: nothing is freed for now");
        Self { distrusted_until: Some(Instant::now() + distrust), ..Self::trusted() }
    }

    /// For a replica that joins others with a trusted time, and for an unused store.
    pub(super) const fn trusted() -> Self {
        Self { distrusted_until: None, last_use: Timestamp::from_millis(0) }
    }

    /// The time by which settled tasks expire. While the clock is distrusted, it is the last use (F88).
    pub(super) fn expiry_time(&self, now: Timestamp) -> Timestamp {
        if self.is_distrusted() { self.last_use } else { now }
    }

    pub(super) fn is_distrusted(&self) -> bool {
        self.distrusted_until.is_some_and(|until| Instant::now() < until)
    }

    /// Logs a warning for the operator. `longest` is the longest remaining lifetime of a stored task at the last use.
    pub(super) fn new(shown: Option<Timestamp>, seen: Timestamp, longest: Duration, distrust: Duration) -> Self {
        let Some(shown) = shown.filter(|_| seen > Timestamp::from_millis(0)) else {
            return Self::trusted();
        };
        let (ahead, behind) = (shown.since(seen), seen.since(shown));
        if behind > DIFFERENCE_MAX {
            tracing::warn!(
                clock = %shown, last_used = %seen,
                "the clock is behind the task store's last use, and tasks keep the later time; if the clock is right, \
                 stop the gateway, make an empty file `{RESET}` in the gateway's folder and start again"
            );
        }
        if ahead <= DIFFERENCE_MAX {
            return Self::trusted();
        }
        let is_leap = ahead > longest && !longest.is_zero();
        if is_leap {
            tracing::warn!(
                clock = %shown, last_used = %seen, ?distrust,
                "the clock is ahead of the task store's last use by more than any stored task lives: \
                 nothing is freed for now; if the clock is wrong, stop the gateway within that time"
            );
        } else {
            tracing::warn!(clock = %shown, last_used = %seen, "the task store was last used more than a day ago");
        }
        Self { distrusted_until: is_leap.then(|| Instant::now() + distrust), last_use: seen }
    }
}
