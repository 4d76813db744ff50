//! A memory store's rows, sharded by key, indexed and counted; and the incarnations that share them.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::STEP;
use crate::replica::fencing::{claimed as claimed_by, may_claim};
use crate::replica::{GuardedRow, Incarnation};
use crate::store::tasks::{PAGE_BYTES_MAX, PageRange, Revision, StoreError, StoreHint, StoredTask, SummaryPage, Usage};
use crate::task::summary::failure_line;
use crate::task::{
    Digest, ListDirection, ListFilter, ListPosition, OrderedBy, Principal, ShortReference, Summary, Task, TaskId,
    TaskKey, Timestamp,
};

/// Task ids are random, so their low bits spread rows evenly.
const SHARDS: usize = 64;

#[derive(Debug)]
pub(super) struct MemoryRows {
    pub(super) shards: Box<[Mutex<MemoryShard>]>,
    pub(super) owners: Mutex<HashMap<Principal, OwnerRows>>,
    pub(super) names: Mutex<OperatorIndex>,
    pub(super) stored_bytes_max: usize,
    pub(super) bytes: AtomicUsize,
    pub(super) tasks: AtomicUsize,
    pub(super) unsettled: AtomicUsize,
    pub(super) incarnations: MemoryIncarnations,
}

#[derive(Debug, Default)]
pub(super) struct OperatorIndex {
    pub(super) by_reference: BTreeSet<(ShortReference, TaskKey)>,
    pub(super) newest: BTreeSet<(Reverse<Timestamp>, ShortReference, TaskKey)>,
}

#[derive(Debug)]
pub(super) struct MemoryRow {
    pub(super) stored: StoredTask,
    /// The outcome's failure text, kept for lists.
    pub(super) failure: Option<Arc<str>>,
}

impl MemoryRow {
    /// A row held by `holder` if it needs a holder.
    pub(super) fn new(task: &Task, revision: Revision, holder: Incarnation) -> Self {
        Self { stored: StoredTask::held_by(holder, Arc::new(task.clone()), revision), failure: failure_line(task) }
    }
}

#[derive(Debug, Default)]
pub(super) struct MemoryShard {
    pub(super) rows: HashMap<TaskKey, MemoryRow>,
    pub(super) live: BTreeSet<(Timestamp, TaskKey)>,
    pub(super) settled: BTreeSet<(Timestamp, TaskKey)>,
    pub(super) with_effects: BTreeSet<TaskKey>,
}

#[derive(Debug, Default)]
pub(super) struct OwnerRows {
    pub(super) by_creation: BTreeSet<ListPosition>,
    pub(super) by_last_update: BTreeSet<ListPosition>,
    pub(super) by_name: HashMap<Digest, IdempotentTask>,
    pub(super) usage: Usage,
}

#[derive(Debug)]
pub(super) struct IdempotentTask {
    pub(super) id: TaskId,
    /// When the task expires; `None` while it is not settled.
    pub(super) gone_at: Option<Timestamp>,
}

impl IdempotentTask {
    pub(super) fn of(task: &Task) -> Self {
        Self { id: task.key.id, gone_at: task.is_settled().then(|| task.expires_at()) }
    }

    pub(super) fn is_there(&self, now: Timestamp) -> bool {
        self.gone_at.is_none_or(|gone_at| gone_at > now)
    }
}

impl OwnerRows {
    /// The next positions of a filtered list, at most [`STEP`].
    pub(super) fn positions(&self, filter: &ListFilter, after: Option<ListPosition>) -> Vec<ListPosition> {
        let positions = filter.positions(after);
        if positions.is_empty() {
            return Vec::new();
        }
        let rows = match filter.by {
            OrderedBy::Creation => &self.by_creation,
            OrderedBy::LastUpdate => &self.by_last_update,
        };
        let rows = rows.range(positions).copied();
        match filter.direction {
            ListDirection::OldestFirst => rows.take(STEP).collect(),
            ListDirection::NewestFirst => rows.rev().take(STEP).collect(),
        }
    }

    pub(super) fn name(&mut self, task: &Task) {
        if let Some(named) = task.idempotency {
            self.by_name.insert(named.key, IdempotentTask::of(task));
        }
    }

    /// Updates a task's idempotency key after a write. The key of an expired task may belong to a newer one (GW-46).
    fn rename(&mut self, old: &Task, new: &Task) {
        let Some(named) = old.idempotency else { return };
        let Entry::Occupied(mut holder) = self.by_name.entry(named.key) else { return };
        if holder.get().id != new.key.id {
            return;
        }
        if new.idempotency.is_some() {
            holder.insert(IdempotentTask::of(new));
        } else {
            holder.remove();
        }
    }

    pub(super) fn is_taken(&self, task: &Task) -> bool {
        let holder = task.idempotency.and_then(|named| self.by_name.get(&named.key));
        holder.is_some_and(|holder| holder.is_there(task.created_at))
    }
}

impl MemoryShard {
    pub(super) fn index(&mut self, task: &Task) -> &mut BTreeSet<(Timestamp, TaskKey)> {
        if task.is_settled() { &mut self.settled } else { &mut self.live }
    }

    pub(super) fn enter(&mut self, task: &Task) {
        self.index(task).insert((task.expires_at(), task.key.clone()));
        if !task.recovery.pending_effects.is_empty() {
            self.with_effects.insert(task.key.clone());
        }
    }

    pub(super) fn leave(&mut self, task: &Task) {
        self.index(task).remove(&(task.expires_at(), task.key.clone()));
        self.with_effects.remove(&task.key);
    }

    pub(super) fn remove(&mut self, key: &TaskKey) -> Option<StoredTask> {
        let row = self.rows.remove(key)?.stored;
        self.leave(&row.task);
        Some(row)
    }
}

impl MemoryRows {
    pub(super) fn new(stored_bytes_max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            owners: Mutex::default(),
            names: Mutex::default(),
            stored_bytes_max,
            bytes: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            unsettled: AtomicUsize::new(0),
            incarnations: MemoryIncarnations::default(),
        }
    }

    pub(super) fn shard(&self, key: &TaskKey) -> &Mutex<MemoryShard> {
        let low = usize::try_from(key.id.bits() % SHARDS as u128).unwrap_or(0);
        &self.shards[low]
    }

    pub(super) fn take_bytes(&self, new: usize) -> Result<(), StoreError> {
        self.take_within(self.stored_bytes_max, new)
    }

    /// Reserves the growth of an existing row. Its task was admitted, so it may exceed the limit for new rows.
    pub(super) fn grow_bytes(&self, more: usize) -> Result<(), StoreError> {
        if more == 0 {
            return Ok(());
        }
        self.take_within(self.stored_bytes_max.saturating_add(self.stored_bytes_max / 4), more)
    }

    fn take_within(&self, bytes_max: usize, more: usize) -> Result<(), StoreError> {
        let fits = |now: usize| now.checked_add(more).filter(|sum| *sum <= bytes_max);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map(|_| ()).map_err(|_| StoreError::Full)
    }

    pub(super) fn name(&self, task: &Task) {
        let reference = ShortReference::of(&task.key);
        let mut names = self.names.lock();
        names.by_reference.insert((reference, task.key.clone()));
        names.newest.insert((Reverse(task.created_at), reference, task.key.clone()));
    }

    pub(super) fn unname(&self, task: &Task) {
        let reference = ShortReference::of(&task.key);
        let mut names = self.names.lock();
        names.by_reference.remove(&(reference, task.key.clone()));
        names.newest.remove(&(Reverse(task.created_at), reference, task.key.clone()));
    }

    /// A task's summary, even if it has expired.
    pub(super) fn summary(&self, key: &TaskKey) -> Option<Summary> {
        let shard = self.shard(key).lock();
        let row = shard.rows.get(key)?;
        Some(Summary::with_failure(&row.stored.task, row.failure.clone()))
    }

    /// Fills a page from steps of an index. Each step returns keys after a position.
    pub(super) fn listed<P: Copy>(
        &self,
        range: PageRange<P>,
        step: impl Fn(Option<P>) -> Vec<(P, TaskKey)>,
    ) -> SummaryPage<P> {
        let mut page = SummaryPage { tasks: Vec::new(), next: None };
        let (mut after, mut last, mut bytes) = (range.after, None, 0);
        loop {
            let found = step(after);
            let is_last = found.len() < STEP;
            after = None;
            for (position, key) in found {
                after = Some(position);
                let Some(summary) = self.summary(&key).filter(|task| !task.is_gone(range.now)) else { continue };
                if page.tasks.len() >= range.limit || bytes > PAGE_BYTES_MAX {
                    page.next = last;
                    return page;
                }
                bytes += summary.bytes();
                page.tasks.push(summary);
                last = Some(position);
            }
            if is_last || after.is_none() {
                return page;
            }
        }
    }

    pub(super) fn unindex(&self, task: &Task) {
        let bytes = task.stored_bytes();
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tasks.fetch_sub(1, Ordering::Relaxed);
        let live = usize::from(!task.is_settled());
        self.unsettled.fetch_sub(live, Ordering::Relaxed);
        self.unname(task);
        let mut owners = self.owners.lock();
        if let Entry::Occupied(mut rows) = owners.entry(task.key.owner.clone()) {
            let owner = rows.get_mut();
            owner.by_creation.remove(&(task.created_at, task.key.id));
            owner.by_last_update.remove(&(task.updated_at, task.key.id));
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

    /// Updates the sums after a write; the row itself is already stored.
    pub(super) fn account_replaced(&self, old: &Task, new: &Task) {
        let (before, after) = (old.stored_bytes(), new.stored_bytes());
        if after < before {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
        let settled_now = usize::from(!old.is_settled() && new.is_settled());
        self.unsettled.fetch_sub(settled_now, Ordering::Relaxed);
        if let Some(owner) = self.owners.lock().get_mut(&new.key.owner) {
            owner.usage.unsettled -= settled_now;
            owner.usage.bytes = owner.usage.bytes + after - before;
            owner.rename(old, new);
            owner.by_last_update.remove(&(old.updated_at, old.key.id));
            owner.by_last_update.insert((new.updated_at, new.key.id));
        }
    }

    pub(super) fn end_incarnation(&self, holder: Incarnation) {
        self.incarnations.end(holder);
        // A row that it inserts later is added at the insert.
        for shard in &self.shards {
            let shard = shard.lock();
            let open = shard.live.iter().map(|(_, key)| key).chain(&shard.with_effects);
            let is_held = |key: &&TaskKey| shard.rows.get(*key).is_some_and(|row| row.stored.holder == Some(holder));
            self.incarnations.leave(open.filter(is_held).cloned());
        }
    }

    /// Claims a row with its subtasks. A subtask of a claimable parent is skipped: it follows that parent.
    pub(super) fn claim(&self, holder: Incarnation, key: TaskKey, claimed: &mut Vec<TaskKey>) {
        let is_left = |key: &TaskKey| {
            let row = self.shard(key).lock().rows.get(key).map(|row| row.stored.clone());
            row.filter(|row| may_claim(row.guard(), holder, |holder| self.incarnations.has_ended(holder)))
                .map(|row| row.task)
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
            if may_claim(row.stored.guard(), holder, |holder| self.incarnations.has_ended(holder)) {
                let GuardedRow { revision, holder } = claimed_by(row.stored.guard(), holder);
                (row.stored.revision, row.stored.holder) = (Revision(revision), holder);
                tree.extend(row.stored.task.tree.children.iter().map(|child| beside(*child)));
                claimed.push(key);
            }
        }
    }
}

/// Beyond this lag an incarnation loses the oldest hints, and is notified of the loss.
const HINTS_MAX: usize = 1_024;

#[derive(Debug)]
pub(super) struct MemoryIncarnations {
    state: Mutex<IncarnationsState>,
    /// A fast check for the usual case.
    has_ended: AtomicBool,
    hints: broadcast::Sender<(Incarnation, TaskKey)>,
}

#[derive(Debug, Default)]
struct IncarnationsState {
    last: u64,
    ended: BTreeSet<Incarnation>,
    /// Rows that ended incarnations held. Some may be removed or settled by now.
    left: VecDeque<TaskKey>,
}

impl Default for MemoryIncarnations {
    fn default() -> Self {
        Self { state: Mutex::default(), has_ended: AtomicBool::new(false), hints: broadcast::Sender::new(HINTS_MAX) }
    }
}

impl MemoryIncarnations {
    pub(super) fn begin(&self) -> Incarnation {
        let mut state = self.state.lock();
        state.last += 1;
        Incarnation(state.last)
    }

    fn end(&self, holder: Incarnation) {
        self.state.lock().ended.insert(holder);
        self.has_ended.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_ended(&self, holder: Incarnation) -> bool {
        self.has_ended.load(Ordering::SeqCst) && self.state.lock().ended.contains(&holder)
    }

    pub(super) fn leave(&self, keys: impl Iterator<Item = TaskKey>) {
        self.state.lock().left.extend(keys);
    }

    pub(super) fn take_left(&self) -> Option<TaskKey> {
        self.state.lock().left.pop_front()
    }

    /// Call after the row's lock is released. A row inserted by an ended incarnation counts as left behind.
    pub(super) fn wrote(&self, holder: Incarnation, key: &TaskKey) {
        if self.has_ended(holder) {
            self.leave(std::iter::once(key.clone()));
        }
        if self.hints.receiver_count() > 0 {
            let _ = self.hints.send((holder, key.clone()));
        }
    }

    pub(super) fn changes(&self, holder: Incarnation) -> BoxStream<'static, StoreHint> {
        let hints = stream::unfold(self.hints.subscribe(), move |mut hints| async move {
            loop {
                match hints.recv().await {
                    Ok((writer, _)) if writer == holder => (),
                    Ok((_, key)) => return Some((StoreHint::Changed(key), hints)),
                    Err(RecvError::Lagged(_)) => return Some((StoreHint::Missed, hints)),
                    Err(RecvError::Closed) => return None,
                }
            }
        });
        hints.boxed()
    }
}
