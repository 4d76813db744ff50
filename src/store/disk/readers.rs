//! A pool of read-only connections to the file. Lists and single tasks have separate permits.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::{failed, schema};
use crate::store::tasks::StoreError;

/// More than small machines have cores: one may wait for the disk.
const POINTS: usize = 4;
/// Separate permits, so that lists never delay reads of single tasks.
const LISTS: usize = 2;

#[derive(Debug)]
pub(super) struct ReaderPool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    points: Arc<Semaphore>,
    lists: Arc<Semaphore>,
}

impl ReaderPool {
    pub(super) fn new(path: PathBuf) -> Arc<Self> {
        let permits = |count| Arc::new(Semaphore::new(count));
        Arc::new(Self { path, idle: Mutex::default(), points: permits(POINTS), lists: permits(LISTS) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A failed connection is not used again.
    pub(super) async fn read<T, F>(self: &Arc<Self>, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        self.read_in(&self.points, read).await
    }

    pub(super) async fn list<T, F>(self: &Arc<Self>, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        self.read_in(&self.lists, read).await
    }

    async fn read_in<T, F>(self: &Arc<Self>, permits: &Arc<Semaphore>, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let permit = Arc::clone(permits).acquire_owned().await.map_err(|_| super::closed())?;
        let readers = Arc::clone(self);
        // The permit belongs to the reader: a cancelled caller does not make room for another.
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let idle = readers.idle.lock().pop();
            let conn = idle.map_or_else(|| schema::open_reader(&readers.path), Ok).map_err(failed)?;
            let found = read(&conn).map_err(failed)?;
            if !readers.points.is_closed() {
                readers.idle.lock().push(conn);
            }
            Ok(found)
        });
        reading.await.map_err(|error| StoreError::Io(io::Error::other(error)))?
    }

    /// Connections in use end with their readers.
    pub(super) fn close(&self) {
        self.points.close();
        self.lists.close();
        self.idle.lock().clear();
    }
}
