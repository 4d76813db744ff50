//! Tests the disk store beyond the contract: state after restarts, and after failures.

mod checked;
mod clock;
mod damage;
mod faults;
mod figures;
mod files;
mod golden;
mod refused;
mod room;
mod selection;

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tempfile::TempDir;

use self::faults::failing_while;
use super::folder::DiskSpace;
use super::resident::{RowChange, RowTotals};
use super::settings::FaultHook;
use super::*;
use crate::replica::Incarnation;
use crate::store::contract::{self, PATIENCE, START, is_condemned, known, settled, task, until};
use crate::task::{Attempt, Event, Executed, Failure, GatewayFault, Outcome, Phase, Reason, transition};
use crate::wire::Payload;

const ROOMY: usize = 1 << 30;

/// A store in a temporary folder, on any medium.
fn settings(folder: &TempDir) -> DiskSettings {
    let mut settings = DiskSettings::new(folder.path().join("data"), ROOMY);
    settings.is_ephemeral = true;
    settings
}

/// Enough space, regardless of the test machine's disk.
fn roomy() -> FaultHooks {
    FaultHooks { space: Some(Box::new(|| DiskSpace { free: 50 << 30, all: 100 << 30 })), ..FaultHooks::default() }
}

async fn open(folder: &TempDir) -> Arc<DiskStore> {
    DiskStore::open_with(settings(folder), roomy()).await.unwrap()
}

fn database(folder: &TempDir) -> PathBuf {
    folder.path().join("data/tasks.db")
}

/// The commit with this number signals that it is reached, and waits for a message.
fn held_commit(number: usize) -> (FaultHooks, Arc<AtomicBool>, std::sync::mpsc::Sender<()>) {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let reached = Arc::new(AtomicBool::new(false));
    let (first, at) = (Mutex::new(Some(held)), Arc::clone(&reached));
    let before = AtomicUsize::new(0);
    let hold = move || {
        if before.fetch_add(1, Ordering::SeqCst) + 1 == number
            && let Some(held) = first.lock().take()
        {
            at.store(true, Ordering::SeqCst);
            let _ = held.recv();
        }
        Ok(())
    };
    (FaultHooks { before_commit: Some(Box::new(hold)), ..roomy() }, reached, release)
}

/// The files of an open store, as a crash leaves them.
fn copy_of(folder: &TempDir) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("data")).unwrap();
    for name in ["tasks.db", "tasks.db-wal"] {
        std::fs::copy(folder.path().join("data").join(name), copy.path().join("data").join(name)).unwrap();
    }
    copy
}

/// Waits for the end of the background check, which reads the file and its log: it may begin late on a busy machine.
async fn checked(store: &DiskStore) {
    until("the file is checked", || store.check.is_over()).await;
}

#[tokio::test]
async fn keeps_the_contract_of_every_store() {
    contract::check_all(&OnDisk::default()).await;
}

#[derive(Default)]
struct OnDisk(Mutex<Vec<(Weak<DiskStore>, TempDir, usize)>>);

impl contract::StoreOpener for OnDisk {
    type Store = DiskStore;

    async fn open(&self, stored_bytes_max: usize) -> Arc<DiskStore> {
        self.open_with(stored_bytes_max, roomy()).await
    }

    async fn next_incarnation(&self, ended: Arc<DiskStore>) -> Arc<DiskStore> {
        self.next_incarnation_at(ended, None).await
    }

    async fn next_incarnation_ahead(&self, ended: Arc<DiskStore>) -> Option<(Arc<DiskStore>, Timestamp)> {
        let shown = START.after(Duration::from_secs(400 * 24 * 60 * 60));
        Some((self.next_incarnation_at(ended, Some(shown)).await, shown))
    }

    async fn beside(&self, _: &Arc<DiskStore>) -> Option<Arc<DiskStore>> {
        None
    }

    async fn open_losing_acknowledgements(&self) -> Option<(Arc<DiskStore>, contract::AcknowledgementLoss)> {
        let fails = Arc::new(AtomicBool::new(false));
        let hooks = FaultHooks { after_commit: Some(failing_while(&fails)), ..roomy() };
        let store = self.open_with(ROOMY, hooks).await;
        Some((store, Box::new(move |loses| fails.store(loses, Ordering::SeqCst))))
    }

    async fn declare_ended(&self, _: &DiskStore, _: Incarnation) {}
}

impl OnDisk {
    async fn open_with(&self, stored_bytes_max: usize, hooks: FaultHooks) -> Arc<DiskStore> {
        let folder = tempfile::tempdir().unwrap();
        let settings = DiskSettings { stored_bytes_max, ..settings(&folder) };
        let store = DiskStore::open_with(settings, hooks).await.unwrap();
        self.0.lock().push((Arc::downgrade(&store), folder, stored_bytes_max));
        store
    }

    /// With this time on the machine's clock.
    async fn next_incarnation_at(&self, ended: Arc<DiskStore>, clock: Option<Timestamp>) -> Arc<DiskStore> {
        ended.close().await;
        let is_its =
            |(store, ..): &(Weak<DiskStore>, TempDir, usize)| std::ptr::eq(store.as_ptr(), Arc::as_ptr(&ended));
        let (_, folder, stored_bytes_max) = {
            let mut all = self.0.lock();
            let at = all.iter().position(is_its).expect("it was opened here");
            all.swap_remove(at)
        };
        let settings = DiskSettings { stored_bytes_max, clock, ..settings(&folder) };
        let store = DiskStore::open_with(settings, roomy()).await.unwrap();
        self.0.lock().push((Arc::downgrade(&store), folder, stored_bytes_max));
        store
    }
}

/// L1, L2.
#[tokio::test]
async fn l1_a_later_incarnation_finds_every_row_as_it_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let mut expected = Vec::new();
    for id in 0..40 {
        let one = task(["a", "b"][usize::from(id % 2 == 1)], id);
        let mut revision = store.insert(&one).await.unwrap();
        let mut last = one;
        if id % 4 > 1 {
            last = settled(last, &"r".repeat(usize::try_from(id).unwrap() * 500));
            revision = store.replace(revision, WriteRole::Holder, &last).await.unwrap();
        }
        if id % 10 == 9 {
            store.remove(&last.key).await.unwrap();
        } else {
            expected.push((last, revision));
        }
    }
    let usage = store.usage();
    store.close().await;
    let again = open(&folder).await;
    assert_eq!(again.usage(), usage);
    for (task, revision) in &expected {
        // Twice: from the disk, and from memory.
        for _ in 0..2 {
            let found = again.load(&task.key, START).await.unwrap().unwrap();
            assert_eq!((&*found.task, found.revision), (task, *revision));
        }
    }
    let live = expected.iter().filter(|(task, _)| !task.is_settled()).count();
    assert_eq!(again.claim(99, &known()).await.unwrap().len(), live);
    assert!(again.load(&task("b", 9).key, START).await.unwrap().is_none());
    let row = again.load(&expected[0].0.key, START).await.unwrap().unwrap();
    again.replace(row.revision, WriteRole::Command, &settled((*row.task).clone(), "later")).await.unwrap();
}

/// A store that was never closed, as after a crash: the log has the rows.
#[tokio::test]
async fn rows_that_only_the_log_has_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    store.insert(&task("a", 1)).await.unwrap();
    let copy = copy_of(&folder);
    let after = open(&copy).await;
    assert!(after.load(&task("a", 1).key, START).await.unwrap().is_some());
}

/// Many writes, one fsync; each still has its own answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_wait_together_are_one_transaction() {
    let folder = tempfile::tempdir().unwrap();
    // The first commit waits until all others are queued.
    let (hooks, reached, release) = held_commit(1);
    let store = DiskStore::open_with(settings(&folder), hooks).await.unwrap();
    let one = task("a", 1_000);
    let tasks: Vec<Task> = (0..200).map(|id| task("a", id % 190)).collect();
    let others = async {
        // Until the first has reached its commit.
        until("the first is at its commit", || reached.load(Ordering::SeqCst)).await;
        let all = futures_util::future::join_all(tasks.iter().map(|one| store.insert(one)));
        let release = async {
            until("all others wait", || store.queue.capacity() == QUEUE_MAX - 200).await;
            release.send(()).unwrap();
        };
        tokio::join!(all, release).0
    };
    let (first, outcomes) = tokio::join!(store.insert(&one), others);
    first.unwrap();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 190);
    let refused = outcomes[190..].iter().all(|outcome| matches!(outcome, Err(StoreError::Exists)));
    assert!(refused, "a refusal in a transaction is its own");
    assert_eq!(store.commits(), 2);
    assert_eq!(store.usage().tasks, 191);
}

#[tokio::test]
async fn a_settled_row_is_read_from_the_disk_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let one = settled(task("a", 1), "r");
    store.insert(&one).await.unwrap();
    assert!(store.resident.settled(&one.key).is_none());
    store.load(&one.key, START).await.unwrap().unwrap();
    assert!(store.resident.settled(&one.key).is_some());
    store.remove(&one.key).await.unwrap();
    assert!(store.resident.settled(&one.key).is_none());
}

/// A row read before a commit must not overwrite the committed one.
#[tokio::test]
async fn a_row_that_was_read_before_a_commit_is_not_cached_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let one = task("a", 1);
    let revision = store.insert(&one).await.unwrap();
    store.resident.reset(RowTotals::default());
    let ticket = store.resident.ticket(&one.key);
    let old = StoredTask::held_by(OWN, Arc::new(one.clone()), revision);
    store.replace(revision, WriteRole::Holder, &settled(one.clone(), "r")).await.unwrap();
    store.resident.keep(ticket, &old, START);
    assert!(store.resident.live(&one.key).is_none(), "a row that is settled by now");
    assert!(store.load(&one.key, START).await.unwrap().unwrap().task.is_settled());
    let other = task("a", 1 << 64);
    let ticket = store.resident.ticket(&other.key);
    let row = StoredTask::held_by(OWN, Arc::new(other.clone()), revision);
    store.resident.begin(&[RowChange { key: other.key.clone(), before: None, after: None }]);
    store.resident.keep(ticket, &row, START);
    let during = store.resident.ticket(&other.key);
    store.resident.keep(during, &row, START);
    assert!(store.resident.live(&other.key).is_none(), "a commit is under way");
    store.resident.abandon(&[RowChange { key: other.key.clone(), before: None, after: None }]);
    store.resident.keep(store.resident.ticket(&other.key), &row, START);
    assert!(store.resident.live(&other.key).is_some());
}

/// F58: a clock that is set back revives no task, in this process and the next.
#[tokio::test]
async fn f58_a_clock_that_is_set_back_brings_no_task_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let (gone, stays) = (settled(task("a", 1), "r"), settled(task("a", 2), "r"));
    let stays = Task { ttl: Duration::from_secs(3_600), ..stays };
    store.insert(&gone).await.unwrap();
    store.insert(&stays).await.unwrap();
    let past = START.after(Duration::from_secs(60));
    for now in [START, past, START, Timestamp::from_millis(0)] {
        let is_past = store.last_seen() >= past || now >= past;
        assert_eq!(store.load(&gone.key, now).await.unwrap().is_none(), is_past);
        assert!(store.load(&stays.key, now).await.unwrap().is_some());
    }
    store.close().await;
    let later = open(&folder).await;
    assert_eq!(later.last_seen(), past);
    assert!(later.load(&gone.key, START).await.unwrap().is_none());
    assert_eq!(later.page(&gone.key.owner, PageRange::new(None, 9, START)).await.unwrap().tasks.len(), 1);
    assert_eq!(later.sweep(START, 9).await.unwrap(), 1);
}

/// F58: otherwise it would be unexpired again under a clock that is set back.
#[tokio::test]
async fn the_time_at_which_something_was_freed_outlives_a_crash() {
    let past = START.after(Duration::from_secs(60));
    for frees_one in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder).await;
        let gone = settled(task("a", 1), "r");
        store.insert(&gone).await.unwrap();
        if frees_one {
            store.sweep_one(&gone.key, past).await.unwrap();
        } else {
            assert_eq!(store.sweep(past, 9).await.unwrap(), 1);
        }
        assert_eq!(store.usage().tasks, 0);
        let copy = copy_of(&folder);
        assert_eq!(open(&copy).await.last_seen(), past, "one: {frees_one}");
    }
}

/// F21: a sweep interrupted by a crash is repeated, and removes no live row.
#[tokio::test]
async fn f21_a_sweep_is_done_again_after_a_crash_and_takes_no_live_row() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    store.insert(&task("a", 1)).await.unwrap();
    for id in 2..9 {
        store.insert(&settled(task("a", id), "r")).await.unwrap();
    }
    let past = START.after(Duration::from_secs(60));
    assert_eq!(store.sweep(past, 3).await.unwrap(), 3);
    drop(store);
    let later = open(&folder).await;
    assert_eq!(later.sweep(past, 99).await.unwrap(), 4);
    assert_eq!(later.sweep(past, 99).await.unwrap(), 0);
    assert!(later.load(&task("a", 1).key, past).await.unwrap().is_some());
}

#[tokio::test]
async fn a_store_that_is_closed_takes_and_shows_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    store.close().await;
    store.close().await;
    let one = task("a", 1);
    assert!(matches!(store.insert(&one).await, Err(StoreError::Io(_))));
    assert!(matches!(store.load(&one.key, START).await, Err(StoreError::Io(_))));
}
