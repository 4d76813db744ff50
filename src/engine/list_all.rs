//! Lists all tasks of all owners for operators, in the order of the store's indexes.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::{Engine, TaskError};
use crate::replica::Incarnation;
use crate::store::{NewestCursor, PageRange};
use crate::task::{ShortReference, Summary, Task, TaskKey, TaskVisibility};

/// Rows read in one step; other tasks run in between.
const STEP: usize = 128;

/// Rows that one survey reads; its caller resumes from the returned cursor.
pub const SURVEY_MAX: usize = 10_000;

/// Limit of tasks read for one reference: more than ever share one.
const SAME_MAX: usize = 8;

impl Engine {
    /// Calls `look` for every task with a handle, the newest first, starting after `after`, until `look` breaks or
    /// [`SURVEY_MAX`] rows were read: then it returns the cursor of the next survey. Cancel safe.
    pub async fn survey(
        &self,
        mut after: Option<NewestCursor>,
        mut look: impl FnMut(&Summary) -> ControlFlow<()> + Send,
    ) -> Result<Option<NewestCursor>, TaskError> {
        let mut looked_at = 0;
        loop {
            let step = STEP.min(SURVEY_MAX - looked_at);
            let page = self.store.survey(PageRange::new(after, step, self.clock.now())).await?;
            for task in page.tasks.iter().filter(|task| task.shown == TaskVisibility::Handle) {
                if look(task).is_break() {
                    return Ok(None);
                }
            }
            looked_at += step;
            if page.next.is_none() || looked_at >= SURVEY_MAX {
                return Ok(page.next);
            }
            after = page.next;
            tokio::task::yield_now().await;
        }
    }

    /// The incarnation that is responsible for each of these tasks in a shared store: for operators. Cancel safe.
    pub async fn holders(&self, keys: &[TaskKey]) -> Result<Vec<Option<Incarnation>>, TaskError> {
        Ok(self.store.holders(keys).await?)
    }

    /// The tasks with this reference that have a handle, or are parts of such tasks: none or one, rarely more. Cancel
    /// safe.
    pub async fn named_by(self: &Arc<Self>, reference: ShortReference) -> Result<Vec<Arc<Task>>, TaskError> {
        let mut tasks = Vec::new();
        for key in self.store.find_reference(reference, SAME_MAX).await? {
            let found = match self.held(&key).await {
                // A part is listed in its parent's tree, though its owner does not see it.
                Ok(task) if task.shown == TaskVisibility::Part => Ok(task),
                Ok(_) => self.shown(&key).await,
                Err(error) => Err(error),
            };
            match found {
                Ok(task) => tasks.push(task),
                Err(TaskError::Unknown) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(tasks)
    }
}
