//! Tests starts under a wrong clock: results stay, and an operator can reset the time.

use super::bad_input::spoil;
use super::incarnations::two;
use super::*;
use crate::task::SystemClock;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Changes the recorded time of the store's last use.
pub(super) fn used_at(server: &PostgresServer, schema: &str, time: Timestamp) {
    server.psql(&format!("UPDATE {schema}.tg_replica SET now_ms = {} WHERE now_ms > 0", time.as_millis()));
}

fn is_right(store: &PostgresStore) -> bool {
    let (own, system) = (store.clock().now(), SystemClock.now());
    own.since(system) + system.since(own) < DAY
}

/// A database with a server clock 400 days ahead of its last use.
async fn used_long_ago(server: &PostgresServer, schema: &str) {
    let store = opened(settings(server, schema)).await;
    store.insert(&task("a", 1)).await.unwrap();
    store.close().await;
    used_at(server, schema, START);
}

/// A replica that joins adopts the living replicas' time, and distrusts it as they do. Their time is discarded once they are
/// gone.
#[tokio::test(flavor = "multi_thread")]
async fn f88_a_right_clock_counts_again_after_a_wrong_one() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    used_long_ago(server, &schema).await;
    let both = two(server, &schema).await;
    assert!(both.iter().all(|store| store.state.clock_trust.is_distrusted()));
    let [one, other] = both.each_ref().map(|store| store.clock().now());
    assert!(one.since(other) + other.since(one) < DAY, "{one} and {other}");
    let wrong = SystemClock.now().after(DAY * 400);
    both[0].insert(&Task { created_at: wrong, updated_at: wrong, ..task("a", 2) }).await.unwrap();
    until("both beat", || both.iter().all(|store| store.as_prior().heartbeat > 1)).await;
    for store in both {
        store.close().await;
    }
    // Simulates that the server's clock was wrong, and is right now.
    server.psql(&format!(
        "UPDATE {schema}.tg_replica SET now_ms = now_ms - {} WHERE now_ms < 0",
        (DAY * 400).as_millis()
    ));
    used_at(server, &schema, SystemClock.now());
    let store = opened(settings(server, &schema)).await;
    assert!(is_right(&store) && !store.state.clock_trust.is_distrusted(), "{}", store.clock().now());
    store.close().await;
}

/// F56, F88: before that the expiry of the failed task is unknown.
#[tokio::test(flavor = "multi_thread")]
async fn f88_a_damaged_row_is_replaced_once_the_clock_is_trusted() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    used_long_ago(server, &schema).await;
    spoil(server, &schema, 1, "'\\x'");
    let store = opened(settings(server, &schema)).await;
    let found = store.load(&task("a", 1).key, store.clock().now()).await.unwrap().expect("it is not unknown");
    assert!(found.task.is_settled());
    assert_eq!(server.psql(&format!("SELECT settled FROM {schema}.tg_task")).trim(), "f");
    store.close().await;
}

/// As if the only gateway fails over, with the database, to a server with a wrong clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_clock_is_400_days_ahead_loses_no_kept_result() {
    let Some(right) = PostgresServer::start(&[]) else { return };
    let schema = new_schema();
    let store = opened(settings(&right, &schema)).await;
    let made_at = store.clock().now();
    let kept = Task { created_at: made_at, updated_at: made_at, ttl: DAY, ..contract::settled(task("a", 1), "r") };
    store.insert(&kept).await.unwrap();
    store.close().await;
    let ahead = i64::try_from((DAY * 400).as_secs()).unwrap();
    let wrong = tokio::task::block_in_place(|| PostgresServer::standby_with_clock(&right, "one", ahead));
    wrong.promote();
    for _ in 0..2 {
        let store = opened(settings(&wrong, &schema)).await;
        let shown = store.clock().now();
        assert!(shown.since(made_at) > DAY * 399, "{shown}");
        assert_eq!(store.sweep(shown, 9).await.unwrap(), 0);
        assert_eq!(*store.load(&kept.key, made_at).await.unwrap().unwrap().task, kept);
        store.close().await;
    }
}

/// The operator discards a wrong time that was recorded.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_resets_the_time_that_the_store_goes_by() {
    let Some(server) = shared() else { return };
    let (schema, folder) = (new_schema(), tempfile::tempdir().unwrap());
    let own = PostgresSettings { folder: Some(folder.path().to_owned()), ..settings(server, &schema) };
    let wish = folder.path().join("tasks.reset-clock");
    opened(own.clone()).await.close().await;
    used_at(server, &schema, SystemClock.now().after(DAY * 400));
    let mut beside = settings(server, &schema);
    beside.replica.name.push('+');
    let other = opened(beside).await;
    assert!(!is_right(&other), "it was noted");
    std::fs::write(&wish, "").unwrap();
    let store = opened(own.clone()).await;
    assert!(!is_right(&store) && wish.exists(), "another gateway lives");
    let shown = store.clock().now();
    store.insert(&Task { created_at: shown, updated_at: shown, ..task("a", 1) }).await.unwrap();
    store.close().await;
    other.close().await;
    for _ in 0..2 {
        let store = opened(own.clone()).await;
        assert!(is_right(&store) && !wish.exists(), "{}", store.clock().now());
        assert_eq!(store.usage().tasks, 1);
        store.close().await;
    }
}
