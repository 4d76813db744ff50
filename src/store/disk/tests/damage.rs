//! Tests unreadable rows: each affects only its own task, and delays no other.

use std::fs;

use rusqlite::Connection;
use siphasher::sip128::SipHasher13;

use super::*;
use crate::store::record;
use crate::task::{Digest, Idempotency, Recovery, StoredCall, Summary};

/// Makes a page of a long value with `text` point to a missing page.
pub(super) fn break_chain(path: &Path, text: &str) {
    let size: usize = {
        let conn = Connection::open(path).unwrap();
        conn.pragma_query_value(None, "page_size", |row| row.get::<_, i64>(0)).unwrap().try_into().unwrap()
    };
    let mut bytes = fs::read(path).unwrap();
    let holds = |page: &&mut [u8]| {
        let (next, content) = page.split_at(4);
        next != [0; 4] && content[..400].windows(text.len()).any(|at| at == text.as_bytes())
    };
    let page = bytes.chunks_exact_mut(size).skip(1).filter(|page| page[0] == 0).rfind(holds);
    page.expect("a value that long")[..4].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff]);
    fs::write(path, bytes).unwrap();
}

/// Gives the record with `text` an unknown version.
fn make_newer(path: &Path, text: &str) {
    change_record(path, text, |record| record[..2].copy_from_slice(&(record::VERSION + 1).to_be_bytes()));
}

/// Gives the record with `text` a field that no program knows (F89).
fn make_unknown(path: &Path, text: &str) {
    change_record(path, text, |record| record.push(0));
}

/// Changes the record with `text` as another program would write it.
fn change_record(path: &Path, text: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let conn = Connection::open(path).unwrap();
    let sql = "SELECT row, record FROM records WHERE instr(record, CAST(?1 AS BLOB)) > 0";
    let (row, mut record): (i64, Vec<u8>) = conn.query_row(sql, [text], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    change(&mut record);
    let sum = SipHasher13::new().hash(&[&record[..2], &record[18..]].concat());
    record[2..18].copy_from_slice(&u128::from(sum).to_be_bytes());
    conn.execute("UPDATE records SET record = ?2 WHERE row = ?1", rusqlite::params![row, record]).unwrap();
    conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
}

fn queued(id: u128, params: &str) -> Task {
    let call = StoredCall {
        params: Payload::of(params),
        capabilities: Payload::empty_object(),
        progress: false,
        log_level: None,
        is_repeatable: false,
        is_native: false,
    };
    let recovery = Recovery { call: Some(call), ..Recovery::default() };
    Task { phase: Phase::Queued, recovery, ..task("a", id) }
}

const LIVE: &str = "arguments of the one ";
const DONE: &str = "the result of the one ";

/// Recovery, sweeps, lists and all other tasks continue, for every kind of fault in one row.
#[tokio::test]
async fn one_unreadable_row_delays_no_other() {
    let ways = [files::flip as fn(&Path, &str), break_chain, make_newer, make_unknown];
    for (way, is_newer) in ways.into_iter().zip([false, false, true, true]) {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder).await;
        // The first in every order.
        let (live, done) = (queued(1, &LIVE.repeat(1_000)), settled(task("a", 2), &DONE.repeat(1_000)));
        let mut good = Vec::new();
        for one in [&live, &done] {
            store.insert(one).await.unwrap();
        }
        for id in 3..8 {
            good.push(queued(id, "p"));
            store.insert(good.last().unwrap()).await.unwrap();
            store.insert(&settled(task("a", 100 + id), "r")).await.unwrap();
        }
        store.close().await;
        for text in [LIVE, DONE] {
            way(&database(&folder), &text.repeat(3));
        }
        let store = open(&folder).await;
        let keys: Vec<_> = good.iter().map(|task| task.key.clone()).collect();
        for key in store.claim(99, &known()).await.unwrap() {
            let found = store.load(&key, START).await;
            match found {
                Ok(row) => assert_eq!(key == live.key, is_condemned(&row.unwrap().task)),
                Err(error) => assert!(is_newer && key == live.key, "{error}"),
            }
        }
        assert!(store.claim(99, &known()).await.unwrap().is_empty(), "it is not read again");
        let page = store.page(&live.key.owner, PageRange::new(None, 99, START)).await.unwrap();
        assert_eq!((page.tasks.len(), page.next), (12, None));
        assert_eq!(store.survey(PageRange::new(None, 99, START)).await.unwrap().tasks.len(), 12);
        let past = START.after(Duration::from_secs(7 * 24 * 3_600));
        assert_eq!(store.overdue(past, 99).await.unwrap(), keys);
        let freed = store.sweep(past, 99).await.unwrap();
        assert_eq!(freed, if is_newer { 6 } else { 7 }, "a removed row is freed, readable or not");
        for (task, number) in good.iter().zip(0_u8..) {
            let row = store.load(&task.key, past).await.unwrap().unwrap();
            store
                .replace(row.revision, WriteRole::Holder, &settled(task.clone(), &"r".repeat(number.into())))
                .await
                .unwrap();
        }
        store.close().await;
        let store = open(&folder).await;
        assert_eq!(store.usage().tasks, if is_newer { 6 } else { 5 });
        let left = store.claim(99, &known()).await.unwrap();
        assert_eq!(left.len(), usize::from(is_newer), "{left:?}");
    }
}

/// Expired rows are freed a few at a time, oldest first: a damaged one, or one that cannot be freed, does not delay others.
#[tokio::test]
async fn one_damaged_row_delays_no_other_rows_removal() {
    const NOTE: &str = "a note of the one ";
    let flip = files::flip as fn(&Path, &str);
    for (way, text, freed) in
        [(flip, DONE, [1; 6]), (break_chain, DONE, [1; 6]), (break_chain, NOTE, [1, 1, 1, 1, 1, 0])]
    {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder).await;
        let settled = |id, result: &str| settled(task("a", id), result);
        let oldest = settled(1, &DONE.repeat(1_000));
        let ttl = oldest.ttl - Duration::from_millis(1);
        store.insert(&Task { ttl, status_message: Some(Arc::from(NOTE.repeat(1_000))), ..oldest }).await.unwrap();
        for id in 2..7 {
            store.insert(&settled(id, "r")).await.unwrap();
        }
        store.close().await;
        way(&database(&folder), &text.repeat(3));
        let store = open(&folder).await;
        let past = START.after(Duration::from_secs(7 * 24 * 3_600));
        let mut found = [0; 6];
        for one in &mut found {
            *one = store.sweep(past, 1).await.unwrap();
        }
        assert_eq!(found, freed, "{text}");
        assert_eq!(store.usage().tasks, 6 - freed.iter().sum::<usize>(), "{text}");
    }
}

/// A write over a damaged record inserts a new one, from the intact task in memory.
#[tokio::test]
async fn a_live_task_is_settled_over_a_damaged_record() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let (live, other) = (queued(1, &LIVE.repeat(1_000)), queued(2, "p"));
    let first = store.insert(&live).await.unwrap();
    let second = store.insert(&other).await.unwrap();
    store.close().await;
    let whole = fs::read(database(&folder)).unwrap();
    let store = open(&folder).await;
    store.load(&live.key, START).await.unwrap().unwrap();
    break_chain(&database(&folder), &LIVE.repeat(3));
    assert_ne!(fs::read(database(&folder)).unwrap(), whole);
    let ended = [settled(live, "r"), settled(other, "r")];
    let (one, two) = tokio::join!(
        store.replace(first, WriteRole::Command, &ended[0]),
        store.replace(second, WriteRole::Command, &ended[1])
    );
    one.unwrap();
    two.unwrap();
    store.close().await;
    let store = open(&folder).await;
    for task in &ended {
        assert_eq!(*store.load(&task.key, START).await.unwrap().unwrap().task, *task);
    }
}

/// F54: a commit over a damaged record that was reported as failed may have been made.
#[tokio::test]
async fn f54_a_failed_commit_over_a_damaged_record_is_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let live = queued(1, &LIVE.repeat(1_000));
    let first = store.insert(&live).await.unwrap();
    store.close().await;
    let fails = Arc::new(AtomicBool::new(false));
    let hooks = FaultHooks { after_commit: Some(failing_while(&fails)), ..roomy() };
    let store = DiskStore::open_with(settings(&folder), hooks).await.unwrap();
    store.load(&live.key, START).await.unwrap().unwrap();
    break_chain(&database(&folder), &LIVE.repeat(3));
    let ended = settled(live, "r");
    fails.store(true, Ordering::SeqCst);
    let unknown = store.replace(first, WriteRole::Command, &ended).await;
    assert!(matches!(unknown, Err(StoreError::UnknownCommit(_))), "{unknown:?}");
    fails.store(false, Ordering::SeqCst);
    assert_eq!(*store.resolve_write(&ended.key, START).await.unwrap().unwrap().task, ended);
}

/// F56: each column matters on its own, so each is covered by a checksum.
#[tokio::test]
async fn f56_a_damaged_column_is_found() {
    for change in [
        "revision = revision + 1",
        "name = zeroblob(32)",
        "name = NULL",
        "pending = 1",
        "updated_at = updated_at + 1",
        "settled = 0",
        "created_at = created_at - 1",
        "expires_at = expires_at + 1",
        "bytes = bytes + 1",
        "record = 2",
        "summary = x''",
        "summary = substr(summary, 1, length(summary) - 1)",
        "owner = 'b'",
        "id = zeroblob(16)",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder).await;
        let named = Some(Idempotency { key: Digest([1; 32]), call: Digest([2; 32]) });
        let one = Task { idempotency: named, ..settled(task("a", 1), "r") };
        let other = settled(task("a", 9), "other");
        store.insert(&one).await.unwrap();
        store.insert(&other).await.unwrap();
        store.close().await;
        let conn = Connection::open(database(&folder)).unwrap();
        assert_eq!(conn.execute(&format!("UPDATE tasks SET {change} WHERE row = 1"), ()).unwrap(), 1);
        drop(conn);
        let store = open(&folder).await;
        let found = store.load(&one.key, START).await.unwrap().unwrap();
        assert!(is_condemned(&found.task), "{change}: {found:?}");
        assert_eq!(*store.load(&other.key, START).await.unwrap().unwrap().task, other);
        store.page(&one.key.owner, PageRange::new(None, 9, START)).await.unwrap();
        store.survey(PageRange::new(None, 9, START)).await.unwrap();
    }
}

/// A list works regardless of results, since it reads none.
#[tokio::test]
async fn no_list_reads_a_record() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let tasks: Vec<Task> = (1..6).map(|id| settled(task("a", id), &"r".repeat(9_000))).collect();
    for one in &tasks {
        store.insert(one).await.unwrap();
    }
    store.close().await;
    let conn = Connection::open(database(&folder)).unwrap();
    conn.execute_batch("UPDATE records SET record = x''").unwrap();
    drop(conn);
    let store = open(&folder).await;
    let expected: Vec<_> = tasks.iter().map(Summary::of).collect();
    assert_eq!(store.page(&Principal::new("a"), PageRange::new(None, 9, START)).await.unwrap().tasks, expected);
    assert_eq!(store.survey(PageRange::new(None, 9, START)).await.unwrap().tasks.len(), 5);
    assert!(store.unreadable.0.lock().is_empty(), "nothing was found damaged");
    for one in &tasks {
        assert!(is_condemned(&store.load(&one.key, START).await.unwrap().unwrap().task));
    }
}

/// However many lists are read, single tasks can be read beside them.
#[tokio::test]
async fn lists_take_no_reader_from_reads_of_one_task() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let one = settled(task("a", 1), "r");
    store.insert(&one).await.unwrap();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let lists = (0..8).map(|_| {
        let held = Arc::clone(&held);
        store.readers.list(move |_| {
            let _ = held.lock().recv();
            Ok(())
        })
    });
    let load = async {
        let found = store.load(&one.key, START).await.unwrap();
        assert!(found.is_some());
        drop(release);
    };
    let both = async { tokio::join!(futures_util::future::join_all(lists), load).0 };
    let listed = tokio::time::timeout(PATIENCE, both).await.unwrap();
    assert!(listed.iter().all(Result::is_ok));
}

/// Two readers cache a settled row: the later revision stays, in any order.
#[tokio::test]
async fn an_older_revision_of_a_settled_row_takes_no_newer_ones_place() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let one = task("a", 1);
    let first = store.insert(&one).await.unwrap();
    let cancelled = transition(one.clone(), Event::CancelRequested, START).0;
    let second = store.replace(first, WriteRole::Holder, &cancelled).await.unwrap();
    let ticket = store.resident.ticket(&one.key);
    let before = store.load(&one.key, START).await.unwrap().unwrap();
    let notified = transition(cancelled, Event::Notified, START).0;
    let third = store.replace(second, WriteRole::Holder, &notified).await.unwrap();
    store.resident.keep_settled(&before, START);
    assert_eq!(store.load(&one.key, START).await.unwrap().unwrap().revision, third);
    // Without a cached row to compare, the ticket reveals that it is old.
    store.resident.remove_settled(&one.key);
    store.resident.keep(ticket, &before, START);
    assert!(store.resident.settled(&one.key).is_none());
    // An old row that is cached nevertheless is evicted when a write finds it out.
    store.resident.keep_settled(&before, START);
    assert!(matches!(store.replace(before.revision, WriteRole::Holder, &notified).await, Err(StoreError::Conflict)));
    assert_eq!(store.load(&one.key, START).await.unwrap().unwrap().revision, third);
}

/// A write that met damage and then fails for another reason is retried once, with the file reopened.
#[tokio::test]
async fn the_work_after_damage_begins_with_a_reopened_file() {
    let folder = tempfile::tempdir().unwrap();
    let codes: Arc<Mutex<Vec<std::ffi::c_int>>> = Arc::default();
    let failing = Arc::clone(&codes);
    let fail = move || match failing.lock().pop() {
        Some(code) => Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None)),
        None => Ok(()),
    };
    let hooks = FaultHooks { before_commit: Some(Box::new(fail)), ..roomy() };
    let store = DiskStore::open_with(settings(&folder), hooks).await.unwrap();
    let one = task("a", 1);
    let revision = store.insert(&one).await.unwrap();
    // The last is met first.
    codes.lock().extend([rusqlite::ffi::SQLITE_FULL, rusqlite::ffi::SQLITE_CORRUPT]);
    store.replace(revision, WriteRole::Holder, &settled(one.clone(), "r")).await.unwrap();
    assert!(codes.lock().is_empty() && store.health() == StoreHealth::Good);
    assert!(store.load(&one.key, START).await.unwrap().unwrap().task.is_settled());
}
