//! Tests how a start treats earlier incarnations, and the rows that a failed try leaves.

use super::incarnations::two;
use super::*;

/// The server logs the sequence this far ahead, so a restored one continues behind these numbers.
const LOGGED_AHEAD: u64 = 32;

fn sealing_with(mut settings: PostgresSettings, key: u8) -> PostgresSettings {
    settings.replica.key_prints = vec![[key; 8]];
    settings
}

fn named(mut settings: PostgresSettings, name: &str) -> PostgresSettings {
    name.clone_into(&mut settings.replica.name);
    settings
}

/// A try's unfinished statement waits for the standby, possibly for long.
#[tokio::test(flavor = "multi_thread")]
async fn tries_while_a_standby_is_away_leave_one_connection_that_waits_for_it() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let settings = with(settings(&server, &new_schema()), |access| access.write_max = Duration::from_secs(1));
    opened(settings.clone()).await.close().await;
    name_standbys(&server, "missing").await;
    for _ in 0..3 {
        let refused = open_with(settings.clone()).await;
        assert!(refused.as_ref().is_err_and(|error| error.retry() == Retry::Always), "{refused:?}");
    }
    let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'taskgate %' AND state <> 'idle'";
    until("one is left", || server.psql(left) == "1").await;
    name_standbys(&server, "").await;
    until("it has ended", || server.psql(left) == "0").await;
    opened(settings).await.close().await;
}

/// A new incarnation in the same process finds the unfinished writer before it, and leaves no row itself.
#[tokio::test(flavor = "multi_thread")]
async fn tries_while_an_earlier_writer_is_not_done_leave_no_rows() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    let session = store.connector.connect("writer left", None).await.unwrap();
    session
        .client
        .batch_execute(&format!("SET application_name = '{}writer'", store.connector.name_of_connections()))
        .await
        .unwrap();
    store.close().await;
    session.client.batch_execute("BEGIN").await.unwrap();
    let rows = || server.psql(&format!("SELECT count(*) FROM {schema}.tg_replica"));
    let refused = open_with(settings(server, &schema)).await;
    assert!(refused.as_ref().is_err_and(|error| error.retry() == Retry::Always), "{refused:?}");
    assert_eq!(rows(), "1");
    session.client.batch_execute("ROLLBACK").await.unwrap();
    opened(settings(server, &schema)).await.close().await;
    assert_eq!(rows(), "2");
}

/// Else the others divide their limits by each try.
#[tokio::test(flavor = "multi_thread")]
async fn tries_whose_writer_fails_leave_no_living_rows() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    opened(settings(server, &schema)).await.close().await;
    server.psql(&format!(
        "SET search_path = {schema};
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END';
        CREATE TRIGGER refuse BEFORE UPDATE ON tg_lane FOR EACH ROW EXECUTE FUNCTION refuse()"
    ));
    let rows = |of: &str| server.psql(&format!("SELECT count(*) FROM {schema}.tg_replica WHERE {of}"));
    let begin = Instant::now();
    // A try may also fail before it has a row.
    while rows("dead") != "2" {
        let refused = open_with(settings(server, &schema)).await;
        assert!(refused.as_ref().is_err_and(|error| error.retry() == Retry::Always), "{refused:?}");
        assert_eq!(rows("NOT dead"), "0");
        assert!(begin.elapsed() < PATIENCE, "no try comes to its row");
    }
    server.psql(&format!("DROP TRIGGER refuse ON {schema}.tg_lane"));
    opened(settings(server, &schema)).await.close().await;
}

/// The writer hangs, and then the removal of its row would hang, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_at_a_database_that_hangs_fails_in_time() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let settings = with(settings(server, &schema), |access| access.write_max = Duration::from_secs(3));
    opened(settings.clone()).await.close().await;
    server.psql(&format!(
        "SET search_path = {schema};
        CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN LOCK TABLE tg_replica; PERFORM pg_sleep(120); RETURN NEW; END';
        CREATE TRIGGER hang BEFORE UPDATE ON tg_lane FOR EACH ROW EXECUTE FUNCTION hang()"
    ));
    let tried = tokio::time::timeout(PATIENCE, open_with(settings)).await;
    assert!(tried.as_ref().is_ok_and(Result::is_err), "{tried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_whose_leases_differ_do_not_take_each_other_for_dead() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let terms = lease(LeaseTerms::LEASE_MIN);
    let short = opened(PostgresSettings { terms, ..settings(server, &schema) }).await;
    let long = opened(named(settings(server, &schema), "long")).await;
    tokio::time::sleep(LeaseTerms::LEASE_MIN * 2).await;
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.tg_replica WHERE dead")), "0");
    for store in [short, long] {
        store.close().await;
    }
}

/// As after a crash of all replicas, which return with another key.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_silent_for_a_lease_keeps_no_gateway_with_another_key_from_starting() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let gone = open_with(sealing_with(settings(server, &schema), 1)).await.unwrap();
    let made = task("a", 1);
    gone.insert(&made).await.unwrap();
    let former = gone.holder();
    // Its row stays as it is.
    drop(gone);
    let quick = PostgresSettings { terms: lease(LeaseTerms::LEASE_MIN), ..settings(server, &schema) };
    let other = sealing_with(named(quick, "other"), 2);
    let began = Instant::now();
    let store = opened(other.clone()).await;
    assert!(began.elapsed() >= other.terms.lease(), "{:?}", began.elapsed());
    let dead = format!("SELECT incarnation FROM {schema}.tg_replica WHERE dead");
    assert_eq!(server.psql(&dead), former.to_string());
    assert_eq!(store.claim(9, &known()).await.unwrap(), [made.key]);
    // A replica with a heartbeat refuses it as soon as it is seen.
    let began = Instant::now();
    let third = sealing_with(named(settings(server, &schema), "third"), 3);
    let refused = open_with(third.clone()).await.unwrap_err();
    assert!(matches!(&refused, PostgresOpenError::SealKeys { name } if name == "other"), "{refused}");
    assert!(began.elapsed() < third.terms.lease(), "{:?}", began.elapsed());
    assert_eq!(server.psql(&dead), former.to_string());
    store.close().await;
}

/// Restored to a moment in between: incarnations numbered since are missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_lacks_the_incarnation_before_is_older_however_far_its_numbers_are() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    let incarnation = store.as_prior();
    store.close().await;
    let ahead = incarnation.holder.0 + LOGGED_AHEAD;
    server.psql(&format!(
        "SET search_path = {schema}; DELETE FROM tg_replica; DELETE FROM tg_lane;
        SELECT setval('tg_replica_incarnation_seq', {ahead})"
    ));
    let next = PostgresSettings { prior: Some(incarnation), ..settings(server, &schema) };
    let refused = open_with(next.clone()).await;
    assert!(matches!(refused, Err(PostgresOpenError::Lost { .. })), "{refused:?}");
    let accepted = with(next, |access| access.accept_loss = Some(incarnation.generation));
    let store = opened(accepted).await;
    assert!(store.holder().0 > ahead);
    store.close().await;
}

/// As if it was restored while its gateway could not reach it.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_has_fewer_heartbeats_than_it_acknowledged_to_the_incarnation_before_is_older() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    until("beats are acknowledged", || store.as_prior().heartbeat > 1).await;
    let incarnation = store.as_prior();
    store.close().await;
    let next = PostgresSettings { prior: Some(incarnation), ..settings(server, &schema) };
    opened(next.clone()).await.close().await;
    let loses = |set: &str| server.psql(&format!("UPDATE {schema}.{set}"));
    loses(&format!("tg_replica SET beat = {} WHERE incarnation = {}", incarnation.heartbeat - 1, incarnation.holder));
    let refused = open_with(next.clone()).await;
    assert!(matches!(refused, Err(PostgresOpenError::Lost { .. })), "{refused:?}");
    let accepted = with(next, |access| access.accept_loss = Some(incarnation.generation));
    opened(accepted.clone()).await.close().await;
    loses("tg_meta SET generation = gen_random_uuid()");
    let refused = open_with(accepted).await;
    assert!(matches!(refused, Err(PostgresOpenError::Lost { .. })), "{refused:?}");
}

/// A replica that existed at that moment may be the first to start: it has lost nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_incarnation_is_there_hides_from_no_other_that_its_own_is_not() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let [early, late] = two(server, &schema).await;
    let [first, next] = [&early, &late].map(|store| {
        let settings = (*store.state.settings).clone();
        PostgresSettings { prior: Some(store.as_prior()), ..settings }
    });
    let incarnation = late.holder().0;
    for store in [early, late] {
        store.close().await;
    }
    server.psql(&format!(
        "SET search_path = {schema}; DELETE FROM tg_replica WHERE incarnation = {incarnation};
        DELETE FROM tg_lane WHERE incarnation = {incarnation}; SELECT setval('tg_replica_incarnation_seq', {})",
        incarnation + LOGGED_AHEAD
    ));
    let first = open_with(first).await.expect("nothing is lost to it");
    let refused = open_with(next).await;
    assert!(matches!(refused, Err(PostgresOpenError::Lost { .. })), "{refused:?}");
    first.close().await;
}

/// The last removed incarnation is known to have been removed, and so are all earlier ones.
#[tokio::test(flavor = "multi_thread")]
async fn an_incarnation_that_was_forgotten_is_no_sign_of_a_database_that_is_older() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let asked = opened(settings(server, &schema)).await;
    let gone = open_with(named(settings(server, &schema), "gone")).await.unwrap();
    let prior = gone.as_prior();
    gone.close().await;
    assert_eq!(asked.forget("gone").await.unwrap(), ReplicaForgetting::Forgotten(1));
    let lanes = || {
        server.psql(&format!("SELECT string_agg(incarnation::text, ' ' ORDER BY incarnation) FROM {schema}.tg_lane"))
    };
    let next = PostgresSettings { prior: Some(prior), ..named(settings(server, &schema), "gone") };
    let next = opened(next).await;
    upkeep::pass(&asked.queue, None).await.unwrap();
    let [first, forgotten, last] = [asked.holder(), prior.holder, next.holder()];
    assert_eq!(lanes(), format!("{first} {forgotten} {last}"));
    next.close().await;
    assert_eq!(asked.forget("gone").await.unwrap(), ReplicaForgetting::Forgotten(1));
    upkeep::pass(&asked.queue, None).await.unwrap();
    assert_eq!(lanes(), format!("{first} {last}"), "the other is not needed any more");
    let next = PostgresSettings { prior: Some(prior), ..named(settings(server, &schema), "gone") };
    let next = opened(next).await;
    for store in [next, asked] {
        store.close().await;
    }
}
