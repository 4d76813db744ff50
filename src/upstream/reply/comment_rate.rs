//! Slows the reading of a stream of comments only: they cost as much to read as messages, and end no wait.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Bytes of comments that are read in a second, over [`BURST`].
const BYTES_PER_SECOND: u32 = 1 << 20;
const BURST: Duration = Duration::from_secs(1);

/// The time at which the comments read so far are paid for.
#[derive(Debug, Default)]
pub(super) struct CommentRate {
    paid_at: Option<Instant>,
}

impl CommentRate {
    /// Counts bytes that belong to no event.
    pub(super) fn count(&mut self, bytes: usize) {
        let now = Instant::now();
        let cost = Duration::from_secs(1) * u32::try_from(bytes).unwrap_or(u32::MAX) / BYTES_PER_SECOND;
        self.paid_at = Some(self.paid_at.map_or(now, |paid_at| paid_at.max(now)) + cost);
    }

    /// Returns once more may be read. Cancel safe.
    pub(super) async fn wait(&self) {
        if let Some(next) = self.paid_at.and_then(|paid_at| paid_at.checked_sub(BURST))
            && next > Instant::now()
        {
            sleep_until(next).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U47.
    #[tokio::test(start_paused = true)]
    async fn comments_without_end_are_read_at_a_rate() {
        let (mut rate, began) = (CommentRate::default(), Instant::now());
        for _ in 0..160 {
            rate.wait().await;
            rate.count(64 << 10);
        }
        let took = began.elapsed();
        assert!((Duration::from_secs(8)..Duration::from_secs(10)).contains(&took), "10 MiB took {took:?}");
        tokio::time::advance(Duration::from_secs(60)).await;
        let rested = Instant::now();
        for _ in 0..16 {
            rate.wait().await;
            rate.count(64 << 10);
        }
        assert_eq!(rested.elapsed(), Duration::ZERO, "a little is free");
    }
}
