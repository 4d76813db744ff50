//! Publishes the view of all replicas. Readers hold no lock: tokio's watch blocks a new reader behind a waiting writer,
//! so nested reads could deadlock every thread.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::sync::watch::error::RecvError;

use super::PostgresStore;
use super::replica_rows::ReplicaView;
use crate::replica::OwnStanding;

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

    /// Notifies the followers. `change` must not read the view itself.
    pub(super) fn change(&self, change: impl FnOnce(&mut ReplicaView)) {
        self.0.send_modify(|view| change(Arc::make_mut(view)));
    }

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
    #[must_use]
    pub fn replicas(&self) -> Arc<ReplicaView> {
        self.view.now()
    }

    #[must_use]
    pub fn watch_replicas(&self) -> ReplicaWatch {
        self.view.watch()
    }
}

#[derive(Debug)]
pub struct ReplicaWatch(watch::Receiver<Arc<ReplicaView>>);

impl ReplicaWatch {
    /// Marks it as seen.
    pub fn newest(&mut self) -> Arc<ReplicaView> {
        Arc::clone(&self.0.borrow_and_update())
    }

    /// Waits for a view that [`ReplicaWatch::newest`] has not returned. Cancel-safe. Fails if the store is gone.
    pub async fn changed(&mut self) -> Result<(), RecvError> {
        self.0.changed().await
    }
}
