//! Wakes subscribers of a task after each change.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::task::TaskKey;

/// The limit of subscribers to one task (SEC-11).
pub const WAITERS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many waiters for one task")]
pub struct TooManySubscribers;

/// Subscribers by task. A task without subscribers has no entry.
#[derive(Clone, Debug, Default)]
pub struct ChangeSubscribers {
    by_task: Arc<Mutex<HashMap<TaskKey, watch::Sender<u64>>>>,
}

impl ChangeSubscribers {
    /// Subscribes to a task. Read the task after this, so that no change is missed. Fails above [`WAITERS_MAX`].
    pub fn watch(&self, key: &TaskKey) -> Result<ChangeSubscriber, TooManySubscribers> {
        self.try_watch(key, WAITERS_MAX).ok_or(TooManySubscribers)
    }

    /// Like [`ChangeSubscribers::watch`], without a limit: for a task's only parent.
    pub(super) fn watch_always(&self, key: &TaskKey) -> ChangeSubscriber {
        self.try_watch(key, usize::MAX).expect("no task has as many waiters")
    }

    fn try_watch(&self, key: &TaskKey, max: usize) -> Option<ChangeSubscriber> {
        let mut by_task = self.by_task.lock();
        let sender = by_task.entry(key.clone()).or_insert_with(|| watch::Sender::new(0));
        let has_room = sender.receiver_count() < max;
        has_room.then(|| ChangeSubscriber {
            changes: Some(sender.subscribe()),
            key: key.clone(),
            watchers: self.clone(),
        })
    }

    pub(super) fn keys(&self) -> Vec<TaskKey> {
        self.by_task.lock().keys().cloned().collect()
    }

    pub(super) fn has(&self, key: &TaskKey) -> bool {
        self.by_task.lock().contains_key(key)
    }

    pub(super) fn wake(&self, key: &TaskKey) {
        if let Some(sender) = self.by_task.lock().get(key) {
            sender.send_modify(|changes| *changes += 1);
        }
    }

    fn leave(&self, key: &TaskKey) {
        let mut by_task = self.by_task.lock();
        if by_task.get(key).is_some_and(|sender| sender.receiver_count() == 0) {
            by_task.remove(key);
        }
    }
}

#[derive(Debug)]
pub struct ChangeSubscriber {
    /// `None` only during the drop.
    changes: Option<watch::Receiver<u64>>,
    key: TaskKey,
    watchers: ChangeSubscribers,
}

impl ChangeSubscriber {
    /// Returns once the task has changed since the last call, or the subscription. Changes may be merged. Cancel safe.
    pub async fn changed(&mut self) {
        if let Some(changes) = &mut self.changes {
            // The sender lives as long as there is a receiver, so this cannot fail.
            let _ = changes.changed().await;
        }
    }
}

impl Drop for ChangeSubscriber {
    fn drop(&mut self) {
        self.changes = None;
        self.watchers.leave(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::contract::task;

    #[tokio::test(start_paused = true)]
    async fn a_change_after_the_watch_began_is_seen_without_a_waiter() {
        let watchers = ChangeSubscribers::default();
        let key = task("a", 1).key;
        let mut watcher = watchers.watch(&key).unwrap();
        watchers.wake(&key);
        watcher.changed().await;
        let quiet = tokio::time::timeout(Duration::from_secs(60), watcher.changed()).await;
        assert!(quiet.is_err(), "one change was seen twice");
    }

    #[test]
    fn waiters_are_bounded_and_leave_nothing_behind() {
        let watchers = ChangeSubscribers::default();
        let key = task("a", 1).key;
        let all: Vec<_> = (0..WAITERS_MAX).map(|_| watchers.watch(&key).unwrap()).collect();
        assert_eq!(watchers.watch(&key).unwrap_err(), TooManySubscribers);
        drop(all);
        assert!(watchers.by_task.lock().is_empty());
    }
}
