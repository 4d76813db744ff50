//! Tests the background file check: it yields to the writer, and still finds damage.

use super::*;

/// Reads the store without end, like the check of a file of many gigabytes.
const ENDLESS: &str =
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 'ok' FROM n, marks WHERE i < 0";

fn endless(folder: &TempDir) -> DiskSettings {
    let mut settings = settings(folder);
    settings.tuning.tick = Duration::from_millis(20);
    settings.tuning.check_first = Some(ENDLESS);
    settings
}

/// F54: a file that has to be reopened is, even during a read.
#[tokio::test]
async fn f54_a_failed_sync_during_the_check_does_not_close_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicUsize::new(0));
    let left = Arc::clone(&fails);
    let fail = move || {
        let is_struck = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        let error = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
        if is_struck { Err(rusqlite::Error::SqliteFailure(error, None)) } else { Ok(()) }
    };
    let hooks = FaultHooks { before_commit: Some(Box::new(fail)), ..roomy() };
    let store = DiskStore::open_with(endless(&folder), hooks).await.unwrap();
    until("the check reads", || store.check.is_running()).await;
    store.insert(&task("a", 1)).await.unwrap();
    fails.store(1, Ordering::SeqCst);
    assert!(matches!(store.insert(&task("a", 2)).await, Err(StoreError::Io(_))));
    assert_eq!(store.health(), StoreHealth::Good);
    store.insert(&task("a", 3)).await.unwrap();
    until("the check has come to its end", || store.check.is_over()).await;
    assert_eq!(store.health(), StoreHealth::Good);
}

#[tokio::test]
async fn the_log_does_not_grow_as_long_as_the_check_reads() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = endless(&folder);
    settings.tuning.check_log_bytes_max = Some(1 << 20);
    let store = DiskStore::open_with(settings, roomy()).await.unwrap();
    until("the check reads", || store.check.is_running()).await;
    let large = |id| settled(task("a", id), &"r".repeat(4 << 20));
    for id in 0..8 {
        store.insert(&large(id)).await.unwrap();
    }
    until("the check has come to its end", || store.check.is_over()).await;
    for id in 8..16 {
        store.insert(&large(id)).await.unwrap();
    }
    let log = schema::log_bytes(&folder.path().join("data/tasks.db"));
    assert!(log < 48 << 20, "{log} of 64 MiB that were written");
}

/// F56: a check in pieces covers the whole file.
#[tokio::test]
async fn f56_damage_is_found_by_a_check_that_had_to_make_way() {
    for name in ["tasks_gone", "tasks_name"] {
        let folder = tempfile::tempdir().unwrap();
        {
            let store = open(&folder).await;
            let rows: Vec<Task> = (0..600).map(|id| task("a", id)).collect();
            let stored = futures_util::future::join_all(rows.iter().map(|one| store.insert(one))).await;
            assert!(stored.iter().all(Result::is_ok));
            store.close().await;
        }
        files::damage(&folder.path().join("data/tasks.db"), name);
        let store = DiskStore::open_with(endless(&folder), roomy()).await.unwrap();
        until("the check reads", || store.check.is_running()).await;
        store.check.pause();
        until("the damage is found", || store.health() == StoreHealth::Damaged).await;
    }
}

/// F57: the connection of the check keeps a lost log, too.
#[tokio::test]
async fn f57_a_check_during_which_the_log_is_lost_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data/tasks.db");
    let fails = Arc::new(AtomicBool::new(false));
    let (opened, is_second) = (path.clone(), Arc::clone(&fails));
    let damaging: FaultHook = Box::new(move || {
        if is_second.load(Ordering::SeqCst) {
            files::damage(&opened, "tasks_gone");
        }
        Ok(())
    });
    let hooks = FaultHooks { before_open: Some(damaging), before_commit: Some(failing_while(&fails)), ..roomy() };
    let mut settings = endless(&folder);
    // The failed commit notices the loss, while the check still reads.
    settings.tuning.tick = Duration::from_secs(600);
    let store = DiskStore::open_with(settings, hooks).await.unwrap();
    until("the check reads", || store.check.is_running()).await;
    let one = task("a", 1);
    let revision = store.insert(&one).await.unwrap();
    std::fs::remove_file(schema::log_path(&path)).unwrap();
    fails.store(true, Ordering::SeqCst);
    assert!(store.replace(revision, WriteRole::Holder, &one).await.is_err());
    fails.store(false, Ordering::SeqCst);
    store.replace(revision, WriteRole::Holder, &one).await.unwrap();
    until("the damage is found", || {
        store.check.pause();
        store.health() == StoreHealth::Damaged
    })
    .await;
}
