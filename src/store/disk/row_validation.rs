//! Judges rows read from the disk, each alone, and logs what is wrong with one once.

use std::io;
use std::sync::Arc;

use super::batch::RowWrite;
use super::columns::RowOutline;
use super::earlier_rows::OWN;
use super::reads::{ListedRow, ReadRow};
use super::{DiskStore, is_there};
use crate::metric;
use crate::store::condemned::{LostRow, condemned};
use crate::store::record::RecordError;
use crate::store::tasks::{Revision, StoreError, StoredTask, TaskStore as _};
use crate::task::{ShortReference, Summary, TaskKey, Timestamp};

/// Tasks that cannot be read are named in the log once each, so many of them.
const TOLD_MAX: usize = 1_024;

impl DiskStore {
    /// What a row from the disk stands for now; `None` if it is gone.
    pub(super) async fn present(&self, read: ReadRow, now: Timestamp) -> Result<Option<StoredTask>, StoreError> {
        if self.doubt.hides(read.key()) {
            return Ok(None);
        }
        let row = match read {
            // What memory has is what was shown: a commit that is under way shows nowhere until it shows everywhere.
            ReadRow::Whole(row) => self.resident.live(&row.task.key).unwrap_or(row),
            ReadRow::Damaged { key, outline, error: error @ RecordError::Newer(_), .. } => {
                self.resident.set_aside(&key, &outline);
                self.tell(&key, "a task cannot be read, and is left as it is", &error);
                return Err(StoreError::Io(io::Error::other(error)));
            }
            // What memory has of it is sound, and its next write mends the disk.
            ReadRow::Damaged { key, revision, outline, error: RecordError::Damaged } => {
                match self.resident.live(&key) {
                    Some(row) => row,
                    None => self.condemn(key, revision, outline, now).await,
                }
            }
        };
        Ok(is_there(&row, now).then_some(row))
    }

    /// A task whose row is damaged has failed (F56): so it is shown, and so it is written.
    async fn condemn(&self, key: TaskKey, revision: Revision, outline: RowOutline, now: Timestamp) -> StoredTask {
        self.tell(&key, "what was stored of a task is damaged", &RecordError::Damaged);
        metrics::counter!(metric::STORE_DAMAGED).increment(1);
        let RowOutline { is_settled, created_at, expires_at, .. } = outline;
        let task = Arc::new(condemned(key, LostRow { is_settled, created_at, expires_at }, now));
        let write = RowWrite::Condemn { expected: revision, task: Arc::clone(&task) };
        let written = self.put(write).await;
        if written.is_err() {
            // Somebody else found it too, or it cannot be written: this life goes by what memory has.
            self.resident.set_aside(&task.key, &outline);
        }
        let row = StoredTask::held_by(OWN, task, written.unwrap_or(revision));
        self.resident.keep_settled(&row, now);
        row
    }

    /// Says once what is the matter with a row.
    fn tell(&self, key: &TaskKey, what: &'static str, error: &RecordError) {
        let reference = ShortReference::of(key);
        let mut told = self.told.lock();
        if told.len() < TOLD_MAX && told.insert(reference) {
            tracing::error!(task = %reference, %error, "{what}");
        }
    }

    /// What lists show of rows from the disk: those that cannot be read are shown as failed, or left out.
    pub(super) async fn listed(&self, rows: Vec<ListedRow>, now: Timestamp) -> Vec<Summary> {
        let mut tasks = Vec::with_capacity(rows.len());
        for row in rows {
            match row {
                ListedRow::Whole(summary) if self.doubt.hides(&summary.key) => (),
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
