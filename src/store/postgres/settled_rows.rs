//! Caches settled rows that were read. A hint about another replica's write or removal, or lost hints, evicts them. A
//! row is returned while its read is trusted, and for good after a later barrier ([`crate::replica::read_trust`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::sync::Cache;
use parking_lot::Mutex;

use crate::replica::{BootTime, ReadVerdict, ServerMark};
use crate::store::tasks::StoredTask;
use crate::task::{TaskKey, Timestamp};

const SHARDS: usize = 256;
const BYTES_MAX: u64 = 64 << 20;
/// A larger row would evict too many others.
const ROW_BYTES_MAX: usize = 8 << 20;
const KEPT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug)]
pub(super) struct SettledRows {
    rows: Cache<TaskKey, KeptRow>,
    /// Incremented when a row of the shard is known to change; rows read before that are not cached.
    changes: Box<[AtomicU64]>,
    barrier: Mutex<Option<(ServerMark, BootTime)>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ReadSource {
    pub(super) server: ServerMark,
    pub(super) received: BootTime,
}

/// The shard's change count before a read, which caching the row requires.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheTicket(u64);

#[derive(Clone, Debug)]
struct KeptRow {
    row: StoredTask,
    remaining: Duration,
    source: ReadSource,
    is_proven: Arc<AtomicBool>,
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
        Self {
            rows: rows.build(),
            changes: (0..SHARDS).map(|_| AtomicU64::new(0)).collect(),
            barrier: Mutex::default(),
        }
    }

    fn shard(&self, key: &TaskKey) -> &AtomicU64 {
        &self.changes[usize::try_from(key.id.bits() % SHARDS as u128).unwrap_or(0)]
    }

    pub(super) fn has(&self, key: &TaskKey) -> bool {
        self.rows.contains_key(key)
    }

    /// Returns a cached row if its read is proven, or if `judge` trusts it now.
    pub(super) fn get(&self, key: &TaskKey, judge: impl FnOnce(ReadSource) -> ReadVerdict) -> Option<StoredTask> {
        let KeptRow { row, source, is_proven, .. } = self.rows.get(key)?;
        if !is_proven.load(Ordering::Relaxed) {
            if self.is_proven(source) {
                is_proven.store(true, Ordering::Relaxed);
            } else if judge(source) == ReadVerdict::NeedsBarrier {
                return None;
            }
        }
        Some(row)
    }

    fn is_proven(&self, source: ReadSource) -> bool {
        self.barrier.lock().is_some_and(|(server, sent)| server == source.server && sent >= source.received)
    }

    /// Records a committed transaction, which proves earlier reads on that server.
    pub(super) fn write_passed(&self, server: ServerMark, sent: BootTime) {
        let mut barrier = self.barrier.lock();
        if barrier.is_none_or(|(_, last)| last <= sent) {
            *barrier = Some((server, sent));
        }
    }

    /// Must be taken before a row is read.
    pub(super) fn ticket(&self, key: &TaskKey) -> CacheTicket {
        CacheTicket(self.shard(key).load(Ordering::SeqCst))
    }

    /// Caches a row if it is settled and its shard has not changed meanwhile.
    pub(super) fn keep(&self, ticket: CacheTicket, row: &StoredTask, source: ReadSource, now: Timestamp) {
        let remaining = row.task.expires_at().since(now).min(KEPT_MAX);
        if !row.task.is_settled() || remaining.is_zero() || row.task.stored_bytes() > ROW_BYTES_MAX {
            return;
        }
        let key = &row.task.key;
        if self.shard(key).load(Ordering::SeqCst) == ticket.0 {
            let is_proven = Arc::new(AtomicBool::new(self.is_proven(source)));
            self.rows.insert(key.clone(), KeptRow { row: row.clone(), remaining, source, is_proven });
            // A change may have come between the check and the insertion.
            if self.shard(key).load(Ordering::SeqCst) != ticket.0 {
                self.rows.invalidate(key);
            }
        }
    }

    pub(super) fn remove(&self, key: &TaskKey) {
        self.shard(key).fetch_add(1, Ordering::SeqCst);
        self.rows.invalidate(key);
    }

    pub(super) fn clear(&self) {
        for shard in &self.changes {
            shard.fetch_add(1, Ordering::SeqCst);
        }
        self.rows.invalidate_all();
    }
}
