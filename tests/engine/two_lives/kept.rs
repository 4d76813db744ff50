//! The store that several processes use one after the other.

use std::path::Path;
use std::sync::Arc;

use taskgate::store::{DiskSettings, DiskStore};
use tempfile::TempDir;

/// A disk store in a folder that outlives the processes.
pub(crate) struct Kept {
    pub(crate) store: Arc<DiskStore>,
    folder: TempDir,
}

impl Kept {
    pub(crate) async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { store: open(folder.path()).await, folder }
    }

    /// The process that has it open has ended, and the next one opens it.
    pub(crate) async fn next_life(self) -> Self {
        let Self { store, folder } = self;
        store.close().await;
        Self { store: open(folder.path()).await, folder }
    }
}

async fn open(folder: &Path) -> Arc<DiskStore> {
    let mut settings = DiskSettings::new(folder.to_owned(), 64 << 20);
    settings.is_ephemeral = true;
    DiskStore::open(settings).await.unwrap()
}
