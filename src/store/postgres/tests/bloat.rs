//! Tests the disk space that deleted tasks leave behind in the database.

use futures_util::stream::{self, StreamExt as _};
use serde_json::json;

use super::*;
use crate::task::{Event, transition};
use crate::wire::Payload;

const PRESENT: u64 = 5_000;
const SIDE_BY_SIDE: usize = 256;
/// Measurements in each half.
const LOOKS: u64 = 16;
/// Tolerated variation in size, since autovacuum starts at arbitrary times.
const SWING: f64 = 1.3;

/// A task's creation time. One `ttl` later, `PRESENT` further tasks exist.
fn made_at(life: u64) -> Timestamp {
    START.after(contract::TTL / u32::try_from(PRESENT).unwrap() * u32::try_from(life).unwrap())
}

/// Inserts a task, updates its progress twice, and settles it with an outcome of about a KiB.
async fn live(store: &PostgresStore, life: u64) {
    let now = made_at(life);
    let mut task = Task { created_at: now, updated_at: now, ..task(&format!("owner {}", life % 50), life.into()) };
    let mut revision = store.insert(&task).await.unwrap();
    for step in ["a quarter is done", "three quarters are done"] {
        task.status_message = Some(step.into());
        revision = store.replace(revision, WriteRole::Holder, &task).await.unwrap();
    }
    let result = Payload::of(&json!({"content": [{"type": "text", "text": "r".repeat(800)}]}));
    let returned = Event::Returned { attempt: task.attempt, result, is_error: false };
    store.replace(revision, WriteRole::Holder, &transition(task, returned, now).0).await.unwrap();
}

/// The size of the tables, and of their indexes.
fn sizes(server: &PostgresServer, schema: &str) -> [u64; 2] {
    let sql = format!(
        "SELECT sum(pg_table_size(oid)), sum(pg_indexes_size(oid)) FROM pg_class
        WHERE relkind = 'r' AND relnamespace = '{schema}'::regnamespace"
    );
    let found = tokio::task::block_in_place(|| server.psql(&sql));
    let (tables, indexes) = found.split_once('|').unwrap();
    [tables, indexes].map(|size| size.parse().unwrap())
}

/// Uses the server's own autovacuum settings. `BLOAT_LIVES` is the number of tasks.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: part of `make soak`"]
async fn tables_do_not_grow_however_many_tasks_have_lived() {
    let Some(server) = PostgresServer::start(&["autovacuum_naptime = 5s"]) else { return };
    let lives: u64 = std::env::var("BLOAT_LIVES").map_or(100_000, |lives| lives.parse().expect("a number"));
    let schema = new_schema();
    let store = opened(settings(&server, &schema)).await;
    let portion = lives / (2 * LOOKS);
    let begin = Instant::now();
    let mut seen = Vec::new();
    for look in 0..2 * LOOKS {
        let store = &store;
        let these = stream::iter(look * portion..(look + 1) * portion);
        these.for_each_concurrent(SIDE_BY_SIDE, |life| live(store, life)).await;
        let now = made_at((look + 1) * portion);
        while store.sweep(now, 500).await.unwrap() == 500 {}
        assert!(store.usage().tasks <= usize::try_from(2 * PRESENT + portion).unwrap(), "they are swept");
        seen.push(sizes(&server, &schema));
    }
    let halves = seen.split_at(seen.len() / 2);
    let highest = |half: &[[u64; 2]]| [0, 1].map(|part| half.iter().map(|sizes| sizes[part]).max().unwrap());
    let [first, second] = [halves.0, halves.1].map(highest);
    println!(
        "{lives} lives in {:?}, {} present at the end; tables and indexes, at most, in bytes: {first:?} in the first half, {second:?} in the second",
        begin.elapsed(),
        store.usage().tasks
    );
    println!("{seen:?}");
    for (first, second) in first.into_iter().zip(second) {
        assert!(second as f64 <= first as f64 * SWING, "{seen:?}");
    }
    store.close().await;
}
