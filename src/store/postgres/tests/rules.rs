//! Tests the six rules for unknown commits, each against a server that breaks its guarantee. Its standby is missing, its commit
//! is cancelled, or its backend or the server itself ends. Each test has its own server, where commits wait once a standby is
//! named that does not exist.

use support::fault_proxy::{Fault, FaultProxy, Verb};
use support::postgres::ServerStop;
use tokio::time::Instant;

use super::*;

pub(super) struct Waiting {
    server: PostgresServer,
    schema: String,
    pub(super) store: Arc<PostgresStore>,
}

pub(super) const READ_EACH: PostgresTimes =
    PostgresTimes { write_max: Duration::from_secs(3), read_trust: Duration::ZERO };
const PATIENT: PostgresTimes = PostgresTimes { write_max: Duration::from_secs(30), read_trust: Duration::ZERO };
/// With this trust in reads, results rest on earlier barriers.
const TRUSTING: PostgresTimes =
    PostgresTimes { write_max: Duration::from_secs(3), read_trust: Duration::from_secs(60) };

pub(super) struct PostgresTimes {
    write_max: Duration,
    read_trust: Duration,
}

impl Waiting {
    /// A store with task 1 of "a", on a server that does not wait for a standby yet.
    pub(super) async fn begin(times: PostgresTimes) -> Option<Self> {
        let server = PostgresServer::start(&[])?;
        let schema = new_schema();
        let PostgresTimes { write_max, read_trust } = times;
        let settings =
            with(settings(&server, &schema), |access| (access.write_max, access.read_trust) = (write_max, read_trust));
        let store = opened(settings).await;
        store.insert(&task("a", 1)).await.unwrap();
        assert!(store.load(&task("a", 1).key, START).await.unwrap().is_some());
        Some(Self { server, schema, store })
    }

    pub(super) async fn names(&self, names: &str) {
        name_standbys(&self.server, names).await;
    }

    /// The number of backends that wait for a standby, or for such a backend.
    fn backends_that_wait(&self) -> usize {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'taskgate %' \
                   AND state <> 'idle' AND (wait_event = 'SyncRep' OR wait_event_type = 'Lock')";
        self.server.psql(sql).parse().unwrap()
    }

    fn rows(&self) -> usize {
        self.server.psql(&format!("SELECT count(*) FROM {}.tg_task", self.schema)).parse().unwrap()
    }

    /// Applies a function to the writer's backend while it waits for a standby.
    async fn strike(&self, what: &str) {
        let found = || {
            let sql = format!(
                "SELECT count({what}(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name LIKE '% writer'"
            );
            self.server.psql(&sql) != "0"
        };
        until("a commit that waits", found).await;
    }

    async fn resolved(&self, key: &TaskKey) -> Option<StoredTask> {
        in_the_end(async || self.store.resolve_write(key, START).await).await
    }

    async fn shown(&self, key: &TaskKey) -> Option<StoredTask> {
        in_the_end(async || self.store.load(key, START).await).await
    }

    pub(super) async fn recovers(&self) {
        let begin = Instant::now();
        while self.store.insert(&task("b", 99)).await.is_err_and(|error| !matches!(error, StoreError::Exists)) {
            assert!(begin.elapsed() < PATIENCE, "writes go on: {:?}", self.store.health());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// However long the standby is unavailable, one commit of each connection waits for it, and retries add none.
#[tokio::test(flavor = "multi_thread")]
async fn rule_1_the_gateways_own_time_out_drops_the_connection_and_leaves_a_write_unsure() {
    let Some(at) = Waiting::begin(READ_EACH).await else { return };
    at.names("missing").await;
    let two = task("a", 2);
    let unsure = tokio::time::timeout(PATIENCE, at.store.insert(&two)).await.expect("the write has a time-out");
    assert!(matches!(unsure, Err(StoreError::UnknownCommit(_))), "{unsure:?}");
    for _ in 0..8 {
        let refused = at.store.insert(&task("a", 3)).await;
        assert!(matches!(refused, Err(StoreError::Io(_))), "{refused:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(at.backends_that_wait() <= 2, "{} commits wait", at.backends_that_wait());
    assert_eq!(at.rows(), 1, "a commit that waits was cancelled");
    assert!(
        at.store.load(&two.key, START).await.is_ok_and(|row| row.is_none()),
        "no client is shown a row with an unknown commit"
    );
    assert!(matches!(at.store.resolve_write(&two.key, START).await, Err(StoreError::Io(_))));
    at.names("").await;
    at.recovers().await;
    assert!(at.resolved(&two.key).await.is_none());
    assert_eq!((at.rows(), at.store.usage().tasks), (2, 2), "the row in doubt was removed");
    at.store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_2_a_commit_that_is_acknowledged_with_a_warning_is_unknown() {
    let Some(at) = Waiting::begin(PATIENT).await else { return };
    at.names("missing").await;
    let (store, two) = (Arc::clone(&at.store), task("a", 2));
    let (written, ()) = tokio::join!(store.insert(&two), at.strike("pg_cancel_backend"));
    assert!(matches!(written, Err(StoreError::UnknownCommit(_))), "{written:?}");
    assert_eq!(at.rows(), 2, "everybody else sees the row");
    assert!(at.store.load(&two.key, START).await.unwrap().is_none());
    at.names("").await;
    at.recovers().await;
    assert!(at.resolved(&two.key).await.is_none());
    assert_eq!(at.rows(), 2);
    at.store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_3_a_batch_without_changes_is_answered_only_after_an_own_write() {
    for number in 0..2 {
        let Some(at) = Waiting::begin(READ_EACH).await else { return };
        let one = task("a", 1);
        at.store.replace(Revision(1), WriteRole::Command, &one).await.unwrap();
        at.names("missing").await;
        let answer = match number {
            0 => at.store.insert(&one).await,
            _ => at.store.replace(Revision(7), WriteRole::Command, &one).await,
        };
        assert!(matches!(answer, Err(StoreError::UnknownCommit(_))), "{answer:?}");
        at.names("").await;
        at.recovers().await;
        assert!(at.shown(&one.key).await.is_some(), "a row that was there before was removed");
        at.store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_4_a_read_row_is_trusted_only_after_a_barrier() {
    let Some(at) = Waiting::begin(READ_EACH).await else { return };
    let key = task("a", 1).key;
    assert!(at.store.load(&key, START).await.unwrap().is_some());
    at.names("missing").await;
    let page = at.store.page(&key.owner, PageRange::new(None, 9, START)).await;
    let (row, found) = tokio::join!(at.store.load(&key, START), at.store.overdue(START, 9));
    assert!(row.is_err() && page.is_err() && found.is_err(), "{row:?} {page:?} {found:?}");
    at.names("").await;
    at.recovers().await;
    assert!(at.shown(&key).await.is_some());
    at.store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_5_a_write_whose_connection_ended_is_unsure_until_a_barrier_of_the_next_one() {
    let Some(at) = Waiting::begin(PATIENT).await else { return };
    at.names("missing").await;
    let (store, two) = (Arc::clone(&at.store), task("a", 2));
    let (written, ()) = tokio::join!(store.insert(&two), at.strike("pg_terminate_backend"));
    assert!(matches!(written, Err(StoreError::UnknownCommit(_))), "{written:?}");
    assert_eq!(at.rows(), 2, "everybody else sees the row");
    assert!(at.store.load(&two.key, START).await.unwrap().is_none());
    at.names("").await;
    at.recovers().await;
    assert_eq!(at.rows(), 2, "the row in doubt was removed");
    // A restart ends all connections, and acknowledged writes survive.
    let three = task("a", 3);
    let revision = at.store.insert(&three).await.unwrap();
    for how in [ServerStop::Fast, ServerStop::Immediate] {
        at.server.stop(how);
        let refused = at.store.insert(&task("a", 4)).await;
        assert!(matches!(refused, Err(StoreError::Io(_) | StoreError::UnknownCommit(_))), "{refused:?}");
        at.server.restart();
        at.recovers().await;
        let found = at.shown(&three.key).await;
        assert_eq!(found.map(|row| row.revision), Some(revision));
    }
    at.store.close().await;
}

/// While the commit waits, no connection is made, which would itself require a barrier.
#[tokio::test(flavor = "multi_thread")]
async fn rule_5_no_earlier_barrier_proves_a_read_after_an_unknown_commit() {
    let Some(at) = Waiting::begin(TRUSTING).await else { return };
    let one = task("a", 1);
    for _ in 0..4 {
        assert!(at.store.load(&one.key, START).await.unwrap().is_some());
    }
    at.names("missing").await;
    let half = Task { status_message: Some("half".into()), ..one };
    let unsure = at.store.replace(Revision(1), WriteRole::Command, &half).await;
    assert!(matches!(unsure, Err(StoreError::UnknownCommit(_))), "{unsure:?}");
    let read = at.store.load(&half.key, START).await;
    assert!(read.is_err(), "{read:?}");
    at.names("").await;
    at.recovers().await;
    at.store.close().await;
}

/// A server that has not read a batch yet does not report its statement as unfinished.
#[tokio::test(flavor = "multi_thread")]
async fn rule_5_a_batch_with_an_unknown_commit_that_comes_after_the_next_barrier_changes_nothing() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let (schema, proxy) = (new_schema(), FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await);
    let store = opened(behind(&proxy, settings(&server, &schema))).await;
    store.insert(&task("a", 1)).await.unwrap();
    proxy.set_present(Fault::up("", 0, Verb::Hold));
    let two = task("a", 2);
    let unsure = store.insert(&two).await;
    assert!(matches!(unsure, Err(StoreError::UnknownCommit(_))), "{unsure:?}");
    let begin = Instant::now();
    while !matches!(store.resolve_write(&two.key, START).await, Ok(None)) {
        assert!(begin.elapsed() < PATIENCE, "{:?}", store.health());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let writers = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '% writer'";
    until("the next connection is there, beside the batch that is under way", || server.psql(writers) == "2").await;
    proxy.set(None);
    until("the batch has come", || server.psql(writers) == "1").await;
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.tg_task")), "1");
    store.close().await;
}

/// The rule for emptied standby names (section 5), and the guarantee of a pair of servers.
#[tokio::test(flavor = "multi_thread")]
async fn rule_6_a_commit_of_a_server_that_names_no_standby_is_unknown() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let settings = with(settings(&server, &new_schema()), |access| access.durability = Durability::Replicated);
    let refused = open_with(settings.clone()).await;
    assert!(matches!(refused, Err(PostgresOpenError::NoStandby)), "{refused:?}");
    let standby = PostgresServer::standby_of(&server, "one");
    name_standbys(&server, "one").await;
    let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    until("the standby follows", || server.psql(sql) == "1").await;
    let store = opened(settings).await;
    store.insert(&task("a", 1)).await.unwrap();
    name_standbys(&server, "").await;
    let unsure = store.insert(&task("a", 2)).await;
    assert!(matches!(unsure, Err(StoreError::UnknownCommit(_))), "{unsure:?}");
    until("readiness says why", || store.health() == PostgresHealth::NoStandby).await;
    assert!(matches!(store.insert(&task("a", 3)).await, Err(StoreError::Io(_))));
    name_standbys(&server, "one").await;
    until("all is well again", || store.health() == PostgresHealth::Good).await;
    assert!(store.resolve_write(&task("a", 2).key, START).await.unwrap().is_none());
    store.insert(&task("a", 3)).await.unwrap();
    assert_eq!(store.usage().tasks, 2);
    store.close().await;
    drop(standby);
}

/// Each heartbeat also checks the standby names.
#[tokio::test(flavor = "multi_thread")]
async fn n2_emptied_names_of_standbys_are_noticed_without_writes() {
    let Some([server, _standby]) = pair().await else { return };
    let settings = with(settings(&server, &new_schema()), |access| access.durability = Durability::Replicated);
    let store = opened(settings).await;
    name_standbys(&server, "").await;
    until("readiness says why", || store.health() == PostgresHealth::NoStandby).await;
    name_standbys(&server, "one").await;
    until("all is well again", || store.health() == PostgresHealth::Good).await;
    store.close().await;
}

/// Its writer refuses to show such a row; the others make their own barriers.
#[tokio::test(flavor = "multi_thread")]
async fn n3_a_commit_that_a_person_released_is_not_shown_by_another_gateway() {
    for released_by in ["pg_cancel_backend", "pg_terminate_backend"] {
        let Some(at) = Waiting::begin(PATIENT).await else { return };
        let beside = with((*at.store.state.settings).clone(), |access| access.write_max = READ_EACH.write_max);
        let replica = ReplicaDescription { name: "beside".into(), ..beside.replica };
        let other = opened(PostgresSettings { replica, ..beside }).await;
        at.names("missing").await;
        let (store, two) = (Arc::clone(&at.store), task("a", 2));
        let (written, ()) = tokio::join!(store.insert(&two), at.strike(released_by));
        assert!(matches!(written, Err(StoreError::UnknownCommit(_))), "{written:?}");
        assert_eq!(at.rows(), 2, "it is there to be seen");
        let shown = other.load(&two.key, START).await;
        assert!(shown.is_err(), "{shown:?}");
        at.names("").await;
        at.recovers().await;
        let begin = Instant::now();
        while !matches!(other.resolve_write(&two.key, START).await, Ok(None)) {
            assert!(begin.elapsed() < PATIENCE, "{:?}", other.health());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for store in [other, store] {
            store.close().await;
        }
    }
}

/// A pair of servers; the first waits for the other.
pub(super) async fn pair() -> Option<[PostgresServer; 2]> {
    let server = PostgresServer::start(&[])?;
    let standby = PostgresServer::standby_of(&server, "one");
    name_standbys(&server, "one").await;
    let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    until("the standby follows", || server.psql(sql) == "1").await;
    Some([server, standby])
}

#[tokio::test(flavor = "multi_thread")]
async fn n4_reads_of_an_old_primary_are_trusted_for_read_trust_alone() {
    // Longer than a promotion takes.
    for read_trust in [Duration::ZERO, Duration::from_secs(12)] {
        let Some([old, new]) = pair().await else { return };
        let settings = with(settings(&old, &new_schema()), |access| {
            access.durability = Durability::Replicated;
            (access.write_max, access.read_trust) = (Duration::from_secs(3), read_trust);
        });
        let store = opened(settings).await;
        let one = task("a", 1);
        store.insert(&one).await.unwrap();
        // Each new connection requires a barrier; no more are made.
        for _ in 0..4 {
            assert!(store.load(&one.key, START).await.unwrap().is_some());
        }
        new.promote();
        let promoted = Instant::now();
        let (mut believed, mut is_refused) = (0, false);
        while !is_refused || promoted.elapsed() < read_trust {
            let begun = promoted.elapsed();
            match store.load(&one.key, START).await {
                Ok(_) => {
                    believed += 1;
                    assert!(
                        begun < read_trust,
                        "believed {begun:?} after another was promoted, trusted {read_trust:?}"
                    );
                }
                Err(_) => is_refused = true,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(believed > 0, !read_trust.is_zero(), "{believed} reads");
        let unsure = store.insert(&task("a", 2)).await;
        assert!(matches!(unsure, Err(StoreError::UnknownCommit(_) | StoreError::Io(_))), "{unsure:?}");
        assert!(store.resolve_write(&one.key, START).await.is_err());
        store.close().await;
    }
}

/// An old primary that keeps running, with commits that wait for a standby that has been promoted.
#[tokio::test(flavor = "multi_thread")]
async fn n4_a_host_where_commits_wait_keeps_no_gateway_from_the_new_primary() {
    let Some([old, new]) = pair().await else { return };
    let hosts = [&old, &new].map(|server| format!("{}:{}", server.host().replace('/', "%2F"), server.port()));
    let settings = with(settings(&old, &new_schema()), |access| {
        access.url = DatabaseUrl::Here(format!("postgres://postgres@{}/postgres", hosts.join(",")));
        access.write_max = Duration::from_secs(1);
    });
    let store = opened(settings).await;
    store.insert(&task("a", 1)).await.unwrap();
    new.promote();
    let begin = Instant::now();
    while store.insert(&task("a", 2)).await.is_err_and(|error| !matches!(error, StoreError::Exists)) {
        assert!(begin.elapsed() < PATIENCE, "{:?}", store.health());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    until("all is well there", || store.health() == PostgresHealth::Good).await;
    store.close().await;
}

/// Rule 6 with several connections: a barrier on one server proves nothing about reads from another.
#[tokio::test(flavor = "multi_thread")]
async fn n4_a_barrier_on_the_new_primary_proves_nothing_of_the_old_one() {
    let Some([old, new]) = pair().await else { return };
    let hosts = [&new, &old].map(|server| format!("{}:{}", server.host().replace('/', "%2F"), server.port()));
    let url = format!("postgres://postgres@{}/postgres", hosts.join(","));
    let settings = with(settings(&old, &new_schema()), |access| {
        access.url = DatabaseUrl::Here(url);
        (access.write_max, access.read_trust) = (Duration::from_secs(3), Duration::from_secs(60));
    });
    let store = opened(settings).await;
    let (one, two) = (task("a", 1), task("a", 2));
    store.insert(&one).await.unwrap();
    for _ in 0..4 {
        assert!(store.load(&one.key, START).await.unwrap().is_some());
    }
    new.promote();
    // The writer finds the new primary; the readers are still at the old one.
    let writer = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE '% writer'";
    assert_eq!(old.psql(writer), "1");
    let begin = Instant::now();
    while store.insert(&two).await.is_err_and(|error| !matches!(error, StoreError::Exists)) {
        assert!(begin.elapsed() < PATIENCE, "{:?}", store.health());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let found = in_the_end(async || store.load(&two.key, START).await).await;
    assert!(found.is_some(), "the old primary is believed");
    assert!(in_the_end(async || store.resolve_write(&two.key, START).await).await.is_some());
    store.close().await;
}
