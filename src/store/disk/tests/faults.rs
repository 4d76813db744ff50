//! Tests disks that fail, fill up, stall and disappear.

use std::sync::atomic::AtomicU64;

use rusqlite::ffi;

use super::*;

/// SQLite's error for a failed fsync.
pub(super) fn sync_failure() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_FSYNC), None)
}

/// Fails while the switch is on.
pub(super) fn failing_while(switch: &Arc<AtomicBool>) -> FaultHook {
    let switch = Arc::clone(switch);
    Box::new(move || if switch.load(Ordering::SeqCst) { Err(sync_failure()) } else { Ok(()) })
}

fn cancelled(task: Task) -> Task {
    transition(task, Event::CancelRequested, START).0
}

/// F54: an unwritten task gets no handle, and no other is lost.
#[tokio::test]
async fn f54_a_failed_commit_fails_its_writes_alone() {
    let folder = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let hooks = FaultHooks { before_commit: Some(failing_while(&fails)), ..roomy() };
    let store = DiskStore::open_with(settings(&folder), hooks).await.unwrap();
    let (kept, lost) = (task("a", 1), task("a", 2));
    let revision = store.insert(&kept).await.unwrap();
    let usage = store.usage();
    fails.store(true, Ordering::SeqCst);
    // Undoing it fails as well, so it may exist.
    assert!(matches!(store.insert(&lost).await, Err(StoreError::UnknownCommit(_))));
    assert!(matches!(
        store.replace(revision, WriteRole::Holder, &settled(kept.clone(), "r")).await,
        Err(StoreError::Io(_))
    ));
    fails.store(false, Ordering::SeqCst);
    assert_eq!(store.usage(), usage);
    assert!(store.load(&lost.key, START).await.unwrap().is_none());
    assert_eq!(*store.load(&kept.key, START).await.unwrap().unwrap().task, kept);
    assert_eq!(store.health(), StoreHealth::Good, "twice is not often");
    store.insert(&lost).await.unwrap();
    store.replace(revision, WriteRole::Holder, &settled(kept, "r")).await.unwrap();
}

/// A change that was committed and reported as failed is visible to every reader.
#[tokio::test]
async fn a_commit_that_happened_though_it_failed_is_seen_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let hooks = FaultHooks { after_commit: Some(failing_while(&fails)), ..roomy() };
    let store = DiskStore::open_with(settings(&folder), hooks).await.unwrap();
    let one = task("a", 1);
    store.insert(&one).await.unwrap();
    let row = store.load(&one.key, START).await.unwrap().unwrap();
    fails.store(true, Ordering::SeqCst);
    assert!(matches!(
        store.replace(row.revision, WriteRole::Holder, &cancelled(one.clone())).await,
        Err(StoreError::UnknownCommit(_))
    ));
    until("memory begins anew", || store.usage().unsettled == 0).await;
    assert!(store.load(&one.key, START).await.unwrap().unwrap().task.is_settled());
    fails.store(false, Ordering::SeqCst);
    assert!(matches!(store.insert(&one).await, Err(StoreError::Exists)));
}

/// F54: after three failures in a minute, no new task is accepted until a probe succeeds.
#[tokio::test]
async fn f54_after_three_failures_nothing_new_is_taken_until_a_probe_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let hooks = FaultHooks { before_commit: Some(failing_while(&fails)), ..roomy() };
    let store = DiskStore::open_with(settings(&folder), hooks).await.unwrap();
    let done = settled(task("a", 1), "r");
    store.insert(&done).await.unwrap();
    let mut health = store.watch_health();
    fails.store(true, Ordering::SeqCst);
    for id in 2..5 {
        assert_eq!(store.health(), StoreHealth::Good);
        assert!(store.insert(&task("a", id)).await.is_err());
    }
    tokio::time::timeout(PATIENCE, health.wait_for(|now| *now == StoreHealth::Failing)).await.unwrap().unwrap();
    assert!(store.insert(&task("a", 5)).await.is_err());
    assert!(store.load(&done.key, START).await.unwrap().is_some(), "the stored rows can be read");
    fails.store(false, Ordering::SeqCst);
    tokio::time::timeout(PATIENCE, health.wait_for(|now| *now == StoreHealth::Good)).await.unwrap().unwrap();
    store.insert(&task("a", 6)).await.unwrap();
    assert_eq!(store.usage().tasks, 2);
}

/// The store, and a switch: without room, commits fail.
async fn open_on_a_disk_that_fills(folder: &TempDir) -> (Arc<DiskStore>, Arc<AtomicBool>) {
    let is_full = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&is_full);
    let full: FaultHook = Box::new(move || match switch.load(Ordering::SeqCst) {
        true => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None)),
        false => Ok(()),
    });
    let store = DiskStore::open_with(settings(folder), FaultHooks { before_commit: Some(full), ..roomy() });
    (store.await.unwrap(), is_full)
}

/// F57: while there is no room, the writer has no connection, and readers alone keep the log.
#[tokio::test]
async fn f57_a_log_that_is_removed_from_a_full_disk_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let (store, is_full) = open_on_a_disk_that_fills(&folder).await;
    checked(&store).await;
    let one = task("a", 1);
    let revision = store.insert(&one).await.unwrap();
    let page = async || store.page(&one.key.owner, PageRange::new(None, 9, START)).await.unwrap();
    assert_eq!(page().await.tasks.len(), 1);
    is_full.store(true, Ordering::SeqCst);
    let refused = store.replace(revision, WriteRole::Holder, &one).await;
    assert!(matches!(refused, Err(StoreError::NoRoom)), "{refused:?}");
    std::fs::remove_file(schema::log_path(&folder.path().join("data/tasks.db"))).unwrap();
    is_full.store(false, Ordering::SeqCst);
    store.replace(revision, WriteRole::Holder, &one).await.unwrap();
    assert_eq!(page().await.tasks.len(), 1);
    assert_eq!(open(&copy_of(&folder)).await.usage().tasks, 1);
}

/// F53: on a full disk, each refused write would else cost a look at all rows.
#[tokio::test]
async fn f53_a_write_without_room_leaves_memory_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (store, is_full) = open_on_a_disk_that_fills(&folder).await;
    let (one, other) = (task("a", 1), task("a", 2));
    let revision = store.insert(&one).await.unwrap();
    store.insert(&other).await.unwrap();
    let done = settled(one, "r");
    is_full.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        let refused = store.replace(revision, WriteRole::Holder, &done).await;
        assert!(matches!(refused, Err(StoreError::NoRoom)), "{refused:?}");
        assert!(store.resident.live(&other.key).is_some(), "it would be read from the disk again");
    }
    is_full.store(false, Ordering::SeqCst);
    store.replace(revision, WriteRole::Holder, &done).await.unwrap();
    let usage = store.usage();
    assert_eq!((usage.tasks, usage.unsettled), (2, 1));
    store.close().await;
    assert_eq!(open(&folder).await.usage(), usage, "the sums are those of the file");
}

/// F53: below the low-water mark running tasks can finish, and none starts, until there is space again.
#[tokio::test]
async fn f53_nothing_new_is_taken_below_the_low_water_mark() {
    const ALL: u64 = 1 << 30;
    let free = Arc::new(AtomicU64::new(ALL / 2));
    let seen = Arc::clone(&free);
    let space = move || DiskSpace { free: seen.load(Ordering::SeqCst), all: ALL };
    let folder = tempfile::tempdir().unwrap();
    let hooks = FaultHooks { space: Some(Box::new(space)), ..FaultHooks::default() };
    let store = DiskStore::open_with(settings(&folder), hooks).await.unwrap();
    let one = task("a", 1);
    let revision = store.insert(&one).await.unwrap();
    free.store((64 << 20) - 1, Ordering::SeqCst);
    until("the disk is looked at", || store.health() == StoreHealth::Full).await;
    assert!(matches!(store.insert(&task("a", 2)).await, Err(StoreError::NoRoom)));
    store.replace(revision, WriteRole::Holder, &settled(one.clone(), "a result, which grows the row")).await.unwrap();
    assert!(store.load(&one.key, START).await.unwrap().is_some());
    free.store(ALL / 2, Ordering::SeqCst);
    until("the disk is looked at", || store.health() == StoreHealth::Good).await;
    store.insert(&task("a", 2)).await.unwrap();
}

#[test]
fn room_is_low_below_64_mib_or_a_twentieth_and_never_with_a_gigabyte() {
    const MIB: u64 = 1 << 20;
    for (free, all, low, ballast) in [
        (64 * MIB, 100 * MIB, false, false),
        (64 * MIB - 1, 100 * MIB, true, false),
        (128 * MIB, 100 * MIB, false, true),
        (500 * MIB, 10_000 * MIB, false, false),
        (499 * MIB, 10_000 * MIB, true, false),
        (564 * MIB, 10_000 * MIB, false, true),
        (1_023 * MIB, 100_000 * MIB, true, false),
        (1_024 * MIB, 100_000 * MIB, false, false),
        (0, 0, true, false),
    ] {
        let space = DiskSpace { free, all };
        assert_eq!((space.is_low(), space.has_room_for_ballast()), (low, ballast), "{space:?}");
    }
}

/// F53: a disk without a free byte. Tasks can be settled and removed, which frees space.
#[tokio::test]
async fn f53_on_a_full_disk_tasks_can_still_be_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&folder);
    settings.tuning.pages_max = Some(120);
    let store = DiskStore::open_with(settings, roomy()).await.unwrap();
    let large = |id| {
        let mut one = task("a", id);
        one.status_message = Some("w".repeat(20_000).into());
        one
    };
    let mut held = Vec::new();
    let refused = loop {
        let one = large(u128::try_from(held.len()).unwrap());
        match store.insert(&one).await {
            Ok(revision) => held.push((one, revision)),
            Err(error) => break error,
        }
        assert!(held.len() < 200, "it never fills up");
    };
    assert!(matches!(refused, StoreError::NoRoom), "{refused}");
    assert!(held.len() > 5);
    let (first, revision) = held[0].clone();
    let grown = settled(first.clone(), &"r".repeat(100_000));
    assert!(matches!(store.replace(revision, WriteRole::Holder, &grown).await, Err(StoreError::NoRoom)));
    let ended = cancelled(first);
    store.replace(revision, WriteRole::Holder, &ended).await.unwrap();
    for (one, _) in &held {
        assert!(store.load(&one.key, START).await.unwrap().is_some());
    }
    for (one, _) in &held[1..] {
        store.remove(&one.key).await.unwrap();
    }
    until("the disk is looked at", || store.health() == StoreHealth::Good).await;
    store.insert(&large(1_000)).await.unwrap();
    assert_eq!(store.usage().tasks, 2);
}

/// F53: a write without space does not fail others in the same transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f53_one_write_that_does_not_fit_does_not_fail_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&folder);
    settings.tuning.pages_max = Some(120);
    let (hooks, reached, release) = held_commit(3);
    let store = DiskStore::open_with(settings, hooks).await.unwrap();
    let (one, two) = (task("a", 1), task("a", 2));
    let first = store.insert(&one).await.unwrap();
    let second = store.insert(&two).await.unwrap();
    let (large, small) = (settled(one, &"r".repeat(1 << 20)), cancelled(two));
    let both = async {
        until("a commit is held", || reached.load(Ordering::SeqCst)).await;
        let both = async {
            tokio::join!(
                store.replace(first, WriteRole::Holder, &large),
                store.replace(second, WriteRole::Holder, &small)
            )
        };
        let release = async {
            until("both wait", || store.queue.capacity() == QUEUE_MAX - 2).await;
            release.send(()).unwrap();
        };
        tokio::join!(both, release).0
    };
    let third = task("a", 3);
    let (held, (large, small)) = tokio::join!(store.insert(&third), both);
    held.unwrap();
    assert!(matches!(large, Err(StoreError::NoRoom)));
    small.unwrap();
}

/// F63: a stalled disk delays only requests that need it.
#[tokio::test]
async fn f63_a_stalled_disk_holds_up_no_poll() {
    let folder = tempfile::tempdir().unwrap();
    open(&folder).await.close().await;
    let (hooks, reached, release) = held_commit(1);
    {
        let store = open(&folder).await;
        store.insert(&task("a", 1)).await.unwrap();
        store.insert(&settled(task("a", 2), "r")).await.unwrap();
        store.close().await;
    }
    let store = DiskStore::open_with(settings(&folder), hooks).await.unwrap();
    let late = task("a", 3);
    let polls = async {
        until("the write is stuck", || reached.load(Ordering::SeqCst)).await;
        for id in [1, 2] {
            assert!(store.load(&task("a", id).key, START).await.unwrap().is_some());
        }
        assert_eq!(store.page(&late.key.owner, PageRange::new(None, 9, START)).await.unwrap().tasks.len(), 2);
        assert_eq!(store.usage().tasks, 2, "an unwritten row is not there");
        release.send(()).unwrap();
    };
    tokio::join!(store.insert(&late), polls).0.unwrap();
    assert_eq!(store.usage().tasks, 3);
}

/// F57: a missing folder accepts no new tasks, and has all its tasks when it returns.
#[tokio::test]
async fn f57_a_folder_that_goes_away_and_comes_back_has_lost_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let one = task("a", 1);
    let revision = store.insert(&one).await.unwrap();
    let (data, away) = (folder.path().join("data"), folder.path().join("away"));
    std::fs::rename(&data, &away).unwrap();
    until("the folder is missed", || store.health() == StoreHealth::Failing).await;
    assert!(store.insert(&task("a", 2)).await.is_err());
    assert!(store.load(&one.key, START).await.unwrap().is_some());
    assert!(!data.exists(), "no new store is made in its place");
    std::fs::rename(&away, &data).unwrap();
    until("the folder is found", || store.health() == StoreHealth::Good).await;
    store.replace(revision, WriteRole::Holder, &cancelled(one)).await.unwrap();
    store.insert(&task("a", 2)).await.unwrap();
    assert_eq!(store.usage().tasks, 2);
}

#[tokio::test]
async fn f57_the_content_of_a_removed_log_is_saved_and_the_file_is_reopened() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(&folder);
    settings.tuning.tick = Duration::from_millis(20);
    let store = DiskStore::open_with(settings, roomy()).await.unwrap();
    // A reader that begins without the log finds damage.
    checked(&store).await;
    let one = task("a", 1);
    let mut revision = store.insert(&one).await.unwrap();
    let log = schema::log_path(&folder.path().join("data/tasks.db"));
    for (stored, new) in [(1, 2), (2, 3), (3, 4)] {
        let shown = store.page(&one.key.owner, PageRange::new(None, 9, START)).await.unwrap();
        assert_eq!(shown.tasks.len(), stored);
        std::fs::remove_file(&log).unwrap();
        until("there is another log", || log.exists() && store.health() == StoreHealth::Good).await;
        revision = store.replace(revision, WriteRole::Holder, &one).await.unwrap();
        store.insert(&task("a", new)).await.unwrap();
        assert_eq!(store.load(&one.key, START).await.unwrap().unwrap().revision, revision);
    }
    assert_eq!(store.usage().tasks, 4);
    assert_eq!(open(&copy_of(&folder)).await.usage().tasks, 4);
}

/// A bug that ends the writer is reported, and other processes stay locked out of the open file.
#[tokio::test]
async fn a_writer_that_ended_is_known_and_keeps_others_out() {
    let folder = tempfile::tempdir().unwrap();
    let panics: FaultHook = Box::new(|| panic!("a bug, on purpose"));
    let strikes = Arc::new(AtomicBool::new(false));
    let armed = Arc::clone(&strikes);
    let hook: FaultHook = Box::new(move || if armed.load(Ordering::SeqCst) { panics() } else { Ok(()) });
    let hooks = FaultHooks { before_commit: Some(hook), ..roomy() };
    let store = DiskStore::open_with(settings(&folder), hooks).await.unwrap();
    let one = task("a", 1);
    let revision = store.insert(&one).await.unwrap();
    let mut health = store.watch_health();
    strikes.store(true, Ordering::SeqCst);
    // The commit may have been made.
    assert!(matches!(store.insert(&task("a", 2)).await, Err(StoreError::UnknownCommit(_))));
    tokio::time::timeout(PATIENCE, health.wait_for(|now| *now == StoreHealth::Ended)).await.unwrap().unwrap();
    assert!(matches!(store.insert(&task("a", 3)).await, Err(StoreError::Io(_))));
    assert!(matches!(
        store.replace(revision, WriteRole::Holder, &cancelled(one.clone())).await,
        Err(StoreError::Io(_))
    ));
    assert!(store.load(&one.key, START).await.unwrap().is_some(), "the stored rows can be read");
    assert!(is_open_elsewhere(&settings(&folder).folder));
    store.close().await;
    drop(store);
    assert_eq!(open(&folder).await.usage().tasks, 1);
}

/// F63: a write's waiting time is visible while it waits.
#[tokio::test]
async fn f63_the_oldest_write_that_waits_has_an_age() {
    let folder = tempfile::tempdir().unwrap();
    let (hooks, reached, release) = held_commit(1);
    let store = DiskStore::open_with(settings(&folder), hooks).await.unwrap();
    assert_eq!(store.waited(), Duration::ZERO);
    let one = task("a", 1);
    let looks = async {
        until("the write is stuck", || reached.load(Ordering::SeqCst)).await;
        let before = store.waited();
        assert!(before > Duration::ZERO);
        until("it gets older", || store.waited() > before).await;
        release.send(()).unwrap();
    };
    tokio::join!(store.insert(&one), looks).0.unwrap();
    until("it is done with", || store.waited() == Duration::ZERO).await;
}

/// After a failed commit that was not made, the row's resolved state is the one that every later process finds. The contract
/// tests a commit that was made.
#[tokio::test]
async fn an_unknown_commit_is_resolved_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let hooks = FaultHooks { before_commit: Some(failing_while(&fails)), ..roomy() };
    let store = DiskStore::open_with(settings(&folder), hooks).await.unwrap();
    let one = task("a", 1);
    let first = store.insert(&one).await.unwrap();
    fails.store(true, Ordering::SeqCst);
    let unsure = store.replace(first, WriteRole::Command, &cancelled(one.clone())).await;
    assert!(matches!(unsure, Err(StoreError::UnknownCommit(_))));
    assert!(matches!(store.resolve_write(&one.key, START).await, Err(StoreError::Io(_))), "not yet");
    fails.store(false, Ordering::SeqCst);
    assert_eq!(*store.resolve_write(&one.key, START).await.unwrap().unwrap().task, one);
    store.close().await;
    assert_eq!(*open(&folder).await.load(&one.key, START).await.unwrap().unwrap().task, one);
}
