//! Shutting down: no new tasks, calls in progress are waited for, and not for ever.

use serde_json::json;
use taskgate::task::{Reason, TaskMode};

use super::bridged::Caller;
use super::rounds::{again, check_done, elicits, heard, modern, result_of, returns, round};
use super::script::Script;
use super::world::{Ask, Rules, World, millis, seconds};

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_calls_in_progress_whether_plain_or_task() {
    let world = World::with(Rules::default(), Script::returns(seconds(20), "done"));
    let id = world.handle(&Ask::call()).await;
    let plain = world.client(&Ask::call().without_extension());
    tokio::time::sleep(millis(1)).await;
    assert_eq!(world.engine.drain(seconds(600)).await, 0);
    assert_eq!(world.age(), seconds(22) + millis(0), "as long as the last of them");
    assert_eq!(world.get(&id).await["status"], "completed", "polls are answered still");
    assert_eq!(plain.await.unwrap().events().await.last().unwrap().1["result"]["resultType"], "complete");
}

#[tokio::test(start_paused = true)]
async fn a_drain_is_bounded_and_says_how_many_calls_it_let_go() {
    let world = World::with(Rules::default(), Script::silent());
    for _ in 0..3 {
        world.handle(&Ask::call()).await;
    }
    let before = world.age();
    assert_eq!(world.engine.drain(seconds(30)).await, 3);
    assert_eq!(world.age() - before, seconds(30));
}

/// The next process decides about tasks; a client that waits for an answer gets an error, since no other process will answer it.
#[tokio::test(start_paused = true)]
async fn calls_end_with_the_gateway_and_no_task_does() {
    for (reason, told) in [(Reason::GatewayRestart, "gateway_restart"), (Reason::StoreLost, "store_lost")] {
        let world = World::with(Rules::default(), Script::silent());
        let id = world.handle(&Ask::call()).await;
        let plain = world.client(&Ask::call().without_extension());
        tokio::time::sleep(millis(1)).await;
        assert_eq!(world.engine.drain(seconds(30)).await, 2);
        world.engine.end_calls(reason);
        // A second end of the calls does not change their reason.
        world.engine.end_calls(Reason::GatewayRestart);
        let events = plain.await.unwrap().events().await;
        let data = &events.last().unwrap().1["error"]["data"];
        assert_eq!(*data, json!({ "source": "gateway", "reason": told, "executed": "unknown" }));
        assert_eq!(world.engine.drain(seconds(1)).await, 0, "no runner is left");
        assert_eq!(world.get(&id).await["status"], "working", "the row is unchanged");
    }
}

#[tokio::test(start_paused = true)]
async fn no_call_begins_during_a_drain_and_tasks_are_told_of_all_along() {
    for mode in [TaskMode::Always, TaskMode::Auto] {
        let world = World::with(Rules::mode(mode), Script::returns(seconds(5), "done"));
        let id = world.handle(&Ask::call()).await;
        assert_eq!(world.engine.drain(seconds(1)).await, 1, "it runs on");
        let answer = world.send(&Ask::call()).await;
        assert_eq!(answer.status, 503, "{mode:?}");
        let data = answer.json().await["error"]["data"].take();
        assert_eq!(data, json!({ "source": "gateway", "reason": "draining", "executed": "no" }));
        assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
        assert_eq!((world.upstream.calls().len(), world.store.inserted()), (1, 1), "{mode:?}");
    }
}

/// GW-04: clients with a session keep it.
#[tokio::test(start_paused = true)]
async fn a_sessions_late_call_is_an_error_under_200() {
    let world = World::with(Rules::default(), Script::returns(seconds(5), "done"));
    let caller = Caller::open(&world, json!({})).await;
    world.engine.drain(seconds(1)).await;
    let late = caller.post(json!({"id": 1, "method": "tools/call", "params": {"name": "work"}})).await;
    assert_eq!(late.status, 200);
    assert_eq!(late.json().await["error"]["data"]["reason"], "draining");
    let ping = caller.post(json!({"id": 2, "method": "ping"})).await;
    assert!(ping.json().await["result"].is_object(), "everything else is served");
    assert_eq!(world.upstream.calls().len(), 0);
}

/// A call that waits for its client's answer gets it: else it would hold up the drain to its end.
#[tokio::test(start_paused = true)]
async fn a_held_call_is_answered_and_ends_during_a_drain() {
    let world = World::with(Rules::mode(TaskMode::Never), Script::of([elicits("a", 1), heard(1), returns(2)]));
    let asked = round(&result_of(&world, &modern()).await);
    assert_eq!(world.engine.drain(seconds(1)).await, 1, "it waits");
    check_done(&result_of(&world, &again(&modern(), &asked, &["r0"])).await);
    assert_eq!(world.engine.drain(seconds(1)).await, 0);
}

/// So does one that asks only then.
#[tokio::test(start_paused = true)]
async fn a_held_call_asks_its_client_during_a_drain() {
    let world = World::with(Rules::mode(TaskMode::Never), Script::of([elicits("a", 5), heard(1), returns(6)]));
    let call = modern();
    let (asked, left) = tokio::join!(result_of(&world, &call), async {
        tokio::time::sleep(seconds(1)).await;
        world.engine.drain(seconds(10)).await
    });
    assert_eq!(left, 1, "it waits");
    check_done(&result_of(&world, &again(&call, &round(&asked), &["r0"])).await);
    assert_eq!(world.engine.drain(seconds(1)).await, 0);
}
