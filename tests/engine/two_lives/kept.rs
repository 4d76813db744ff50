//! The store that several lives of a process use one after the other.

use std::sync::Arc;

use taskgate::store::{DiskSettings, DiskStore};
use tempfile::TempDir;

/// A disk store that stays open while the runtimes above it come and go.
pub(crate) struct Kept {
    pub(crate) store: Arc<DiskStore>,
    _folder: TempDir,
}

impl Kept {
    pub(crate) async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = DiskSettings::new(folder.path().to_owned(), 64 << 20);
        settings.is_ephemeral = true;
        Self { store: DiskStore::open(settings).await.unwrap(), _folder: folder }
    }
}
