//! Hands out what was seen of all lives. Whoever looks gets the view itself and holds no lock: Tokio's watch lets no reader
//! in behind a waiting writer, so a look within a look could stop both, and with them every thread.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::sync::watch::error::RecvError;

use super::PostgresStore;
use super::replica_lines::ReplicaView;
use crate::replica::OwnStanding;

/// What was seen last, for those who change it and for all who look. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct SharedReplicaView(watch::Sender<Arc<ReplicaView>>);

impl SharedReplicaView {
    pub(super) fn new(view: ReplicaView) -> Self {
        Self(watch::Sender::new(Arc::new(view)))
    }

    pub(super) fn now(&self) -> Arc<ReplicaView> {
        Arc::clone(&self.0.borrow())
    }

    pub(super) fn watch(&self) -> ReplicaWatch {
        ReplicaWatch(self.0.subscribe())
    }

    /// Everybody who follows is told. The change may not look itself.
    pub(super) fn change(&self, change: impl FnOnce(&mut ReplicaView)) {
        self.0.send_modify(|view| change(Arc::make_mut(view)));
    }

    /// Those who follow are told if it was another one.
    pub(super) fn set_standing(&self, standing: OwnStanding) {
        self.0.send_if_modified(|view| {
            let is_new = view.standing != standing;
            if is_new {
                Arc::make_mut(view).standing = standing;
            }
            is_new
        });
    }
}

impl PostgresStore {
    /// All lives, as they were seen last.
    #[must_use]
    pub fn replicas(&self) -> Arc<ReplicaView> {
        self.view.now()
    }

    /// Follows the same.
    #[must_use]
    pub fn watch_replicas(&self) -> ReplicaWatch {
        self.view.watch()
    }
}

/// Follows what is seen of all lives.
#[derive(Debug)]
pub struct ReplicaWatch(watch::Receiver<Arc<ReplicaView>>);

impl ReplicaWatch {
    /// What was seen last, and marks it as known.
    pub fn newest(&mut self) -> Arc<ReplicaView> {
        Arc::clone(&self.0.borrow_and_update())
    }

    /// Waits until there is something that [`ReplicaWatch::newest`] has not shown. Drop it at any time.
    ///
    /// # Errors
    /// If the store is gone.
    pub async fn changed(&mut self) -> Result<(), RecvError> {
        self.0.changed().await
    }
}
