//! Notifies the service manager (`NOTIFY_SOCKET`) of readiness, reloads, liveness and stops.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::Instant;

const TO_END: Duration = Duration::from_secs(10);
/// The most time requested at once, and the interval of requests: a single request covers at most 71 minutes.
const PATIENCE_MAX: Duration = Duration::from_secs(120);
const ASK_EVERY: Duration = Duration::from_secs(30);

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager cannot be notified");
    }
}

pub fn notify_ready() {
    notify(&[NotifyState::Ready]);
}

/// The configuration is being reloaded; [`notify_ready`] must follow.
pub fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
}

/// The gateway drains for up to this long. [`keep_stopping`] must follow.
pub fn notify_stopping(drain: Duration) {
    notify(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(patience(drain + TO_END))]);
}

/// Extends the stop timeout until the drain should be over. Never returns.
pub async fn keep_stopping(drain: Duration) {
    let began = Instant::now();
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        let left = (drain + TO_END).saturating_sub(began.elapsed());
        if !left.is_zero() {
            notify(&[NotifyState::ExtendTimeoutUsec(patience(left))]);
        }
    }
}

fn patience(left: Duration) -> u32 {
    u32::try_from(left.min(PATIENCE_MAX).as_micros()).unwrap_or(u32::MAX)
}

/// Sends watchdog notifications as often as the manager expects them. Never returns if it expects any.
pub async fn keep_watched() {
    let Some(within) = sd_notify::watchdog_enabled() else { return };
    loop {
        notify(&[NotifyState::Watchdog]);
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
