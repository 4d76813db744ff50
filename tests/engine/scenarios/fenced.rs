//! A gateway that was replaced finds out when it writes: it sends no further message to the server of a call, and
//! leaves the row to its new holder.

use std::sync::Arc;

use serde_json::json;
use taskgate::store::{TaskStore as _, WriteRole};
use taskgate::task::{Attempt, Task, TaskMode, Timestamp};

use super::named::named;
use super::rounds::{accept, again, answers, elicits, heard, plain, result_of, returns, round};
use super::script::{Happens, Resumes, Saw, Script};
use super::store_faults::{Method, StoreFault};
use super::stores::GatedStore;
use super::unmarked::key;
use super::waiting::{asking, asks, declared, rules, task};
use super::world::{Ask, Rules, World, millis, seconds};

/// Another gateway takes over everything of this one, which does not know.
async fn taken_over(world: &World) -> Arc<GatedStore> {
    let heir = world.store.beside();
    world.store.is_declared_ended();
    let claimed = heir.claim(100, &[]).await.unwrap();
    assert!(!claimed.is_empty(), "there is something to take over");
    heir
}

/// The next changes take a second each, and another gateway takes the tasks over while the last of them is under way.
async fn taken_over_within(world: &World, changes: usize) -> Arc<GatedStore> {
    world.store.faults.strike(Method::Replace, StoreFault::Delays(seconds(1)), changes);
    tokio::time::sleep(seconds(changes as u64) - millis(500)).await;
    taken_over(world).await
}

pub(super) fn resumes(world: &World) -> usize {
    world.upstream.saw().iter().filter(|saw| matches!(saw, Saw::Resume { .. })).count()
}

/// The server gets nothing more, and the exchange is dropped.
async fn is_silent(world: &World) {
    tokio::time::sleep(seconds(400)).await;
    assert_eq!((answers(world), world.upstream.cancels()), (Vec::new(), 0), "{:?}", world.upstream.saw());
    assert_eq!(world.engine.permits_taken(), 0, "the call is dropped");
}

async fn row(heir: &GatedStore, id: &str) -> Arc<Task> {
    heir.load(&key(id), Timestamp::from_millis(0)).await.unwrap().expect("it is there").task
}

/// L5: an answer that was accepted is the heir's to hand over.
#[tokio::test(start_paused = true)]
async fn f76_a_replaced_gateway_leaves_an_answer_to_its_heir() {
    let world = World::with(rules(), asks());
    let id = task(&world, Ask::call()).await;
    let input = asking(&world, &id).await.remove(0);
    let update =
        Ask::task("tasks/update", &id).declaring(declared()).member("inputResponses", json!({ input: accept() }));
    let (taken, heir) = tokio::join!(world.send(&update), taken_over_within(&world, 2));
    assert!(taken.json().await["result"].is_object());
    is_silent(&world).await;
    assert_eq!(row(&heir, &id).await.recovery.undelivered.len(), 1, "it is in the row still");
}

/// A question whose time is over is the new holder's to cancel, and so is one that the server withdraws.
#[tokio::test(start_paused = true)]
async fn f76_a_replaced_gateway_gives_up_no_question() {
    for takes_back in [false, true] {
        let after = if takes_back { Happens::Withdraws("a") } else { Happens::Log("info") };
        let script = Script::of([elicits("a", 1), (seconds(10), after), heard(1), returns(2)]);
        let world = World::with(Rules { input_deadline: seconds(10), ..rules() }, script);
        let id = task(&world, Ask::call()).await;
        asking(&world, &id).await;
        let heir = taken_over(&world).await;
        is_silent(&world).await;
        assert!(!row(&heir, &id).await.is_settled(), "{takes_back}");
    }
}

/// GW-39: a call that another gateway resumes in between is neither resumed nor sent again.
#[tokio::test(start_paused = true)]
async fn f76_a_replaced_gateway_takes_no_call_up() {
    for resumes_as in [Resumes::Follows, Resumes::Refuses] {
        let world = World::with(rules(), asks().resumed(resumes_as));
        let id = task(&world, Ask::call()).await;
        asking(&world, &id).await;
        tokio::time::sleep(seconds(2)).await;
        let next = world.next_life();
        let ((), heir) = tokio::join!(next.recover(), taken_over_within(&next, 1));
        is_silent(&next).await;
        assert_eq!((resumes(&next), next.upstream.calls().len()), (0, 1), "{resumes_as:?}");
        assert!(!row(&heir, &id).await.is_settled(), "{resumes_as:?}");
    }
}

/// A question that no client may get is refused by the holder of the call.
#[tokio::test(start_paused = true)]
async fn f76_a_replaced_gateway_refuses_no_question_of_a_call_that_it_took_up() {
    let unfit = (seconds(20), Happens::AsksFor("what/is_this", "{}"));
    let world = World::with(
        rules(),
        Script::of([(seconds(1), Happens::Progress(1.0, "one")), unfit]).resumed(Resumes::Follows),
    );
    task(&world, Ask::call()).await;
    tokio::time::sleep(seconds(5)).await;
    let next = world.next_life();
    next.recover().await;
    tokio::time::sleep(seconds(2)).await;
    taken_over(&next).await;
    is_silent(&next).await;
    assert_eq!(resumes(&next), 1);
}

/// A question of a call that the heir has sent again means nothing to its row, and is not refused for that.
#[tokio::test(start_paused = true)]
async fn f76_a_replaced_gateway_says_nothing_where_its_write_would_change_nothing() {
    let world = World::with(rules(), Script::of([elicits("a", 10), heard(1), returns(11)]));
    let id = task(&world, Ask::call()).await;
    let heir = taken_over(&world).await;
    let found = heir.load(&key(&id), Timestamp::from_millis(0)).await.unwrap().unwrap();
    let again = Task { attempt: Attempt(2), ..(*found.task).clone() };
    heir.replace(found.revision, WriteRole::Holder, &again).await.unwrap();
    is_silent(&world).await;
}

/// T-49: nor is the call made again whose user was where the server sent it, or did not go there.
#[tokio::test(start_paused = true)]
async fn f76_a_replaced_gateway_makes_no_call_again() {
    const DEMAND: &str =
        r#"{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://a.example/","message":"go"}]}"#;
    for changes in [2, 3] {
        let steps =
            [(seconds(1), Happens::Progress(1.0, "at work")), (seconds(5), Happens::FaultsWith(-32042, DEMAND))];
        let world = World::with(rules(), Script::of(steps).resumed(Resumes::Follows));
        let id = task(&world, Ask::call()).await;
        let input = asking(&world, &id).await.remove(0);
        let update = Ask::task("tasks/update", &id).declaring(declared());
        let update = update.member("inputResponses", json!({ input: accept() }));
        let (taken, heir) = tokio::join!(world.send(&update), taken_over_within(&world, changes));
        assert!(taken.json().await["result"].is_object());
        is_silent(&world).await;
        assert_eq!(world.upstream.calls().len(), 1, "{changes}");
        assert!(!row(&heir, &id).await.is_settled(), "{changes}");
    }
}

/// F69: rows of subtasks that its heir has are not removed.
#[tokio::test(start_paused = true)]
async fn f76_a_replaced_gateway_removes_no_subtask_of_its_heirs() {
    let script = Script::of([(seconds(5), Happens::Names(&["one", "two"]))]).resumed(Resumes::Follows);
    let world = World::with(rules(), script);
    task(&world, Ask::call()).await;
    tokio::time::sleep(seconds(4)).await;
    let ((), heir) = tokio::join!(tokio::time::sleep(seconds(2)), async {
        world.store.faults.strike(Method::Replace, StoreFault::Delays(seconds(1)), 1);
        tokio::time::sleep(millis(1_500)).await;
        taken_over(&world).await
    });
    assert_eq!(heir.usage().tasks, 3);
    is_silent(&world).await;
    assert_eq!(heir.usage().tasks, 3);
}

/// MOD-28: a client that returns for its call gets an error that says that the gateway was replaced.
#[tokio::test(start_paused = true)]
async fn f76_a_client_that_returns_to_a_replaced_gateway_is_told() {
    let world = World::with(Rules::mode(TaskMode::Never), asks());
    let asked = round(&result_of(&world, &plain()).await);
    taken_over(&world).await;
    let told = world.send(&again(&plain(), &asked, &["r0"])).await.json().await;
    let data = &told["error"]["data"];
    assert_eq!((&data["reason"], &data["executed"]), (&json!("replica_lost"), &json!("unknown")), "{told}");
    is_silent(&world).await;
}

/// GW-46: repetitions get the heir's outcome, so the client that waits here gets no other.
#[tokio::test(start_paused = true)]
async fn f76_the_client_of_a_keyed_call_gets_no_result_from_a_replaced_gateway() {
    let world = World::with(rules(), Script::returns(seconds(5), "done"));
    let waits = world.client(&named("k").without_extension());
    tokio::time::sleep(seconds(1)).await;
    taken_over(&world).await;
    let told = waits.await.unwrap().json().await;
    let data = &told["error"]["data"];
    assert_eq!((&data["reason"], &data["executed"]), (&json!("replica_lost"), &json!("unknown")), "{told}");
    is_silent(&world).await;
}
