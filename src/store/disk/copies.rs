//! Checks a store's file and copies it, in a separate process (`taskgate store`). A gateway may have the file open.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::columns::key;
use super::folder;
use super::reads::{self, ReadRow};
use super::{OpenError, schema};
use crate::system::OwnersAlone as _;
use crate::task::ShortReference;

const NAMED_MAX: usize = 20;
const OTHER_FOLDER: &str = "name another folder";

#[derive(Debug, Default, PartialEq, Eq)]
pub struct CheckedStore {
    pub tasks: u64,
    pub unfinished: u64,
    pub damaged: u64,
    /// Some of the damaged rows.
    pub named: Vec<ShortReference>,
    /// The first fault that SQLite found in the file.
    pub fault: Option<String>,
}

impl CheckedStore {
    pub fn is_whole(&self) -> bool {
        self.damaged == 0 && self.fault.is_none()
    }
}

/// Reads every record and changes nothing. Fails if the file is missing, foreign or unreadable, but not if damaged.
pub fn check(folder: &Path) -> Result<CheckedStore, OpenError> {
    let path = existing_file(folder)?;
    let conn = open(&path)?;
    contents(&conn).map_err(|error| schema::open_error(&path, error))
}

/// Copies the file as of one moment, checks the copy, and copies those of the folder's files in `also` that exist.
/// Creates `to` (mode 0700), or takes a folder without a store. No existing file is written: of two copies into one
/// folder, one is refused. The store's name appears only once the copy is whole and on the disk. Fails as [`check`], or
/// if the copy cannot be written; an unfinished one is removed.
pub fn backup(folder: &Path, to: &Path, also: &[&str]) -> Result<CheckedStore, OpenError> {
    let path = existing_file(folder)?;
    let source = open(&path)?;
    folder::prepare(to)?;
    let target = schema::file_in(to);
    let unfinished = to.join("tasks.db.unfinished");
    let mut made = MadeFiles::default();
    // Before the other files are looked for: another copy may be about to make them.
    made.create(&unfinished, "another copy is made here, or was interrupted: remove the file, or name another folder")?;
    let beside = ["db-wal", "db-shm", "db-journal"].map(|ending| target.with_extension(ending));
    let others = also.iter().map(|name| to.join(name));
    let mut names = std::iter::once(target.clone()).chain(beside).chain(others);
    if let Some(taken) = names.find(|path| path.exists()) {
        return Err(OpenError::FileExists { path: taken, remedy: OTHER_FOLDER });
    }
    let found = copy_checked(&path, &source, &unfinished)?;
    also.iter().try_for_each(|name| made.copy(&folder.join(name), &to.join(name)))?;
    fs::rename(&unfinished, &target).map_err(folder_error(&target))?;
    made.0.clear();
    sync(to)?;
    Ok(found)
}

/// The files of a copy. They may hold arguments, results and a key, and are removed unless the copy is whole.
#[derive(Default)]
struct MadeFiles(Vec<PathBuf>);

impl MadeFiles {
    /// Creates a file for its owner alone; an existing one is an error with this `remedy`.
    fn create(&mut self, path: &Path, remedy: &'static str) -> Result<File, OpenError> {
        let created = File::options().write(true).create_new(true).owners_alone().open(path);
        let file = created.map_err(|error| {
            if error.kind() == io::ErrorKind::AlreadyExists {
                OpenError::FileExists { path: path.to_owned(), remedy }
            } else {
                folder_error(path)(error)
            }
        })?;
        self.0.push(path.to_owned());
        Ok(file)
    }

    /// Copies a file that may be missing.
    fn copy(&mut self, from: &Path, to: &Path) -> Result<(), OpenError> {
        let bytes = match fs::read(from) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(folder_error(from)(error)),
        };
        self.create(to, OTHER_FOLDER)?.write_all(&bytes).map_err(folder_error(to))?;
        sync(to)
    }
}

impl Drop for MadeFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            // The error that ended the copy is returned.
            let _ = fs::remove_file(path);
        }
    }
}

/// Copies the database, and reads the copy. A copy that is damaged has the damage of the source.
fn copy_checked(path: &Path, source: &Connection, to: &Path) -> Result<CheckedStore, OpenError> {
    copy(source, to).map_err(|error| {
        let at = if is_damage(&error) { path } else { to };
        schema::open_error(at, error)
    })?;
    let copied = open(to)?;
    let found = contents(&copied).map_err(|error| schema::open_error(to, error))?;
    sync(to)?;
    Ok(found)
}

fn sync(path: &Path) -> Result<(), OpenError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(folder_error(path))
}

fn folder_error(path: &Path) -> impl Fn(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Folder { path: path.clone(), source }
}

/// All pages in one step: a copy in several would begin again with each write of the gateway.
fn copy(source: &Connection, to: &Path) -> rusqlite::Result<()> {
    let mut target = Connection::open(to)?;
    let backup = Backup::new(source, &mut target)?;
    let step = backup.step(-1)?;
    if step != StepResult::Done {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
        return Err(rusqlite::Error::SqliteFailure(code, Some(format!("the copy is not whole: {step:?}"))));
    }
    drop(backup);
    // One file, without a log beside it.
    target.pragma_update(None, "journal_mode", "DELETE")
}

fn existing_file(folder: &Path) -> Result<PathBuf, OpenError> {
    folder::examine_for_reading(folder)?;
    let path = schema::file_in(folder);
    fs::metadata(&path).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            OpenError::NoStore { path: folder.to_owned() }
        } else {
            folder_error(&path)(error)
        }
    })?;
    schema::examine(&path)?;
    Ok(path)
}

/// Read-only. SQLite still has to write its shared index of the log beside the file.
fn open(path: &Path) -> Result<Connection, OpenError> {
    let opened = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(path, flags)?;
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        schema::make_wary(&conn)?;
        Ok(conn)
    };
    opened().map_err(|error| schema::open_error(path, error))
}

/// Checks each record, as far as a damaged file can be read.
fn contents(conn: &Connection) -> rusqlite::Result<CheckedStore> {
    let mut found = CheckedStore::default();
    match read_all(conn, &mut found) {
        Err(error) if is_damage(&error) => found.fault = Some(found.fault.unwrap_or_else(|| error.to_string())),
        read => read?,
    }
    Ok(found)
}

fn is_damage(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt)
}

fn read_all(conn: &Connection, found: &mut CheckedStore) -> rusqlite::Result<()> {
    let verdict: String = conn.query_row("PRAGMA integrity_check(1)", (), |row| row.get(0))?;
    found.fault = (verdict != "ok").then_some(verdict);
    let mut statement = conn.prepare("SELECT owner, id, settled FROM tasks")?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        found.tasks += 1;
        found.unfinished += u64::from(!row.get::<_, bool>(2)?);
        let wanted = key(row, 0)?;
        if !matches!(reads::read(conn, &wanted)?, Some(ReadRow::Whole(_))) {
            found.damaged += 1;
            if found.named.len() < NAMED_MAX {
                found.named.push(ShortReference::of(&wanted));
            }
        }
    }
    Ok(())
}
