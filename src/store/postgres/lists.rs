//! Runs the list queries. None of them reads a record.

use tokio_postgres::Error;

use super::columns::{SummaryRow, at, count, holder, holder_column, key_arrays, number};
use super::readers::ReaderLink;
use super::statements;
use super::task_write::ClaimableRows;
use crate::replica::Incarnation;
use crate::store::integers::revision;
use crate::store::tasks::{FilteredPage, NewestCursor, PAGE_BYTES_MAX, PageRange, PageStep, Revision};
use crate::task::{
    Digest, ListDirection, ListFilter, ListPosition, OrderedBy, Principal, ShortReference, TaskId, TaskKey, Timestamp,
};

/// A filtered list reads about this many bytes of summaries at a time.
const FILTERED_BYTES_MAX: usize = 1 << 20;

/// Selects the rows that start within `bytes_max`, and counts them. `wanted` starts with [`super::columns::LISTED`].
fn paged(wanted: &str, order: &str, bytes_max: usize) -> String {
    format!(
        "SELECT * FROM (
            SELECT *, count(*) OVER () AS found,
                coalesce(sum(octet_length(summary)) OVER (ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::int8
                AS before
            FROM ({wanted}) AS wanted) AS summed
        WHERE before <= {bytes_max} ORDER BY {order}"
    )
}

/// The cursor is after the last row, which may be unreadable.
fn page_of<P: PartialEq>(
    rows: &[tokio_postgres::Row],
    range: PageRange<P>,
    position: impl Fn(Timestamp, &TaskKey) -> P,
) -> Result<(Vec<SummaryRow>, Option<P>), Error> {
    let found = rows.first().map_or(Ok(0), |row| row.try_get::<_, i64>("found"))?;
    let listed = rows.iter().take(range.limit).map(SummaryRow::of).collect::<Result<Vec<_>, _>>()?;
    let last = listed.last().map(|row| position(row.created_at, &row.key));
    // An unreadable key gives no cursor.
    let next = last.filter(|last| count(found) > listed.len() && range.after.as_ref() != Some(last));
    Ok((listed, next))
}

pub(super) async fn page(
    link: &mut ReaderLink,
    owner: &Principal,
    range: PageRange,
) -> Result<(Vec<SummaryRow>, Option<ListPosition>), Error> {
    let wanted = format!(
        "SELECT {} FROM tg_task WHERE owner = $1 AND (created, id) > ($2, $3) AND created >= 0
        AND (NOT settled OR expires > $4)
        ORDER BY created, id LIMIT $5",
        super::columns::LISTED
    );
    let (from, last) = range.after.map_or((-1, vec![]), |(time, id)| (at(time), id.bits().to_be_bytes().to_vec()));
    let (owner, now, wanted_rows) = (owner.as_str().as_bytes(), at(range.now), number(range.limit.saturating_add(1)));
    let rows = link
        .query(&paged(&wanted, "created, id", PAGE_BYTES_MAX), &vec![&owner, &from, &last, &now, &wanted_rows])
        .await?;
    page_of(&rows, range, |created, key| (created, key.id))
}

pub(super) async fn survey(
    link: &mut ReaderLink,
    range: PageRange<NewestCursor>,
) -> Result<(Vec<SummaryRow>, Option<NewestCursor>), Error> {
    let wanted = format!(
        "SELECT {}, ref FROM tg_task WHERE created <= $1 AND (created < $1 OR ref > $2) AND (NOT settled OR expires > $3)
        ORDER BY created DESC, ref LIMIT $4",
        super::columns::LISTED
    );
    let (from, last) = range.after.map_or((i64::MAX, vec![]), |(time, reference)| (at(time), reference.0.to_vec()));
    let (now, wanted_rows) = (at(range.now), number(range.limit.saturating_add(1)));
    let rows = link
        .query(&paged(&wanted, "created DESC, ref", PAGE_BYTES_MAX), &vec![&from, &last, &now, &wanted_rows])
        .await?;
    page_of(&rows, range, |created, key| (created, ShortReference::of(key)))
}

pub(super) async fn has_claimable(link: &mut ReaderLink, rows: &ClaimableRows) -> Result<bool, Error> {
    let found = link.query(&statements::has_claimable(), &vec![&rows.upstreams, &rows.abandoned]).await?;
    found.first().map_or(Ok(false), |row| row.try_get(0))
}

/// Rows by key, in the order of the keys, expired rows included.
pub(super) async fn named(link: &mut ReaderLink, keys: &[TaskKey]) -> Result<Vec<SummaryRow>, Error> {
    let sql = format!(
        "SELECT t.* FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS w (wanted_id, wanted_owner, ord)
        CROSS JOIN LATERAL (
            SELECT {} FROM tg_task t WHERE t.id = w.wanted_id AND t.owner = w.wanted_owner LIMIT 1) AS t
        ORDER BY w.ord",
        super::columns::LISTED
    );
    let (ids, owners) = key_arrays(keys);
    let rows = link.query(&sql, &vec![&ids, &owners]).await?;
    rows.iter().map(SummaryRow::of).collect()
}

/// The holders of rows, in the order of the keys; `None` for a missing row.
pub(super) async fn holders(link: &mut ReaderLink, keys: &[TaskKey]) -> Result<Vec<Option<Incarnation>>, Error> {
    Ok(column(link, "holder", keys).await?.into_iter().map(|found| found.map(holder)).collect())
}

pub(super) async fn revisions(link: &mut ReaderLink, keys: &[TaskKey]) -> Result<Vec<Option<Revision>>, Error> {
    Ok(column(link, "rev", keys).await?.into_iter().map(|found| found.map(revision)).collect())
}

async fn column(link: &mut ReaderLink, name: &str, keys: &[TaskKey]) -> Result<Vec<Option<i64>>, Error> {
    let sql = format!(
        "SELECT t.{name} FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS w (id, owner, ord)
        LEFT JOIN LATERAL (SELECT {name} FROM tg_task t WHERE t.id = w.id AND t.owner = w.owner LIMIT 1) AS t ON true
        ORDER BY w.ord"
    );
    let (ids, owners) = key_arrays(keys);
    let rows = link.query(&sql, &vec![&ids, &owners]).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

pub(super) async fn settled_bytes(link: &mut ReaderLink, key: &TaskKey) -> Result<Option<usize>, Error> {
    let sql = "SELECT size FROM tg_task WHERE id = $1 AND owner = $2 AND settled";
    let (ids, owners) = key_arrays(std::slice::from_ref(key));
    let rows = link.query(sql, &vec![&ids[0], &owners[0]]).await?;
    rows.first().map(|row| Ok(usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or(usize::MAX))).transpose()
}

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

/// The rows of one incarnation. Uses the index of holders only.
pub(super) async fn held(link: &mut ReaderLink, incarnation: Incarnation) -> Result<Vec<TaskKey>, Error> {
    keys(link, "holder = $1", &vec![&holder_column(incarnation)]).await
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

/// The query of an order, between two positions. No index follows progress: each list sorts the unsettled rows.
fn selection(by: OrderedBy, direction: ListDirection) -> String {
    let order = if direction == ListDirection::NewestFirst { " DESC" } else { "" };
    let of = |column: &str, rows: &str| {
        format!(
            "(SELECT {} FROM tg_task WHERE owner = $1 AND {rows} AND ({column}, id) >= ($2, $3) AND ({column}, id) < ($4, $5)
            ORDER BY {column}{order}, id{order} LIMIT $6)",
            super::columns::LISTED
        )
    };
    let (column, found) = match by {
        OrderedBy::Creation => ("created", of("created", "created >= 0")),
        OrderedBy::LastUpdate => {
            ("updated", format!("{} UNION ALL {}", of("ended", "ended >= 0"), of("updated", "ended IS NULL")))
        }
    };
    let order = format!("{column}{order}, id{order}");
    let wanted = format!("SELECT * FROM ({found}) AS found ORDER BY {order} LIMIT $6");
    paged(&wanted, &order, FILTERED_BYTES_MAX)
}

/// The first `limit` rows after `after` in a filter's order, and whether there are more.
async fn rows_after(
    link: &mut ReaderLink,
    owner: &Principal,
    filter: &ListFilter,
    after: Option<ListPosition>,
    limit: usize,
) -> Result<(Vec<SummaryRow>, bool), Error> {
    let positions = filter.positions(after);
    let bytes = |id: TaskId| id.bits().to_be_bytes().to_vec();
    let (start, end) = (positions.start, positions.end);
    let (start, start_id, end, end_id) = (at(start.0), bytes(start.1), at(end.0), bytes(end.1));
    let (owner, wanted_rows) = (owner.as_str().as_bytes(), number(limit.saturating_add(1)));
    let values: super::transaction::Parameters<'_> = vec![&owner, &start, &start_id, &end, &end_id, &wanted_rows];
    let rows = link.query(&selection(filter.by, filter.direction), &values).await?;
    let found = rows.first().map_or(Ok(0), |row| row.try_get::<_, i64>("found"))?;
    let rows = rows.iter().take(limit).map(SummaryRow::of).collect::<Result<Vec<_>, _>>()?;
    let has_more = count(found) > rows.len();
    Ok((rows, has_more))
}

pub(super) async fn select(
    link: &mut ReaderLink,
    owner: &Principal,
    filter: &ListFilter,
    range: PageRange,
) -> Result<(Vec<SummaryRow>, Option<ListPosition>), Error> {
    let (mut shown, mut page) = (Vec::new(), FilteredPage::new(filter, range));
    let mut has_more = true;
    for is_first in [true, false] {
        let wanted = if is_first { range.limit.min(page.rest()) } else { page.rest() };
        let (rows, more) = rows_after(link, owner, filter, page.last(), wanted).await?;
        has_more = more;
        for row in rows {
            let time = match filter.by {
                OrderedBy::Creation => row.created_at,
                OrderedBy::LastUpdate => row.updated_at,
            };
            match page.step((time, row.key.id), row.summary.as_ref()) {
                // A row that moved between the two queries is shown once.
                PageStep::Show if shown.iter().all(|one: &SummaryRow| one.key != row.key) => shown.push(row),
                PageStep::Show | PageStep::Skip => (),
                PageStep::End => return Ok((shown, page.last())),
            }
        }
        if !has_more || shown.len() >= range.limit {
            break;
        }
    }
    // An unreadable key gives no cursor.
    Ok((shown, page.last().filter(|last| has_more && range.after != Some(*last))))
}
