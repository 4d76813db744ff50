//! Judges whether a clock can be right, by the time that a store was last used at: one guard for all stores that outlive a process.
//!
//! A clock that is wrong at a start must not lose what is kept: where it leapt ahead by more than any task in the store lives, and by
//! more than a day, nothing is freed at first, and the time is not noted as a time of use, so that the next life knows no more of it.
//! Where a wrong time was noted after all, the operator takes it back: [`RESET`].

use std::time::Duration;

use tokio::time::Instant;

use crate::task::Timestamp;

/// A file of this name in the gateway's folder, made by the operator, has the next start forget the time that the store
/// was last used at.
pub(super) const RESET: &str = "tasks.reset-clock";

/// A difference that is worth a word.
const DIFFERENCE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a clock that leapt ahead frees nothing.
pub(super) const DISTRUST: Duration = Duration::from_secs(10 * 60);

/// The trust in the clock in this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockTrust {
    distrusted_until: Option<Instant>,
}

impl ClockTrust {
    /// For a gateway that joins others, which distrust the time that it takes over.
    pub(super) fn withheld(distrust: Duration) -> Self {
        tracing::warn!(?distrust, "the other gateways go by a clock that leapt ahead: nothing is freed for now");
        Self { distrusted_until: Some(Instant::now() + distrust) }
    }

    /// For a gateway that joins others, which trust the time, and for a store that was never used.
    pub(super) const fn given() -> Self {
        Self { distrusted_until: None }
    }

    pub(super) fn is_distrusted(&self) -> bool {
        self.distrusted_until.is_some_and(|until| Instant::now() < until)
    }

    /// Judges the time that a clock shows at the start, and logs a warning for the operator. `longest` is how long tasks in the
    /// store live at most after it was last used.
    pub(super) fn new(shown: Option<Timestamp>, seen: Timestamp, longest: Duration, distrust: Duration) -> Self {
        let Some(shown) = shown.filter(|_| seen > Timestamp::from_millis(0)) else {
            return Self { distrusted_until: None };
        };
        let (ahead, behind) = (shown.since(seen), seen.since(shown));
        if behind > DIFFERENCE_MAX {
            tracing::warn!(
                clock = %shown, last_used = %seen,
                "the clock shows an earlier time than the task store was last used at, and tasks go by the later one; if \
                 the clock is right, stop the gateway, make an empty file `{RESET}` in the gateway's folder and start again"
            );
        }
        if ahead <= DIFFERENCE_MAX {
            return Self { distrusted_until: None };
        }
        let is_leap = ahead > longest && !longest.is_zero();
        if is_leap {
            tracing::warn!(
                clock = %shown, last_used = %seen, ?distrust,
                "the clock is ahead of the time that the task store was last used at by more than any task in it lives: \
                 nothing is freed for now; if the clock is wrong, stop the gateway within that time"
            );
        } else {
            tracing::warn!(clock = %shown, last_used = %seen, "the task store was last used more than a day ago");
        }
        Self { distrusted_until: is_leap.then(|| Instant::now() + distrust) }
    }
}
