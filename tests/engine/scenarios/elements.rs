//! Elements of split calls once the call is a task: each is a task of its own, a child of the call's.

use std::sync::Arc;

use serde_json::{Value, json};
use taskgate::engine::{CallEvent, DeleteResult, recovery};
use taskgate::store::{PageRange, TaskStore};
use taskgate::task::{
    AfterCrash, Answer, EarlyInput, Failure, Outcome, Phase, Plan, Principal, Reason, Task, TaskKey, TaskMode,
    TaskVisibility, Timestamp,
};
use tokio::task::JoinSet;

use super::script::{Call, Happens, Resumes, Saw, Script, result};
use super::splitting::texts;
use super::store_faults::{Method, StoreFault};
use super::unmarked::key;
use super::waiting::{self, row};
use super::world::{Ask, Rules, World, millis, seconds};

/// At most ten elements, three side by side; a task from the beginning.
const SPLIT: Rules = Rules { mode: TaskMode::Always, split: Some((3, 10)), ..Rules::DEFAULT };

fn ask(items: &Value) -> Ask {
    Ask::call().arguments(json!({ "items": items }))
}

fn element(call: &Call) -> Value {
    let mut params: Value = serde_json::from_str(&call.params).unwrap();
    params["arguments"]["items"][0].take()
}

/// A server that takes as many seconds for an element as the element says, and returns it.
fn slow(rules: Rules) -> World {
    World::choosing(rules, |call| {
        let element = element(call).as_u64().unwrap();
        Script::returns(seconds(element), &element.to_string())
    })
}

/// The children of a task, in their order.
async fn children(world: &World, id: &str) -> Vec<Arc<Task>> {
    let parent = row(world, &key(id)).await.unwrap();
    let mut children = Vec::new();
    for child in &*parent.tree.children {
        let child = TaskKey { owner: Principal::local(), id: *child };
        children.push(row(world, &child).await.unwrap());
    }
    children
}

const fn word(task: &Task) -> &'static str {
    match &task.phase {
        Phase::Queued => "queued",
        Phase::Working => "working",
        Phase::AwaitingInput(_) => "asking",
        Phase::Settled(Outcome::Returned { .. }) => "returned",
        Phase::Settled(Outcome::Cancelled) => "cancelled",
        Phase::Settled(Outcome::Faulted(_)) => "failed",
    }
}

async fn words(world: &World, id: &str) -> Vec<&'static str> {
    children(world, id).await.iter().map(|child| word(child)).collect()
}

/// SUB-13.
#[tokio::test(start_paused = true)]
async fn each_element_is_a_task_whose_parent_ends_after_all_of_them() {
    let world = slow(SPLIT);
    let id = world.handle(&ask(&json!([2, 4, 6, 1]))).await;
    let mut seen = Vec::new();
    for at in [1_500, 3_500, 5_500] {
        tokio::time::sleep_until(world.started + millis(at)).await;
        seen.push(words(&world, &id).await.join(" "));
        assert_eq!(world.get(&id).await["status"], "working");
    }
    assert_eq!(
        seen,
        ["working working working queued", "returned working working returned", "returned returned working returned"]
    );
    let task = world.settled(&id).await;
    assert_eq!(texts(&task["result"]), ["2", "4", "6", "1"]);
    let parent = row(&world, &key(&id)).await.unwrap();
    for child in children(&world, &id).await {
        assert_eq!((child.tree.parent, child.visibility), (Some(parent.key.id), TaskVisibility::Part));
        assert!(child.expires_at() >= parent.expires_at(), "SUB-17");
        // Their client knows no subtasks.
        assert!(world.engine.load_visible(&child.key).await.is_err());
    }
    world.is_idle().await;
}

/// Elements that run when the grace ends go on; those that ended before have their rows, too.
#[tokio::test(start_paused = true)]
async fn elements_that_ran_before_the_handle_go_on_after_it() {
    let world = slow(Rules { mode: TaskMode::Auto, ..SPLIT });
    let id = world.handle(&ask(&json!([1, 5, 6, 2, 3]))).await;
    assert_eq!(words(&world, &id).await, ["returned", "working", "working", "working", "queued"]);
    let task = world.settled(&id).await;
    assert_eq!(texts(&task["result"]), ["1", "5", "6", "2", "3"]);
    assert_eq!(world.upstream.begins(), 5, "none was called twice");
    world.is_idle().await;
}

/// A later process sends waiting elements: so a call that is over when it gets its handle has none.
#[tokio::test(start_paused = true)]
async fn a_split_call_that_ends_before_its_handle_leaves_no_element_to_send() {
    let world = slow(Rules { early_input: EarlyInput::AskFirst, ..SPLIT });
    let client = json!({ "elicitation": {}, "extensions": { super::rounds::EXTENSION: {} } });
    let id = world.handle(&ask(&json!([1, 1])).declaring(client)).await;
    let task = world.settled(&id).await;
    assert_eq!(texts(&task["result"]), ["1", "1"]);
    assert_eq!(words(&world, &id).await, [""; 0]);
    assert_eq!(world.upstream.begins(), 2);
    world.is_idle().await;
}

/// SUB-02 to SUB-06, SUB-13, SUB-16 and SUB-17 as a client that knows subtasks sees them.
#[tokio::test(start_paused = true)]
async fn a_client_that_knows_subtasks_reads_each_by_its_id_as_long_as_the_parent() {
    let world = slow(SPLIT);
    let mut spec = world.spec(Plan::Task, &Principal::local());
    spec.request.params = Some(super::script::payload(r#"{"name":"work","arguments":{"items":[2,4]}}"#));
    spec.sees_subtasks = true;
    let Some(CallEvent::Created(parent)) = world.engine.call(spec).next().await else { panic!("no task") };
    let ids = parent.tree.children.to_vec();
    assert_eq!(ids.len(), 2);
    let child_of = |index: usize| TaskKey { owner: Principal::local(), id: ids[index] };
    let first = world.task(&child_of(0)).await;
    assert_eq!(first.tree.parent, Some(parent.key.id));
    assert_eq!(first.expires_at(), parent.expires_at(), "it ends with its parent");
    // One alone can be cancelled, and the other goes on.
    world.engine.cancel(&child_of(0)).await.unwrap();
    let all = world.engine.list(&taskgate::task::Caller::of(Principal::local().clone()), None, 10).await.unwrap().tasks;
    assert_eq!(all.len(), 3);
    let result = loop {
        let parent = world.task(&parent.key).await;
        match parent.outcome() {
            Some(Outcome::Returned { result, .. }) => break result.as_str().to_owned(),
            Some(other) => panic!("{other:?}"),
            None => tokio::time::sleep(seconds(1)).await,
        }
    };
    assert_eq!(texts(&serde_json::from_str(&result).unwrap()), ["items[0] failed: it was cancelled", "4"]);
    // A parent that is gone takes its children with it, however long their rows are kept.
    world.engine.delete(&taskgate::task::Caller::of(parent.key.owner.clone()), parent.key.id).await.unwrap();
    assert!(world.engine.load_visible(&child_of(1)).await.is_err());
    assert_eq!(world.store.usage().tasks, 0);
    world.is_idle().await;
}

/// No client sees the part without its parent.
#[tokio::test(start_paused = true)]
async fn a_task_is_deleted_though_the_row_of_a_part_cannot_be_removed() {
    let world = slow(SPLIT);
    let id = world.handle(&ask(&json!([1, 1]))).await;
    world.settled(&id).await;
    let (parent, caller) = (key(&id), taskgate::task::Caller::of(Principal::local()));
    let child = TaskKey { id: world.task(&parent).await.tree.children[0], ..parent.clone() };
    *world.store.stuck.lock() = Some(child.clone());
    assert!(matches!(world.engine.delete(&caller, parent.id).await, Ok(DeleteResult::Deleted)));
    assert!(world.engine.load_visible(&parent).await.is_err() && world.engine.load_visible(&child).await.is_err());
    assert_eq!(world.store.usage().tasks, 1, "the other part is removed");
    world.is_idle().await;
}

/// SUB-14.
#[tokio::test(start_paused = true)]
async fn sub_14_a_client_that_knows_subtasks_is_asked_under_the_child() {
    let world = World::with(
        SPLIT,
        Script::of([
            (seconds(1), Happens::Elicits("which")),
            (seconds(1), Happens::Heard(1)),
            (seconds(2), Happens::Returns(result("answered"))),
        ]),
    );
    let mut spec = world.spec(Plan::Task, &Principal::local());
    spec.request.params = Some(super::script::payload(r#"{"name":"work","arguments":{"items":[1]}}"#));
    spec.sees_subtasks = true;
    let Some(CallEvent::Created(parent)) = world.engine.call(spec).next().await else { panic!("no task") };
    tokio::time::sleep(millis(1_500)).await;
    let child = TaskKey { owner: Principal::local(), id: parent.tree.children[0] };
    let asking = world.task(&child).await;
    let Phase::AwaitingInput(open) = &asking.phase else { panic!("{asking:?}") };
    assert!(matches!(world.task(&parent.key).await.phase, Phase::Working));
    let answer = Answer::Result(super::script::payload(r#"{"action":"decline"}"#));
    let answers = open.keys().map(|key| (*key, answer.clone())).collect();
    world.engine.answer(&taskgate::task::Caller::of(child.owner.clone()), child.id, answers).await.unwrap();
    tokio::time::sleep(seconds(3)).await;
    assert!(matches!(world.task(&parent.key).await.outcome(), Some(Outcome::Returned { .. })));
    world.is_idle().await;
}

/// SUB-15, SUB-16.
#[tokio::test(start_paused = true)]
async fn sub_16_a_cancel_ends_the_children_before_the_parent() {
    let world = slow(SPLIT);
    let id = world.handle(&ask(&json!([1, 60, 60, 60, 60]))).await;
    tokio::time::sleep(seconds(2)).await;
    assert_eq!(world.send(&Ask::task("tasks/cancel", &id)).await.status, 200);
    assert_eq!(words(&world, &id).await, ["returned", "cancelled", "cancelled", "cancelled", "cancelled"]);
    let parent = row(&world, &key(&id)).await.unwrap();
    assert!(children(&world, &id).await.iter().all(|child| child.updated_at <= parent.updated_at));
    for call in 1..4 {
        world.upstream.sees(&Saw::Drop(call)).await;
    }
    assert_eq!((world.upstream.cancels(), world.upstream.begins()), (3, 4));
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_parent_whose_time_is_over_takes_its_children_with_it() {
    let world = slow(Rules { ttl: seconds(30), ..SPLIT });
    let id = world.handle(&ask(&json!([1, 600, 600, 600, 600]))).await;
    tokio::time::sleep(seconds(31)).await;
    assert_eq!(world.get(&id).await["error"]["data"]["reason"], "ttl_expired");
    for child in children(&world, &id).await.into_iter().skip(1) {
        let Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))) = &child.phase else { panic!("{child:?}") };
        assert_eq!(fault.reason, Reason::TtlExpired);
    }
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_tree_without_room_is_refused_before_anything_is_sent() {
    let world = slow(Rules { tasks_max: 4, ..SPLIT });
    let error = world.send(&ask(&json!([1, 1, 1, 1]))).await.json().await["error"].take();
    assert_eq!(error["data"]["reason"], "too_many_tasks");
    assert_eq!((world.upstream.begins(), world.store.usage().tasks), (0, 0));
    let id = world.handle(&ask(&json!([1, 1, 1]))).await;
    assert_eq!(texts(&world.settled(&id).await["result"]), ["1", "1", "1"]);
    world.is_idle().await;
}

/// Its row is hidden until there is a handle; only then its elements get theirs.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_asked_before_its_handle_has_elements_with_rows_after_it() {
    let world = slow(Rules { early_input: EarlyInput::AskFirst, ..SPLIT });
    let id = world.handle(&ask(&json!([1, 5, 6, 7]))).await;
    assert_eq!(words(&world, &id).await, ["returned", "working", "working", "working"]);
    assert_eq!(texts(&world.settled(&id).await["result"]), ["1", "5", "6", "7"]);
    assert_eq!(world.upstream.begins(), 4);
    world.is_idle().await;
}

/// A store that fails while rows of a tree are written leaves none of them, and nothing is sent.
#[tokio::test(start_paused = true)]
async fn a_tree_is_stored_whole_or_not_at_all() {
    for room in 1..5 {
        let world = slow(Rules { stored_bytes_max: room << 10, ..SPLIT });
        let error = world.send(&ask(&json!([1, 1, 1, 1]))).await.json().await["error"].take();
        assert_eq!((&error["data"]["reason"], &error["data"]["executed"]), (&json!("store_full"), &json!("no")));
        assert_eq!((world.upstream.begins(), world.store.usage().tasks), (0, 0), "room for {room}");
        world.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_before_its_handle_leaves_no_row_of_the_tree() {
    let world = slow(SPLIT);
    world.store.hold_inserts();
    let asked = world.client(&ask(&json!([60, 60, 60, 60])));
    tokio::time::sleep(millis(10)).await;
    asked.abort();
    world.store.inserts.add_permits(100);
    world.is_idle().await;
    assert_eq!((world.upstream.begins(), world.store.usage().tasks), (0, 0));
}

/// GW-33: rows without a parent are removed, and their calls, which the plain call waits for, go on.
#[tokio::test(start_paused = true)]
async fn elements_of_a_call_that_could_not_become_a_task_are_cancelled_by_no_look_at_rows() {
    let rules = Rules { mode: TaskMode::Auto, durable: true, ..SPLIT };
    let world = World::choosing(rules, |call| {
        Script::returns(seconds(100), &element(call).to_string()).resumed(Resumes::Follows)
    });
    let (engine, stop) = (Arc::clone(&world.engine), world.ending.clone());
    let mut looking = JoinSet::new();
    looking.spawn(recovery::resume_rows_without_runner(engine, world.origins(), stop));
    world.store.hold_inserts();
    let client = world.client(&ask(&json!([1, 2])));
    while world.store.inserted() < 2 {
        tokio::time::sleep(millis(100)).await;
    }
    world.store.inserts.add_permits(2);
    while world.store.inserted() < 3 {
        tokio::time::sleep(millis(100)).await;
    }
    // The parent's row is refused, and the rows of its elements are not removed.
    world.store.faults.strike(Method::Insert, StoreFault::Fails, 1);
    world.store.faults.strike(Method::Remove, StoreFault::Fails, 2);
    world.store.inserts.add_permits(10);
    tokio::time::sleep(seconds(5)).await;
    assert_eq!(world.store.unsettled().await.len(), 2);
    tokio::time::sleep(seconds(80)).await;
    assert_eq!(world.store.unsettled().await, [], "they are removed");
    assert_eq!(world.upstream.cancels(), 0);
    let events = client.await.unwrap().events().await;
    let (_, answer) = events.last().unwrap();
    assert_eq!(texts(&answer["result"]), ["1", "2"]);
    world.ending.cancel();
    looking.join_all().await;
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_newest_message_of_an_element_stands_beside_how_many_are_done() {
    let world = World::choosing(SPLIT, |call| match element(call).as_str().unwrap() {
        "speaks" => Script::of([
            (seconds(1), Happens::Progress(1.0, "half way")),
            (seconds(9), Happens::Returns(result("done"))),
        ]),
        _ => Script::returns(seconds(4), "quiet"),
    });
    let id = world.handle(&ask(&json!(["speaks", "quiet"])).token(1)).await;
    let mut seen = Vec::new();
    for at in [2, 6] {
        tokio::time::sleep_until(world.started + seconds(at)).await;
        seen.push(world.get(&id).await["statusMessage"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(seen, ["0/2: half way", "1/2: half way"]);
    world.settled(&id).await;
    world.is_idle().await;
}

/// A question of an element is asked by the parent, across a crash too, and is answered once (T-40).
#[tokio::test(start_paused = true)]
async fn a_question_of_an_element_outlives_a_crash_under_its_key() {
    let world = World::choosing(Rules { durable: true, ..SPLIT }, |call| match element(call).as_str().unwrap() {
        "asks" => Script::of([
            (seconds(1), Happens::Elicits("which")),
            (seconds(1), Happens::Heard(1)),
            (seconds(2), Happens::Returns(result("answered"))),
        ])
        .resumed(Resumes::Follows),
        _ => Script::returns(seconds(1), "quick"),
    });
    let declared = json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let id = world.handle(&ask(&json!(["asks", "quick"])).declaring(declared.clone())).await;
    let open = async |world: &World| {
        let get = Ask::task("tasks/get", &id).declaring(declared.clone());
        let task = world.send(&get).await.json().await["result"].take();
        assert_eq!(task["status"], "input_required", "{task}");
        task["inputRequests"].as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    tokio::time::sleep(seconds(4)).await;
    let before = open(&world).await;
    let world = world.next_life();
    world.recover().await;
    tokio::time::sleep(seconds(2)).await;
    assert_eq!((before.len(), open(&world).await), (1, before.clone()));
    let update = Ask::task("tasks/update", &id).declaring(declared.clone());
    let answers = json!({ &before[0]: { "action": "decline" } });
    assert_eq!(world.send(&update.member("inputResponses", answers)).await.status, 200);
    assert_eq!(texts(&world.settled(&id).await["result"]), ["answered", "quick"]);
    let answered = world.upstream.saw().iter().filter(|saw| matches!(saw, Saw::Answer { .. })).count();
    assert_eq!((answered, world.upstream.begins()), (1, 2));
    world.is_idle().await;
}

/// T-40: also under the name of a question that was asked before its call became a task.
#[tokio::test(start_paused = true)]
async fn a_question_of_an_element_under_a_used_name_is_asked() {
    let world = World::with(
        Rules { mode: TaskMode::Auto, ..SPLIT },
        Script::of([
            (seconds(1), Happens::Elicits("which")),
            (seconds(1), Happens::Heard(1)),
            (seconds(5), Happens::Elicits("which")),
            (seconds(5), Happens::Heard(2)),
            (seconds(6), Happens::Returns(result("answered"))),
        ]),
    );
    let id = waiting::task(&world, ask(&json!([1]))).await;
    for _ in 0..2 {
        let keys = waiting::asking(&world, &id).await;
        assert!(waiting::answer(&world, &id, &keys[0]).await["result"].is_object());
    }
    assert_eq!(texts(&world.settled(&id).await["result"]), ["answered"]);
    world.is_idle().await;
}

/// T-40: also after a crash, if the first question was answered before its call was resumed.
#[tokio::test(start_paused = true)]
async fn a_question_of_an_element_under_a_used_name_is_asked_after_a_crash() {
    let script = Script::of([
        (seconds(1), Happens::Elicits("which")),
        (seconds(1), Happens::Heard(1)),
        (seconds(5), Happens::Elicits("which")),
        (seconds(5), Happens::Heard(2)),
        (seconds(6), Happens::Returns(result("answered"))),
    ]);
    let world = World::with(Rules { durable: true, ..SPLIT }, script.resumed(Resumes::Follows));
    let id = waiting::task(&world, ask(&json!([1]))).await;
    let first = waiting::asking(&world, &id).await;
    let world = world.next_life();
    // The server repeats the question to the element's call.
    world.upstream.forget_place(&world.store).await;
    assert!(waiting::answer(&world, &id, &first[0]).await["result"].is_object());
    world.recover().await;
    let second = waiting::asking(&world, &id).await;
    assert!(second.len() == 1 && second != first, "{first:?} {second:?}");
    assert!(waiting::answer(&world, &id, &second[0]).await["result"].is_object());
    assert_eq!(texts(&world.settled(&id).await["result"]), ["answered"]);
    world.is_idle().await;
}

/// The process ends after each of its commits in turn. Each task with a handle ends as it should: ended elements are
/// not called again, and the others by `after_crash`.
#[tokio::test(start_paused = true)]
async fn after_a_crash_each_element_is_judged_by_itself() {
    let mut trees = 0;
    for after_crash in [AfterCrash::Rerun, AfterCrash::Fail] {
        for writes in 1..30 {
            let world = slow(Rules { durable: true, after_crash, ..SPLIT });
            world.life.ends_after(writes);
            let asked = world.client(&ask(&json!([1, 3, 5, 2, 4])));
            let end = tokio::time::sleep_until(world.started + seconds(30));
            tokio::pin!(end);
            while !world.life.is_over() && !end.is_elapsed() {
                tokio::select! {
                    () = &mut end => (),
                    () = tokio::time::sleep(millis(50)) => (),
                }
            }
            let made = asked.is_finished();
            asked.abort();
            let (begun, survived) = (world.upstream.begins(), world.store.usage().tasks);
            let world = world.next_life();
            let parent = world.store.survey(PageRange::new(None, 100, Timestamp::from_millis(0))).await.unwrap();
            let parent = parent.tasks.iter().find(|task| task.tree.parent.is_none()).map(|task| task.key.clone());
            let Some(parent) = parent else {
                assert!(!made, "a handle without a row, after {writes} writes");
                // Children without a parent belong to no task.
                world.recover().await;
                assert_eq!((begun, world.store.usage().tasks), (0, 0), "after {writes} writes, of {survived}");
                world.is_idle().await;
                continue;
            };
            trees += 1;
            let id = parent.id.to_string();
            let before = children(&world, &id).await;
            assert_eq!(before.len(), 5, "whole, after {writes} writes");
            let counted = |word: &str| before.iter().filter(|child| self::word(child) == word).count();
            let (returned, queued, in_flight) = (counted("returned"), counted("queued"), counted("working"));
            assert_eq!(returned + queued + in_flight, 5, "after {writes} writes");
            world.recover().await;
            let task = world.settled(&id).await;
            let made_again = world.upstream.begins() - begun;
            let got = texts(&task["result"]);
            match after_crash {
                AfterCrash::Rerun => {
                    assert_eq!(got, ["1", "3", "5", "2", "4"], "after {writes} writes");
                    assert_eq!(made_again, queued + in_flight, "after {writes} writes");
                }
                AfterCrash::Fail | AfterCrash::RerunIfSafe => {
                    let lost = got.iter().filter(|text| text.contains("failed:")).count();
                    assert_eq!((lost, made_again), (in_flight, queued), "after {writes} writes: {got:?}");
                }
            }
            world.is_idle().await;
        }
    }
    assert!(trees > 30, "{trees}");
}

#[tokio::test(start_paused = true)]
async fn a_drain_leaves_elements_that_wait_to_the_next_life() {
    let world = World::choosing(Rules { durable: true, ..SPLIT }, |call| {
        let element = element(call).as_u64().unwrap();
        Script::returns(seconds(element), &element.to_string()).resumed(Resumes::Follows)
    });
    let id = world.handle(&ask(&json!([9, 9, 9, 1, 2]))).await;
    tokio::time::sleep(seconds(2)).await;
    assert_eq!(world.engine.drain(seconds(5)).await, 0);
    let world = world.next_life();
    assert_eq!(words(&world, &id).await, ["working", "working", "working", "queued", "queued"]);
    world.recover().await;
    assert_eq!(texts(&world.settled(&id).await["result"]), ["9", "9", "9", "1", "2"]);
    assert_eq!(world.upstream.begins(), 5, "none was called twice");
    world.is_idle().await;
}

/// The whole tree comes to one of the others: elements that had ended are not called again, and the one that was replaced
/// settles none of them.
#[tokio::test(start_paused = true)]
async fn a_split_call_of_a_gateway_that_was_replaced_goes_on_at_another() {
    let world = slow(Rules { durable: true, after_crash: AfterCrash::Rerun, ..SPLIT });
    let others = [world.beside(), world.beside()];
    let id = world.handle(&ask(&json!([1, 3, 5, 2, 4]))).await;
    tokio::time::sleep(millis(2_500)).await;
    let ended = words(&others[0], &id).await.into_iter().filter(|word| *word == "returned").count();
    let begun = world.upstream.begins();
    world.store.is_declared_ended();
    let task = others[0].settled(&id).await;
    assert_eq!(texts(&task["result"]), ["1", "3", "5", "2", "4"]);
    assert_eq!(task, others[1].get(&id).await);
    assert_eq!((ended > 0, world.upstream.begins() - begun), (true, 5 - ended));
    assert_eq!(world.upstream.cancels(), 0, "calls are dropped");
    for other in &others {
        other.is_idle().await;
    }
}
