//! The statements that read from the file. Each row is judged on its own: an unreadable one is reported, and the others are shown.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::columns::{COLUMNS, OUTLINE, RowColumns, RowOutline, at, id, id_of, is_damage, key, number, outline, time};
use super::resident::OWN;
use crate::store::record::{self, RecordError};
use crate::store::tasks::{FilteredPage, NewestCursor, PAGE_BYTES_MAX, PageRange, PageStep, Revision, StoredTask};
use crate::task::{
    Digest, ListDirection, ListFilter, ListPosition, OrderedBy, Principal, ShortReference, Summary, Task, TaskId,
    TaskKey, Timestamp,
};

#[derive(Debug)]
pub(super) enum ReadRow {
    Whole(StoredTask),
    /// Its contents are not as written (F56).
    Damaged {
        key: TaskKey,
        revision: Revision,
        outline: RowOutline,
        error: RecordError,
    },
}

impl ReadRow {
    pub(super) fn key(&self) -> &TaskKey {
        match self {
            Self::Whole(row) => &row.task.key,
            Self::Damaged { key, .. } => key,
        }
    }
}

#[derive(Debug)]
pub(super) enum ListedRow {
    Whole(Box<Summary>),
    Unreadable(Option<TaskKey>),
}

impl ListedRow {
    /// `None` if it is unreadable.
    pub(super) fn summary(&self) -> Option<&Summary> {
        if let Self::Whole(summary) = self { Some(summary) } else { None }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Whole(summary) => summary.bytes(),
            Self::Unreadable(_) => size_of::<Summary>(),
        }
    }
}

pub(super) fn read(conn: &Connection, wanted: &TaskKey) -> rusqlite::Result<Option<ReadRow>> {
    match find(conn, wanted) {
        // Its page is unreadable. An index has enough of it to show it as failed.
        Err(error) if is_damage(&error) => {
            let outline = outline_of(conn, wanted)?.ok_or(error)?;
            let (key, revision) = (wanted.clone(), Revision(0));
            Ok(Some(ReadRow::Damaged { key, revision, outline, error: RecordError::Damaged }))
        }
        found => found,
    }
}

static FIND: LazyLock<String> = LazyLock::new(|| format!("SELECT {COLUMNS}, summary FROM tasks WHERE ref = ?1"));

fn find(conn: &Connection, wanted: &TaskKey) -> rusqlite::Result<Option<ReadRow>> {
    let mut statement = conn.prepare_cached(&FIND)?;
    let mut rows = statement.query([ShortReference::of(wanted).0])?;
    while let Some(row) = rows.next()? {
        let (columns, checked) = RowColumns::checked(row, 0)?;
        // In a row with damaged columns, only the reference identifies the task.
        let error = match checked {
            Ok(()) if columns.key != *wanted => continue,
            Ok(()) => match whole(conn, &columns) {
                Ok(task) => {
                    return Ok(Some(ReadRow::Whole(StoredTask::held_by(OWN, task.into(), columns.revision))));
                }
                Err(RowReadError::Record(error)) => error,
                Err(RowReadError::File(error)) => return Err(error),
            },
            // A row of another version is not called damaged.
            Err(error) => error,
        };
        let RowColumns { revision, outline, .. } = columns;
        return Ok(Some(ReadRow::Damaged { key: wanted.clone(), revision, outline, error }));
    }
    Ok(None)
}

enum RowReadError {
    Record(RecordError),
    File(rusqlite::Error),
}

fn whole(conn: &Connection, columns: &RowColumns) -> Result<Task, RowReadError> {
    let bytes = match record_at(conn, columns.record) {
        Ok(bytes) => bytes.ok_or(RowReadError::Record(RecordError::Damaged))?,
        Err(error) if is_damage(&error) => return Err(RowReadError::Record(RecordError::Damaged)),
        Err(error) => return Err(RowReadError::File(error)),
    };
    let task = record::decode(&bytes).map_err(RowReadError::Record)?;
    let is_named_so = task.idempotency.is_none_or(|named| columns.name == Some(named.key));
    let fits = task.key == columns.key && columns.outline.fits(&task) && is_named_so;
    if fits { Ok(task) } else { Err(RowReadError::Record(RecordError::Damaged)) }
}

fn record_at(conn: &Connection, row: i64) -> rusqlite::Result<Option<Bytes>> {
    let copied = |row: &Row<'_>| Ok(Bytes::copy_from_slice(row.get_ref(0)?.as_blob()?));
    conn.prepare_cached("SELECT record FROM records WHERE row = ?1")?.query_row([row], copied).optional()
}

/// The outline of a row from the index of ages, searched among all of the owner's rows.
fn outline_of(conn: &Connection, wanted: &TaskKey) -> rusqlite::Result<Option<RowOutline>> {
    let sql = format!("SELECT {OUTLINE} FROM tasks INDEXED BY tasks_age WHERE owner = ?1 AND id = ?2");
    let mut statement = conn.prepare_cached(&sql)?;
    statement.query_row(params![wanted.owner.as_str(), id(wanted)], |row| outline(row, 0)).optional()
}

pub(super) const PAGE: &str = "SELECT row, created_at, id FROM tasks INDEXED BY tasks_age
               WHERE owner = ?1 AND (created_at, id) > (?2, ?3) AND (settled = 0 OR expires_at > ?4)
               ORDER BY created_at, id";

pub(super) fn page(
    conn: &Connection,
    owner: &Principal,
    range: PageRange,
) -> rusqlite::Result<(Vec<ListedRow>, Option<ListPosition>)> {
    let (from, last) = range.after.map_or((-1, [0; 16]), |(time, id)| (at(time), id.bits().to_be_bytes()));
    let snapshot = conn.unchecked_transaction()?;
    let mut statement = conn.prepare_cached(PAGE)?;
    let found = statement.query_map(params![owner.as_str(), from, last, at(range.now)], |row| {
        let position = (time(row.get(1)?), id_of(row.get(2)?));
        Ok((row.get(0)?, position, Some(TaskKey { owner: owner.clone(), id: position.1 })))
    })?;
    let glimpses = glimpses(conn, found, range)?;
    drop(statement);
    snapshot.finish()?;
    Ok(glimpses)
}

pub(super) fn survey(
    conn: &Connection,
    range: PageRange<NewestCursor>,
) -> rusqlite::Result<(Vec<ListedRow>, Option<NewestCursor>)> {
    let (from, last) = range.after.map_or((i64::MAX, [0; 6]), |(time, reference)| (at(time), reference.0));
    let is_first = range.after.is_none();
    let sql = "SELECT row, created_at, ref FROM tasks INDEXED BY tasks_newest
               WHERE created_at <= ?1 AND (?3 OR created_at < ?1 OR ref > ?2) ORDER BY created_at DESC, ref";
    let snapshot = conn.unchecked_transaction()?;
    let mut statement = conn.prepare_cached(sql)?;
    let found = statement.query_map(params![from, last, is_first], |row| {
        Ok((row.get(0)?, (time(row.get(1)?), ShortReference(row.get(2)?)), None))
    })?;
    let glimpses = glimpses(conn, found, range)?;
    drop(statement);
    snapshot.finish()?;
    Ok(glimpses)
}

/// Reads rows that an index names. Returns the position to continue from.
fn glimpses<P>(
    conn: &Connection,
    found: impl Iterator<Item = rusqlite::Result<(i64, P, Option<TaskKey>)>>,
    range: PageRange<P>,
) -> rusqlite::Result<(Vec<ListedRow>, Option<P>)> {
    let (mut rows, mut last, mut bytes) = (Vec::new(), None, 0);
    for found in found {
        let (row, position, key) = found?;
        let glimpse = match glimpse(conn, row) {
            Ok(Some(ListedRow::Whole(summary))) if summary.is_gone(range.now) => continue,
            Ok(Some(glimpse)) => glimpse,
            Ok(None) => continue,
            Err(error) if is_damage(&error) => ListedRow::Unreadable(key),
            Err(error) => return Err(error),
        };
        if rows.len() >= range.limit || bytes > PAGE_BYTES_MAX {
            return Ok((rows, last));
        }
        bytes += glimpse.bytes();
        rows.push(glimpse);
        last = Some(position);
    }
    Ok((rows, None))
}

fn glimpse(conn: &Connection, row: i64) -> rusqlite::Result<Option<ListedRow>> {
    let sql = format!("SELECT {COLUMNS}, summary FROM tasks WHERE row = ?1");
    let found = conn.prepare_cached(&sql)?.query_row([row], |row| RowColumns::of_row(row, 0)).optional()?;
    Ok(found.map(|(columns, summary)| match summary {
        Ok(summary) => ListedRow::Whole(Box::new(summary)),
        Err(_) => ListedRow::Unreadable(Some(columns.key)),
    }))
}

/// `None` for a damaged row as well: the read that follows reports the damage.
pub(super) fn settled_bytes(conn: &Connection, wanted: &TaskKey) -> rusqlite::Result<Option<usize>> {
    let sql = format!("SELECT {OUTLINE} FROM tasks WHERE ref = ?1 AND owner = ?2 AND id = ?3");
    let values = params![ShortReference::of(wanted).0, wanted.owner.as_str(), id(wanted)];
    match conn.prepare_cached(&sql)?.query_row(values, |row| outline(row, 0)).optional() {
        Err(error) if is_damage(&error) => Ok(None),
        found => Ok(found?.filter(|row| row.is_settled).map(|row| row.bytes)),
    }
}

pub(super) fn referred(conn: &Connection, reference: ShortReference, limit: usize) -> rusqlite::Result<Vec<TaskKey>> {
    let sql = "SELECT owner, id FROM tasks WHERE ref = ?1 LIMIT ?2";
    conn.prepare_cached(sql)?.query_map(params![reference.0, number(limit)], |row| key(row, 0))?.collect()
}

pub(super) fn named(
    conn: &Connection,
    owner: &Principal,
    name: &Digest,
    now: Timestamp,
) -> rusqlite::Result<Option<TaskKey>> {
    let sql = "SELECT owner, id FROM tasks WHERE owner = ?1 AND name = ?2 AND (settled = 0 OR expires_at > ?3)";
    conn.prepare_cached(sql)?.query_row(params![owner.as_str(), name.0, at(now)], |row| key(row, 0)).optional()
}

/// The statement of an order, between two positions.
pub(super) fn statement(by: OrderedBy, direction: ListDirection) -> String {
    let (column, index) = match by {
        OrderedBy::Creation => ("created_at", "tasks_age"),
        OrderedBy::LastUpdate => ("updated_at", "tasks_updated"),
    };
    let order = if direction == ListDirection::NewestFirst { " DESC" } else { "" };
    format!(
        "SELECT {column}, id, row FROM tasks INDEXED BY {index} \
         WHERE owner = ?1 AND ({column}, id) >= (?2, ?3) AND ({column}, id) < (?4, ?5) \
         ORDER BY {column}{order}, id{order}"
    )
}

/// One owner's rows that fit the filter, and the position to continue from.
pub(super) fn select(
    conn: &Connection,
    owner: &Principal,
    filter: &ListFilter,
    range: PageRange,
) -> rusqlite::Result<(Vec<ListedRow>, Option<ListPosition>)> {
    let positions = filter.positions(range.after);
    let bytes = |id: TaskId| id.bits().to_be_bytes();
    let (start, end) = (positions.start, positions.end);
    let snapshot = conn.unchecked_transaction()?;
    let mut statement = conn.prepare_cached(&statement(filter.by, filter.direction))?;
    let mut found = statement.query(params![owner.as_str(), at(start.0), bytes(start.1), at(end.0), bytes(end.1)])?;
    let (mut rows, mut next) = (Vec::new(), None);
    let mut page = FilteredPage::new(filter, range);
    while let Some(row) = found.next()? {
        let position = (time(row.get(0)?), id_of(row.get(1)?));
        let key = TaskKey { owner: owner.clone(), id: position.1 };
        let Some(task) = listed(conn, row.get(2)?, Some(key))? else { continue };
        match page.step(position, task.summary()) {
            PageStep::Show => rows.push(task),
            PageStep::Skip => (),
            PageStep::End => {
                next = page.last();
                break;
            }
        }
    }
    drop(found);
    drop(statement);
    snapshot.finish()?;
    Ok((rows, next))
}

/// One owner's rows with these ids, expired ones included.
pub(super) fn with_ids(
    conn: &Connection,
    owner: &Principal,
    ids: BTreeSet<TaskId>,
) -> rusqlite::Result<Vec<ListedRow>> {
    let mut rows = Vec::new();
    let snapshot = conn.unchecked_transaction()?;
    let mut statement = conn.prepare_cached("SELECT row FROM tasks WHERE ref = ?1 AND owner = ?2 AND id = ?3")?;
    for wanted in ids {
        let key = TaskKey { owner: owner.clone(), id: wanted };
        let row = (ShortReference::of(&key).0, owner.as_str(), id(&key));
        let row: Option<i64> = statement.query_row(row, |row| row.get(0)).optional()?;
        if let Some(task) = row.map_or(Ok(None), |row| listed(conn, row, Some(key)))? {
            rows.push(task);
        }
    }
    drop(statement);
    snapshot.finish()?;
    Ok(rows)
}

fn listed(conn: &Connection, row: i64, key: Option<TaskKey>) -> rusqlite::Result<Option<ListedRow>> {
    match glimpse(conn, row) {
        Err(error) if is_damage(&error) => Ok(Some(ListedRow::Unreadable(key))),
        found => found,
    }
}
