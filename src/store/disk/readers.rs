//! A pool of read-only connections to the file. Lists and single tasks have separate permits. A row whose pages are in
//! memory is read in a few microseconds, less than the switch to a blocking thread and back costs. So a read of a
//! single task runs on the thread of the request while such reads are fast: see [`DirectReads`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rusqlite::{Connection, ErrorCode};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{failed, schema};
use crate::store::tasks::StoreError;

/// More than small machines have cores: one may wait for the disk.
const POINTS: usize = 4;
/// Separate permits, so that lists never delay reads of single tasks.
const LISTS: usize = 2;

/// A slower read came from the medium, or was large.
const DIRECT_READ_MAX: Duration = Duration::from_millis(1);
/// Direct reads are paused for this many times what a slow one took, so that they hold up a thread for 1 % of the time at most.
const PAUSE_FACTOR: u32 = 100;

const ALONE_WAIT_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct ReaderPool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    points: Arc<Semaphore>,
    lists: Arc<Semaphore>,
    /// Locked by the only direct read: a disk that hangs holds up one runtime thread and at most one more task.
    direct: Mutex<DirectReads>,
    /// Shared by those that have the file open.
    in_use: RwLock<()>,
}

impl ReaderPool {
    pub(super) fn new(path: PathBuf) -> Arc<Self> {
        let permits = |count| Arc::new(Semaphore::new(count));
        let direct = Mutex::new(DirectReads::new(Handle::current().metrics().num_workers()));
        let (points, lists) = (permits(POINTS), permits(LISTS));
        Arc::new(Self { path, idle: Mutex::default(), points, lists, direct, in_use: RwLock::default() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A failed connection is not used again.
    pub(super) async fn read<T, F>(self: &Arc<Self>, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        match self.read_directly(&read) {
            Some(found) => found,
            None => self.read_in(&self.points, read).await,
        }
    }

    pub(super) async fn list<T, F>(self: &Arc<Self>, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        self.read_in(&self.lists, read).await
    }

    /// `None` if the read may not run on this thread, or would have to wait for a lock of the file.
    fn read_directly<T>(&self, read: impl Fn(&Connection) -> rusqlite::Result<T>) -> Option<Result<T, StoreError>> {
        let mut direct = self.direct.try_lock()?;
        let begun = Instant::now();
        if !direct.may_begin(begun) {
            return None;
        }
        let _reads = self.in_use.try_read()?;
        let conn = self.idle.lock().pop()?;
        let found = without_waiting(&conn, read);
        direct.ended(begun, Instant::now());
        drop(direct);
        match found {
            Ok(found) => {
                self.give_back(conn);
                Some(Ok(found))
            }
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => None,
            Err(error) => Some(Err(failed(error))),
        }
    }

    async fn read_in<T, F>(self: &Arc<Self>, permits: &Arc<Semaphore>, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let permit = Arc::clone(permits).acquire_owned().await.map_err(|_| StoreError::closed())?;
        let readers = Arc::clone(self);
        // The permit belongs to the reader: a cancelled caller does not make room for another.
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let _reads = readers.begin();
            let idle = readers.idle.lock().pop();
            let conn = idle.map_or_else(|| schema::open_reader(&readers.path), Ok).map_err(failed)?;
            let found = read(&conn).map_err(failed)?;
            readers.give_back(conn);
            Ok(found)
        });
        reading.await.map_err(|error| StoreError::Io(io::Error::other(error)))?
    }

    fn give_back(&self, conn: Connection) {
        if !self.points.is_closed() {
            self.idle.lock().push(conn);
        }
    }

    /// For a reader with its own connection.
    pub(super) fn begin(&self) -> RwLockReadGuard<'_, ()> {
        self.in_use.read()
    }

    pub(super) fn have_it_open(&self) -> bool {
        !self.idle.lock().is_empty() || self.in_use.is_locked()
    }

    /// Runs `act` while no reader has the file open; `None` if one still reads.
    pub(super) fn without_readers<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let _alone = self.in_use.try_write_for(ALONE_WAIT_MAX)?;
        self.idle.lock().clear();
        Some(act())
    }

    /// Connections in use end with their readers.
    pub(super) fn close(&self) {
        self.points.close();
        self.lists.close();
        self.idle.lock().clear();
    }
}

fn without_waiting<T>(conn: &Connection, read: impl Fn(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    conn.busy_timeout(Duration::ZERO)?;
    let found = read(conn)?;
    conn.busy_timeout(schema::BUSY_MAX)?;
    Ok(found)
}

/// Whether the next read of a single task runs on the thread of its request.
#[derive(Debug)]
struct DirectReads {
    /// `false` with one worker thread: a hanging disk would stop all requests.
    are_possible: bool,
    paused_until: Option<Instant>,
}

impl DirectReads {
    const fn new(workers: usize) -> Self {
        Self { are_possible: workers > 1, paused_until: None }
    }

    fn may_begin(&self, now: Instant) -> bool {
        self.are_possible && self.paused_until.is_none_or(|until| until <= now)
    }

    fn ended(&mut self, begun: Instant, now: Instant) {
        let took = now.duration_since(begun);
        self.paused_until = (took > DIRECT_READ_MAX).then(|| now + took * PAUSE_FACTOR);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_slow_read_pauses_direct_ones_for_a_hundred_times_as_long() {
        let mut direct = DirectReads::new(2);
        let now = Instant::now();
        assert!(direct.may_begin(now));
        direct.ended(now, now + MS);
        assert!(direct.may_begin(now + MS));
        direct.ended(now, now + 3 * MS);
        assert!(!direct.may_begin(now + 302 * MS));
        assert!(direct.may_begin(now + 303 * MS));
        direct.ended(now, now + MS);
        assert!(direct.may_begin(now + MS));
        assert!(!DirectReads::new(1).may_begin(now));
    }

    fn pool(folder: &tempfile::TempDir) -> Arc<ReaderPool> {
        let path = folder.path().join("file");
        drop(Connection::open(&path).unwrap());
        ReaderPool::new(path)
    }

    async fn thread_of_read(pool: &Arc<ReaderPool>) -> thread::ThreadId {
        pool.read(|_| Ok(thread::current().id())).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_read_runs_on_its_requests_thread_while_reads_are_fast() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool(&folder);
        // The first read opens the connection.
        assert_ne!(thread_of_read(&pool).await, thread::current().id());
        pool.direct.lock().paused_until = None;
        let here = thread::current().id();
        let found = pool.read_directly(|_| Ok(thread::current().id()));
        assert!(matches!(found, Some(Ok(thread)) if thread == here));
        pool.direct.lock().paused_until = Some(Instant::now() + Duration::from_secs(600));
        assert_ne!(thread_of_read(&pool).await, thread::current().id());
        pool.direct.lock().paused_until = None;
        let direct = pool.direct.lock();
        assert!(pool.read_directly(|_| Ok(())).is_none(), "a second direct read at once");
        drop(direct);
        pool.close();
        assert!(pool.read(|_| Ok(())).await.is_err(), "a read of a closed store");
    }

    #[tokio::test]
    async fn a_runtime_with_one_thread_reads_on_others() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool(&folder);
        for _ in 0..3 {
            assert_ne!(thread_of_read(&pool).await, thread::current().id());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_whose_direct_read_failed_is_not_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool(&folder);
        pool.idle.lock().push(schema::open_reader(&pool.path).unwrap());
        let failing = pool.read_directly(|conn| conn.execute_batch("SELECT missing"));
        assert!(matches!(failing, Some(Err(_))));
        assert!(pool.idle.lock().is_empty());
    }

    /// Another connection holds the file's lock: a request's thread does not wait for it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_locked_file_is_read_on_another_thread() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool(&folder);
        let owner = Connection::open(&pool.path).unwrap();
        owner.execute_batch("CREATE TABLE t (n)").unwrap();
        let count = |conn: &Connection| conn.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0));
        pool.idle.lock().push(schema::open_reader(&pool.path).unwrap());
        owner.execute_batch("BEGIN EXCLUSIVE").unwrap();
        assert!(pool.read_directly(count).is_none());
        let ending = async { owner.execute_batch("COMMIT").unwrap() };
        let (read, ()) = tokio::join!(pool.read(count), ending);
        assert_eq!(read.unwrap(), 0);
    }
}
