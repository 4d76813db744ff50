//! F01 to F25, each by its own name, and a proof that the judge detects a lost promise.

use rustix::process::Signal;

use super::cycle::{End, Plan, check, count, run};

macro_rules! faults {
    ($($name:ident: $plan:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            println!("{}", check($plan).await);
        }
    )*};
}

faults! {
    f01_a_kill_between_accept_and_the_first_byte_leaves_nothing: Plan::new("F01", End::Point("accepted", 25));
    f02_a_kill_before_the_intent_is_queued_leaves_nothing: Plan::new("F02", End::Point("admitted", 8));
    f03_a_kill_before_the_intent_is_synced_gives_no_handle: Plan::new("F03", End::Point("intent-written", 8));
    f04_a_kill_before_the_first_byte_goes_upstream_is_recovered: Plan::new("F04", End::Point("intent-durable", 6));
    f05_a_kill_in_the_middle_of_a_call_is_recovered: Plan::new("F05", End::HalfSent);
    f06_a_kill_after_the_call_was_sent_is_recovered: Plan::new("F06", End::Ledger("called", 9));
    f07_a_kill_before_the_handle_is_written_leaves_a_task: Plan::new("F07", End::Point("handle-durable", 8));
    f08_a_kill_in_the_middle_of_a_handle_leaves_a_task: Plan::new("F08", End::Point("handle-half-written", 8));
    f09_a_kill_while_the_tool_works_is_recovered: Plan::new("F09", End::Ledger("sent", 20));
    f10_a_kill_between_an_event_and_its_place_is_recovered: Plan::new("F10", End::Point("event-heard", 12));
    f11_a_kill_before_a_question_is_stored_loses_no_answer: Plan::new("F11", End::Point("question-heard", 3));
    f12_a_kill_before_a_question_is_shown_loses_no_answer: Plan::new("F12", End::Point("question-stored", 2));
    f13_a_kill_before_an_answer_is_stored_acknowledges_none: Plan::new("F13", End::Point("answer-heard", 3));
    f14_a_kill_before_an_answer_is_delivered_loses_none: Plan::new("F14", End::Point("answer-stored", 3));
    f15_a_kill_after_an_answer_was_delivered_doubles_none: Plan::new("F15", End::Point("answer-delivered", 3));
    f16_a_kill_in_the_middle_of_the_outcome_is_recovered: Plan { half: true, ..Plan::new("F16", End::Ledger("half", 4)) };
    f17_a_kill_before_the_outcome_is_stored_is_recovered: Plan::new("F17", End::Point("outcome-heard", 5));
    f18_a_kill_after_the_outcome_is_stored_keeps_it: Plan::new("F18", End::Point("outcome-stored", 5));
    f19_a_kill_before_a_cancel_is_stored_acknowledges_none: Plan::new("F19", End::Point("cancel-heard", 2));
    f20_a_kill_before_the_upstream_is_told_keeps_the_cancel: Plan::new("F20", End::Point("cancel-stored", 2));
    f21_a_kill_in_a_sweep_takes_no_live_row: Plan {
        keys: "ttl = \"3s\"\nttl_max = \"3s\"\nkeep_result_min = \"1s\"",
        ..Plan::new("F21", End::Point("sweeping", 4))
    };
    f22_a_kill_while_the_store_tidies_up_takes_no_row: Plan::new("F22", End::Point("checkpointing", 1));
    f23_three_kills_while_it_recovers_end_like_one: Plan::new("F23", End::Recovering);
    f24_a_kill_while_the_configuration_is_replaced_mixes_nothing: Plan::new("F24", End::Signal(Signal::HUP, "reloading"));
    f25_a_kill_at_the_beginning_of_a_drain_loses_nothing: Plan::new("F25", End::Signal(Signal::TERM, "draining"));
    f25_a_drain_that_is_cut_short_loses_nothing: Plan::new("F25", End::Drained);
    f54_what_a_failing_store_refused_is_sent_by_no_later_life: Plan::new("F54", End::Doubted(10));
    f59_a_process_that_is_stopped_for_a_while_loses_nothing: Plan::new("F59", End::Paused);
}

/// The judge itself: with the commit after the handle instead of before it, every run breaks L1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handle_that_is_sent_before_its_row_is_durable_is_detected() {
    let plan = Plan { sabotage: Some("handle-before-commit"), ..Plan::new("sabotage", End::Handed(4)) };
    let outcomes = run(plan).await;
    assert!(outcomes.len() as u64 >= count());
    for (seed, outcome) in outcomes {
        let tally = outcome.unwrap_or_else(|error| panic!("KILL_SEED={seed} {error}"));
        assert!(tally.violations.iter().any(|found| found.law == "L1"), "KILL_SEED={seed} {:?}", tally.violations);
    }
}
