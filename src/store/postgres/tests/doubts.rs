//! Tests how other replicas see writes with an unknown commit. No shown task is lost, and no row stays without a holder.

use std::collections::BTreeSet;

use super::rules::{READ_EACH, Waiting};
use super::*;
use crate::store::contract::{NAME, named, settled};

/// Two replicas on one database. One can be cut off from the server's answers, while its requests arrive.
pub(super) struct Deafened {
    pub(super) proxy: FaultProxy,
    pub(super) deaf: Arc<PostgresStore>,
    pub(super) other: Arc<PostgresStore>,
}

impl Deafened {
    pub(super) async fn begin(server: &PostgresServer) -> Self {
        let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await;
        let other = settings(server, &new_schema());
        let mut deaf = behind(&proxy, other.clone());
        deaf.replica.name.push('+');
        Self { proxy, other: opened(other).await, deaf: opened(deaf).await }
    }

    /// Inserts a row with an unknown commit, at the deaf replica.
    async fn insert_in_doubt(&self, task: &Task) {
        self.proxy.set(Some(Fault::down("", 0, Verb::Hold)));
        let unsure = self.deaf.insert(task).await;
        assert!(matches!(unsure, Err(StoreError::UnknownCommit(_))), "{unsure:?}");
        self.has(&task.key).await;
    }

    /// Waits for a row that the deaf replica has sent: the server may take longer than that replica waits.
    async fn has(&self, key: &TaskKey) {
        let begin = Instant::now();
        while self.other.load(key, START).await.unwrap().is_none() {
            assert!(begin.elapsed() < PATIENCE, "it is not inserted");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The row's final state, once answers arrive again.
    pub(super) async fn found_out(&self, key: &TaskKey) -> Option<StoredTask> {
        self.proxy.set(None);
        in_the_end(async || self.deaf.resolve_write(key, START).await).await
    }

    pub(super) async fn close(self) {
        for store in [self.deaf, self.other] {
            store.close().await;
        }
    }
}

/// L1: a client with a refused call repeats it at another replica, and gets the first call's handle.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_with_an_unknown_commit_whose_handle_another_gateway_gave_out_stays_and_is_its_makers() {
    let Some(server) = shared() else { return };
    let at = Deafened::begin(server).await;
    let one = named("a", 1);
    at.insert_in_doubt(&one).await;
    let find = async || at.other.find_idempotent(&one.key.owner, &NAME.key, START).await.unwrap().unwrap();
    let shown = find().await;
    assert_eq!((shown.revision, shown.holder), (Revision(2), Some(at.deaf.holder())));
    assert_eq!(find().await.revision, Revision(2), "once is enough");
    let found = at.found_out(&one.key).await;
    assert_eq!(found.map(|row| (row.revision, row.holder)), Some((Revision(2), Some(at.deaf.holder()))));
    at.deaf.replace(Revision(2), WriteRole::Holder, &one).await.expect("it goes on with it");
    assert_eq!(find().await.revision, Revision(3));
    at.close().await;
}

/// A row without a later write is removed, since no client was notified of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_with_an_unknown_commit_whose_handle_was_not_sent_is_removed() {
    let Some(server) = shared() else { return };
    let at = Deafened::begin(server).await;
    let one = named("a", 1);
    at.insert_in_doubt(&one).await;
    assert!(at.found_out(&one.key).await.is_none());
    assert!(at.other.load(&one.key, START).await.unwrap().is_none());
    assert_eq!(at.other.insert(&one).await.unwrap(), Revision(1), "its name is free");
    at.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_insert_with_an_unknown_commit_takes_no_row_away_that_others_made_or_hold() {
    let Some(server) = shared() else { return };
    let at = Deafened::begin(server).await;
    let (own, done, taken) = (task("a", 1), settled(task("a", 2), "r"), task("a", 3));
    for row in [&own, &done] {
        at.other.insert(row).await.unwrap();
    }
    at.proxy.set(Some(Fault::down("", 0, Verb::Hold)));
    // The first is sent whether or not the others join its batch.
    let all = tokio::join!(biased; at.deaf.insert(&taken), at.deaf.insert(&own), at.deaf.insert(&done));
    assert!(matches!(all, (Err(StoreError::UnknownCommit(_)), Err(_), Err(_))), "{all:?}");
    at.has(&taken.key).await;
    assert!(at.other.declare_dead(at.deaf.holder()).await.unwrap());
    assert_eq!(at.other.claim(9, &known()).await.unwrap(), std::slice::from_ref(&taken.key));
    for row in [&own, &done, &taken] {
        assert!(at.found_out(&row.key).await.is_some(), "{:?}", row.key);
        at.deaf.remove(&row.key).await.unwrap();
        let is_there = at.other.load(&row.key, START).await.unwrap().is_some();
        assert_eq!(is_there, !row.is_settled(), "{:?}", row.key);
    }
    at.close().await;
}

/// No other replica claims such rows: their holder is alive.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_claim_with_an_unknown_commit_are_handed_out_by_the_next_claims() {
    let Some(at) = Waiting::begin(READ_EACH).await else { return };
    let mut beside = (*at.store.state.settings).clone();
    beside.replica.name.push('+');
    let ended = opened(beside).await;
    let wanted: BTreeSet<_> = (2..7).map(|id| task("a", id).key).collect();
    for id in 2..7 {
        ended.insert(&task("a", id)).await.unwrap();
    }
    assert!(at.store.declare_dead(ended.holder()).await.unwrap());
    until("the death is seen", || at.store.view.now().has_dead()).await;
    at.names("missing").await;
    let refused = at.store.claim(9, &known()).await;
    assert!(matches!(refused, Err(StoreError::Io(_))), "{refused:?}");
    at.names("").await;
    at.recovers().await;
    let mut claimed = Vec::new();
    let begin = Instant::now();
    while !wanted.iter().all(|key| claimed.contains(key)) {
        let some = at.store.claim(2, &known()).await.unwrap_or_default();
        assert!(some.len() <= 2);
        claimed.extend(some);
        assert!(begin.elapsed() < PATIENCE, "only {claimed:?}");
    }
    let once: BTreeSet<_> = claimed.iter().collect();
    assert_eq!(once.len(), claimed.len(), "{claimed:?}");
    while !at.store.claim(9, &known()).await.unwrap().is_empty() {}
    let keys: Vec<_> = wanted.into_iter().collect();
    assert_eq!(at.store.holders(&keys).await.unwrap(), vec![Some(at.store.holder()); keys.len()]);
    ended.close().await;
    at.store.close().await;
}
