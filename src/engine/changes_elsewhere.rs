//! Follows other replicas' writes to tasks that run here or have subscribers here. Hints of changed rows may be lost:
//! each second their revisions are read, too. Only local effects are performed here.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::Engine;
use crate::cause::CauseChain;
use crate::store::{Reach, Revision, StoreHint};
use crate::task::TaskKey;
use crate::task::reference::LoggedTask;

/// Interval at which the revisions of all watched and running tasks are read, in addition to hints.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const AT_ONCE: usize = 64;
const REVISIONS_MAX: usize = 512;

/// Follows other replicas' writes until `stop`; returns at once in a store that is not shared.
pub async fn run(engine: Arc<Engine>, stop: CancellationToken) {
    if engine.store.reach() == Reach::Shared {
        stop.run_until_cancelled(follow(&engine)).await;
    }
}

async fn follow(engine: &Engine) {
    // Once the hints have ended, only the ticks remain.
    let mut hints = engine.store.changes().chain(stream::pending());
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = SeenRevisions::default();
    loop {
        tokio::select! {
            Some(hint) = hints.next() => match hint {
                StoreHint::Changed(key) => {
                    if let Some(row) = engine.look_elsewhere(&key, &seen).await {
                        seen.0.insert(key, row);
                    }
                    continue;
                }
                StoreHint::Missed => tracing::debug!("hints of other replicas were missed"),
            },
            _ = ticks.tick() => (),
        }
        // Revisions of tasks without subscribers or runners are dropped here.
        seen = engine.look_at_all(engine.followed(), &seen).await;
    }
}

#[derive(Debug, Default)]
struct SeenRevisions(HashMap<TaskKey, SeenRow>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SeenRow {
    revision: Revision,
    /// A runner that began later has not received the row's effects.
    has_runner: bool,
}

impl Engine {
    fn followed(&self) -> BTreeSet<TaskKey> {
        self.live.keys().into_iter().chain(self.watchers.keys()).collect()
    }

    /// Reads the revisions of all rows, and the rows whose revision is new.
    async fn look_at_all(&self, keys: BTreeSet<TaskKey>, seen: &SeenRevisions) -> SeenRevisions {
        let keys: Vec<TaskKey> = keys.into_iter().collect();
        let (mut changed, mut found) = (Vec::new(), HashMap::new());
        for keys in keys.chunks(REVISIONS_MAX) {
            let revisions = self.store.revisions(keys).await.unwrap_or_else(|error| {
                tracing::debug!(error = %CauseChain(&error), "revisions of tasks that others may have changed could not be read");
                keys.iter().map(|key| seen.0.get(key).map(|row| row.revision)).collect()
            });
            for (key, revision) in keys.iter().zip(revisions) {
                let row = revision.map(|revision| SeenRow { revision, has_runner: self.live.has(key) });
                match row.filter(|row| seen.0.get(key) == Some(row)) {
                    Some(unchanged) => drop(found.insert(key.clone(), unchanged)),
                    None => changed.push(key.clone()),
                }
            }
        }
        let mut looks = stream::iter(changed)
            .map(|key| async move {
                let row = self.look_elsewhere(&key, seen).await;
                (key, row)
            })
            .buffer_unordered(AT_ONCE);
        while let Some((key, row)) = looks.next().await {
            found.extend(row.map(|row| (key, row)));
        }
        SeenRevisions(found)
    }

    /// Performs the local effects of a task's state. Returns its row's revision.
    async fn look_elsewhere(&self, key: &TaskKey, seen: &SeenRevisions) -> Option<SeenRow> {
        let has_runner = self.live.has(key);
        if !has_runner && !self.watchers.has(key) {
            return None;
        }
        // Read before the load: a row that is added during the load is not found.
        let stored = self.live.stored(key);
        match self.store.load(key, self.clock.now()).await {
            Ok(Some(row)) => {
                if has_runner && row.holder.is_some_and(|holder| holder != self.store.holder()) {
                    self.fenced(key);
                }
                let read = SeenRow { revision: row.revision, has_runner };
                if seen.0.get(key) != Some(&read) {
                    self.follow_state(key, &row.task);
                }
                Some(read)
            }
            Ok(None) => {
                self.watchers.wake(key);
                // The row existed, and was removed.
                if let Some(runner) = stored {
                    runner.fence();
                }
                None
            }
            Err(error) => {
                tracing::debug!(task = %LoggedTask(key), error = %CauseChain(&error), "a task that others may have changed could not be read");
                None
            }
        }
    }
}
