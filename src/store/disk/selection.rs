//! The statements of filtered lists.
//!
//! The matching tasks of each phase and class of lags form an ordered range of an index, which holds every criterion. The ranges
//! are read piece by piece and merged. Only shown rows are read themselves.
//!
//! If the time range that is not the sort key leaves few tasks, they are read from the other index and sorted here.

use std::collections::{BTreeSet, VecDeque};

use rusqlite::{Connection, OptionalExtension as _, params};

use super::columns::{RowState, at, id, id_of, is_damage, number, time};
use super::reads::{ListedRow, glimpse};
use crate::store::tasks::{PLACES_MAX, PageProgress};
use crate::task::{
    LagClass, ListDirection, ListFilter, ListPlace, OrderedBy, PhaseKind, Principal, ShortReference, TaskId, TaskKey,
    TimeRange, Timestamp,
};

/// The length of a range's first piece. Each further piece doubles, since there are many ranges, and most pages use few of them.
const FIRST_PIECE: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceBounds {
    /// Two times, which takes fewer steps.
    Times,
    /// A position, exclusive, and a time.
    BehindPlace,
}

/// The statement of an order, over one range.
pub(super) fn statement(by: OrderedBy, direction: ListDirection, bounds: PlaceBounds) -> String {
    let (column, other, index) = match by {
        OrderedBy::Creation => ("created_at", "updated_at", "tasks_state_created"),
        OrderedBy::LastUpdate => ("updated_at", "created_at", "tasks_state_updated"),
    };
    let order = match direction {
        ListDirection::OldestFirst => "",
        ListDirection::NewestFirst => " DESC",
    };
    let place = format!("({column}, id)");
    let (from, until) = match (bounds, direction) {
        (PlaceBounds::Times, _) => (format!("{column} >= ?5"), format!("{column} < ?7")),
        (PlaceBounds::BehindPlace, ListDirection::OldestFirst) => {
            (format!("{place} >= (?5, ?6)"), format!("{column} < ?7"))
        }
        (PlaceBounds::BehindPlace, ListDirection::NewestFirst) => {
            (format!("{column} >= ?5"), format!("{place} < (?7, ?8)"))
        }
    };
    format!(
        "SELECT {column}, id, {other}, expires_at, row FROM tasks INDEXED BY {index} \
         WHERE owner = ?1 AND scope IS ?2 AND state = ?3 AND lag = ?4 AND {from} AND {until} \
         ORDER BY {column}{order}, id{order} LIMIT ?9"
    )
}

struct IndexEntry {
    place: ListPlace,
    other: Timestamp,
    expires_at: Timestamp,
    phase: PhaseKind,
    row: i64,
}

struct WantedEntries<'a> {
    conn: &'a Connection,
    owner: &'a Principal,
    filter: &'a ListFilter,
}

type RangeKind = (PhaseKind, LagClass);

/// A range's entries that were read and not yet taken.
struct IndexRange {
    entries: VecDeque<IndexEntry>,
    /// The kind, the position and the length of the next piece; `None` at the end.
    rest: Option<(RangeKind, ListPlace, usize)>,
}

impl WantedEntries<'_> {
    fn kinds(&self) -> impl Iterator<Item = RangeKind> {
        self.filter.phases.iter().flat_map(|phase| LagClass::all().map(|class| (*phase, class)))
    }

    fn read(
        &self,
        (phase, class): RangeKind,
        after: Option<ListPlace>,
        limit: usize,
    ) -> rusqlite::Result<VecDeque<IndexEntry>> {
        let places = self.filter.places(class, after);
        if places.is_empty() {
            return Ok(VecDeque::new());
        }
        let bounds = if after.is_some() { PlaceBounds::BehindPlace } else { PlaceBounds::Times };
        let bytes = |id: TaskId| id.bits().to_be_bytes();
        let mut statement = self.conn.prepare_cached(&statement(self.filter.by, self.filter.direction, bounds))?;
        let values = params![
            self.owner.as_str(),
            self.filter.scope.map(|scope| scope.0.to_be_bytes()),
            RowState::of(phase).column(),
            class.number(),
            at(places.start.0),
            bytes(places.start.1),
            at(places.end.0),
            bytes(places.end.1),
            number(limit),
        ];
        let entry = |row: &rusqlite::Row<'_>| {
            let place = (time(row.get(0)?), id_of(row.get(1)?));
            let (other, expires_at) = (time(row.get(2)?), time(row.get(3)?));
            Ok(IndexEntry { place, other, expires_at, phase, row: row.get(4)? })
        };
        statement.query_map(values, entry)?.collect()
    }

    /// The first pieces of all ranges.
    fn ranges(&self, after: Option<ListPlace>) -> rusqlite::Result<Vec<IndexRange>> {
        let range = |kind| {
            let entries = self.read(kind, after, FIRST_PIECE)?;
            Ok(IndexRange { rest: rest(kind, &entries, FIRST_PIECE), entries })
        };
        self.kinds().map(range).collect()
    }

    /// Reads the next piece of an exhausted range.
    fn fill(&self, range: &mut IndexRange) -> rusqlite::Result<()> {
        if let Some((kind, after, limit)) = range.rest.filter(|_| range.entries.is_empty()) {
            range.entries = self.read(kind, Some(after), limit)?;
            range.rest = rest(kind, &range.entries, limit);
        }
        Ok(())
    }

    /// All entries in order, if the other time leaves at most `limit` of them.
    fn few(&self, limit: usize) -> rusqlite::Result<Option<VecDeque<IndexEntry>>> {
        let other = self.filter.by_other_time();
        let read = WantedEntries { filter: &other, ..*self };
        let mut found: Vec<IndexEntry> = Vec::new();
        for kind in self.kinds() {
            found.extend(read.read(kind, None, limit + 1 - found.len())?);
            if found.len() > limit {
                return Ok(None);
            }
        }
        found.retain(|entry| other.other().contains(entry.other));
        let turned =
            |entry: IndexEntry| IndexEntry { place: (entry.other, entry.place.1), other: entry.place.0, ..entry };
        let mut found: Vec<_> = found.into_iter().map(turned).collect();
        found.sort_unstable_by(|one, other| self.filter.compare(&one.place, &other.place));
        Ok(Some(found.into()))
    }
}

/// The next piece after a full one.
fn rest(kind: RangeKind, entries: &VecDeque<IndexEntry>, limit: usize) -> Option<(RangeKind, ListPlace, usize)> {
    let last = entries.back().filter(|_| entries.len() == limit)?;
    Some((kind, last.place, (2 * limit).min(PLACES_MAX)))
}

/// One owner's rows with columns that fit the filter, and the position to continue from.
pub(super) fn select(
    conn: &Connection,
    owner: &Principal,
    filter: &ListFilter,
    after: Option<ListPlace>,
    limit: usize,
    now: Timestamp,
) -> rusqlite::Result<(Vec<ListedRow>, Option<ListPlace>)> {
    let snapshot = conn.unchecked_transaction()?;
    let wanted = WantedEntries { conn, owner, filter };
    // Rows that fit in one page need no cursor.
    let few = match after {
        None if filter.other() != TimeRange::ALL => wanted.few(limit.min(PLACES_MAX / 2))?,
        _ => None,
    };
    let mut ranges = match few {
        Some(entries) => vec![IndexRange { entries, rest: None }],
        None => wanted.ranges(after)?,
    };
    let (mut rows, mut next) = (Vec::new(), None);
    let mut progress = PageProgress::new(limit);
    loop {
        let heads = ranges.iter().enumerate();
        let heads = heads.filter_map(|(number, range)| Some((number, range.entries.front()?.place)));
        let first = heads.min_by(|(_, one), (_, other)| filter.compare(one, other));
        let Some(range) = first.map(|(number, _)| &mut ranges[number]) else { break };
        let Some(entry) = range.entries.pop_front() else { break };
        let is_there = !entry.phase.is_settled() || entry.expires_at > now;
        let may_fit = is_there && filter.other().contains(entry.other);
        next = progress.ends_before(entry.place, may_fit);
        if next.is_some() {
            break;
        }
        let key = TaskKey { owner: owner.clone(), id: entry.place.1 };
        if may_fit && let Some(task) = listed(conn, entry.row, Some(key))? {
            progress.holds(task.bytes());
            rows.push(task);
        }
        wanted.fill(range)?;
    }
    snapshot.finish()?;
    Ok((rows, next))
}

/// One owner's rows with these ids, expired ones included.
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
