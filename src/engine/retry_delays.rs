//! Spaces the retries of a store that failed.

use std::time::Duration;

/// Delays that double from the first to the last, and then remain constant.
#[derive(Clone, Copy, Debug)]
pub struct RetryDelays {
    next: Duration,
    last: Duration,
}

impl RetryDelays {
    pub const fn new(first: Duration, last: Duration) -> Self {
        Self { next: first, last }
    }

    /// For reads of tasks: soon, since a store that reopens its file needs a moment, then every few seconds.
    pub const fn of_readers() -> Self {
        Self::new(Duration::from_millis(200), Duration::from_secs(5))
    }

    /// For writes that must succeed, as long as the store fails.
    pub const fn of_writers() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(5))
    }

    pub fn take(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.last);
        pause
    }

    /// Waits for the next delay. Cancel safe: a delay that has begun counts as taken.
    pub async fn wait(&mut self) {
        let pause = self.take();
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_last() {
        let mut pauses = RetryDelays::new(Duration::from_secs(1), Duration::from_secs(5));
        let taken: Vec<u64> = (0..5).map(|_| pauses.take().as_secs()).collect();
        assert_eq!(taken, [1, 2, 4, 5, 5]);
    }
}
