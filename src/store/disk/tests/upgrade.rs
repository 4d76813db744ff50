//! Upgrades a store of an older schema: completely, or not at all.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use rusqlite::{Connection, params};

use super::super::columns::{RowOutline, at, number};
use super::golden::{copied, holds_every_row, tasks};
use super::*;
use crate::store::record;

const OLD: &str = "schema_1.db";
/// The environment variable with the folder for the process that is killed.
const FOLDER: &str = "TASKGATE_TEST_FOLDER";

fn file(folder: &TempDir) -> std::path::PathBuf {
    folder.path().join("data/tasks.db")
}

/// The schema version, and the number of rows in the first schema's table; zero for another schema.
fn as_before(folder: &TempDir) -> (i32, i64) {
    let conn = Connection::open(file(folder)).unwrap();
    let schema = conn.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    let count = "SELECT count(*) FROM tasks WHERE length(record) > 18";
    (schema, conn.query_row(count, (), |row| row.get(0)).unwrap_or(0))
}

/// Run in the process that the next test starts, which ends at the point named by its environment.
#[tokio::test]
#[ignore = "started by another test"]
async fn opens_the_store_that_it_is_told_of() {
    let mut settings = DiskSettings::new(std::env::var(FOLDER).unwrap().into(), ROOMY);
    settings.is_ephemeral = true;
    DiskStore::open_with(settings, roomy()).await.unwrap().close().await;
}

/// F68: killed at any point, the file has the old or the new schema, and the next process finds every row.
#[cfg(debug_assertions)]
#[tokio::test]
async fn f68_an_upgrade_that_is_killed_anywhere_has_happened_or_not() {
    let name = "store::disk::tests::upgrade::opens_the_store_that_it_is_told_of";
    let rows = i64::try_from(tasks().len()).unwrap();
    // Before the start, before each row, and around the commit.
    let visits = tasks().len() + 3;
    for (visit, (old, schema, of_the_first)) in
        (1..=visits + 1).flat_map(|visit| [(visit, (OLD, 1, rows)), (visit, ("schema_2.db", 2, 0))])
    {
        let folder = copied(old);
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--test-threads=1"])
            .env("TASKGATE_FAILPOINT", format!("upgrading:{visit}"))
            .env(FOLDER, folder.path().join("data"))
            .output()
            .unwrap()
            .status;
        assert_eq!(ended.signal() == Some(9), visit <= visits, "{old}, visit {visit}: {ended}");
        let expected = if visit < visits { (schema, of_the_first) } else { (3, 0) };
        assert_eq!(as_before(&folder), expected, "{old}, visit {visit}");
        let store = open(&folder).await;
        holds_every_row(&store).await;
    }
}

/// The next write of a row moves its record; after the last one, the first schema's table is dropped.
#[tokio::test]
async fn records_move_with_their_next_write_and_then_the_old_table_goes() {
    let folder = copied(OLD);
    let store = open(&folder).await;
    let left = || -> i64 {
        let conn = Connection::open(file(&folder)).unwrap();
        conn.query_row("SELECT count(*) FROM records_1", (), |row| row.get(0)).unwrap_or(-1)
    };
    let all = tasks();
    let (first, rest) = all.split_first().unwrap();
    let row = store.load(&first.key, START).await.unwrap().unwrap();
    let ended = transition(first.clone(), Event::CancelRequested, START).0;
    store.replace(row.revision, WriteRole::Command, &ended).await.unwrap();
    assert_eq!(left(), i64::try_from(rest.len()).unwrap());
    for task in rest {
        store.remove(&task.key).await.unwrap();
    }
    assert_eq!((left(), store.usage().tasks), (0, 1));
    store.close().await;
    let store = open(&folder).await;
    assert_eq!(left(), -1, "no such table");
    assert_eq!(*store.load(&first.key, START).await.unwrap().unwrap().task, ended);
}

/// Without enough disk space, the store stays unchanged for the earlier program, and the error names the required space.
#[tokio::test]
async fn an_upgrade_without_room_leaves_the_store_as_it_was() {
    let folder = copied(OLD);
    let pages: u32 = {
        let conn = Connection::open(file(&folder)).unwrap();
        conn.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap()
    };
    let mut narrow = settings(&folder);
    narrow.tuning.pages_max = Some(pages);
    let refused = DiskStore::open_with(narrow, roomy()).await.unwrap_err();
    let said = "was written by an older taskgate (version 1; this one writes 3), and bringing it up needs about 5 MiB of \
                free disk; make room and start again. The file is left as it is";
    assert_eq!(refused.to_string(), format!("{}: {said}", file(&folder).display()));
    assert_eq!(as_before(&folder), (1, i64::try_from(tasks().len()).unwrap()));
    holds_every_row(&*open(&folder).await).await;
}

/// The log that a crash left beside the file is part of the store.
#[tokio::test]
async fn an_upgrade_takes_in_what_only_the_log_has() {
    let (folder, crashed) = (copied(OLD), copied(OLD));
    let last = &tasks()[14];
    let conn = Connection::open(file(&folder)).unwrap();
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).unwrap();
    conn.execute("UPDATE tasks SET revision = 77 WHERE id = ?1", [last.key.id.bits().to_be_bytes()]).unwrap();
    for name in ["tasks.db", "tasks.db-wal"] {
        fs::copy(file(&folder).with_file_name(name), file(&crashed).with_file_name(name)).unwrap();
    }
    let store = open(&crashed).await;
    assert_eq!(store.load(&last.key, START).await.unwrap().unwrap().revision, Revision(77));
}

/// F56: a damaged record becomes one failed task, and all others are kept.
#[tokio::test]
async fn f56_a_record_that_cannot_be_read_stops_no_upgrade() {
    for break_it in [files::flip as fn(&Path, &str), damage::break_chain] {
        let folder = copied(OLD);
        break_it(&file(&folder), "a large result a large result");
        let store = open(&folder).await;
        for (number, task) in tasks().iter().enumerate() {
            let found = store.load(&task.key, START).await.unwrap().unwrap();
            if number == 9 {
                assert!(damage::is_condemned(&found.task), "{found:?}");
            } else {
                assert_eq!(*found.task, *task, "{number}");
            }
        }
    }
}

/// The first schema, for creating large stores.
const TABLES_1: &str = "
    PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
    CREATE TABLE tasks (row INTEGER PRIMARY KEY, owner TEXT NOT NULL, id BLOB NOT NULL, revision INTEGER NOT NULL,
        settled INTEGER NOT NULL, untold INTEGER NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
        bytes INTEGER NOT NULL, name BLOB, record BLOB NOT NULL) STRICT;
    CREATE UNIQUE INDEX tasks_key ON tasks (owner, id);
    CREATE INDEX tasks_age ON tasks (owner, created_at, id, settled, untold, expires_at, bytes);
    CREATE INDEX tasks_gone ON tasks (expires_at) WHERE settled = 1;
    CREATE INDEX tasks_name ON tasks (owner, name) WHERE name IS NOT NULL;
    CREATE TABLE marks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
    INSERT INTO marks VALUES ('seen', 0), ('probe', 0);
    PRAGMA application_id = 1952932212; PRAGMA user_version = 1; BEGIN;
";

/// A measurement, run by hand: the duration and disk space for `ROWS` rows (100,000) with results of `BYTES` bytes (1,000).
#[tokio::test]
#[ignore = "a measurement"]
async fn an_upgrade_of_many_rows_is_measured() {
    let setting = |name, or| std::env::var(name).map_or(or, |text| text.parse::<u64>().unwrap());
    let (rows, bytes) = (setting("ROWS", 100_000), setting("BYTES", 1_000));
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    let conn = Connection::open(file(&folder)).unwrap();
    conn.execute_batch(TABLES_1).unwrap();
    let text = "r".repeat(usize::try_from(bytes).unwrap());
    for row in 0..rows {
        let id = u128::from(row).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let created_at = START.after(Duration::from_millis(row));
        let one = settled(Task { created_at, ..task(&format!("key:{}", row % 50), id) }, &text);
        let outline = RowOutline::of(&one);
        conn.prepare_cached("INSERT INTO tasks VALUES (NULL, ?1, ?2, 1, 1, 0, ?3, ?4, ?5, NULL, ?6)")
            .unwrap()
            .execute(params![
                one.key.owner.as_str(),
                id.to_be_bytes(),
                at(outline.created_at),
                at(outline.expires_at),
                number(outline.bytes),
                record::encode(&one, record::WRITTEN_MIN)
            ])
            .unwrap();
    }
    conn.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(conn);
    let size = || schema::file_bytes(&file(&folder)) >> 10;
    let before = size();
    let log = AtomicU64::new(0);
    let began = Instant::now();
    let opened = async {
        let opened = open(&folder);
        tokio::pin!(opened);
        loop {
            tokio::select! {
                store = &mut opened => return store,
                () = tokio::time::sleep(Duration::from_millis(5)) => { log.fetch_max(size(), Ordering::SeqCst); }
            }
        }
    };
    let store = opened.await;
    let took = began.elapsed();
    println!("{rows} rows: {took:?}; {before} KiB before, {} KiB at most, {} KiB after", log.into_inner(), size());
    assert_eq!(u64::try_from(store.usage().tasks).unwrap(), rows);
}
