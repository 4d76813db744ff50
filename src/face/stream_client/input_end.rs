//! Answers the requests read before a client's input ended: the client may still read.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep_until};

use super::{CompletedWork, StreamClientLoop};

/// How long the next answer may take after the input ended. Hosts send a signal after the same time.
pub const NEXT_ANSWER_MAX: Duration = Duration::from_secs(2);

impl StreamClientLoop {
    /// Goes on until everything that was asked has its answer, the client has gone, or nothing more is answered.
    pub(super) async fn answer_what_was_read(&mut self, next_answer_max: Duration) {
        let line = Arc::clone(&self.line);
        let mut until = Instant::now() + next_answer_max;
        while !next_answer_max.is_zero() && !self.is_answered() {
            tokio::select! {
                biased;
                Some(done) = self.work.next(), if !self.work.is_empty() => {
                    if !matches!(done, CompletedWork::Said) {
                        until = Instant::now() + next_answer_max;
                    }
                    self.done(done);
                }
                () = line.gone() => return,
                () = sleep_until(until) => return,
            }
        }
    }
}
