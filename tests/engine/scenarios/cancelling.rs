//! `tasks/cancel` in every phase: the state is final, the upstream gets exactly one cancel, permits are free again.

use std::time::Duration;

use serde_json::{Value, json};
use taskgate::task::{Phase, Principal, TaskMode};

use super::script::{Happens, Saw, Script};
use super::store_faults::{Method, StoreFault};
use super::world::{Ask, GRACE, Rules, World, millis, seconds};

/// Cancels and checks that the acknowledgement is empty (EXT-11, EXT-44).
async fn cancel(world: &World, id: &str) {
    let answer = world.send(&Ask::task("tasks/cancel", id)).await;
    assert_eq!(answer.status, 200);
    let result = answer.json().await["result"].take();
    let members: Vec<_> = result.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!((members, &result["resultType"]), (vec!["_meta", "resultType"], &json!("complete")));
}

#[track_caller]
fn check_cancelled(task: &Value) {
    assert_eq!(task["status"], "cancelled");
    // EXT-25, EXT-32: no outcome beside it.
    assert!(task.get("result").is_none() && task.get("error").is_none(), "{task}");
}

/// One task that is cancelled after `wait`; `told` is the number of cancels at the upstream.
async fn check(rules: Rules, script: Script, wait: Duration, told: usize) {
    let world = World::with(rules, script);
    let id = world.handle(&Ask::call()).await;
    tokio::time::sleep(wait).await;
    let before = world.age();
    cancel(&world, &id).await;
    check_cancelled(&world.get(&id).await);
    assert_eq!(world.age(), before, "a cancel does not wait for the upstream");
    cancel(&world, &id).await;
    tokio::time::sleep(seconds(600)).await;
    check_cancelled(&world.get(&id).await);
    assert_eq!(world.upstream.cancels(), told);
    let (begun, let_go) = world.upstream.saw().iter().fold((0, 0), |(begun, let_go), saw| match saw {
        Saw::Begin { .. } => (begun + 1, let_go),
        Saw::Drop(_) => (begun, let_go + 1),
        Saw::Answer { .. } | Saw::Cancel(_) | Saw::Resume { .. } => (begun, let_go),
    });
    assert_eq!(let_go, told, "of {begun} calls");
    world.is_idle().await;
}

/// EXT-20, EXT-74, B126, T-07.
#[tokio::test(start_paused = true)]
async fn a_cancel_while_the_call_runs_tells_the_upstream_once() {
    check(Rules::default(), Script::silent(), seconds(3), 1).await;
    check(Rules::mode(TaskMode::Always), Script::silent(), seconds(3), 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_does_not_wait_for_an_upstream_that_is_slow_to_hear_it() {
    let slow = Script { cancel_takes: seconds(5), ..Script::silent() };
    check(Rules::default(), slow, seconds(3), 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_while_the_call_begins_sends_nothing() {
    let slow = Script { begins_after: seconds(60), ..Script::returns(seconds(1), "late") };
    check(Rules::mode(TaskMode::Always), slow.clone(), seconds(3), 0).await;
    check(Rules::default(), slow, seconds(3), 0).await;
}

/// A task that waits for its slot is cancelled without the upstream ever hearing of it.
#[tokio::test(start_paused = true)]
async fn a_cancel_while_the_task_is_queued_sends_nothing() {
    let rules = Rules { in_flight_max: 1, ..Rules::mode(TaskMode::Always) };
    let world = World::with(rules, Script::returns(seconds(60), "done"));
    let first = world.handle(&Ask::call()).await;
    let second = world.handle(&Ask::call()).await;
    let third = world.handle(&Ask::call()).await;
    cancel(&world, &second).await;
    check_cancelled(&world.get(&second).await);
    assert_eq!(world.settled(&first).await["status"], "completed");
    assert_eq!(world.settled(&third).await["status"], "completed");
    check_cancelled(&world.get(&second).await);
    assert_eq!((world.upstream.calls().len(), world.upstream.cancels()), (2, 0));
    world.is_idle().await;
}

/// L6: its slot is there and it is about to be sent, but the cancel is stored first.
#[tokio::test(start_paused = true)]
async fn a_cancel_that_overtakes_the_dispatch_sends_nothing() {
    let rules = Rules { in_flight_max: 1, ..Rules::mode(TaskMode::Always) };
    let world = World::with(rules, Script::silent());
    let place = world.permits.try_acquire(&Principal::new("another")).unwrap();
    let id = world.handle(&Ask::call()).await;
    let release = world.store.hold_next_replace();
    drop(place);
    tokio::time::sleep(millis(1)).await;
    assert_eq!(world.store.replaced(), 1, "the dispatch is on its way");
    cancel(&world, &id).await;
    release.send(()).unwrap();
    world.is_idle().await;
    check_cancelled(&world.get(&id).await);
    assert_eq!(world.upstream.saw(), []);
}

/// L6: its row was made with its place, so it says that the call may have been sent; the cancel comes before it is.
#[tokio::test(start_paused = true)]
async fn a_cancel_between_the_row_of_a_call_with_a_place_and_its_first_byte_sends_nothing() {
    let world = World::with(Rules::mode(TaskMode::Always), Script::silent());
    world.store.hold_returns();
    let client = world.client(&Ask::call());
    tokio::time::sleep(millis(1)).await;
    let [key] = world.store.unsettled().await.try_into().unwrap();
    assert_eq!(world.task(&key).await.phase, Phase::Working);
    world.engine.cancel(&key).await.unwrap();
    world.store.returns.add_permits(1);
    let id = client.await.unwrap().json().await["result"]["taskId"].as_str().unwrap().to_owned();
    world.is_idle().await;
    check_cancelled(&world.get(&id).await);
    assert_eq!(world.upstream.saw(), []);
}

/// A call was written, and its runner has not learned that when the cancel comes.
#[tokio::test(start_paused = true)]
async fn an_upstream_that_may_have_seen_a_call_is_told_of_its_cancel() {
    for (is_seen_at_once, cancels) in [(true, 1), (false, 0)] {
        let script = Script { begins_after: seconds(1), is_seen_at_once, ..Script::silent() };
        let world = World::with(Rules::mode(TaskMode::Always), script);
        let id = world.handle(&Ask::call()).await;
        world.upstream.sees(&Saw::Begin { call: 0, rows: 1 }).await;
        cancel(&world, &id).await;
        check_cancelled(&world.get(&id).await);
        world.is_idle().await;
        assert_eq!(world.upstream.cancels(), cancels, "{:?}", world.upstream.saw());
    }
}

/// Who finds a place free holds it from the insert on, and gives it back where there is no row.
#[tokio::test(start_paused = true)]
async fn a_place_whose_row_is_not_stored_is_free_again() {
    let rules = Rules { in_flight_max: 1, ..Rules::mode(TaskMode::Always) };
    let world = World::with(rules, Script::returns(seconds(1), "done"));
    world.store.faults.strike(Method::Insert, StoreFault::Fails, 1);
    assert!(world.send(&Ask::call()).await.json().await["error"].is_object());
    let id = world.handle(&Ask::call()).await;
    assert_eq!(world.settled(&id).await["status"], "completed");
    world.is_idle().await;
}

/// EXT-71, B126, T-06.
#[tokio::test(start_paused = true)]
async fn a_cancel_of_a_settled_task_is_acknowledged_and_changes_nothing() {
    for (script, status) in [
        (Script::returns(seconds(3), "done"), "completed"),
        (Script::of([(seconds(3), Happens::Faults(-32000, "no"))]), "failed"),
    ] {
        let world = World::with(Rules::default(), script);
        let id = world.handle(&Ask::call()).await;
        let settled = world.settled(&id).await;
        assert_eq!(settled["status"], status);
        for _ in 0..2 {
            cancel(&world, &id).await;
            assert_eq!(world.get(&id).await, settled);
        }
        assert_eq!(world.upstream.cancels(), 0);
        world.is_idle().await;
    }
}

/// The result was decided on, but the cancel is stored before it (L2, L6).
#[tokio::test(start_paused = true)]
async fn late_result_after_cancel_is_dropped() {
    let world = World::with(Rules::default(), Script::returns(seconds(3), "late"));
    let id = world.handle(&Ask::call()).await;
    let release = world.store.hold_next_replace();
    tokio::time::sleep_until(world.started + seconds(4)).await;
    assert_eq!(world.store.replaced(), 1, "the result is on its way");
    cancel(&world, &id).await;
    let cancelled = world.get(&id).await;
    check_cancelled(&cancelled);
    release.send(()).unwrap();
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!(world.get(&id).await, cancelled);
    world.is_idle().await;
}

/// The other order: the cancel was decided on, but the result is stored before it.
#[tokio::test(start_paused = true)]
async fn late_cancel_after_the_result_is_acknowledged_and_changes_nothing() {
    let world = World::with(Rules::default(), Script::returns(seconds(4), "done"));
    let id = world.handle(&Ask::call()).await;
    let release = world.store.hold_next_replace();
    let late = world.client(&Ask::task("tasks/cancel", &id));
    world.upstream.sees(&Saw::Drop(0)).await;
    let completed = world.get(&id).await;
    assert_eq!(completed["status"], "completed");
    release.send(()).unwrap();
    assert_eq!(late.await.unwrap().json().await["result"]["resultType"], "complete");
    assert_eq!(world.get(&id).await, completed);
    assert_eq!(world.upstream.cancels(), 0);
    world.is_idle().await;
}

/// Both at the same moment: the first one is final, and every client reads the same from then on.
#[tokio::test(start_paused = true)]
async fn a_cancel_that_races_the_result_leaves_one_final_state() {
    for lead in [millis(0), millis(1)] {
        for cancel_first in [true, false] {
            let world = World::with(Rules::default(), Script::returns(GRACE + seconds(1), "done"));
            let id = world.handle(&Ask::call()).await;
            let moment = world.started + GRACE + seconds(1);
            tokio::time::sleep_until(if cancel_first { moment - lead } else { moment + lead }).await;
            cancel(&world, &id).await;
            let first_read = world.get(&id).await;
            tokio::time::sleep(seconds(5)).await;
            assert_eq!(world.get(&id).await, first_read);
            if lead > Duration::ZERO {
                assert_eq!(first_read["status"], if cancel_first { "cancelled" } else { "completed" });
            }
            world.is_idle().await;
        }
    }
}

/// EXT-46, B102: leaving and `notifications/cancelled` are for requests; a task only ends by `tasks/cancel`.
#[tokio::test(start_paused = true)]
async fn a_cancelled_notification_does_nothing_to_a_task() {
    let world = World::with(Rules::default(), Script::returns(seconds(10), "done"));
    let id = world.handle(&Ask::call().id("the-call")).await;
    for params in [json!({ "requestId": "the-call" }), json!({ "requestId": id, "taskId": id })] {
        let answer = world.send(&Ask::new("notifications/cancelled", params).notification()).await;
        assert_eq!(answer.status, 202);
    }
    assert_eq!(world.settled(&id).await["status"], "completed");
    assert_eq!(world.upstream.cancels(), 0);
}

/// Waiters are woken by each change, and only by changes.
#[tokio::test(start_paused = true)]
async fn watchers_of_a_task_are_woken_by_its_changes_alone() {
    let chatty = [(seconds(3), Happens::Progress(1.0, "one"))];
    let world = World::with(Rules::default(), Script::of(chatty));
    let mut stream = world.start();
    let Some(taskgate::engine::CallEvent::Created(task)) = stream.next().await else { panic!("no handle") };
    let mut watcher = world.engine.watchers().watch(&task.key).unwrap();
    watcher.changed().await;
    assert_eq!(world.age(), seconds(3));
    assert_eq!(world.task(&task.key).await.status_message.as_deref(), Some("one"));
    let quiet = tokio::time::timeout(seconds(60), watcher.changed()).await;
    assert!(quiet.is_err(), "nothing happened, but the watcher woke");
    let (cancelled, ()) = tokio::join!(world.engine.cancel(&task.key), watcher.changed());
    assert!(!cancelled.unwrap().was_settled);
    assert!(world.engine.cancel(&task.key).await.unwrap().was_settled);
}
