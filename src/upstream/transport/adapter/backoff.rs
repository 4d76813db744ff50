//! Decides when a server that ended by itself is started again.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::task::{Executed, GatewayFault, Reason};

/// Duration after which a connection was useful, so that failures before it no longer count.
const USEFUL_AFTER: Duration = Duration::from_secs(10);
/// Pause after the second consecutive failure; each further one doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause that a request waits for; a longer one is a fault.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Consecutive failures of one server. The first has no pause: many servers crash on one input.
#[derive(Debug)]
pub(super) struct RestartBackoff {
    state: Mutex<BackoffState>,
    pause_max: Duration,
}

#[derive(Debug, Default)]
struct BackoffState {
    failures: u32,
    until: Option<Instant>,
}

impl RestartBackoff {
    pub(super) fn new(pause_max: Duration) -> Self {
        Self { state: Mutex::default(), pause_max }
    }

    /// Waits until the server may be started, or fails with the time to retry.
    pub(super) async fn wait(&self) -> Result<(), GatewayFault> {
        let until = self.state.lock().until;
        let Some(until) = until else { return Ok(()) };
        let left = until.saturating_duration_since(Instant::now());
        if left > WAIT_MAX {
            let fault = GatewayFault::new(Reason::UpstreamUnreachable, Executed::No);
            return Err(GatewayFault { retry_after: Some(left), ..fault });
        }
        tokio::time::sleep(left).await;
        Ok(())
    }

    pub(super) fn note_failure(&self) {
        self.note_end(Duration::ZERO, false);
    }

    /// Records a connection's end. A long connection, or a tool's result, resets the count.
    pub(super) fn note_end(&self, lasted: Duration, has_served: bool) {
        let mut state = self.state.lock();
        state.failures = if has_served || lasted >= USEFUL_AFTER { 1 } else { state.failures.saturating_add(1) };
        state.until = state.failures.checked_sub(2).map(|repeated| {
            Instant::now() + PAUSE_MIN.saturating_mul(2_u32.saturating_pow(repeated)).min(self.pause_max)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F45.
    #[tokio::test(start_paused = true)]
    async fn f45_pauses_begin_with_the_second_failure_and_have_a_cap() {
        let backoff = RestartBackoff::new(Duration::from_secs(30));
        let mut waited = Vec::new();
        for _ in 0..6 {
            backoff.note_failure();
            let began = Instant::now();
            backoff.wait().await.unwrap();
            waited.push(began.elapsed().as_millis());
        }
        assert_eq!(waited, [0, 100, 200, 400, 800, 1600]);
        for _ in 0..100 {
            backoff.note_failure();
        }
        let refused = backoff.wait().await.unwrap_err();
        assert_eq!((refused.executed, refused.retry_after), (Executed::No, Some(Duration::from_secs(30))));
        for (lasted, has_served) in [(USEFUL_AFTER, false), (Duration::ZERO, true)] {
            (0..10).for_each(|_| backoff.note_failure());
            backoff.note_end(lasted, has_served);
            let began = Instant::now();
            backoff.wait().await.unwrap();
            assert_eq!(began.elapsed(), Duration::ZERO, "it was of use");
        }
    }
}
