//! Keeps settled rows that were read, for whoever asks next. What clients see of them never changes; a hint that one was
//! written or removed elsewhere, or that hints are missing, takes them out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::sync::Cache;

use crate::store::tasks::StoredTask;
use crate::task::{TaskKey, Timestamp};

const SHARDS: usize = 256;
const BYTES_MAX: u64 = 64 << 20;
/// One that is larger would push out too many others.
const ROW_BYTES_MAX: usize = 8 << 20;
const KEPT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug)]
pub(super) struct SettledRows {
    rows: Cache<TaskKey, KeptRow>,
    /// Counted up whenever a row of the shard is known to change: what was read before is not kept.
    changes: Box<[AtomicU64]>,
}

/// What a reader must show to have a row kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheTicket(u64);

#[derive(Clone, Debug)]
struct KeptRow {
    row: StoredTask,
    remaining: Duration,
}

struct KeptRowExpiry;

impl Expiry<TaskKey, KeptRow> for KeptRowExpiry {
    fn expire_after_create(&self, _: &TaskKey, kept: &KeptRow, _: Instant) -> Option<Duration> {
        Some(kept.remaining)
    }
}

impl SettledRows {
    pub(super) fn new() -> Self {
        let weigh = |_: &TaskKey, kept: &KeptRow| u32::try_from(kept.row.task.stored_bytes()).unwrap_or(u32::MAX);
        let rows =
            Cache::builder().name("settled tasks").max_capacity(BYTES_MAX).weigher(weigh).expire_after(KeptRowExpiry);
        Self { rows: rows.build(), changes: (0..SHARDS).map(|_| AtomicU64::new(0)).collect() }
    }

    fn shard(&self, key: &TaskKey) -> &AtomicU64 {
        &self.changes[usize::try_from(key.id.bits() % SHARDS as u128).unwrap_or(0)]
    }

    pub(super) fn get(&self, key: &TaskKey) -> Option<StoredTask> {
        self.rows.get(key).map(|kept| kept.row)
    }

    /// To be taken before a row is read.
    pub(super) fn ticket(&self, key: &TaskKey) -> CacheTicket {
        CacheTicket(self.shard(key).load(Ordering::SeqCst))
    }

    /// Keeps a row that was read, if it is settled and nothing changed meanwhile.
    pub(super) fn keep(&self, ticket: CacheTicket, row: &StoredTask, now: Timestamp) {
        let remaining = row.task.expires_at().since(now).min(KEPT_MAX);
        if !row.task.is_settled() || remaining.is_zero() || row.task.stored_bytes() > ROW_BYTES_MAX {
            return;
        }
        let key = &row.task.key;
        if self.shard(key).load(Ordering::SeqCst) == ticket.0 {
            self.rows.insert(key.clone(), KeptRow { row: row.clone(), remaining });
            // It may have changed between the look and the insertion.
            if self.shard(key).load(Ordering::SeqCst) != ticket.0 {
                self.rows.invalidate(key);
            }
        }
    }

    pub(super) fn forget(&self, key: &TaskKey) {
        self.shard(key).fetch_add(1, Ordering::SeqCst);
        self.rows.invalidate(key);
    }

    pub(super) fn forget_all(&self) {
        for shard in &self.changes {
            shard.fetch_add(1, Ordering::SeqCst);
        }
        self.rows.invalidate_all();
    }
}
