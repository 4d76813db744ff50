//! Tests the metrics for operators.

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio_postgres::NoTls;

use super::*;

fn value(page: &PrometheusHandle, name: &str) -> f64 {
    let page = page.render();
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

async fn until_some(page: &PrometheusHandle, name: &str) {
    until(name, || value(page, name) > 0.0).await;
}

#[test]
fn the_state_of_a_database_is_in_the_metrics() {
    let Some(server) = PostgresServer::start(&[]) else { return };
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    // All spawned tasks run on this thread, which alone has the recorder.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(course(&server, &page)));
}

async fn course(server: &PostgresServer, page: &PrometheusHandle) {
    let (other, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    TaskTracker::new().spawn(connection);
    other.batch_execute("BEGIN; SELECT 1").await.unwrap();
    let schema = new_schema();
    let quick = with(settings(server, &schema), |access| access.write_max = Duration::from_secs(5));
    let mut beside = quick.clone();
    beside.replica.name.push('+');
    let (old, one) = (opened(quick).await, task("a", 1));
    let first = old.insert(&one).await.unwrap();
    server.psql(&format!("UPDATE {schema}.tg_task SET rev = rev"));
    // A new replica looks at once.
    let store = opened(beside).await;
    until_some(page, metric::DATABASE_OLDEST_TRANSACTION).await;
    until_some(page, metric::DATABASE_DEAD_ROWS).await;
    until("both are seen", || value(page, metric::REPLICAS_LIVING) == 2.0).await;
    assert!(old.load(&one.key, START).await.unwrap().is_some());
    until_some(page, metric::REPLICA_HEARTBEATS).await;
    store.refresh_metrics();
    let age = value(page, metric::REPLICA_HEARTBEAT_AGE);
    assert!(age > 0.0 && age < 30.0, "{age}");
    assert!(value(page, metric::STORE_COMMITS) >= 1.0);
    // Each writer connection starts with a barrier.
    assert!(value(page, metric::DATABASE_BARRIERS) >= 2.0);

    assert!(store.declare_dead(old.holder()).await.unwrap());
    until("the death is seen", || store.view.now().has_dead()).await;
    assert_eq!(store.claim(9, &known()).await.unwrap(), std::slice::from_ref(&one.key));
    assert_eq!(value(page, metric::REPLICA_CLAIMED), 1.0);
    let late = old.replace(first, WriteRole::Holder, &one).await;
    assert!(matches!(late, Err(StoreError::Fenced)), "{late:?}");
    assert_eq!(value(page, metric::REPLICA_FENCED), 1.0);
    until("one is left", || value(page, metric::REPLICAS_LIVING) == 1.0).await;

    assert_eq!(value(page, metric::DATABASE_UNRESOLVED_WRITES), 0.0);
    name_standbys(server, "missing").await;
    let unsure = store.insert(&task("a", 2)).await;
    assert!(matches!(unsure, Err(StoreError::UnknownCommit(_) | StoreError::Io(_))), "{unsure:?}");
    until_some(page, metric::DATABASE_UNRESOLVED_WRITES).await;
    name_standbys(server, "").await;
    drop(other);
    for store in [old, store] {
        store.close().await;
    }
}
