//! Measures the silence of a stream: a life sign is due after [`LIFE_SIGN`].

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// The longest silence of a stream. Proxies and clients give up on a longer one.
pub const LIFE_SIGN: Duration = Duration::from_secs(15);

/// The silence of one stream, since its beginning or its last write.
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    since: Instant,
}

impl Silence {
    #[must_use]
    pub fn begin() -> Self {
        Self::since(Instant::now())
    }

    /// Starts at this moment.
    #[must_use]
    pub const fn since(since: Instant) -> Self {
        Self { since }
    }

    /// Restarts after a write.
    pub fn broken(&mut self) {
        self.since = Instant::now();
    }

    /// The time of the next life sign.
    #[must_use]
    pub fn ends_at(self) -> Instant {
        self.since + LIFE_SIGN
    }

    /// Waits for the next item; `None` if a life sign is due first. Cancel safe if `next` is.
    pub async fn wait<T>(self, next: impl Future<Output = T>) -> Option<T> {
        timeout_at(self.ends_at(), next).await.ok()
    }
}
