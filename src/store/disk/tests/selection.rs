//! Tests that filtered lists read one range of one index in its order.

use rusqlite::Connection;

use super::*;
use crate::store::disk::reads;
use crate::task::{ListDirection, OrderedBy};

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
async fn a_filtered_list_reads_one_range_of_a_covering_index_and_sorts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let conn = schema::open_reader(store.readers.path()).unwrap();
    for (by, column, index) in
        [(OrderedBy::Creation, "created_at", "tasks_age"), (OrderedBy::LastUpdate, "updated_at", "tasks_updated")]
    {
        for direction in [ListDirection::OldestFirst, ListDirection::NewestFirst] {
            let range = format!("owner=? AND ({column},id)>(?,?) AND ({column},id)<(?,?)");
            let search = format!("SEARCH tasks USING COVERING INDEX {index} ({range})");
            assert_eq!(plan(&conn, &reads::statement(by, direction)), [search]);
        }
    }
}
