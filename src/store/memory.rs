//! Keeps tasks in memory: one bounded, sharded map that owns live and settled rows alike.
//!
//! Everything is gone when the process ends. Full means refused: nothing is ever evicted. No lock is
//! held across an await, and a reader holds one only to clone an `Arc`.

mod list_places;
mod lives;

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;

use self::list_places::ListPlaces;
use self::lives::MemoryLives;
use super::tasks::{
    HolderId, NewestCursor, PAGE_BYTES_MAX, PLACES_MAX, PageProgress, Reach, Revision, SelectedPage, StoreError,
    StoreHint, StoredTask, SummaryPage, TaskStore, Usage, WriteRole,
};
use crate::task::summary::failure_line;
use crate::task::{
    Digest, ListFilter, ListPlace, Principal, ShortReference, Summary, Task, TaskId, TaskKey, TimeRange, Timestamp,
};

/// Task ids are random, so their low bits spread rows evenly.
const SHARDS: usize = 64;

/// Keys that are taken from an index in one go: its lock is held no longer than that.
const STEP: usize = 64;

/// A [`TaskStore`] that lives and dies with the process.
#[derive(Debug)]
pub struct MemoryStore {
    rows: Arc<MemoryRows>,
    holder: HolderId,
}

/// The rows, whoever has them open.
#[derive(Debug)]
struct MemoryRows {
    shards: Box<[Mutex<MemoryShard>]>,
    owners: Mutex<HashMap<Principal, OwnerRows>>,
    names: Mutex<OperatorIndex>,
    stored_bytes_max: usize,
    bytes: AtomicUsize,
    tasks: AtomicUsize,
    unsettled: AtomicUsize,
    lives: MemoryLives,
}

/// What operators find tasks by.
#[derive(Debug, Default)]
struct OperatorIndex {
    by_reference: BTreeSet<(ShortReference, TaskKey)>,
    newest: BTreeSet<(Reverse<Timestamp>, ShortReference, TaskKey)>,
}

#[derive(Debug)]
struct MemoryRow {
    stored: StoredTask,
    /// What the outcome says of itself, so that no list has to look for it there.
    failure: Option<Arc<str>>,
}

impl MemoryRow {
    /// Of a task that `holder` has to do something about, if anybody has to.
    fn new(task: &Task, revision: Revision, holder: HolderId) -> Self {
        Self { stored: StoredTask::held_by(holder, Arc::new(task.clone()), revision), failure: failure_line(task) }
    }
}

#[derive(Debug, Default)]
struct MemoryShard {
    rows: HashMap<TaskKey, MemoryRow>,
    /// When unsettled rows are overdue.
    live: BTreeSet<(Timestamp, TaskKey)>,
    /// When settled rows are gone.
    settled: BTreeSet<(Timestamp, TaskKey)>,
    /// Settled rows whose upstream is still to be told.
    untold: BTreeSet<TaskKey>,
}

#[derive(Debug, Default)]
struct OwnerRows {
    by_age: BTreeSet<(Timestamp, TaskId)>,
    places: ListPlaces,
    by_name: HashMap<Digest, IdempotentTask>,
    usage: Usage,
}

/// The newest task that was made under an idempotency key.
#[derive(Debug)]
struct IdempotentTask {
    id: TaskId,
    /// From when on nobody finds it; `None` while it is not settled.
    gone_at: Option<Timestamp>,
}

impl IdempotentTask {
    fn of(task: &Task) -> Self {
        Self { id: task.key.id, gone_at: task.is_settled().then(|| task.expires_at()) }
    }

    fn is_there(&self, now: Timestamp) -> bool {
        self.gone_at.is_none_or(|gone_at| gone_at > now)
    }
}

impl OwnerRows {
    /// Notes under which idempotency key a task is found, as the task stands now.
    fn name(&mut self, task: &Task) {
        if let Some(named) = task.idempotency {
            self.by_name.insert(named.key, IdempotentTask::of(task));
        }
    }

    /// Whether the name that a task is to have is another's.
    fn is_taken(&self, task: &Task) -> bool {
        let holder = task.idempotency.and_then(|named| self.by_name.get(&named.key));
        holder.is_some_and(|holder| holder.is_there(task.created_at))
    }
}

impl MemoryShard {
    fn index(&mut self, task: &Task) -> &mut BTreeSet<(Timestamp, TaskKey)> {
        if task.is_settled() { &mut self.settled } else { &mut self.live }
    }

    fn enter(&mut self, task: &Task) {
        self.index(task).insert((task.expires_at(), task.key.clone()));
        if task.recovery.is_untold {
            self.untold.insert(task.key.clone());
        }
    }

    fn leave(&mut self, task: &Task) {
        self.index(task).remove(&(task.expires_at(), task.key.clone()));
        self.untold.remove(&task.key);
    }

    fn remove(&mut self, key: &TaskKey) -> Option<StoredTask> {
        let row = self.rows.remove(key)?.stored;
        self.leave(&row.task);
        Some(row)
    }
}

impl MemoryStore {
    /// A store for at most `stored_bytes_max` bytes, each row counted as at least
    /// [`crate::task::model::ROW_BYTES_MIN`].
    #[must_use]
    pub fn new(stored_bytes_max: usize) -> Self {
        let rows = MemoryRows {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            owners: Mutex::default(),
            names: Mutex::default(),
            stored_bytes_max,
            bytes: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            unsettled: AtomicUsize::new(0),
            lives: MemoryLives::default(),
        };
        Self::begin(Arc::new(rows))
    }

    fn begin(rows: Arc<MemoryRows>) -> Self {
        let holder = rows.lives.begin();
        Self { rows, holder }
    }

    /// The same rows for another life beside this one, in the same process: what several gateways have in a store that they
    /// share.
    #[must_use]
    pub fn join(&self) -> Self {
        Self::begin(Arc::clone(&self.rows))
    }

    /// Declares a life ended: from then on what it holds can be claimed. It may not know, and go on.
    pub fn end_life(&self, holder: HolderId) {
        self.rows.end_life(holder);
    }
}

impl MemoryRows {
    /// See [`MemoryStore::end_life`].
    fn end_life(&self, holder: HolderId) {
        self.lives.end(holder);
        // What it inserts from here on it adds itself.
        for shard in &self.shards {
            let shard = shard.lock();
            let open = shard.live.iter().map(|(_, key)| key).chain(&shard.untold);
            let is_held = |key: &&TaskKey| shard.rows.get(*key).is_some_and(|row| row.stored.holder == Some(holder));
            self.lives.leave(open.filter(is_held).cloned());
        }
    }

    /// Gives a row that an ended life holds to `holder`, and its subtasks with it. A subtask whose parent is held so as well
    /// comes with that one.
    fn claim(&self, holder: HolderId, key: TaskKey, claimed: &mut Vec<TaskKey>) {
        let is_left = |key: &TaskKey| {
            let row = self.shard(key).lock().rows.get(key).map(|row| row.stored.clone());
            row.filter(|row| row.holder.is_some_and(|holder| self.lives.has_ended(holder))).map(|row| row.task)
        };
        let Some(task) = is_left(&key) else { return };
        let beside = |id| TaskKey { owner: key.owner.clone(), id };
        if task.tree.parent.is_some_and(|parent| is_left(&beside(parent)).is_some()) {
            return;
        }
        let mut tree = vec![key.clone()];
        while let Some(key) = tree.pop() {
            let mut shard = self.shard(&key).lock();
            let Some(row) = shard.rows.get_mut(&key) else { continue };
            if row.stored.holder.is_some_and(|holder| self.lives.has_ended(holder)) {
                row.stored.holder = Some(holder);
                row.stored.revision.0 += 1;
                tree.extend(row.stored.task.tree.children.iter().map(|child| beside(*child)));
                claimed.push(key);
            }
        }
    }

    fn shard(&self, key: &TaskKey) -> &Mutex<MemoryShard> {
        let low = usize::try_from(key.id.bits() % SHARDS as u128).unwrap_or(0);
        &self.shards[low]
    }

    /// Takes room for `more` bytes, or none at all.
    fn take_bytes(&self, more: usize) -> Result<(), StoreError> {
        let fits = |now: usize| now.checked_add(more).filter(|sum| *sum <= self.stored_bytes_max);
        match self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(()),
            Err(_) => Err(StoreError::Full { what: "bytes" }),
        }
    }

    fn name(&self, task: &Task) {
        let reference = ShortReference::of(&task.key);
        let mut names = self.names.lock();
        names.by_reference.insert((reference, task.key.clone()));
        names.newest.insert((Reverse(task.created_at), reference, task.key.clone()));
    }

    fn unname(&self, task: &Task) {
        let reference = ShortReference::of(&task.key);
        let mut names = self.names.lock();
        names.by_reference.remove(&(reference, task.key.clone()));
        names.newest.remove(&(Reverse(task.created_at), reference, task.key.clone()));
    }

    /// A task as lists show it; `None` if it is gone.
    fn summary(&self, key: &TaskKey, now: Timestamp) -> Option<Summary> {
        let shard = self.shard(key).lock();
        let row = shard.rows.get(key)?;
        let summary = Summary::with_failure(&row.stored.task, row.failure.clone());
        drop(shard);
        (!summary.is_gone(now)).then_some(summary)
    }

    /// Fills a page from steps of an index, each of which gives keys and begins behind the place that it is given.
    fn listed<P>(
        &self,
        mut after: Option<P>,
        limit: usize,
        now: Timestamp,
        step: impl Fn(Option<P>) -> Vec<(P, TaskKey)>,
    ) -> SummaryPage {
        let mut page = SummaryPage::default();
        let mut bytes = 0;
        loop {
            let found = step(after);
            let is_last = found.len() < STEP;
            after = None;
            for (place, key) in found {
                after = Some(place);
                let Some(summary) = self.summary(&key, now) else { continue };
                if page.tasks.len() >= limit || bytes > PAGE_BYTES_MAX {
                    page.has_more = true;
                    return page;
                }
                bytes += summary.bytes();
                page.tasks.push(summary);
            }
            if is_last || after.is_none() {
                return page;
            }
        }
    }

    fn forget(&self, task: &Task) {
        let bytes = task.stored_bytes();
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tasks.fetch_sub(1, Ordering::Relaxed);
        let live = usize::from(!task.is_settled());
        self.unsettled.fetch_sub(live, Ordering::Relaxed);
        self.unname(task);
        let mut owners = self.owners.lock();
        if let Entry::Occupied(mut rows) = owners.entry(task.key.owner.clone()) {
            let owner = rows.get_mut();
            owner.by_age.remove(&(task.created_at, task.key.id));
            owner.places.leave(task);
            if let Some(named) = task.idempotency
                && owner.by_name.get(&named.key).is_some_and(|holder| holder.id == task.key.id)
            {
                owner.by_name.remove(&named.key);
            }
            owner.usage.tasks -= 1;
            owner.usage.unsettled -= live;
            owner.usage.bytes -= bytes;
            if owner.usage.tasks == 0 {
                rows.remove();
            }
        }
    }

    /// Notes what a write changed in the sums; the row itself is already in its place.
    fn account_replaced(&self, old: &Task, new: &Task) {
        let (before, after) = (old.stored_bytes(), new.stored_bytes());
        if after < before {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
        let settled_now = usize::from(!old.is_settled() && new.is_settled());
        self.unsettled.fetch_sub(settled_now, Ordering::Relaxed);
        if let Some(owner) = self.owners.lock().get_mut(&new.key.owner) {
            owner.usage.unsettled -= settled_now;
            owner.usage.bytes = owner.usage.bytes + after - before;
            owner.name(new);
            owner.places.leave(old);
            owner.places.enter(new);
        }
    }
}

/// The one before all others.
fn first_key() -> TaskKey {
    TaskKey { owner: Principal::new(""), id: TaskId::from_bits(0) }
}

#[async_trait]
impl TaskStore for MemoryStore {
    fn holder(&self) -> HolderId {
        self.holder
    }

    async fn insert(&self, task: &Task) -> Result<Revision, StoreError> {
        debug_assert!(task.is_exact(), "a task holds more than it counts");
        let bytes = task.stored_bytes();
        let revision = Revision(1);
        // Outside of the locks: a failed outcome is read for it.
        let row = MemoryRow::new(task, revision, self.holder);
        self.rows.take_bytes(bytes)?;
        {
            let mut shard = self.rows.shard(&task.key).lock();
            // Inside the lock: a row that can be found is also counted.
            let mut owners = self.rows.owners.lock();
            let is_taken = owners.get(&task.key.owner).is_some_and(|rows| rows.is_taken(task));
            if is_taken || shard.rows.contains_key(&task.key) {
                self.rows.bytes.fetch_sub(bytes, Ordering::Relaxed);
                return Err(StoreError::Exists);
            }
            shard.enter(task);
            shard.rows.insert(task.key.clone(), row);
            self.rows.name(task);
            self.rows.tasks.fetch_add(1, Ordering::Relaxed);
            let live = usize::from(!task.is_settled());
            self.rows.unsettled.fetch_add(live, Ordering::Relaxed);
            let owner = owners.entry(task.key.owner.clone()).or_default();
            owner.by_age.insert((task.created_at, task.key.id));
            owner.places.enter(task);
            owner.name(task);
            owner.usage.tasks += 1;
            owner.usage.unsettled += live;
            owner.usage.bytes += bytes;
        }
        self.rows.lives.wrote(self.holder, &task.key);
        Ok(revision)
    }

    async fn load(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        let found = self.rows.shard(key).lock().rows.get(key).map(|row| row.stored.clone());
        Ok(found.filter(|row| !row.task.is_settled() || row.task.expires_at() > now))
    }

    async fn find_idempotent(
        &self,
        owner: &Principal,
        key: &Digest,
        now: Timestamp,
    ) -> Result<Option<StoredTask>, StoreError> {
        let id = self.rows.owners.lock().get(owner).and_then(|rows| rows.by_name.get(key)).map(|named| named.id);
        match id {
            Some(id) => self.load(&TaskKey { owner: owner.clone(), id }, now).await,
            None => Ok(None),
        }
    }

    async fn replace(&self, expected: Revision, role: WriteRole, task: &Task) -> Result<Revision, StoreError> {
        debug_assert!(task.is_exact(), "a task holds more than it counts");
        let revision = Revision(expected.0 + 1);
        let mut row = MemoryRow::new(task, revision, self.holder);
        {
            let mut shard = self.rows.shard(&task.key).lock();
            let old = match shard.rows.get(&task.key).map(|row| &row.stored) {
                Some(old) if role == WriteRole::Holder && old.holder.is_some_and(|holder| holder != self.holder) => {
                    return Err(StoreError::Fenced);
                }
                Some(old) if old.revision == expected => old.clone(),
                Some(_) | None => return Err(StoreError::Conflict),
            };
            row.stored.holder = row.stored.holder.map(|own| old.holder.unwrap_or(own));
            self.rows.take_bytes(task.stored_bytes().saturating_sub(old.task.stored_bytes()))?;
            shard.leave(&old.task);
            shard.enter(task);
            shard.rows.insert(task.key.clone(), row);
            self.rows.account_replaced(&old.task, task);
        }
        self.rows.lives.wrote(self.holder, &task.key);
        Ok(revision)
    }

    async fn settle_doubt(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        // No write is ever in doubt here.
        self.load(key, now).await
    }

    async fn remove(&self, key: &TaskKey) -> Result<(), StoreError> {
        {
            let mut shard = self.rows.shard(key).lock();
            if let Some(row) = shard.remove(key) {
                self.rows.forget(&row.task);
            }
        }
        self.rows.lives.wrote(self.holder, key);
        Ok(())
    }

    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let mut freed = 0;
        for shard in &self.rows.shards {
            while freed < limit {
                // One row per lock: readers of the shard never wait for a whole sweep.
                let mut shard = shard.lock();
                let Some((_, key)) = shard.settled.first().filter(|(at, _)| *at <= now).cloned() else {
                    break;
                };
                if let Some(row) = shard.remove(&key) {
                    self.rows.forget(&row.task);
                    freed += 1;
                }
            }
        }
        Ok(freed)
    }

    async fn overdue(&self, now: Timestamp, limit: usize) -> Result<Vec<TaskKey>, StoreError> {
        let mut keys = Vec::new();
        for shard in &self.rows.shards {
            let shard = shard.lock();
            let due = shard.live.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| key.clone());
            keys.extend(due.take(limit - keys.len()));
        }
        Ok(keys)
    }

    async fn page(
        &self,
        owner: &Principal,
        after: Option<(Timestamp, TaskId)>,
        limit: usize,
        now: Timestamp,
    ) -> Result<SummaryPage, StoreError> {
        let step = |after: Option<(Timestamp, TaskId)>| {
            let owners = self.rows.owners.lock();
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let places = owners.get(owner).map(|rows| rows.by_age.range((from, Bound::Unbounded)).take(STEP));
            let key = |id| TaskKey { owner: owner.clone(), id };
            places.into_iter().flatten().map(|place| (*place, key(place.1))).collect()
        };
        Ok(self.rows.listed(after, limit, now, step))
    }

    async fn select(
        &self,
        owner: &Principal,
        filter: &ListFilter,
        mut after: Option<ListPlace>,
        limit: usize,
        now: Timestamp,
    ) -> Result<SelectedPage, StoreError> {
        let key = |id| TaskKey { owner: owner.clone(), id };
        if let Some(ids) = &filter.ids {
            let tasks = ids.iter().filter_map(|id| self.rows.summary(&key(*id), now)).collect();
            return Ok(SelectedPage::of_named(tasks, filter, after, limit));
        }
        let (mut page, mut progress) = (SelectedPage::default(), PageProgress::new(limit));
        let is_narrow = after.is_none() && filter.other() != TimeRange::ALL;
        let mut few = is_narrow.then(|| limit.min(PLACES_MAX / 2));
        while !filter.is_empty() {
            let places = |rows: &OwnerRows| match few.and_then(|limit| rows.places.few(filter, limit, now)) {
                Some(places) => (places, true),
                None => {
                    let places = rows.places.next(filter, after, now);
                    let is_last = places.len() < STEP;
                    (places, is_last)
                }
            };
            let Some((places, is_last)) = self.rows.owners.lock().get(owner).map(places) else { break };
            few = None;
            for (place, may_fit) in places {
                if let Some(next) = progress.ends_before(place, may_fit) {
                    page.next = Some(next);
                    return Ok(page);
                }
                after = Some(place);
                let summary = if may_fit { self.rows.summary(&key(place.1), now) } else { None };
                // It may have changed since the place was looked up.
                if let Some(summary) = summary.filter(|task| filter.fits(task)) {
                    progress.holds(summary.bytes());
                    page.tasks.push(summary);
                }
            }
            if is_last {
                break;
            }
        }
        Ok(page)
    }

    async fn claim(&self, limit: usize) -> Result<Vec<TaskKey>, StoreError> {
        let mut claimed = Vec::new();
        while claimed.len() < limit {
            let Some(key) = self.rows.lives.take_left() else { break };
            self.rows.claim(self.holder, key, &mut claimed);
        }
        Ok(claimed)
    }

    fn changes(&self) -> BoxStream<'static, StoreHint> {
        self.rows.lives.changes(self.holder)
    }

    fn reach(&self) -> Reach {
        Reach::Process
    }

    async fn survey(
        &self,
        after: Option<NewestCursor>,
        limit: usize,
        now: Timestamp,
    ) -> Result<SummaryPage, StoreError> {
        // Two tasks of one time and one reference are one in 2^48; a page that ends between them skips the second.
        let step = |after: Option<NewestCursor>| {
            let names = self.rows.names.lock();
            let from = after
                .map_or(Bound::Unbounded, |(time, reference)| Bound::Included((Reverse(time), reference, first_key())));
            let places = names.newest.range((from, Bound::Unbounded));
            let places = places.map(|(time, reference, key)| ((time.0, *reference), key));
            let next = places.skip_while(|(place, _)| Some(*place) == after).take(STEP);
            next.map(|(place, key)| (place, key.clone())).collect()
        };
        Ok(self.rows.listed(after, limit, now, step))
    }

    async fn find_reference(&self, reference: ShortReference, limit: usize) -> Result<Vec<TaskKey>, StoreError> {
        let names = self.rows.names.lock();
        let from = (reference, first_key());
        let found = names.by_reference.range(from..).take_while(|(found, _)| *found == reference);
        Ok(found.take(limit).map(|(_, key)| key.clone()).collect())
    }

    fn usage(&self) -> Usage {
        Usage {
            tasks: self.rows.tasks.load(Ordering::Relaxed),
            unsettled: self.rows.unsettled.load(Ordering::Relaxed),
            bytes: self.rows.bytes.load(Ordering::Relaxed),
        }
    }

    fn usage_of(&self, owner: &Principal) -> Usage {
        self.rows.owners.lock().get(owner).map_or_else(Usage::default, |rows| rows.usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::contract;

    struct InMemory;

    impl contract::StoreKind for InMemory {
        type Store = MemoryStore;

        async fn open(&self, stored_bytes_max: usize) -> Arc<MemoryStore> {
            Arc::new(MemoryStore::new(stored_bytes_max))
        }

        async fn next_life(&self, ended: Arc<MemoryStore>) -> Arc<MemoryStore> {
            ended.end_life(ended.holder());
            Arc::new(ended.join())
        }

        async fn beside(&self, store: &Arc<MemoryStore>) -> Option<Arc<MemoryStore>> {
            Some(Arc::new(store.join()))
        }

        async fn declare_ended(&self, by: &MemoryStore, ended: HolderId) {
            by.end_life(ended);
        }
    }

    #[tokio::test]
    async fn keeps_the_contract_of_every_store() {
        contract::check_all(&InMemory).await;
    }
}
