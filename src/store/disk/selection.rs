//! The statements of filtered lists: the owner's rows are read in the list's order, and filtered by their summaries.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::columns::{at, id, id_of, is_damage, time};
use super::reads::{ListedRow, glimpse};
use crate::store::tasks::{FilteredPage, PageStep};
use crate::task::{
    ListDirection, ListFilter, ListPosition, OrderedBy, Principal, ShortReference, TaskId, TaskKey, Timestamp,
};

/// Between two positions.
pub(super) fn statement(by: OrderedBy, direction: ListDirection) -> String {
    let (column, index) = match by {
        OrderedBy::Creation => ("created_at", "tasks_age"),
        OrderedBy::LastUpdate => ("updated_at", "tasks_updated"),
    };
    let order = match direction {
        ListDirection::OldestFirst => "",
        ListDirection::NewestFirst => " DESC",
    };
    format!(
        "SELECT {column}, id, row FROM tasks INDEXED BY {index} \
         WHERE owner = ?1 AND ({column}, id) >= (?2, ?3) AND ({column}, id) < (?4, ?5) \
         ORDER BY {column}{order}, id{order}"
    )
}

/// Also returns the position to continue from.
pub(super) fn select(
    conn: &Connection,
    owner: &Principal,
    filter: &ListFilter,
    after: Option<ListPosition>,
    limit: usize,
    now: Timestamp,
) -> rusqlite::Result<(Vec<ListedRow>, Option<ListPosition>)> {
    let positions = filter.positions(after);
    let bytes = |id: TaskId| id.bits().to_be_bytes();
    let (start, end) = (positions.start, positions.end);
    let snapshot = conn.unchecked_transaction()?;
    let mut statement = conn.prepare_cached(&statement(filter.by, filter.direction))?;
    let mut found = statement.query(params![owner.as_str(), at(start.0), bytes(start.1), at(end.0), bytes(end.1)])?;
    let (mut rows, mut next) = (Vec::new(), None);
    let mut page = FilteredPage::new(filter, after, limit, now);
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

/// Expired ones included.
pub(super) fn named(conn: &Connection, owner: &Principal, ids: BTreeSet<TaskId>) -> rusqlite::Result<Vec<ListedRow>> {
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
