//! Measures the silence of a stream: after [`LIFE_SIGN`] a sign of life is due.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// Longest silence of a stream. Balancers and clients give up on one that is silent for longer.
pub const LIFE_SIGN: Duration = Duration::from_secs(15);

/// The silence of one stream, from its beginning or the last that was written on it.
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    since: Instant,
}

impl Silence {
    /// Begins now.
    #[must_use]
    pub fn begin() -> Self {
        Self::since(Instant::now())
    }

    /// Began at this moment.
    #[must_use]
    pub const fn since(since: Instant) -> Self {
        Self { since }
    }

    /// Begins anew: something was written.
    pub fn broken(&mut self) {
        self.since = Instant::now();
    }

    /// When a sign of life is due.
    #[must_use]
    pub fn ends_at(self) -> Instant {
        self.since + LIFE_SIGN
    }

    /// Waits for what is said next; `None` once a sign of life is due before it. Cancel safe if `next` is.
    pub async fn wait<T>(self, next: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.ends_at(), next).await.ok()
    }
}
