//! Reads the store of a gateway that is stopped, and changes not one byte of its folder.
//!
//! SQLite writes beside a file that it only reads, for the sake of other readers. There are none, as the folder is locked: so
//! what an earlier life left in the log is found through an index in memory, and a file without a log is read as one that never
//! changes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};
use url::Url;

use super::columns::{at, id, id_of, is_damage, number, time};
use super::folder::{self, FolderLock};
use super::reads::{self, ListedRow, ReadRow, glimpse};
use super::{OpenError, closed, failed, opening, schema};
use crate::store::record::RecordError;
use crate::store::tasks::{StoreError, Usage};
use crate::task::{Principal, ShortReference, Summary, Task, TaskId, TaskKey, Timestamp, TreePlace};

/// Why there is nothing to be read. Says what would help.
#[derive(Debug, thiserror::Error)]
pub enum DiskSourceError {
    #[error("{}: a gateway has the store open; end it first", .path.display())]
    InUse { path: PathBuf },
    #[error("{}: {source}", .path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("{}: is no task store", .path.display())]
    NoStore { path: PathBuf },
    #[error("{}: was written by a newer taskgate (version {found}, this one knows {known}); take that one", .path.display())]
    Newer { path: PathBuf, found: i32, known: i32 },
    #[error(
        "{}: was written by an older taskgate (version {found}, this one reads {known}); start a gateway of this version on \
         it once, and end it", .path.display()
    )]
    Older { path: PathBuf, found: i32, known: i32 },
    #[error("{}: cannot be read: {what}", .path.display())]
    Unreadable { path: PathBuf, what: String },
}

/// A place in the order in which rows are read: right behind this one.
pub type SourcePlace = (Principal, Timestamp, TaskId);

/// A row, as far as it is known without its record.
#[derive(Clone, Debug)]
pub struct SourceRow {
    pub key: TaskKey,
    pub created_at: Timestamp,
    /// Whether it is settled and past its `ttl`.
    pub is_gone: bool,
    /// What it is in a tree of tasks; nothing where that cannot be read.
    pub tree: TreePlace,
    /// Whether it comes with its parent: that is there, is not gone, and names it.
    pub is_child: bool,
}

/// A row's task, or why there is none.
pub type SourceTask = Result<Arc<Task>, RecordError>;

/// A store that no gateway has open. Others are kept out until it is dropped.
pub struct DiskSource {
    conn: Arc<Mutex<Connection>>,
    usage: Usage,
    _lock: FolderLock,
}

impl std::fmt::Debug for DiskSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskSource").field("usage", &self.usage).finish_non_exhaustive()
    }
}

impl DiskSource {
    /// Opens the store in `folder`.
    ///
    /// # Errors
    /// See [`DiskSourceError`].
    pub async fn open(folder: PathBuf) -> Result<Self, DiskSourceError> {
        let path = folder.clone();
        let opened = tokio::task::spawn_blocking(move || open(&folder)).await;
        opened.unwrap_or_else(|error| Err(DiskSourceError::Unreadable { path, what: error.to_string() }))
    }

    /// What it holds, gone rows included.
    #[must_use]
    pub const fn usage(&self) -> Usage {
        self.usage
    }

    /// Rows by owner and time of creation, behind `after`, at most `limit`; none after the last.
    ///
    /// # Errors
    /// `Io`.
    pub async fn page(
        &self,
        after: Option<SourcePlace>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<SourceRow>, StoreError> {
        self.with(move |conn| page(conn, after.as_ref(), limit, now)).await
    }

    /// The rows that come with this one: its children that are there and not gone.
    ///
    /// # Errors
    /// `Io`.
    pub async fn children(&self, of: &SourceRow, now: Timestamp) -> Result<Vec<SourceRow>, StoreError> {
        let (TaskKey { owner, id: parent }, ids) = (of.key.clone(), Arc::clone(&of.tree.children));
        self.with(move |conn| {
            let keys = ids.iter().map(|id| TaskKey { owner: owner.clone(), id: *id });
            keys.filter_map(|key| child(conn, &key, parent, now).transpose()).collect()
        })
        .await
    }

    /// The tasks of the first of these rows: as many as have `bytes_max` bytes together, and one at least.
    ///
    /// # Errors
    /// `Io`.
    pub async fn tasks(&self, keys: Vec<TaskKey>, bytes_max: usize) -> Result<Vec<(TaskKey, SourceTask)>, StoreError> {
        self.with(move |conn| {
            let (mut read, mut bytes) = (Vec::new(), 0);
            for key in keys {
                let task = task(conn, &key)?;
                bytes += task.as_ref().map_or(0, |task| task.stored_bytes());
                read.push((key, task));
                if bytes >= bytes_max {
                    break;
                }
            }
            Ok(read)
        })
        .await
    }

    async fn with<T, F>(&self, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let conn = Arc::clone(&self.conn);
        let reading = tokio::task::spawn_blocking(move || read(&conn.lock()).map_err(failed));
        reading.await.unwrap_or_else(|_| Err(closed()))
    }
}

fn open(folder: &Path) -> Result<DiskSource, DiskSourceError> {
    let path = schema::file_in(folder);
    let wrong = |source| DiskSourceError::Folder { path: folder.to_owned(), source };
    if !fs::metadata(folder).map_err(wrong)?.is_dir() {
        return Err(wrong(io::ErrorKind::NotADirectory.into()));
    }
    let lock = folder::lock_to_read(folder).map_err(wrong)?;
    let lock = lock.ok_or_else(|| DiskSourceError::InUse { path: folder.to_owned() })?;
    if !path.exists() {
        return Err(DiskSourceError::NoStore { path });
    }
    schema::examine(&path).map_err(|error| refusal(&path, error))?;
    let unreadable =
        |error: rusqlite::Error| DiskSourceError::Unreadable { path: path.clone(), what: error.to_string() };
    let conn = open_unchanged(&path).map_err(unreadable)?;
    match schema::version(&conn).map_err(unreadable)? {
        Some(schema::SCHEMA) => (),
        Some(found) if found < schema::SCHEMA => {
            return Err(DiskSourceError::Older { path, found, known: schema::SCHEMA });
        }
        Some(found) => return Err(DiskSourceError::Newer { path, found, known: schema::SCHEMA }),
        None => return Err(DiskSourceError::NoStore { path }),
    }
    let (sums, _) = opening::totals(&conn).map_err(unreadable)?;
    Ok(DiskSource { conn: Arc::new(Mutex::new(conn)), usage: sums.all(), _lock: lock })
}

/// What a file that no store would be opened with is to whoever only reads.
fn refusal(path: &Path, error: OpenError) -> DiskSourceError {
    let path = path.to_owned();
    match error {
        OpenError::Folder { source, .. } => DiskSourceError::Folder { path, source },
        OpenError::Newer { found, known, .. } => DiskSourceError::Newer { path, found, known },
        OpenError::NotADatabase { .. } | OpenError::Foreign { .. } => DiskSourceError::NoStore { path },
        error @ (OpenError::Medium { .. }
        | OpenError::Locked { .. }
        | OpenError::Corrupt { .. }
        | OpenError::NoRoom { .. }
        | OpenError::Failed { .. }) => DiskSourceError::Unreadable { path, what: error.to_string() },
    }
}

/// Opens the file so that neither it nor anything beside it is written to. Only as long as nobody else writes it.
fn open_unchanged(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = if schema::log_bytes(path) > 0 {
        // Locks of its own would have it write into the file of the log's index, which others share.
        let conn = Connection::open_with_flags_and_vfs(path, flags, "unix-none")?;
        conn.pragma_update_and_check(None, "locking_mode", "EXCLUSIVE", |_| Ok(()))?;
        // Whoever closes last would bring the log into the file.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        conn
    } else {
        let uri = immutable(path).ok_or_else(|| rusqlite::Error::InvalidPath(path.to_owned()))?;
        Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)?
    };
    schema::make_wary(&conn)?;
    conn.pragma_update(None, "query_only", true)?;
    Ok(conn)
}

/// The URI of a file that nobody changes; `None` of a path that is not whole.
fn immutable(path: &Path) -> Option<String> {
    let mut uri = Url::from_file_path(fs::canonicalize(path).ok()?).ok()?;
    uri.set_query(Some("immutable=1"));
    Some(uri.into())
}

/// Keys come from an index, so that a row of which not even the columns can be read is named like every other.
fn page(
    conn: &Connection,
    after: Option<&SourcePlace>,
    limit: usize,
    now: Timestamp,
) -> rusqlite::Result<Vec<SourceRow>> {
    let sql = "SELECT row, owner, id, created_at, settled, expires_at FROM tasks INDEXED BY tasks_age
               WHERE (owner, created_at, id) > (?1, ?2, ?3) ORDER BY owner, created_at, id LIMIT ?4";
    let mut statement = conn.prepare_cached(sql)?;
    let (owner, from, last) = match after {
        Some((owner, created_at, id)) => (owner.as_str(), at(*created_at), id.bits().to_be_bytes()),
        None => ("", -1, [0; 16]),
    };
    let found = statement.query_map(params![owner, from, last, number(limit)], |row| {
        let key = TaskKey { owner: Principal::new(row.get_ref(1)?.as_str()?), id: id_of(row.get(2)?) };
        let (is_settled, expires_at): (bool, _) = (row.get(4)?, time(row.get(5)?));
        let is_gone = is_settled && expires_at <= now;
        Ok((
            row.get(0)?,
            SourceRow { key, created_at: time(row.get(3)?), is_gone, tree: TreePlace::default(), is_child: false },
        ))
    })?;
    let placed = |found: rusqlite::Result<(i64, SourceRow)>| {
        let (number, row) = found?;
        Ok(match sound(glimpse(conn, number))? {
            Some(summary) if !row.is_gone => {
                SourceRow { is_child: is_child(conn, &summary, now)?, tree: summary.tree, ..row }
            }
            Some(_) | None => row,
        })
    };
    found.map(placed).collect()
}

/// One owner's row of this id, if it is there to be read, is not gone, and has this parent.
fn child(conn: &Connection, key: &TaskKey, parent: TaskId, now: Timestamp) -> rusqlite::Result<Option<SourceRow>> {
    let summary =
        sound(named(conn, key))?.filter(|summary| !summary.is_gone(now) && summary.tree.parent == Some(parent));
    Ok(summary.map(|summary| SourceRow {
        key: summary.key,
        created_at: summary.created_at,
        is_gone: false,
        tree: summary.tree,
        is_child: true,
    }))
}

/// Whether a row comes with its parent.
fn is_child(conn: &Connection, summary: &Summary, now: Timestamp) -> rusqlite::Result<bool> {
    let Some(id) = summary.tree.parent else { return Ok(false) };
    let key = TaskKey { owner: summary.key.owner.clone(), id };
    let parent = sound(named(conn, &key))?.filter(|parent| !parent.is_gone(now));
    Ok(parent.is_some_and(|parent| parent.tree.children.contains(&summary.key.id)))
}

fn named(conn: &Connection, key: &TaskKey) -> rusqlite::Result<Option<ListedRow>> {
    let sql = "SELECT row FROM tasks WHERE ref = ?1 AND owner = ?2 AND id = ?3";
    let values = params![ShortReference::of(key).0, key.owner.as_str(), id(key)];
    let number = conn.prepare_cached(sql)?.query_row(values, |row| row.get(0)).optional()?;
    number.map_or(Ok(None), |number| glimpse(conn, number))
}

/// What can be read of a row; whoever reads it as a whole learns what is the matter with one that cannot.
fn sound(found: rusqlite::Result<Option<ListedRow>>) -> rusqlite::Result<Option<Summary>> {
    match found {
        Ok(Some(ListedRow::Whole(summary))) => Ok(Some(*summary)),
        Ok(Some(ListedRow::Unreadable(_)) | None) => Ok(None),
        Err(error) if is_damage(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn task(conn: &Connection, key: &TaskKey) -> rusqlite::Result<SourceTask> {
    match reads::read(conn, key) {
        Ok(Some(ReadRow::Whole(row))) => Ok(Ok(row.task)),
        Ok(Some(ReadRow::Damaged { error, .. })) => Ok(Err(error)),
        // The index has it.
        Ok(None) => Ok(Err(RecordError::Damaged)),
        Err(error) if is_damage(&error) => Ok(Err(RecordError::Damaged)),
        Err(error) => Err(error),
    }
}
