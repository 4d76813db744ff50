//! The contract for several incarnations with one store, in sequence or at the same time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;

use super::{NAME, START, TTL, known, named, settled, task};
use crate::replica::Incarnation;
use crate::store::{PageRange, Revision, StoreError, StoreHint, StoredTask, TaskStore, WriteRole};
use crate::task::{Attempt, Event, Task, TaskId, TaskKey, Timestamp, TreeLinks, transition};
use crate::wire::Payload;

/// While it is on, writes are made and their acknowledgements lost.
pub(crate) type AcknowledgementLoss = Box<dyn Fn(bool) + Send + Sync>;

pub(crate) trait StoreOpener {
    type Store: TaskStore;

    async fn open(&self, stored_bytes_max: usize) -> Arc<Self::Store>;

    async fn next_incarnation(&self, ended: Arc<Self::Store>) -> Arc<Self::Store>;

    /// `None` if the store allows only one.
    async fn beside(&self, store: &Arc<Self::Store>) -> Option<Arc<Self::Store>>;

    /// Ends an incarnation last used at [`START`]; the next one's clock shows the returned time, ahead by more than any
    /// task lives. `None` if nothing outlives a process.
    async fn next_incarnation_ahead(&self, ended: Arc<Self::Store>) -> Option<(Arc<Self::Store>, Timestamp)>;

    /// `None` if a write cannot succeed without an acknowledgement.
    async fn open_losing_acknowledgements(&self) -> Option<(Arc<Self::Store>, AcknowledgementLoss)>;

    /// The other one may continue without noticing.
    async fn declare_ended(&self, by: &Self::Store, ended: Incarnation);
}

const DECISION_MAX: Duration = Duration::from_secs(60);
const HINT_MAX: Duration = Duration::from_secs(30);

async fn row(store: &impl TaskStore, key: &TaskKey) -> StoredTask {
    store.load(key, START).await.unwrap().expect("the row is there")
}

pub(super) async fn a_row_names_its_holder_while_work_is_left(store: &impl TaskStore) {
    let (one, other) = (task("a", 1), task("a", 2));
    let own = Some(store.holder());
    let first = store.insert(&one).await.unwrap();
    assert_eq!(row(store, &one.key).await.holder, own);
    let cancelled = transition(one, Event::CancelRequested, START).0;
    let second = store.replace(first, WriteRole::Command, &cancelled).await.unwrap();
    assert_eq!(row(store, &cancelled.key).await.holder, own, "its upstream is to be notified");
    let notified = transition(cancelled, Event::Notified, START).0;
    let third = store.replace(second, WriteRole::Holder, &notified).await.unwrap();
    assert_eq!(row(store, &notified.key).await.holder, None);
    assert!(
        matches!(store.replace(third, WriteRole::Holder, &notified).await, Err(StoreError::Conflict)),
        "no replica holds it"
    );
    store.replace(third, WriteRole::Command, &notified).await.unwrap();
    let first = store.insert(&other).await.unwrap();
    store.replace(first, WriteRole::Holder, &settled(other.clone(), "r")).await.unwrap();
    assert_eq!(row(store, &other.key).await.holder, None);
}

/// F58, F88: however often the store is opened under such a clock, and despite rows inserted meanwhile.
pub(super) async fn a_clock_that_leapt_ahead_frees_nothing<K: StoreOpener>(kind: &K, store: Arc<K::Store>) {
    let (kept, live) = (settled(named("a", 1), "r"), task("a", 2));
    store.insert(&kept).await.unwrap();
    store.insert(&live).await.unwrap();
    row(&*store, &kept.key).await;
    let Some((mut store, mut shown)) = kind.next_incarnation_ahead(store).await else { return };
    // By such a clock the outcome expires in hundreds of days.
    let event = Event::Returned { attempt: Attempt::FIRST, result: Payload::of("r"), is_error: false };
    let found = row(&*store, &live.key).await;
    store.replace(found.revision, WriteRole::Command, &transition(live, event, shown).0).await.unwrap();
    for id in [3, 4] {
        assert!(store.is_time_distrusted(), "no task ends by such a clock");
        assert_eq!(store.sweep(shown, 9).await.unwrap(), 0);
        store.sweep_one(&kept.key, shown).await.unwrap();
        assert!(store.overdue(shown, 9).await.unwrap().is_empty());
        assert_eq!(*store.load(&kept.key, shown).await.unwrap().unwrap().task, kept);
        let repeated = Task { created_at: shown, updated_at: shown, ..named("a", id) };
        assert!(matches!(store.insert(&repeated).await, Err(StoreError::Exists)), "its key is taken");
        let found = store.find_idempotent(&kept.key.owner, &NAME.key, shown).await.unwrap();
        assert_eq!(found.unwrap().task.key, kept.key);
        let page = store.page(&kept.key.owner, PageRange::new(None, 9, shown)).await.unwrap();
        assert_eq!(page.tasks.len(), 2);
        let made = Task { created_at: shown, updated_at: shown, ..settled(task("b", id), "r") };
        store.insert(&made).await.unwrap();
        (store, shown) = kind.next_incarnation_ahead(store).await.unwrap();
    }
    assert_eq!(store.sweep(shown, 9).await.unwrap(), 0);
    assert_eq!(*row(&*store, &kept.key).await.task, kept);
    assert_eq!(store.usage().tasks, 4);
    store.close().await;
}

/// F88: the only task runs on, and ends, under such a clock.
pub(super) async fn a_clock_that_leapt_ahead_is_distrusted_for_one_task<K: StoreOpener>(
    kind: &K,
    store: Arc<K::Store>,
) {
    let mut live = task("a", 1);
    store.insert(&live).await.unwrap();
    row(&*store, &live.key).await;
    let Some((mut store, mut shown)) = kind.next_incarnation_ahead(store).await else { return };
    let attempt = Attempt::FIRST;
    for event in [
        Event::Progressed { attempt, message: Arc::from("half") },
        Event::Returned { attempt, result: Payload::of("r"), is_error: false },
    ] {
        let found = row(&*store, &live.key).await;
        live = transition(live, event, shown).0;
        store.replace(found.revision, WriteRole::Command, &live).await.unwrap();
        (store, shown) = kind.next_incarnation_ahead(store).await.unwrap();
        assert!(store.is_time_distrusted(), "{live:?}");
    }
    store.close().await;
}

/// Only commands change a row before it is claimed; afterwards its former holder is fenced.
pub(super) async fn rows_of_an_ended_incarnation_are_claimed_once<K: StoreOpener>(kind: &K, store: Arc<K::Store>) {
    let rows: Vec<Task> = (1..6_u8).map(|id| task(["a", "b"][usize::from(id % 2)], id.into())).collect();
    for one in &rows {
        store.insert(one).await.unwrap();
    }
    store.insert(&settled(task("a", 9), "r")).await.unwrap();
    let later = kind.next_incarnation(store).await;
    let left = row(&*later, &rows[0].key).await;
    assert!(left.holder.is_some_and(|holder| holder != later.holder()), "{left:?}");
    let changed = Task { status_message: Some(Arc::from("half")), ..rows[0].clone() };
    for revision in [left.revision, Revision(99)] {
        let fenced = later.replace(revision, WriteRole::Holder, &changed).await;
        assert!(matches!(fenced, Err(StoreError::Fenced)), "{fenced:?}");
    }
    later.replace(left.revision, WriteRole::Command, &changed).await.unwrap();
    assert!(row(&*later, &rows[0].key).await.holder.is_some_and(|holder| holder != later.holder()));
    let mut claimed = Vec::new();
    for _ in 0..9 {
        let some = later.claim(2, &known()).await.unwrap();
        assert!(some.len() <= 2);
        if some.is_empty() {
            break;
        }
        claimed.extend(some);
    }
    assert_eq!(claimed.len(), rows.len());
    assert_eq!(claimed.iter().collect::<BTreeSet<_>>(), rows.iter().map(|one| &one.key).collect());
    let own = row(&*later, &rows[0].key).await;
    assert_eq!((own.holder, &*own.task), (Some(later.holder()), &changed));
    later.replace(own.revision, WriteRole::Holder, &changed).await.unwrap();
    later.insert(&task("a", 77)).await.unwrap();
    assert!(later.claim(9, &known()).await.unwrap().is_empty(), "a living holder's row is not claimed");
}

/// F20.
pub(super) async fn a_settled_row_is_claimed_until_its_upstream_was_notified<K: StoreOpener>(
    kind: &K,
    store: Arc<K::Store>,
) {
    let one = task("a", 1);
    let first = store.insert(&one).await.unwrap();
    let cancelled = transition(one, Event::CancelRequested, START).0;
    store.replace(first, WriteRole::Command, &cancelled).await.unwrap();
    let store = kind.next_incarnation(store).await;
    assert_eq!(store.claim(9, &known()).await.unwrap(), std::slice::from_ref(&cancelled.key));
    let revision = row(&*store, &cancelled.key).await.revision;
    assert!(store.overdue(START.after(TTL), 9).await.unwrap().is_empty());
    store.replace(revision, WriteRole::Holder, &transition(cancelled, Event::Notified, START).0).await.unwrap();
    let store = kind.next_incarnation(store).await;
    assert!(store.claim(9, &known()).await.unwrap().is_empty());
}

/// SUB-05: the holder of a parent holds its children.
pub(super) async fn a_subtask_is_claimed_with_its_parent<K: StoreOpener>(kind: &K, store: Arc<K::Store>) {
    for (parent, child) in [(1, 2), (4, 3)] {
        let (parent_id, child_id) = (TaskId::from_bits(parent), TaskId::from_bits(child));
        let tree = TreeLinks { parent: Some(parent_id), ..TreeLinks::default() };
        store.insert(&Task { tree, ..task("a", child) }).await.unwrap();
        let tree = TreeLinks { children: [child_id].into(), ..TreeLinks::default() };
        store.insert(&Task { tree, ..task("a", parent) }.exact()).await.unwrap();
    }
    let store = kind.next_incarnation(store).await;
    let first = store.claim(1, &known()).await.unwrap();
    for (parent, child) in [(1, 2), (4, 3)] {
        let holder = async |id| row(&*store, &task("a", id).key).await.holder;
        assert_eq!(holder(parent).await, holder(child).await, "{first:?}");
    }
    let mut claimed = first;
    for _ in 0..9 {
        claimed.extend(store.claim(1, &known()).await.unwrap());
    }
    assert_eq!(claimed.iter().map(|key| key.id.bits()).collect::<BTreeSet<_>>(), [1, 2, 3, 4].into());
    assert_eq!(claimed.len(), 4, "each once: {claimed:?}");
}

/// L9: rows without a runner are searched for among these.
pub(super) async fn an_incarnation_holds_its_inserted_and_claimed_rows<K: StoreOpener>(kind: &K, store: Arc<K::Store>) {
    let rows: Vec<Task> = (1..7_u8).map(|id| task("a", id.into())).collect();
    for one in &rows {
        store.insert(one).await.unwrap();
    }
    store.insert(&settled(task("a", 9), "r")).await.unwrap();
    let mut unsettled: BTreeSet<_> = rows.iter().map(|one| one.key.clone()).collect();
    assert_eq!(held(&*store).await, unsettled);
    let revision = row(&*store, &rows[0].key).await.revision;
    let cancelled = transition(rows[0].clone(), Event::CancelRequested, START).0;
    store.replace(revision, WriteRole::Command, &cancelled).await.unwrap();
    assert_eq!(held(&*store).await, unsettled, "its upstream is to be notified");
    let revision = row(&*store, &cancelled.key).await.revision;
    let notified = transition(cancelled.clone(), Event::Notified, START).0;
    store.replace(revision, WriteRole::Holder, &notified).await.unwrap();
    unsettled.remove(&cancelled.key);
    assert_eq!(held(&*store).await, unsettled, "nothing is left to do");
    let later = kind.next_incarnation(store).await;
    assert_eq!(held(&*later).await, BTreeSet::new(), "no replica has claimed them");
    let claimed: BTreeSet<_> = later.claim(2, &known()).await.unwrap().into_iter().collect();
    let mut own: BTreeSet<_> = claimed.intersection(&unsettled).cloned().collect();
    assert!(!own.is_empty() && own.len() < unsettled.len(), "{claimed:?}");
    assert_eq!(held(&*later).await, own);
    let made = task("b", 1);
    later.insert(&made).await.unwrap();
    own.insert(made.key);
    assert_eq!(held(&*later).await, own);
}

async fn held(store: &impl TaskStore) -> BTreeSet<TaskKey> {
    store.held().await.unwrap().into_iter().collect()
}

/// An insert leaves no row, since no client was notified of it.
pub(super) async fn a_lost_acknowledgement_leaves_no_unknown_commit<K: StoreOpener>(kind: &K) {
    let Some((store, loses)) = kind.open_losing_acknowledgements().await else { return };
    let (one, two) = (task("a", 1), named("a", 2));
    let first = store.insert(&one).await.unwrap();
    let cancelled = transition(one, Event::CancelRequested, START).0;
    loses(true);
    let unknown = store.replace(first, WriteRole::Command, &cancelled).await;
    assert!(matches!(unknown, Err(StoreError::UnknownCommit(_))), "{unknown:?}");
    loses(false);
    let found = decided(&*store, &cancelled.key).await.expect("the row is there");
    assert_eq!(*found.task, cancelled);
    assert!(found.revision > first);
    loses(true);
    let unknown = store.insert(&two).await;
    assert!(matches!(unknown, Err(StoreError::UnknownCommit(_))), "{unknown:?}");
    loses(false);
    assert!(decided(&*store, &two.key).await.is_none(), "no client was notified of it");
    store.insert(&two).await.expect("neither its id nor its name is taken");
    let three = settled(task("a", 3), "r");
    store.insert(&three).await.unwrap();
    // Read once, it may be cached.
    assert!(decided(&*store, &three.key).await.is_some());
    loses(true);
    let unknown = store.remove(&three.key).await;
    assert!(matches!(unknown, Err(StoreError::UnknownCommit(_))), "{unknown:?}");
    loses(false);
    assert!(decided(&*store, &three.key).await.is_none(), "it was removed");
    let later = kind.next_incarnation(store).await;
    let again = row(&*later, &cancelled.key).await;
    assert_eq!((&again.task, again.revision), (&found.task, found.revision));
    assert_eq!(*row(&*later, &two.key).await.task, two);
    later.close().await;
}

async fn decided(store: &impl TaskStore, key: &TaskKey) -> Option<StoredTask> {
    let deciding = async {
        loop {
            match store.resolve_write(key, START).await {
                Ok(found) => return found,
                Err(StoreError::Io(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    tokio::time::timeout(DECISION_MAX, deciding).await.expect("it is known in time")
}

pub(super) async fn without_an_unknown_commit_a_row_is_unchanged(store: &impl TaskStore) {
    let one = task("a", 1);
    let first = store.insert(&one).await.unwrap();
    let found = store.resolve_write(&one.key, START).await.unwrap().unwrap();
    assert_eq!((&*found.task, found.revision, found.holder), (&one, first, Some(store.holder())));
    let done = settled(one, "r");
    let second = store.replace(first, WriteRole::Holder, &done).await.unwrap();
    let found = store.resolve_write(&done.key, START).await.unwrap().unwrap();
    assert_eq!((&*found.task, found.revision, found.holder), (&done, second, None));
    assert!(store.resolve_write(&done.key, START.after(TTL)).await.unwrap().is_none());
    assert!(store.resolve_write(&task("a", 2).key, START).await.unwrap().is_none());
}

pub(super) async fn concurrent_incarnations_see_each_others_writes(one: &impl TaskStore, other: &impl TaskStore) {
    assert_ne!(one.holder(), other.holder());
    let made = task("a", 1);
    let first = one.insert(&made).await.unwrap();
    let seen = row(other, &made.key).await;
    assert_eq!((seen.holder, seen.revision), (Some(one.holder()), first));
    assert_eq!(held(other).await, BTreeSet::new());
    let keys = [task("a", 9).key, made.key.clone()];
    assert_eq!(other.revisions(&keys).await.unwrap(), [None, Some(first)]);
    assert!(matches!(other.insert(&made).await, Err(StoreError::Exists)));
    let changed = Task { status_message: Some(Arc::from("half")), ..made.clone() };
    let foreign = other.replace(first, WriteRole::Holder, &changed).await;
    assert!(matches!(foreign, Err(StoreError::Fenced)), "{foreign:?}");
    let second = other.replace(first, WriteRole::Command, &changed).await.unwrap();
    assert_eq!(one.revisions(&keys).await.unwrap(), [None, Some(second)]);
    let stale = one.replace(first, WriteRole::Holder, &made).await;
    assert!(matches!(stale, Err(StoreError::Conflict)), "{stale:?}");
    let seen = row(one, &made.key).await;
    assert_eq!((&*seen.task, seen.revision, seen.holder), (&changed, second, Some(one.holder())));
    let done = settled(changed, "r");
    one.replace(second, WriteRole::Holder, &done).await.unwrap();
    assert_eq!(*row(other, &made.key).await.task, done);
    other.remove(&made.key).await.unwrap();
    assert!(one.load(&made.key, START).await.unwrap().is_none());
}

pub(super) async fn unsettled_rows_of_a_concurrent_incarnation_are_not_removed(
    one: &impl TaskStore,
    other: &impl TaskStore,
) {
    let made = task("a", 1);
    let first = one.insert(&made).await.unwrap();
    other.remove(&made.key).await.unwrap();
    assert_eq!(row(one, &made.key).await.revision, first);
    assert_eq!(one.usage().tasks, 1);
    // Its upstream is not yet notified.
    one.replace(first, WriteRole::Command, &transition(made.clone(), Event::CancelRequested, START).0).await.unwrap();
    other.remove(&made.key).await.unwrap();
    assert!(one.load(&made.key, START).await.unwrap().is_none());
}

/// L6.
pub(super) async fn one_name_is_one_task_for_all_incarnations(one: &impl TaskStore, other: &impl TaskStore) {
    one.insert(&named("a", 1)).await.unwrap();
    assert!(matches!(other.insert(&named("a", 2)).await, Err(StoreError::Exists)));
    let found = other.find_idempotent(&task("a", 1).key.owner, &NAME.key, START).await.unwrap();
    assert_eq!(found.map(|row| row.task.key.id.bits()), Some(1));
}

pub(super) async fn an_incarnation_gets_hints_of_others_writes(one: &impl TaskStore, other: &impl TaskStore) {
    let mut hints = one.changes();
    one.insert(&task("a", 1)).await.unwrap();
    let made = task("a", 2);
    let first = other.insert(&made).await.unwrap();
    other.replace(first, WriteRole::Command, &settled(made.clone(), "r")).await.unwrap();
    let heard = async {
        loop {
            match hints.next().await.expect("hints go on") {
                StoreHint::Changed(key) if key == made.key => return,
                StoreHint::Changed(key) => panic!("a hint of one's own: {key:?}"),
                StoreHint::Missed => (),
            }
        }
    };
    tokio::time::timeout(HINT_MAX, heard).await.expect("a hint comes");
}

/// F78, F79: it can no longer write as a holder, and other replicas claim the rows that it inserts.
pub(super) async fn an_incarnation_that_was_declared_ended_is_fenced<K: StoreOpener>(
    kind: &K,
    one: &K::Store,
    other: &K::Store,
) {
    let made = task("a", 1);
    let first = one.insert(&made).await.unwrap();
    assert!(other.claim(9, &known()).await.unwrap().is_empty());
    kind.declare_ended(other, one.holder()).await;
    assert!(one.claim(9, &known()).await.is_ok_and(|keys| keys.is_empty()), "not by an ended incarnation");
    assert_eq!(other.claim(9, &known()).await.unwrap(), std::slice::from_ref(&made.key));
    let taken = row(other, &made.key).await;
    assert_eq!(taken.holder, Some(other.holder()));
    for revision in [first, taken.revision] {
        let fenced = one.replace(revision, WriteRole::Holder, &settled(made.clone(), "late")).await;
        assert!(matches!(fenced, Err(StoreError::Fenced)), "{fenced:?}");
    }
    other.replace(taken.revision, WriteRole::Holder, &settled(made, "r")).await.unwrap();
    let late = task("a", 2);
    // The insert may be refused, or the row claimed at once.
    if one.insert(&late).await.is_ok() {
        assert_eq!(other.claim(9, &known()).await.unwrap(), [late.key]);
    }
}
