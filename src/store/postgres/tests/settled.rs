//! What is told of settled rows that were read before.

use super::rules::pair;
use super::*;
use crate::replica::ReadBelief;
use crate::store::contract::settled;

async fn insert_settled(store: &PostgresStore, id: u128) -> TaskKey {
    let done = settled(task("a", id), "r");
    store.insert(&done).await.unwrap();
    done.key
}

async fn is_shown(store: &PostgresStore, key: &TaskKey) -> bool {
    store.load(key, START).await.unwrap().is_some()
}

/// What was proven since is shown on, whatever becomes of the server: nobody takes it back.
#[tokio::test(flavor = "multi_thread")]
async fn n4_a_settled_row_of_an_old_primary_is_shown_no_longer_than_reads_are_trusted() {
    let Some([old, new]) = pair().await else { return };
    let read_trust = Duration::from_secs(4);
    let settings = with(settings(&old, &new_schema()), |access| {
        access.durability = Durability::Replicated;
        (access.write_max, access.read_trust) = (Duration::from_secs(1), read_trust);
    });
    // No beat gets in between.
    let terms = LeaseTerms::new(Duration::from_secs(60), Duration::from_secs(300)).unwrap();
    let store = open_with(PostgresSettings { terms, ..settings }).await.unwrap();
    let proven = insert_settled(&store, 1).await;
    for _ in 0..4 {
        assert!(store.load(&task("a", 9).key, START).await.unwrap().is_none());
    }
    assert!(is_shown(&store, &proven).await);
    let late = insert_settled(&store, 2).await;
    new.promote();
    let promoted = Instant::now();
    assert!(is_shown(&store, &late).await, "it is trusted for now");
    assert!(store.state.settled.get(&late, |_| ReadBelief::Believed).is_some(), "it is kept");
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
