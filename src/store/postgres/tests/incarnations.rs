//! Tests the remains of ended incarnations.

use super::*;

fn count_rows(server: &PostgresServer, schema: &str, table: &str) -> usize {
    server.psql(&format!("SELECT count(*) FROM {schema}.{table}")).parse().unwrap()
}

fn rows(server: &PostgresServer, schema: &str) -> [usize; 3] {
    ["tg_replica", "tg_lane", "tg_usage"].map(|table| count_rows(server, schema, table))
}

pub(super) async fn two(server: &PostgresServer, schema: &str) -> [Arc<PostgresStore>; 2] {
    let one = opened(settings(server, schema)).await;
    let mut other = settings(server, schema);
    other.replica.name.push('+');
    [one, opened(other).await]
}

/// As when several gateways start on a new database.
#[tokio::test(flavor = "multi_thread")]
async fn incarnations_that_begin_at_the_same_time_make_one_schema() {
    let Some(server) = shared() else { return };
    for _ in 0..4 {
        let schema = new_schema();
        let named = |number| {
            let mut settings = settings(server, &schema);
            settings.replica.name.push_str(&format!("-{number}"));
            open_with(settings)
        };
        let opened = futures_util::future::join_all((0..4).map(named)).await;
        for store in opened {
            store.unwrap().close().await;
        }
    }
}

/// Simulates that all dead incarnations died more than a day ago.
fn wait_a_day(server: &PostgresServer, schema: &str) {
    server.psql(&format!("UPDATE {schema}.tg_replica SET died = died - interval '25 hours'"));
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_long_dead_incarnation_are_removed_once_none_needs_them() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let [old, store] = &two(server, &schema).await;
    for id in 1..4 {
        old.insert(&task("a", id)).await.unwrap();
    }
    old.insert(&task("b", 4)).await.unwrap();
    store.insert(&task("a", 5)).await.unwrap();
    until("the others' sums are seen", || store.usage().tasks == 5).await;
    let usage = || (store.usage(), store.usage_of(&Principal::new("a")), store.usage_of(&Principal::new("b")));
    let (before, pass) = (usage(), async || upkeep::pass(&store.queue, None).await.unwrap());
    assert!(store.declare_dead(old.holder()).await.unwrap());
    until("the death is seen", || store.view.now().has_dead()).await;
    pass().await;
    assert_eq!(rows(server, &schema), [2, 2, 3], "it died a moment ago");
    wait_a_day(server, &schema);
    pass().await;
    assert_eq!(rows(server, &schema), [2, 2, 3], "rows name it");
    while !store.claim(100, &known()).await.unwrap().is_empty() {}
    pass().await;
    assert_eq!(rows(server, &schema), [2, 2, 2], "its sums are another's");
    // A look that was under way counts them once more, until the next one.
    until("the sums are the same", || usage() == before).await;
    pass().await;
    assert_eq!(rows(server, &schema), [1, 2, 2], "but for the lane of the last one");
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(usage(), before, "after looks");
    for store in [old, store] {
        store.close().await;
    }
    // The next process counts the same.
    let next = opened(settings(server, &schema)).await;
    assert_eq!(next.usage(), before.0);
    next.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_sums_than_a_portion_are_taken_over_in_several() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let [old, store] = two(server, &schema).await;
    let me = old.holder().0;
    old.close().await;
    server.psql(&format!(
        "INSERT INTO {schema}.tg_usage SELECT {me}, n::text::bytea, 1, 1, 100 FROM generate_series(1, 2500) AS n"
    ));
    until("the others' sums are seen", || store.usage().tasks == 2_500).await;
    until("the death is seen", || store.view.now().has_dead()).await;
    wait_a_day(server, &schema);
    upkeep::pass(&store.queue, None).await.unwrap();
    upkeep::pass(&store.queue, None).await.unwrap();
    assert_eq!(rows(server, &schema), [1, 2, 2_500]);
    let all = Usage { tasks: 2_500, unsettled: 2_500, bytes: 250_000 };
    until("the sums are the same", || store.usage() == all).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_inserted_after_its_holders_death_is_claimed_and_none_once_its_rows_are_removed() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let [dead, store] = two(server, &schema).await;
    assert!(store.declare_dead(dead.holder()).await.unwrap());
    let late = task("a", 1);
    dead.insert(&late).await.expect("it does not know yet");
    until("the death is seen", || store.view.now().has_dead()).await;
    assert_eq!(store.claim(9, &known()).await.unwrap(), std::slice::from_ref(&late.key));
    let late = dead.replace(Revision(1), WriteRole::Holder, &late).await;
    assert!(matches!(late, Err(StoreError::Fenced)), "{late:?}");
    wait_a_day(server, &schema);
    upkeep::pass(&store.queue, None).await.unwrap();
    let refused = dead.insert(&task("a", 2)).await;
    assert!(matches!(refused, Err(StoreError::UnknownCommit(_))), "its writer is shut out: {refused:?}");
    upkeep::pass(&store.queue, None).await.unwrap();
    let refused = dead.insert(&task("a", 3)).await;
    assert!(matches!(refused, Err(StoreError::Io(_))), "{refused:?}");
    assert_eq!(count_rows(server, &schema, "tg_task"), 1);
    for store in [dead, store] {
        store.close().await;
    }
}

/// Only dead incarnations can be forgotten early.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_incarnation_is_forgotten_once_no_row_names_it_and_its_sums_are_kept() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let [asked, gone] = &two(server, &schema).await;
    let name = format!("{schema}+");
    asked.insert(&task("a", 1)).await.unwrap();
    gone.insert(&task("a", 2)).await.unwrap();
    until("the others' sums are seen", || asked.usage().tasks == 2).await;
    let usage = || (asked.usage(), asked.usage_of(&Principal::new("a")));
    let before = usage();
    let forget = async |name: &str| asked.forget(name).await.unwrap();
    assert_eq!(forget("missing").await, ReplicaForgetting::Unknown);
    assert_eq!(forget(&name).await, ReplicaForgetting::Alive);
    assert!(asked.declare_dead(gone.holder()).await.unwrap());
    assert_eq!(forget(&name).await, ReplicaForgetting::Holding(1));
    assert_eq!(rows(server, &schema), [2, 2, 2], "nothing was changed");
    until("the death is seen", || asked.view.now().has_dead()).await;
    let two = task("a", 2).key;
    let holders = async || asked.holders(&[two.clone(), task("b", 9).key, task("a", 1).key]).await.unwrap();
    assert_eq!(holders().await, [Some(gone.holder()), None, Some(asked.holder())]);
    while !asked.claim(100, &known()).await.unwrap().is_empty() {}
    assert_eq!(holders().await, [Some(asked.holder()), None, Some(asked.holder())]);
    assert_eq!(forget(&name).await, ReplicaForgetting::Forgotten(1));
    assert_eq!(rows(server, &schema), [1, 2, 1], "at once, a moment after its death, but for the lane of the last one");
    // A look that was under way has its rows and sums once more, until the next one.
    until("it is not seen any more", || !asked.view.now().has_dead()).await;
    until("the sums are the same", || usage() == before).await;
    let refused = gone.insert(&task("a", 3)).await;
    assert!(refused.is_err(), "its writer is shut out: {refused:?}");
    assert_eq!(forget(&name).await, ReplicaForgetting::Unknown);
    assert_eq!((usage(), count_rows(server, &schema, "tg_task")), (before, 2));
    for store in [asked, gone] {
        store.close().await;
    }
}

/// The row of a dead incarnation, beside a living one with the same name.
#[tokio::test(flavor = "multi_thread")]
async fn incarnations_that_died_are_forgotten_beside_one_of_their_name_that_lives() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    for _ in 0..2 {
        opened(settings(server, &schema)).await.close().await;
    }
    let store = opened(settings(server, &schema)).await;
    assert_eq!(rows(server, &schema)[0], 3);
    assert_eq!(store.forget(&schema).await.unwrap(), ReplicaForgetting::Forgotten(2));
    assert_eq!(store.forget(&schema).await.unwrap(), ReplicaForgetting::Alive);
    assert_eq!(rows(server, &schema)[0], 1);
    store.insert(&task("a", 1)).await.unwrap();
    store.close().await;
}

/// N06.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_an_upstream_that_an_incarnation_lacks_is_left_to_others_for_as_long_as_calls_go_on_alone() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let terms = LeaseTerms::new(LeaseTerms::LEASE_MIN, Duration::from_secs(5)).unwrap();
    let dead = opened(PostgresSettings { terms, ..settings(server, &schema) }).await;
    let made = task("a", 1);
    dead.insert(&made).await.unwrap();
    let mut other = PostgresSettings { terms, ..settings(server, &schema) };
    other.replica.name.push('+');
    let store = opened(other).await;
    assert!(store.declare_dead(dead.holder()).await.unwrap());
    assert!(store.claim(9, &[Arc::from("else")]).await.unwrap().is_empty());
    until("no other replica comes for it", || !store.view.now().abandoned.is_empty()).await;
    assert_eq!(store.claim(9, &[Arc::from("else")]).await.unwrap(), std::slice::from_ref(&made.key));
    for store in [dead, store] {
        store.close().await;
    }
}

/// It would soon release them, and no other replica could claim them earlier.
#[tokio::test(flavor = "multi_thread")]
async fn an_incarnation_that_is_about_to_end_leaves_the_rows_of_the_dead_to_others() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let [dead, leaving] = two(server, &schema).await;
    let made = task("a", 1);
    dead.insert(&made).await.unwrap();
    assert!(leaving.declare_dead(dead.holder()).await.unwrap());
    leaving.leave();
    assert!(leaving.claim(9, &known()).await.unwrap().is_empty());
    leaving.close().await;
    let next = opened(settings(server, &schema)).await;
    assert_eq!(next.claim(9, &known()).await.unwrap(), [made.key]);
    for store in [dead, next] {
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_the_dead_that_left_no_rows_cost_no_commits() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let [dead, store] = two(server, &schema).await;
    assert!(store.declare_dead(dead.holder()).await.unwrap());
    let writes = || server.psql(&format!("SELECT sum(writes) FROM {schema}.tg_lane"));
    let before = writes();
    for _ in 0..3 {
        assert!(store.claim(9, &known()).await.unwrap().is_empty());
    }
    assert_eq!(writes(), before);
    for store in [dead, store] {
        store.close().await;
    }
}

/// Another replica that starts while the tables are created gets an error, and leaves no waiting connection behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_beside_one_that_creates_the_tables_is_refused_and_tried_again() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let schema = new_schema();
    server.psql(
        "CREATE FUNCTION linger() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(4); END';
        CREATE EVENT TRIGGER slow ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION linger()",
    );
    let mut other = with(settings(&server, &schema), |access| access.write_max = Duration::from_secs(1));
    other.replica.name.push('+');
    let opening = TaskTracker::new().spawn(open_with(settings(&server, &schema)));
    let is_locked = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory')";
    until("the tables are created", || server.psql(is_locked) == "t").await;
    let refused = open_with(other.clone()).await.unwrap_err();
    assert!(refused.retry() == Retry::Always && refused.to_string().contains("another replica changes"), "{refused}");
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    until("no connection waits", || server.psql(waiting) == "0").await;
    for store in [opening.await.unwrap().unwrap(), opened(other).await] {
        store.close().await;
    }
}

/// The schema stays as it is, for the program that made it.
#[tokio::test(flavor = "multi_thread")]
async fn f68_a_schema_of_another_version_is_refused() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    opened(settings(server, &schema)).await.close().await;
    let own: i32 = server.psql(&format!("SELECT schema_version FROM {schema}.tg_meta")).parse().unwrap();
    for (version, said) in [
        (
            own - 1,
            format!(
                "which an older program made; this one reads {own} only. Let the older one finish its tasks, \
                           and name another schema for this one"
            ),
        ),
        (
            own + 1,
            format!(
                "which a newer program made; this one knows {own}. Run the newer one, or name another schema for this one"
            ),
        ),
    ] {
        server.psql(&format!("UPDATE {schema}.tg_meta SET schema_version = {version}"));
        let refused = open_with(settings(server, &schema)).await.unwrap_err();
        assert_eq!(refused.retry(), Retry::Never);
        assert_eq!(refused.to_string(), format!("the schema has version {version}, {said}"));
        assert_eq!(refused.key(), "store.schema");
        let left = server.psql(&format!("SELECT schema_version FROM {schema}.tg_meta"));
        assert_eq!(left, version.to_string(), "it is left as it is");
    }
}

/// A store restored from a backup reuses numbers.
#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_a_prior_incarnation_that_another_gateway_has_by_now_says_nothing() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let one = opened(settings(server, &schema)).await;
    let mut other = settings(server, &schema);
    other.replica.name.push('+');
    other.prior = Some(one.as_prior());
    let other = opened(other).await;
    assert!(!other.view.now().has_dead());
    one.insert(&task("a", 1)).await.unwrap();
    for store in [one, other] {
        store.close().await;
    }
}

/// The sums read last may be outdated.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_living_incarnation_counts_its_own_sums_alone() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let [gone, store] = two(server, &schema).await;
    store.insert(&task("a", 1)).await.unwrap();
    gone.insert(&task("a", 2)).await.unwrap();
    until("the others' sums are seen", || store.usage().tasks == 2).await;
    gone.close().await;
    let of = format!("WHERE incarnation = {}", gone.holder().0);
    server.psql(&format!("DELETE FROM {schema}.tg_usage {of}; DELETE FROM {schema}.tg_replica {of}"));
    until("they are not counted any more", || store.usage().tasks == 1).await;
    assert_eq!(store.usage_of(&Principal::new("a")).tasks, 1);
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sums_that_say_nothing_are_neither_kept_nor_taken_over() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let [old, store] = two(server, &schema).await;
    let zeros = format!("SELECT count(*) FROM {schema}.tg_usage WHERE tasks = 0 AND unsettled = 0 AND bytes = 0");
    for (id, owner) in ["a", "b", "c"].into_iter().enumerate() {
        old.insert(&task(owner, id.try_into().unwrap())).await.unwrap();
    }
    old.remove(&task("a", 0).key).await.unwrap();
    old.insert(&contract::settled(task("d", 3), "r")).await.unwrap();
    assert_eq!(old.sweep(START.after(contract::TTL), 9).await.unwrap(), 1);
    assert_eq!((server.psql(&zeros).as_str(), rows(server, &schema)[2]), ("0", 2), "a and d are gone");
    old.insert(&task("a", 4)).await.unwrap();
    assert_eq!((rows(server, &schema)[2], old.usage().tasks, old.usage_of(&Principal::new("a")).tasks), (3, 3, 1));
    // As earlier programs left them.
    let dead = old.holder().0;
    old.close().await;
    server.psql(&format!(
        "INSERT INTO {schema}.tg_usage SELECT {dead}, n::text::bytea, 0, 0, 0 FROM generate_series(1, 5) AS n"
    ));
    until("the death is seen", || store.view.now().has_dead()).await;
    while !store.claim(100, &known()).await.unwrap().is_empty() {}
    wait_a_day(server, &schema);
    for _ in 0..2 {
        upkeep::pass(&store.queue, None).await.unwrap();
    }
    assert_eq!(rows(server, &schema), [1, 2, 3]);
    until("they are counted", || store.usage().tasks == 3).await;
    for id in [4, 1, 2] {
        store.remove(&task(["", "b", "c", "", "a"][id], id.try_into().unwrap()).key).await.unwrap();
    }
    assert_eq!((rows(server, &schema)[2], store.usage()), (0, Usage::default()));
    store.close().await;
}

/// As if one replica inserts tasks of principals that never return, and another one sweeps them.
#[tokio::test(flavor = "multi_thread")]
async fn sums_that_come_to_nothing_with_those_of_another_incarnation_go() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let [one, other] = two(server, &schema).await;
    for id in 0..20 {
        one.insert(&contract::settled(task(&format!("owner {id}"), id), "r")).await.unwrap();
    }
    one.insert(&task("a", 20)).await.unwrap();
    one.insert(&contract::settled(task("a", 21), "r")).await.unwrap();
    assert_eq!(other.sweep(START.after(contract::TTL), 99).await.unwrap(), 21);
    assert_eq!(rows(server, &schema)[2], 42);
    let a = Principal::new("a");
    let usages = || [&one, &other].map(|store| (store.usage().tasks, store.usage_of(&a).tasks));
    for store in [&one, &other] {
        until("what the other did is seen", || usages() == [(1, 1); 2]).await;
        upkeep::merge(&store.queue, &store.state.sums).await.unwrap();
        until("it is no more and no less", || usages() == [(1, 1); 2]).await;
    }
    assert_eq!(rows(server, &schema)[2], 2, "the sums of an incarnation with a task");
    // Its sums that cancelled out belong to incarnation 0; later changes are counted.
    one.insert(&task("owner 1", 30)).await.unwrap();
    until("it is counted by both", || [&one, &other].map(|store| store.usage().tasks) == [2; 2]).await;
    for store in [one, other] {
        store.close().await;
    }
    let next = opened(settings(server, &schema)).await;
    assert_eq!(next.usage().tasks, 2);
    next.close().await;
}

/// The other replica may have reassigned its sums to incarnation 0, and be gone.
#[tokio::test(flavor = "multi_thread")]
async fn sums_without_an_incarnation_are_counted_by_the_only_living_one() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    for id in 1..3 {
        store.insert(&contract::settled(task("a", id), "r")).await.unwrap();
    }
    server.psql(&format!("INSERT INTO {schema}.tg_usage VALUES (0, 'a', -1, 0, -1024)"));
    until("they are counted", || store.usage().tasks == 1).await;
    store.remove(&task("a", 1).key).await.unwrap();
    until("all together have none", || store.usage() == Usage::default()).await;
    upkeep::merge(&store.queue, &store.state.sums).await.unwrap();
    assert_eq!((rows(server, &schema)[2], store.usage()), (0, Usage::default()));
    store.close().await;
}
