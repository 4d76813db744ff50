//! Each method of a store is dropped after every number of polls: it is done whole or not at all, and the next read
//! agrees with the sums. See `dropped` for the engine's part.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use support::sample_task::working;
use taskgate::store::{DiskSettings, DiskStore, MemoryStore, PageRange, Revision, StoreError, TaskStore, WriteRole};
use taskgate::task::{
    Digest, Event, Idempotency, ListFilter, Principal, ShortReference, Task, TaskId, TaskKey, Timestamp, transition,
};

use super::dropped::{cut, methods};

const POLLS_MAX: usize = 60;
const NAME: Digest = Digest([7; 32]);
/// Before any task ends.
const NOW: Timestamp = Timestamp::from_millis(1_785_196_800_000);

fn later() -> Timestamp {
    NOW.after(Duration::from_secs(1_000_000))
}

fn task() -> Task {
    let idempotency = Some(Idempotency { key: NAME, call: NAME });
    Task { idempotency, ..working(Principal::new("someone"), 1, NOW) }
}

fn settled() -> Task {
    transition(task(), Event::CancelRequested, NOW).0
}

/// The store's content before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Nothing,
    Live,
    Settled,
}

type Run = fn(&dyn TaskStore) -> BoxFuture<'_, Result<(), StoreError>>;

/// Each method, the content before it, and the content after it.
const METHODS: &[(&str, Holds, Holds, Run)] = &[
    ("insert", Holds::Nothing, Holds::Live, |store| Box::pin(async { store.insert(&task()).await.map(drop) })),
    ("replace", Holds::Live, Holds::Settled, |store| {
        Box::pin(async { store.replace(Revision(1), WriteRole::Holder, &settled()).await.map(drop) })
    }),
    ("remove", Holds::Live, Holds::Nothing, |store| Box::pin(async { store.remove(&task().key).await })),
    ("remove", Holds::Settled, Holds::Nothing, |store| Box::pin(async { store.remove(&task().key).await })),
    ("sweep", Holds::Settled, Holds::Nothing, |store| Box::pin(async { store.sweep(later(), 10).await.map(drop) })),
    ("sweep_one", Holds::Settled, Holds::Nothing, |store| {
        Box::pin(async { store.sweep_one(&task().key, later()).await })
    }),
    ("load", Holds::Live, Holds::Live, |store| Box::pin(async { store.load(&task().key, NOW).await.map(drop) })),
    ("load", Holds::Settled, Holds::Settled, |store| Box::pin(async { store.load(&task().key, NOW).await.map(drop) })),
    ("settled_bytes", Holds::Settled, Holds::Settled, |store| {
        Box::pin(async { store.settled_bytes(&task().key).await.map(drop) })
    }),
    ("find_idempotent", Holds::Live, Holds::Live, |store| {
        Box::pin(async { store.find_idempotent(&task().key.owner, &NAME, NOW).await.map(drop) })
    }),
    ("overdue", Holds::Live, Holds::Live, |store| Box::pin(async { store.overdue(NOW, 10).await.map(drop) })),
    ("page", Holds::Settled, Holds::Settled, |store| {
        Box::pin(async { store.page(&task().key.owner, PageRange::new(None, 10, NOW)).await.map(drop) })
    }),
    ("select", Holds::Settled, Holds::Settled, |store| {
        Box::pin(async {
            store.select(&task().key.owner, &ListFilter::default(), PageRange::new(None, 10, NOW)).await.map(drop)
        })
    }),
    ("claim", Holds::Live, Holds::Live, |store| Box::pin(async { store.claim(10, &[]).await.map(drop) })),
    ("held", Holds::Live, Holds::Live, |store| Box::pin(async { store.held().await.map(drop) })),
    ("resolve_write", Holds::Live, Holds::Live, |store| {
        Box::pin(async { store.resolve_write(&task().key, NOW).await.map(drop) })
    }),
    ("survey", Holds::Settled, Holds::Settled, |store| {
        Box::pin(async { store.survey(PageRange::new(None, 10, NOW)).await.map(drop) })
    }),
    ("revisions", Holds::Live, Holds::Live, |store| Box::pin(async { store.revisions(&[task().key]).await.map(drop) })),
    ("holders", Holds::Live, Holds::Live, |store| Box::pin(async { store.holders(&[task().key]).await.map(drop) })),
    ("find_reference", Holds::Live, Holds::Live, |store| {
        Box::pin(async { store.find_reference(ShortReference::of(&task().key), 2).await.map(drop) })
    }),
];

#[test]
fn every_method_of_a_store_is_dropped_here() {
    let mut found = methods("src/store/tasks.rs", &["    async fn "], |line| line.starts_with("    async fn "));
    // No request comes to a store after `close`, dropped or not.
    assert!(found.remove("close"));
    let tried: BTreeSet<_> = METHODS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(found, tried);
}

/// The store's content, by its sums, by a read and by a list, which must agree.
async fn held(store: &dyn TaskStore) -> Holds {
    let usage = store.usage();
    let read = store.load(&task().key, NOW).await.unwrap();
    let listed = store.page(&task().key.owner, PageRange::new(None, 10, NOW)).await.unwrap();
    let found = match &read {
        None => Holds::Nothing,
        Some(row) if row.task.is_settled() => Holds::Settled,
        Some(_) => Holds::Live,
    };
    let (tasks, unsettled) = (usize::from(found != Holds::Nothing), usize::from(found == Holds::Live));
    assert_eq!((usage.tasks, usage.unsettled, listed.tasks.len()), (tasks, unsettled, tasks), "{found:?}");
    assert_eq!(usage, store.usage_of(&task().key.owner));
    found
}

async fn fill(store: &dyn TaskStore, holds: Holds) {
    match holds {
        Holds::Nothing => (),
        Holds::Live => drop(store.insert(&task()).await.unwrap()),
        Holds::Settled => {
            let revision = store.insert(&task()).await.unwrap();
            store.replace(revision, WriteRole::Holder, &settled()).await.unwrap();
        }
    }
}

async fn check(make: impl AsyncFn(&std::path::Path) -> Arc<dyn TaskStore>) {
    for (method, before, after, run) in METHODS {
        for polls in 1.. {
            assert!(polls <= POLLS_MAX, "{method} is not done");
            let folder = tempfile::tempdir().unwrap();
            let store = make(folder.path()).await;
            fill(&*store, *before).await;
            let done = cut(polls, run(&*store)).await;
            if let Some(done) = &done {
                assert!(done.is_ok(), "{method}: {done:?}");
            } else {
                // Behind this write stands nothing that was begun before it.
                let other = TaskKey { id: TaskId::from_bits(2), ..task().key };
                store.remove(&other).await.unwrap();
            }
            let found = held(&*store).await;
            assert!(found == *after || (done.is_none() && found == *before), "{method} after {polls}: {found:?}");
            if found != *after {
                run(&*store).await.unwrap();
                assert_eq!(held(&*store).await, *after, "{method}, repeated");
            }
            if done.is_some() {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_write_whose_caller_leaves_has_happened_whole_or_not_at_all_in_memory() {
    check(async |_| Arc::new(MemoryStore::new(1 << 20)) as Arc<dyn TaskStore>).await;
}

#[tokio::test]
async fn a_write_whose_caller_leaves_has_happened_whole_or_not_at_all_on_disk() {
    let open = async |folder: &std::path::Path| -> Arc<dyn TaskStore> {
        let mut settings = DiskSettings::new(folder.to_owned(), 1 << 20);
        settings.is_ephemeral = true;
        DiskStore::open(settings).await.unwrap() as Arc<dyn TaskStore>
    };
    check(open).await;
}
