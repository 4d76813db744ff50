//! Tests the table of decisions about a row (GW-39).

use std::collections::HashMap;
use std::sync::Arc;

use super::*;
use crate::store::contract::task;
use crate::task::{AfterCrash, EarlyInput, Outcome, PendingEffects, Recovery, StoredCall, TaskId, TaskMode, TreeLinks};
use crate::wire::Payload;

const NOW: Timestamp = Timestamp::from_millis(1_000_500);
const WHY_LOST: Reason = Reason::GatewayRestart;

fn policy(after_crash: AfterCrash) -> ToolPolicy {
    let span = Duration::from_secs(60);
    ToolPolicy {
        mode: TaskMode::Auto,
        grace: span,
        ttl: span,
        ttl_max: span,
        keep_result_min: span,
        poll_interval: span,
        deadline: span,
        early_input: EarlyInput::Task,
        after_crash,
        input_deadline: span,
        result_bytes_max: 1,
        immediate_response: None,
        limits: crate::task::CallLimits::default(),
        fallback: crate::task::FallbackPolicy::Hold,
        split: None,
    }
}

fn call(is_repeatable: bool) -> StoredCall {
    StoredCall {
        params: Payload::of(&HashMap::from([("name", "slow")])),
        capabilities: Payload::empty_object(),
        progress: true,
        log_level: None,
        is_repeatable,
        is_native: false,
    }
}

fn in_flight(call: Option<StoredCall>, resume: Option<&str>) -> Task {
    let recovery = Recovery { call, resume: resume.map(Payload::of), ..Recovery::default() };
    Task { phase: Phase::Working, recovery, ..task("a", 1) }
}

fn lost(reason: Reason, executed: Executed) -> RecoveryDecision {
    RecoveryDecision::Settle(Failure::Gateway(GatewayFault::new(reason, executed)))
}

fn unknown() -> RecoveryDecision {
    lost(Reason::GatewayRestart, Executed::Unknown)
}

fn resume() -> RecoveryDecision {
    RecoveryDecision::Run(RecoveryAction::Resume(ResumeToken(Payload::of("here"))))
}

/// GW-39, T-82.
#[test]
fn a_call_with_a_clients_credential_does_not_continue_without_it() {
    let gone = |executed| lost(Reason::UpstreamAuth, executed);
    let expired = RecoveryDecision::Expire;
    let unsent = Task { phase: Phase::Queued, ..in_flight(Some(call(false)), None) };
    for (row, action, expected) in [
        (in_flight(None, Some("here")), resume(), gone(Executed::Unknown)),
        (in_flight(Some(call(true)), None), RecoveryDecision::Run(RecoveryAction::Resend), gone(Executed::Unknown)),
        (unsent, RecoveryDecision::Run(RecoveryAction::Dispatch), gone(Executed::No)),
        (in_flight(None, None), unknown(), unknown()),
        (in_flight(None, None), expired.clone(), expired),
    ] {
        assert_eq!(without_credential(action.clone(), &row), expected, "{action:?}");
    }
}

/// F04, F06, F09.
#[test]
fn a_call_in_flight_is_taken_up_else_sent_again_where_it_may_be_else_lost() {
    use AfterCrash::{Fail, Rerun, RerunIfSafe};
    let again = || RecoveryDecision::Run(RecoveryAction::Resend);
    for (after_crash, is_repeatable, resumes, expected) in [
        (Fail, true, false, unknown()),
        (RerunIfSafe, false, false, unknown()),
        (RerunIfSafe, true, false, again()),
        (Rerun, false, false, again()),
        (Fail, false, true, resume()),
        (Rerun, true, true, resume()),
    ] {
        let row = in_flight(Some(call(is_repeatable)), resumes.then_some("here"));
        let found = verdict(&row, Some(&policy(after_crash)), NOW, WHY_LOST);
        assert_eq!(found, expected, "{after_crash:?} {is_repeatable} {resumes}");
    }
    let rerun = policy(Rerun);
    let trimmed = in_flight(Some(call(true).without_params()), None);
    assert_eq!(verdict(&trimmed, Some(&rerun), NOW, WHY_LOST), unknown(), "its arguments were not kept");
    assert_eq!(verdict(&in_flight(None, None), Some(&rerun), NOW, WHY_LOST), unknown());
    let last = Task { attempt: ATTEMPTS_MAX, ..in_flight(Some(call(true)), None) };
    assert_eq!(verdict(&last, Some(&rerun), NOW, WHY_LOST), unknown(), "no attempts are left");
}

#[test]
fn a_call_in_flight_at_three_crashes_in_a_row_is_not_taken_up_any_more() {
    let of = |crashes| {
        let mut row = in_flight(Some(call(true)), Some("here"));
        row.recovery.crashes = crashes;
        verdict(&row, Some(&policy(AfterCrash::Rerun)), NOW, WHY_LOST)
    };
    assert_eq!([of(0), of(1), of(2)], [resume(), resume(), lost(Reason::Poison, Executed::Unknown)]);
}

#[test]
fn a_queued_call_is_sent_for_the_first_time_or_was_certainly_not_sent() {
    let queued = |call| Task { phase: Phase::Queued, ..in_flight(call, None) };
    let policy = policy(AfterCrash::Fail);
    assert_eq!(
        verdict(&queued(Some(call(false))), Some(&policy), NOW, WHY_LOST),
        RecoveryDecision::Run(RecoveryAction::Dispatch)
    );
    let unsent = lost(Reason::GatewayRestart, Executed::No);
    assert_eq!(verdict(&queued(None), Some(&policy), NOW, WHY_LOST), unsent);
    assert_eq!(
        verdict(&queued(Some(call(false))), None, NOW, WHY_LOST),
        unsent,
        "its upstream is not configured any more"
    );
}

/// In every state of a split call, its elements have the params.
#[test]
fn a_call_whose_elements_have_rows_waits_for_them() {
    let policy = policy(AfterCrash::Fail);
    let watched = RecoveryDecision::Run(RecoveryAction::Watch);
    let tree = TreeLinks { children: Arc::from([TaskId::from_bits(7)]), ..TreeLinks::default() };
    for phase in [Phase::Queued, Phase::Working] {
        let parent = Task { phase, tree: tree.clone(), ..in_flight(Some(call(false).without_params()), None) };
        assert_eq!(verdict(&parent, Some(&policy), NOW, WHY_LOST), watched);
        assert_ne!(verdict(&parent, None, NOW, WHY_LOST), watched, "its upstream is not configured any more");
    }
    let again = Task { attempt: Attempt(2), tree: tree.clone(), ..in_flight(None, None) };
    assert_eq!(
        verdict(&again, Some(&policy), NOW, WHY_LOST),
        unknown(),
        "the server's own task was lost, with its children"
    );
    let own = Task { tree, ..in_flight(None, Some("here")) };
    assert_eq!(verdict(&own, Some(&policy), NOW, WHY_LOST), resume(), "the server has the task, and its children");
    let child = Task { visibility: TaskVisibility::Part, ..in_flight(None, Some("here")) };
    assert_eq!(verdict(&child, Some(&policy), NOW, WHY_LOST), resume());
}

/// F20, and T-56 for hidden ones.
#[test]
fn a_row_that_cannot_continue_is_settled_or_its_cancel_is_sent() {
    let policy = policy(AfterCrash::Rerun);
    let row = || in_flight(Some(call(true)), Some("here"));
    assert_eq!(verdict(&row(), None, NOW, WHY_LOST), unknown(), "its upstream is not configured any more");
    let hidden = Task { visibility: TaskVisibility::Hidden, ..row() };
    assert_eq!(verdict(&hidden, Some(&policy), NOW, WHY_LOST), unknown());
    let overdue = row().expires_at();
    assert_eq!(verdict(&row(), Some(&policy), overdue, Reason::GatewayRestart), RecoveryDecision::Expire);
    let mut cancelled = Task { phase: Phase::Settled(Outcome::Cancelled), ..row() };
    assert_eq!(verdict(&cancelled, Some(&policy), NOW, WHY_LOST), RecoveryDecision::Leave);
    cancelled.recovery.pending_effects = PendingEffects::NOTIFY_UPSTREAM;
    assert_eq!(verdict(&cancelled, None, NOW, WHY_LOST), RecoveryDecision::Notify);
}

/// F58, F59: the time that a call ran before the crash counts, with any change of the clock since.
#[test]
fn a_deadline_goes_on_from_the_dispatch() {
    let mut row = in_flight(Some(call(true)), None);
    let policy = policy(AfterCrash::Fail);
    for (dispatched_at, now, left_over) in [(0, 20_000, 40), (0, 70_000, 0), (50_000, 20_000, 60)] {
        row.recovery.dispatched_at = Some(Timestamp::from_millis(dispatched_at));
        assert_eq!(left(&row, &policy, Timestamp::from_millis(now)), Duration::from_secs(left_over));
    }
}
