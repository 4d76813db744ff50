//! Makes the statements of filtered lists.
//!
//! Each wanted phase has an ordered range of an index, which holds all that decides; the ranges are merged as they are
//! read. Of the rows themselves none is read but those that are shown.

use std::collections::BTreeSet;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, params_from_iter};

use super::columns::{RowState, at, id, id_of, is_damage, time};
use super::reads::{ListedRow, ListedRows, glimpse};
use crate::store::tasks::PageProgress;
use crate::task::{
    ListDirection, ListFilter, ListPlace, OrderedBy, Principal, ShortReference, Summary, TaskId, TaskKey, Timestamp,
};

/// The statement of an order, over the ranges of so many phases.
pub(super) fn statement(by: OrderedBy, direction: ListDirection, phases: usize) -> String {
    let (column, other, index) = match by {
        OrderedBy::Creation => ("created_at", "updated_at", "tasks_state_created"),
        OrderedBy::LastUpdate => ("updated_at", "created_at", "tasks_state_updated"),
    };
    let order = match direction {
        ListDirection::OldestFirst => "",
        ListDirection::NewestFirst => " DESC",
    };
    let range = |number: usize| {
        let state = number + 6;
        format!(
            "SELECT {column} AS place, id, {other} AS other, expires_at, state, row FROM tasks INDEXED BY {index} \
             WHERE owner = ?1 AND state = ?{state} AND scope IS NULL \
             AND ({column}, id) > (?2, ?3) AND ({column}, id) < (?4, ?5)"
        )
    };
    let ranges: Vec<String> = (0..phases).map(range).collect();
    format!("{} ORDER BY place{order}, id{order}", ranges.join(" UNION ALL "))
}

/// What the statement is given: a range without its ends.
fn bounds(filter: &ListFilter, after: Option<ListPlace>) -> [Value; 4] {
    let span = filter.span();
    let mut from = (at(span.from) - 1, [0xff; 16]);
    let mut until = (at(span.until), [0; 16]);
    if let Some((time, id)) = after {
        let after = (at(time), id.bits().to_be_bytes());
        match filter.direction {
            ListDirection::OldestFirst => from = after,
            ListDirection::NewestFirst => until = after,
        }
    }
    [from.0.into(), from.1.to_vec().into(), until.0.into(), until.1.to_vec().into()]
}

/// One owner's rows that fit, as far as their columns say, and where others follow.
pub(super) fn select(
    conn: &Connection,
    owner: &Principal,
    filter: &ListFilter,
    after: Option<ListPlace>,
    limit: usize,
    now: Timestamp,
) -> rusqlite::Result<(ListedRows<ListPlace>, Option<ListPlace>)> {
    let mut values: Vec<Value> = vec![owner.as_str().to_owned().into()];
    values.extend(bounds(filter, after));
    values.extend(filter.phases.iter().map(|phase| RowState::of(*phase).column().into()));
    let snapshot = conn.unchecked_transaction()?;
    let mut statement = conn.prepare_cached(&statement(filter.by, filter.direction, filter.phases.len()))?;
    let mut found = statement.query(params_from_iter(values))?;
    let (mut page, mut next) = (ListedRows { rows: Vec::new(), has_more: false }, None);
    let mut progress = PageProgress::new(limit);
    let settled: BTreeSet<i64> = settled_states(filter);
    while let Some(row) = found.next()? {
        let place = (time(row.get(0)?), id_of(row.get(1)?));
        let (other, expires_at, state) = (time(row.get(2)?), time(row.get(3)?), row.get::<_, i64>(4)?);
        let may_fit = filter.other().contains(other) && (expires_at > now || !settled.contains(&state));
        next = progress.ends_before(place, may_fit);
        if next.is_some() {
            break;
        }
        if may_fit && let Some(task) = listed(conn, row.get(5)?, Some(TaskKey { owner: owner.clone(), id: place.1 }))? {
            progress.holds(bytes(&task));
            page.rows.push((place, task));
        }
    }
    drop(found);
    drop(statement);
    snapshot.finish()?;
    Ok((page, next))
}

fn settled_states(filter: &ListFilter) -> BTreeSet<i64> {
    let settled = filter.phases.iter().filter(|phase| phase.is_settled());
    settled.map(|phase| RowState::of(*phase).column()).collect()
}

/// One owner's rows of these ids, gone or not.
pub(super) fn named(
    conn: &Connection,
    owner: &Principal,
    ids: BTreeSet<TaskId>,
) -> rusqlite::Result<ListedRows<TaskId>> {
    let mut page = ListedRows { rows: Vec::new(), has_more: false };
    let snapshot = conn.unchecked_transaction()?;
    let mut statement = conn.prepare_cached("SELECT row FROM tasks WHERE ref = ?1 AND owner = ?2 AND id = ?3")?;
    for wanted in ids {
        let key = TaskKey { owner: owner.clone(), id: wanted };
        let row = (ShortReference::of(&key).0, owner.as_str(), id(&key));
        let row: Option<i64> = statement.query_row(row, |row| row.get(0)).optional()?;
        if let Some(task) = row.map_or(Ok(None), |row| listed(conn, row, Some(key)))? {
            page.rows.push((wanted, task));
        }
    }
    drop(statement);
    snapshot.finish()?;
    Ok(page)
}

fn listed(conn: &Connection, row: i64, key: Option<TaskKey>) -> rusqlite::Result<Option<ListedRow>> {
    match glimpse(conn, row) {
        Err(error) if is_damage(&error) => Ok(Some(ListedRow::Unreadable(key))),
        found => found,
    }
}

fn bytes(task: &ListedRow) -> usize {
    match task {
        ListedRow::Whole(summary) => summary.bytes(),
        ListedRow::Unreadable(_) => size_of::<Summary>(),
    }
}
