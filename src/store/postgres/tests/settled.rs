//! Tests the cache of settled rows.

use support::fault_proxy::{Fault, Verb};

use super::doubts::Deafened;
use super::incarnations::two;
use super::rules::pair;
use super::*;
use crate::replica::ReadVerdict;
use crate::store::contract::settled;

async fn insert_settled(store: &PostgresStore, id: u128) -> TaskKey {
    let done = settled(task("a", id), "r");
    store.insert(&done).await.unwrap();
    done.key
}

async fn is_shown(store: &PostgresStore, key: &TaskKey) -> bool {
    store.load(key, START).await.unwrap().is_some()
}

/// The client was told that the task is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_was_removed_here_is_not_shown_after_any_other_removal() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    // Until then its cache may be emptied.
    listens(&store).await;
    let keys = [insert_settled(&store, 1).await, insert_settled(&store, 2).await];
    for key in &keys {
        assert!(is_shown(&store, key).await);
    }
    // Removed by another replica, without a hint.
    server.psql(&format!("DELETE FROM {schema}.tg_task"));
    for key in &keys {
        assert!(is_shown(&store, key).await, "it is in memory");
    }
    store.remove(&keys[0]).await.unwrap();
    assert!(!is_shown(&store, &keys[0]).await);
    let live = task("a", 2);
    store.insert(&live).await.unwrap();
    assert!(!store.load(&live.key, START).await.unwrap().unwrap().task.is_settled());
    store.close().await;
}

/// The removal's commit was unknown for a while, so no hint was sent.
#[tokio::test(flavor = "multi_thread")]
async fn others_are_notified_of_the_writes_of_a_lost_connection() {
    let Some(server) = shared() else { return };
    let at = Deafened::begin(server).await;
    listens(&at.other).await;
    let key = insert_settled(&at.other, 1).await;
    assert!(is_shown(&at.other, &key).await);
    at.proxy.set(Some(Fault::down("", 0, Verb::Hold)));
    let unsure = at.deaf.remove(&key).await;
    assert!(matches!(unsure, Err(StoreError::UnknownCommit(_))), "{unsure:?}");
    assert!(is_shown(&at.other, &key).await, "it is in memory");
    assert!(at.found_out(&key).await.is_none(), "it was removed");
    let begin = Instant::now();
    while is_shown(&at.other, &key).await {
        assert!(begin.elapsed() < PATIENCE, "it is still shown");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    at.close().await;
}

/// It may have ended before it could send a hint.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_a_dead_gateway_may_have_removed_are_read_again() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let [gone, store] = two(server, &schema).await;
    listens(&store).await;
    let key = insert_settled(&store, 1).await;
    assert!(is_shown(&store, &key).await);
    server.psql(&format!("DELETE FROM {schema}.tg_task"));
    assert!(is_shown(&store, &key).await, "it is in memory");
    gone.close().await;
    let begin = Instant::now();
    while is_shown(&store, &key).await {
        assert!(begin.elapsed() < PATIENCE, "it is still shown");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.close().await;
}

/// A row that is proven since stays visible even if the server is replaced: no failover rolls it back.
#[tokio::test(flavor = "multi_thread")]
async fn n4_a_settled_row_of_an_old_primary_is_shown_no_longer_than_reads_are_trusted() {
    let Some([old, new]) = pair().await else { return };
    // Longer than a promotion takes.
    let read_trust = Duration::from_secs(10);
    let settings = with(settings(&old, &new_schema()), |access| {
        access.durability = Durability::Replicated;
        (access.write_max, access.read_trust) = (Duration::from_secs(3), read_trust);
    });
    let store = opened(settings).await;
    let proven = insert_settled(&store, 1).await;
    for _ in 0..4 {
        assert!(store.load(&task("a", 9).key, START).await.unwrap().is_none());
    }
    assert!(is_shown(&store, &proven).await);
    let late = insert_settled(&store, 2).await;
    new.promote();
    let promoted = Instant::now();
    assert!(is_shown(&store, &late).await, "it is trusted for now");
    assert!(store.state.settled.get(&late, |_| ReadVerdict::Trusted).is_some(), "it is kept");
    loop {
        let begun = promoted.elapsed();
        match store.load(&late, START).await {
            Ok(_) => assert!(begun < read_trust, "shown {begun:?} after another was promoted"),
            Err(_) => break,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(is_shown(&store, &proven).await);
    store.close().await;
}
