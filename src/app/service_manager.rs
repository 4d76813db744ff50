//! Tells the service manager, if one asks (`NOTIFY_SOCKET`), that the gateway is ready, reloads, lives or stops.

use std::time::Duration;

use sd_notify::NotifyState;

/// Beyond the drain itself, for what follows it.
const TO_END: Duration = Duration::from_secs(10);

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

/// The gateway drains, which may take this long.
pub fn tell_stopping(drain: Duration) {
    let micros = u32::try_from((drain + TO_END).as_micros()).unwrap_or(u32::MAX);
    tell(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(micros)]);
}

/// Shows signs of life as often as the manager wants them. Never returns where it wants any.
pub async fn keep_watched() {
    let Some(within) = sd_notify::watchdog_enabled() else { return };
    loop {
        tell(&[NotifyState::Watchdog]);
        tokio::time::sleep(within / 2).await;
    }
}
