//! Passes records from requests to the writer's thread, within a bound in bytes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::metric;
use crate::task::Timestamp;

/// Records that wait, in bytes. A further one is lost.
const BYTES_MAX: usize = 4 << 20;
/// Memory of a record beside its text.
const RECORD_BYTES: usize = 64;
/// A record that waits longer shows that the file is blocked.
const STALL_MAX: Duration = Duration::from_secs(3);
/// How long records that no request awaits gather: a write and a wake-up for each cost more than the records.
const GATHER_MAX: Duration = Duration::from_millis(10);
/// How long refusals are counted before a line has their number.
const UNNAMED_AFTER: Duration = Duration::from_secs(1);

/// A record without its place in the chain.
#[derive(Debug)]
pub(super) struct QueuedRecord {
    pub(super) at: Timestamp,
    pub(super) members: String,
    /// Notified once the record is on the disk; dropped if the write failed.
    pub(super) reply: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
pub(super) enum QueueItem {
    Record(QueuedRecord),
    /// The number of records that found no room in the queue.
    Lost(u64),
    /// The number of refused requests that have no record.
    Unnamed(u64),
    Reopen,
}

#[derive(Debug, Default)]
struct QueueState {
    items: VecDeque<QueueItem>,
    bytes: usize,
    unnamed: u64,
    unnamed_since: Option<Instant>,
    /// Since when the oldest item has waited, or is being written.
    waits_since: Option<Instant>,
    /// Whether the items are written without waiting for further ones.
    is_urgent: bool,
    /// Set once nothing more is accepted.
    is_ending: bool,
    is_over: bool,
    closed: Vec<oneshot::Sender<()>>,
}

#[derive(Debug)]
pub(super) struct AuditQueue {
    state: Mutex<QueueState>,
    news: Condvar,
    gather_max: Duration,
    is_failing: AtomicBool,
}

impl Default for AuditQueue {
    fn default() -> Self {
        Self::gathering(GATHER_MAX)
    }
}

pub(super) enum WriterWork {
    Items(VecDeque<QueueItem>),
    Idle,
    /// The last items were taken before.
    End,
}

impl AuditQueue {
    fn gathering(gather_max: Duration) -> Self {
        Self { state: Mutex::default(), news: Condvar::new(), gather_max, is_failing: AtomicBool::new(false) }
    }

    pub(super) fn push(&self, record: QueuedRecord) {
        let mut state = self.state.lock();
        if state.is_ending {
            return;
        }
        let bytes = record.members.len() + RECORD_BYTES;
        if state.bytes + bytes > BYTES_MAX {
            metrics::counter!(metric::AUDIT_LOST).increment(1);
            if let Some(QueueItem::Lost(lost)) = state.items.back_mut() {
                *lost += 1;
            } else {
                state.items.push_back(QueueItem::Lost(1));
            }
            return;
        }
        state.bytes += bytes;
        state.is_urgent |= record.reply.is_some() || state.bytes > BYTES_MAX / 4;
        let wakes = state.is_urgent || state.items.is_empty();
        state.add(QueueItem::Record(record));
        if wakes {
            self.news.notify_one();
        }
    }

    /// Counts a refused request that gets no record. A line has the count after a moment, or at the end.
    pub(super) fn count_unnamed(&self) {
        let mut state = self.state.lock();
        if state.is_ending {
            return;
        }
        state.unnamed += 1;
        if state.unnamed_since.is_none() {
            state.unnamed_since = Some(Instant::now());
            self.news.notify_one();
        }
    }

    pub(super) fn reopen(&self) {
        let mut state = self.state.lock();
        // One item is enough: the writer then opens the newest file.
        if !state.is_ending && !state.items.iter().any(|item| matches!(item, QueueItem::Reopen)) {
            state.add(QueueItem::Reopen);
            state.is_urgent = true;
            self.news.notify_one();
        }
    }

    /// Whether the file is to be opened again; asked by a writer that cannot write, and so takes no items.
    pub(super) fn take_reopen(&self) -> bool {
        let mut state = self.state.lock();
        let position = state.items.iter().position(|item| matches!(item, QueueItem::Reopen));
        position.is_some_and(|position| state.items.remove(position).is_some())
    }

    /// Ends the writer after the items so far.
    pub(super) fn end(&self) {
        self.state.lock().is_ending = true;
        self.news.notify_one();
    }

    pub(super) async fn close(&self) {
        let (sender, ended) = oneshot::channel();
        {
            let mut state = self.state.lock();
            if state.is_over {
                return;
            }
            state.closed.push(sender);
        }
        self.end();
        let _ = ended.await;
    }

    pub(super) fn is_written(&self) -> bool {
        let is_stalled = || self.state.lock().waits_since.is_some_and(|since| since.elapsed() > STALL_MAX);
        !self.is_failing.load(Ordering::Relaxed) && !is_stalled()
    }

    pub(super) fn set_failing(&self, is_failing: bool) {
        self.is_failing.store(is_failing, Ordering::Relaxed);
    }

    /// Takes all items, waiting at most `patience`; without it, as long as it takes. Reports that earlier items are written.
    pub(super) fn take(&self, patience: Option<Duration>) -> WriterWork {
        let mut state = self.state.lock();
        state.waits_since = if state.items.is_empty() { None } else { Some(Instant::now()) };
        while state.items.is_empty() && !state.is_ending && !state.is_unnamed_due() {
            match patience.or_else(|| state.unnamed_since.map(|_| UNNAMED_AFTER)) {
                Some(patience) if self.news.wait_for(&mut state, patience).timed_out() => {
                    if !state.is_unnamed_due() {
                        return WriterWork::Idle;
                    }
                }
                Some(_) => (),
                None => self.news.wait(&mut state),
            }
        }
        let gathered_at = Instant::now() + self.gather_max;
        while !state.items.is_empty() && !state.is_urgent && !state.is_ending {
            let rest = gathered_at.saturating_duration_since(Instant::now());
            if rest.is_zero() || self.news.wait_for(&mut state, rest).timed_out() {
                break;
            }
        }
        if state.is_unnamed_due() || (state.is_ending && state.unnamed > 0) {
            let unnamed = QueueItem::Unnamed(state.unnamed);
            (state.unnamed, state.unnamed_since) = (0, None);
            state.items.push_back(unnamed);
        }
        if state.items.is_empty() {
            return WriterWork::End;
        }
        (state.bytes, state.is_urgent) = (0, false);
        WriterWork::Items(std::mem::take(&mut state.items))
    }

    /// Waits before the next attempt to write; false if the gateway ends meanwhile.
    pub(super) fn pause(&self, span: Duration) -> bool {
        let mut state = self.state.lock();
        let end = Instant::now() + span;
        while !state.is_ending {
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() || self.news.wait_for(&mut state, rest).timed_out() {
                return true;
            }
        }
        false
    }

    pub(super) fn has_ended(&self) {
        let mut state = self.state.lock();
        (state.is_ending, state.is_over) = (true, true);
        state.items.clear();
        state.closed.clear();
    }
}

impl QueueState {
    fn is_unnamed_due(&self) -> bool {
        self.unnamed_since.is_some_and(|since| since.elapsed() >= UNNAMED_AFTER)
    }

    fn add(&mut self, item: QueueItem) {
        self.waits_since.get_or_insert_with(Instant::now);
        self.items.push_back(item);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn record(reply: Option<oneshot::Sender<()>>) -> QueuedRecord {
        QueuedRecord { at: Timestamp::from_millis(0), members: String::new(), reply }
    }

    fn items(work: &WriterWork) -> usize {
        match work {
            WriterWork::Items(items) => items.len(),
            WriterWork::Idle | WriterWork::End => 0,
        }
    }

    #[test]
    fn records_gather_until_one_is_awaited_the_file_is_rotated_or_the_gateway_ends() {
        let urgent: [fn(&AuditQueue); 3] =
            [|queue| queue.push(record(Some(oneshot::channel().0))), AuditQueue::reopen, AuditQueue::end];
        for (push, expected) in urgent.into_iter().zip([3, 3, 2]) {
            let queue = Arc::new(AuditQueue::gathering(Duration::from_secs(3_600)));
            queue.push(record(None));
            let taken = std::thread::spawn({
                let queue = Arc::clone(&queue);
                move || queue.take(None)
            });
            queue.push(record(None));
            push(&queue);
            assert_eq!(items(&taken.join().unwrap()), expected);
        }
    }

    #[test]
    fn records_that_no_request_awaits_are_taken_after_a_moment_or_once_they_are_many() {
        let queue = AuditQueue::default();
        queue.push(record(None));
        assert_eq!(items(&queue.take(None)), 1);
        let queue = AuditQueue::gathering(Duration::from_secs(3_600));
        let large = QueuedRecord { members: "x".repeat(BYTES_MAX / 4), ..record(None) };
        queue.push(large);
        assert_eq!(items(&queue.take(None)), 1);
    }
}
