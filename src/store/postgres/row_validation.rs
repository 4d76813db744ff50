//! Converts rows into tasks: hides unresolved inserts, and shows damaged rows as failed.

use std::io;

use super::PostgresStore;
use super::columns::{DamagedRow, EncodedRow, FetchedRow, SummaryRow};
use super::task_write::TaskWrite;
use crate::metric;
use crate::store::condemned::{LostRow, condemned};
use crate::store::record::RecordError;
use crate::store::tasks::{StoreError, StoredTask, TaskStore as _, WriteRole};
use crate::task::{ShortReference, Summary, Timestamp};

impl PostgresStore {
    /// `None` if it has expired.
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
        Ok(is_there(&row, now).then_some(row))
    }

    /// For readers and in the store (F56).
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

    /// Rows with a damaged summary are read as a whole.
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
}

pub(super) fn is_there(row: &StoredTask, now: Timestamp) -> bool {
    !row.task.is_settled() || row.task.expires_at() > now
}
