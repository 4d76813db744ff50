//! Measures the silence of a stream: a life sign is due after [`LIFE_SIGN`].

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// Proxies and clients give up on a longer silence.
pub const LIFE_SIGN: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug)]
pub struct Silence {
    since: Instant,
}

impl Silence {
    #[must_use]
    pub fn begin() -> Self {
        Self::since(Instant::now())
    }

    #[must_use]
    pub const fn since(since: Instant) -> Self {
        Self { since }
    }

    pub fn broken(&mut self) {
        self.since = Instant::now();
    }

    #[must_use]
    pub fn ends_at(self) -> Instant {
        self.since + LIFE_SIGN
    }

    /// `None` if a life sign is due first. Cancel safe if `next` is.
    pub async fn wait<T>(self, next: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.ends_at(), next).await.ok()
    }
}
