//! Split calls and calls with subtasks while the store is unavailable: messages between a task and those below it wait, too.

use serde_json::json;
use taskgate::engine::CallEvent;
use taskgate::task::{Outcome, Phase, Plan, Principal, Reason, TaskId, TaskKey};

use super::rounds::{answers, check_done, returns};
use super::script::{Happens, Resumes, Saw, Script};
use super::store_faults::{Method, StoreFault};
use super::unmarked::{Trouble, key};
use super::waiting::{DEADLINE, answer, asking, asks, ends, row, rules, task};
use super::world::{Ask, Rules, World, millis, seconds};

/// The fault at the answer to an element's question: of the store, or of the element's row alone (`None`).
fn element_troubles() -> impl Iterator<Item = Option<Trouble>> {
    Trouble::EACH.map(Some).into_iter().chain([None])
}

/// A split call one of whose elements asks; its answer was accepted, and the trouble begins before the element's row has it.
async fn answered_element(trouble: Option<Trouble>) -> (World, String) {
    let world = World::with(Rules { split: Some((2, 10)), ..rules() }, asks().resumed(Resumes::Follows));
    let id = task(&world, Ask::call().arguments(json!({ "items": [1] }))).await;
    let keys = asking(&world, &id).await;
    let child = row(&world, &key(&id)).await.unwrap().tree.children[0];
    world.store.faults.strike(Method::Replace, StoreFault::Delays(seconds(1)), 1);
    let (taken, ()) = tokio::join!(answer(&world, &id, &keys[0]), async {
        tokio::time::sleep(millis(500)).await;
        match trouble {
            Some(trouble) => trouble.strike(&world),
            None => *world.store.stuck.lock() = Some(TaskKey { id: child, ..key(&id) }),
        }
    });
    assert!(taken["result"].is_object(), "{trouble:?} {taken}");
    tokio::time::sleep(seconds(100)).await;
    assert_eq!(world.upstream.cancels(), 0, "{trouble:?}");
    (world, id)
}

fn heal(world: &World) {
    world.store.faults.heal();
    *world.store.stuck.lock() = None;
}

/// L5: an answer to an element's question waits until its row takes it, and arrives once: from a later process, too.
#[tokio::test(start_paused = true)]
async fn l5_an_answer_to_a_subtask_waits_for_the_store() {
    for trouble in element_troubles() {
        for is_over in [false, true] {
            let (world, id) = answered_element(trouble).await;
            let world = if is_over { world.next_life() } else { world };
            heal(&world);
            world.recover().await;
            let task = ends(&world, &id).await;
            assert_eq!(task["result"]["content"][0]["text"], "done", "{trouble:?} {is_over} {task}");
            assert_eq!(answers(&world).len(), 1, "{trouble:?} {is_over}");
            world.is_idle().await;
        }
    }
}

/// Its parent's time, a cancel and the end of the calls end that as well.
#[tokio::test(start_paused = true)]
async fn an_answer_to_a_subtask_that_waits_holds_up_no_end() {
    for trouble in element_troubles() {
        let (world, id) = answered_element(trouble).await;
        tokio::time::sleep(DEADLINE).await;
        heal(&world);
        let task = ends(&world, &id).await;
        assert_eq!(task["error"]["data"]["reason"], "deadline_exceeded", "{trouble:?} {task}");
        world.is_idle().await;

        let (world, id) = answered_element(trouble).await;
        heal(&world);
        world.engine.cancel(&key(&id)).await.unwrap();
        assert_eq!(world.get(&id).await["status"], "cancelled", "{trouble:?}");
        world.is_idle().await;

        let (world, _) = answered_element(trouble).await;
        world.engine.end_calls(Reason::ReplicaLost);
        assert_eq!(world.engine.drain(seconds(1)).await, 0, "{trouble:?}");
    }
}

/// The key of the subtask that the server names `sub`.
fn subtask_of(id: &str) -> TaskKey {
    let key = key(id);
    TaskKey { id: TaskId::of_subtask(key.id, "sub"), ..key }
}

/// A task whose server names a subtask after a second; both return after ten.
fn names(resumes: Resumes) -> Script {
    Script::of([(seconds(1), Happens::Names(&["sub"])), returns(10)]).resumed(resumes)
}

/// A task whose server names so many subtasks at once after a second; all return after ten.
fn names_many(count: usize) -> Script {
    let names: Vec<&'static str> = (0..count).map(|number| &*format!("s{number}").leak()).collect();
    Script::of([(seconds(1), Happens::Names(names.leak())), returns(10)]).resumed(Resumes::Follows)
}

/// SUB-19: once the tree is full, the names that are left are dropped together: nothing is read for each of them.
#[tokio::test(start_paused = true)]
async fn sub_19_names_that_do_not_fit_into_a_tree_are_left_out_in_one_step() {
    let world = World::with(rules(), names_many(10_000));
    let mut spec = world.spec(Plan::Task, &Principal::local());
    spec.subtask_limits.count_max = 10;
    let Some(CallEvent::Created(parent)) = world.engine.call(spec).next().await else { panic!("no task") };
    tokio::time::sleep(seconds(5)).await;
    let (inserted, loaded) = (world.store.inserted(), world.store.loaded());
    assert_eq!(row(&world, &parent.key).await.unwrap().tree.children.len(), 10);
    assert_eq!(inserted, 11);
    assert!(loaded < 200, "{loaded} rows were read");
    tokio::time::sleep(seconds(20)).await;
    world.is_idle().await;
}

/// SUB-19: a long list is carried out in parts, and the deadline and a cancel come between them.
#[tokio::test(start_paused = true)]
async fn sub_19_a_long_list_of_subtasks_delays_neither_the_deadline_nor_a_cancel() {
    for is_cancelled in [false, true] {
        let world = World::with(Rules { deadline: seconds(5), ..rules() }, names_many(900));
        let id = task(&world, Ask::call()).await;
        world.store.faults.strike(Method::Insert, StoreFault::Delays(seconds(1)), 2_000);
        tokio::time::sleep(millis(3_500)).await;
        if is_cancelled {
            world.engine.cancel(&key(&id)).await.unwrap();
        }
        tokio::time::sleep(seconds(30)).await;
        let status = if is_cancelled { "cancelled" } else { "failed" };
        assert_eq!(world.get(&id).await["status"], status);
        let inserted = world.store.inserted();
        assert!(inserted < 450, "{is_cancelled}: {inserted} rows, in parts of 64 a second");
        world.is_idle().await;
    }
}

/// L2: the deadline of a call takes nothing from a result that came in time, though a subtask outlives it.
#[tokio::test(start_paused = true)]
async fn a_result_that_waits_for_a_subtask_is_the_outcome_at_the_deadline() {
    let world = World::with(Rules { deadline: seconds(60), ..rules() }, names(Resumes::Loses(seconds(600))));
    let id = task(&world, Ask::call()).await;
    tokio::time::sleep(seconds(30)).await;
    assert_eq!(world.get(&id).await["status"], "working", "SUB-13");
    check_done(&ends(&world, &id).await["result"]);
    let sub = row(&world, &subtask_of(&id)).await.unwrap();
    assert!(matches!(sub.phase, Phase::Settled(Outcome::Cancelled)), "{sub:?}");
    world.is_idle().await;
    assert_eq!(world.upstream.cancels(), 1, "of the subtask");
}

/// SUB-13, F71: a subtask that the server names while the store is unavailable gets its row once it is back, once.
#[tokio::test(start_paused = true)]
async fn f71_subtasks_that_are_named_while_the_store_is_away_become_tasks() {
    for trouble in Trouble::EACH.map(Some).into_iter().chain([None]) {
        let world = World::with(rules(), names(Resumes::Follows));
        let id = task(&world, Ask::call()).await;
        match trouble {
            Some(trouble) => trouble.strike(&world),
            None => world.store.faults.strike(Method::Insert, StoreFault::AppliesAndFails, 20),
        }
        tokio::time::sleep(seconds(100)).await;
        let is_over = world.get(&id).await.get("result").is_some();
        // An insert that is repeated finds that it was made.
        assert_eq!(is_over, trouble.is_none(), "{trouble:?}: it ends after its subtasks");
        world.store.faults.heal();
        check_done(&ends(&world, &id).await["result"]);
        let parent = row(&world, &key(&id)).await.unwrap();
        let sub = row(&world, &subtask_of(&id)).await.expect("it has a row");
        assert_eq!(parent.tree.children[..], [sub.key.id], "{trouble:?}");
        assert!(matches!(sub.phase, Phase::Settled(Outcome::Returned { .. })), "{trouble:?} {sub:?}");
        let resumed = world.upstream.saw().iter().filter(|saw| matches!(saw, Saw::Resume { .. })).count();
        assert_eq!(resumed, 1, "{trouble:?}: it is followed once");
        world.is_idle().await;
    }
}

/// A disk without room takes no new tasks: the subtasks are left out, and the call ends as its server says.
#[tokio::test(start_paused = true)]
async fn subtasks_that_the_store_has_no_room_for_are_left_out() {
    let world = World::with(rules(), names(Resumes::Follows));
    let id = task(&world, Ask::call()).await;
    world.store.faults.strike(Method::Insert, StoreFault::NoRoom, 1_000);
    tokio::time::sleep(seconds(20)).await;
    check_done(&world.get(&id).await["result"]);
    assert!(row(&world, &key(&id)).await.unwrap().tree.children.is_empty());
    world.is_idle().await;
}

/// Neither the call's time nor a cancel nor the end of the calls waits for subtasks that cannot be stored.
#[tokio::test(start_paused = true)]
async fn subtasks_that_wait_for_the_store_hold_up_no_end() {
    for trouble in Trouble::EACH {
        let before = || async {
            let world = World::with(rules(), names(Resumes::Follows));
            let id = task(&world, Ask::call()).await;
            trouble.strike(&world);
            tokio::time::sleep(seconds(100)).await;
            (world, id)
        };
        let (world, id) = before().await;
        tokio::time::sleep(DEADLINE).await;
        world.store.faults.heal();
        let task = ends(&world, &id).await;
        assert_eq!(task["error"]["data"]["reason"], "deadline_exceeded", "{trouble:?} {task}");

        let (world, id) = before().await;
        world.store.faults.heal();
        world.engine.cancel(&key(&id)).await.unwrap();
        assert_eq!(world.get(&id).await["status"], "cancelled", "{trouble:?}");
        assert_eq!(world.engine.drain(seconds(60)).await, 0, "{trouble:?}");

        let (world, _) = before().await;
        world.engine.end_calls(Reason::ReplicaLost);
        assert_eq!(world.engine.drain(seconds(1)).await, 0, "{trouble:?}");
    }
}

/// A subtask that cannot be followed fails once the store takes that, and its parent goes on.
#[tokio::test(start_paused = true)]
async fn a_subtask_that_cannot_be_followed_fails_once_the_store_is_back() {
    let world = World::with(rules(), names(Resumes::Refuses));
    let id = task(&world, Ask::call()).await;
    *world.store.stuck.lock() = Some(subtask_of(&id));
    tokio::time::sleep(seconds(60)).await;
    let sub = row(&world, &subtask_of(&id)).await.expect("it has a row");
    assert!(matches!(sub.phase, Phase::Working), "{sub:?}");
    *world.store.stuck.lock() = None;
    check_done(&ends(&world, &id).await["result"]);
    let sub = row(&world, &subtask_of(&id)).await.unwrap();
    assert!(matches!(sub.phase, Phase::Settled(Outcome::Faulted(_))), "{sub:?}");
    world.is_idle().await;
}

/// SUB-16: a row that cannot be written keeps the cancel of no other subtask from the server.
#[tokio::test(start_paused = true)]
async fn sub_16_a_row_that_is_stuck_keeps_the_cancel_of_no_other_subtask_from_the_server() {
    let world = World::with(Rules { split: Some((2, 10)), ..rules() }, Script::silent());
    let id = task(&world, Ask::call().arguments(json!({ "items": [1, 2] }))).await;
    tokio::time::sleep(seconds(1)).await;
    let child = row(&world, &key(&id)).await.unwrap().tree.children[0];
    *world.store.stuck.lock() = Some(TaskKey { id: child, ..key(&id) });
    // It is not known yet whether the other one's row was written when the tries for this one end.
    world.store.faults.strike(Method::Replace, StoreFault::AppliesAndFails, 1);
    world.store.faults.strike(Method::SettleDoubt, StoreFault::Delays(seconds(1)), 1);
    assert!(world.engine.cancel(&key(&id)).await.is_err());
    tokio::time::sleep(seconds(10)).await;
    assert_eq!(world.upstream.cancels(), 1);
    heal(&world);
    world.engine.cancel(&key(&id)).await.unwrap();
    assert_eq!(world.get(&id).await["status"], "cancelled");
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(world.upstream.cancels(), 2);
    world.is_idle().await;
}

/// SUB-16: the server gets the parent's cancel as soon as it has got the last subtask's.
#[tokio::test(start_paused = true)]
async fn sub_16_the_cancel_of_a_tree_reaches_its_top_once_the_last_subtask_was_told() {
    let script = Script { cancel_takes: millis(100), ..names(Resumes::Follows) };
    let world = World::with(rules(), script);
    let id = task(&world, Ask::call()).await;
    tokio::time::sleep(seconds(2)).await;
    world.engine.cancel(&key(&id)).await.unwrap();
    for (after, told) in [(90, 1), (20, 2)] {
        tokio::time::sleep(millis(after)).await;
        assert_eq!(world.upstream.cancels(), told, "the subtask first, and its parent when that is done");
    }
    world.is_idle().await;
}
