//! Upgrades a file of an older schema in place, in one transaction, row by row.
//!
//! The first schema kept each record, with its outcome, in the table that lists read. Its records stay where they are, so that
//! the upgrade needs a few hundred bytes for each row instead of space for its result: the table is renamed, and a new one points
//! to the records. A record moves when its row is next written.
//!
//! The second schema had its records in the current place, and fewer columns: the values of new columns come from the summaries.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::{RECORDS, SCHEMA, TABLES, TABLES_DONE};
use crate::failpoint;
use crate::store::disk::columns::{self, ListColumns, RecordLocation, RowColumns, is_damage};
use crate::store::disk::rows::insert_row;
use crate::store::record;
use crate::task::{Digest, ShortReference, Summary, Task};

/// Disk space for upgrading one row, in the file and the log: twice the measured value.
const ROW_BYTES: u64 = 2_048;
const LEAST_BYTES: u64 = 4 << 20;

pub(super) fn room_needed(conn: &Connection) -> rusqlite::Result<u64> {
    let rows: i64 = conn.query_row("SELECT count(*) FROM tasks", (), |row| row.get(0))?;
    Ok(u64::try_from(rows).unwrap_or(0) * ROW_BYTES + LEAST_BYTES)
}

/// Upgrades a file completely or not at all, holding one record at a time. `reader` has the same file open: a transaction that
/// has met damage can no longer write, so records are read on another connection.
pub(super) fn bring_up(conn: &Connection, reader: &Connection, found: i32) -> rusqlite::Result<()> {
    failpoint::hit("upgrading");
    conn.execute_batch("BEGIN IMMEDIATE")?;
    let moved = if found == 1 { from_1(conn, reader) } else { from_2(conn) };
    let done = moved.and_then(|rows| {
        conn.execute_batch(&format!("PRAGMA user_version = {SCHEMA}"))?;
        failpoint::hit("upgrading");
        conn.execute_batch("COMMIT").map(|()| rows)
    });
    match done {
        Ok(rows) => {
            failpoint::hit("upgrading");
            tracing::info!(rows, schema = SCHEMA, "the task store's file was brought up to the schema of this version");
            Ok(())
        }
        Err(error) => {
            // SQLite may have rolled back already.
            let _ = conn.execute_batch("ROLLBACK");
            Err(error)
        }
    }
}

fn from_1(conn: &Connection, reader: &Connection) -> rusqlite::Result<usize> {
    conn.execute_batch(
        "DROP INDEX tasks_key; DROP INDEX tasks_age; DROP INDEX tasks_gone; DROP INDEX tasks_name;
         ALTER TABLE tasks RENAME TO records_1;",
    )?;
    conn.execute_batch(TABLES)?;
    conn.execute_batch(RECORDS)?;
    // Records are read separately, since an unreadable one must not end the iteration.
    let sql = "SELECT owner, id, revision, settled, untold, created_at, expires_at, bytes, name, row FROM records_1
               ORDER BY row";
    let mut statement = conn.prepare(sql)?;
    let mut rows = statement.query(())?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        let columns = columns_of(row)?;
        failpoint::hit("upgrading");
        match task_of(reader, &columns)? {
            Some(task) => {
                let summary = Summary::of(&task);
                let columns = RowColumns { lists: ListColumns::of(&summary), ..columns };
                insert_row(conn, |run| columns.bind(&summary, run))?;
            }
            // The record is lost, which readers still find out.
            None => insert_row(conn, |run| columns.bind_bytes(b"", run))?,
        }
        count += 1;
    }
    Ok(count)
}

fn columns_of(row: &Row<'_>) -> rusqlite::Result<RowColumns> {
    let outline = columns::outline(row, 3)?;
    let key = columns::key(row, 0)?;
    Ok(RowColumns {
        reference: ShortReference::of(&key),
        key,
        revision: columns::revision(row.get(2)?),
        outline,
        name: row.get::<_, Option<[u8; 32]>>(8)?.map(Digest),
        place: RecordLocation::Before(row.get(9)?),
        lists: ListColumns::unknown(&outline),
    })
}

/// The task of a row, if its record is intact and matches the columns.
fn task_of(reader: &Connection, columns: &RowColumns) -> rusqlite::Result<Option<Task>> {
    let RecordLocation::Before(row) = columns.place else { return Ok(None) };
    // This connection sees the file as it was before.
    let sql = "SELECT record FROM tasks WHERE row = ?1";
    let copied = |row: &Row<'_>| Ok(Bytes::copy_from_slice(row.get_ref(0)?.as_blob()?));
    let bytes = match reader.prepare_cached(sql)?.query_row([row], copied).optional() {
        Ok(bytes) => bytes,
        Err(error) if is_damage(&error) => None,
        Err(error) => return Err(error),
    };
    let task = bytes.and_then(|bytes| record::decode(&bytes).ok());
    Ok(task.filter(|task| task.key == columns.key && columns.outline.fits(task)))
}

fn from_2(conn: &Connection) -> rusqlite::Result<usize> {
    conn.execute_batch(
        "DROP INDEX tasks_ref; DROP INDEX tasks_age; DROP INDEX tasks_newest; DROP INDEX tasks_gone;
         DROP INDEX tasks_name; ALTER TABLE tasks RENAME TO tasks_2;",
    )?;
    conn.execute_batch(TABLES)?;
    let mut statement = conn.prepare(&format!("SELECT {}, summary FROM tasks_2 ORDER BY row", columns::COLUMNS_2))?;
    let mut rows = statement.query(())?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        failpoint::hit("upgrading");
        let (columns, summary) = RowColumns::of_row_2(row)?;
        match summary {
            Ok(summary) => insert_row(conn, |run| columns.bind(&summary, run))?,
            // Its columns are damaged, which readers still find out.
            Err(_) => insert_row(conn, |run| columns.bind_bytes(b"", run))?,
        }
        count += 1;
    }
    drop(rows);
    drop(statement);
    conn.execute_batch("DROP TABLE tasks_2")?;
    Ok(count)
}

/// Drops the rest of the first schema once it holds no record.
pub(super) fn tidy(conn: &Connection) -> rusqlite::Result<()> {
    let stands: bool = conn.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'records_1'")?.exists(())?;
    if stands && !conn.prepare("SELECT 1 FROM records_1 LIMIT 1")?.exists(())? {
        conn.execute_batch(TABLES_DONE)?;
    }
    Ok(())
}
