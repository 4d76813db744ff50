//! Lists all tasks of all owners for operators, in the order of the store's own indexes.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::{Engine, TaskError};
use crate::replica::Incarnation;
use crate::store::NewestCursor;
use crate::task::{ShortReference, Summary, Task, TaskKey, TaskVisibility};

/// Rows that are looked at in one go; others get their turn in between.
const STEP: usize = 128;

/// Rows that one survey looks at: whoever wants more asks again from where it ended.
pub const SURVEY_MAX: usize = 10_000;

/// Tasks that are looked at for one reference: more than ever share one.
const SAME_MAX: usize = 8;

impl Engine {
    /// Shows every task that has a handle to `look`, the newest first and beginning behind `after`, until it has seen
    /// enough or [`SURVEY_MAX`] rows were looked at: then it returns where to go on. Takes time in proportion to what is
    /// looked at. Cancel safe.
    ///
    /// # Errors
    /// `Store`.
    pub async fn survey(
        &self,
        mut after: Option<NewestCursor>,
        mut look: impl FnMut(&Summary) -> ControlFlow<()> + Send,
    ) -> Result<Option<NewestCursor>, TaskError> {
        let mut looked_at = 0;
        loop {
            let step = STEP.min(SURVEY_MAX - looked_at);
            let page = self.store.survey(after, step, self.clock.now()).await?;
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

    /// Which life has to do something about each of these tasks, where others share the store: for operators. Cancel safe.
    ///
    /// # Errors
    /// `Store`.
    pub async fn holders(&self, keys: &[TaskKey]) -> Result<Vec<Option<Incarnation>>, TaskError> {
        Ok(self.store.holders(keys).await?)
    }

    /// The tasks that a reference names, those with a handle and the parts of such: none or one, hardly ever more. Cancel
    /// safe.
    ///
    /// # Errors
    /// `Store`.
    pub async fn named_by(self: &Arc<Self>, reference: ShortReference) -> Result<Vec<Arc<Task>>, TaskError> {
        let mut tasks = Vec::new();
        for key in self.store.find_reference(reference, SAME_MAX).await? {
            let found = match self.held(&key).await {
                // A part is shown in the tree of its parent, though its owner does not see it.
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
