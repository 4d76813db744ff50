//! Resumes unsettled rows of this process that have no runner, as recovery does. Invariant: an unsettled row that this
//! process holds has a runner, or its parent has one, or recovery retries it; else the task would be at work until its
//! `ttl`. A row counts only if two consecutive looks find it, since one may fall between a runner's last write and its
//! end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Engine;
use super::recovery::{self, CallTargets};
use crate::cause::CauseChain;
use crate::store::StoreError;
use crate::task::TaskKey;

const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Rows taken up after one look.
const RESUMED_MAX: usize = 1_000;

/// Looks until `stop` or a drain: a runner that leaves its call to a later process ends with its row unsettled.
pub async fn run(engine: Arc<Engine>, origins: CallTargets, stop: CancellationToken) {
    let leaving = engine.leaving.clone();
    let looking = async {
        let mut found = BTreeSet::new();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            found = look(&engine, &origins, found).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => (),
        () = leaving.cancelled() => (),
        never = looking => never,
    }
}

/// Finds rows without a runner, and takes up the rows that were also in `before`. Returns the rows found.
async fn look(engine: &Arc<Engine>, origins: &CallTargets, before: BTreeSet<TaskKey>) -> BTreeSet<TaskKey> {
    let found = match engine.rows_without_runner().await {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(error = %CauseChain(&error), "rows without a runner could not be searched for");
            return before;
        }
    };
    let rows: Vec<_> = found.intersection(&before).take(RESUMED_MAX).cloned().collect();
    if !rows.is_empty() {
        tracing::error!(tasks = rows.len(), "tasks without a runner are resumed like tasks of an earlier process");
        recovery::resume_own(engine, origins, rows).await;
    }
    found
}

impl Engine {
    /// The rows that break the invariant now, including rows that are about to get or lose a runner.
    pub async fn rows_without_runner(&self) -> Result<BTreeSet<TaskKey>, StoreError> {
        let mut found = BTreeSet::new();
        for key in self.store.held().await?.into_iter().filter(|key| !self.is_run(key)) {
            let row = self.store.load(&key, self.clock.now()).await?;
            let Some(task) = row.map(|row| row.task).filter(|task| !task.is_settled()) else { continue };
            let parent = task.tree.parent.map(|id| TaskKey { owner: key.owner.clone(), id });
            if !parent.is_some_and(|parent| self.is_run(&parent)) && !self.is_run(&key) {
                found.insert(key);
            }
        }
        Ok(found)
    }

    fn is_run(&self, key: &TaskKey) -> bool {
        self.live.has(key) || self.retried.lock().contains(key)
    }
}
