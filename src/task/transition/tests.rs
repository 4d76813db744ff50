//! A table of each event in each phase; then random sequences check the invariants.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::store::contract::task;
use crate::task::TaskVisibility;
use crate::wire::RpcError;

const NOW: Timestamp = Timestamp::from_millis(1_000_500);

fn question(n: u32) -> Question {
    Question { ask: Payload::of(&n), request: Payload::of(&format!("question {n}")) }
}

fn in_phase(phase: Phase) -> Task {
    let next_key = match &phase {
        Phase::AwaitingInput(open) => InputKey(open.len() as u32),
        Phase::Queued | Phase::Working | Phase::Settled(_) => InputKey(0),
    };
    let answers = vec![(Payload::of(&9), Answer::Result(Payload::empty_object()))];
    let recovery = match &phase {
        // Separate tests cover the recovery state of settled tasks.
        Phase::Settled(_) => Recovery::default(),
        Phase::Queued | Phase::Working | Phase::AwaitingInput(_) => Recovery {
            call: Some(call()),
            resume: Some(Payload::of("here")),
            crashes: 1,
            undelivered: answers,
            ..Recovery::default()
        },
    };
    Task { phase, next_key, attempt: Attempt(2), recovery, ..task("a", 1) }
}

fn call() -> StoredCall {
    StoredCall {
        params: Payload::of(&BTreeMap::from([("name", "slow")])),
        capabilities: Payload::empty_object(),
        progress: true,
        log_level: None,
        is_repeatable: false,
        is_native: false,
    }
}

fn phases() -> Vec<(&'static str, Phase)> {
    let open = |n: u32| (0..n).map(|k| (InputKey(k), question(k))).collect();
    vec![
        ("queued", Phase::Queued),
        ("working", Phase::Working),
        ("asking one", Phase::AwaitingInput(open(1))),
        ("asking two", Phase::AwaitingInput(open(2))),
        ("returned", Phase::Settled(Outcome::Returned { result: Payload::empty_object(), is_error: false })),
        ("faulted", Phase::Settled(Outcome::Faulted(Failure::Upstream(RpcError::new(1, "m"))))),
        ("cancelled", Phase::Settled(Outcome::Cancelled)),
    ]
}

fn events(attempt: Attempt) -> Vec<(&'static str, Event)> {
    vec![
        ("dispatched", Event::Dispatched { attempt, call: Some(call().without_params()) }),
        ("taken up", Event::TakenUp { attempt }),
        ("resent", Event::Resent { attempt }),
        ("alive", Event::Alive { attempt }),
        ("checkpointed", Event::Checkpointed { attempt, resume: Some(Payload::of("there")) }),
        ("same position", Event::Checkpointed { attempt, resume: Some(Payload::of("here")) }),
        ("delivering", Event::Delivering { attempt, ask: Payload::of(&9) }),
        ("unknown ask", Event::Delivering { attempt, ask: Payload::of(&8) }),
        ("notified", Event::Notified),
        ("progressed", Event::Progressed { attempt, message: Arc::from("half") }),
        ("question received", Event::QuestionReceived { attempt, question: question(7) }),
        ("withdrawn", Event::Withdrawn { attempt, ask: Payload::of(&0) }),
        (
            "answered",
            Event::Answered { answers: BTreeMap::from([(InputKey(0), Answer::Result(Payload::empty_object()))]) },
        ),
        ("children", Event::ChildrenAdded { children: vec![TaskId::from_bits(7)] }),
        ("revealed", Event::Revealed),
        ("returns", Event::Returned { attempt, result: Payload::empty_object(), is_error: true }),
        ("faults", Event::Faulted { attempt, failure: Failure::Upstream(RpcError::new(2, "n")) }),
        ("cancel", Event::CancelRequested),
        ("ttl", Event::TtlElapsed),
    ]
}

fn name(phase: &Phase) -> String {
    match phase {
        Phase::Queued => "queued".into(),
        Phase::Working => "working".into(),
        Phase::AwaitingInput(open) => format!("asking {}", open.len()),
        Phase::Settled(Outcome::Returned { .. }) => "returned".into(),
        Phase::Settled(Outcome::Faulted(_)) => "faulted".into(),
        Phase::Settled(Outcome::Cancelled) => "cancelled".into(),
    }
}

/// The result of each event in each unsettled phase; `-` is no change and no effect. Effects: k keep, n notify, d
/// deliver, a abandon. Covers EXT-20, EXT-23, EXT-40, L25-11, L25-40.
const TABLE: &[(&str, [&str; 4])] = &[
    //             queued          working         asking one      asking two
    ("dispatched", ["working n", "-", "-", "-"]),
    ("taken up", ["-", "working k", "asking 1 k", "asking 2 k"]),
    ("resent", ["-", "working n", "working n", "working n"]),
    ("alive", ["queued k", "working k", "asking 1 k", "asking 2 k"]),
    ("checkpointed", ["queued k", "working k", "asking 1 k", "asking 2 k"]),
    ("same position", ["-", "-", "-", "-"]),
    ("delivering", ["queued k", "working k", "asking 1 k", "asking 2 k"]),
    ("unknown ask", ["-", "-", "-", "-"]),
    ("notified", ["-", "-", "-", "-"]),
    ("progressed", ["queued n", "working n", "asking 1 n", "asking 2 n"]),
    ("question received", ["asking 1 n", "asking 1 n", "asking 2 n", "asking 3 n"]),
    ("withdrawn", ["-", "-", "working n", "asking 1 n"]),
    ("answered", ["-", "-", "working nd", "asking 1 nd"]),
    ("children", ["queued n", "working n", "asking 1 n", "asking 2 n"]),
    ("revealed", ["-", "-", "-", "-"]),
    ("returns", ["returned n", "returned n", "returned n", "returned n"]),
    ("faults", ["faulted n", "faulted n", "faulted n", "faulted n"]),
    ("cancel", ["cancelled na", "cancelled na", "cancelled na", "cancelled na"]),
    ("ttl", ["faulted na", "faulted na", "faulted na", "faulted na"]),
];

/// EXT-20, EXT-23, EXT-40, L25-11, L25-40.
#[test]
fn every_phase_and_event_follow_the_table() {
    let mut seen = 0;
    for ((event_name, event), (row_name, row)) in events(Attempt(2)).into_iter().zip(TABLE) {
        assert_eq!(event_name, *row_name);
        for ((phase_name, phase), expected) in phases().into_iter().zip(row) {
            let before = in_phase(phase);
            let (after, effects) = transition(before.clone(), event.clone(), NOW);
            let letters: String = effects
                .iter()
                .map(|effect| match effect {
                    Effect::StoreOnly => 'k',
                    Effect::NotifyWatchers => 'n',
                    Effect::Deliver(_) => 'd',
                    Effect::Abandon => 'a',
                })
                .collect();
            let got = if effects.is_empty() { "-".to_owned() } else { format!("{} {letters}", name(&after.phase)) };
            assert_eq!(got, *expected, "{event_name} in {phase_name}");
            if effects.is_empty() {
                assert_eq!(after, before, "{event_name} in {phase_name} changed something");
            } else {
                // A change that clients cannot see does not update the time.
                let seen_at = if effects == [Effect::StoreOnly] { before.updated_at } else { NOW };
                assert_eq!(after.updated_at, seen_at, "{event_name} in {phase_name}");
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 76);
}

/// EXT-34, EXT-36, EXT-43: keys of rounds before a handle are not reused after it.
#[test]
fn a_hidden_task_that_gets_a_handle_asks_under_new_keys() {
    for (phase_name, phase) in phases().into_iter().filter(|(_, phase)| !matches!(phase, Phase::Settled(_))) {
        let before = Task { visibility: TaskVisibility::Hidden, ..in_phase(phase) };
        let (after, effects) = transition(before.clone(), Event::Revealed, NOW);
        assert_eq!((after.visibility, effects), (TaskVisibility::Handle, vec![Effect::NotifyWatchers]), "{phase_name}");
        match (&before.phase, &after.phase) {
            (Phase::AwaitingInput(before), Phase::AwaitingInput(after)) => {
                assert!(after.keys().all(|key| !before.contains_key(key)), "{phase_name}");
                assert_eq!(before.values().collect::<Vec<_>>(), after.values().collect::<Vec<_>>());
            }
            (before, after) => assert_eq!(before, after),
        }
    }
}

/// No client knows a hidden task's `ttl`, and none returns for its outcome much later.
#[test]
fn the_outcome_of_a_hidden_task_lingers_and_goes() {
    let task = Task { visibility: TaskVisibility::Hidden, ..in_phase(Phase::Working) };
    let created_at = task.created_at;
    let (settled, _) = transition(task, Event::CancelRequested, NOW);
    assert_eq!(settled.ttl, NOW.since(created_at) + LINGER);
}

/// EXT-20, L25-12: late results, cancels and answers change nothing.
#[test]
fn a_settled_task_ignores_every_event() {
    let settled = phases().into_iter().filter(|(_, phase)| matches!(phase, Phase::Settled(_)));
    for (phase_name, phase) in settled {
        for (event_name, event) in events(Attempt(2)) {
            let before = in_phase(phase.clone());
            let (after, effects) = transition(before.clone(), event, NOW);
            assert_eq!((after, effects), (before, vec![]), "{event_name} in {phase_name}");
        }
    }
}

/// SUB-03, SUB-12.
#[test]
fn sub_03_sub_12_children_are_appended_while_a_task_is_unsettled() {
    let added = |task: Task, ids: &[u128]| {
        let children = ids.iter().map(|id| TaskId::from_bits(*id)).collect();
        transition(task, Event::ChildrenAdded { children }, NOW)
    };
    let (task, _) = added(in_phase(Phase::Working), &[3, 1]);
    let (task, _) = added(task, &[1, 2, 3]);
    let ids: Vec<u128> = task.tree.children.iter().map(|id| id.bits()).collect();
    assert_eq!(ids, [3, 1, 2]);
    let (task, effects) = added(task, &[2]);
    assert_eq!(effects, []);
    let (settled, _) = transition(task, Event::CancelRequested, NOW);
    let (after, effects) = added(settled.clone(), &[9]);
    assert_eq!((after, effects), (settled, vec![]));
}

#[test]
fn events_of_an_older_attempt_are_stale() {
    for (event_name, event) in events(Attempt(1)).into_iter().filter(|(_, event)| !matches!(event, Event::Notified)) {
        let unbound = matches!(
            event,
            Event::Answered { .. } | Event::ChildrenAdded { .. } | Event::CancelRequested | Event::TtlElapsed
        );
        let before = in_phase(Phase::AwaitingInput(BTreeMap::from([(InputKey(0), question(0))])));
        let (_, effects) = transition(before, event, NOW);
        assert_eq!(effects.is_empty(), !unbound, "{event_name}");
    }
}

/// A queued task was certainly not sent; any other may have been.
#[test]
fn a_ttl_that_ends_a_queued_task_promises_that_nothing_was_sent() {
    for (phase, executed) in [(Phase::Queued, Executed::No), (Phase::Working, Executed::Unknown)] {
        let (after, _) = transition(in_phase(phase), Event::TtlElapsed, NOW);
        let fault = GatewayFault::new(Reason::TtlExpired, executed);
        assert_eq!(after.phase, Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))));
    }
}

/// GW-28.
#[test]
fn an_outcome_raises_the_ttl_only_where_it_is_too_short_to_be_read() {
    let started = in_phase(Phase::Working);
    let at = |secs| started.created_at.after(Duration::from_secs(secs));
    for (settled_at, ttl) in [(at(1), 60), (at(50), 60), (at(59), 69), (at(100), 110)] {
        let (after, _) = transition(started.clone(), Event::CancelRequested, settled_at);
        assert_eq!(after.ttl, Duration::from_secs(ttl));
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let attempt = (1_u32..4).prop_map(Attempt);
    let answers = proptest::collection::btree_map(
        (0_u32..8).prop_map(InputKey),
        Just(Answer::Result(Payload::empty_object())),
        0..4,
    );
    prop_oneof![
        1 => attempt.clone().prop_map(|attempt| Event::Dispatched { attempt, call: None }),
        1 => attempt.clone().prop_map(|attempt| Event::TakenUp { attempt }),
        1 => attempt.clone().prop_map(|attempt| Event::Resent { attempt }),
        1 => attempt.clone().prop_map(|attempt| Event::Alive { attempt }),
        2 => (attempt.clone(), 0_u32..4).prop_map(|(attempt, n)| Event::Checkpointed { attempt, resume: Some(Payload::of(&n)) }),
        2 => (attempt.clone(), 0_u32..8).prop_map(|(attempt, n)| Event::Delivering { attempt, ask: Payload::of(&n) }),
        1 => Just(Event::Notified),
        1 => attempt.clone().prop_map(|attempt| Event::Progressed { attempt, message: Arc::from("m") }),
        4 => (attempt.clone(), 0_u32..8).prop_map(|(attempt, n)| Event::QuestionReceived { attempt, question: question(n) }),
        2 => (attempt.clone(), 0_u32..8).prop_map(|(attempt, n)| Event::Withdrawn { attempt, ask: Payload::of(&n) }),
        4 => answers.prop_map(|answers| Event::Answered { answers }),
        1 => attempt.clone().prop_map(|attempt| Event::Returned { attempt, result: Payload::of("r"), is_error: false }),
        1 => attempt.prop_map(|attempt| Event::Faulted { attempt, failure: Failure::Upstream(RpcError::new(1, "m")) }),
        1 => proptest::collection::vec((1_u128..20).prop_map(TaskId::from_bits), 0..4)
            .prop_map(|children| Event::ChildrenAdded { children }),
        1 => Just(Event::CancelRequested),
        1 => Just(Event::TtlElapsed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn random_sequences_hold_the_invariants(
        events in proptest::collection::vec((any_event(), 0_u64..2_000), 1..40),
        queued in any::<bool>(),
    ) {
        let mut task = in_phase(if queued { Phase::Queued } else { Phase::Working });
        let mut used = std::collections::BTreeSet::new();
        for (event, at) in events {
            // The clock may go backwards.
            let now = Timestamp::from_millis(1_000_000 + at);
            let before = task.clone();
            let (after, effects) = transition(task, event, now);
            if effects.is_empty() {
                prop_assert_eq!(&after, &before);
            }
            prop_assert!(after.updated_at >= before.updated_at);
            prop_assert!(after.attempt >= before.attempt);
            // An answer is delivered once: a removed one never returns by itself.
            let answered = effects.iter().any(|effect| matches!(effect, Effect::Deliver(_)));
            prop_assert!(answered || after.recovery.undelivered.len() <= before.recovery.undelivered.len());
            if after.is_settled() {
                prop_assert!(after.recovery.call.is_none() && after.recovery.undelivered.is_empty());
                prop_assert!(after.recovery.resume.is_none() || after.recovery.must_notify_upstream());
                // A settling event never enlarges the row, except with an outcome.
                let is_outcome = matches!(&after.phase, Phase::Settled(Outcome::Returned { .. } | Outcome::Faulted(Failure::Upstream(_))));
                prop_assert!(is_outcome || after.stored_bytes() <= before.stored_bytes());
            }
            prop_assert!(after.ttl >= before.ttl);
            prop_assert!(after.next_key >= before.next_key);
            prop_assert_eq!(after.visibility, TaskVisibility::Handle);
            // SUB-01, SUB-03.
            prop_assert_eq!(after.tree.parent, before.tree.parent);
            prop_assert!(after.tree.children.starts_with(&before.tree.children));
            let children: std::collections::BTreeSet<_> = after.tree.children.iter().collect();
            prop_assert_eq!(children.len(), after.tree.children.len(), "named twice");
            if before.is_settled() {
                let same = Task { recovery: before.recovery.clone(), ..after.clone() };
                prop_assert_eq!(&same, &before, "only that its upstream was notified may be noted");
            }
            if let Phase::AwaitingInput(open) = &after.phase {
                prop_assert!(!open.is_empty());
                for key in open.keys() {
                    prop_assert!(*key < after.next_key);
                    // EXT-34 to EXT-36: a closed key never opens again.
                    let was_open = matches!(&before.phase, Phase::AwaitingInput(open) if open.contains_key(key));
                    prop_assert!(was_open || used.insert(*key));
                }
            }
            if matches!(after.phase, Phase::Queued) {
                prop_assert!(matches!(before.phase, Phase::Queued));
            }
            task = after;
        }
    }
}

/// F14, F15: an accepted answer is stored in the row, and removed before it is sent.
#[test]
fn f14_f15_an_answer_is_kept_until_it_is_about_to_be_sent() {
    let before = Task {
        recovery: Recovery::default(),
        ..in_phase(Phase::AwaitingInput(BTreeMap::from([(InputKey(0), question(7))])))
    };
    let answer = Answer::Result(Payload::of("yes"));
    let answers = BTreeMap::from([(InputKey(0), answer.clone())]);
    let (accepted, effects) = transition(before, Event::Answered { answers }, NOW);
    let kept = vec![(Payload::of(&7), answer)];
    assert_eq!(accepted.recovery.undelivered, kept);
    assert_eq!(effects, [Effect::NotifyWatchers, Effect::Deliver(kept)]);
    let event = Event::Delivering { attempt: Attempt(2), ask: Payload::of(&7) };
    let (sent, effects) = transition(accepted, event.clone(), NOW);
    assert_eq!((sent.recovery.undelivered.len(), effects), (0, vec![Effect::StoreOnly]));
    assert_eq!(transition(sent, event, NOW).1, [], "a second time there is nothing to send");
}

/// F20: the settled row keeps the data for notifying the upstream until that is done.
#[test]
fn f20_a_cancelled_call_stays_unnotified_until_its_upstream_was_notified() {
    for event in [Event::CancelRequested, Event::TtlElapsed] {
        let (queued, _) = transition(in_phase(Phase::Queued), event.clone(), NOW);
        assert_eq!(queued.recovery, Recovery::default(), "nothing was sent, so no server is notified");
        let (settled, _) = transition(in_phase(Phase::Working), event, NOW);
        let unnotified = Recovery {
            resume: Some(Payload::of("here")),
            pending_effects: PendingEffects::NOTIFY_UPSTREAM,
            ..Recovery::default()
        };
        assert_eq!(settled.recovery, unnotified);
        let (notified, effects) = transition(settled.clone(), Event::Notified, NOW);
        assert_eq!(effects, [Effect::StoreOnly]);
        assert_eq!(notified, Task { recovery: Recovery::default(), ..settled });
    }
}

/// GW-39: a new try starts without the state of the last one.
#[test]
fn a_call_that_is_sent_again_is_a_try_of_its_own() {
    let before = in_phase(Phase::AwaitingInput(BTreeMap::from([(InputKey(0), question(0))])));
    let (after, _) = transition(before.clone(), Event::Resent { attempt: Attempt(2) }, NOW);
    assert_eq!((after.attempt, &after.phase), (Attempt(3), &Phase::Working));
    let expected = Recovery { resume: None, undelivered: Vec::new(), dispatched_at: Some(NOW), ..before.recovery };
    assert_eq!(after.recovery, expected, "what a further life needs stays");
    let late = Event::Returned { attempt: Attempt(2), result: Payload::empty_object(), is_error: false };
    assert_eq!(transition(after, late, NOW).1, [], "the lost try says nothing any more");
}

/// F23: a process that only waits for a permit does not count against a call; one that resumed it counts until a sign.
#[test]
fn f23_only_processes_that_resumed_a_call_without_an_event_count_against_it() {
    let attempt = Attempt(2);
    let (queued, effects) = transition(in_phase(Phase::Queued), Event::TakenUp { attempt }, NOW);
    assert_eq!((queued.recovery.crashes, effects), (1, vec![]));
    let (taken, _) = transition(in_phase(Phase::Working), Event::TakenUp { attempt }, NOW);
    assert_eq!(taken.recovery.crashes, 2);
    let (alive, _) = transition(taken, Event::Alive { attempt }, NOW);
    assert_eq!(alive.recovery.crashes, 0);
    assert_eq!(transition(alive, Event::Alive { attempt }, NOW).1, []);
}

fn any_send() -> impl Strategy<Value = SendAttempt> {
    prop_oneof![Just(SendAttempt::First), any::<bool>().prop_map(|is_counted| SendAttempt::Again { is_counted })]
}

fn any_phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        Just(Phase::Queued),
        Just(Phase::Working),
        Just(Phase::AwaitingInput([(InputKey(0), question(1))].into())),
        Just(Phase::Settled(Outcome::Cancelled)),
    ]
}

/// The task after the events, and whether the last one had an effect.
fn stored(mut task: Task, events: Vec<Event>) -> (Task, bool) {
    let mut has_effect = false;
    for event in events {
        let (next, effects) = transition(task, event, NOW);
        (task, has_effect) = (next, !effects.is_empty());
    }
    (task, has_effect)
}

proptest! {
    #[test]
    fn a_stored_send_is_recognized_and_stored_once(
        send in any_send(),
        phase in any_phase(),
        number in 1_u32..4,
        later in 0_u32..2,
    ) {
        let current = Attempt(number);
        let before = Task { phase, attempt: Attempt(number + later), ..task("a", 1) };
        let (after, may_send) = stored(before.clone(), send.events(current, || None));
        // A settled task is not sent (L6), nor is an attempt that a later one replaced.
        prop_assert!(!may_send || !(before.is_settled() || later > 0));
        prop_assert!(!may_send || send.is_stored(current, &after));
        let (again, may_send_again) = stored(after.clone(), send.events(current, || None));
        prop_assert!(!may_send_again || !may_send);
        prop_assert!(!may_send || again == after);
        // A call that is queued is sent for the first time, and any other is sent again.
        let is_queued = matches!(before.phase, Phase::Queued);
        let fits = is_queued == (send == SendAttempt::First);
        prop_assert_eq!(may_send, fits && later == 0 && !before.is_settled());
    }
}
