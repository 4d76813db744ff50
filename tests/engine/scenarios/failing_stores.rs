//! Stores that fail, are slow, or report a failure of an operation that they did: no client gets a wrong answer, and no
//! acknowledged change is lost.

use std::time::Duration;

use serde_json::{Value, json};
use taskgate::store::TaskStore as _;
use taskgate::task::{Principal, Reason, TaskMode};
use tokio::time::timeout;

use super::script::{Happens, Saw, Script, result};
use super::store_faults::{Method, StoreFault};
use super::unmarked::{Trouble, key};
use super::world::{Ask, Rules, World, millis, seconds};

const EACH: [StoreFault; 3] = [StoreFault::Fails, StoreFault::AppliesAndFails, StoreFault::FailsUnsure];
/// More than any test uses.
const ALWAYS: usize = 1_000_000;

fn returns(after: u64) -> Script {
    Script::of([(seconds(after), Happens::Returns(result("done")))])
}

/// Asks after a second, returns once it was answered.
fn asks() -> Script {
    Script::of([
        (seconds(1), Happens::Elicits("a")),
        (seconds(0), Happens::Heard(1)),
        (seconds(1), Happens::Returns(result("done"))),
    ])
}

fn declaring(ask: Ask) -> Ask {
    let extension = json!({ "io.modelcontextprotocol/tasks": {} });
    ask.declaring(json!({ "elicitation": { "form": {} }, "extensions": extension }))
}

async fn answer(world: &World, id: &str, key: &str) -> Value {
    let responses = json!({ key: { "action": "accept", "content": {} } });
    let ask = declaring(Ask::task("tasks/update", id)).member("inputResponses", responses);
    world.send(&ask).await.json().await
}

fn answers(world: &World) -> usize {
    world.upstream.saw().iter().filter(|saw| matches!(saw, Saw::Answer { .. })).count()
}

/// L4, EXT-13: a handle that was not sent is not needed, and its row does not stay.
#[tokio::test(start_paused = true)]
async fn a_row_that_is_not_confirmed_is_no_task_and_nothing_is_sent() {
    for fault in EACH {
        let world = World::with(Rules::mode(TaskMode::Always), returns(1));
        world.store.faults.strike(Method::Insert, fault, 1);
        let refused = world.send(&Ask::call()).await;
        assert_eq!(refused.status, 503, "{fault:?}");
        let data = refused.json().await["error"]["data"].take();
        assert_eq!((&data["reason"], &data["executed"]), (&json!("store_failed"), &json!("no")));
        assert_eq!((world.upstream.calls().len(), world.store.usage().tasks), (0, 0), "{fault:?}");
        world.is_idle().await;
    }
}

/// L4, decision 1: a call that a client was told was not sent is sent by no later process. If it is unknown whether the
/// row is there, the error says so, and has a status at which clients do not retry.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_refused_as_not_sent_is_sent_by_no_later_process() {
    let fails = Some(StoreFault::Fails);
    let named = || Ask::call().saying("io.taskgate/idempotency-key", "k");
    for (insert, settle, executed, later_calls) in [
        (StoreFault::Fails, None, "no", 0),
        (StoreFault::Fails, fails, "no", 0),
        (StoreFault::AppliesAndFails, None, "no", 0),
        (StoreFault::AppliesAndFails, fails, "unknown", 1),
        (StoreFault::AppliesAndFails, Some(StoreFault::AppliesAndFails), "unknown", 0),
    ] {
        for (ask, is_queued) in [(Ask::call(), true), (named(), true), (Ask::call(), false), (named(), false)] {
            let rules = Rules { durable: true, in_flight_max: 1, ..Rules::mode(TaskMode::Always) };
            let world = World::with(rules, returns(1));
            let place = is_queued.then(|| world.permits.try_acquire(&Principal::new("another")).unwrap());
            world.store.faults.strike(Method::Insert, insert, 1);
            if let Some(fault) = settle {
                world.store.faults.strike(Method::SettleDoubt, fault, ALWAYS);
            }
            let refused = world.send(&ask).await;
            let status = refused.status;
            let data = refused.json().await["error"]["data"].take();
            let case = format!("{insert:?} {settle:?} {is_queued}");
            assert_eq!((&data["reason"], &data["executed"]), (&json!("store_failed"), &json!(executed)), "{case}");
            assert_eq!(status, if executed == "no" { 503 } else { 200 }, "{case}");
            assert!(world.upstream.calls().is_empty(), "{case}");
            drop(place);
            let next = world.next_life();
            next.store.faults.heal();
            next.recover().await;
            tokio::time::sleep(seconds(5)).await;
            // A row that was inserted with its permit may have been sent, as far as a later process knows.
            assert_eq!(next.upstream.calls().len(), if is_queued { later_calls } else { 0 }, "{case}");
        }
    }
}

/// A row with an unknown insert that another replica has shown stays true: its maker continues with it, or ends it as not sent.
#[tokio::test(start_paused = true)]
async fn a_row_in_doubt_that_others_have_seen_is_run_or_ended() {
    for is_soon_known in [true, false] {
        let rules = Rules { durable: true, ..Rules::mode(TaskMode::Always) };
        let world = World::with(rules, returns(1));
        world.store.faults.strike(Method::Insert, StoreFault::AppliesAndFails, 1);
        let (fault, times) = if is_soon_known { (StoreFault::Delays(millis(50)), 1) } else { (StoreFault::Fails, 4) };
        world.store.faults.strike(Method::SettleDoubt, fault, times);
        let ask = Ask::call();
        let (asked, seen) = tokio::join!(world.send(&ask), async {
            tokio::time::sleep(millis(10)).await;
            world.store.are_seen_by_others().await
        });
        let status = asked.status;
        let answer = asked.json().await;
        let [key] = <[_; 1]>::try_from(seen).unwrap();
        let id = key.id.to_string();
        if is_soon_known {
            assert_eq!(answer["result"]["taskId"], json!(id), "{answer}");
        } else {
            assert_eq!((status, &answer["error"]["data"]["executed"]), (200, &json!("unknown")), "{answer}");
        }
        let task = world.settled(&id).await;
        assert_eq!(task["status"], if is_soon_known { "completed" } else { "failed" }, "{task}");
        assert_eq!(world.upstream.calls().len(), usize::from(is_soon_known));
        if !is_soon_known {
            assert_eq!(task["error"]["data"]["executed"], "no", "{task}");
        }
        world.is_idle().await;
    }
}

/// T-27: the row of a call whose client disconnected is removed after any outage of the store, and its upstream gets a cancel at once.
#[tokio::test(start_paused = true)]
async fn a_row_without_a_handle_is_removed_when_the_store_works_again() {
    let world = World::with(Rules::mode(TaskMode::Always), returns(9));
    world.store.hold_returns();
    world.store.faults.strike(Method::Remove, StoreFault::Fails, 20);
    let stream = world.start();
    tokio::time::sleep(seconds(1)).await;
    drop(stream);
    world.store.returns.add_permits(1);
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(world.store.usage().tasks, 1, "it cannot be dropped yet");
    tokio::time::sleep(seconds(200)).await;
    assert_eq!((world.upstream.calls().len(), world.store.usage().tasks), (0, 0));
    world.is_idle().await;
}

/// The same at the end of the grace: the call is held, and its result is not lost.
#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_become_a_task_is_held() {
    for fault in EACH {
        let world = World::with(Rules::mode(TaskMode::Auto), returns(9));
        world.store.faults.strike(Method::Insert, fault, 1);
        let answer = world.send(&Ask::call()).await.json().await;
        assert_eq!(answer["result"]["content"][0]["text"], "done", "{fault:?} {answer}");
        assert_eq!((world.upstream.calls().len(), world.store.usage().tasks), (1, 0), "{fault:?}");
        world.is_idle().await;
    }
}

/// L8: an outcome waits for its store, whether the store fails for a moment or for long.
#[tokio::test(start_paused = true)]
async fn an_outcome_outlasts_a_store_that_fails() {
    for (fault, times) in [
        (StoreFault::Fails, 1),
        (StoreFault::Fails, 40),
        (StoreFault::NoRoom, 1),
        (StoreFault::NoRoom, 40),
        (StoreFault::AppliesAndFails, 1),
    ] {
        let world = World::with(Rules::mode(TaskMode::Always), returns(5));
        let id = world.handle(&Ask::call()).await;
        tokio::time::sleep(seconds(4)).await;
        world.store.faults.strike(Method::Replace, fault, times);
        let task = world.settled(&id).await;
        assert_eq!(task["result"]["content"][0]["text"], "done", "{fault:?} {times} {task}");
        world.is_idle().await;
    }
}

/// L5: an acknowledged answer reaches the upstream once; one that was not acknowledged does not.
#[tokio::test(start_paused = true)]
async fn an_answer_reaches_the_upstream_once_however_the_store_takes_it() {
    for fault in EACH {
        let world = World::with(Rules::mode(TaskMode::Always), asks());
        let id = world.handle(&declaring(Ask::call())).await;
        tokio::time::sleep(seconds(2)).await;
        let task = world.send(&declaring(Ask::task("tasks/get", &id))).await.json().await["result"].take();
        let key = task["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        world.store.faults.strike(Method::Replace, StoreFault::Fails, ALWAYS);
        let refused = answer(&world, &id, &key).await;
        assert_eq!(refused["error"]["data"]["reason"], "store_failed", "{refused}");
        assert_eq!(answers(&world), 0);
        world.store.faults.strike(Method::Replace, fault, 1);
        let taken = answer(&world, &id, &key).await;
        assert!(taken["result"].is_object(), "{fault:?} {taken}");
        assert_eq!(world.settled(&id).await["status"], "completed");
        assert_eq!(answers(&world), 1, "{fault:?}");
        world.is_idle().await;
    }
}

/// L5: an answer that was acknowledged just before the store became unavailable waits for it, and reaches the upstream once.
#[tokio::test(start_paused = true)]
async fn l5_an_answer_that_was_accepted_before_the_store_went_away_is_handed_over_once_it_is_back() {
    for trouble in Trouble::EACH {
        let (world, id) = answered_before(trouble).await;
        tokio::time::sleep(seconds(100)).await;
        assert_eq!(answers(&world), 0, "{trouble:?}: nothing is handed over without a mark");
        world.store.faults.heal();
        let task = timeout(seconds(60), world.settled(&id)).await.unwrap_or_else(|_| panic!("{trouble:?}: it ends"));
        assert_eq!(task["result"]["content"][0]["text"], "done", "{trouble:?} {task}");
        assert_eq!(answers(&world), 1, "{trouble:?}");
        world.is_idle().await;
    }
}

/// L6: with any result of the mark, no answer is delivered once a cancel is acknowledged.
#[tokio::test(start_paused = true)]
async fn l6_an_answer_that_waits_for_the_store_is_not_handed_over_after_a_cancel() {
    let mut cancelled = Vec::new();
    for trouble in Trouble::EACH {
        let (world, id) = answered_before(trouble).await;
        tokio::time::sleep(seconds(10)).await;
        world.store.faults.heal();
        world.engine.cancel(&key(&id)).await.unwrap();
        let handed_over = answers(&world);
        tokio::time::sleep(seconds(60)).await;
        assert_eq!(answers(&world), handed_over, "{trouble:?}");
        let status = if handed_over == 0 { "cancelled" } else { "completed" };
        assert_eq!(world.get(&id).await["status"], status, "{trouble:?}");
        cancelled.extend((handed_over == 0).then_some(trouble));
        world.is_idle().await;
    }
    // Where the next try comes first, the answer is handed over before the cancel.
    assert!(cancelled.len() >= 3, "{cancelled:?}");
}

/// F76: the end of all calls ends one with a waiting answer, too.
#[tokio::test(start_paused = true)]
async fn f76_an_answer_that_waits_for_the_store_holds_up_no_end_of_the_calls() {
    for trouble in Trouble::EACH {
        let (world, _) = answered_before(trouble).await;
        assert_eq!(world.engine.drain(seconds(10)).await, 1, "{trouble:?}: a call that was sent is waited for");
        world.engine.end_calls(Reason::GatewayRestart);
        assert_eq!(world.engine.drain(seconds(1)).await, 0, "{trouble:?}");
        assert_eq!(answers(&world), 0, "{trouble:?}");
    }
}

/// The time that a call has to run goes on.
#[tokio::test(start_paused = true)]
async fn a_call_whose_answer_waits_for_the_store_ends_at_its_deadline() {
    for trouble in Trouble::EACH {
        let (world, id) = answered_before(trouble).await;
        tokio::time::sleep(DEADLINE).await;
        assert_eq!((answers(&world), world.upstream.cancels()), (0, 1), "{trouble:?}");
        world.store.faults.heal();
        let task = world.settled(&id).await;
        assert_eq!(task["error"]["data"]["reason"], "deadline_exceeded", "{trouble:?} {task}");
        assert_eq!(answers(&world), 0, "{trouble:?}");
        world.is_idle().await;
    }
}

/// Longer than the store is unavailable in any of these tests, but for the one of the deadline itself.
const DEADLINE: Duration = seconds(300);

/// A task whose answer was accepted; the store's trouble begins before it is handed over.
async fn answered_before(trouble: Trouble) -> (World, String) {
    let rules = Rules { durable: true, deadline: DEADLINE, ..Rules::mode(TaskMode::Always) };
    let world = World::with(rules, asks());
    let id = world.handle(&declaring(Ask::call())).await;
    tokio::time::sleep(seconds(2)).await;
    let task = world.send(&declaring(Ask::task("tasks/get", &id))).await.json().await["result"].take();
    let key = task["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    world.store.faults.strike(Method::Replace, StoreFault::Delays(seconds(1)), 1);
    let (taken, ()) = tokio::join!(answer(&world, &id, &key), async {
        tokio::time::sleep(millis(500)).await;
        trouble.strike(&world);
    });
    assert!(taken["result"].is_object(), "{trouble:?} {taken}");
    (world, id)
}

/// L6: an acknowledged cancel holds, and reaches the upstream.
#[tokio::test(start_paused = true)]
async fn a_cancel_holds_however_the_store_takes_it() {
    for fault in EACH {
        let world = World::with(Rules::mode(TaskMode::Always), returns(60));
        let id = world.handle(&Ask::call()).await;
        tokio::time::sleep(seconds(1)).await;
        world.store.faults.strike(Method::Replace, StoreFault::Fails, ALWAYS);
        let refused = world.send(&Ask::task("tasks/cancel", &id)).await.json().await;
        assert_eq!(refused["error"]["data"]["reason"], "store_failed", "{refused}");
        world.store.faults.heal();
        assert_eq!(world.get(&id).await["status"], "working");
        world.store.faults.strike(Method::Replace, fault, 1);
        let taken = world.send(&Ask::task("tasks/cancel", &id)).await.json().await;
        assert!(taken["result"].is_object(), "{fault:?} {taken}");
        assert_eq!(world.get(&id).await["status"], "cancelled", "{fault:?}");
        world.upstream.sees(&Saw::Cancel(0)).await;
        world.is_idle().await;
    }
}

/// L1: a store that cannot be read is no store without the task.
#[tokio::test(start_paused = true)]
async fn a_task_that_cannot_be_read_is_not_unknown() {
    let world = World::with(Rules::mode(TaskMode::Always), returns(1));
    let id = world.handle(&Ask::call()).await;
    world.settled(&id).await;
    world.store.faults.strike(Method::Load, StoreFault::Fails, 1);
    let failed = world.send(&Ask::task("tasks/get", &id)).await;
    assert_eq!(failed.status, 503);
    assert_eq!(failed.json().await["error"]["data"]["reason"], "store_failed");
    assert_eq!(world.get(&id).await["status"], "completed");
}

/// F63: who waits for the store waits alone.
#[tokio::test(start_paused = true)]
async fn a_slow_store_delays_no_other_task() {
    let world = World::with(Rules::mode(TaskMode::Always), returns(60));
    let (slow, other) = (world.handle(&Ask::call()).await, world.handle(&Ask::call()).await);
    tokio::time::sleep(seconds(1)).await;
    world.store.faults.strike(Method::Replace, StoreFault::Delays(seconds(5)), 1);
    let cancelling = world.client(&Ask::task("tasks/cancel", &slow));
    tokio::time::sleep(millis(10)).await;
    let began = world.age();
    assert_eq!(world.get(&other).await["status"], "working");
    assert_eq!(world.get(&slow).await["status"], "working", "a change that is not stored yet is not shown");
    assert!(world.age() - began < millis(10));
    assert!(cancelling.await.unwrap().at >= seconds(5));
    assert_eq!(world.get(&slow).await["status"], "cancelled");
}
