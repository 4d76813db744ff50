//! Tests that disk space is regained without a restart, and that a full disk can be opened.

use rusqlite::ffi;

use super::super::folder::Ballast;
use super::super::starting::open_with_room;
use super::*;
use crate::store::disk::folder::{self, BALLAST_BYTES};
use crate::store::tasks::SWEEP_BYTES_MAX;

const MIB: u64 = 1 << 20;
const PAST: Timestamp = Timestamp::from_millis(1_000_000 + 3_600_000);

fn large(id: u128) -> Task {
    settled(task("a", id), &"r".repeat(1 << 20))
}

/// A simulated disk of `all` bytes, from which the store's file size is subtracted.
fn quota(folder: &TempDir, all: u64) -> FaultHooks {
    let path = folder.path().join("data/tasks.db");
    let space = move || DiskSpace { free: all.saturating_sub(schema::file_bytes(&path)), all };
    FaultHooks { space: Some(Box::new(space)), ..FaultHooks::default() }
}

fn bytes(folder: &TempDir) -> u64 {
    schema::file_bytes(&folder.path().join("data/tasks.db"))
}

fn quick(folder: &TempDir) -> DiskSettings {
    let mut settings = settings(folder);
    settings.tuning.tick = Duration::from_millis(20);
    settings
}

/// F53: once the rows that filled the disk are removed, there is space, and new tasks are accepted.
#[tokio::test]
async fn f53_a_store_that_filled_its_disk_takes_new_tasks_once_its_rows_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open_with(quick(&folder), quota(&folder, 80 * MIB)).await.unwrap();
    let mut made = 0;
    let refused = loop {
        match store.insert(&large(made)).await {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 80, "it never fills up");
    };
    assert!(matches!(refused, StoreError::NoRoom), "{refused}");
    assert!(made > 6, "{made}");
    while store.sweep(PAST, 1_000).await.unwrap() > 0 {}
    until("there is room", || store.health() == StoreHealth::Good).await;
    store.insert(&task("a", 1_000)).await.unwrap();
    assert!(bytes(&folder) < 16 * MIB, "{}", bytes(&folder));
}

/// A larger sweep would delay other writes.
#[tokio::test]
async fn a_sweep_ends_behind_so_many_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open_with(quick(&folder), roomy()).await.unwrap();
    for id in 1..4 {
        let text = "x".repeat(SWEEP_BYTES_MAX * 2 / 3);
        store.insert(&settled(task("a", id), &text)).await.unwrap();
    }
    let mut freed = Vec::new();
    while freed.last() != Some(&0) {
        freed.push(store.sweep(PAST, 1_000).await.unwrap());
    }
    assert_eq!(freed, [2, 1, 0]);
}

/// The file shrinks without further writes, even after concurrent reads.
#[tokio::test]
async fn a_file_whose_rows_are_gone_gets_smaller_without_another_write() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open_with(quick(&folder), roomy()).await.unwrap();
    let rows: Vec<Task> = (0..40).map(large).collect();
    let stored = futures_util::future::join_all(rows.iter().map(|one| store.insert(one))).await;
    assert!(stored.iter().all(Result::is_ok));
    // A slow reader keeps the log from restarting while it reads.
    let (reached, release) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (at, wait) = (Arc::clone(&reached), Arc::clone(&release));
    let reads = store.readers.read(move |conn| {
        conn.execute_batch("BEGIN; SELECT count(*) FROM tasks;")?;
        at.store(true, Ordering::SeqCst);
        while !wait.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        conn.execute_batch("COMMIT")
    });
    let sweeps = async {
        until("the reader reads", || reached.load(Ordering::SeqCst)).await;
        while store.sweep(PAST, 1_000).await.unwrap() > 0 {}
        assert!(bytes(&folder) > 32 * MIB);
        store.insert(&task("a", 1_000)).await.unwrap();
        release.store(true, Ordering::SeqCst);
    };
    tokio::join!(reads, sweeps).0.unwrap();
    until("the file is small", || bytes(&folder) < 16 * MIB).await;
    assert_eq!(store.usage().tasks, 1);
}

/// F53: removing the ballast also makes space for opening the file.
#[tokio::test]
async fn f53_a_store_opens_on_a_full_disk_by_giving_up_its_ballast() {
    let folder = tempfile::tempdir().unwrap();
    // If this file system supports the ballast.
    let ballast = Ballast::new(&folder.path().join("data"));
    {
        let store = open(&folder).await;
        store.insert(&task("a", 1)).await.unwrap();
        store.close().await;
    }
    ballast.lay_down().unwrap();
    let there = ballast.clone();
    let full: FaultHook = Box::new(move || {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_SHMSIZE), None);
        if there.is_there() { Err(error) } else { Ok(()) }
    });
    let space = || DiskSpace { free: 0, all: 1 << 30 };
    let hooks = FaultHooks { before_open: Some(full), space: Some(Box::new(space)), ..FaultHooks::default() };
    let path = folder.path().join("data/tasks.db");
    let found = open_with_room(&path, Some(&ballast), settings(&folder).tuning, &hooks).unwrap();
    assert_eq!(found.sums.all().tasks, 1);
    assert!(!ballast.is_there());
    drop(found);
    // A disk with another fault keeps it.
    ballast.lay_down().unwrap();
    let hooks = FaultHooks { space: Some(Box::new(|| DiskSpace { free: 50 << 30, all: 100 << 30 })), ..hooks };
    assert!(open_with_room(&path, Some(&ballast), settings(&folder).tuning, &hooks).is_err());
    assert_eq!(std::fs::metadata(folder.path().join("data/tasks.ballast")).unwrap().len(), BALLAST_BYTES);
}

/// The ballast replaces a link, and the link's target stays unchanged.
#[test]
fn a_ballast_follows_no_link() {
    let folder = tempfile::tempdir().unwrap();
    let (other, ballast) = (folder.path().join("other"), Ballast::new(folder.path()));
    std::fs::write(&other, "kept").unwrap();
    std::os::unix::fs::symlink(&other, folder.path().join("tasks.ballast")).unwrap();
    assert!(!ballast.is_there());
    ballast.lay_down().unwrap();
    assert!(ballast.is_there());
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "kept");
}

#[test]
fn a_world_writable_folder_is_distinguished() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    for (mode, is_open) in
        [(0o700, false), (0o2775, false), (0o755, false), (0o777, true), (0o703, true), (0o1777, false)]
    {
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(folder::is_open_to_all(folder.path()), is_open, "{mode:o}");
    }
}
