//! Stores tasks in memory, in one bounded, sharded map for live and settled rows. A full store refuses writes and never
//! evicts. No lock is held across an await; readers lock only to clone an `Arc`.

mod rows;

use std::cmp::Reverse;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use self::rows::{MemoryRow, MemoryRows};
use super::tasks::{
    FilteredPage, NewestCursor, PageRange, PageStep, Reach, Revision, StoreError, StoreHint, StoredTask, SummaryPage,
    TaskStore, Usage, WriteRole, written_over,
};
use crate::replica::Incarnation;
use crate::task::{Digest, ListFilter, Principal, ShortReference, Task, TaskId, TaskKey, Timestamp};

/// Keys that are read from an index under one lock.
const STEP: usize = 64;

#[derive(Debug)]
pub struct MemoryStore {
    rows: Arc<MemoryRows>,
    holder: Incarnation,
    reach: Reach,
}

impl MemoryStore {
    /// Each row counts as at least [`crate::task::model::ROW_BYTES_MIN`].
    pub fn new(stored_bytes_max: usize) -> Self {
        Self::begin(Arc::new(MemoryRows::new(stored_bytes_max)), Reach::Process)
    }

    fn begin(rows: Arc<MemoryRows>, reach: Reach) -> Self {
        let holder = rows.incarnations.begin();
        Self { rows, holder, reach }
    }

    /// Opens the same rows as another incarnation in the same process. For tests only.
    pub fn join(&self) -> Self {
        Self::begin(Arc::clone(&self.rows), Reach::Shared)
    }

    fn remove_if(&self, key: &TaskKey, may: impl FnOnce(&StoredTask) -> bool) {
        {
            let mut shard = self.rows.shard(key).lock();
            if !shard.rows.get(key).is_some_and(|row| may(&row.stored)) {
                return;
            }
            if let Some(row) = shard.remove(key) {
                self.rows.unindex(&row.task);
            }
        }
        self.rows.incarnations.wrote(self.holder, key);
    }

    /// Declares an incarnation dead, so that its rows can be claimed. It may continue without noticing.
    pub fn end_incarnation(&self, holder: Incarnation) {
        self.rows.end_incarnation(holder);
    }
}

fn first_key() -> TaskKey {
    TaskKey { owner: Principal::new(""), id: TaskId::from_bits(0) }
}

#[async_trait]
impl TaskStore for MemoryStore {
    fn holder(&self) -> Incarnation {
        self.holder
    }

    async fn insert(&self, task: &Task) -> Result<Revision, StoreError> {
        debug_assert!(task.is_exact(), "a task holds more than it counts");
        let bytes = task.stored_bytes();
        let revision = Revision::FIRST;
        // Outside the locks, since it reads a failed outcome.
        let row = MemoryRow::new(task, revision, self.holder);
        self.rows.take_bytes(bytes)?;
        {
            let mut shard = self.rows.shard(&task.key).lock();
            // Counted under the lock, so that every visible row is counted.
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
            owner.by_creation.insert((task.created_at, task.key.id));
            owner.by_last_update.insert((task.updated_at, task.key.id));
            owner.name(task);
            owner.usage.tasks += 1;
            owner.usage.unsettled += live;
            owner.usage.bytes += bytes;
        }
        self.rows.incarnations.wrote(self.holder, &task.key);
        Ok(revision)
    }

    async fn load(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        let found = self.rows.shard(key).lock().rows.get(key).map(|row| row.stored.clone());
        Ok(found.filter(|row| row.is_there(now)))
    }

    async fn settled_bytes(&self, _: &TaskKey) -> Result<Option<usize>, StoreError> {
        Ok(None)
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
            let old = shard.rows.get(&task.key).map(|row| row.stored.clone());
            let old = written_over(old, role, self.holder, expected)?;
            row.stored.holder = row.stored.holder.map(|own| old.holder.unwrap_or(own));
            self.rows.grow_bytes(task.stored_bytes().saturating_sub(old.task.stored_bytes()))?;
            shard.leave(&old.task);
            shard.enter(task);
            shard.rows.insert(task.key.clone(), row);
            self.rows.account_replaced(&old.task, task);
        }
        self.rows.incarnations.wrote(self.holder, &task.key);
        Ok(revision)
    }

    async fn resolve_write(&self, key: &TaskKey, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        // Every write's outcome is known here.
        self.load(key, now).await
    }

    async fn remove(&self, key: &TaskKey) -> Result<(), StoreError> {
        let is_own = |holder| holder == self.holder || self.rows.incarnations.has_ended(holder);
        self.remove_if(key, |row| row.task.is_settled() || row.holder.is_none_or(is_own));
        Ok(())
    }

    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let mut freed = 0;
        for shard in &self.rows.shards {
            while freed < limit {
                // One row per lock, so that readers never wait for a whole sweep.
                let mut shard = shard.lock();
                let Some((_, key)) = shard.settled.first().filter(|(at, _)| *at <= now).cloned() else {
                    break;
                };
                if let Some(row) = shard.remove(&key) {
                    self.rows.unindex(&row.task);
                    freed += 1;
                }
            }
        }
        Ok(freed)
    }

    async fn sweep_one(&self, key: &TaskKey, now: Timestamp) -> Result<(), StoreError> {
        self.remove_if(key, |row| row.task.is_settled() && row.task.expires_at() <= now);
        Ok(())
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

    async fn page(&self, owner: &Principal, range: PageRange) -> Result<SummaryPage, StoreError> {
        let step = |after: Option<(Timestamp, TaskId)>| {
            let owners = self.rows.owners.lock();
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let positions = owners.get(owner).map(|rows| rows.by_creation.range((from, Bound::Unbounded)).take(STEP));
            let key = |id| TaskKey { owner: owner.clone(), id };
            positions.into_iter().flatten().map(|position| (*position, key(position.1))).collect()
        };
        Ok(self.rows.listed(range, step))
    }

    async fn select(
        &self,
        owner: &Principal,
        filter: &ListFilter,
        range: PageRange,
    ) -> Result<SummaryPage, StoreError> {
        let key = |id| TaskKey { owner: owner.clone(), id };
        if let Some(ids) = &filter.ids {
            let tasks = ids.iter().filter_map(|id| self.rows.summary(&key(*id)));
            let tasks = tasks.filter(|task| !task.is_gone(range.now)).collect();
            return Ok(SummaryPage::of_named(tasks, filter, range));
        }
        let (mut tasks, mut page) = (Vec::new(), FilteredPage::new(filter, range));
        while !filter.is_empty() {
            let step = self.rows.owners.lock().get(owner).map(|rows| rows.positions(filter, page.last()));
            let step = step.unwrap_or_default();
            let is_last = step.len() < STEP;
            for position in step {
                let Some(task) = self.rows.summary(&key(position.1)) else { continue };
                match page.step(position, Some(&task)) {
                    PageStep::Show => tasks.push(task),
                    PageStep::Skip => (),
                    PageStep::End => return Ok(SummaryPage { tasks, next: page.last() }),
                }
            }
            if is_last {
                break;
            }
        }
        Ok(SummaryPage { tasks, next: None })
    }

    async fn claim(&self, limit: usize, _upstreams: &[Arc<str>]) -> Result<Vec<TaskKey>, StoreError> {
        let mut claimed = Vec::new();
        while claimed.len() < limit && !self.rows.incarnations.has_ended(self.holder) {
            let Some(key) = self.rows.incarnations.take_left() else { break };
            self.rows.claim(self.holder, key, &mut claimed);
        }
        Ok(claimed)
    }

    async fn held(&self) -> Result<Vec<TaskKey>, StoreError> {
        let mut keys = Vec::new();
        for shard in &self.rows.shards {
            let shard = shard.lock();
            let is_held =
                |key: &&TaskKey| shard.rows.get(*key).is_some_and(|row| row.stored.holder == Some(self.holder));
            let with_work = shard.live.iter().map(|(_, key)| key).chain(&shard.with_effects);
            keys.extend(with_work.filter(is_held).cloned());
        }
        Ok(keys)
    }

    async fn revisions(&self, keys: &[TaskKey]) -> Result<Vec<Option<Revision>>, StoreError> {
        let revision = |key: &TaskKey| self.rows.shard(key).lock().rows.get(key).map(|row| row.stored.revision);
        Ok(keys.iter().map(revision).collect())
    }

    fn changes(&self) -> BoxStream<'static, StoreHint> {
        self.rows.incarnations.changes(self.holder)
    }

    fn reach(&self) -> Reach {
        self.reach
    }

    async fn survey(&self, range: PageRange<NewestCursor>) -> Result<SummaryPage<NewestCursor>, StoreError> {
        // Two tasks with the same time and reference are a chance of 1 in 2^48; a page that ends between them skips the second.
        let step = |after: Option<NewestCursor>| {
            let names = self.rows.names.lock();
            let from = after
                .map_or(Bound::Unbounded, |(time, reference)| Bound::Included((Reverse(time), reference, first_key())));
            let positions = names.newest.range((from, Bound::Unbounded));
            let positions = positions.map(|(time, reference, key)| ((time.0, *reference), key));
            let next = positions.skip_while(|(position, _)| Some(*position) == after).take(STEP);
            next.map(|(position, key)| (position, key.clone())).collect()
        };
        Ok(self.rows.listed(range, step))
    }

    async fn find_reference(&self, reference: ShortReference, limit: usize) -> Result<Vec<TaskKey>, StoreError> {
        let names = self.rows.names.lock();
        let from = (reference, first_key());
        let found = names.by_reference.range(from..).take_while(|(found, _)| *found == reference);
        Ok(found.take(limit).map(|(_, key)| key.clone()).collect())
    }

    fn bytes_max(&self) -> usize {
        self.rows.stored_bytes_max
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

    impl contract::StoreOpener for InMemory {
        type Store = MemoryStore;

        async fn open(&self, stored_bytes_max: usize) -> Arc<MemoryStore> {
            Arc::new(MemoryStore::new(stored_bytes_max))
        }

        async fn next_incarnation(&self, ended: Arc<MemoryStore>) -> Arc<MemoryStore> {
            ended.end_incarnation(ended.holder());
            Arc::new(ended.join())
        }

        async fn next_incarnation_ahead(&self, _: Arc<MemoryStore>) -> Option<(Arc<MemoryStore>, Timestamp)> {
            None
        }

        async fn beside(&self, store: &Arc<MemoryStore>) -> Option<Arc<MemoryStore>> {
            Some(Arc::new(store.join()))
        }

        async fn open_losing_acknowledgements(&self) -> Option<(Arc<MemoryStore>, contract::AcknowledgementLoss)> {
            None
        }

        async fn declare_ended(&self, by: &MemoryStore, ended: Incarnation) {
            by.end_incarnation(ended);
        }
    }

    #[tokio::test]
    async fn keeps_the_contract_of_every_store() {
        contract::check_all(&InMemory).await;
    }
}
