//! Checks the whole file for damage, in the background, from the store's start. While it reads, the log cannot restart,
//! and a failed file cannot be reopened. So the writer interrupts it; an interrupted check continues in pieces: some
//! rows at a time, and each index alone. A statement asks every few steps whether it has to stop: SQLite's own interrupt
//! is lost when it comes just before the statement starts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, ErrorCode, OptionalExtension as _};

use super::health::StoreHealthMonitor;
use super::readers::ReaderPool;
use super::{DiskTuning, columns, schema};

pub(super) const LOG_BYTES_MAX: u64 = 64 << 20;

const PAUSE: Duration = Duration::from_secs(1);
const PIECE_ROWS: i64 = 256;
const PIECE_BYTES: usize = 8 << 20;
/// Tries of one piece: an index of many millions of rows may never fit between two checks of the log.
const TRIES_MAX: usize = 20;
/// How long the writer waits for the check to stop, which takes milliseconds.
const STOPPING_MAX: Duration = Duration::from_secs(2);
/// Steps of a statement, microseconds together, between two checks of whether it has to stop.
const STEPS: i32 = 1000;

#[derive(Default)]
pub(super) struct FileCheck {
    state: Mutex<FileCheckState>,
    woken: Condvar,
}

#[derive(Default)]
struct FileCheckState {
    is_held: bool,
    is_over: bool,
    is_running: bool,
    is_interrupted: bool,
    /// Whether the check must close its connection, and then start again.
    is_restart_due: bool,
}

impl FileCheckState {
    fn must_stop(&self) -> bool {
        self.is_interrupted || self.is_held || self.is_ending()
    }

    fn is_ending(&self) -> bool {
        self.is_over || self.is_restart_due
    }
}

debug_members!(FileCheck, |check| is_over: check.state.lock().is_over);

impl FileCheck {
    pub(super) fn pause(&self) {
        self.state.lock().is_interrupted = true;
    }

    pub(super) fn hold(&self) {
        let mut state = self.state.lock();
        state.is_held = true;
        self.woken.wait_while_for(&mut state, |state| state.is_running, STOPPING_MAX);
    }

    pub(super) fn go_on(&self) {
        self.state.lock().is_held = false;
        self.woken.notify_all();
    }

    pub(super) fn end(&self) {
        self.state.lock().is_over = true;
        self.woken.notify_all();
    }

    /// Makes a check that is held close its connection; it starts again once it is no longer held.
    pub(super) fn start_again(&self) {
        self.state.lock().is_restart_due = true;
        self.woken.notify_all();
    }

    fn starts_again(&self) -> bool {
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.is_restart_due) {
            return false;
        }
        self.woken.wait_while(&mut state, |state| state.is_held && !state.is_over);
        !state.is_over
    }

    #[cfg(test)]
    pub(super) fn is_running(&self) -> bool {
        self.state.lock().is_running
    }

    #[cfg(test)]
    pub(super) fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    pub(super) fn run(self: &Arc<Self>, readers: &ReaderPool, monitor: &StoreHealthMonitor, tuning: DiskTuning) {
        let checked = loop {
            let reads = readers.begin();
            let checked = self.all(readers.path(), tuning);
            drop(reads);
            if !self.starts_again() {
                break checked;
            }
        };
        match checked {
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

    fn all(self: &Arc<Self>, path: &Path, tuning: DiskTuning) -> rusqlite::Result<Option<String>> {
        let conn = self.stopping(schema::open_reader(path)?)?;
        let sql = tuning.check_first.unwrap_or("PRAGMA quick_check(1)");
        let whole = |conn: &Connection| conn.query_row(sql, (), |row| row.get::<_, String>(0));
        match self.once(&conn, &whole) {
            None => return Ok(None),
            Some(Err(error)) if is_interrupted(&error) => (),
            Some(found) => return found.map(|found| (found != "ok").then_some(found)),
        }
        tracing::debug!("the check of the task store's file continues in pieces");
        let Some(tables) = self.patiently(&conn, &|conn| names(conn, "table"))? else { return Ok(None) };
        for table in tables {
            let mut after = Some(i64::MIN);
            while let Some(last) = after {
                let Some(found) = self.patiently(&conn, &|conn| rows(conn, &table, last))? else { return Ok(None) };
                after = found;
            }
        }
        let Some(indexes) = self.patiently(&conn, &|conn| names(conn, "index"))? else { return Ok(None) };
        for index in indexes {
            if self.patiently(&conn, &|conn| entries(conn, &index))?.is_none() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Makes the connection's statements stop when the state says so.
    fn stopping(self: &Arc<Self>, mut conn: Connection) -> rusqlite::Result<Connection> {
        let check = Arc::clone(self);
        conn.progress_handler(STEPS, Some(move || check.state.lock().must_stop()))?;
        Ok(conn)
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
        if !state.is_ending() {
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
        self.woken.wait_while(&mut state, |state| state.is_held && !state.is_ending());
        if state.is_ending() {
            return None;
        }
        (state.is_running, state.is_interrupted) = (true, false);
        drop(state);
        let done = piece(conn);
        self.state.lock().is_running = false;
        self.woken.notify_all();
        Some(done)
    }
}

fn is_interrupted(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted)
}

fn names(conn: &Connection, kind: &str) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM sqlite_schema WHERE type = ?1 ORDER BY name";
    conn.prepare(sql)?.query_map([kind], |row| row.get(0))?.collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_just_before_the_statement_starts_is_not_lost() {
        let endless =
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000000) SELECT max(i) FROM n";
        for stop in [FileCheck::pause, FileCheck::end] {
            let check = Arc::new(FileCheck::default());
            let conn = check.stopping(Connection::open_in_memory().unwrap()).unwrap();
            let done = check.once(&conn, &|conn| {
                stop(&check);
                conn.query_row(endless, (), |row| row.get::<_, i64>(0))
            });
            assert!(is_interrupted(&done.unwrap().unwrap_err()));
        }
    }
}
