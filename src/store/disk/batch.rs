//! One transaction: writes are decided and made in it one after the other, and count together or not at all.

use std::sync::Arc;

use rusqlite::Connection;

use super::resident::Change;
use super::rows::{self, Outline};
use crate::store::tasks::{Revision, StoreError, Stored};
use crate::task::{Task, TaskKey, Timestamp};

/// SQLite takes no larger value than a billion bytes.
const ROW_BYTES_MAX: usize = 900 << 20;

/// What is asked of the writer.
#[derive(Debug)]
pub(super) enum Write {
    Insert(Arc<Task>),
    Replace { expected: Revision, task: Arc<Task> },
    Remove(TaskKey),
    Sweep { now: Timestamp, limit: usize },
}

impl Write {
    /// What it puts into the transaction, roughly.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Insert(task) | Self::Replace { task, .. } => task.stored_bytes(),
            Self::Remove(_) | Self::Sweep { .. } => 0,
        }
    }
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The row has this revision.
    At(Revision),
    Removed,
    /// So many rows were freed.
    Freed(usize),
}

/// Why new rows are refused at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoNew {
    Full,
    Failing,
}

impl NoNew {
    pub(super) fn error(self) -> StoreError {
        match self {
            Self::Full => StoreError::Full { what: "bytes on its disk" },
            Self::Failing => StoreError::Io(std::io::Error::other("writes fail; a probe has to succeed first")),
        }
    }
}

/// See the module. Dropping it decides nothing: the connection's owner commits or rolls back.
pub(super) struct Batch<'a> {
    conn: &'a Connection,
    no_new: Option<NoNew>,
    /// All rows, those of this transaction included.
    bytes: usize,
    bytes_max: usize,
    seen: Timestamp,
    pub(super) changes: Vec<Change>,
}

impl<'a> Batch<'a> {
    pub(super) const fn new(
        conn: &'a Connection,
        no_new: Option<NoNew>,
        (bytes, bytes_max): (usize, usize),
        seen: Timestamp,
    ) -> Self {
        Self { conn, no_new, bytes, bytes_max, seen, changes: Vec::new() }
    }

    /// Makes one write. A refusal leaves everything as it was.
    ///
    /// # Errors
    /// The outer one ends the whole transaction, the inner one is for who asked.
    pub(super) fn run(&mut self, write: &Write) -> rusqlite::Result<Result<Written, StoreError>> {
        match write {
            Write::Insert(task) => self.insert(task),
            Write::Replace { expected, task } => self.replace(*expected, task),
            Write::Remove(key) => self.remove(key),
            Write::Sweep { now, limit } => self.sweep(*now, *limit),
        }
    }

    fn has_room(&self, more: usize) -> bool {
        self.bytes.checked_add(more).is_some_and(|sum| sum <= self.bytes_max)
    }

    fn insert(&mut self, task: &Arc<Task>) -> rusqlite::Result<Result<Written, StoreError>> {
        if let Some(why) = self.no_new {
            return Ok(Err(why.error()));
        }
        let bytes = task.stored_bytes();
        if !self.has_room(bytes) || bytes > ROW_BYTES_MAX {
            return Ok(Err(StoreError::Full { what: "bytes" }));
        }
        let now = task.created_at.max(self.seen);
        let is_named = match &task.idempotency {
            Some(named) => rows::is_named(self.conn, &task.key.owner, &named.key, now)?,
            None => false,
        };
        if is_named || rows::find(self.conn, &task.key)?.is_some() {
            return Ok(Err(StoreError::Exists));
        }
        rows::insert(self.conn, task)?;
        self.bytes += bytes;
        Ok(Ok(self.note(task, Revision(1), None)))
    }

    fn replace(&mut self, expected: Revision, task: &Arc<Task>) -> rusqlite::Result<Result<Written, StoreError>> {
        let Some(found) = rows::find(self.conn, &task.key)?.filter(|found| found.revision == expected) else {
            return Ok(Err(StoreError::Conflict));
        };
        let bytes = task.stored_bytes();
        let more = bytes.saturating_sub(found.outline.bytes);
        if more > 0 && (!self.has_room(more) || bytes > ROW_BYTES_MAX) {
            return Ok(Err(StoreError::Full { what: "bytes" }));
        }
        let revision = Revision(expected.0 + 1);
        if self.no_new == Some(NoNew::Full) {
            // SQLite makes the new record before it frees the old one; on a full disk there is no room for both.
            rows::empty(self.conn, found.row)?;
        }
        rows::update(self.conn, found.row, revision, task)?;
        self.bytes = (self.bytes + bytes).saturating_sub(found.outline.bytes);
        Ok(Ok(self.note(task, revision, Some(found.outline))))
    }

    fn note(&mut self, task: &Arc<Task>, revision: Revision, before: Option<Outline>) -> Written {
        let after = Stored { task: Arc::clone(task), revision };
        self.changes.push(Change { key: task.key.clone(), before, after: Some(after) });
        Written::At(revision)
    }

    fn remove(&mut self, key: &TaskKey) -> rusqlite::Result<Result<Written, StoreError>> {
        if let Some(found) = rows::find(self.conn, key)? {
            self.delete(found.row, key.clone(), found.outline)?;
        }
        Ok(Ok(Written::Removed))
    }

    fn sweep(&mut self, now: Timestamp, limit: usize) -> rusqlite::Result<Result<Written, StoreError>> {
        let gone = rows::gone(self.conn, now, limit)?;
        let freed = gone.len();
        for (row, key, outline) in gone {
            self.delete(row, key, outline)?;
        }
        if freed > 0 {
            // What is freed must not have been there after all when the clock is set back.
            rows::note_seen(self.conn, now)?;
        }
        Ok(Ok(Written::Freed(freed)))
    }

    fn delete(&mut self, row: i64, key: TaskKey, outline: Outline) -> rusqlite::Result<()> {
        rows::delete(self.conn, row)?;
        self.bytes = self.bytes.saturating_sub(outline.bytes);
        self.changes.push(Change { key, before: Some(outline), after: None });
        Ok(())
    }
}
