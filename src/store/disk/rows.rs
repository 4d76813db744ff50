//! The statements: what is read from the table and written to it, on whichever connection.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::store::record::{self, RecordError};
use crate::store::tasks::{Revision, Stored};
use crate::task::{Digest, Principal, Task, TaskId, TaskKey, Timestamp};

/// What is known of a row without its record: enough for every sum and every index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outline {
    pub(super) is_settled: bool,
    /// Settled without its upstream, which is still to be told.
    pub(super) is_untold: bool,
    pub(super) created_at: Timestamp,
    pub(super) expires_at: Timestamp,
    pub(super) bytes: usize,
}

impl Outline {
    /// Times are those that a column can hold.
    pub(super) fn of(task: &Task) -> Self {
        Self {
            is_settled: task.is_settled(),
            is_untold: task.recovery.is_untold,
            created_at: time(at(task.created_at)),
            expires_at: time(at(task.expires_at())),
            bytes: task.stored_bytes(),
        }
    }
}

/// A row as a writer finds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) row: i64,
    pub(super) revision: Revision,
    pub(super) outline: Outline,
}

/// A row as a reader finds it.
#[derive(Debug)]
pub(super) enum Read {
    Whole(Stored),
    /// Its record is not what was written (F56).
    Damaged {
        key: TaskKey,
        revision: Revision,
        outline: Outline,
        error: RecordError,
    },
}

impl Read {
    pub(super) fn key(&self) -> &TaskKey {
        match self {
            Self::Whole(row) => &row.task.key,
            Self::Damaged { key, .. } => key,
        }
    }
}

pub(super) fn at(time: Timestamp) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn time(column: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(column).unwrap_or(0))
}

fn number(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn id(key: &TaskKey) -> [u8; 16] {
    key.id.bits().to_be_bytes()
}

fn revision(column: i64) -> Revision {
    Revision(u64::try_from(column).unwrap_or(0))
}

fn id_of(column: [u8; 16]) -> TaskId {
    TaskId::from_bits(u128::from_be_bytes(column))
}

/// The columns of an outline, beginning at `from`.
fn outline(row: &Row<'_>, from: usize) -> rusqlite::Result<Outline> {
    Ok(Outline {
        is_settled: row.get(from)?,
        is_untold: row.get(from + 1)?,
        created_at: time(row.get(from + 2)?),
        expires_at: time(row.get(from + 3)?),
        bytes: usize::try_from(row.get::<_, i64>(from + 4)?).unwrap_or(0),
    })
}

const OUTLINE: &str = "settled, untold, created_at, expires_at, bytes";

pub(super) fn find(conn: &Connection, key: &TaskKey) -> rusqlite::Result<Option<Found>> {
    let sql = format!("SELECT row, revision, {OUTLINE} FROM tasks WHERE owner = ?1 AND id = ?2");
    conn.prepare_cached(&sql)?
        .query_row(params![key.owner.as_str(), id(key)], |row| {
            Ok(Found { row: row.get(0)?, revision: revision(row.get(1)?), outline: outline(row, 2)? })
        })
        .optional()
}

/// Whether a task of the owner has this name and is not gone.
pub(super) fn is_named(conn: &Connection, owner: &Principal, key: &Digest, now: Timestamp) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT 1 FROM tasks WHERE owner = ?1 AND name = ?2 AND (settled = 0 OR expires_at > ?3)")?
        .exists(params![owner.as_str(), key.0, at(now)])
}

pub(super) fn insert(conn: &Connection, task: &Task) -> rusqlite::Result<()> {
    let outline = Outline::of(task);
    let name = task.idempotency.as_ref().map(|named| named.key.0);
    conn.prepare_cached(
        "INSERT INTO tasks (owner, id, revision, settled, untold, created_at, expires_at, bytes, name, record)
         VALUES (?1, ?2, 1, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![
        task.key.owner.as_str(),
        id(&task.key),
        outline.is_settled,
        outline.is_untold,
        at(outline.created_at),
        at(outline.expires_at),
        number(outline.bytes),
        name,
        record::encode(task),
    ])?;
    Ok(())
}

pub(super) fn update(conn: &Connection, row: i64, to: Revision, task: &Task) -> rusqlite::Result<()> {
    let outline = Outline::of(task);
    conn.prepare_cached(
        "UPDATE tasks SET revision = ?2, settled = ?3, untold = ?4, created_at = ?5, expires_at = ?6, bytes = ?7, record = ?8
         WHERE row = ?1",
    )?
    .execute(params![
        row,
        i64::try_from(to.0).unwrap_or(i64::MAX),
        outline.is_settled,
        outline.is_untold,
        at(outline.created_at),
        at(outline.expires_at),
        number(outline.bytes),
        record::encode(task),
    ])?;
    Ok(())
}

/// Frees a row's record, which is written anew in the same transaction.
pub(super) fn empty(conn: &Connection, row: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE tasks SET record = x'' WHERE row = ?1")?.execute([row])?;
    Ok(())
}

pub(super) fn delete(conn: &Connection, row: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM tasks WHERE row = ?1")?.execute([row])?;
    Ok(())
}

/// Settled rows past their end, the oldest first.
pub(super) fn gone(conn: &Connection, now: Timestamp, limit: usize) -> rusqlite::Result<Vec<(i64, TaskKey, Outline)>> {
    let sql = format!(
        "SELECT row, owner, id, {OUTLINE} FROM tasks WHERE settled = 1 AND expires_at <= ?1 ORDER BY expires_at LIMIT ?2"
    );
    conn.prepare_cached(&sql)?
        .query_map(params![at(now), number(limit)], |row| Ok((row.get(0)?, key(row, 1)?, outline(row, 3)?)))?
        .collect()
}

fn key(row: &Row<'_>, from: usize) -> rusqlite::Result<TaskKey> {
    Ok(TaskKey { owner: Principal::new(row.get_ref(from)?.as_str()?), id: id_of(row.get(from + 1)?) })
}

/// Every row's outline, owner by owner, from an index alone.
pub(super) fn outlines(conn: &Connection, mut each: impl FnMut(TaskKey, Outline)) -> rusqlite::Result<()> {
    let sql = format!("SELECT owner, id, {OUTLINE} FROM tasks INDEXED BY tasks_age ORDER BY owner, created_at, id");
    let mut statement = conn.prepare(&sql)?;
    let mut rows = statement.query(())?;
    let mut owner = Principal::new("");
    while let Some(row) = rows.next()? {
        let name = row.get_ref(0)?.as_str()?;
        // One text for all rows of an owner.
        if name != owner.as_str() {
            owner = Principal::new(name);
        }
        each(TaskKey { owner: owner.clone(), id: id_of(row.get(1)?) }, outline(row, 2)?);
    }
    Ok(())
}

const WHOLE: &str = "owner, id, revision, settled, untold, created_at, expires_at, bytes, record";

/// Reads a row, and holds what its columns say against what its record says.
fn whole(row: &Row<'_>) -> rusqlite::Result<Read> {
    let key = key(row, 0)?;
    let (revision, outline) = (revision(row.get(2)?), outline(row, 3)?);
    let bytes = Bytes::copy_from_slice(row.get_ref(8)?.as_blob()?);
    let error = match record::decode(&bytes) {
        // How bytes are counted may change from one version to the next.
        Ok(task) if task.key == key && (Outline { bytes: outline.bytes, ..Outline::of(&task) }) == outline => {
            return Ok(Read::Whole(Stored { task: task.into(), revision }));
        }
        Ok(_) => RecordError::Damaged,
        Err(error) => error,
    };
    Ok(Read::Damaged { key, revision, outline, error })
}

pub(super) fn read(conn: &Connection, key: &TaskKey) -> rusqlite::Result<Option<Read>> {
    let sql = format!("SELECT {WHOLE} FROM tasks WHERE owner = ?1 AND id = ?2");
    conn.prepare_cached(&sql)?.query_row(params![key.owner.as_str(), id(key)], whole).optional()
}

/// One owner's rows that are not gone, in order of creation.
pub(super) fn page(
    conn: &Connection,
    owner: &Principal,
    after: Option<(Timestamp, TaskId)>,
    limit: usize,
    now: Timestamp,
) -> rusqlite::Result<Vec<Read>> {
    let (from, last) = after.map_or((-1, [0; 16]), |(time, id)| (at(time), id.bits().to_be_bytes()));
    let sql = format!(
        "SELECT {WHOLE} FROM tasks WHERE owner = ?1 AND (created_at, id) > (?2, ?3) AND (settled = 0 OR expires_at > ?4)
         ORDER BY created_at, id LIMIT ?5"
    );
    conn.prepare_cached(&sql)?.query_map(params![owner.as_str(), from, last, at(now), number(limit)], whole)?.collect()
}

/// Rows that are not gone, whoever owns them, in the order of their keys.
pub(super) fn survey(
    conn: &Connection,
    after: Option<&TaskKey>,
    limit: usize,
    now: Timestamp,
) -> rusqlite::Result<Vec<Read>> {
    let (owner, last) = after.map_or(("", [0; 16]), |key| (key.owner.as_str(), id(key)));
    let sql = format!(
        "SELECT {WHOLE} FROM tasks WHERE (owner, id) > (?1, ?2) AND (settled = 0 OR expires_at > ?3)
         ORDER BY owner, id LIMIT ?4"
    );
    conn.prepare_cached(&sql)?.query_map(params![owner, last, at(now), number(limit)], whole)?.collect()
}

/// The owner's task of this name that is not gone.
pub(super) fn named(
    conn: &Connection,
    owner: &Principal,
    name: &Digest,
    now: Timestamp,
) -> rusqlite::Result<Option<Read>> {
    let sql = format!("SELECT {WHOLE} FROM tasks WHERE owner = ?1 AND name = ?2 AND (settled = 0 OR expires_at > ?3)");
    conn.prepare_cached(&sql)?.query_row(params![owner.as_str(), name.0, at(now)], whole).optional()
}

/// The latest time that anybody was served at.
pub(super) fn seen(conn: &Connection) -> rusqlite::Result<Timestamp> {
    conn.query_row("SELECT value FROM marks WHERE name = 'seen'", (), |row| row.get(0)).map(time)
}

pub(super) fn note_seen(conn: &Connection, seen: Timestamp) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE marks SET value = max(value, ?1) WHERE name = 'seen'")?.execute([at(seen)])?;
    Ok(())
}

/// A write of no meaning: that it succeeds is what counts.
pub(super) fn probe(conn: &Connection) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE marks SET value = value + 1 WHERE name = 'probe'")?.execute(())?;
    Ok(())
}
