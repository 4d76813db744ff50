//! Upgrades a file of an older schema: in its place, in one transaction, one row at a time.
//!
//! The first schema had each record, with its outcome, in the table that lists were read from. Its records stay where
//! they are, so that room is needed for a few hundred bytes of each row and not for its result: the table gets another
//! name, and a new one is made that says where each record stands. A record moves when its row is written next.
//!
//! The second schema had its records where they are now, and fewer columns: what stands in the new ones is in the
//! summaries.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::{RECORDS, SCHEMA, TABLES, TABLES_DONE};
use crate::failpoint;
use crate::store::disk::columns::{self, ListColumns, RecordLocation, RowColumns, is_damage};
use crate::store::disk::rows::insert_row;
use crate::store::record;
use crate::task::{Digest, ShortReference, Summary, Task};

/// What one row takes on the disk while it is brought up, in the file and in its log; measured, with as much again.
const ROW_BYTES: u64 = 2_048;
const LEAST_BYTES: u64 = 4 << 20;

/// Bytes of free disk that an upgrade may take.
pub(super) fn room_needed(conn: &Connection) -> rusqlite::Result<u64> {
    let rows: i64 = conn.query_row("SELECT count(*) FROM tasks", (), |row| row.get(0))?;
    Ok(u64::try_from(rows).unwrap_or(0) * ROW_BYTES + LEAST_BYTES)
}

/// Brings a file of an older schema up. All of it has happened, or nothing. Holds one record at a time. `reader` has the
/// same file open: nothing more can be written in a transaction that has met damage, so records are read elsewhere.
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
            // Where SQLite has done so itself, there is nothing left to undo.
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
    // The record, which comes last, is not read with the others: one that cannot be read must not end the walk.
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
            // It is lost, and whoever reads it is told so, as before.
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

/// The task of a row, if its record is whole and says what the columns say.
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
            // Its columns cannot be trusted, and whoever reads it is told so, as before.
            Err(_) => insert_row(conn, |run| columns.bind_bytes(b"", run))?,
        }
        count += 1;
    }
    drop(rows);
    drop(statement);
    conn.execute_batch("DROP TABLE tasks_2")?;
    Ok(count)
}

/// Gives back what is left of the first schema once no record stands there any more.
pub(super) fn tidy(conn: &Connection) -> rusqlite::Result<()> {
    let stands: bool = conn.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'records_1'")?.exists(())?;
    if stands && !conn.prepare("SELECT 1 FROM records_1 LIMIT 1")?.exists(())? {
        conn.execute_batch(TABLES_DONE)?;
    }
    Ok(())
}
