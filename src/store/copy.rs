//! Copies the tasks of a gateway that is stopped into another store, through the same inserts that new tasks come by.
//!
//! Rows come in the order in which they were made, so that an idempotency key goes to the last that has it; but a task comes
//! after its subtasks, so that no row names one that is not there. What needs somebody to do something about it is
//! held by the life that copies, until that ends. Copying again goes on where an earlier attempt ended: what is there is left
//! as it stands.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::disk::{DiskSource, SourceRow};
use super::record::RecordError;
use super::tasks::{StoreError, TaskStore, Usage};
use crate::failpoint;
use crate::task::{ShortReference, Task, TaskKey, Timestamp};

/// Rows that are looked at, and written, at a time.
const ROWS_AT_ONCE: usize = 256;
/// What they may have together; a row that is larger comes alone.
const BYTES_AT_ONCE: usize = 8 << 20;

/// How many rows were copied, and why the others were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    pub copied: Usage,
    /// Those that were there before.
    pub present: usize,
    /// Settled and past their `ttl`: nobody can ask for them.
    pub gone: usize,
    /// Those that cannot be read.
    pub unreadable: usize,
    /// Those whose owner has another task there under the same idempotency key.
    pub refused: usize,
}

impl CopyCounts {
    /// All rows that were looked at.
    #[must_use]
    pub const fn seen(&self) -> usize {
        self.copied.tasks + self.present + self.gone + self.unreadable + self.refused
    }
}

/// A row that was not copied, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftRow {
    pub task: ShortReference,
    pub why: LeftReason,
}

/// Why a row was not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeftReason {
    #[error(transparent)]
    Unreadable(RecordError),
    #[error("its owner has another task there under the same idempotency key")]
    NameTaken,
}

/// Why copying ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("the tasks could not all be read")]
    Source(#[source] StoreError),
    #[error("the tasks could not all be written")]
    Target(#[source] StoreError),
}

/// See the module.
pub struct StoreCopy<'a> {
    source: &'a DiskSource,
    target: &'a dyn TaskStore,
    /// The time of tasks, which decides what is gone.
    now: Timestamp,
    tell: &'a mut (dyn FnMut(LeftRow) + Send),
    counts: CopyCounts,
}

impl std::fmt::Debug for StoreCopy<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreCopy").field("now", &self.now).field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl<'a> StoreCopy<'a> {
    /// `now` is the target's time. `tell` hears of each row that cannot be copied.
    pub fn new(
        source: &'a DiskSource,
        target: &'a dyn TaskStore,
        now: Timestamp,
        tell: &'a mut (dyn FnMut(LeftRow) + Send),
    ) -> Self {
        Self { source, target, now, tell, counts: CopyCounts::default() }
    }

    /// What was done so far.
    #[must_use]
    pub const fn counts(&self) -> CopyCounts {
        self.counts
    }

    /// Copies all that is not there yet; whether it came to its end before it was told to stop. No tree of tasks is left half
    /// copied by that.
    ///
    /// # Errors
    /// If a store fails, or the target is full. What was copied stays.
    pub async fn run(&mut self, stop: &CancellationToken) -> Result<bool, CopyError> {
        let mut after = None;
        while !stop.is_cancelled() {
            let rows = self.source.page(after, ROWS_AT_ONCE, self.now).await.map_err(CopyError::Source)?;
            let Some(last) = rows.last() else { return Ok(true) };
            after = Some((last.key.owner.clone(), last.created_at, last.key.id));
            let mut single = Vec::new();
            for row in rows {
                if row.is_gone {
                    self.counts.gone += 1;
                } else if row.is_child {
                    // It comes with its parent.
                } else if row.tree.children.is_empty() {
                    single.push(row.key);
                } else if !stop.is_cancelled() {
                    self.put_tree(row).await?;
                }
            }
            self.put(single).await?;
        }
        Ok(false)
    }

    /// Copies a task with all that is below it, the lowest first.
    async fn put_tree(&mut self, top: SourceRow) -> Result<(), CopyError> {
        let mut known = HashSet::from([top.key.id]);
        let mut levels = vec![vec![top]];
        while let Some(level) = levels.last().filter(|level| !level.is_empty()) {
            let mut below = Vec::new();
            for row in level {
                let children = self.source.children(row, self.now).await.map_err(CopyError::Source)?;
                below.extend(children.into_iter().filter(|child| known.insert(child.key.id)));
            }
            levels.push(below);
        }
        for level in levels.into_iter().rev() {
            self.put(level.into_iter().map(|row| row.key).collect()).await?;
        }
        Ok(())
    }

    /// Copies rows of which none names another; as many together as there is room for.
    async fn put(&mut self, mut keys: Vec<TaskKey>) -> Result<(), CopyError> {
        while !keys.is_empty() {
            let wanted = keys[..keys.len().min(ROWS_AT_ONCE)].to_vec();
            let read = self.source.tasks(wanted, BYTES_AT_ONCE).await.map_err(CopyError::Source)?;
            keys.drain(..read.len());
            let mut tasks = Vec::with_capacity(read.len());
            for (key, task) in read {
                match task {
                    Ok(task) => tasks.push(task),
                    Err(error) => self.leave(&key, LeftReason::Unreadable(error)),
                }
            }
            let made = join_all(tasks.iter().map(|task| self.target.insert(task))).await;
            failpoint::hit("rows-copied");
            let mut failed = None;
            for (task, made) in tasks.iter().zip(made) {
                match made {
                    Ok(_) => self.copied(task),
                    Err(StoreError::Exists) => self.exists(task).await?,
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            // The others were made, and are counted.
            failed.map_or(Ok(()), |error| Err(CopyError::Target(error)))?;
        }
        Ok(())
    }

    fn copied(&mut self, task: &Task) {
        let Usage { tasks, unsettled, bytes } = &mut self.counts.copied;
        *tasks += 1;
        *unsettled += usize::from(!task.is_settled());
        *bytes += task.stored_bytes();
    }

    /// Finds out what is in the way of a task: itself, or another one of its name.
    async fn exists(&mut self, task: &Arc<Task>) -> Result<(), CopyError> {
        let TaskKey { owner, id } = &task.key;
        if let Some(named) = &task.idempotency {
            let other = self.target.find_idempotent(owner, &named.key, self.now).await.map_err(CopyError::Target)?;
            let is_there = self.target.load(&task.key, self.now).await.map_err(CopyError::Target)?.is_some();
            if !is_there && other.is_some_and(|other| other.task.key.id != *id) {
                self.leave(&task.key, LeftReason::NameTaken);
                return Ok(());
            }
        }
        self.counts.present += 1;
        Ok(())
    }

    fn leave(&mut self, key: &TaskKey, why: LeftReason) {
        match why {
            LeftReason::Unreadable(_) => self.counts.unreadable += 1,
            LeftReason::NameTaken => self.counts.refused += 1,
        }
        (self.tell)(LeftRow { task: ShortReference::of(key), why });
    }
}

#[cfg(test)]
mod tests;
