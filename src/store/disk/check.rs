//! Checks the whole file for damage, in the background, starting when the store opens.
//!
//! While it reads, the log cannot restart, and a failed file cannot be reopened. So the writer interrupts it; an
//! interrupted check continues in pieces: some rows at a time, and each index alone.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, ErrorCode, InterruptHandle, OptionalExtension as _};

use super::health::StoreHealthMonitor;
use super::{DiskTuning, columns, schema};

pub(super) const LOG_BYTES_MAX: u64 = 64 << 20;

const PAUSE: Duration = Duration::from_secs(1);
/// Limits of one piece, except for its last row.
const PIECE_ROWS: i64 = 256;
const PIECE_BYTES: usize = 8 << 20;
/// Tries of one piece: an index of many millions of rows may never fit between two checks of the log.
const TRIES_MAX: usize = 20;
/// How long the writer waits for the check to stop, which takes milliseconds.
const WAY_MAX: Duration = Duration::from_secs(2);
const WAY_POLL: Duration = Duration::from_millis(2);

#[derive(Default)]
pub(super) struct FileCheck {
    state: Mutex<FileCheckState>,
    woken: Condvar,
}

#[derive(Default)]
struct FileCheckState {
    is_held: bool,
    is_over: bool,
    running: Option<InterruptHandle>,
}

debug_members!(FileCheck, |check| is_over: check.state.lock().is_over);

impl FileCheck {
    pub(super) fn pause(&self) {
        if let Some(running) = &self.state.lock().running {
            running.interrupt();
        }
    }

    pub(super) fn hold(&self) {
        self.state.lock().is_held = true;
        let mut waited = Duration::ZERO;
        // A statement that is about to start misses an earlier interrupt.
        while self.is_running() && waited < WAY_MAX {
            self.pause();
            std::thread::sleep(WAY_POLL);
            waited += WAY_POLL;
        }
    }

    pub(super) fn go_on(&self) {
        self.state.lock().is_held = false;
        self.woken.notify_all();
    }

    pub(super) fn end(&self) {
        self.state.lock().is_over = true;
        self.woken.notify_all();
        self.pause();
    }

    pub(super) fn is_running(&self) -> bool {
        self.state.lock().running.is_some()
    }

    #[cfg(test)]
    pub(super) fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    pub(super) fn run(self: &Arc<Self>, path: &Path, monitor: &StoreHealthMonitor, tuning: DiskTuning) {
        match self.all(path, tuning) {
            Ok(None) => tracing::debug!("the task store's file is whole"),
            Ok(Some(found)) => {
                tracing::error!(found, "the task store's file is damaged");
                monitor.set_damaged();
            }
            Err(error) if columns::is_corrupt(&error) => {
                tracing::error!(%error, "the task store's file is damaged");
                monitor.set_damaged();
            }
            Err(error) => {
                tracing::warn!(%error, "the task store's file was not checked to its end")
            }
        }
        self.state.lock().is_over = true;
    }

    fn all(&self, path: &Path, tuning: DiskTuning) -> rusqlite::Result<Option<String>> {
        let conn = schema::open_reader(path)?;
        let sql = tuning.check_first.unwrap_or("PRAGMA quick_check(1)");
        let whole = |conn: &Connection| conn.query_row(sql, (), |row| row.get::<_, String>(0));
        match self.once(&conn, &whole) {
            None => return Ok(None),
            Some(Err(error)) if is_interrupted(&error) => (),
            Some(found) => return found.map(|found| (found != "ok").then_some(found)),
        }
        tracing::debug!("the check of the task store's file continues in pieces");
        for table in names(&conn, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")? {
            let mut after = Some(i64::MIN);
            while let Some(last) = after {
                let Some(found) = self.patiently(&conn, &|conn| rows(conn, &table, last))? else { return Ok(None) };
                after = found;
            }
        }
        for index in names(&conn, "SELECT name FROM sqlite_schema WHERE type = 'index' ORDER BY name")? {
            if self.patiently(&conn, &|conn| entries(conn, &index))?.is_none() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Runs one piece, again after an interrupt; `None` if the check is over.
    fn patiently<T>(
        &self,
        conn: &Connection,
        piece: &dyn Fn(&Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>> {
        for _ in 1..TRIES_MAX {
            match self.once(conn, piece) {
                Some(Err(error)) if is_interrupted(&error) => self.rest(),
                done => return done.transpose(),
            }
        }
        self.once(conn, piece).transpose()
    }

    fn rest(&self) {
        let mut state = self.state.lock();
        if !state.is_over {
            self.woken.wait_for(&mut state, PAUSE);
        }
    }

    /// Runs one piece once the check is not held; `None` if it is over.
    fn once<T>(
        &self,
        conn: &Connection,
        piece: &dyn Fn(&Connection) -> rusqlite::Result<T>,
    ) -> Option<rusqlite::Result<T>> {
        let mut state = self.state.lock();
        while state.is_held && !state.is_over {
            self.woken.wait(&mut state);
        }
        if state.is_over {
            return None;
        }
        state.running = Some(conn.get_interrupt_handle());
        drop(state);
        let done = piece(conn);
        self.state.lock().running = None;
        Some(done)
    }
}

fn is_interrupted(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted)
}

fn names(conn: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    conn.prepare(sql)?.query_map((), |row| row.get(0))?.collect()
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Reads some rows of a table. Returns the position to continue from.
fn rows(conn: &Connection, table: &str, after: i64) -> rusqlite::Result<Option<i64>> {
    let table = quoted(table);
    let sql = format!("SELECT rowid, * FROM {table} WHERE rowid > ?1 ORDER BY rowid LIMIT {PIECE_ROWS}");
    let mut statement = conn.prepare_cached(&sql)?;
    let columns = statement.column_count();
    let mut found = statement.query([after])?;
    let (mut last, mut bytes) = (None, 0);
    while bytes < PIECE_BYTES
        && let Some(row) = found.next()?
    {
        last = Some(row.get(0)?);
        for column in 1..columns {
            bytes += row.get_ref(column)?.as_bytes_or_null().ok().flatten().map_or(8, <[u8]>::len);
        }
    }
    Ok(last)
}

fn entries(conn: &Connection, index: &str) -> rusqlite::Result<i64> {
    let found = conn.query_row("SELECT tbl_name, sql FROM sqlite_schema WHERE name = ?1", [index], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?))
    });
    let Some((table, sql)) = found.optional()? else { return Ok(0) };
    // A partial index only serves queries with its condition.
    let those = sql.as_deref().and_then(|sql| sql.split_once(" WHERE ")).map_or("1", |(_, those)| those);
    let (table, index) = (quoted(&table), quoted(index));
    conn.query_row(&format!("SELECT count(*) FROM {table} INDEXED BY {index} WHERE {those}"), (), |row| row.get(0))
}
