//! Tests which rows the batch statements read, with any statistics of the planner.

use futures_util::future::try_join_all;

use super::*;
use crate::task::{Attempt, Event, TaskKey, transition};
use crate::wire::Payload;

const BATCH: u128 = 500;

/// Fills a schema's table with one owner's rows, and leaves the planner without statistics.
fn fill(server: &PostgresServer, schema: &str, rows: u32) {
    let bytes = |text: &str| format!("decode(md5({text}), 'hex')");
    server.psql(&format!(
        "INSERT INTO {schema}.tg_task (id, owner, rev, holder, settled, created, updated, expires, ref, size,
            summary, record, upstream)
        SELECT {}, 'a', 1, NULL, true, n, n, 1000000000000, {}, 1024, 'x', repeat('r', 200)::bytea, 'demo'
        FROM generate_series(1, {rows}) AS n",
        bytes("n::text"),
        bytes("'r' || n"),
    ));
}

/// The rows that scans of a table have read, by index scans and by sequential scans.
fn read_rows(server: &PostgresServer, schema: &str, table: &str) -> (u64, u64) {
    let sql = format!(
        "SELECT coalesce(sum(i.idx_tup_read), 0), max(t.seq_tup_read) FROM pg_stat_user_tables t
        JOIN pg_stat_user_indexes i USING (relid) WHERE t.schemaname = '{schema}' AND t.relname = '{table}'"
    );
    let found = server.psql(&sql);
    let (index, table) = found.split_once('|').unwrap();
    (index.parse().unwrap(), table.parse().unwrap())
}

/// The counts of all finished statements: a backend publishes its own at the end of a transaction, at most once a second, so each
/// runs another one that reads nothing.
async fn settled_counts(server: &PostgresServer, schema: &str, table: &str, store: &PostgresStore) -> (u64, u64) {
    let absent = task("absent", 1).key;
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        for _ in 0..4 {
            assert!(store.resolve_write(&absent, START).await.unwrap().is_none());
            assert!(store.load(&absent, START).await.unwrap().is_none());
        }
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    read_rows(server, schema, table)
}

/// The plans are made while the table is empty, when a sequential scan is cheapest.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_reads_the_rows_that_it_writes_and_no_others() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let patient = with(settings(server, &schema), |access| access.write_max = Duration::from_secs(30));
    let store = opened(patient).await;
    server.psql(&format!("ALTER TABLE {schema}.tg_task SET (autovacuum_enabled = false)"));
    let first = task("a", 2 * BATCH);
    let revision = store.insert(&first).await.unwrap();
    store.replace(revision, WriteRole::Holder, &first).await.unwrap();
    store.load(&first.key, START).await.unwrap().unwrap();
    store.revisions(std::slice::from_ref(&first.key)).await.unwrap();
    fill(server, &schema, 20_000);
    let tasks: Vec<Task> = (0..BATCH).map(|id| task("a", id)).collect();
    try_join_all(tasks.iter().map(|task| store.insert(task))).await.unwrap();
    let before = settled_counts(server, &schema, "tg_task", &store).await;
    let transactions = || -> u64 { server.psql(&format!("SELECT sum(writes) FROM {schema}.tg_lane")).parse().unwrap() };
    let commits = transactions();
    let replace = |task| store.replace(Revision(1), WriteRole::Holder, task);
    try_join_all(tasks.iter().map(replace)).await.unwrap();
    let commits = transactions() - commits;
    assert!(commits <= 50, "{commits} transactions: how many writes wait for each is a matter of the machine");
    let written = settled_counts(server, &schema, "tg_task", &store).await;
    try_join_all(tasks.iter().map(|task| store.load(&task.key, START))).await.unwrap();
    let loaded = settled_counts(server, &schema, "tg_task", &store).await;
    let keys: Vec<TaskKey> = tasks.iter().map(|task| task.key.clone()).collect();
    assert!(store.revisions(&keys).await.unwrap().iter().all(Option::is_some));
    let looked = settled_counts(server, &schema, "tg_task", &store).await;
    store.close().await;
    let batch = u64::try_from(BATCH).unwrap();
    for (what, from, to) in [("written", before, written), ("loaded", written, loaded), ("looked", loaded, looked)] {
        let (index, table) = (to.0 - from.0, to.1 - from.1);
        println!("{what}: {index} rows by indexes, {table} others, {commits} transactions");
        assert!((batch..=3 * batch).contains(&index) && table == 0, "{what}: {index} by indexes, {table} others");
    }
}

/// However many rows a dead replica left.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_reads_the_rows_that_it_takes_and_few_others() {
    const PORTION: usize = 100;
    const PORTIONS: usize = 50;
    // No other test uses this database server: another test's transaction would keep the row versions that each claim replaces.
    let Some(server) = PostgresServer::start(&[]) else { return };
    let schema = new_schema();
    let patient = with(settings(&server, &schema), |access| access.write_max = Duration::from_secs(30));
    let store = opened(patient).await;
    server.psql(&format!("ALTER TABLE {schema}.tg_task SET (autovacuum_enabled = false)"));
    fill(&server, &schema, 20_000);
    server.psql(&format!(
        "UPDATE {schema}.tg_task SET holder = 900, settled = false;
        INSERT INTO {schema}.tg_lane (incarnation, epoch) VALUES (900, 0);
        INSERT INTO {schema}.tg_replica (incarnation, name, address, version, record_reads, config_digest, key_print, dead, died)
        VALUES (900, 'gone', '', '', 1, '', '', true, now())"
    ));
    server.psql(&format!("VACUUM ANALYZE {schema}.tg_task"));
    until("its death is seen", || store.replicas().has_dead()).await;
    let before = settled_counts(&server, &schema, "tg_task", &store).await;
    for _ in 0..PORTIONS {
        assert_eq!(store.claim(PORTION, &known()).await.unwrap().len(), PORTION);
    }
    let after = settled_counts(&server, &schema, "tg_task", &store).await;
    store.close().await;
    let (index, table) = (after.0 - before.0, after.1 - before.1);
    println!("{index} rows by indexes, {table} others");
    let claimed = u64::try_from(PORTION * PORTIONS).unwrap();
    // 5 reads for each claimed row. A claim that reads and sorts all rows takes 37.
    assert!((claimed..=10 * claimed).contains(&index) && table == 0, "{index} by indexes, {table} others");
}

/// However many owners have sums.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_reads_the_sums_that_it_changes_and_no_others() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    let tasks: Vec<Task> = (0..200).map(|id| task(&format!("owner {id}"), id)).collect();
    store.insert(&tasks[0]).await.unwrap();
    store.remove(&tasks[0].key).await.unwrap();
    let me = store.holder().0;
    server.psql(&format!(
        "INSERT INTO {schema}.tg_usage SELECT {me}, n::text::bytea, 1, 1, 100 FROM generate_series(1, 20000) AS n"
    ));
    let before = settled_counts(server, &schema, "tg_usage", &store).await;
    try_join_all(tasks.iter().map(|task| store.insert(task))).await.unwrap();
    try_join_all(tasks.iter().map(|task| store.remove(&task.key))).await.unwrap();
    let after = settled_counts(server, &schema, "tg_usage", &store).await;
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.tg_usage")), "20000");
    let (index, table) = (after.0 - before.0, after.1 - before.1);
    println!("{index} by indexes, {table} others");
    assert!((200..=1_000).contains(&index) && table == 0, "{index} by indexes, {table} others");
    store.close().await;
}

/// A task's progress is written within its page and to no index; its end is not.
#[tokio::test(flavor = "multi_thread")]
async fn progress_is_written_to_no_index() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    let (attempt, steps) = (Attempt::FIRST, [1, 40, 80]);
    for id in 0..20 {
        let mut task = task("a", id);
        let mut revision = store.insert(&task).await.unwrap();
        for seconds in steps {
            let (event, now) = (Event::Progressed { attempt, message: "on".into() }, Duration::from_secs(seconds));
            task = transition(task, event, START.after(now)).0;
            revision = store.replace(revision, WriteRole::Holder, &task).await.unwrap();
        }
        let event = Event::Returned { attempt, result: Payload::of("r"), is_error: false };
        let task = transition(task, event, START.after(Duration::from_secs(120))).0;
        store.replace(revision, WriteRole::Holder, &task).await.unwrap();
    }
    // A backend publishes its counts when it ends.
    store.close().await;
    let counts = || {
        let of = format!("FROM pg_stat_user_tables WHERE schemaname = '{schema}' AND relname = 'tg_task'");
        server.psql(&format!("SELECT n_tup_upd, n_tup_hot_upd {of}"))
    };
    until("they are counted", || counts() == "80|60").await;
}

/// While the table is small, or the planner's statistics say so, all indexes cost the same, and the planner takes the one with
/// the fewest levels, possibly one over all rows of an owner, for as long as the plan is cached.
#[tokio::test(flavor = "multi_thread")]
async fn no_index_but_that_of_keys_can_serve_a_lookup_by_key() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    let plan = |more: &str| {
        server.psql(&format!(
            "BEGIN; SET LOCAL search_path = {schema}; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;
            UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'tg_task_pkey'::regclass; {more};
            EXPLAIN (COSTS OFF) SELECT * FROM tg_task WHERE id = 'i' AND owner = 'o'; ROLLBACK"
        ))
    };
    let found = plan("SELECT");
    assert!(found.contains("Seq Scan on tg_task") && !found.contains("Index"), "{found}");
    let found = plan("CREATE INDEX of_owners ON tg_task (owner, created, id)");
    assert!(found.contains("Index Scan using of_owners"), "{found}");
    store.close().await;
}
