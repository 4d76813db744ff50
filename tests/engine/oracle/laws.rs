//! L1 to L8 of the history checker: a history that keeps them all, and one for each way to break one.

use std::time::Duration;

use super::history::{Bounds, Entry, Fact, PollResult, violations};

const BOUNDS: Bounds = Bounds { settle_max: Duration::from_secs(10), on_its_way_max: Duration::from_millis(50) };

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn n(text: &str) -> String {
    text.to_owned()
}

fn sends(nonce: &str, owner: &str) -> Fact {
    Fact::Sends { nonce: n(nonce), owner: n(owner), calls_max: 1 }
}

fn handle(nonce: &str, task: &str) -> Fact {
    Fact::Handle { nonce: n(nonce), task: n(task), expires: ms(60_000) }
}

fn polled(task: &str, asked: u64, seen: PollResult) -> Fact {
    Fact::Polled { task: n(task), asked: ms(asked), seen }
}

fn settled(status: &str, payload: &str, updated: u64) -> PollResult {
    PollResult::Settled { status: n(status), payload: n(payload), updated: ms(updated) }
}

fn called(nonce: &str) -> Fact {
    Fact::Called { nonce: n(nonce) }
}

fn returned(nonce: &str, payload: &str) -> Fact {
    Fact::Returned { nonce: n(nonce), payload: n(payload) }
}

fn answered(value: &str) -> [Fact; 2] {
    [Fact::Answers { task: n("t1"), value: n(value) }, Fact::Answered { task: n("t1"), value: n(value) }]
}

fn delivered(value: &str) -> Fact {
    Fact::Delivered { nonce: n("n1x"), value: n(value) }
}

fn asks() -> Fact {
    Fact::Asks { nonce: n("n1x") }
}

/// Two calls of two owners up to their handles, then the facts of a test.
fn history(more: &[(u64, Fact)]) -> Vec<Entry> {
    let begun = [
        (0, Fact::Starts),
        (100, sends("n1x", "ada")),
        (110, called("n1x")),
        (120, handle("n1x", "t1")),
        (130, sends("n2x", "bob")),
        (140, handle("n2x", "t2")),
        (150, called("n2x")),
    ];
    let all = begun.into_iter().chain(more.iter().cloned());
    all.map(|(at, fact)| Entry { at: ms(at), fact }).collect()
}

fn laws(more: &[(u64, Fact)]) -> Vec<&'static str> {
    let found = violations(&history(more), BOUNDS);
    let mut laws: Vec<_> = found.iter().map(|violation| violation.law).collect();
    laws.dedup();
    laws
}

/// A name, the facts that are added to the history, and the laws that they break.
type Case<'a> = (&'a str, Vec<(u64, Fact)>, &'a [&'a str]);

fn check(cases: &[Case<'_>]) {
    for (name, more, expected) in cases {
        assert_eq!(laws(more), *expected, "{name}");
    }
}

#[test]
fn a_history_that_keeps_every_law_is_clean() {
    let [answers, accepted] = answered("v1");
    let more = vec![
        (200, asks()),
        (210, answers),
        (220, accepted),
        (230, delivered("v1")),
        (300, returned("n1x", "one")),
        (310, Fact::Ends),
        (900, Fact::Starts),
        (950, polled("t1", 940, PollResult::Open)),
        (1_000, polled("t1", 990, settled("completed", "{one}", 960))),
        (1_100, polled("t1", 1_090, settled("completed", "{one}", 960))),
        (1_150, Fact::Cancelled { task: n("t1") }),
        (1_160, polled("t1", 1_155, settled("completed", "{one}", 960))),
        (1_200, Fact::Cancelled { task: n("t2") }),
        (1_300, polled("t2", 1_290, settled("cancelled", "", 1_199))),
        (1_400, Fact::Read { owner: n("ada"), text: n("n1x and no other") }),
        (70_000, polled("t1", 69_990, PollResult::Missing)),
        (70_001, polled("t2", 69_991, PollResult::Missing)),
    ];
    assert_eq!(violations(&history(&more), BOUNDS), []);
}

#[test]
fn l1_a_task_that_is_not_found_before_its_end_is_reported() {
    check(&[
        ("at once", vec![(200, polled("t1", 190, PollResult::Missing))], &["L1"]),
        (
            "later",
            vec![(150, polled("t1", 140, PollResult::Open)), (5_000, polled("t1", 4_990, PollResult::Missing))],
            &["L1"],
        ),
        ("asked before the handle", vec![(200, polled("t1", 110, PollResult::Missing))], &[]),
        (
            "of a task that expired",
            vec![
                (300, polled("t1", 290, settled("cancelled", "", 200))),
                (60_001, polled("t1", 60_000, PollResult::Missing)),
            ],
            &["L3"],
        ),
    ]);
}

#[test]
fn l2_a_settled_task_that_changes_is_reported() {
    let first = (200, polled("t1", 190, settled("cancelled", "", 180)));
    let second = |seen| vec![first.clone(), (300, polled("t1", 290, seen))];
    check(&[
        ("another status", second(settled("failed", "", 180)), &["L2"]),
        ("another payload", second(settled("cancelled", "{}", 180)), &["L2"]),
        ("open again", second(PollResult::Open), &["L2"]),
        ("gone", second(PollResult::Missing), &["L1", "L2"]),
        ("asked before", vec![first.clone(), (201, polled("t1", 150, PollResult::Open))], &[]),
    ]);
}

#[test]
fn l3_a_task_that_stays_open_is_reported_by_time_of_service() {
    let fine = polled("t2", 190, settled("cancelled", "", 180));
    let with = |more: Vec<(u64, Fact)>| std::iter::once((200, fine.clone())).chain(more).collect::<Vec<_>>();
    check(&[
        ("open", with(vec![(20_000, polled("t1", 19_990, PollResult::Open))]), &["L3"]),
        ("never polled", with(vec![(20_000, Fact::Ends)]), &["L3"]),
        ("in a short life", with(vec![(300, Fact::Ends), (20_000, Fact::Starts)]), &[]),
        ("beside one that ended", with(vec![(250, Fact::Starts), (300, Fact::Ends), (20_000, Fact::Starts)]), &["L3"]),
        ("late", with(vec![(20_000, polled("t1", 19_990, settled("failed", "", 19_000)))]), &["L3"]),
    ]);
}

#[test]
fn l4_a_second_call_and_a_call_that_was_refused_are_reported() {
    let safe = Fact::Sends { nonce: n("n3x"), owner: n("ada"), calls_max: 2 };
    check(&[
        ("twice", vec![(200, called("n1x"))], &["L4"]),
        ("refused", vec![(200, Fact::Refused { nonce: n("n2x") })], &["L4"]),
        (
            "a task that is said not to have run",
            vec![(200, polled("t2", 190, settled("failed", r#"{"data":{"executed":"no"}}"#, 180)))],
            &["L4"],
        ),
        (
            "one of which nobody knows",
            vec![(200, polled("t2", 190, settled("failed", r#"{"data":{"executed":"unknown"}}"#, 180)))],
            &[],
        ),
        ("unheard of", vec![(200, called("n9x"))], &["L4"]),
        ("twice, and safe", vec![(200, safe.clone()), (210, called("n3x")), (220, called("n3x"))], &[]),
        (
            "thrice, and safe",
            vec![(200, safe), (210, called("n3x")), (220, called("n3x")), (230, called("n3x"))],
            &["L4"],
        ),
    ]);
}

#[test]
fn l5_an_answer_that_is_doubled_invented_or_lost_is_reported() {
    let [answers, accepted] = answered("v1");
    let given = [(200, asks()), (210, answers), (220, accepted)];
    let with = |more: &[(u64, Fact)]| given.iter().chain(more).cloned().collect::<Vec<_>>();
    check(&[
        ("doubled", with(&[(230, delivered("v1")), (240, delivered("v1"))]), &["L5"]),
        ("invented", with(&[(230, delivered("v1")), (240, delivered("v2"))]), &["L5"]),
        ("lost", with(&[]), &["L5"]),
        ("not wanted any more", with(&[(230, Fact::StopsAsking { nonce: n("n1x") })]), &[]),
        ("never accepted", given[..2].to_vec(), &[]),
        ("on its way at the end", with(&[(260, Fact::Ends)]), &[]),
        ("long before the end", with(&[(280, Fact::Ends)]), &["L5"]),
    ]);
}

#[test]
fn l6_a_cancel_that_is_not_kept_is_reported() {
    let cancelled = (200, Fact::Cancelled { task: n("t1") });
    let late = |seen| vec![cancelled.clone(), (300, polled("t1", 290, seen))];
    let unsent = [(160, sends("n3x", "ada")), (170, handle("n3x", "t3")), (180, Fact::Cancelled { task: n("t3") })];
    check(&[
        ("dispatched", unsent.iter().cloned().chain([(690, called("n3x"))]).collect(), &["L6"]),
        ("on its way", unsent.iter().cloned().chain([(230, called("n3x"))]).collect(), &[]),
        ("open", late(PollResult::Open), &["L6"]),
        ("failed later", late(settled("failed", "", 250)), &["L6"]),
        ("failed before", late(settled("failed", "", 150)), &[]),
        ("cancelled", late(settled("cancelled", "", 250)), &[]),
    ]);
}

#[test]
fn l7_bytes_of_another_owner_are_reported() {
    let read = |owner: &str, text: &str| vec![(200, Fact::Read { owner: n(owner), text: n(text) })];
    check(&[("foreign", read("ada", "{\"text\":\"n2x\"}"), &["L7"]), ("own", read("bob", "{\"text\":\"n2x\"}"), &[])]);
}

#[test]
fn l8_an_answer_that_arrived_and_was_dropped_or_changed_is_reported() {
    let failed = |payload: &str, updated| (400, polled("t1", 390, settled("failed", payload, updated)));
    let arrived = (200, returned("n1x", "one"));
    check(&[
        ("dropped", vec![arrived.clone(), failed("upstream_closed", 300)], &["L8"]),
        ("too late", vec![arrived.clone(), failed("upstream_closed", 190)], &[]),
        ("no room", vec![arrived.clone(), failed("store_full", 300)], &[]),
        ("killed", vec![arrived.clone(), (210, Fact::Ends), (260, Fact::Starts), failed("gateway_restart", 300)], &[]),
        (
            "to one of two that stands still",
            vec![(150, Fact::Starts), (190, Fact::Ends), arrived.clone(), failed("gateway_restart", 300)],
            &[],
        ),
        (
            "beside one that is back",
            vec![(150, Fact::Starts), (160, Fact::Ends), (190, Fact::Starts), arrived.clone(), failed("", 300)],
            &["L8"],
        ),
        (
            "at the end of a drain",
            vec![(150, Fact::Leaves), arrived.clone(), (350, Fact::Ends), failed("replica_lost", 300)],
            &[],
        ),
        (
            "long before the end of a drain",
            vec![(150, Fact::Leaves), arrived.clone(), failed("replica_lost", 300), (3_301, Fact::Ends)],
            &["L8"],
        ),
        (
            "beside a drain that is over",
            vec![
                (150, Fact::Starts),
                (160, Fact::Leaves),
                (190, Fact::Ends),
                (195, Fact::Starts),
                arrived.clone(),
                failed("", 300),
            ],
            &["L8"],
        ),
        ("a store that fails", vec![(190, Fact::StoreFails), arrived.clone(), failed("store_failed", 300)], &[]),
        (
            "a store that failed",
            vec![(180, Fact::StoreFails), (190, Fact::StoreHeals), arrived.clone(), failed("", 300)],
            &["L8"],
        ),
        ("changed", vec![arrived, (400, polled("t1", 390, settled("completed", "two", 300)))], &["L8"]),
        ("invented", vec![(400, polled("t1", 390, settled("completed", "one", 300)))], &["L8"]),
    ]);
}
