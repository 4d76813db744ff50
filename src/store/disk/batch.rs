//! Combines writes into one transaction: decides each in order, and commits all or none.

use std::sync::Arc;

use parking_lot::Mutex;

use super::columns::{RowColumns, RowOutline, is_damage};
use super::resident::{OWN, RowChange};
use super::rows::{self, FoundRow, RowStatements, UnfreeableRows};
use crate::metric;
use crate::store::clock_trust::ClockTrust;
use crate::store::tasks::{Revision, SWEEP_BYTES_MAX, StoreError, StoredTask, WriteOutcome, WriteRole};
use crate::task::{Task, TaskKey, Timestamp};

/// Below SQLite's limit of a billion bytes for a value.
const ROW_BYTES_MAX: usize = 900 << 20;

#[derive(Debug)]
pub(super) enum RowWrite {
    Insert(Arc<Task>),
    Replace {
        expected: Revision,
        role: WriteRole,
        task: Arc<Task>,
    },
    /// Replaces a damaged row by its failed task.
    Condemn {
        expected: Revision,
        task: Arc<Task>,
    },
    Remove(TaskKey),
    SweepOne {
        key: TaskKey,
        now: Timestamp,
    },
    Sweep {
        now: Timestamp,
        limit: usize,
    },
    /// Writes an unrelated value: once that is durable, so is everything that readers see.
    Barrier,
}

impl RowWrite {
    /// The approximate size in the transaction.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Insert(task) | Self::Replace { task, .. } | Self::Condemn { task, .. } => task.stored_bytes(),
            Self::Remove(_) | Self::SweepOne { .. } | Self::Sweep { .. } | Self::Barrier => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsertRefusal {
    Full,
    Failing,
}

impl InsertRefusal {
    pub(super) fn error(self) -> StoreError {
        match self {
            Self::Full => StoreError::NoRoom,
            Self::Failing => StoreError::Io(std::io::Error::other("writes fail; a probe has to succeed first")),
        }
    }
}

/// Dropping it decides nothing: the connection's owner commits or rolls back.
pub(super) struct WriteBatch<'a> {
    pub(super) statements: RowStatements<'a>,
    pub(super) no_new: Option<InsertRefusal>,
    /// The size of all rows, including this transaction's.
    pub(super) bytes: usize,
    pub(super) bytes_max: usize,
    pub(super) seen: Timestamp,
    pub(super) clock: ClockTrust,
    pub(super) stuck: &'a Mutex<UnfreeableRows>,
    pub(super) is_careful: bool,
    pub(super) changes: Vec<RowChange>,
    pub(super) has_barrier: bool,
}

impl WriteBatch<'_> {
    /// A refused write changes nothing. The outer error ends the whole transaction; the inner one is its caller's.
    pub(super) fn run(&mut self, write: &RowWrite) -> rusqlite::Result<Result<WriteOutcome, StoreError>> {
        match write {
            RowWrite::Insert(task) => self.insert(task),
            RowWrite::Replace { expected, role, task } => self.put(*expected, *role, task, self.is_careful),
            RowWrite::Condemn { expected, task } => self.put(*expected, WriteRole::Command, task, true),
            RowWrite::Remove(key) => self.remove(key, None),
            RowWrite::SweepOne { key, now } => self.remove(key, Some(*now)),
            RowWrite::Sweep { now, limit } => self.sweep(*now, *limit),
            RowWrite::Barrier => {
                self.has_barrier = true;
                rows::probe(self.statements.conn).map(|()| Ok(WriteOutcome::Done))
            }
        }
    }

    fn has_room(&self, more: usize) -> bool {
        self.bytes.checked_add(more).is_some_and(|sum| sum <= self.bytes_max)
    }

    fn insert(&mut self, task: &Arc<Task>) -> rusqlite::Result<Result<WriteOutcome, StoreError>> {
        if let Some(why) = self.no_new {
            return Ok(Err(why.error()));
        }
        let bytes = task.stored_bytes();
        if !self.has_room(bytes) || bytes > ROW_BYTES_MAX {
            return Ok(Err(StoreError::Full));
        }
        let now = self.clock.expiry_time(task.created_at).max(self.seen);
        let is_named = match &task.idempotency {
            Some(named) => rows::is_named(self.statements.conn, &task.key.owner, &named.key, now)?,
            None => false,
        };
        if is_named || !rows::insert(&mut self.statements, task)? {
            return Ok(Err(StoreError::Exists));
        }
        self.bytes += bytes;
        Ok(Ok(self.note(task, Revision::FIRST, None)))
    }

    fn put(
        &mut self,
        expected: Revision,
        role: WriteRole,
        task: &Arc<Task>,
        is_new_record: bool,
    ) -> rusqlite::Result<Result<WriteOutcome, StoreError>> {
        // The revision of a row with damaged columns is unknown: the next write repairs it.
        let is_next = |found: &FoundRow| found.columns.revision == expected || !found.is_sound;
        let Some(found) = rows::find(&mut self.statements, &task.key)?.filter(is_next) else {
            return Ok(Err(StoreError::Conflict));
        };
        let before = found.columns.outline;
        // The holder, if there is one, is checked before.
        if role == WriteRole::Holder && !before.needs_holder() {
            return Ok(Err(StoreError::Conflict));
        }
        let bytes = task.stored_bytes();
        // Its task was admitted: the limit on all rows applies to new ones.
        if bytes > before.bytes && bytes > ROW_BYTES_MAX {
            return Ok(Err(StoreError::Full));
        }
        let revision = Revision(expected.0.max(found.columns.revision.0) + 1);
        if self.no_new == Some(InsertRefusal::Full)
            && let Some(record) = found.record().filter(|_| !is_new_record)
        {
            // SQLite writes the new record before it frees the old one; a full disk lacks the space for both.
            rows::empty(self.statements.conn, record)?;
        }
        rows::update(&mut self.statements, &found, revision, task, is_new_record, self.stuck)?;
        self.bytes = (self.bytes + bytes).saturating_sub(before.bytes);
        Ok(Ok(self.note(task, revision, Some(before))))
    }

    fn note(&mut self, task: &Arc<Task>, revision: Revision, before: Option<RowOutline>) -> WriteOutcome {
        let after = StoredTask::held_by(OWN, Arc::clone(task), revision);
        self.changes.push(RowChange { key: task.key.clone(), before, after: Some(after) });
        WriteOutcome::At(revision)
    }

    /// With `gone_at`, removes only a row that has expired by then.
    fn remove(
        &mut self,
        key: &TaskKey,
        gone_at: Option<Timestamp>,
    ) -> rusqlite::Result<Result<WriteOutcome, StoreError>> {
        let is_there = |row: &RowOutline| gone_at.is_some_and(|now| !row.is_settled || row.expires_at > now);
        match rows::find(&mut self.statements, key)? {
            Some(found) if is_there(&found.columns.outline) => (),
            Some(found) => {
                self.delete(found)?;
                if let Some(now) = gone_at {
                    rows::note_seen(self.statements.conn, now)?;
                }
            }
            // A missing row must not be served from memory.
            None => self.changes.push(RowChange { key: key.clone(), before: None, after: None }),
        }
        Ok(Ok(WriteOutcome::Done))
    }

    fn sweep(&mut self, now: Timestamp, limit: usize) -> rusqlite::Result<Result<WriteOutcome, StoreError>> {
        // Rows that cannot be freed are the oldest, so they come first.
        let stuck = self.stuck.lock().rows.len();
        let (mut freed, bytes) = (0, self.bytes);
        for row in rows::gone(self.statements.conn, now, limit.saturating_add(stuck))? {
            if freed == limit || bytes - self.bytes >= SWEEP_BYTES_MAX {
                break;
            }
            if self.stuck.lock().rows.contains(&row) {
                continue;
            }
            let records = self.stuck.lock().records.len();
            if let Err(error) = rows::numbered(self.statements.conn, row).and_then(|found| self.delete(found)) {
                if is_damage(&error) && self.stuck.lock().records.len() == records {
                    self.stuck.lock().rows.insert(row);
                    metrics::counter!(metric::STORE_DAMAGED).increment(1);
                    tracing::error!(row, "a row of the task store cannot be freed: its page in the file is damaged");
                }
                return Err(error);
            }
            freed += 1;
        }
        if freed > 0 {
            // If the clock is set back later, a freed row must still count as expired.
            rows::note_seen(self.statements.conn, now)?;
        }
        Ok(Ok(WriteOutcome::Count(freed)))
    }

    fn delete(&mut self, found: FoundRow) -> rusqlite::Result<()> {
        rows::delete(self.statements.conn, &found, self.stuck)?;
        let RowColumns { key, outline, .. } = found.columns;
        self.bytes = self.bytes.saturating_sub(outline.bytes);
        self.changes.push(RowChange { key, before: Some(outline), after: None });
        Ok(())
    }
}
