//! Validates rows from the disk, and logs each fault once.

use std::io;
use std::sync::Arc;

use super::DiskStore;
use super::batch::RowWrite;
use super::columns::RowOutline;
use super::reads::{ListedRow, ReadRow};
use super::resident::OWN;
use crate::metric;
use crate::store::record::{LostRow, RecordError, condemned};
use crate::store::tasks::{Revision, StoreError, StoredTask, TaskStore as _};
use crate::task::{ShortReference, Summary, TaskKey, Timestamp};

const LOGGED_MAX: usize = 1_024;

impl DiskStore {
    /// The task of a row; `None` if it has expired.
    pub(super) async fn present(&self, read: ReadRow, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        if self.unresolved.hides(read.key()) {
            return Ok(None);
        }
        let row = match read {
            // The row in memory is the visible one: an unfinished commit is visible nowhere or everywhere.
            ReadRow::Whole(row) => self.resident.live(&row.task.key).unwrap_or(row),
            ReadRow::Damaged {
                key,
                outline,
                error: error @ (RecordError::OtherVersion(_) | RecordError::Unknown),
                ..
            } => {
                self.resident.set_aside(&key, &outline);
                self.log_once(&key, "a task cannot be read, and is left as it is", &error);
                return Err(StoreError::Io(io::Error::other(error)));
            }
            // The row in memory is intact, and its next write repairs the disk.
            ReadRow::Damaged { key, revision, outline, error: RecordError::Damaged } => {
                match self.resident.live(&key) {
                    Some(row) => row,
                    None => self.condemn(key, revision, outline, now).await,
                }
            }
        };
        Ok(row.is_there(now).then_some(row))
    }

    /// Replaces a damaged row by a failed task (F56), for readers and on the disk.
    async fn condemn(&self, key: TaskKey, revision: Revision, outline: RowOutline, now: Timestamp) -> StoredTask {
        self.log_once(&key, "the stored row of a task is damaged", &RecordError::Damaged);
        metrics::counter!(metric::STORE_DAMAGED).increment(1);
        let RowOutline { is_settled, created_at, expires_at, .. } = outline;
        let task = Arc::new(condemned(key, LostRow { is_settled, created_at, expires_at }, now));
        let write = RowWrite::Condemn { expected: revision, task: Arc::clone(&task) };
        let written = self.put(write).await;
        if written.is_err() {
            // Another reader has replaced it, or it cannot be written: this process uses the row in memory.
            self.resident.set_aside(&task.key, &outline);
        }
        let row = StoredTask::held_by(OWN, task, written.unwrap_or(revision));
        self.resident.keep_settled(&row, now);
        row
    }

    fn log_once(&self, key: &TaskKey, what: &'static str, error: &RecordError) {
        let reference = ShortReference::of(key);
        let mut logged = self.logged.lock();
        if logged.len() < LOGGED_MAX && logged.insert(reference) {
            tracing::error!(task = %reference, %error, "{what}");
        }
    }

    /// Unreadable rows are shown as failed, or left out.
    pub(super) async fn listed(&self, rows: Vec<ListedRow>, now: Timestamp) -> Vec<Summary> {
        let mut tasks = Vec::with_capacity(rows.len());
        for row in rows {
            match row {
                ListedRow::Whole(summary) if self.unresolved.hides(&summary.key) => (),
                ListedRow::Whole(summary) => {
                    let live = self.resident.live(&summary.key);
                    tasks.push(live.map_or(*summary, |row| Summary::of(&row.task)));
                }
                ListedRow::Unreadable(Some(key)) => match self.load(&key, now).await {
                    Ok(row) => tasks.extend(row.map(|row| Summary::of(&row.task))),
                    Err(error) => tracing::debug!(%error, task = %ShortReference::of(&key), "a list leaves a task out"),
                },
                ListedRow::Unreadable(None) => tracing::debug!("a list leaves out a row that cannot be read"),
            }
        }
        tasks
    }
}
