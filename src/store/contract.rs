//! One suite for every store: what [`TaskStore`] promises, checked from outside.

use std::sync::Arc;
use std::time::Duration;

use super::{Revision, StoreError, TaskStore, Usage};
use crate::task::model::ROW_BYTES_MIN;
use crate::task::{
    Attempt, Digest, Event, Idempotency, InputKey, Maker, Origin, Outcome, Phase, Principal, Recovery, Shown, Task,
    TaskId, TaskKey, Timestamp, transition,
};
use crate::wire::Payload;

const START: Timestamp = Timestamp::from_millis(1_000_000);
const TTL: Duration = Duration::from_secs(60);

/// A task as it is at its creation, for tests.
pub(crate) fn task(owner: &str, id: u128) -> Task {
    Task {
        key: TaskKey { owner: Principal::new(owner), id: TaskId::from_bits(id) },
        shown: Shown::Handle,
        origin: Origin { upstream: Arc::from("demo"), tool: Arc::from("slow"), maker: Maker::Stateless },
        created_at: START,
        updated_at: START,
        ttl: TTL,
        keep_result_min: Duration::from_secs(10),
        poll_interval: Duration::from_secs(1),
        attempt: Attempt::FIRST,
        phase: Phase::Working,
        next_key: InputKey::default(),
        status_message: None,
        recovery: Recovery::default(),
        idempotency: None,
    }
}

fn settled(task: Task, result: &str) -> Task {
    let event = Event::Returned { attempt: Attempt::FIRST, result: Payload::of(result), is_error: false };
    transition(task, event, START).0
}

/// Runs every check, each on a store of its own made by `open` with a bound in bytes.
pub(crate) async fn check_all<S: TaskStore>(open: impl AsyncFn(usize) -> Arc<S>) {
    let roomy = async || open(64 * ROW_BYTES_MIN).await;
    an_inserted_task_is_found_by_its_owner_alone(&*roomy().await).await;
    a_second_insert_of_a_key_is_refused(&*roomy().await).await;
    only_the_first_of_two_writers_wins(&*roomy().await).await;
    an_expired_settled_task_is_gone_and_an_overdue_live_one_is_not(&*roomy().await).await;
    the_sweeper_frees_only_what_is_gone(&*roomy().await).await;
    a_full_store_refuses_and_keeps_what_it_has(&*open(2 * ROW_BYTES_MIN).await).await;
    an_outcome_without_room_is_refused_and_a_fault_is_not(&*open(2 * ROW_BYTES_MIN).await).await;
    pages_hold_each_task_of_the_owner_once_in_order(&*roomy().await).await;
    unsettled_tasks_are_paged_whoever_owns_them(&*roomy().await).await;
    a_settled_task_is_paged_until_its_upstream_was_told(&*roomy().await).await;
    surveys_hold_every_task_once_whoever_owns_it(&*roomy().await).await;
    sums_follow_every_write(&*roomy().await).await;
    a_name_leads_to_its_owners_task_as_long_as_the_task_is_there(&*roomy().await).await;
    a_name_is_taken_until_its_task_is_gone(&*roomy().await).await;
    concurrent_writers_lose_no_write(roomy().await).await;
    concurrent_tasks_of_one_name_are_one(roomy().await).await;
}

async fn an_inserted_task_is_found_by_its_owner_alone(store: &impl TaskStore) {
    let one = task("a", 1);
    store.insert(&one).await.unwrap();
    let found = store.load(&one.key, START).await.unwrap().unwrap();
    assert_eq!(*found.task, one);
    let foreign = TaskKey { owner: Principal::new("b"), id: one.key.id };
    assert!(store.load(&foreign, START).await.unwrap().is_none());
    store.remove(&one.key).await.unwrap();
    store.remove(&one.key).await.unwrap();
    assert!(store.load(&one.key, START).await.unwrap().is_none());
}

async fn a_second_insert_of_a_key_is_refused(store: &impl TaskStore) {
    store.insert(&task("a", 1)).await.unwrap();
    assert!(matches!(store.insert(&task("a", 1)).await, Err(StoreError::Exists)));
    store.insert(&task("b", 1)).await.unwrap();
    assert_eq!(store.usage().tasks, 2);
}

async fn only_the_first_of_two_writers_wins(store: &impl TaskStore) {
    let one = task("a", 1);
    let first = store.insert(&one).await.unwrap();
    let second = store.replace(first, &settled(one.clone(), "won")).await.unwrap();
    assert!(second > first);
    assert!(matches!(store.replace(first, &settled(one.clone(), "lost")).await, Err(StoreError::Conflict)));
    let found = store.load(&one.key, START).await.unwrap().unwrap();
    assert!(
        matches!(&found.task.phase, Phase::Settled(Outcome::Returned { result, .. }) if result.as_str() == "\"won\"")
    );
    let absent = task("a", 2);
    assert!(matches!(store.replace(Revision(1), &absent).await, Err(StoreError::Conflict)));
}

async fn an_expired_settled_task_is_gone_and_an_overdue_live_one_is_not(store: &impl TaskStore) {
    let live = task("a", 1);
    let done = settled(task("a", 2), "r");
    store.insert(&live).await.unwrap();
    store.insert(&done).await.unwrap();
    let last = START.after(TTL - Duration::from_millis(1));
    assert!(store.load(&done.key, last).await.unwrap().is_some());
    assert!(store.overdue(last, 9).await.unwrap().is_empty());
    let past = START.after(TTL);
    assert!(store.load(&done.key, past).await.unwrap().is_none());
    assert!(store.load(&live.key, past).await.unwrap().is_some());
    assert_eq!(store.overdue(past, 9).await.unwrap(), std::slice::from_ref(&live.key));
}

async fn the_sweeper_frees_only_what_is_gone(store: &impl TaskStore) {
    store.insert(&task("a", 1)).await.unwrap();
    for id in 2..6 {
        store.insert(&settled(task("a", id), "r")).await.unwrap();
    }
    assert_eq!(store.sweep(START, 9).await.unwrap(), 0);
    let past = START.after(TTL);
    assert_eq!(store.sweep(past, 3).await.unwrap(), 3);
    assert_eq!(store.sweep(past, 9).await.unwrap(), 1);
    assert_eq!(store.usage(), Usage { tasks: 1, unsettled: 1, bytes: ROW_BYTES_MIN });
}

async fn a_full_store_refuses_and_keeps_what_it_has(store: &impl TaskStore) {
    store.insert(&task("a", 1)).await.unwrap();
    store.insert(&settled(task("a", 2), "r")).await.unwrap();
    assert!(matches!(store.insert(&task("a", 3)).await, Err(StoreError::Full { .. })));
    assert!(store.load(&task("a", 1).key, START).await.unwrap().is_some());
    assert!(store.load(&task("a", 2).key, START).await.unwrap().is_some());
    store.remove(&task("a", 2).key).await.unwrap();
    store.insert(&task("a", 3)).await.unwrap();
}

async fn an_outcome_without_room_is_refused_and_a_fault_is_not(store: &impl TaskStore) {
    let one = task("a", 1);
    let revision = store.insert(&one).await.unwrap();
    let large = settled(one.clone(), &"x".repeat(2 * ROW_BYTES_MIN));
    assert!(matches!(store.replace(revision, &large).await, Err(StoreError::Full { .. })));
    let (failed, _) = transition(one, Event::CancelRequested, START);
    store.replace(revision, &failed).await.unwrap();
}

async fn pages_hold_each_task_of_the_owner_once_in_order(store: &impl TaskStore) {
    for id in 0..7_u8 {
        let mut one = task("a", u128::from(id) << 96 | u128::from(id));
        one.created_at = START.after(Duration::from_millis(u64::from(id)));
        store.insert(&one).await.unwrap();
    }
    store.insert(&task("b", 99)).await.unwrap();
    let mut seen = Vec::new();
    let mut after = None;
    for _ in 0..9 {
        let page = store.page(&Principal::new("a"), after, 3, START).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some((last.task.created_at, last.task.key.id));
        seen.extend(page.iter().map(|row| row.task.created_at));
    }
    let expected: Vec<_> = (0..7).map(|id| START.after(Duration::from_millis(id))).collect();
    assert_eq!(seen, expected);
}

async fn unsettled_tasks_are_paged_whoever_owns_them(store: &impl TaskStore) {
    for (owner, id) in [("a", 1), ("b", 2), ("a", 3)] {
        store.insert(&task(owner, id)).await.unwrap();
    }
    store.insert(&settled(task("a", 4), "r")).await.unwrap();
    let first = store.unsettled(None, 2).await.unwrap();
    let second = store.unsettled(Some(&first[1].task.key), 2).await.unwrap();
    let ids: Vec<_> = first.iter().chain(&second).map(|row| row.task.key.id.bits()).collect();
    assert_eq!(ids, [1, 3, 2]);
}

async fn surveys_hold_every_task_once_whoever_owns_it(store: &impl TaskStore) {
    for (owner, id) in [("a", 1), ("b", 2), ("a", 3)] {
        store.insert(&task(owner, id)).await.unwrap();
    }
    store.insert(&settled(task("a", 4), "r")).await.unwrap();
    let first = store.survey(None, 3, START).await.unwrap();
    let second = store.survey(Some(&first[2].task.key), 3, START).await.unwrap();
    let ids: Vec<_> = first.iter().chain(&second).map(|row| row.task.key.id.bits()).collect();
    assert_eq!(ids, [1, 3, 4, 2]);
    assert_eq!(store.survey(None, 9, START.after(TTL)).await.unwrap().len(), 3, "what is gone is left out");
}

/// F20.
async fn a_settled_task_is_paged_until_its_upstream_was_told(store: &impl TaskStore) {
    let one = task("a", 1);
    let first = store.insert(&one).await.unwrap();
    let cancelled = transition(one, Event::CancelRequested, START).0;
    let second = store.replace(first, &cancelled).await.unwrap();
    let found = store.unsettled(None, 9).await.unwrap();
    assert_eq!(found.iter().map(|row| &*row.task).collect::<Vec<_>>(), [&cancelled]);
    assert!(store.overdue(START.after(TTL), 9).await.unwrap().is_empty());
    store.replace(second, &transition(cancelled, Event::Told, START).0).await.unwrap();
    assert!(store.unsettled(None, 9).await.unwrap().is_empty());
}

async fn sums_follow_every_write(store: &impl TaskStore) {
    let one = task("a", 1);
    let revision = store.insert(&one).await.unwrap();
    let large = settled(one.clone(), &"x".repeat(4 * ROW_BYTES_MIN));
    store.replace(revision, &large).await.unwrap();
    let held = Usage { tasks: 1, unsettled: 0, bytes: large.stored_bytes() };
    assert!(held.bytes > 4 * ROW_BYTES_MIN);
    assert_eq!((store.usage(), store.usage_of(&one.key.owner)), (held, held));
    store.sweep(START.after(TTL), 9).await.unwrap();
    assert_eq!((store.usage(), store.usage_of(&one.key.owner)), (Usage::default(), Usage::default()));
}

const NAME: Idempotency = Idempotency { key: Digest([7; 32]), call: Digest([8; 32]) };

fn named(owner: &str, id: u128) -> Task {
    Task { idempotency: Some(NAME), ..task(owner, id) }
}

async fn a_name_leads_to_its_owners_task_as_long_as_the_task_is_there(store: &impl TaskStore) {
    let find = async |owner: &str, key: Digest, now| {
        let found = store.find_idempotent(&Principal::new(owner), &key, now).await.unwrap();
        found.map(|row| (*row.task).clone())
    };
    let one = named("a", 1);
    assert_eq!(find("a", NAME.key, START).await, None);
    let revision = store.insert(&one).await.unwrap();
    assert_eq!(find("a", NAME.key, START).await.as_ref(), Some(&one));
    assert_eq!(find("b", NAME.key, START).await, None);
    assert_eq!(find("a", NAME.call, START).await, None);
    let past = START.after(TTL);
    assert_eq!(find("a", NAME.key, past).await, Some(one.clone()), "overdue, and not settled yet");
    let done = settled(one, "r");
    store.replace(revision, &done).await.unwrap();
    assert_eq!(find("a", NAME.key, past).await, None);
    store.remove(&done.key).await.unwrap();
    assert_eq!(find("a", NAME.key, START).await, None);
}

async fn a_name_is_taken_until_its_task_is_gone(store: &impl TaskStore) {
    let first = named("a", 1);
    let revision = store.insert(&first).await.unwrap();
    let late = |id| Task { created_at: START.after(TTL), ..named("a", id) };
    for again in [named("a", 2), late(3)] {
        assert!(matches!(store.insert(&again).await, Err(StoreError::Exists)));
    }
    store.insert(&named("b", 4)).await.unwrap();
    assert_eq!(store.usage_of(&first.key.owner).tasks, 1, "what was refused is not counted");
    store.replace(revision, &settled(first, "r")).await.unwrap();
    assert!(matches!(store.insert(&named("a", 5)).await, Err(StoreError::Exists)));
    store.insert(&late(6)).await.unwrap();
    let found = store.find_idempotent(&Principal::new("a"), &NAME.key, START.after(TTL)).await.unwrap();
    assert_eq!(found.map(|row| row.task.key.id.bits()), Some(6));
    assert_eq!(store.sweep(START.after(TTL), 9).await.unwrap(), 1);
    let found = store.find_idempotent(&Principal::new("a"), &NAME.key, START.after(TTL)).await.unwrap();
    assert_eq!(found.map(|row| row.task.key.id.bits()), Some(6), "the sweep of the first took nothing from it");
}

async fn concurrent_tasks_of_one_name_are_one<S: TaskStore>(store: Arc<S>) {
    let tasks: Vec<Task> = (0..8).map(|id| named("a", id)).collect();
    let inserts = tasks.iter().map(|one| store.insert(one));
    let done = futures_util::future::join_all(inserts).await;
    assert_eq!(done.iter().filter(|one| one.is_ok()).count(), 1);
    assert!(done.iter().all(|one| matches!(one, Ok(_) | Err(StoreError::Exists))));
}

async fn concurrent_writers_lose_no_write<S: TaskStore>(store: Arc<S>) {
    let one = task("a", 1);
    store.insert(&one).await.unwrap();
    let writers = (0..8).map(|_| async {
        let mut wins = 0;
        while wins < 10 {
            let row = store.load(&one.key, START).await.unwrap().unwrap();
            let mut next = (*row.task).clone();
            next.next_key.0 += 1;
            wins += usize::from(store.replace(row.revision, &next).await.is_ok());
            tokio::task::yield_now().await;
        }
    });
    futures_util::future::join_all(writers).await;
    let last = store.load(&one.key, START).await.unwrap().unwrap();
    assert_eq!(last.task.next_key, InputKey(80));
}
