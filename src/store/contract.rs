//! Tests every store against the contract of [`TaskStore`].
//! Some guarantees and faults are tested in one store only:
//! - Only PostgreSQL detects that it is older than its acknowledged writes: a copy of a folder looks like the folder.
//! - Only on disk can a test make a commit fail without a write.
//! - Damage and lack of space differ between the stores.

mod incarnations;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use incarnations::{AcknowledgementLoss, StoreOpener};
use tokio::time::Instant;

use super::tasks::{FILTERED_ROWS_MAX, PAGE_BYTES_MAX};
use super::{PageRange, Reach, Revision, StoreError, TaskStore, Usage, WriteRole};
use crate::task::model::ROW_BYTES_MIN;
use crate::task::{
    Attempt, CallOrigin, ChosenId, ClientKind, Digest, Event, Executed, Failure, GatewayFault, Idempotency, InputKey,
    ListDirection, ListFilter, ListPosition, OrderedBy, Outcome, Phase, PhaseKind, Principal, Question, Reason,
    SessionScope, ShortReference, Summary, Task, TaskId, TaskKey, TaskTimes, TaskVisibility, TimeRange, Timestamp,
    transition,
};
use crate::wire::{Payload, RpcError};

pub(crate) const START: Timestamp = Timestamp::from_millis(1_000_000);
pub(crate) const TTL: Duration = Duration::from_secs(60);

pub(crate) fn known() -> [Arc<str>; 1] {
    [Arc::from("demo")]
}

pub(crate) fn task(owner: &str, id: u128) -> Task {
    let key = TaskKey { owner: Principal::new(owner), id: TaskId::from_bits(id) };
    let origin = CallOrigin { upstream: Arc::from("demo"), tool: Arc::from("slow"), client: ClientKind::Stateless };
    let times = TaskTimes { ttl: TTL, keep_result_min: Duration::from_secs(10), poll_interval: Duration::from_secs(1) };
    Task { phase: Phase::Working, ..Task::queued(key, TaskVisibility::Handle, origin, START, times) }
}

pub(crate) fn settled(task: Task, result: &str) -> Task {
    let event = Event::Returned { attempt: Attempt::FIRST, result: Payload::of(result), is_error: false };
    transition(task, event, START).0
}

/// Whether the task stands for a damaged row.
pub(crate) fn is_condemned(task: &Task) -> bool {
    let fault = GatewayFault::new(Reason::StoreCorrupt, Executed::Unknown);
    task.phase == Phase::Settled(Outcome::Faulted(Failure::Gateway(fault)))
}

/// How long a busy machine may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Each check has its own store, so they wait for their database side by side.
pub(crate) async fn check_all<K: StoreOpener>(kind: &K) {
    let (rows, lists, names) = (Box::pin(check_rows(kind)), Box::pin(check_lists(kind)), Box::pin(check_names(kind)));
    let (incarnations, pairs) = (Box::pin(check_incarnations(kind)), Box::pin(check_pairs(kind)));
    tokio::join!(rows, lists, names, incarnations, pairs);
}

async fn check_rows<K: StoreOpener>(kind: &K) {
    let open = async |stored_bytes_max| kind.open(stored_bytes_max).await;
    let roomy = async || open(64 * ROW_BYTES_MIN).await;
    an_inserted_task_is_found_by_its_owner_alone(&*roomy().await).await;
    a_second_insert_of_a_key_is_refused(&*roomy().await).await;
    the_size_of_a_settled_row_is_known_before_it_is_read(&*open(64 << 20).await).await;
    only_the_first_of_two_writers_wins(&*roomy().await).await;
    an_expired_settled_task_is_gone_and_an_overdue_live_one_is_not(&*roomy().await).await;
    the_sweeper_frees_only_expired_rows(&*roomy().await).await;
    a_task_is_freed_by_its_key_only_if_it_is_gone(&*roomy().await).await;
    a_full_store_refuses_new_rows_and_keeps_its_own(&*open(2 * ROW_BYTES_MIN).await).await;
    an_outcome_is_stored_above_the_bound_and_a_new_task_is_not(&*open(8 * ROW_BYTES_MIN).await).await;
}

async fn check_lists<K: StoreOpener>(kind: &K) {
    let open = async |stored_bytes_max| kind.open(stored_bytes_max).await;
    let roomy = async || open(64 * ROW_BYTES_MIN).await;
    pages_hold_each_task_of_the_owner_once_in_order(&*roomy().await).await;
    surveys_hold_every_task_once_the_newest_first(&*roomy().await).await;
    a_reference_leads_to_its_task(&*roomy().await).await;
    lists_show_a_task_as_it_stands(&*roomy().await).await;
    filtered_pages_have_each_match_once_in_order(&*roomy().await).await;
    a_filtered_page_reads_a_bounded_number_of_rows(&*open(64 << 20).await).await;
    pages_are_bounded_in_bytes(&*open(64 << 20).await).await;
    revisions_rise_with_every_write(&*roomy().await).await;
    sums_follow_every_write(&*roomy().await).await;
}

async fn check_names<K: StoreOpener>(kind: &K) {
    let roomy = async || kind.open(64 * ROW_BYTES_MIN).await;
    a_name_leads_to_its_owners_task_as_long_as_the_task_is_there(&*roomy().await).await;
    a_name_is_taken_until_its_task_is_gone(&*roomy().await).await;
    a_write_to_an_expired_task_takes_no_name_from_a_newer_one(&*roomy().await).await;
    concurrent_writers_lose_no_write(roomy().await).await;
    a_task_that_ended_without_its_call_has_no_name(&*roomy().await).await;
    concurrent_tasks_of_one_name_are_one(roomy().await).await;
}

async fn check_incarnations<K: StoreOpener>(kind: &K) {
    let roomy = async || kind.open(64 * ROW_BYTES_MIN).await;
    incarnations::a_row_names_its_holder_while_work_is_left(&*roomy().await).await;
    incarnations::rows_of_an_ended_incarnation_are_claimed_once(kind, roomy().await).await;
    incarnations::a_clock_that_leapt_ahead_frees_nothing(kind, roomy().await).await;
    incarnations::a_clock_that_leapt_ahead_is_distrusted_for_one_task(kind, roomy().await).await;
    incarnations::a_settled_row_is_claimed_until_its_upstream_was_notified(kind, roomy().await).await;
    incarnations::a_subtask_is_claimed_with_its_parent(kind, roomy().await).await;
    incarnations::without_an_unknown_commit_a_row_is_unchanged(&*roomy().await).await;
    incarnations::a_lost_acknowledgement_leaves_no_unknown_commit(kind).await;
    incarnations::an_incarnation_holds_its_inserted_and_claimed_rows(kind, roomy().await).await;
}

async fn check_pairs<K: StoreOpener>(kind: &K) {
    let pair = async || {
        let one = kind.open(64 * ROW_BYTES_MIN).await;
        kind.beside(&one).await.map(|other| (one, other))
    };
    if let Some((one, other)) = pair().await {
        incarnations::concurrent_incarnations_see_each_others_writes(&*one, &*other).await;
    }
    if let Some((one, other)) = pair().await {
        incarnations::unsettled_rows_of_a_concurrent_incarnation_are_not_removed(&*one, &*other).await;
    }
    if let Some((one, other)) = pair().await {
        incarnations::one_name_is_one_task_for_all_incarnations(&*one, &*other).await;
    }
    if let Some((one, other)) = pair().await {
        incarnations::an_incarnation_gets_hints_of_others_writes(&*one, &*other).await;
    }
    if let Some((one, other)) = pair().await {
        incarnations::an_incarnation_that_was_declared_ended_is_fenced(kind, &*one, &*other).await;
    }
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

/// A caller with a bound for the bytes of a read asks for the size first. A store with the row in memory needs none.
async fn the_size_of_a_settled_row_is_known_before_it_is_read(store: &impl TaskStore) {
    const LARGE: usize = 9 << 20;
    let unsettled = task("a", 1);
    store.insert(&unsettled).await.unwrap();
    let mut one = task("a", 2);
    let revision = store.insert(&one).await.unwrap();
    let result = Payload::of(&"x".repeat(LARGE));
    one.phase = Phase::Settled(Outcome::Returned { result, is_error: false });
    store.replace(revision, WriteRole::Holder, &one).await.unwrap();
    let foreign = TaskKey { owner: Principal::new("b"), id: one.key.id };
    for key in [&unsettled.key, &foreign, &task("a", 3).key] {
        assert_eq!(store.settled_bytes(key).await.unwrap(), None, "{key:?}");
    }
    let expected = (store.reach() != Reach::Process).then(|| one.stored_bytes());
    assert_eq!(store.settled_bytes(&one.key).await.unwrap(), expected);
    assert_eq!(*store.load(&one.key, START).await.unwrap().unwrap().task, one);
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
    let second = store.replace(first, WriteRole::Holder, &settled(one.clone(), "won")).await.unwrap();
    assert!(second > first);
    assert!(matches!(
        store.replace(first, WriteRole::Holder, &settled(one.clone(), "lost")).await,
        Err(StoreError::Conflict)
    ));
    let found = store.load(&one.key, START).await.unwrap().unwrap();
    assert!(
        matches!(&found.task.phase, Phase::Settled(Outcome::Returned { result, .. }) if result.as_str() == "\"won\"")
    );
    let absent = task("a", 2);
    assert!(matches!(store.replace(Revision::FIRST, WriteRole::Holder, &absent).await, Err(StoreError::Conflict)));
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

async fn the_sweeper_frees_only_expired_rows(store: &impl TaskStore) {
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

/// Another caller may have freed the key first: by then it may belong to another task.
async fn a_task_is_freed_by_its_key_only_if_it_is_gone(store: &impl TaskStore) {
    let (live, done) = (task("a", 1), settled(task("a", 2), "r"));
    store.insert(&live).await.unwrap();
    store.insert(&done).await.unwrap();
    let past = START.after(TTL);
    for (key, now) in [(&done.key, past.before(Duration::from_millis(1))), (&live.key, past)] {
        store.sweep_one(key, now).await.unwrap();
        assert!(store.load(key, now).await.unwrap().is_some(), "{key:?}");
    }
    store.sweep_one(&done.key, past).await.unwrap();
    store.sweep_one(&done.key, past).await.unwrap();
    assert_eq!(store.usage(), Usage { tasks: 1, unsettled: 1, bytes: ROW_BYTES_MIN });
    let later = Task { created_at: past, updated_at: past, ..done };
    store.insert(&later).await.unwrap();
    store.sweep_one(&later.key, past).await.unwrap();
    assert!(store.load(&later.key, past).await.unwrap().is_some(), "another's by now");
}

async fn a_full_store_refuses_new_rows_and_keeps_its_own(store: &impl TaskStore) {
    store.insert(&task("a", 1)).await.unwrap();
    store.insert(&settled(task("a", 2), "r")).await.unwrap();
    assert!(matches!(store.insert(&task("a", 3)).await, Err(StoreError::Full)));
    assert!(store.load(&task("a", 1).key, START).await.unwrap().is_some());
    assert!(store.load(&task("a", 2).key, START).await.unwrap().is_some());
    store.remove(&task("a", 2).key).await.unwrap();
    store.insert(&task("a", 3)).await.unwrap();
}

async fn an_outcome_is_stored_above_the_bound_and_a_new_task_is_not(store: &impl TaskStore) {
    let bytes_max = store.bytes_max();
    let one = task("a", 1);
    let revision = store.insert(&one).await.unwrap();
    let rest = u128::try_from(bytes_max / ROW_BYTES_MIN).unwrap();
    for id in 2..=rest {
        store.insert(&settled(task("a", id), "r")).await.unwrap();
    }
    assert_eq!(store.usage().bytes, bytes_max);
    // In memory, rows may grow by a quarter of the limit only.
    let large = settled(one.clone(), &"x".repeat(2 * ROW_BYTES_MIN));
    store.replace(revision, WriteRole::Holder, &large).await.unwrap();
    assert!(store.usage().bytes > bytes_max);
    for id in [rest, 1] {
        assert!(matches!(store.insert(&task("b", id)).await, Err(StoreError::Full)));
        store.remove(&task("a", id).key).await.unwrap();
    }
    store.insert(&task("b", 1)).await.unwrap();
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
        let page = store.page(&Principal::new("a"), PageRange::new(after, 3, START)).await.unwrap();
        seen.extend(page.tasks.iter().map(|task| task.created_at));
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    let expected: Vec<_> = (0..7).map(|id| START.after(Duration::from_millis(id))).collect();
    assert_eq!(seen, expected);
}

async fn surveys_hold_every_task_once_the_newest_first(store: &impl TaskStore) {
    for (owner, id) in [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5)] {
        // Three with the same time.
        let created_at = START.after(Duration::from_millis((id as u64).min(3)));
        store.insert(&Task { created_at, ..task(owner, id) }).await.unwrap();
    }
    let last = START.after(Duration::from_millis(7));
    store.insert(&Task { created_at: last, ..settled(task("a", 6), "r") }).await.unwrap();
    let mut same = [("a", 3), ("c", 4), ("b", 5)].map(|(owner, id)| (ShortReference::of(&task(owner, id).key), id));
    same.sort_unstable();
    let expected = [6, same[0].1, same[1].1, same[2].1, 2, 1];
    for limit in 1..8 {
        let (mut seen, mut after) = (Vec::new(), None);
        for _ in 0..9 {
            let page = store.survey(PageRange::new(after, limit, START)).await.unwrap();
            assert!(page.tasks.len() <= limit && (page.tasks.len() == limit || page.next.is_none()));
            seen.extend(page.tasks.iter().map(|task| task.key.id.bits()));
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        assert_eq!(seen, expected, "{limit} at a time");
    }
    let later = store.survey(PageRange::new(None, 9, last.after(TTL))).await.unwrap();
    assert_eq!(later.tasks.len(), 5, "expired tasks are left out");
}

async fn a_reference_leads_to_its_task(store: &impl TaskStore) {
    let (one, two) = (task("a", 1), task("b", 1));
    let revision = store.insert(&one).await.unwrap();
    store.insert(&two).await.unwrap();
    let find = async |key: &TaskKey| store.find_reference(ShortReference::of(key), 9).await.unwrap();
    let nobodys = task("a", 2).key;
    assert_eq!(find(&one.key).await, std::slice::from_ref(&one.key));
    store.replace(revision, WriteRole::Holder, &settled(one.clone(), "r")).await.unwrap();
    assert_eq!(find(&one.key).await, std::slice::from_ref(&one.key));
    assert_eq!(find(&two.key).await, std::slice::from_ref(&two.key));
    assert!(find(&nobodys).await.is_empty());
    store.remove(&one.key).await.unwrap();
    store.remove(&two.key).await.unwrap();
    assert!(find(&one.key).await.is_empty() && find(&two.key).await.is_empty());
}

async fn lists_show_a_task_as_it_stands(store: &impl TaskStore) {
    let error = RpcError { code: -1, message: "no\nway".to_owned(), data: None };
    let broke = r#"{"content":[{"type":"text","text":"it broke"}],"isError":true}"#;
    let broke = Payload::restored(broke.into()).unwrap();
    let fault = GatewayFault { http_status: Some(503), ..GatewayFault::new(Reason::UpstreamClosed, Executed::Yes) };
    let open = [(InputKey(1), Question { ask: Payload::of("q"), request: Payload::of("r") })].into();
    let phases = [
        Phase::Queued,
        Phase::Working,
        Phase::AwaitingInput(open),
        Phase::Settled(Outcome::Returned { result: Payload::of("r"), is_error: false }),
        Phase::Settled(Outcome::Returned { result: broke, is_error: true }),
        Phase::Settled(Outcome::Faulted(Failure::Upstream(error))),
        Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))),
        Phase::Settled(Outcome::Cancelled),
    ];
    let mut expected = Vec::new();
    for (phase, id) in phases.into_iter().zip(0_u8..) {
        let made = Task {
            created_at: START.after(Duration::from_millis(id.into())),
            visibility: if id == 1 { TaskVisibility::Hidden } else { TaskVisibility::Handle },
            status_message: (id % 2 == 0).then(|| Arc::from("half")),
            ..task("a", id.into())
        };
        let revision = store.insert(&made).await.unwrap();
        let last = Task { phase, updated_at: START.after(Duration::from_millis(20)), ..made };
        store.replace(revision, WriteRole::Holder, &last).await.unwrap();
        expected.push(Summary::of(&last));
    }
    assert_eq!(expected[4].failure.as_deref(), Some("it broke"));
    assert_eq!(expected[5].failure.as_deref(), Some("noway"));
    assert_eq!(store.page(&Principal::new("a"), PageRange::new(None, 99, START)).await.unwrap().tasks, expected);
    expected.reverse();
    assert_eq!(store.survey(PageRange::new(None, 99, START)).await.unwrap().tasks, expected);
}

/// One task is hidden, three have client-chosen ids, one has another owner; created and changed in an order unlike
/// their ids.
async fn fill_for_filters(store: &impl TaskStore) -> Vec<Summary> {
    let open = [(InputKey(1), Question { ask: Payload::of("q"), request: Payload::of("r") })].into();
    let error = RpcError { code: -1, message: "no".to_owned(), data: None };
    let fault = GatewayFault::new(Reason::UpstreamClosed, Executed::Yes);
    let phases = [
        Phase::Queued,
        Phase::Working,
        Phase::AwaitingInput(open),
        Phase::Settled(Outcome::Returned { result: Payload::of("r"), is_error: false }),
        Phase::Settled(Outcome::Returned { result: Payload::of("r"), is_error: true }),
        Phase::Settled(Outcome::Faulted(Failure::Upstream(error))),
        Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))),
        Phase::Settled(Outcome::Cancelled),
    ];
    let mut made = Vec::new();
    for number in 0..24_u8 {
        let created_at = START.after(Duration::from_millis(u64::from(number * 7 % 12)));
        let updated_at = created_at.after(Duration::from_millis(u64::from(number * 5 % 9)));
        let mut one = Task { created_at, updated_at: created_at, ..task("a", u128::from(number) << 120) };
        match number {
            3 => one.visibility = TaskVisibility::Hidden,
            5 | 10 | 11 => one.chosen = Some(ChosenId { session: SessionScope(7), text: Arc::from("mine") }),
            7 => one.key.owner = Principal::new("b"),
            _ => (),
        }
        let revision = store.insert(&one).await.unwrap();
        let phase = phases[usize::from(number) % phases.len()].clone();
        // The last one stays as it was inserted.
        if number < 23 {
            one = Task { phase, updated_at, ..one };
            store.replace(revision, WriteRole::Holder, &one).await.unwrap();
        }
        made.push(Summary::of(&one));
    }
    made
}

/// FIL-03 to FIL-06, T-42. No owner sees another's tasks.
async fn filtered_pages_have_each_match_once_in_order(store: &impl TaskStore) {
    let made = fill_for_filters(store).await;
    let owner = Principal::new("a");
    let at = |millis| START.after(Duration::from_millis(millis));
    let all = ListFilter::default();
    let range = |from, until| TimeRange { from: at(from), until: at(until) };
    let of = |phases: &[PhaseKind]| ListFilter { phases: phases.iter().copied().collect(), ..all.clone() };
    let every: std::collections::BTreeSet<_> = made.iter().map(|task| task.key.id).collect();
    let some = [1_u128, 2, 3, 5, 7, 8, 99].map(|id| TaskId::from_bits(id << 120));
    let filters = [
        all.clone(),
        of(&[]),
        of(&[PhaseKind::Returned]),
        of(&[PhaseKind::Queued, PhaseKind::Working, PhaseKind::Cancelled]),
        ListFilter { created: range(3, 8), ..all.clone() },
        ListFilter { updated: range(3, 8), ..all.clone() },
        ListFilter { created: range(2, 9), updated: range(6, 11), ..all.clone() },
        ListFilter { created: range(9, 2), ..all.clone() },
        ListFilter { created: range(4, 5), ..of(&[PhaseKind::Faulted, PhaseKind::AwaitingInput, PhaseKind::Returned]) },
        ListFilter { ids: Some(every), ..all.clone() },
        ListFilter { ids: Some(some.into()), ..all.clone() },
        ListFilter { ids: Some([].into()), ..all.clone() },
        ListFilter { scope: Some(SessionScope(7)), ..all.clone() },
        ListFilter { scope: Some(SessionScope(8)), ..all.clone() },
    ];
    let mut shown = 0;
    for filter in filters {
        for (by, direction) in [
            (OrderedBy::Creation, ListDirection::OldestFirst),
            (OrderedBy::Creation, ListDirection::NewestFirst),
            (OrderedBy::LastUpdate, ListDirection::OldestFirst),
            (OrderedBy::LastUpdate, ListDirection::NewestFirst),
        ] {
            let filter = ListFilter { by, direction, ..filter.clone() };
            let mut expected: Vec<&Summary> =
                made.iter().filter(|task| task.key.owner == owner && filter.fits(task)).collect();
            expected.sort_by(|one, other| filter.compare(&filter.position(one), &filter.position(other)));
            shown += expected.len();
            for limit in [1, 3, 50] {
                let (mut seen, mut after) = (Vec::new(), None);
                loop {
                    let page = store.select(&owner, &filter, PageRange::new(after, limit, START)).await.unwrap();
                    assert!(page.tasks.len() <= limit);
                    seen.extend(page.tasks);
                    let Some(next) = page.next else { break };
                    assert!(
                        after.is_none_or(|after| filter.compare(&after, &next).is_lt()),
                        "a cursor behind the last"
                    );
                    after = Some(next);
                }
                let ids = |tasks: &[&Summary]| tasks.iter().map(|task| task.key.id).collect::<Vec<_>>();
                let seen: Vec<_> = seen.iter().collect();
                assert_eq!(ids(&seen), ids(&expected), "{limit} at a time: {filter:?}");
                assert_eq!(seen, expected);
            }
        }
    }
    assert!(shown > 200, "{shown}: the filters show something");
    let late = store.select(&owner, &all, PageRange::new(None, 50, at(1_000_000))).await.unwrap();
    assert!(
        !late.tasks.is_empty() && late.tasks.iter().all(|task| !task.is_settled()),
        "settled tasks are gone by then"
    );
}

async fn pages(store: &impl TaskStore, filter: &ListFilter) -> Vec<(Vec<u128>, Option<ListPosition>)> {
    let (mut pages, mut after) = (Vec::new(), None);
    for _ in 0..99 {
        let page = store.select(&Principal::new("a"), filter, PageRange::new(after, 50, START)).await.unwrap();
        pages.push((page.tasks.iter().map(|task| task.key.id.bits()).collect(), page.next));
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    pages
}

async fn a_filtered_page_reads_a_bounded_number_of_rows(store: &impl TaskStore) {
    let (count, early) = (FILTERED_ROWS_MAX + 70, 60);
    let created = |number: usize| START.after(Duration::from_millis(number as u64));
    // Created in the order of their ids, and changed in the opposite order.
    let updated = |number: usize| created(3 * count - number);
    let tasks = (0..count).map(|number| {
        let phase = if number < early { Phase::Queued } else { Phase::Working };
        Task { created_at: created(number), updated_at: updated(number), phase, ..task("a", number as u128) }
    });
    let tasks: Vec<_> = tasks.collect();
    futures_util::future::try_join_all(tasks.iter().map(|task| store.insert(task))).await.unwrap();
    let id = |number: usize| TaskId::from_bits(number as u128);
    for by in [OrderedBy::Creation, OrderedBy::LastUpdate] {
        let key = |number| if by == OrderedBy::Creation { created(number) } else { updated(number) };
        let directions = match by {
            OrderedBy::Creation => [ListDirection::NewestFirst, ListDirection::OldestFirst],
            OrderedBy::LastUpdate => [ListDirection::OldestFirst, ListDirection::NewestFirst],
        };
        // The matching ones are the last of all rows in the first order, and the first in the second.
        for (direction, is_last) in directions.into_iter().zip([true, false]) {
            let filter = ListFilter { by, direction, phases: [PhaseKind::Queued].into(), ..ListFilter::default() };
            let ids = |numbers: std::ops::Range<usize>| -> Vec<u128> {
                let numbers: Vec<_> = numbers.map(|number| number as u128).collect();
                if is_last { numbers.into_iter().rev().collect() } else { numbers }
            };
            let at = |number| Some((key(number), id(number)));
            let expected = if is_last {
                let read = count - FILTERED_ROWS_MAX;
                vec![(ids(read..read), at(read)), (ids(early - 50..early), at(early - 50)), (ids(0..early - 50), None)]
            } else {
                let read = 50 + FILTERED_ROWS_MAX - 1;
                vec![(ids(0..50), at(49)), (ids(50..early), at(read)), (ids(0..0), None)]
            };
            assert_eq!(pages(store, &filter).await, expected, "{filter:?}");
        }
    }
}

/// A page holds at least one task.
async fn pages_are_bounded_in_bytes(store: &impl TaskStore) {
    for id in 0..12_u8 {
        let created_at = START.after(Duration::from_millis(id.into()));
        let words = "w".repeat(PAGE_BYTES_MAX / 4).into();
        store.insert(&Task { created_at, status_message: Some(words), ..task("a", id.into()) }).await.unwrap();
    }
    let owner = Principal::new("a");
    let (mut counts, mut after) = (Vec::new(), None);
    for _ in 0..12 {
        let page = store.page(&owner, PageRange::new(after, 99, START)).await.unwrap();
        counts.push(page.tasks.len());
        let Some(next) = page.next else { break };
        after = Some(next);
    }
    assert_eq!(counts.iter().sum::<usize>(), 12);
    assert!(counts.iter().all(|count| (1..=5).contains(count)), "{counts:?}");
    let page = store.survey(PageRange::new(None, 99, START)).await.unwrap();
    assert!(page.next.is_some() && (1..=5).contains(&page.tasks.len()));
}

async fn revisions_rise_with_every_write(store: &impl TaskStore) {
    let one = task("a", 1);
    let mut last = store.insert(&one).await.unwrap();
    let cancelled = transition(one.clone(), Event::CancelRequested, START).0;
    let notified = transition(cancelled.clone(), Event::Notified, START).0;
    for next in [one.clone(), cancelled.clone(), notified] {
        let before = store.load(&one.key, START).await.unwrap().unwrap();
        assert_eq!(before.revision, last);
        let revision = store.replace(last, WriteRole::Holder, &next).await.unwrap();
        assert!(revision > last);
        for stale in [Revision(0), last] {
            assert!(matches!(store.replace(stale, WriteRole::Holder, &cancelled).await, Err(StoreError::Conflict)));
        }
        let found = store.load(&one.key, START).await.unwrap().unwrap();
        assert_eq!((&*found.task, found.revision), (&next, revision));
        last = revision;
    }
}

async fn sums_follow_every_write(store: &impl TaskStore) {
    let one = task("a", 1);
    let revision = store.insert(&one).await.unwrap();
    let large = settled(one.clone(), &"x".repeat(4 * ROW_BYTES_MIN));
    store.replace(revision, WriteRole::Holder, &large).await.unwrap();
    let held = Usage { tasks: 1, unsettled: 0, bytes: large.stored_bytes() };
    assert!(held.bytes > 4 * ROW_BYTES_MIN);
    assert_eq!((store.usage(), store.usage_of(&one.key.owner)), (held, held));
    store.sweep(START.after(TTL), 9).await.unwrap();
    assert_eq!((store.usage(), store.usage_of(&one.key.owner)), (Usage::default(), Usage::default()));
}

pub(crate) const NAME: Idempotency = Idempotency { key: Digest([7; 32]), call: Digest([8; 32]) };

pub(crate) fn named(owner: &str, id: u128) -> Task {
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
    store.replace(revision, WriteRole::Holder, &done).await.unwrap();
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
    assert_eq!(store.usage_of(&first.key.owner).tasks, 1, "a refused task is not counted");
    store.replace(revision, WriteRole::Holder, &settled(first, "r")).await.unwrap();
    assert!(matches!(store.insert(&named("a", 5)).await, Err(StoreError::Exists)));
    store.insert(&late(6)).await.unwrap();
    let found = store.find_idempotent(&Principal::new("a"), &NAME.key, START.after(TTL)).await.unwrap();
    assert_eq!(found.map(|row| row.task.key.id.bits()), Some(6));
    assert_eq!(store.sweep(START.after(TTL), 9).await.unwrap(), 1);
    let found = store.find_idempotent(&Principal::new("a"), &NAME.key, START.after(TTL)).await.unwrap();
    assert_eq!(found.map(|row| row.task.key.id.bits()), Some(6), "the sweep of the first took nothing from it");
}

/// GW-46: an expired task is still written once its upstream was notified.
async fn a_write_to_an_expired_task_takes_no_name_from_a_newer_one(store: &impl TaskStore) {
    let first = named("a", 1);
    let revision = store.insert(&first).await.unwrap();
    let cancelled = transition(first, Event::CancelRequested, START).0;
    let revision = store.replace(revision, WriteRole::Command, &cancelled).await.unwrap();
    let late = cancelled.expires_at();
    store.insert(&Task { created_at: late, ..named("a", 2) }).await.unwrap();
    let notified = transition(cancelled, Event::Notified, late).0;
    store.replace(revision, WriteRole::Holder, &notified).await.unwrap();
    let found = store.find_idempotent(&Principal::new("a"), &NAME.key, late).await.unwrap();
    assert_eq!(found.map(|row| row.task.key.id.bits()), Some(2));
    let third = store.insert(&Task { created_at: late, ..named("a", 3) }).await;
    assert!(matches!(third, Err(StoreError::Exists)), "{third:?}");
}

/// A repeated call runs if the first one did not.
async fn a_task_that_ended_without_its_call_has_no_name(store: &impl TaskStore) {
    for (id, executed, is_free) in [(1, Executed::Unknown, false), (2, Executed::Yes, false), (3, Executed::No, true)] {
        let owner = format!("o{id}");
        let one = named(&owner, id);
        let revision = store.insert(&one).await.unwrap();
        let failure = Failure::Gateway(GatewayFault::new(Reason::UpstreamUnreachable, executed));
        let event = Event::Faulted { attempt: one.attempt, failure };
        let (ended, _) = transition(one.clone(), event, START);
        store.replace(revision, WriteRole::Holder, &ended).await.unwrap();
        assert_eq!(*store.load(&one.key, START).await.unwrap().unwrap().task, ended, "{executed:?}");
        let found = store.find_idempotent(&one.key.owner, &NAME.key, START).await.unwrap();
        assert_eq!(found.is_none(), is_free, "{executed:?}");
        let again = store.insert(&named(&owner, id + 10)).await;
        assert_eq!(again.is_ok(), is_free, "{executed:?}: {again:?}");
        if is_free {
            store.remove(&one.key).await.unwrap();
            let found = store.find_idempotent(&one.key.owner, &NAME.key, START).await.unwrap();
            assert_eq!(found.map(|row| row.task.key.id.bits()), Some(id + 10), "it is the other's now");
        }
    }
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
            wins += usize::from(store.replace(row.revision, WriteRole::Holder, &next).await.is_ok());
            tokio::task::yield_now().await;
        }
    });
    futures_util::future::join_all(writers).await;
    let last = store.load(&one.key, START).await.unwrap().unwrap();
    assert_eq!(last.task.next_key, InputKey(80));
}
