//! Tests how much one sweep frees.

use super::*;
use crate::store::tasks::SWEEP_BYTES_MAX;

/// Expired rows with these sizes.
fn fill(server: &PostgresServer, schema: &str, sizes: &[u64]) {
    for (number, size) in sizes.iter().enumerate() {
        server.psql(&format!(
            "INSERT INTO {schema}.tg_task
                (id, owner, rev, settled, created, updated, expires, ref, size, summary, record, upstream)
            VALUES (decode(lpad('{number}', 32, '0'), 'hex'), 'a', 1, true, 1, 1, {number}, 'x', {size}, 'x', 'x', 'demo')"
        ));
    }
}

/// A larger row is freed alone. A statement that exceeds a write's time limit is rolled back, and would be repeated forever.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_bytes_are_freed_at_a_time_than_a_write_has_time_for() {
    let Some(server) = shared() else { return };
    let schema = new_schema();
    let store = opened(settings(server, &schema)).await;
    let max = u64::try_from(SWEEP_BYTES_MAX).unwrap();
    fill(server, &schema, &[3 * max, max / 2, max / 2 - 1, 1024, 1024, max - 1024, max]);
    let mut freed = Vec::new();
    while freed.last() != Some(&0) {
        freed.push(store.sweep(START, 1_000).await.unwrap());
    }
    assert_eq!(freed, [1, 3, 2, 1, 0]);
    store.close().await;
}
