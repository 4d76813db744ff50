//! Runs the list queries. None of them reads a record.

use std::ops::Range;

use tokio_postgres::Error;

use super::columns::{ListLine, at, count, holder, holder_column, id_of, key_arrays, number, state, time};
use super::readers::ReaderLink;
use super::statements;
use super::task_write::ClaimableRows;
use crate::replica::Incarnation;
use crate::store::tasks::{NewestCursor, PAGE_BYTES_MAX, PLACES_MAX, PageProgress};
use crate::task::{
    Digest, LagClass, ListDirection, ListFilter, ListPlace, OrderedBy, PhaseKind, Principal, ShortReference, TaskId,
    TaskKey, TimeRange, Timestamp,
};

/// Limits a query to the rows that start within the byte limit of a page. `wanted` selects [`super::columns::LISTED`], in that
/// order.
fn paged(wanted: &str, order: &str) -> String {
    format!(
        "SELECT * FROM (
            SELECT *, count(*) OVER () AS found,
                coalesce(sum(octet_length(summary)) OVER (ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::int8
                AS before
            FROM ({wanted}) AS wanted) AS placed
        WHERE before <= {PAGE_BYTES_MAX} ORDER BY {order}"
    )
}

/// The listed rows, and the cursor after the last one, which may be unreadable.
fn page_of<P: PartialEq>(
    rows: &[tokio_postgres::Row],
    (after, limit): (Option<P>, usize),
    place: impl Fn(Timestamp, &TaskKey) -> P,
) -> Result<(Vec<ListLine>, Option<P>), Error> {
    let found = rows.first().map_or(Ok(0), |row| row.try_get::<_, i64>("found"))?;
    let listed = rows.iter().take(limit).map(ListLine::of).collect::<Result<Vec<_>, _>>()?;
    let created = rows.iter().take(limit).next_back().map(|row| row.try_get("created")).transpose()?.map(time);
    let last = created.zip(listed.last()).map(|(created, line)| place(created, &line.key));
    // An unreadable key gives no cursor.
    let next = last.filter(|last| count(found) > listed.len() && after.as_ref() != Some(last));
    Ok((listed, next))
}

/// One owner's unexpired rows, in order of creation.
pub(super) async fn page(
    link: &mut ReaderLink,
    owner: &Principal,
    after: Option<(Timestamp, TaskId)>,
    limit: usize,
    now: Timestamp,
) -> Result<(Vec<ListLine>, Option<ListPlace>), Error> {
    let wanted = format!(
        "SELECT {} FROM tg_task WHERE owner = $1 AND (created, id) > ($2, $3) AND created >= 0
        AND (NOT settled OR expires > $4)
        ORDER BY created, id LIMIT $5",
        super::columns::LISTED
    );
    let (from, last) = after.map_or((-1, vec![]), |(time, id)| (at(time), id.bits().to_be_bytes().to_vec()));
    let (owner, now, wanted_rows) = (owner.as_str().as_bytes(), at(now), number(limit.saturating_add(1)));
    let rows = link.query(&paged(&wanted, "created, id"), &vec![&owner, &from, &last, &now, &wanted_rows]).await?;
    page_of(&rows, (after, limit), |created, key| (created, key.id))
}

/// All unexpired rows, newest first.
pub(super) async fn survey(
    link: &mut ReaderLink,
    after: Option<NewestCursor>,
    limit: usize,
    now: Timestamp,
) -> Result<(Vec<ListLine>, Option<NewestCursor>), Error> {
    let wanted = format!(
        "SELECT {}, ref FROM tg_task WHERE created <= $1 AND (created < $1 OR ref > $2) AND (NOT settled OR expires > $3)
        ORDER BY created DESC, ref LIMIT $4",
        super::columns::LISTED
    );
    let (from, last) = after.map_or((i64::MAX, vec![]), |(time, reference)| (at(time), reference.0.to_vec()));
    let (now, wanted_rows) = (at(now), number(limit.saturating_add(1)));
    let rows = link.query(&paged(&wanted, "created DESC, ref"), &vec![&from, &last, &now, &wanted_rows]).await?;
    page_of(&rows, (after, limit), |created, key| (created, ShortReference::of(key)))
}

pub(super) async fn has_claimable(link: &mut ReaderLink, rows: &ClaimableRows) -> Result<bool, Error> {
    let found = link.query(&statements::has_claimable(), &vec![&rows.upstreams, &rows.given_up]).await?;
    found.first().map_or(Ok(false), |row| row.try_get(0))
}

/// Rows by key, in the order of the keys, expired ones included.
pub(super) async fn named(link: &mut ReaderLink, keys: &[TaskKey]) -> Result<Vec<ListLine>, Error> {
    let sql = format!(
        "SELECT t.* FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS w (wanted_id, wanted_owner, ord)
        CROSS JOIN LATERAL (
            SELECT {} FROM tg_task t WHERE t.id = w.wanted_id AND t.owner = w.wanted_owner LIMIT 1) AS t
        ORDER BY w.ord",
        super::columns::LISTED
    );
    let (ids, owners) = key_arrays(keys);
    let rows = link.query(&sql, &vec![&ids, &owners]).await?;
    rows.iter().map(ListLine::of).collect()
}

/// The holders of rows, in the order of their keys; `None` for a missing row.
pub(super) async fn holders(link: &mut ReaderLink, keys: &[TaskKey]) -> Result<Vec<Option<Incarnation>>, Error> {
    let sql = "SELECT t.holder FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS w (id, owner, ord)
        LEFT JOIN LATERAL (SELECT holder FROM tg_task t WHERE t.id = w.id AND t.owner = w.owner LIMIT 1) AS t ON true
        ORDER BY w.ord";
    let (ids, owners) = key_arrays(keys);
    let rows = link.query(sql, &vec![&ids, &owners]).await?;
    rows.iter().map(|row| Ok(row.try_get::<_, Option<i64>>(0)?.map(holder))).collect()
}

/// Keys of the rows that match a condition.
async fn keys(
    link: &mut ReaderLink,
    rest: &str,
    values: &super::transaction::Parameters<'_>,
) -> Result<Vec<TaskKey>, Error> {
    let rows = link.query(&format!("SELECT id, owner FROM tg_task WHERE {rest}"), values).await?;
    rows.iter().map(|row| super::columns::key(row, 0)).collect()
}

pub(super) async fn referred(
    link: &mut ReaderLink,
    reference: ShortReference,
    limit: usize,
) -> Result<Vec<TaskKey>, Error> {
    keys(link, "ref = $1 ORDER BY created LIMIT $2", &vec![&&reference.0[..], &number(limit)]).await
}

/// The unsettled rows of one incarnation. Uses the index of holders only.
pub(super) async fn held(link: &mut ReaderLink, life: Incarnation) -> Result<Vec<TaskKey>, Error> {
    keys(link, "holder = $1 AND NOT coalesce(settled, false)", &vec![&holder_column(life)]).await
}

pub(super) async fn overdue(link: &mut ReaderLink, now: Timestamp, limit: usize) -> Result<Vec<TaskKey>, Error> {
    keys(link, "NOT settled AND expires <= $1 ORDER BY expires LIMIT $2", &vec![&at(now), &number(limit)]).await
}

pub(super) async fn idempotent(
    link: &mut ReaderLink,
    owner: &Principal,
    name: &Digest,
    now: Timestamp,
) -> Result<Option<TaskKey>, Error> {
    let rest = "owner = $1 AND idem = $2 AND (NOT settled OR expires > $3)";
    let found = keys(link, rest, &vec![&owner.as_str().as_bytes(), &&name.0[..], &at(now)]).await?;
    Ok(found.into_iter().next())
}

/// The lag of ranges of unsettled rows, which share one range for all lags.
const UNSETTLED: i16 = -1;

/// The query of an order: the first positions of all ranges. A range has one phase, and for settled rows one class of lags. No
/// index follows a task's progress: unsettled rows are sorted by it for each list.
fn selection(by: OrderedBy, direction: ListDirection) -> String {
    let order = match direction {
        ListDirection::OldestFirst => "",
        ListDirection::NewestFirst => " DESC",
    };
    let of = |column: &str, other: &str, rows: &str| {
        format!(
            "(SELECT {column} AS place, id, {other} AS other, expires, octet_length(summary) AS bytes FROM tg_task t
            WHERE t.owner = $1 AND t.scope = $2 AND t.state = r.state AND t.state >= 0 AND t.ended_lag = r.lag
                AND (t.{column}, t.id) >= (r.from_at, r.from_id) AND (t.{column}, t.id) < (r.until_at, r.until_id){rows}
            ORDER BY {column}{order}, id{order} LIMIT $10)"
        )
    };
    let found = match by {
        OrderedBy::Creation => of("created", "updated", ""),
        OrderedBy::LastUpdate => {
            let (settled, others) = (" AND t.ended >= 0 AND r.settled", " AND NOT r.settled");
            format!("{} UNION ALL {}", of("ended", "created", settled), of("updated", "created", others))
        }
    };
    format!(
        "SELECT x.place, x.id, x.other, x.expires, r.settled, x.bytes
        FROM unnest($3::int2[], $4::int2[], $5::bool[], $6::int8[], $7::bytea[], $8::int8[], $9::bytea[])
            AS r (state, lag, settled, from_at, from_id, until_at, until_id)
        CROSS JOIN LATERAL ({found}) AS x
        ORDER BY x.place{order}, x.id{order} LIMIT $10"
    )
}

/// The positions in a filter's order that rows of one phase and lag may have.
type PlaceRange = (PhaseKind, i16, Range<ListPlace>);

/// All ranges of an order that may have rows after `after`.
fn ranges(filter: &ListFilter, after: Option<ListPlace>) -> Vec<PlaceRange> {
    let classes = || LagClass::all().map(|class| (class, filter.places(class, after)));
    let some = |(_, places): &(LagClass, Range<ListPlace>)| !places.is_empty();
    let of_phase = |phase: PhaseKind| -> Vec<PlaceRange> {
        if phase.is_settled() {
            return classes().filter(some).map(|(class, places)| (phase, class.number().into(), places)).collect();
        }
        let all = classes().filter(some).map(|(_, places)| places);
        let all = all.reduce(|one, other| one.start.min(other.start)..one.end.max(other.end));
        all.map(|places| (phase, UNSETTLED, places)).into_iter().collect()
    };
    filter.phases.iter().copied().flat_map(of_phase).collect()
}

/// The index columns of a row, and the size of its summary.
struct PlaceEntry {
    place: ListPlace,
    other: Timestamp,
    expires_at: Timestamp,
    is_settled: bool,
    bytes: usize,
}

/// The first `limit` positions of one owner's tasks in a filter's order.
async fn entries(
    link: &mut ReaderLink,
    owner: &Principal,
    filter: &ListFilter,
    after: Option<ListPlace>,
    limit: usize,
) -> Result<Vec<PlaceEntry>, Error> {
    let (mut states, mut lags, mut settled) = (Vec::new(), Vec::new(), Vec::new());
    let (mut froms, mut from_ids, mut untils, mut until_ids) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (phase, lag, places) in ranges(filter, after) {
        let bytes = |id: TaskId| id.bits().to_be_bytes().to_vec();
        states.push(state(phase));
        lags.push(lag);
        settled.push(phase.is_settled());
        froms.push(at(places.start.0));
        from_ids.push(bytes(places.start.1));
        untils.push(at(places.end.0));
        until_ids.push(bytes(places.end.1));
    }
    let scope = filter.scope.map(|scope| scope.0.to_be_bytes().to_vec()).unwrap_or_default();
    let (owner, limit) = (owner.as_str().as_bytes(), number(limit));
    let values: super::transaction::Parameters<'_> =
        vec![&owner, &scope, &states, &lags, &settled, &froms, &from_ids, &untils, &until_ids, &limit];
    let rows = link.query(&selection(filter.by, filter.direction), &values).await?;
    let entry = |row: &tokio_postgres::Row| {
        Ok(PlaceEntry {
            place: (time(row.try_get(0)?), id_of(row.try_get(1)?)),
            other: time(row.try_get(2)?),
            expires_at: time(row.try_get(3)?),
            is_settled: row.try_get(4)?,
            bytes: usize::try_from(row.try_get::<_, i32>(5)?).unwrap_or(0),
        })
    };
    rows.iter().map(entry).collect()
}

/// All positions in order, if the time that is not sorted by leaves at most `limit` of them.
async fn few(
    link: &mut ReaderLink,
    owner: &Principal,
    filter: &ListFilter,
    limit: usize,
) -> Result<Option<Vec<PlaceEntry>>, Error> {
    let other = filter.by_other_time();
    let mut found = entries(link, owner, &other, None, limit + 1).await?;
    if found.len() > limit {
        return Ok(None);
    }
    found.retain(|entry| other.other().contains(entry.other));
    for entry in &mut found {
        (entry.place.0, entry.other) = (entry.other, entry.place.0);
    }
    found.sort_unstable_by(|one, other| filter.compare(&one.place, &other.place));
    Ok(Some(found))
}

/// One owner's rows with columns that fit the filter, and the position to continue from.
pub(super) async fn select(
    link: &mut ReaderLink,
    owner: &Principal,
    filter: &ListFilter,
    after: Option<ListPlace>,
    limit: usize,
    now: Timestamp,
) -> Result<(Vec<ListLine>, Option<ListPlace>), Error> {
    // Rows that fit in one page need no cursor.
    let found = match after {
        None if filter.other() != TimeRange::ALL => few(link, owner, filter, limit.min(PLACES_MAX / 2)).await?,
        _ => None,
    };
    let found = match found {
        Some(found) => found,
        None => entries(link, owner, filter, after, PLACES_MAX + 1).await?,
    };
    let (mut chosen, mut next) = (Vec::new(), None);
    let mut progress = PageProgress::new(limit);
    for entry in found {
        let is_there = !entry.is_settled || entry.expires_at > now;
        let may_fit = is_there && filter.other().contains(entry.other);
        next = progress.ends_before(entry.place, may_fit);
        if next.is_some() {
            break;
        }
        if may_fit {
            progress.holds(entry.bytes);
            chosen.push(TaskKey { owner: owner.clone(), id: entry.place.1 });
        }
    }
    Ok((named(link, &chosen).await?, next))
}
