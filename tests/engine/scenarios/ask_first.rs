//! `early_input = "ask-first"`: first the questions, then the handle (GW-36).

use serde_json::json;
use taskgate::task::{EarlyInput, TaskMode};

use super::rounds::{
    EXTENSION, ROUND, accept, again, check_done, elicits, heard, modern, plain, result_of, returns, round,
};
use super::script::{Happens, Saw, Script};
use super::world::{Ask, GRACE, Rules, World, millis, seconds};

fn ask_first(mode: TaskMode) -> Rules {
    Rules { early_input: EarlyInput::AskFirst, ..Rules::mode(mode) }
}

/// EXT-14, EXT-43, GW-36: first the questions, then the handle; one row, one id, other keys.
#[tokio::test(start_paused = true)]
async fn ask_first_asks_before_the_handle_and_the_grace_begins_anew() {
    for mode in [TaskMode::Auto, TaskMode::Always, TaskMode::Required] {
        let script = Script::of([elicits("a", 1), heard(1), elicits("b", 20), heard(2), returns(25)]);
        let world = World::with(ask_first(mode), script);
        let first = world.send(&modern()).await;
        assert_eq!(first.at, seconds(1) + ROUND, "{mode:?}");
        let asked = round(&first.json().await["result"].take());
        let hidden = world.store.unsettled().await[0].clone();
        tokio::time::sleep(seconds(9)).await;
        let began = world.age();
        let second = world.send(&again(&modern(), &asked, &["r0"])).await;
        assert_eq!(second.at, began + GRACE, "{mode:?}");
        let handle = second.json().await["result"].take();
        assert_eq!((handle["resultType"].as_str(), handle.get("requestState")), (Some("task"), None), "EXT-73");
        let id = handle["taskId"].as_str().unwrap().to_owned();
        assert_eq!(id, hidden.id.to_string());
        // The same request once more is given the same handle.
        assert_eq!(result_of(&world, &again(&modern(), &asked, &["r0"])).await["taskId"], id.as_str());
        tokio::time::sleep(seconds(21) - world.age()).await;
        let get = Ask::task("tasks/get", &id).declaring(json!({ "elicitation": {}, "extensions": { EXTENSION: {} } }));
        let task = result_of(&world, &get).await;
        assert_eq!(task["inputRequests"].as_object().unwrap().keys().collect::<Vec<_>>(), ["r1"]);
        let update = Ask::task("tasks/update", &id).member("inputResponses", json!({ "r1": accept() }));
        assert_eq!(result_of(&world, &update).await["resultType"], "complete");
        assert_eq!(world.settled(&id).await["status"], "completed");
        assert_eq!(world.engine.permits_taken(), 0);
        world.is_idle().await;
    }
}

/// `auto` stays plain where the call is quick after its answers; `always` and `required` end in a handle.
#[tokio::test(start_paused = true)]
async fn ask_first_and_a_quick_call_end_as_their_mode_says() {
    for (mode, kind) in [(TaskMode::Auto, "complete"), (TaskMode::Always, "task"), (TaskMode::Required, "task")] {
        let world = World::with(ask_first(mode), Script::of([elicits("a", 1), heard(1), returns(1)]));
        let asked = round(&result_of(&world, &modern()).await);
        let ended = result_of(&world, &again(&modern(), &asked, &["r0"])).await;
        assert_eq!(ended["resultType"], kind, "{mode:?}");
        if kind == "task" {
            check_done(&world.settled(ended["taskId"].as_str().unwrap()).await["result"]);
        }
        world.is_idle().await;
    }
}

/// GW-36: no question, and the handle comes at the grace's end, `always` and `required` alike.
#[tokio::test(start_paused = true)]
async fn ask_first_without_a_question_hands_over_at_the_end_of_the_grace() {
    for mode in [TaskMode::Auto, TaskMode::Always, TaskMode::Required] {
        let world = World::with(ask_first(mode), Script::of([returns(10)]));
        let answer = world.send(&modern()).await;
        assert_eq!(answer.at, GRACE, "{mode:?}");
        let handle = answer.json().await["result"].take();
        check_done(&world.settled(handle["taskId"].as_str().unwrap()).await["result"]);
        let rows = if mode == TaskMode::Auto { 0 } else { 1 };
        assert_eq!(world.upstream.saw()[0], Saw::Begin { call: 0, rows }, "the row is there before the call");
        world.is_idle().await;
    }
}

/// EXT-02: a request that does not declare the extension gets no handle, after any earlier request.
#[tokio::test(start_paused = true)]
async fn ext02_a_retry_without_the_extension_is_answered_plainly() {
    for mode in [TaskMode::Auto, TaskMode::Always] {
        let world = World::with(ask_first(mode), Script::of([elicits("a", 1), heard(1), returns(10)]));
        let asked = round(&result_of(&world, &modern()).await);
        check_done(&result_of(&world, &again(&plain(), &asked, &["r0"])).await);
        world.is_idle().await;
    }
}

/// T-27: the client disconnects at the moment of its handle, which no client knows then.
#[tokio::test(start_paused = true)]
async fn t_27_a_revealed_task_that_no_client_took_is_dropped() {
    let world = World::with(ask_first(TaskMode::Always), Script::silent());
    assert!(tokio::time::timeout(GRACE - millis(1), world.sending(&modern())).await.is_err());
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!(world.upstream.cancels(), 1);
    world.is_idle().await;
}

/// A client that got its call as a plain one gets no handle for it, also if a permit becomes free meanwhile.
#[tokio::test(start_paused = true)]
async fn a_call_that_stays_plain_is_not_promoted_after_a_question() {
    let rules = Rules { tasks_max: 1, ..ask_first(TaskMode::Auto) };
    let world = World::choosing(rules, |call| match call.params.contains("first") {
        true => Script::of([returns(1)]),
        false => Script::of([elicits("a", 3), (seconds(3) + millis(10), Happens::Withdraws("a")), returns(10)]),
    });
    let first = world.client(&modern().arguments(json!({ "first": true })));
    tokio::time::sleep(millis(10)).await;
    check_done(&result_of(&world, &modern()).await);
    check_done(&first.await.unwrap().json().await["result"].take());
    world.is_idle().await;
}
