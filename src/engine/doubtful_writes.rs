//! Settles writes of which nobody knows whether they were made: a commit may be reported as failed and lie in the log
//! all the same. The effects of one that was made happen, however late that is found out.
//!
//! A doubt ends where the row shows the write, or a later one; where another write to the revision that it was made
//! upon succeeds; or where the store says how the row certainly stands. Whoever changes the task may find that out; if
//! nobody does, a task of its own asks, with pauses.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Engine;
use super::retry_delays::RetryDelays;
use crate::cause::CauseChain;
use crate::store::{Revision, StoreError, StoredTask};
use crate::task::{Effect, Task, TaskKey, Timestamp};

/// Writes in doubt that one task may have. Beyond that its runner and its waiters look for themselves.
const OF_ONE_MAX: usize = 16;

/// A write of which nobody knows whether it was made.
#[derive(Debug)]
pub(super) struct DoubtfulWrite {
    pub(super) before: Arc<Task>,
    /// The revision that it was made upon.
    pub(super) upon: Revision,
    pub(super) written: Task,
    pub(super) effects: Vec<Effect>,
}

/// Doubts by task; there are no more than unsettled tasks.
#[derive(Debug, Default)]
pub(super) struct DoubtfulWrites(Mutex<HashMap<TaskKey, TaskDoubts>>);

#[derive(Debug, Default)]
struct TaskDoubts {
    doubts: Vec<DoubtfulWrite>,
    /// Whether somebody asks until nothing is in doubt.
    is_asked: bool,
}

impl DoubtfulWrites {
    fn add(&self, key: &TaskKey, doubt: DoubtfulWrite) {
        let mut all = self.0.lock();
        let of = all.entry(key.clone()).or_default();
        if of.doubts.len() < OF_ONE_MAX {
            of.doubts.push(doubt);
        }
    }

    /// Forgets what a row that was read decides.
    fn decide(&self, key: &TaskKey, row: &StoredTask) -> DoubtDecision {
        let mut all = self.0.lock();
        let Some(of) = all.get_mut(key) else { return DoubtDecision::Nothing };
        let made = of.doubts.iter().position(|doubt| doubt.upon < row.revision && doubt.written == *row.task);
        let made = made.map(|at| Box::new(of.doubts.swap_remove(at)));
        let before = of.doubts.len();
        of.doubts.retain(|doubt| doubt.upon >= row.revision);
        let is_hidden = of.doubts.len() < before;
        if of.doubts.is_empty() && !of.is_asked {
            all.remove(key);
        }
        match made {
            Some(doubt) => DoubtDecision::Made(doubt),
            None if is_hidden => DoubtDecision::Hidden,
            None => DoubtDecision::Nothing,
        }
    }

    /// A write upon a revision succeeded, or the row certainly has it: so none that is in doubt was made upon it.
    fn none_upon(&self, key: &TaskKey, revision: Revision) {
        let mut all = self.0.lock();
        if let Some(of) = all.get_mut(key) {
            of.doubts.retain(|doubt| doubt.upon > revision);
            if of.doubts.is_empty() && !of.is_asked {
                all.remove(key);
            }
        }
    }

    /// Whether somebody has to be found who asks.
    fn wants_asking(&self, key: &TaskKey) -> bool {
        let mut all = self.0.lock();
        all.get_mut(key).is_some_and(|of| !of.doubts.is_empty() && !std::mem::replace(&mut of.is_asked, true))
    }

    /// Whether whoever asks is done.
    fn is_over(&self, key: &TaskKey) -> bool {
        let mut all = self.0.lock();
        let is_over = all.get(key).is_none_or(|of| of.doubts.is_empty());
        if is_over {
            all.remove(key);
        }
        is_over
    }

    fn forget(&self, key: &TaskKey) {
        self.0.lock().remove(key);
    }
}

enum DoubtDecision {
    Nothing,
    /// This was written after all.
    Made(Box<DoubtfulWrite>),
    /// Somebody wrote since, upon it or instead of it.
    Hidden,
}

impl Engine {
    /// Remembers a write of which nobody knows whether it was made.
    pub(super) fn doubt(&self, key: &TaskKey, doubt: DoubtfulWrite) {
        self.doubts.add(key, doubt);
    }

    /// Does what follows from writes that a row shows to have been made; whether its present state is one of them.
    fn decide(&self, key: &TaskKey, row: &StoredTask) -> bool {
        match self.doubts.decide(key, row) {
            DoubtDecision::Nothing => false,
            DoubtDecision::Made(doubt) => {
                let DoubtfulWrite { before, effects, .. } = *doubt;
                self.follow(key, &before, &row.task, effects);
                true
            }
            DoubtDecision::Hidden => {
                self.follow_state(key, &row.task);
                false
            }
        }
    }

    /// A row, and whether its present state is a write that was in doubt; what follows from such a one is done. Where
    /// `is_in_doubt`, the row is as it certainly stands, and nothing is in doubt any more.
    ///
    /// # Errors
    /// As [`crate::store::TaskStore::load`], or [`crate::store::TaskStore::settle_doubt`].
    pub(super) async fn read_decided(
        &self,
        key: &TaskKey,
        now: Timestamp,
        is_in_doubt: bool,
    ) -> Result<Option<(StoredTask, bool)>, StoreError> {
        let row = match is_in_doubt {
            true => self.store.settle_doubt(key, now).await?,
            false => self.store.load(key, now).await?,
        };
        Ok(row.map(|row| {
            let was_doubted = self.decide(key, &row);
            if is_in_doubt {
                self.decided_by(key, row.revision);
            }
            (row, was_doubted)
        }))
    }

    /// A write upon this revision succeeded, or certainly none that is in doubt did.
    pub(super) fn decided_by(&self, key: &TaskKey, upon: Revision) {
        self.doubts.none_upon(key, upon);
    }

    /// Does what can be known to be due from the state alone.
    pub(super) fn follow_state(&self, key: &TaskKey, task: &Task) {
        self.watchers.wake(key);
        if task.recovery.is_untold {
            self.live.abandon(key);
        } else if task.is_settled() {
            self.told.wake(key);
            // Its runner, if it has one still, waits for its turn, and would keep its place until then; or its life has ended.
            self.live.fence(key);
        }
        if !task.recovery.undelivered.is_empty() {
            self.live.look_again(key);
        }
    }

    /// Has what is in doubt decided, by whoever comes first; ends when the gateway does, as the next life begins with
    /// what the store has.
    pub(super) fn ask_until_decided(self: &Arc<Self>, key: &TaskKey) {
        if !self.doubts.wants_asking(key) {
            return;
        }
        let (engine, key) = (Arc::clone(self), key.clone());
        let leaving = self.leaving.clone();
        self.changes.tracker.spawn(async move {
            if leaving.run_until_cancelled(engine.ask(&key)).await.is_none() {
                engine.doubts.forget(&key);
            }
        });
    }

    async fn ask(&self, key: &TaskKey) {
        let mut pauses = RetryDelays::of_writers();
        loop {
            pauses.wait().await;
            match self.read_decided(key, self.clock.now(), true).await {
                Ok(Some(_)) if self.doubts.is_over(key) => return,
                // Another write came into doubt meanwhile.
                Ok(Some(_)) => pauses = RetryDelays::of_writers(),
                Ok(None) => {
                    self.watchers.wake(key);
                    self.doubts.forget(key);
                    return;
                }
                Err(error) => tracing::debug!(error = %CauseChain(&error), "a write is in doubt"),
            }
        }
    }
}
