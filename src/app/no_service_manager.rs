//! Replaces the calls to a service manager on systems where none is notified.

use std::time::Duration;

pub const fn notify_ready() {}

pub const fn notify_reloading() {}

pub const fn notify_stopping(_: Duration) {}

pub async fn keep_stopping(_: Duration) {
    std::future::pending().await
}

pub async fn keep_watched() {}
