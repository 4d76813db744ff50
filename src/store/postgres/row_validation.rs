//! Converts rows into tasks: hides unresolved inserts, and shows damaged rows as failed.

use std::io;

use super::PostgresStore;
use super::columns::{DamagedRow, EncodedRow, FetchedRow, SummaryRow};
use super::task_write::TaskWrite;
use crate::metric;
use crate::store::record::{LostRow, RecordError, condemned};
use crate::store::tasks::{Revision, StoreError, StoredTask, TaskStore as _, WriteRole};
use crate::task::{ShortReference, Summary, Timestamp};

impl PostgresStore {
    /// The task of a row; `None` if it has expired.
    pub(super) async fn present(&self, read: FetchedRow, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        if self.state.unresolved.hides(read.key()) {
            return Ok(None);
        }
        let row = match read {
            FetchedRow::Whole(row) => row,
            FetchedRow::Damaged(row) if row.error == RecordError::Damaged => self.condemn(row, now).await,
            FetchedRow::Damaged(row) => {
                let task = ShortReference::of(&row.key);
                tracing::error!(%task, error = %row.error, "a task cannot be read, and is left as it is");
                return Err(StoreError::Io(io::Error::other(row.error)));
            }
        };
        Ok(row.is_there(now).then_some(row))
    }

    /// Replaces a damaged row by a failed task, for readers and in the store (F56).
    async fn condemn(&self, row: DamagedRow, now: Timestamp) -> StoredTask {
        metrics::counter!(metric::STORE_DAMAGED).increment(1);
        tracing::error!(task = %ShortReference::of(&row.key), "the stored row of a task is damaged");
        let DamagedRow { key, revision, is_settled, created_at, expires_at, .. } = row;
        let task = condemned(key, LostRow { is_settled, created_at, expires_at }, now);
        let encoded = Box::new(EncodedRow::of(&task));
        let write = TaskWrite::Replace { expected: revision, role: WriteRole::Command, row: encoded };
        let revision = self.put(write).await.unwrap_or(revision);
        StoredTask { task: task.into(), revision, holder: None }
    }

    /// The summaries of listed rows. Rows with a damaged summary are read as a whole.
    pub(super) async fn listed(&self, rows: Vec<SummaryRow>, now: Timestamp) -> Vec<Summary> {
        let mut tasks = Vec::with_capacity(rows.len());
        for SummaryRow { key, summary, .. } in rows {
            if self.state.unresolved.hides(&key) {
                continue;
            }
            match summary {
                Some(summary) => tasks.push(summary),
                None => tasks.extend(self.load(&key, now).await.ok().flatten().map(|row| Summary::of(&row.task))),
            }
        }
        tasks
    }

    /// Marks a row as shown, if another replica inserted it and no write has followed: that replica may not know whether
    /// its insert was committed, and would otherwise remove it. `None` after a concurrent write.
    pub(super) async fn shown(&self, row: StoredTask) -> Result<Option<StoredTask>, StoreError> {
        let is_untouched =
            row.revision == Revision::FIRST && row.holder.is_some_and(|holder| holder != self.state.holder);
        if !is_untouched {
            return Ok(Some(row));
        }
        match self.replace(row.revision, WriteRole::Command, &row.task).await {
            Ok(revision) => Ok(Some(StoredTask { revision, ..row })),
            Err(StoreError::Conflict) => Ok(None),
            // No row is shown, so it does not matter whether the mark was written.
            Err(error @ (StoreError::UnknownCommit(_) | StoreError::Io(_))) => Err(error.as_failed()),
            // The caller did not ask for this write.
            Err(error) => Err(StoreError::Io(io::Error::other(error))),
        }
    }
}
