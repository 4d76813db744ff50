//! The writer's statements.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use bytes::Bytes;
use parking_lot::Mutex;
use rusqlite::blob::ZeroBlob;
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, params};

use super::columns::{COLUMNS, MOVING, RowColumns, at, id, is_damage, number, time};
use crate::store::record;
use crate::store::tasks::Revision;
use crate::task::{Digest, Principal, ShortReference, Summary, Task, TaskKey, Timestamp};

#[derive(Clone, Debug)]
pub(super) struct FoundRow {
    pub(super) row: i64,
    pub(super) columns: RowColumns,
    /// Whether its columns are as written.
    pub(super) is_sound: bool,
}

impl FoundRow {
    /// The number of its record. Damaged columns may name another row's.
    pub(super) fn record(&self) -> Option<i64> {
        self.is_sound.then_some(self.columns.record)
    }
}

/// Statements of one transaction. The connection's cache hashes a statement's text twice for each use.
pub(super) struct RowStatements<'c> {
    pub(super) conn: &'c Connection,
    prepared: Vec<(&'static str, CachedStatement<'c>)>,
}

impl<'c> RowStatements<'c> {
    pub(super) const fn new(conn: &'c Connection) -> Self {
        Self { conn, prepared: Vec::new() }
    }

    fn get(&mut self, sql: &'static str) -> rusqlite::Result<&mut CachedStatement<'c>> {
        let at = self.prepared.iter().position(|(known, _)| *known == sql).unwrap_or(self.prepared.len());
        if at == self.prepared.len() {
            self.prepared.push((sql, self.conn.prepare_cached(sql)?));
        }
        Ok(&mut self.prepared[at].1)
    }
}

static FIND: LazyLock<String> =
    LazyLock::new(|| format!("SELECT row, {COLUMNS}, summary FROM tasks WHERE ref = ?1 AND owner = ?2 AND id = ?3"));

pub(super) fn find(statements: &mut RowStatements<'_>, key: &TaskKey) -> rusqlite::Result<Option<FoundRow>> {
    statements
        .get(&FIND)?
        .query_row(params![ShortReference::of(key).0, key.owner.as_str(), id(key)], |row| {
            let (columns, checked) = RowColumns::checked(row, 1)?;
            Ok(FoundRow { row: row.get(0)?, columns, is_sound: checked.is_ok() })
        })
        .optional()
}

/// Whether an unexpired task of the owner has this idempotency key.
pub(super) fn is_named(conn: &Connection, owner: &Principal, key: &Digest, now: Timestamp) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT 1 FROM tasks WHERE owner = ?1 AND name = ?2 AND (settled = 0 OR expires_at > ?3)")?
        .exists(params![owner.as_str(), key.0, at(now)])
}

/// A transaction that meets damage can no longer write, so known damage is avoided from then on.
#[derive(Debug, Default)]
pub(super) struct UnfreeableRows {
    pub(super) rows: BTreeSet<i64>,
    pub(super) records: BTreeSet<i64>,
}

impl UnfreeableRows {
    pub(super) fn len(&self) -> usize {
        self.rows.len() + self.records.len()
    }
}

const VALUES: &str = "?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13";

static INSERT: LazyLock<String> = LazyLock::new(|| format!("INSERT INTO tasks ({COLUMNS}, summary) VALUES ({VALUES})"));
static UPDATE: LazyLock<String> = LazyLock::new(|| update_of(COLUMNS, VALUES));
static UPDATE_MOVING: LazyLock<String> = LazyLock::new(|| update_of(MOVING.0, MOVING.1));

fn update_of(columns: &str, values: &str) -> String {
    format!("UPDATE tasks SET ({columns}, summary) = ({values}) WHERE row = ?14")
}

/// A larger record is written over zeros, which take no memory: as a value of a statement, SQLite would copy it twice.
const VALUE_BYTES_MAX: usize = 1 << 20;

/// Replaces the record `row`, or inserts one if there is none; returns its number.
fn put_record(statements: &mut RowStatements<'_>, row: Option<i64>, task: &Task) -> rusqlite::Result<i64> {
    let conn = statements.conn;
    let statement = statements.get(match row {
        Some(_) => "UPDATE records SET record = ?2 WHERE row = ?1",
        None => "INSERT INTO records (row, record) VALUES (?1, ?2)",
    })?;
    let is_value = task.stored_bytes() <= VALUE_BYTES_MAX;
    let pieces = if is_value { Vec::new() } else { record::encode_in_pieces(task, VALUE_BYTES_MAX) };
    let room = ZeroBlob(pieces.iter().map(|piece| piece.len() as u64).sum());
    let written = match is_value {
        true => statement.execute(params![row, record::encode(task)])?,
        false => statement.execute(params![row, room])?,
    };
    if written == 0 {
        return put_record(statements, None, task);
    }
    let row = row.unwrap_or_else(|| conn.last_insert_rowid());
    if is_value { Ok(row) } else { fill(conn, row, &pieces).map(|()| row) }
}

fn fill(conn: &Connection, row: i64, pieces: &[Bytes]) -> rusqlite::Result<()> {
    let mut blob = conn.blob_open("main", "records", "record", row, false)?;
    let mut at = 0;
    for piece in pieces {
        blob.write_at(piece, at)?;
        at += piece.len();
    }
    Ok(())
}

/// Deletes a record without a row. A damaged one stays, unreachable.
fn drop_record(conn: &Connection, record: i64, stuck: &Mutex<UnfreeableRows>) -> rusqlite::Result<()> {
    if stuck.lock().records.contains(&record) {
        return Ok(());
    }
    let dropped = conn.prepare_cached("DELETE FROM records WHERE row = ?1")?.execute([record]);
    if dropped.as_ref().is_err_and(is_damage) {
        stuck.lock().records.insert(record);
        tracing::warn!("the space of a damaged record cannot be freed");
    }
    dropped.map(|_| ())
}

/// Returns `false` if its key exists.
pub(super) fn insert(statements: &mut RowStatements<'_>, task: &Task) -> rusqlite::Result<bool> {
    let reference = ShortReference::of(&task.key);
    let sql = "SELECT 1 FROM tasks WHERE ref = ?1 AND owner = ?2 AND id = ?3";
    if statements.get(sql)?.exists(params![reference.0, task.key.owner.as_str(), id(&task.key)])? {
        return Ok(false);
    }
    let summary = Summary::of(task);
    let columns = RowColumns::of(task, reference, Revision::FIRST, put_record(statements, None, task)?);
    let statement = statements.get(&INSERT)?;
    columns.bind(&summary, |values| statement.execute(values)).map(|_| true)
}

/// `is_new_record` inserts another record and leaves the old one alone, which may be damaged.
pub(super) fn update(
    statements: &mut RowStatements<'_>,
    found: &FoundRow,
    to: Revision,
    task: &Task,
    is_new_record: bool,
    stuck: &Mutex<UnfreeableRows>,
) -> rusqlite::Result<()> {
    let before = found.record();
    let record = put_record(statements, before.filter(|_| !is_new_record), task)?;
    // A damaged record has no key, and its key stays taken. The key of a call that certainly did not run is released.
    let kept = found.columns.name.filter(|_| !task.certainly_did_not_run());
    let summary = Summary::of(task);
    let columns = RowColumns::of(task, found.columns.reference, to, record);
    let columns = RowColumns { name: columns.name.or(kept), ..columns };
    let sql = if found.columns.stands_with(&columns) { &UPDATE_MOVING } else { &UPDATE };
    let statement = statements.get(sql)?;
    columns.bind(&summary, |values| {
        let row: &dyn rusqlite::ToSql = &found.row;
        statement.execute([values, &[row]].concat().as_slice())
    })?;
    before.filter(|before| *before != record).map_or(Ok(()), |before| drop_record(statements.conn, before, stuck))
}

/// Empties a record that is rewritten in the same transaction.
pub(super) fn empty(conn: &Connection, record: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE records SET record = x'' WHERE row = ?1")?.execute([record]).map(drop)
}

pub(super) fn delete(conn: &Connection, found: &FoundRow, stuck: &Mutex<UnfreeableRows>) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM tasks WHERE row = ?1")?.execute([found.row])?;
    found.record().map_or(Ok(()), |record| drop_record(conn, record, stuck))
}

/// The numbers of expired rows, oldest first.
pub(super) fn gone(conn: &Connection, now: Timestamp, limit: usize) -> rusqlite::Result<Vec<i64>> {
    let sql = "SELECT row FROM tasks INDEXED BY tasks_gone WHERE settled = 1 AND expires_at <= ?1
               ORDER BY expires_at LIMIT ?2";
    conn.prepare_cached(sql)?.query_map(params![at(now), number(limit)], |row| row.get(0))?.collect()
}

pub(super) fn numbered(conn: &Connection, row: i64) -> rusqlite::Result<FoundRow> {
    let sql = format!("SELECT {COLUMNS}, summary FROM tasks WHERE row = ?1");
    conn.prepare_cached(&sql)?.query_row([row], |columns| {
        let (columns, checked) = RowColumns::checked(columns, 0)?;
        Ok(FoundRow { row, columns, is_sound: checked.is_ok() })
    })
}

pub(super) fn seen(conn: &Connection) -> rusqlite::Result<Timestamp> {
    conn.query_row("SELECT value FROM marks WHERE name = 'seen'", (), |row| row.get(0)).map(time)
}

/// The latest expiry of the rows that got it by this time.
pub(super) fn latest_expiry(conn: &Connection, until: Timestamp) -> rusqlite::Result<Timestamp> {
    let sql = "SELECT coalesce(max(expires_at), 0) FROM tasks
        WHERE CASE settled WHEN 0 THEN created_at ELSE updated_at END <= ?1";
    conn.query_row(sql, [at(until)], |row| row.get(0)).map(time)
}

pub(super) fn note_seen(conn: &Connection, seen: Timestamp) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE marks SET value = max(value, ?1) WHERE name = 'seen'")?.execute([at(seen)]).map(drop)
}

pub(super) fn probe(conn: &Connection) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE marks SET value = value + 1 WHERE name = 'probe'")?.execute(()).map(drop)
}
