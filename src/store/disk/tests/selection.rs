//! Filtered lists read ranges of indexes, and no row that they do not show.

use rusqlite::{Connection, StatementStatus};

use super::*;
use crate::store::disk::columns::{COLUMNS, RecordLocation, RowColumns};
use crate::store::disk::{reads, selection};
use crate::task::{ListDirection, OrderedBy, PhaseKind, Summary, TimeRange};

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
async fn a_filtered_list_merges_ranges_of_a_covering_index_and_sorts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let conn = schema::open_reader(store.readers.path()).unwrap();
    for (by, direction) in ORDERS {
        let (column, index) = match by {
            OrderedBy::Creation => ("created_at", "tasks_state_created"),
            OrderedBy::LastUpdate => ("updated_at", "tasks_state_updated"),
        };
        let search = format!(
            "SEARCH tasks USING COVERING INDEX {index} (owner=? AND state=? AND ({column},id)>(?,?) AND ({column},id)<(?,?))"
        );
        for phases in 1..=PhaseKind::ALL.len() {
            let plan = plan(&conn, &selection::statement(by, direction, phases));
            let (searches, merges): (Vec<_>, Vec<_>) = plan.iter().partition(|line| line.starts_with("SEARCH"));
            assert_eq!(searches, vec![&search; phases], "{plan:#?}");
            assert!(
                merges.iter().all(|line| ["MERGE (UNION ALL)", "LEFT", "RIGHT"].contains(&line.as_str())),
                "{plan:#?}"
            );
        }
    }
}

/// So many tasks of one principal, in most phases, one of them queued.
fn fill(conn: &mut Connection, count: u64) {
    let writing = conn.transaction().unwrap();
    {
        let sql = format!(
            "INSERT INTO tasks ({}, summary) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
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
                updated_at: created_at.after(Duration::from_millis(number * 7 % 1_000)),
                phase,
                ttl: Duration::from_secs(86_400),
                ..task("a", id)
            };
            let summary = Summary::of(&task);
            let place = RecordLocation::Now(i64::try_from(number).unwrap());
            RowColumns::of(&task, &summary, Revision(1), place)
                .bind(&summary, |values| insert.execute(values))
                .unwrap();
        }
    }
    writing.commit().unwrap();
}

/// Steps of the statements of one page, with which it ran: those over an index, and those for rows.
fn steps(conn: &Connection, sql: &str) -> (i64, i64) {
    let read = |sql: &str| {
        let statement = conn.prepare_cached(sql).unwrap();
        let steps = i64::from(statement.reset_status(StatementStatus::VmStep));
        let full =
            statement.reset_status(StatementStatus::FullscanStep) + statement.reset_status(StatementStatus::Sort);
        assert_eq!(full, 0, "{sql}");
        steps
    };
    let index = read(sql);
    (index, read(&reads::row_statement()))
}

/// A page of a filtered list over 100,000 tasks of one principal takes at most three times the steps of a page of the
/// unfiltered list, whatever the filter leaves out.
#[test]
fn a_filtered_page_of_a_large_list_takes_hardly_more_steps_than_an_unfiltered_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut conn = schema::open(
        &folder.path().join("tasks.db"),
        DiskTuning { syncs: false, ..DiskSettings::new(folder.path().to_owned(), ROOMY).tuning },
    )
    .unwrap();
    fill(&mut conn, 100_000);
    let owner = Principal::new("a");
    let now = START.after(Duration::from_secs(200));
    assert_eq!(reads::page(&conn, &owner, None, 50, now).unwrap().rows.len(), 50);
    let (index, rows) = steps(&conn, reads::PAGE);
    let unfiltered = index + rows;
    let all = ListFilter::default();
    let of = |phases: &[PhaseKind]| ListFilter { phases: phases.iter().copied().collect(), ..all.clone() };
    let at = |millis| START.after(Duration::from_millis(millis));
    let span = |from, until| TimeRange { from: at(from), until: at(until) };
    let filters = [
        ("all", all.clone(), 50),
        ("half", of(&[PhaseKind::Working]), 50),
        ("one", of(&[PhaseKind::Queued]), 1),
        ("none", of(&[PhaseKind::Refused]), 0),
        ("created in a second", ListFilter { created: span(50_000, 51_000), ..all.clone() }, 50),
        ("changed in a second", ListFilter { updated: span(50_000, 51_000), ..all.clone() }, 50),
        (
            "created and changed in one millisecond",
            ListFilter { created: span(50_000, 50_001), updated: span(50_000, 50_001), ..all.clone() },
            1,
        ),
    ];
    for (name, filter, shown) in filters {
        for (by, direction) in ORDERS {
            let filter = ListFilter { by, direction, ..filter.clone() };
            let (page, _) = selection::select(&conn, &owner, &filter, None, 50, now).unwrap();
            assert!(page.rows.len() <= shown, "{name}");
            let (index, rows) = steps(&conn, &selection::statement(by, direction, filter.phases.len()));
            println!(
                "{name} {by:?} {direction:?}: {index} + {rows} steps, {} rows; unfiltered {unfiltered}",
                page.rows.len()
            );
            assert!(index + rows <= 3 * unfiltered, "{name}: {index} + {rows} steps, unfiltered {unfiltered}");
        }
    }
}
