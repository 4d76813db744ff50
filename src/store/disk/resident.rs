//! Keeps live rows, a cache of settled ones, and the sums in memory. Tracks unresolved inserts and unclaimed rows. The
//! disk is authoritative. The writer updates memory after each commit, by revision. A reader may add a row only if no
//! commit has touched the row's shard meanwhile. Any row may be left out for lack of space.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use moka::Expiry;
use moka::sync::Cache;
use parking_lot::Mutex;
use rusqlite::Connection;

use super::columns::{OUTLINE, RowOutline, id_of, outline, time};
use super::rows::UnfreeableRows;
use crate::replica::Incarnation;
use crate::store::tasks::{StoredTask, Usage};
use crate::task::{Principal, TaskKey, Timestamp};

const SHARDS: usize = 256;
/// Further live rows are read from the disk.
const LIVE_BYTES_MAX: usize = 256 << 20;
const SETTLED_BYTES_MAX: u64 = 64 << 20;
/// Longer than settled rows usually wait for the next poll.
const KEPT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// A larger row would evict too many others.
const SETTLED_ROW_BYTES_MAX: usize = 8 << 20;
/// Removed rows that stay hidden from readers with older data.
const REMOVED_MAX: usize = 1_024;

/// Any process before this one: the file needs no holders, since only one process has the store open.
const EARLIER: Incarnation = Incarnation(0);
pub(super) const OWN: Incarnation = Incarnation(1);

#[derive(Debug)]
pub(super) struct ResidentRows {
    shards: Box<[Mutex<ResidentShard>]>,
    live_bytes: AtomicUsize,
    sums: Mutex<RowTotals>,
    settled: Cache<TaskKey, CachedRow>,
    pub(super) stuck: Mutex<UnfreeableRows>,
}

#[derive(Debug, Default)]
struct ResidentShard {
    live: HashMap<TaskKey, StoredTask>,
    /// Odd during a commit that touches the shard.
    commits: u64,
}

#[derive(Debug, Default)]
pub(super) struct RowTotals {
    all: Usage,
    by_owner: HashMap<Principal, Usage>,
    /// Unsettled rows, and rows with an upstream that is not yet notified.
    open: BTreeSet<TaskKey>,
    /// Unsettled rows, by when they are overdue.
    due: BTreeSet<(Timestamp, TaskKey)>,
}

impl RowTotals {
    fn add_settled(&mut self, owner: &Principal, rows: Usage) {
        for usage in [self.by_owner.entry(owner.clone()).or_default(), &mut self.all] {
            usage.tasks += rows.tasks;
            usage.bytes += rows.bytes;
        }
    }

    fn add(&mut self, key: &TaskKey, row: &RowOutline) {
        let live = usize::from(!row.is_settled);
        let own = self.by_owner.entry(key.owner.clone()).or_default();
        for usage in [own, &mut self.all] {
            usage.tasks += 1;
            usage.unsettled += live;
            usage.bytes += row.bytes;
        }
        if row.needs_holder() {
            self.open.insert(key.clone());
        }
        if !row.is_settled {
            self.due.insert((row.expires_at, key.clone()));
        }
    }

    fn take(&mut self, key: &TaskKey, row: &RowOutline) {
        let live = usize::from(!row.is_settled);
        let subtract = |usage: &mut Usage| {
            usage.tasks = usage.tasks.saturating_sub(1);
            usage.unsettled = usage.unsettled.saturating_sub(live);
            usage.bytes = usage.bytes.saturating_sub(row.bytes);
        };
        subtract(&mut self.all);
        if let Entry::Occupied(mut own) = self.by_owner.entry(key.owner.clone()) {
            subtract(own.get_mut());
            if own.get().tasks == 0 {
                own.remove();
            }
        }
        self.open.remove(key);
        if !row.is_settled {
            self.due.remove(&(row.expires_at, key.clone()));
        }
    }

    pub(super) const fn all(&self) -> Usage {
        self.all
    }

    pub(super) const fn open(&self) -> &BTreeSet<TaskKey> {
        &self.open
    }
}

#[derive(Debug)]
pub(super) struct RowChange {
    pub(super) key: TaskKey,
    pub(super) before: Option<RowOutline>,
    /// The row after the commit; `None` if it is removed.
    pub(super) after: Option<StoredTask>,
}

/// The shard's state before a read, which adding the row requires.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadTicket(u64);

#[derive(Clone, Debug)]
struct CachedRow {
    row: StoredTask,
    /// How long the row is useful, counted from its insertion.
    remaining: Duration,
}

impl CachedRow {
    /// `None` for a row that is not worth caching.
    fn of(row: StoredTask, now: Timestamp) -> Option<Self> {
        let remaining = row.task.expires_at().since(now).min(KEPT_MAX);
        (!remaining.is_zero() && row.task.stored_bytes() <= SETTLED_ROW_BYTES_MAX).then_some(Self { row, remaining })
    }
}

struct CachedRowExpiry;

impl Expiry<TaskKey, CachedRow> for CachedRowExpiry {
    fn expire_after_create(&self, _: &TaskKey, kept: &CachedRow, _: Instant) -> Option<Duration> {
        Some(kept.remaining)
    }
}

impl ResidentRows {
    pub(super) fn new(sums: RowTotals) -> Self {
        let weigh = |_: &TaskKey, kept: &CachedRow| u32::try_from(kept.row.task.stored_bytes()).unwrap_or(u32::MAX);
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            live_bytes: AtomicUsize::new(0),
            sums: Mutex::new(sums),
            stuck: Mutex::default(),
            settled: Cache::builder()
                .name("settled tasks")
                .max_capacity(SETTLED_BYTES_MAX)
                .weigher(weigh)
                .expire_after(CachedRowExpiry)
                .build(),
        }
    }

    fn index(key: &TaskKey) -> usize {
        usize::try_from(key.id.bits() % SHARDS as u128).unwrap_or(0)
    }

    fn shard(&self, key: &TaskKey) -> &Mutex<ResidentShard> {
        &self.shards[Self::index(key)]
    }

    pub(super) fn live(&self, key: &TaskKey) -> Option<StoredTask> {
        self.shard(key).lock().live.get(key).cloned()
    }

    /// A settled row in memory, expired or not.
    pub(super) fn settled(&self, key: &TaskKey) -> Option<StoredTask> {
        self.settled.get(key).map(|kept| kept.row)
    }

    /// Must be taken before a row is read from the disk.
    pub(super) fn ticket(&self, key: &TaskKey) -> ReadTicket {
        ReadTicket(self.shard(key).lock().commits)
    }

    pub(super) fn keep(&self, ticket: ReadTicket, row: &StoredTask, now: Timestamp) {
        // The lock is held throughout, so that a row read before the start of a commit is not added after it.
        let mut shard = self.shard(&row.task.key).lock();
        if !ticket.0.is_multiple_of(2) || ticket.0 != shard.commits {
            return;
        }
        if row.task.is_settled() {
            self.keep_settled(row, now);
        } else if !shard.live.contains_key(&row.task.key) {
            self.put_live(&mut shard, row.clone());
        }
    }

    /// Caches a settled row, unless a later revision is cached.
    pub(super) fn keep_settled(&self, row: &StoredTask, now: Timestamp) {
        if let Some(kept) = CachedRow::of(row.clone(), now) {
            let is_older = |there: &CachedRow| there.row.revision < row.revision;
            self.settled.entry_by_ref(&row.task.key).or_insert_with_if(|| kept, is_older);
        }
    }

    /// Excludes a row that this process cannot process. Returns whether it was included.
    pub(super) fn set_aside(&self, key: &TaskKey, row: &RowOutline) -> bool {
        let mut sums = self.sums.lock();
        let was_due = sums.due.remove(&(row.expires_at, key.clone()));
        sums.open.remove(key) || was_due
    }

    pub(super) fn remove_settled(&self, key: &TaskKey) {
        self.settled.invalidate(key);
    }

    fn put_live(&self, shard: &mut ResidentShard, row: StoredTask) {
        let bytes = row.task.stored_bytes();
        if self.live_bytes.load(Ordering::Relaxed) + bytes <= LIVE_BYTES_MAX {
            self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
            shard.live.insert(row.task.key.clone(), row);
        }
    }

    fn touched(changes: &[RowChange]) -> BTreeSet<usize> {
        changes.iter().map(|change| Self::index(&change.key)).collect()
    }

    /// Begins a commit: from here on readers may find rows that memory does not have yet.
    pub(super) fn begin(&self, changes: &[RowChange]) {
        for shard in Self::touched(changes) {
            self.shards[shard].lock().commits += 1;
        }
    }

    pub(super) fn abandon(&self, changes: &[RowChange]) {
        self.begin(changes);
    }

    pub(super) fn follow(&self, changes: Vec<RowChange>, now: Timestamp) {
        let touched = Self::touched(&changes);
        let mut sums = self.sums.lock();
        for RowChange { key, before, after } in changes {
            if let Some(before) = &before {
                sums.take(&key, before);
            }
            if let Some(after) = &after {
                sums.add(&key, &RowOutline::of(&after.task));
            }
            let mut shard = self.shard(&key).lock();
            if let Some(row) = shard.live.remove(&key) {
                self.live_bytes.fetch_sub(row.task.stored_bytes(), Ordering::Relaxed);
            }
            match after {
                Some(after) if !after.task.is_settled() => self.put_live(&mut shard, after),
                // Its client is about to poll it. No reader can insert an older one before this ends.
                Some(after) if before.is_some() => {
                    if let Some(kept) = CachedRow::of(after, now) {
                        self.settled.insert(key, kept);
                    }
                }
                Some(_) => (),
                None => self.settled.invalidate(&key),
            }
        }
        drop(sums);
        for shard in touched {
            self.shards[shard].lock().commits += 1;
        }
    }

    /// Restarts from the disk after a failure with an unknown outcome, which may have removed a cached row.
    pub(super) fn reset(&self, sums: RowTotals) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            for (_, row) in shard.live.drain() {
                self.live_bytes.fetch_sub(row.task.stored_bytes(), Ordering::Relaxed);
            }
            // By two, as if a commit had started and ended.
            shard.commits += 2;
        }
        self.settled.invalidate_all();
        *self.sums.lock() = sums;
    }

    pub(super) fn usage(&self) -> Usage {
        self.sums.lock().all
    }

    pub(super) fn usage_of(&self, owner: &Principal) -> Usage {
        self.sums.lock().by_owner.get(owner).copied().unwrap_or_default()
    }

    /// Unsettled rows past their `ttl`, longest overdue first.
    pub(super) fn overdue(&self, now: Timestamp, limit: usize) -> Vec<TaskKey> {
        let sums = self.sums.lock();
        sums.due.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| key.clone()).take(limit).collect()
    }

    pub(super) fn with_work(&self) -> Vec<TaskKey> {
        self.sums.lock().open.iter().cloned().collect()
    }

    pub(super) fn is_open(&self, key: &TaskKey) -> bool {
        self.sums.lock().open.contains(key)
    }
}

/// Rows with an unknown insert: their commit failed, but the log may hold them. Their callers got an error, so they are
/// invisible, and the first transaction after a reopening removes them, unless the process ends before that.
#[derive(Debug, Default)]
pub(super) struct UnresolvedInserts(Mutex<UnresolvedInsertsState>);

#[derive(Debug, Default)]
struct UnresolvedInsertsState {
    open: BTreeSet<TaskKey>,
    removed: VecDeque<TaskKey>,
}

impl UnresolvedInserts {
    /// Records the new rows of a commit that is about to be made, and returns them.
    pub(super) fn begin(&self, changes: &[RowChange]) -> Vec<TaskKey> {
        let is_new = |change: &&RowChange| change.before.is_none() && change.after.is_some();
        let keys: Vec<TaskKey> = changes.iter().filter(is_new).map(|change| change.key.clone()).collect();
        self.0.lock().open.extend(keys.iter().cloned());
        keys
    }

    pub(super) fn made(&self, keys: &[TaskKey]) {
        let mut rows = self.0.lock();
        for key in keys {
            rows.open.remove(key);
            if !rows.removed.is_empty() {
                rows.removed.retain(|removed| removed != key);
            }
        }
    }

    pub(super) fn open(&self) -> Vec<TaskKey> {
        self.0.lock().open.iter().cloned().collect()
    }

    pub(super) fn is_open(&self, key: &TaskKey) -> bool {
        self.0.lock().open.contains(key)
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.lock().open.is_empty()
    }

    pub(super) fn removed(&self) {
        let mut rows = self.0.lock();
        let open = std::mem::take(&mut rows.open);
        rows.removed.extend(open);
        let more = rows.removed.len().saturating_sub(REMOVED_MAX);
        rows.removed.drain(..more);
    }

    pub(super) fn hides(&self, key: &TaskKey) -> bool {
        let rows = self.0.lock();
        rows.open.contains(key) || rows.removed.contains(key)
    }
}

/// Unclaimed rows that earlier processes left.
#[derive(Debug)]
pub(super) struct EarlierRows {
    /// All rows are claimed at once, so that no subtask is without its parent.
    is_claimed: AtomicBool,
    left: Mutex<BTreeSet<TaskKey>>,
}

impl EarlierRows {
    pub(super) const fn new(left: BTreeSet<TaskKey>) -> Self {
        Self { is_claimed: AtomicBool::new(false), left: Mutex::new(left) }
    }

    pub(super) fn holds(&self, key: &TaskKey) -> bool {
        !self.is_claimed.load(Ordering::SeqCst) && self.is_left(key)
    }

    pub(super) fn is_left(&self, key: &TaskKey) -> bool {
        self.left.lock().contains(key)
    }

    pub(super) fn named(&self, mut row: StoredTask) -> StoredTask {
        if row.holder.is_some() && self.holds(&row.task.key) {
            row.holder = Some(EARLIER);
        }
        row
    }

    /// The next unclaimed row; each is returned once. The row may be gone by now.
    pub(super) fn take(&self) -> Option<TaskKey> {
        let next = self.left.lock().pop_first();
        self.is_claimed.store(true, Ordering::SeqCst);
        next
    }
}

/// Computes the sums from an index alone, and the latest expiry.
pub(super) fn totals(conn: &Connection) -> rusqlite::Result<(RowTotals, Timestamp)> {
    let (mut totals, mut latest) = (RowTotals::default(), Timestamp::from_millis(0));
    let sql = "SELECT owner, count(*), sum(max(bytes, 0)), max(expires_at) FROM tasks INDEXED BY tasks_age
               WHERE settled <> 0 AND pending = 0 GROUP BY owner";
    let mut statement = conn.prepare(sql)?;
    let mut owners = statement.query(())?;
    while let Some(row) = owners.next()? {
        let [tasks, bytes] = [row.get::<_, i64>(1)?, row.get(2)?].map(|sum| usize::try_from(sum).unwrap_or(0));
        totals.add_settled(&Principal::new(row.get_ref(0)?.as_str()?), Usage { tasks, unsettled: 0, bytes });
        latest = latest.max(time(row.get(3)?));
    }
    let sql = format!(
        "SELECT owner, id, {OUTLINE} FROM tasks INDEXED BY tasks_age WHERE settled = 0 OR pending <> 0 ORDER BY owner"
    );
    let mut statement = conn.prepare(&sql)?;
    let mut rows = statement.query(())?;
    let mut owner = Principal::new("");
    while let Some(row) = rows.next()? {
        let name = row.get_ref(0)?.as_str()?;
        // One shared text for all rows of an owner.
        if name != owner.as_str() {
            owner = Principal::new(name);
        }
        let outline = outline(row, 2)?;
        latest = latest.max(outline.expires_at);
        totals.add(&TaskKey { owner: owner.clone(), id: id_of(row.get(1)?) }, &outline);
    }
    Ok((totals, latest))
}
