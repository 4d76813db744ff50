//! What a copy brings over, in which order, what it leaves out, and that nothing of what it reads changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::store::contract::task;
use crate::store::disk::DiskSourceError;
use crate::store::{DiskSettings, DiskStore, MemoryStore, Revision, WriteRole};
use crate::task::model::ROW_BYTES_MIN;
use crate::task::{
    Attempt, ChosenId, Digest, Event, Idempotency, Phase, Principal, Question, SessionScope, TaskId, Timestamp,
    TreePlace, transition,
};
use crate::wire::Payload;

const START: Timestamp = Timestamp::from_millis(1_000_000);
const ROOMY: usize = 1 << 30;

fn settled(task: Task, result: &str) -> Task {
    let event = Event::Returned { attempt: Attempt::FIRST, result: Payload::of(result), is_error: false };
    transition(task, event, Timestamp::from_millis(1_003_000)).0
}

fn named(task: Task, name: u8) -> Task {
    Task { idempotency: Some(Idempotency { key: Digest([name; 32]), call: Digest([9; 32]) }), ..task }
}

fn in_tree(task: Task, parent: Option<u128>, children: &[u128]) -> Task {
    let children = children.iter().map(|id| TaskId::from_bits(*id)).collect();
    Task { tree: TreePlace { parent: parent.map(TaskId::from_bits), children }, ..task }
}

/// Tasks of every kind, in the order in which a gateway makes them.
fn tasks() -> Vec<Task> {
    let asked = |task: Task| {
        let question = Question { ask: Payload::of("ask"), request: Payload::of("what?") };
        transition(task, Event::Asked { attempt: Attempt::FIRST, question }, START).0
    };
    let chosen = ChosenId { session: SessionScope(7), text: "mine".into() };
    vec![
        named(settled(task("a", 1), "done"), 1),
        named(Task { phase: Phase::Queued, ttl: Duration::from_secs(123), ..task("a", 2) }, 2),
        asked(task("b", 3)),
        Task { chosen: Some(chosen), status_message: Some("half".into()), ..task("b", 4) },
        in_tree(task("b", 10), None, &[20, 30, 31]),
        in_tree(settled(task("b", 20), "part"), Some(10), &[]),
        in_tree(task("b", 30), Some(10), &[5]),
        in_tree(task("b", 5), Some(30), &[]),
        // Its parent's row is there, and does not name it yet.
        in_tree(task("b", 32), Some(10), &[]),
        in_tree(task("b", 33), Some(99), &[]),
    ]
}

fn settings(folder: &Path) -> DiskSettings {
    let mut settings = DiskSettings::new(folder.to_owned(), ROOMY);
    settings.is_ephemeral = true;
    settings
}

async fn open(folder: &Path) -> Arc<DiskStore> {
    DiskStore::open(settings(folder)).await.unwrap()
}

/// A store that was closed in order, in `data`; and in `killed` as a process leaves it that was killed.
async fn stopped(tasks: &[Task]) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let [data, killed] = ["data", "killed"].map(|name| home.path().join(name));
    let store = open(&data).await;
    for one in tasks {
        store.insert(one).await.unwrap();
    }
    fs::create_dir(&killed).unwrap();
    for (name, bytes) in files(&data) {
        fs::write(killed.join(name), bytes).unwrap();
    }
    store.close().await;
    home
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let found = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    found.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// Copies what is in a folder into a store: what was done, what was left, and whether nothing in the folder was changed.
async fn copied(
    folder: &Path,
    target: &MemoryStore,
    now: Timestamp,
) -> (Result<bool, CopyError>, CopyCounts, Vec<LeftRow>) {
    let before = files(folder);
    let source = DiskSource::open(folder.to_owned()).await.unwrap();
    let mut left = Vec::new();
    let mut tell = |row| left.push(row);
    let mut copy = StoreCopy::new(&source, target, now, &mut tell);
    let ended = copy.run(&CancellationToken::new()).await;
    let counts = copy.counts();
    drop(source);
    assert!(files(folder) == before, "what is copied is not changed");
    (ended, counts, left)
}

#[tokio::test]
async fn every_task_comes_over_as_it_is_and_its_folder_stays_as_it_was() {
    let tasks = tasks();
    let home = stopped(&tasks).await;
    for (folder, has_log) in [("data", false), ("killed", true)] {
        let folder = home.path().join(folder);
        assert_eq!(fs::metadata(folder.join("tasks.db-wal")).is_ok_and(|log| log.len() > 0), has_log);
        let target = MemoryStore::new(ROOMY);
        for round in 0..2 {
            let (ended, counts, left) = copied(&folder, &target, START).await;
            assert!(ended.unwrap() && left.is_empty());
            let there = if round == 0 { 0 } else { tasks.len() };
            assert_eq!((counts.copied.tasks, counts.present), (tasks.len() - there, there));
            assert_eq!(counts.seen(), tasks.len());
        }
        for one in &tasks {
            let row = target.load(&one.key, START).await.unwrap().unwrap();
            assert_eq!(*row.task, *one);
            assert_eq!(row.holder.is_some(), !one.is_settled());
            if let Some(named) = &one.idempotency {
                let found = target.find_idempotent(&one.key.owner, &named.key, START).await.unwrap();
                assert_eq!(found.map(|row| row.task.key.id), Some(one.key.id));
            }
        }
        let source = DiskSource::open(folder.clone()).await.unwrap();
        assert_eq!(source.usage(), target.usage());
        // It is let go of.
        drop(source);
    }
    // The folder still opens, and holds what it held.
    let store = open(&home.path().join("killed")).await;
    assert_eq!(store.usage().tasks, tasks.len());
    store.close().await;
}

/// SUB-05: however far it comes.
#[tokio::test]
async fn no_task_comes_over_before_its_subtasks() {
    let tasks = tasks();
    let home = stopped(&tasks).await;
    for room in 0..tasks.len() {
        let target = MemoryStore::new(room * ROW_BYTES_MIN);
        let (ended, counts, _) = copied(&home.path().join("data"), &target, START).await;
        assert!(matches!(ended, Err(CopyError::Target(StoreError::Full { .. }))));
        assert_eq!(counts.copied, target.usage());
        for one in &tasks {
            let Some(row) = target.load(&one.key, START).await.unwrap() else { continue };
            for child in row.task.tree.children.iter().filter(|child| **child != TaskId::from_bits(31)) {
                let key = TaskKey { owner: one.key.owner.clone(), id: *child };
                assert!(target.load(&key, START).await.unwrap().is_some(), "{room}");
            }
        }
    }
}

#[tokio::test]
async fn more_rows_than_are_looked_at_together_come_over() {
    let children: Vec<u128> = (10_000..10_000 + 2 * ROWS_AT_ONCE as u128).collect();
    let mut tasks: Vec<_> = (1..=ROWS_AT_ONCE as u128 + 7).map(|id| settled(task("a", id), "r")).collect();
    tasks.push(in_tree(task("a", 9_999), None, &children));
    tasks.extend(children.iter().map(|id| in_tree(task("a", *id), Some(9_999), &[])));
    let large = settled(task("b", 1), &"x".repeat(BYTES_AT_ONCE));
    tasks.extend([large, settled(task("b", 2), &"y".repeat(BYTES_AT_ONCE)), task("b", 3)]);
    let home = stopped(&tasks).await;
    let target = MemoryStore::new(ROOMY);
    let (ended, counts, _) = copied(&home.path().join("data"), &target, START).await;
    assert!(ended.unwrap());
    assert_eq!((counts.copied, counts.seen()), (target.usage(), tasks.len()));
    for one in &tasks {
        assert_eq!(*target.load(&one.key, START).await.unwrap().unwrap().task, *one);
    }
}

#[tokio::test]
async fn what_is_there_stays_and_what_is_gone_is_not_brought_back() {
    let done = settled(task("a", 1), "done");
    let home = stopped(&[done.clone(), task("a", 2), named(task("a", 3), 3)]).await;
    let target = MemoryStore::new(ROOMY);
    // Somebody went on with it, or another one took its name.
    target.insert(&task("a", 2)).await.unwrap();
    let newer = settled(task("a", 2), "went on");
    target.replace(Revision(1), WriteRole::Holder, &newer).await.unwrap();
    target.insert(&named(task("a", 4), 3)).await.unwrap();
    let (ended, counts, left) = copied(&home.path().join("data"), &target, done.expires_at()).await;
    assert!(ended.unwrap());
    assert_eq!((counts.copied.tasks, counts.present, counts.gone, counts.refused), (0, 1, 1, 1));
    let key = TaskKey { owner: Principal::new("a"), id: TaskId::from_bits(3) };
    assert_eq!(left, [LeftRow { task: ShortReference::of(&key), why: LeftReason::NameTaken }]);
    assert_eq!(*target.load(&newer.key, START).await.unwrap().unwrap().task, newer);
}

/// Their names are those of the last, whatever the time is where they come to.
#[tokio::test]
async fn a_name_that_was_free_again_goes_to_the_task_that_got_it() {
    let first = named(settled(task("a", 9), "first"), 1);
    let created_at = first.expires_at();
    let second = named(Task { created_at, updated_at: created_at, ..task("a", 1) }, 1);
    let home = stopped(&[first.clone(), second.clone()]).await;
    let target = MemoryStore::new(ROOMY);
    let (ended, counts, left) = copied(&home.path().join("data"), &target, START).await;
    assert!(ended.unwrap() && left.is_empty());
    assert_eq!(counts.copied.tasks, 2);
    let found = target.find_idempotent(&first.key.owner, &Digest([1; 32]), created_at).await.unwrap();
    assert_eq!(found.map(|row| row.task.key.clone()), Some(second.key));
}

/// F56.
#[tokio::test]
async fn f56_a_row_that_cannot_be_read_is_named_and_the_others_come_over() {
    let lost = settled(task("a", 2), "a result nobody else has");
    let (parent, child) = (in_tree(task("a", 4), None, &[5]), in_tree(task("a", 5), Some(4), &[]));
    let home = stopped(&[task("a", 1), lost.clone(), task("a", 3), parent.clone(), child]).await;
    let data = home.path().join("data");
    let path = data.join("tasks.db");
    let text = b"result nobody else has";
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let conn = Connection::open(&path).unwrap();
    let sql = "UPDATE tasks SET summary = x'00' WHERE id = ?1";
    assert_eq!(conn.execute(sql, [parent.key.id.bits().to_be_bytes()]).unwrap(), 1);
    conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(conn);
    let target = MemoryStore::new(ROOMY);
    let (ended, counts, left) = copied(&data, &target, START).await;
    assert!(ended.unwrap());
    assert_eq!((counts.copied.tasks, counts.unreadable, counts.seen()), (3, 2, 5));
    let why = LeftReason::Unreadable(RecordError::Damaged);
    assert_eq!(left, [&lost, &parent].map(|one| LeftRow { task: ShortReference::of(&one.key), why }));
}

#[tokio::test]
async fn a_copy_that_is_stopped_says_so() {
    let home = stopped(&tasks()).await;
    let source = DiskSource::open(home.path().join("data")).await.unwrap();
    let target = MemoryStore::new(ROOMY);
    let stop = CancellationToken::new();
    stop.cancel();
    let mut tell = |_| ();
    let mut copy = StoreCopy::new(&source, &target, START, &mut tell);
    assert!(!copy.run(&stop).await.unwrap());
    assert_eq!(target.usage().tasks, 0);
}

#[tokio::test]
async fn a_store_that_is_open_is_not_read_and_one_that_is_read_does_not_open() {
    let home = stopped(&tasks()).await;
    let data = home.path().join("data");
    let store = open(&data).await;
    let refused = DiskSource::open(data.clone()).await.unwrap_err();
    assert!(matches!(refused, DiskSourceError::InUse { .. }), "{refused}");
    store.close().await;
    let source = DiskSource::open(data.clone()).await.unwrap();
    assert!(DiskSource::open(data.clone()).await.is_ok(), "others may read it, too");
    let mut hurried = settings(&data);
    hurried.lock_wait = Duration::ZERO;
    assert!(DiskStore::open(hurried).await.is_err());
    drop(source);
}

fn golden(version: i32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/store/schema_{version}.db"))
}

#[tokio::test]
async fn what_is_no_store_of_this_version_is_refused_and_left() {
    let home = tempfile::tempdir().unwrap();
    let folder = |name: &str| {
        let folder = home.path().join(name);
        fs::create_dir(&folder).unwrap();
        folder.join("tasks.db")
    };
    folder("empty");
    fs::write(folder("text"), "words").unwrap();
    fs::write(folder("nothing"), "").unwrap();
    for (name, version) in [("first", 1), ("second", 2), ("newer", 3)] {
        fs::copy(golden(version), folder(name)).unwrap();
    }
    let conn = Connection::open(home.path().join("newer/tasks.db")).unwrap();
    conn.execute_batch("PRAGMA user_version = 9; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(conn);
    let conn = Connection::open(folder("other")).unwrap();
    conn.execute_batch("CREATE TABLE t (a)").unwrap();
    drop(conn);
    fs::write(home.path().join("file"), "").unwrap();
    let older = "was written by an older taskgate (version N, this one reads 3); start a gateway of this version on it once, and end it";
    for (name, why) in [
        ("empty", "/tasks.db: is no task store".to_owned()),
        ("text", "/tasks.db: is no task store".to_owned()),
        ("nothing", "/tasks.db: is no task store".to_owned()),
        ("other", "/tasks.db: is no task store".to_owned()),
        ("first", format!("/tasks.db: {}", older.replace('N', "1"))),
        ("second", format!("/tasks.db: {}", older.replace('N', "2"))),
        ("newer", "/tasks.db: was written by a newer taskgate (version 9, this one knows 3); take that one".to_owned()),
        ("file", ": not a directory".to_owned()),
        ("nowhere", ": No such file or directory (os error 2)".to_owned()),
    ] {
        let path = home.path().join(name);
        let before = path.is_dir().then(|| files(&path));
        let refused = DiskSource::open(path.clone()).await.unwrap_err();
        assert_eq!(refused.to_string(), format!("{}{why}", path.display()));
        assert_eq!(path.is_dir().then(|| files(&path)), before);
    }
}
