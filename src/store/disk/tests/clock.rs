//! Tests wrong clocks: kept tasks stay, and the operator decides.

use super::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Opens a store with this time on the machine's clock.
async fn at(folder: &TempDir, shown: Timestamp, distrust: Duration) -> Arc<DiskStore> {
    let mut settings = DiskSettings { clock: Some(shown), ..settings(folder) };
    settings.tuning.distrust = distrust;
    DiskStore::open_with(settings, roomy()).await.unwrap()
}

const LONG: Duration = Duration::from_secs(600);

/// Creates a settled task and one that is overdue after its `ttl`, at the time of last use.
async fn used(folder: &TempDir) -> Task {
    let store = open(folder).await;
    let kept = settled(task("a", 1), "r");
    store.insert(&kept).await.unwrap();
    store.insert(&task("a", 2)).await.unwrap();
    store.load(&kept.key, START).await.unwrap().unwrap();
    store.close().await;
    kept
}

/// A start with a clock a year ahead frees nothing, and its time is discarded.
#[tokio::test]
async fn a_start_with_a_wrong_clock_loses_no_task_and_moves_no_time() {
    let folder = tempfile::tempdir().unwrap();
    let kept = used(&folder).await;
    let wrong = START.after(DAY * 400);
    let store = at(&folder, wrong, LONG).await;
    assert_eq!(store.sweep(wrong, 9).await.unwrap(), 0);
    store.sweep_one(&kept.key, wrong).await.unwrap();
    assert!(store.overdue(wrong, 9).await.unwrap().is_empty());
    store.close().await;
    let store = at(&folder, START, LONG).await;
    assert_eq!(store.last_seen(), START);
    assert!(store.load(&kept.key, START).await.unwrap().is_some());
    assert_eq!(store.usage().tasks, 2);
    store.close().await;
}

/// A clock that keeps its time was right: the store works as usual.
#[tokio::test]
async fn a_clock_that_leapt_is_believed_after_a_while() {
    let folder = tempfile::tempdir().unwrap();
    used(&folder).await;
    let later = START.after(DAY * 400);
    let store = at(&folder, later, Duration::from_millis(50)).await;
    until("the clock is believed", || !store.clock.is_distrusted()).await;
    assert_eq!(store.overdue(later, 9).await.unwrap().len(), 1);
    assert_eq!(store.sweep(later, 9).await.unwrap(), 1);
    store.close().await;
    assert_eq!(open(&folder).await.last_seen(), later);
}

/// F56, F88: a damaged task is shown as failed, and its expiry is set by the first trusted clock.
#[tokio::test]
async fn f88_a_damaged_task_expires_by_no_distrusted_clock() {
    let folder = tempfile::tempdir().unwrap();
    used(&folder).await;
    let conn = rusqlite::Connection::open(database(&folder)).unwrap();
    conn.execute_batch("UPDATE records SET record = x''").unwrap();
    drop(conn);
    let (damaged, later) = (task("a", 2).key, START.after(DAY * 400));
    for distrust in [LONG, Duration::ZERO] {
        let store = at(&folder, later, distrust).await;
        let shown = store.load(&damaged, later).await.unwrap().unwrap();
        assert!(is_condemned(&shown.task), "{distrust:?}: {shown:?}");
        assert_eq!(shown.task.expires_at() > later, distrust.is_zero());
        store.close().await;
    }
}

/// F88: the time that a task has left counts, not the time that has passed since its creation.
#[tokio::test]
async fn f88_a_leap_beyond_the_rest_of_every_lifetime_frees_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let kept = Task { ttl: DAY * 30, ..settled(task("a", 1), "r") };
    store.insert(&kept).await.unwrap();
    assert!(store.load(&kept.key, START.after(DAY * 29)).await.unwrap().is_some());
    store.close().await;
    let wrong = START.after(DAY * 49);
    let store = at(&folder, wrong, LONG).await;
    assert!(store.clock.is_distrusted());
    assert_eq!(store.sweep(wrong, 9).await.unwrap(), 0);
    assert_eq!(*store.load(&kept.key, wrong).await.unwrap().unwrap().task, kept);
    store.close().await;
}

/// After a night, or the longest task's lifetime, nothing is delayed.
#[tokio::test]
async fn an_ordinary_pause_puts_nothing_off() {
    let folder = tempfile::tempdir().unwrap();
    used(&folder).await;
    let store = at(&folder, START.after(DAY / 2), LONG).await;
    assert_eq!(store.sweep(START.after(DAY / 2), 9).await.unwrap(), 1);
    let long = Task { ttl: DAY * 30, ..settled(task("a", 3), "r") };
    store.insert(&long).await.unwrap();
    store.close().await;
    let store = at(&folder, START.after(DAY * 20), LONG).await;
    assert!(!store.clock.is_distrusted(), "a task lives longer than that");
    store.close().await;
}

/// The operator discards a wrong time that was recorded.
#[tokio::test]
async fn an_operator_resets_the_time_that_the_store_goes_by() {
    let folder = tempfile::tempdir().unwrap();
    used(&folder).await;
    let wrong = START.after(DAY * 400);
    let store = at(&folder, wrong, Duration::ZERO).await;
    let _ = store.load(&task("a", 9).key, wrong).await.unwrap();
    store.close().await;
    let store = at(&folder, START, LONG).await;
    assert_eq!(store.last_seen(), wrong, "it was noted");
    store.close().await;
    let wish = folder.path().join("data/tasks.reset-clock");
    std::fs::write(&wish, "").unwrap();
    let store = at(&folder, START, LONG).await;
    assert!(store.last_seen() < wrong);
    assert!(!wish.exists(), "once");
    assert!(store.load(&task("a", 2).key, START).await.unwrap().is_some());
    store.close().await;
    assert!(open(&folder).await.last_seen() < wrong);
}

fn said(shown: Option<Timestamp>, seen: Timestamp, longest: Duration) -> String {
    let log = CapturedLog::default();
    let into = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || into.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        let start = || _ = ClockTrust::new(shown, seen, longest, LONG);
        start();
        // Another test may have reached the same log statements before this one started to listen, and cached that no subscriber
        // is interested.
        tracing::callsite::rebuild_interest_cache();
        log.0.lock().clear();
        start();
    });
    String::from_utf8(log.0.lock().clone()).unwrap()
}

#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log tells the operator that the clock is off by more than a day, the direction, and the remedy.
#[test]
fn a_clock_that_is_off_is_said_in_words_that_fit() {
    let nothing_seen = Timestamp::from_millis(0);
    for (shown, seen, longest, words) in [
        (Some(START), START.after(DAY * 2), DAY, "tasks.reset-clock"),
        (Some(START.after(DAY * 9)), START, DAY, "nothing is freed for now"),
        (Some(START.after(DAY * 9)), START, DAY * 10, "last used more than a day ago"),
        (Some(START.after(DAY * 9)), START, Duration::ZERO, "last used more than a day ago"),
    ] {
        let said = said(shown, seen, longest);
        assert!(said.contains("WARN") && said.contains(words), "{words}: {said:?}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    for (shown, seen) in [
        (Some(START), START),
        (Some(START), START.after(DAY)),
        (Some(START.after(DAY)), START),
        (Some(START.after(DAY * 9)), nothing_seen),
        (None, START),
    ] {
        assert_eq!(said(shown, seen, DAY), "");
    }
}
