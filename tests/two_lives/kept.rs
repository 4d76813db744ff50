//! The store that several lives of a process use one after the other.

use std::sync::Arc;

use taskgate::store::{DiskSettings, DiskStore};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A disk store that stays open while runtimes above it come and go.
pub(crate) struct Kept {
    pub(crate) store: Arc<DiskStore>,
    _runtime: Runtime,
    _folder: TempDir,
}

impl Kept {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = DiskSettings::new(folder.path().to_owned(), 64 << 20);
        settings.is_ephemeral = true;
        let runtime = Runtime::new().unwrap();
        let store = runtime.block_on(DiskStore::open(settings)).unwrap();
        Self { store, _runtime: runtime, _folder: folder }
    }
}
