//! Tests the files: permissions, locks, and damaged or foreign files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rusqlite::Connection;

use super::super::schema::SCHEMA;
use super::*;
use crate::task::PendingEffects;

async fn made(folder: &TempDir) {
    open(folder).await.close().await;
    unlocked(folder).await;
}

/// A program that another test starts has all open files, and their locks, between fork and exec.
async fn unlocked(folder: &TempDir) {
    until("the folder is unlocked", || !is_open_elsewhere(&settings(folder).folder)).await;
}

/// SEC-13: the folder's files are readable by their owner only.
#[tokio::test]
async fn sec_13_all_files_are_for_their_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    store.insert(&task("a", 1)).await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let data = folder.path().join("data");
    assert_eq!(mode(&data), 0o700);
    let mut count = 0;
    for entry in fs::read_dir(&data).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        count += 1;
    }
    assert!(count >= 4, "the database, its log, its index and the lock: {count}");
}

/// B172, F68: a foreign or newer file is reported and left unchanged.
#[tokio::test]
async fn b172_a_file_of_another_kind_is_refused_and_left_as_it_is() {
    type Make = fn(&Path);
    let newer: Make = |path| {
        let conn = Connection::open(path).unwrap();
        let version = SCHEMA + 1;
        conn.execute_batch(&format!("PRAGMA user_version = {version}; PRAGMA wal_checkpoint(TRUNCATE)")).unwrap();
    };
    let foreign: Make = |path| {
        fs::remove_file(path).unwrap();
        Connection::open(path).unwrap().execute_batch("CREATE TABLE notes (text)").unwrap();
    };
    let marked: Make = |path| {
        fs::remove_file(path).unwrap();
        Connection::open(path).unwrap().execute_batch("PRAGMA application_id = 7; CREATE TABLE n (t)").unwrap();
    };
    let text: Make = |path| fs::write(path, "a text that a user put here by mistake\n".repeat(20)).unwrap();
    let short: Make = |path| fs::write(path, "SQLite format 3\0").unwrap();
    let next = SCHEMA + 1;
    let of_newer = format!(
        "was written by a newer taskgate (version {next}, this one knows {SCHEMA}); run that one. The file is left as it is"
    );
    for (what, make, refusal) in [
        ("newer", newer, &*of_newer),
        ("foreign", foreign, "is another program's database; name another folder as `store.path`"),
        ("marked", marked, "is another program's database; name another folder as `store.path`"),
        ("text", text, "is not a database; move it away, and a new one is made in its place"),
        ("short", short, "is not a database; move it away, and a new one is made in its place"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        made(&folder).await;
        let path = database(&folder);
        make(&path);
        let before = fs::read(&path).unwrap();
        let refused = DiskStore::open_with(settings(&folder), roomy()).await.unwrap_err();
        assert_eq!(refused.to_string(), format!("{}: {refusal}", path.display()), "{what}");
        assert_eq!(fs::read(&path).unwrap(), before, "{what}");
        if what != "foreign" {
            assert_eq!(examine(&settings(&folder)).unwrap_err().to_string(), refused.to_string(), "{what}");
        }
        assert_eq!(fs::read(&path).unwrap(), before, "{what}");
    }
}

/// B171: one process at a time; a start waits for an ending one.
#[tokio::test]
async fn b171_a_store_that_is_open_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    assert!(!is_open_elsewhere(&settings(&folder).folder));
    let first = open(&folder).await;
    first.insert(&task("a", 1)).await.unwrap();
    assert!(is_open_elsewhere(&settings(&folder).folder));
    let impatient = DiskSettings { lock_wait: Duration::from_millis(120), ..settings(&folder) };
    let refused = DiskStore::open_with(impatient, roomy()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
    let (second, ()) = tokio::join!(open(&folder), first.close());
    assert_eq!(second.usage().tasks, 1);
}

#[tokio::test]
async fn a_store_that_is_opened_again_knows_the_same_sums_and_the_same_open_rows() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    for (owner, id) in [("a", 1), ("a", 2), ("b", 3), ("b", 4), ("c", 5)] {
        store.insert(&task(owner, id)).await.unwrap();
    }
    for (owner, id) in [("a", 6), ("a", 7), ("d", 8)] {
        store.insert(&settled(task(owner, id), "r")).await.unwrap();
    }
    // Its upstream is not yet notified.
    let mut unnotified = settled(task("b", 9), "r");
    unnotified.recovery.pending_effects = PendingEffects::NOTIFY_UPSTREAM;
    store.insert(&unnotified).await.unwrap();
    let of_owners = |store: &DiskStore| ["a", "b", "c", "d"].map(|owner| store.usage_of(&Principal::new(owner)));
    let (all, of_each) = (store.usage(), of_owners(&store));
    assert_eq!((all.tasks, all.unsettled), (9, 5));
    store.close().await;
    let again = open(&folder).await;
    assert_eq!((again.usage(), of_owners(&again)), (all, of_each));
    assert_eq!(again.claim(100, &known()).await.unwrap().len(), 6);
}

/// B171: a cleanup may remove the lock file, so the folder itself is locked.
#[tokio::test]
async fn b171_a_removed_lock_file_lets_no_second_process_in() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(&folder).await;
    fs::remove_file(folder.path().join("data/tasks.lock")).unwrap();
    assert!(is_open_elsewhere(&settings(&folder).folder));
    let impatient = DiskSettings { lock_wait: Duration::from_millis(120), ..settings(&folder) };
    let refused = DiskStore::open_with(impatient, roomy()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
    first.insert(&task("a", 1)).await.unwrap();
    first.close().await;
    unlocked(&folder).await;
    assert_eq!(open(&folder).await.usage().tasks, 1);
}

/// B171: an earlier version locks only that file, and is waited for too.
#[tokio::test]
async fn b171_a_lock_of_an_earlier_version_holds() {
    let folder = tempfile::tempdir().unwrap();
    made(&folder).await;
    let lock = fs::OpenOptions::new().write(true).open(folder.path().join("data/tasks.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(is_open_elsewhere(&settings(&folder).folder));
    let impatient = DiskSettings { lock_wait: Duration::from_millis(120), ..settings(&folder) };
    let refused = DiskStore::open_with(impatient, roomy()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
}

/// F68: files of another version stay byte for byte, even with a log that was not checkpointed.
#[tokio::test]
async fn f68_another_version_that_the_log_alone_tells_of_is_left_to_the_byte() {
    for version in [SCHEMA - 1, 99] {
        let folder = tempfile::tempdir().unwrap();
        made(&folder).await;
        let path = database(&folder);
        let other = Connection::open(&path).unwrap();
        other.execute_batch(&format!("PRAGMA user_version = {version}")).unwrap();
        // After a kill: both files stay as they are.
        let kept = tempfile::tempdir().unwrap();
        fs::create_dir(kept.path().join("data")).unwrap();
        let files = ["tasks.db", "tasks.db-wal"];
        for name in files {
            fs::copy(folder.path().join("data").join(name), kept.path().join("data").join(name)).unwrap();
        }
        let bytes = || files.map(|name| fs::read(kept.path().join("data").join(name)).unwrap());
        let before = bytes();
        assert!(!before[1].is_empty(), "the log has it");
        let refused = DiskStore::open_with(settings(&kept), roomy()).await.unwrap_err();
        let said = if version < SCHEMA {
            format!(
                "was written by an older taskgate (version {version}; this one reads {SCHEMA} only); let that one finish \
                 its tasks, then move it away together with the files beside it, and a new one is made in its place. The file is left as it is"
            )
        } else {
            format!(
                "was written by a newer taskgate (version {version}, this one knows {SCHEMA}); run that one. The file is \
                 left as it is"
            )
        };
        assert_eq!(refused.to_string(), format!("{}: {said}", database(&kept).display()));
        assert!(bytes() == before, "one of its files was changed");
        drop(other);
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data");
    fs::write(&file, "").unwrap();
    let refused = DiskStore::open_with(settings(&folder), roomy()).await.unwrap_err();
    let advice = "name a folder that the gateway may write to";
    assert_eq!(refused.to_string(), format!("{}: not a directory; {advice}", file.display()));
    let below = DiskSettings { folder: file.join("deeper"), ..settings(&folder) };
    assert!(matches!(DiskStore::open(below).await, Err(OpenError::Folder { .. })));
}

/// B171: memory is not durable. Every Linux system has such a folder.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn b171_a_folder_in_memory_is_refused_unless_it_is_meant() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let meant = settings(&folder);
    let not_meant = DiskSettings { is_ephemeral: false, ..meant.clone() };
    let refused = DiskStore::open(not_meant).await.unwrap_err();
    assert!(matches!(refused, OpenError::Medium { medium: "in memory (tmpfs)", .. }), "{refused}");
    assert!(!meant.folder.exists(), "nothing is made where it is refused");
    let store = DiskStore::open_with(meant, roomy()).await.unwrap();
    store.insert(&task("a", 1)).await.unwrap();
}

/// Flips one bit of the first occurrence of `text` in the file.
pub(super) fn flip(path: &Path, text: &str) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// F56: a task with changed bytes has failed; the bytes are never shown.
#[tokio::test]
async fn f56_a_damaged_row_reads_as_failed_and_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let done = settled(task("a", 1), "a result only this task has");
    let mut live = task("a", 2);
    live.status_message = Some("words only this task has".into());
    let whole = settled(task("a", 3), "whole");
    for one in [&done, &live, &whole] {
        store.insert(one).await.unwrap();
    }
    store.close().await;
    flip(&database(&folder), "result only this task has");
    flip(&database(&folder), "words only this task has");
    let corrupt = GatewayFault::new(Reason::StoreCorrupt, Executed::Unknown);
    for incarnation in 0..2 {
        let store = open(&folder).await;
        let page = store.page(&done.key.owner, PageRange::new(None, 9, START)).await.unwrap();
        assert_eq!(page.tasks.len(), 3, "incarnation {incarnation}");
        for key in [&done.key, &live.key] {
            let row = store.load(key, START).await.unwrap().unwrap();
            let Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))) = &row.task.phase else {
                panic!("{row:?}");
            };
            assert_eq!((fault, &row.task.key), (&corrupt, key));
        }
        assert_eq!(*store.load(&whole.key, START).await.unwrap().unwrap().task, whole);
        assert_eq!(store.usage().unsettled, 0);
        store.close().await;
    }
}

/// F56: a damaged index is found at the start, and the file is kept.
#[tokio::test]
async fn f56_a_file_that_cannot_be_read_is_refused_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    made(&folder).await;
    let path = database(&folder);
    damage(&path, "tasks_age");
    let before = fs::read(&path).unwrap();
    let refused = DiskStore::open_with(settings(&folder), roomy()).await.unwrap_err();
    assert!(matches!(refused, OpenError::Corrupt { .. }), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

/// F56: the background check finds damage that the start does not meet.
#[tokio::test]
async fn f56_damage_elsewhere_is_found_while_it_serves() {
    let folder = tempfile::tempdir().unwrap();
    made(&folder).await;
    damage(&database(&folder), "tasks_gone");
    let store = open(&folder).await;
    until("the file is checked", || store.health() == StoreHealth::Damaged).await;
    assert!(store.insert(&task("a", 1)).await.is_err());
}

/// Overwrites the first page of a table or an index.
pub(super) fn damage(path: &Path, name: &str) {
    let conn = Connection::open(path).unwrap();
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?1";
    let root: usize = conn.query_row(sql, [name], |row| row.get::<_, i64>(0)).unwrap().try_into().unwrap();
    let size: usize =
        conn.pragma_query_value(None, "page_size", |row| row.get::<_, i64>(0)).unwrap().try_into().unwrap();
    drop(conn);
    let mut bytes = fs::read(path).unwrap();
    bytes[(root - 1) * size..root * size].fill(0xa5);
    fs::write(path, bytes).unwrap();
}

/// Whether this process holds a lock on a file, according to the kernel. Its list of a whole machine's locks is read in pieces, so it
/// may lack one while others come and go.
#[cfg(target_os = "linux")]
fn is_locked(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;

    let (inode, id) = (fs::metadata(path).unwrap().ino(), std::process::id());
    let (ours, file) = (format!(" {id} "), format!(":{inode} "));
    let is_one = |lock: &str| lock.contains("POSIX") && lock.contains(&ours) && lock.contains(&file);
    (0..20).any(|_| fs::read_to_string("/proc/locks").unwrap().lines().any(is_one))
}

/// A process that opens and closes an SQLite file beside SQLite loses SQLite's locks, and the next process removes the log while
/// it is in use.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn looking_at_a_store_that_is_open_takes_none_of_its_locks() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    store.insert(&task("a", 1)).await.unwrap();
    // Readers have locks of their own for moments.
    checked(&store).await;
    assert!(is_locked(&database(&folder)), "an open store has a lock on its file");
    examine(&settings(&folder)).unwrap();
    assert!(is_locked(&database(&folder)), "it has lost its locks");
    store.close().await;
}
