//! Compares callers' results with the state after a restart. Acknowledged writes exist, refused ones do not, unknown ones may.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::faults::sync_failure;
use super::*;
use crate::task::Idempotency;

/// A request to the writer: copy the files, as a kill would leave them.
type WantedCopy = Arc<Mutex<Option<(PathBuf, oneshot::Sender<()>)>>>;

/// Random faults: percentages for opening, before and after a commit.
#[derive(Clone, Default)]
struct InjectedFaults {
    open: Arc<AtomicUsize>,
    before: Arc<AtomicUsize>,
    after: Arc<AtomicUsize>,
    wanted: WantedCopy,
}

impl InjectedFaults {
    fn set(&self, open: usize, before: usize, after: usize) {
        self.open.store(open, Ordering::SeqCst);
        self.before.store(before, Ordering::SeqCst);
        self.after.store(after, Ordering::SeqCst);
    }

    fn hooks(&self, folder: &TempDir, seed: u64) -> FaultHooks {
        let hook =
            |rate: &Arc<AtomicUsize>, salt: u64| -> FaultHook {
                let (rate, dice) = (Arc::clone(rate), Mutex::new(SeededRandom(seed ^ salt)));
                Box::new(move || {
                    if dice.lock().below(100) < rate.load(Ordering::SeqCst) { Err(sync_failure()) } else { Ok(()) }
                })
            };
        let (data, wanted) = (folder.path().join("data"), Arc::clone(&self.wanted));
        let space = move || {
            if let Some((to, done)) = wanted.lock().take() {
                std::fs::create_dir(&to).unwrap();
                // The last closed connection removes the log.
                for name in ["tasks.db", "tasks.db-wal"].into_iter().filter(|name| data.join(name).exists()) {
                    std::fs::copy(data.join(name), to.join(name)).unwrap();
                }
                done.send(()).unwrap();
            }
            DiskSpace { free: 50 << 30, all: 100 << 30 }
        };
        FaultHooks {
            before_open: Some(hook(&self.open, 1)),
            before_commit: Some(hook(&self.before, 2)),
            after_commit: Some(hook(&self.after, 3)),
            space: Some(Box::new(space)),
        }
    }

    /// The state that a process finds if this one is killed now.
    async fn after_a_kill(&self) -> BTreeMap<TaskKey, Task> {
        let copy = tempfile::tempdir().unwrap();
        let (done, made) = oneshot::channel();
        *self.wanted.lock() = Some((copy.path().join("data"), done));
        tokio::time::timeout(Duration::from_secs(60), made).await.unwrap().unwrap();
        let store = open(&copy).await;
        let found = everything(&store).await;
        store.close().await;
        found
    }
}

async fn everything(store: &DiskStore) -> BTreeMap<TaskKey, Task> {
    let (mut found, mut after) = (BTreeMap::new(), None);
    loop {
        let page = store.survey(PageRange::new(after, 1_000, START)).await.unwrap();
        for task in &page.tasks {
            // A cached settled row may be older than a write that failed and was made.
            store.resident.remove_settled(&task.key);
            let row = store.load(&task.key, START).await.unwrap().unwrap();
            found.insert(task.key.clone(), (*row.task).clone());
        }
        let Some(next) = page.next else { return found };
        after = Some(next);
    }
}

async fn opened(folder: &TempDir, hooks: FaultHooks) -> Arc<DiskStore> {
    let mut settings = settings(folder);
    settings.tuning.tick = Duration::from_millis(20);
    let store = DiskStore::open_with(settings, hooks).await.unwrap();
    // While the writer has no connection, the check's would be the last one, whose end removes the log from under a copy.
    checked(&store).await;
    store
}

struct SeededRandom(u64);

impl SeededRandom {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }
}

fn named(mut one: Task, name: u8) -> Task {
    one.idempotency = Some(Idempotency { key: Digest([name; 32]), call: Digest([7; 32]) });
    one
}

/// F54: a refused insert is undone in the log too, before its caller is answered.
#[tokio::test]
async fn f54_a_refused_insert_is_in_no_later_incarnation() {
    let folder = tempfile::tempdir().unwrap();
    let faults = InjectedFaults::default();
    let hooks = faults.hooks(&folder, 1);
    // The commit is made and reported as failed; later ones succeed.
    let strikes = AtomicUsize::new(1);
    let once: FaultHook =
        Box::new(move || match strikes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) {
            Ok(_) => Err(sync_failure()),
            Err(_) => Ok(()),
        });
    let store = opened(&folder, FaultHooks { after_commit: Some(once), ..hooks }).await;
    let one = named(task("a", 1), 1);
    let refused = store.insert(&one).await.unwrap_err();
    assert!(matches!(refused, StoreError::Io(_)), "{refused:?}");
    assert!(faults.after_a_kill().await.is_empty());
    assert_eq!(store.usage(), Usage::default());
    // The repetition is a new call.
    store.insert(&named(task("a", 2), 1)).await.unwrap();
    assert_eq!(faults.after_a_kill().await.len(), 1);
}

/// The process may end before the row is removed: no caller learns that it does not exist, and none sees it.
#[tokio::test]
async fn f54_an_insert_that_could_not_be_undone_is_unknown_and_undone_later() {
    let folder = tempfile::tempdir().unwrap();
    let faults = InjectedFaults::default();
    let store = opened(&folder, faults.hooks(&folder, 1)).await;
    let one = named(task("a", 1), 1);
    faults.set(100, 0, 100);
    let refused = store.insert(&one).await.unwrap_err();
    assert!(matches!(refused, StoreError::UnknownCommit(_)), "{refused:?}");
    assert_eq!(faults.after_a_kill().await.len(), 1, "a later incarnation would find it");
    let name = one.idempotency.unwrap().key;
    assert!(store.find_idempotent(&one.key.owner, &name, START).await.unwrap().is_none());
    assert!(store.load(&one.key, START).await.unwrap().is_none());
    assert!(everything(&store).await.is_empty());
    assert!(store.remove(&one.key).await.is_err(), "it is not removed either");
    faults.set(0, 0, 0);
    until("the store is well", || store.health() == StoreHealth::Good && store.unresolved.is_over()).await;
    assert!(faults.after_a_kill().await.is_empty());
    // A repeated insert may store it after all.
    store.insert(&one).await.unwrap();
    assert!(store.load(&one.key, START).await.unwrap().is_some());
    assert!(store.find_idempotent(&one.key.owner, &name, START).await.unwrap().is_some());
}

/// The possible states of each key, according to the callers' results.
#[derive(Default)]
struct ExpectedTasks(BTreeMap<TaskKey, Vec<Option<Task>>>);

impl ExpectedTasks {
    fn is(&mut self, key: &TaskKey, state: Option<Task>) {
        self.0.insert(key.clone(), vec![state]);
    }

    fn may_be(&mut self, key: &TaskKey, state: Option<Task>) {
        self.0.entry(key.clone()).or_insert_with(|| vec![None]).push(state);
    }

    #[track_caller]
    fn check(&self, found: &BTreeMap<TaskKey, Task>, when: &str) {
        for (key, states) in &self.0 {
            let state = found.get(key);
            assert!(states.iter().any(|told| told.as_ref() == state), "{when}: {state:?} is none of {states:?}");
        }
        for key in found.keys() {
            assert!(self.0.contains_key(key), "{when}: no client was ever told of {key:?}");
        }
    }
}

/// Runs one random write, and updates the expected states.
async fn write(store: &DiskStore, dice: &mut SeededRandom, next: &mut u128, told: &mut ExpectedTasks) {
    let keys: Vec<TaskKey> = told.0.keys().cloned().collect();
    let some = (!keys.is_empty()).then(|| keys[dice.below(keys.len())].clone());
    match (dice.below(10), some) {
        (0..=4, _) | (_, None) => {
            *next += 1;
            let mut one = task("a", *next);
            if dice.below(3) == 0 {
                one = named(one, u8::try_from(dice.below(4)).unwrap());
            }
            match store.insert(&one).await {
                Ok(_) => told.is(&one.key.clone(), Some(one)),
                Err(StoreError::UnknownCommit(_)) => told.may_be(&one.key.clone(), Some(one)),
                Err(_) => told.is(&one.key, None),
            }
        }
        (5..=7, Some(key)) => {
            let Some(row) = store.load(&key, START).await.unwrap() else { return };
            let changed = if row.task.is_settled() {
                Task { ttl: row.task.ttl + Duration::from_secs(1), ..(*row.task).clone() }
            } else {
                settled((*row.task).clone(), "r")
            };
            match store.replace(row.revision, WriteRole::Command, &changed).await {
                Ok(_) => told.is(&key, Some(changed)),
                Err(StoreError::UnknownCommit(_)) => told.may_be(&key, Some(changed)),
                // Any other error means that it was not made.
                Err(_) => (),
            }
        }
        (_, Some(key)) => match store.remove(&key).await {
            Ok(()) => told.is(&key, None),
            Err(StoreError::UnknownCommit(_)) => told.may_be(&key, None),
            Err(_) => (),
        },
    }
}

/// L1, L4 with faults everywhere: at opening, before a commit, and after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_is_there_refused_is_not_and_unknown_is_either() {
    let incarnations = (0..6_u64).map(|seed| async move {
        let folder = tempfile::tempdir().unwrap();
        let faults = InjectedFaults::default();
        let store = opened(&folder, faults.hooks(&folder, seed)).await;
        let (mut dice, mut next, mut told) = (SeededRandom(seed), 0, ExpectedTasks::default());
        for round in 0..12 {
            faults.set(dice.below(3) * 40, dice.below(3) * 15, dice.below(3) * 15);
            for _ in 0..8 {
                write(&store, &mut dice, &mut next, &mut told).await;
            }
            told.check(&faults.after_a_kill().await, &format!("seed {seed}, round {round}, killed"));
            if round % 3 == 2 {
                faults.set(0, 0, 0);
                until("the store is well", || store.health() == StoreHealth::Good && store.unresolved.is_over()).await;
                let found = everything(&store).await;
                told.check(&found, &format!("seed {seed}, round {round}, healed"));
                assert_eq!(found, faults.after_a_kill().await, "seed {seed}: the visible rows are the stored rows");
                let keys: Vec<TaskKey> = told.0.keys().cloned().collect();
                for key in keys {
                    told.is(&key, found.get(&key).cloned());
                }
            }
        }
        store.close().await;
    });
    futures_util::future::join_all(incarnations).await;
}
