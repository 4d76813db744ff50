//! Finds the row of an idempotency key that another replica may have inserted.

use std::io;

use super::{PostgresStore, lists};
use crate::store::tasks::{Revision, StoreError, StoredTask, TaskStore as _, WriteRole};
use crate::task::{Digest, Principal, Timestamp};

/// After concurrent writes.
const TRIES_MAX: usize = 4;

impl PostgresStore {
    pub(super) async fn find_named(
        &self,
        owner: &Principal,
        key: &Digest,
        now: Timestamp,
    ) -> Result<Option<StoredTask>, StoreError> {
        for _ in 0..TRIES_MAX {
            let reader = self.lists.reader()?;
            let found = reader.read(async |link| lists::idempotent(link, owner, key, now).await).await?;
            let Some(found) = found else { return Ok(None) };
            let Some(row) = self.load(&found, now).await? else { return Ok(None) };
            if let Some(shown) = self.shown(row).await? {
                return Ok(Some(shown));
            }
        }
        Err(StoreError::Io(io::Error::other("others write the task again and again")))
    }

    /// Only if another replica inserted the row and no write has followed: that replica may not know whether its insert
    /// was committed, and would otherwise remove it. `None` after a concurrent write.
    async fn shown(&self, row: StoredTask) -> Result<Option<StoredTask>, StoreError> {
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
