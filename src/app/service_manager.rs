//! Tells the service manager, if one asks (`NOTIFY_SOCKET`), that the gateway is ready, reloads, lives or stops.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::Instant;

/// Beyond the drain itself, for what follows it.
const TO_END: Duration = Duration::from_secs(10);
/// The most that a manager is asked to wait at a time, and how often it is asked: what it is told at once ends at 71 minutes.
const PATIENCE_MAX: Duration = Duration::from_secs(120);
const ASK_EVERY: Duration = Duration::from_secs(30);

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

/// Clients are served, or served again.
pub fn tell_ready() {
    tell(&[NotifyState::Ready]);
}

/// The configuration is being read; [`tell_ready`] must follow.
pub fn tell_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// The gateway drains, which may take this long. [`keep_stopping`] must follow.
pub fn tell_stopping(drain: Duration) {
    tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(patience(drain + TO_END))]);
}

/// Asks the manager for more time until a drain that has begun should be over. Never returns.
pub async fn keep_stopping(drain: Duration) {
    let began = Instant::now();
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        let left = (drain + TO_END).saturating_sub(began.elapsed());
        if !left.is_zero() {
            tell(&[NotifyState::ExtendTimeoutUsec(patience(left))]);
        }
    }
}

/// How many microseconds to ask for where so much is left.
fn patience(left: Duration) -> u32 {
    u32::try_from(left.min(PATIENCE_MAX).as_micros()).unwrap_or(u32::MAX)
}

/// Shows signs of life as often as the manager wants them. Never returns where it wants any.
pub async fn keep_watched() {
    let Some(within) = sd_notify::watchdog_enabled() else { return };
    loop {
        tell(&[NotifyState::Watchdog]);
        tokio::time::sleep(within / 2).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_asked_for_no_more_than_is_left_and_for_hours_in_turns() {
        let seconds = |left| patience(Duration::from_secs(left)) / 1_000_000;
        assert_eq!([0, 1, 119, 120, 121, 24 * 60 * 60].map(seconds), [0, 1, 119, 120, 120, 120]);
        assert!(ASK_EVERY * 2 < PATIENCE_MAX, "one that is late is no end");
    }
}
