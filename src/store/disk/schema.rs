//! Defines the database file: its tables, its opening, and the detection of foreign files. Task ids are unhashed: lists
//! return them, and payloads are beside them. File modes protect both (0600 in 0700).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{DiskTuning, OpenError};
use crate::system::OwnersAlone as _;

/// "tgat", which distinguishes the file from other programs' databases.
const APPLICATION_ID: i32 = 0x7467_6174;
/// Files of other versions are refused (B172, F68). A change needs a new version, and a file in `tests/golden/store`.
pub(super) const SCHEMA: i32 = 6;

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const HEADER_LEN: usize = 100;

/// Other connections of this process hold locks only briefly.
pub(super) const BUSY_MAX: Duration = Duration::from_secs(5);
/// In pages of 4 KiB: 16 MiB of log between two checkpoints.
const CHECKPOINT_PAGES: i32 = 4_096;
/// The size to which a checkpoint truncates the log.
const LOG_BYTES_KEPT: i64 = 32 << 20;
const STATEMENTS_MAX: usize = 32;

/// A list reads no record, and a damaged record affects only its own row. `age` covers the sums at startup.
const TABLES: &str = "
    CREATE TABLE tasks (
        row INTEGER PRIMARY KEY,
        ref BLOB NOT NULL,
        owner TEXT NOT NULL,
        id BLOB NOT NULL,
        revision INTEGER NOT NULL,
        settled INTEGER NOT NULL,
        pending INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        name BLOB,
        record INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        summary BLOB NOT NULL
    ) STRICT;
    CREATE INDEX tasks_ref ON tasks (ref);
    CREATE INDEX tasks_age ON tasks (owner, created_at, id, settled, pending, expires_at, bytes);
    CREATE INDEX tasks_newest ON tasks (created_at DESC, ref);
    CREATE INDEX tasks_gone ON tasks (expires_at) WHERE settled = 1;
    CREATE INDEX tasks_name ON tasks (owner, name) WHERE name IS NOT NULL;
    CREATE INDEX tasks_updated ON tasks (owner, updated_at, id);
    CREATE TABLE records (row INTEGER PRIMARY KEY, record BLOB NOT NULL) STRICT;
    CREATE TABLE marks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
    INSERT INTO marks VALUES ('seen', 0), ('probe', 0);
";

pub(super) fn file_in(folder: &Path) -> PathBuf {
    folder.join("tasks.db")
}

/// Checks the file without changing it. A missing file is no error.
pub(super) fn examine(path: &Path) -> Result<(), OpenError> {
    let io = |source| OpenError::Folder { path: path.to_owned(), source };
    let mut head = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(HEADER_LEN as u64).read_to_end(&mut head).map_err(io)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error)),
    };
    // The file is still empty, or the journal next to it is about to roll it back.
    if head.is_empty() || path.with_extension("db-journal").exists() {
        return Ok(());
    }
    if head.len() < HEADER_LEN || !head.starts_with(MAGIC) {
        return Err(OpenError::NotADatabase { path: path.to_owned() });
    }
    let number = |at: usize| head.get(at..at + 4).and_then(|n| n.try_into().ok()).map_or(0, i32::from_be_bytes);
    let (schema, application) = (number(60), number(68));
    judge(path, application, schema)
}

fn judge(path: &Path, application: i32, schema: i32) -> Result<(), OpenError> {
    let path = path.to_owned();
    match (application, schema) {
        (0, 0) => Ok(()),
        (APPLICATION_ID, found) if found > SCHEMA => Err(OpenError::Newer { path, found, known: SCHEMA }),
        (APPLICATION_ID, found) if found < SCHEMA => Err(OpenError::Older { path, found, known: SCHEMA }),
        (APPLICATION_ID, _) => Ok(()),
        _ => Err(OpenError::Foreign { path }),
    }
}

/// Never creates the file: a missing one took its tasks along. Reads by the connection alone (see [`super::examine`]).
pub(super) fn reopen(path: &Path, tuning: DiskTuning) -> Result<Connection, OpenError> {
    let gone = |source| OpenError::Folder { path: path.to_owned(), source };
    fs::metadata(path).map_err(gone)?;
    open_database(path, tuning).map_err(|error| open_error(path, error))?
}

pub(super) fn open(path: &Path, tuning: DiskTuning) -> Result<Connection, OpenError> {
    examine(path)?;
    // SQLite gives the files next to it the same mode.
    let made = OpenOptions::new().append(true).create(true).owners_alone().open(path);
    made.map_err(|source| OpenError::Folder { path: path.to_owned(), source })?;
    reopen(path, tuning)
}

pub(super) fn open_error(path: &Path, error: rusqlite::Error) -> OpenError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            OpenError::Corrupt { path, what: error.to_string() }
        }
        _ => OpenError::Failed { path, what: error.to_string() },
    }
}

fn numbers(conn: &Connection) -> rusqlite::Result<(i32, i32)> {
    let number = |name| conn.pragma_query_value(None, name, |row| row.get(0));
    Ok((number("application_id")?, number("user_version")?))
}

fn open_database(path: &Path, tuning: DiskTuning) -> rusqlite::Result<Result<Connection, OpenError>> {
    let conn = bare(path)?;
    // Closing the last connection would checkpoint the log, even of a refused file.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let (application, schema) = numbers(&conn)?;
    let tables: i64 = conn.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
    if application == 0 && tables > 0 {
        return Ok(Err(OpenError::Foreign { path: path.to_owned() }));
    }
    if let Err(refused) = judge(path, application, schema) {
        return Ok(Err(refused));
    }
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
    if application == 0 {
        // One transaction, before there is a log: a crash leaves all of it or nothing.
        conn.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        let version = format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA};");
        conn.execute_batch(&format!("BEGIN IMMEDIATE; {TABLES} {version} COMMIT;"))?;
    }
    tune(&conn, tuning)?;
    // A log left by an earlier process, possibly written only in part, is checkpointed before further writes.
    checkpoint(&conn)?;
    Ok(Ok(conn))
}

pub(super) fn checkpoint(conn: &Connection) -> rusqlite::Result<()> {
    let busy: bool = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get(0))?;
    if busy {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
        return Err(rusqlite::Error::SqliteFailure(code, Some("readers hold up the checkpoint".to_owned())));
    }
    Ok(())
}

/// Does not wait for readers; returns whether it succeeded.
pub(super) fn checkpoint_now(conn: &Connection) -> rusqlite::Result<bool> {
    conn.busy_timeout(Duration::ZERO)?;
    let done = checkpoint(conn);
    conn.busy_timeout(BUSY_MAX)?;
    match done {
        Ok(()) => Ok(true),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let conn = bare(path)?;
    // Keeps the inner pages of the trees of a million tasks: else each read of a task fetches some of them again.
    conn.pragma_update(None, "cache_size", -8_192)?;
    conn.pragma_update(None, "query_only", true)?;
    Ok(conn)
}

fn bare(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY_MAX)?;
    make_wary(&conn)?;
    Ok(conn)
}

pub(super) fn make_wary(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    conn.pragma_update(None, "trusted_schema", false)?;
    conn.pragma_update(None, "cell_size_check", true)?;
    conn.pragma_update(None, "temp_store", "MEMORY")
}

fn tune(conn: &Connection, tuning: DiskTuning) -> rusqlite::Result<()> {
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    conn.pragma_update(None, "synchronous", if tuning.syncs { "FULL" } else { "OFF" })?;
    conn.pragma_update_and_check(None, "wal_autocheckpoint", CHECKPOINT_PAGES, |_| Ok(()))?;
    conn.pragma_update_and_check(None, "journal_size_limit", LOG_BYTES_KEPT, |_| Ok(()))?;
    conn.pragma_update(None, "cache_size", -16_384)?;
    if let Some(pages) = tuning.pages_max {
        conn.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    Ok(())
}

pub(super) fn file_bytes(path: &Path) -> u64 {
    len(path) + log_bytes(path)
}

pub(super) fn log_path(path: &Path) -> PathBuf {
    path.with_extension("db-wal")
}

pub(super) fn log_bytes(path: &Path) -> u64 {
    len(&log_path(path))
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}
