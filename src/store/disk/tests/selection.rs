//! Tests that filtered lists read index ranges, and only rows that they show.

use rusqlite::{Connection, StatementStatus};

use super::*;
use crate::store::disk::columns::{COLUMNS, RowColumns};
use crate::store::disk::selection::PlaceBounds;
use crate::store::disk::{reads, selection};
use crate::task::{ListDirection, ListPlace, OrderedBy, PhaseKind, ShortReference, Summary, TimeRange};

const ORDERS: [(OrderedBy, ListDirection); 4] = [
    (OrderedBy::Creation, ListDirection::OldestFirst),
    (OrderedBy::Creation, ListDirection::NewestFirst),
    (OrderedBy::LastUpdate, ListDirection::OldestFirst),
    (OrderedBy::LastUpdate, ListDirection::NewestFirst),
];

fn plan(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let mut rows = statement.raw_query();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        lines.push(row.get(3).unwrap());
    }
    lines
}

#[tokio::test]
async fn a_filtered_list_reads_one_range_of_a_covering_index_at_a_time_and_sorts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let conn = schema::open_reader(store.readers.path()).unwrap();
    for (by, direction) in ORDERS {
        let (column, index) = match by {
            OrderedBy::Creation => ("created_at", "tasks_state_created"),
            OrderedBy::LastUpdate => ("updated_at", "tasks_state_updated"),
        };
        let behind = match direction {
            ListDirection::OldestFirst => format!("({column},id)>(?,?) AND {column}<?"),
            ListDirection::NewestFirst => format!("{column}>? AND ({column},id)<(?,?)"),
        };
        for (bounds, range) in
            [(PlaceBounds::Times, format!("{column}>? AND {column}<?")), (PlaceBounds::BehindPlace, behind)]
        {
            let search = format!(
                "SEARCH tasks USING COVERING INDEX {index} (owner=? AND scope=? AND state=? AND lag=? AND {range})"
            );
            assert_eq!(plan(&conn, &selection::statement(by, direction, bounds)), [search]);
        }
    }
}

/// `count` tasks of one principal in most phases, one of them queued, created one per millisecond.
fn fill(conn: &mut Connection, count: u64, lag: impl Fn(u64) -> u64) {
    let writing = conn.transaction().unwrap();
    {
        let sql = format!(
            "INSERT INTO tasks ({}, summary) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
            COLUMNS
        );
        let mut insert = writing.prepare(&sql).unwrap();
        for number in 0..count {
            let id = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            let created_at = START.after(Duration::from_millis(number));
            let fault = GatewayFault::new(Reason::UpstreamClosed, Executed::Yes);
            let phase = match number % 8 {
                _ if number == 7 => Phase::Queued,
                0 => Phase::Settled(Outcome::Cancelled),
                1 => Phase::Settled(Outcome::Returned { result: Payload::of("r"), is_error: false }),
                2 => Phase::Settled(Outcome::Returned { result: Payload::of("r"), is_error: true }),
                3 => Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))),
                4 => Phase::AwaitingInput(std::collections::BTreeMap::default()),
                _ => Phase::Working,
            };
            let task = Task {
                created_at,
                updated_at: created_at.after(Duration::from_millis(lag(number))),
                phase,
                ttl: Duration::from_secs(86_400),
                ..task("a", id)
            };
            let summary = Summary::of(&task);
            let record = i64::try_from(number).unwrap();
            RowColumns::of(&task, &summary, ShortReference::of(&task.key), Revision(1), record)
                .bind(&summary, |values| insert.execute(values))
                .unwrap();
        }
    }
    writing.commit().unwrap();
}

/// The statement's steps since the last call. Fails if it scanned a whole table or sorted.
fn read_steps(conn: &Connection, sql: &str) -> i64 {
    let statement = conn.prepare_cached(sql).unwrap();
    let full = statement.reset_status(StatementStatus::FullscanStep) + statement.reset_status(StatementStatus::Sort);
    assert_eq!(full, 0, "{sql}");
    statement.reset_status(StatementStatus::VmStep).into()
}

/// Lags mostly below a second, others up to a minute or an hour.
fn mixed_lag(number: u64) -> u64 {
    (number * 7919 % 1_000) << (3 * (number / 8 % 5))
}

struct LargeList {
    conn: Connection,
    /// The steps of a page of the unfiltered list.
    unfiltered: i64,
    _folder: TempDir,
}

const OWNER: &str = "a";

/// A time at which no task has expired or been swept.
fn now() -> Timestamp {
    START.after(Duration::from_secs(50_000))
}

impl LargeList {
    fn new(lag: impl Fn(u64) -> u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tuning = DiskTuning { syncs: false, ..DiskSettings::new(folder.path().to_owned(), ROOMY).tuning };
        let mut conn = schema::open(&folder.path().join("tasks.db"), tuning).unwrap();
        fill(&mut conn, 100_000, lag);
        assert_eq!(reads::page(&conn, &Principal::new(OWNER), None, 50, now()).unwrap().0.len(), 50);
        let unfiltered = read_steps(&conn, reads::PAGE) + read_steps(&conn, &reads::row_statement());
        Self { conn, unfiltered, _folder: folder }
    }

    /// The number of tasks on a page, and the next page's cursor. Fails if it takes more than three times the steps of a page of
    /// the unfiltered list.
    #[track_caller]
    fn page(&self, name: &str, filter: &ListFilter, after: Option<ListPlace>) -> (usize, Option<ListPlace>) {
        let (page, next) = selection::select(&self.conn, &Principal::new(OWNER), filter, after, 50, now()).unwrap();
        let all = ORDERS.into_iter().flat_map(|(by, direction)| {
            [PlaceBounds::Times, PlaceBounds::BehindPlace].map(|bounds| selection::statement(by, direction, bounds))
        });
        let index: i64 = all.map(|sql| read_steps(&self.conn, &sql)).sum();
        let rows = read_steps(&self.conn, &reads::row_statement());
        let (unfiltered, shown) = (self.unfiltered, page.len());
        println!(
            "{name} {:?} {:?}: {index} + {rows} steps, {shown} rows; unfiltered {unfiltered}",
            filter.by, filter.direction
        );
        assert!(index + rows <= 3 * unfiltered, "{name}: {index} + {rows} steps, unfiltered {unfiltered}");
        (shown, next)
    }
}

fn millis(millis: u64) -> Timestamp {
    START.after(Duration::from_millis(millis))
}

fn span(from: u64, until: u64) -> TimeRange {
    TimeRange { from: millis(from), until: millis(until) }
}

const LAST: u64 = 1 << 40;

/// For every kind of filter and both times, on the first page and later ones.
#[test]
fn a_filtered_page_of_a_large_list_takes_hardly_more_steps_than_an_unfiltered_one() {
    let list = LargeList::new(mixed_lag);
    let all = ListFilter::default();
    let of = |phases: &[PhaseKind]| ListFilter { phases: phases.iter().copied().collect(), ..all.clone() };
    let filters = [
        ("all", all.clone()),
        ("half", of(&[PhaseKind::Working])),
        ("one", of(&[PhaseKind::Queued])),
        ("none", of(&[PhaseKind::Refused])),
        ("created in a second", ListFilter { created: span(50_000, 51_000), ..all.clone() }),
        ("changed in a second", ListFilter { updated: span(50_000, 51_000), ..all.clone() }),
        ("created in the first half", ListFilter { created: span(0, 50_000), ..all.clone() }),
        ("created in the second half", ListFilter { created: span(50_000, LAST), ..all.clone() }),
        ("changed in the first half", ListFilter { updated: span(0, 50_000), ..all.clone() }),
        ("changed in the second half", ListFilter { updated: span(50_000, LAST), ..all.clone() }),
    ];
    for (name, filter) in filters {
        for (by, direction) in ORDERS {
            let filter = ListFilter { by, direction, ..filter.clone() };
            let mut after = None;
            for _ in 0..5 {
                (_, after) = list.page(name, &filter, after);
                if after.is_none() {
                    break;
                }
            }
        }
    }
}

/// In both orders and by both times.
#[test]
fn a_filter_that_leaves_no_more_than_a_page_of_a_large_list_has_one_page() {
    let list = LargeList::new(mixed_lag);
    let all = ListFilter::default();
    let filters = [
        ("created first", ListFilter { created: span(0, 50), ..all.clone() }),
        ("created last", ListFilter { created: span(99_950, LAST), ..all.clone() }),
        ("created in the middle", ListFilter { created: span(50_000, 50_033), ..all.clone() }),
        ("changed first", ListFilter { updated: span(0, 100), ..all.clone() }),
        ("changed in the middle", ListFilter { updated: span(50_000, 50_008), ..all.clone() }),
        ("changed last", ListFilter { updated: span(4_052_650, LAST), ..all.clone() }),
        (
            "created and changed in one millisecond",
            ListFilter { created: span(50_000, 50_001), updated: span(50_000, 50_001), ..all.clone() },
        ),
    ];
    for (name, filter) in filters {
        let times = (0..100_000).map(|number| (millis(number), millis(number + mixed_lag(number))));
        let fits = |(created, updated): &_| filter.created.contains(*created) && filter.updated.contains(*updated);
        let shown = times.filter(fits).count();
        assert!((1..=50).contains(&shown), "{name}: {shown}");
        for (by, direction) in ORDERS {
            let filter = ListFilter { by, direction, ..filter.clone() };
            assert_eq!(list.page(name, &filter, None), (shown, None), "{name} {by:?} {direction:?}");
        }
    }
}

/// Matching tasks are behind all tasks created or changed since, unless lags separate them.
#[test]
fn a_filter_by_the_other_time_finds_the_first_of_many_on_its_first_pages() {
    let list = LargeList::new(|number| number % 1_500);
    for (name, filter) in [
        ("created before", ListFilter { created: span(0, 50_000), ..ListFilter::default() }),
        ("created since", ListFilter { created: span(50_000, LAST), ..ListFilter::default() }),
        ("changed before", ListFilter { updated: span(0, 50_000), ..ListFilter::default() }),
        ("changed since", ListFilter { updated: span(50_000, LAST), ..ListFilter::default() }),
    ] {
        for (by, direction) in ORDERS {
            let filter = ListFilter { by, direction, ..filter.clone() };
            let (mut shown, mut after, mut pages) = (0, None, 0);
            while shown == 0 {
                (shown, after) = list.page(name, &filter, after);
                pages += 1;
            }
            assert!(after.is_some() && pages <= 12, "{name} {by:?} {direction:?}: {pages} pages");
        }
    }
}
