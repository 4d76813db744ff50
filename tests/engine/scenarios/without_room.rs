//! A store without room is an outage that passes, for all but new tasks; and a row that lost its runner gets another one.

use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use taskgate::answer_budget::AnswerPermit;
use taskgate::engine::recovery;
use taskgate::task::{Principal, TaskMode};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::script::{Resumes, Script};
use super::store_faults::{Method, StoreFault};
use super::waiting::{answer, asking, asks, ends, task};
use super::world::{Ask, Rules, World, millis, seconds};

/// More than any test uses.
const ALWAYS: usize = 1_000_000;

fn rules() -> Rules {
    Rules { durable: true, in_flight_max: 100, queue_max: 500, ..Rules::mode(TaskMode::Always) }
}

/// The disk is full: rows that are there can be read.
fn is_full(world: &World) {
    world.store.faults.strike(Method::Insert, StoreFault::NoRoom, ALWAYS);
    world.store.faults.strike(Method::Replace, StoreFault::NoRoom, ALWAYS);
}

fn data(answer: &Value) -> &Value {
    &answer["error"]["data"]
}

/// T1, L8: none of 200 tasks is lost or stays at work, in any state when the disk became full, and a cancel that came
/// meanwhile is kept.
#[tokio::test(start_paused = true)]
async fn l8_two_hundred_tasks_outlast_a_full_disk_and_a_cancel_is_kept() {
    const TASKS: usize = 200;
    // Half of them wait for their turn.
    let world = World::with(rules(), Script::returns(seconds(4), "done"));
    let mut ids = Vec::new();
    for _ in 0..TASKS {
        ids.push(world.handle(&Ask::call()).await);
    }
    tokio::time::sleep(seconds(1)).await;
    is_full(&world);
    let refused = world.send(&Ask::call()).await;
    assert_eq!(refused.status, 503);
    let refused = refused.json().await;
    assert_eq!(data(&refused), &json!({ "source": "gateway", "reason": "store_full", "executed": "no" }));
    let (cancelled, last) = (ids.remove(0), ids.pop().unwrap());
    let cancels = [&cancelled, &last].map(|id| world.client(&Ask::task("tasks/cancel", id)));
    tokio::time::sleep(seconds(8)).await;
    assert!(cancels.iter().all(|cancel| !cancel.is_finished()), "they wait");
    world.every_row_is_run().await;
    world.store.faults.heal();
    for cancel in cancels {
        assert!(cancel.await.unwrap().json().await["result"].is_object());
    }
    for id in &ids {
        let task = timeout(seconds(60), world.settled(id)).await.expect("it ends");
        assert_eq!(task["result"]["content"][0]["text"], "done", "{task}");
    }
    for id in [&cancelled, &last] {
        assert_eq!(world.get(id).await["status"], "cancelled");
    }
    world.is_idle().await;
}

/// L6: the order in which the two are retried once there is room does not matter.
#[tokio::test(start_paused = true)]
async fn l6_a_cancel_that_waits_for_room_goes_before_an_outcome_that_does() {
    for number in 0..80 {
        let world = World::with(rules(), Script::returns(seconds(4), "done"));
        let id = world.handle(&Ask::call()).await;
        is_full(&world);
        tokio::time::sleep(seconds(5)).await;
        let cancel = world.client(&Ask::task("tasks/cancel", &id));
        tokio::time::sleep(seconds(1) + millis(100 * number)).await;
        assert!(!cancel.is_finished(), "it waits");
        world.store.faults.heal();
        assert!(cancel.await.unwrap().json().await["result"].is_object());
        for _ in 0..20 {
            assert_eq!(world.get(&id).await["status"], "cancelled", "{number}");
            tokio::time::sleep(seconds(1)).await;
        }
        world.is_idle().await;
    }
}

/// L6: a cancel that was refused leaves the outcome as it is.
#[tokio::test(start_paused = true)]
async fn l6_an_outcome_is_stored_once_a_cancel_that_waited_before_it_is_refused() {
    let world = World::with(rules(), Script::returns(seconds(4), "done"));
    let id = world.handle(&Ask::call()).await;
    is_full(&world);
    tokio::time::sleep(seconds(5)).await;
    assert_eq!(world.send(&Ask::task("tasks/cancel", &id)).await.status, 503);
    world.store.faults.heal();
    assert_eq!(world.settled(&id).await["status"], "completed");
    world.is_idle().await;
}

/// A change that the store takes only after long is refused, and not made later.
#[tokio::test(start_paused = true)]
async fn a_change_waits_for_room_for_so_long_and_is_refused_then() {
    let world = World::with(rules(), Script::returns(seconds(300), "done"));
    let id = world.handle(&Ask::call()).await;
    is_full(&world);
    let refused = world.send(&Ask::task("tasks/cancel", &id)).await;
    assert!((seconds(20)..seconds(22)).contains(&world.age()), "{:?}", world.age());
    assert_eq!(refused.status, 503);
    assert_eq!(data(&refused.json().await)["reason"], "store_full");
    world.store.faults.heal();
    assert_eq!(world.settled(&id).await["status"], "completed");
    world.is_idle().await;
}

/// L5: an answer waits for room, and reaches the server once.
#[tokio::test(start_paused = true)]
async fn an_answer_waits_for_room() {
    let world = World::with(rules(), asks());
    let id = task(&world, Ask::call()).await;
    let keys = asking(&world, &id).await;
    is_full(&world);
    let healed = async {
        tokio::time::sleep(seconds(8)).await;
        world.store.faults.heal();
    };
    let (answered, ()) = tokio::join!(answer(&world, &id, &keys[0]), healed);
    assert!(answered["result"].is_object(), "{answered}");
    assert_eq!(ends(&world, &id).await["status"], "completed");
    assert_eq!(super::rounds::answers(&world).len(), 1);
    world.is_idle().await;
}

/// L9: the engine's law, and the net below it: a store that refuses even a fault leaves a row without a runner, which two looks find.
#[tokio::test(start_paused = true)]
async fn l9_a_row_that_lost_its_runner_is_taken_up_again() {
    let world = World::with(rules(), Script::returns(seconds(5), "done"));
    let id = world.handle(&Ask::call()).await;
    world.every_row_is_run().await;
    world.store.faults.strike(Method::Replace, StoreFault::Refuses, 2);
    let (engine, stop) = (std::sync::Arc::clone(&world.engine), world.ending.clone());
    let mut looking = JoinSet::new();
    looking.spawn(recovery::resume_rows_without_runner(engine, world.origins(), stop));
    tokio::time::sleep(seconds(6)).await;
    let found = world.engine.rows_without_runner().await.unwrap();
    assert_eq!(found.into_iter().map(|key| key.id.to_string()).collect::<Vec<_>>(), std::slice::from_ref(&id));
    tokio::time::sleep(seconds(60)).await;
    let task = world.get(&id).await;
    assert_eq!((&task["status"], &data(&task)["reason"]), (&json!("failed"), &json!("gateway_restart")), "{task}");
    assert_eq!(data(&task)["executed"], "unknown");
    assert_eq!(world.engine.unsettled_tasks("scripted"), 0, "it is counted once");
    world.is_idle().await;
    world.ending.cancel();
    timeout(millis(10), looking.join_all()).await.expect("it ends");
}

/// L9: a settled task with pending effects needs a runner, too.
#[tokio::test(start_paused = true)]
async fn f97_a_server_is_told_of_a_cancel_of_a_task_that_lost_its_runner() {
    let world = World::with(rules(), Script::returns(seconds(5), "done").resumed(Resumes::Follows));
    let id = world.handle(&Ask::call()).await;
    tokio::time::sleep(seconds(4)).await;
    world.store.faults.strike(Method::Replace, StoreFault::Refuses, 2);
    tokio::time::sleep(seconds(2)).await;
    assert!(world.send(&Ask::task("tasks/cancel", &id)).await.json().await["result"].is_object());
    assert_eq!((world.get(&id).await["status"].as_str(), world.upstream.cancels()), (Some("cancelled"), 0));
    assert_eq!(world.engine.rows_without_runner().await.unwrap().len(), 1);
    let (engine, stop) = (std::sync::Arc::clone(&world.engine), world.ending.clone());
    let mut looking = JoinSet::new();
    looking.spawn(recovery::resume_rows_without_runner(engine, world.origins(), stop));
    tokio::time::sleep(seconds(61)).await;
    assert_eq!(world.upstream.cancels(), 1);
    tokio::time::sleep(seconds(100)).await;
    assert_eq!(world.upstream.cancels(), 1, "once");
    world.every_row_is_run().await;
    world.is_idle().await;
    world.ending.cancel();
    looking.join_all().await;
}

/// L9: of the rows that recovery took over, those that it has not looked at yet wait for it.
#[tokio::test(start_paused = true)]
async fn l9_rows_that_recovery_has_in_hand_are_not_without_a_runner() {
    const TASKS: usize = 100;
    let rules = Rules { durable: true, ..Rules::mode(TaskMode::Always) };
    let world = World::with(rules, Script::returns(seconds(60), "done").resumed(Resumes::Follows));
    for _ in 0..TASKS {
        world.handle(&Ask::call()).await;
    }
    let world = world.next_life();
    world.store.pauses.store(true, Ordering::Relaxed);
    let looks = async {
        loop {
            world.every_row_is_run().await;
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = looks => unreachable!(),
        () = world.recover() => (),
    }
    world.store.pauses.store(false, Ordering::Relaxed);
    world.every_row_is_run().await;
    tokio::time::sleep(seconds(60)).await;
    world.is_idle().await;
}

/// A client that polls would take a refusal for the end of its task, so its poll waits for room, and the result is in memory once
/// there is.
#[tokio::test(start_paused = true)]
async fn a_poll_waits_for_room_for_its_result_and_is_refused_after_a_while() {
    static LARGE: LazyLock<String> = LazyLock::new(|| "x".repeat(1 << 20));
    let world = World::with(rules(), Script::returns(seconds(1), &LARGE));
    let id = world.handle(&Ask::call()).await;
    tokio::time::sleep(seconds(2)).await;
    let owner = Principal::local();
    let share = world.engine.limits().answers_to(&owner);
    let mut others = [AnswerPermit::default(), AnswerPermit::default()];
    for held in &mut others {
        share.grow(held, world.engine.limits().of(&owner).answer_bytes_max).await.unwrap();
    }
    let begun = world.age();
    let refused = world.send(&Ask::task("tasks/get", &id)).await;
    assert_eq!((refused.status, world.age() - begun), (429, seconds(20)));
    assert_eq!(data(&refused.json().await)["reason"], "too_much_unread");
    let waiting = world.client(&Ask::task("tasks/get", &id));
    tokio::time::sleep(seconds(10)).await;
    assert!(!waiting.is_finished());
    // A client that leaves takes nothing with it.
    let left = world.client(&Ask::task("tasks/get", &id));
    tokio::time::sleep(seconds(1)).await;
    left.abort();
    drop(others);
    let task = waiting.await.unwrap().json().await["result"].take();
    assert_eq!(task["status"], "completed");
    assert!(task["result"].to_string().contains(&*LARGE));
    assert_eq!(world.get(&id).await["status"], "completed");
}
