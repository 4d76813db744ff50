//! Follows what other gateways write to the tasks that somebody here waits for or runs. Where nobody else has the store open
//! there is nothing to follow.
//!
//! A hint says which row to look at, and may be lost; so what is waited for and what is run is looked at each second besides.
//! What follows from a change is found in the row: whoever made it did the rest.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::Engine;
use crate::cause::CauseChain;
use crate::store::{Reach, Revision, StoreHint, StoredTask};
use crate::task::TaskKey;
use crate::task::reference::LoggedTask;

/// How often everything is looked at that somebody waits for, whatever the hints say.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Rows that are looked at together.
const AT_ONCE: usize = 64;

/// Follows what others write until told to stop; returns at once where there are no others.
pub async fn run(engine: Arc<Engine>, stop: CancellationToken) {
    if engine.store.reach() == Reach::Shared {
        stop.run_until_cancelled(follow(&engine)).await;
    }
}

async fn follow(engine: &Engine) {
    // Where hints have ended, looking is left.
    let mut hints = engine.store.changes().chain(stream::pending());
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = SeenRevisions::default();
    loop {
        tokio::select! {
            Some(hint) = hints.next() => match hint {
                StoreHint::Changed(key) => {
                    engine.look_elsewhere(&key, &seen).await;
                    continue;
                }
                StoreHint::Missed => tracing::debug!("hints of other gateways were missed"),
            },
            _ = ticks.tick() => (),
        }
        // Of what nobody waits for any more nothing is kept.
        seen = engine.look_at_all(engine.concerned(), &seen).await;
    }
}

/// The revision that each row had when all were looked at last.
#[derive(Debug, Default)]
struct SeenRevisions(HashMap<TaskKey, Revision>);

impl SeenRevisions {
    fn is_new(&self, row: &StoredTask) -> bool {
        self.0.get(&row.task.key) != Some(&row.revision)
    }
}

impl Engine {
    /// The tasks that somebody here waits for, or runs.
    fn concerned(&self) -> BTreeSet<TaskKey> {
        self.live.keys().into_iter().chain(self.watchers.keys()).collect()
    }

    async fn look_at_all(&self, keys: BTreeSet<TaskKey>, seen: &SeenRevisions) -> SeenRevisions {
        let mut looks = stream::iter(keys)
            .map(|key| async move {
                let revision = self.look_elsewhere(&key, seen).await;
                (key, revision)
            })
            .buffer_unordered(AT_ONCE);
        let mut found = HashMap::new();
        while let Some((key, revision)) = looks.next().await {
            found.extend(revision.map(|revision| (key, revision)));
        }
        SeenRevisions(found)
    }

    /// Does here what follows from how a task stands. Returns the revision of its row.
    async fn look_elsewhere(&self, key: &TaskKey, seen: &SeenRevisions) -> Option<Revision> {
        let has_runner = self.live.has(key);
        if !has_runner && !self.watchers.has(key) {
            return None;
        }
        // Asked before: a row that is added while the store looks is not found.
        let stored = self.live.stored(key);
        match self.store.load(key, self.clock.now()).await {
            Ok(Some(row)) => {
                if has_runner && row.holder.is_some_and(|holder| holder != self.store.holder()) {
                    self.fenced(key);
                }
                if seen.is_new(&row) {
                    self.follow_state(key, &row.task);
                }
                Some(row.revision)
            }
            Ok(None) => {
                self.watchers.wake(key);
                // It was there, and is gone.
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
