//! All tasks of all owners, for operators: found by going through the store, so that nothing has to be kept for it.

use std::ops::ControlFlow;

use super::{Engine, TaskError};
use crate::task::{Shown, Task, TaskKey};

/// Rows that are looked at in one go; others get their turn in between. Each comes with its result.
const STEP: usize = 64;

impl Engine {
    /// Shows every task that has a handle to `look`, in no order that means anything, until it has seen enough. Takes
    /// time in proportion to what the store holds. Cancel safe.
    ///
    /// # Errors
    /// `Store`.
    pub async fn survey(&self, mut look: impl FnMut(&Task) -> ControlFlow<()> + Send) -> Result<(), TaskError> {
        let mut after: Option<TaskKey> = None;
        loop {
            let rows = self.store.survey(after.as_ref(), STEP, self.clock.now()).await?;
            for row in rows.iter().filter(|row| row.task.shown == Shown::Handle) {
                if look(&row.task).is_break() {
                    return Ok(());
                }
            }
            match rows.last() {
                Some(last) if rows.len() >= STEP => after = Some(last.task.key.clone()),
                Some(_) | None => return Ok(()),
            }
            tokio::task::yield_now().await;
        }
    }
}
