//! Calls that run on while the store is unavailable: their writes wait for it, and are done once; neither a cancel nor
//! the call's time nor the end of the gateway waits with them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskgate::store::TaskStore as _;
use taskgate::task::{Reason, Task, TaskKey, TaskMode, Timestamp};

use super::rounds::{accept, again, answers, check_done, elicits, heard, modern, plain, result_of, returns, round};
use super::script::{Happens, Resumes, Saw, Script};
use super::store_faults::{Method, StoreFault};
use super::unmarked::{Trouble, key};
use super::world::{Ask, Rules, World, millis, seconds};

/// More than any test uses.
const ALWAYS: usize = 1_000_000;

/// Longer than the store is unavailable in any of these tests, but for those of the deadline itself.
pub(super) const DEADLINE: Duration = seconds(300);

pub(super) fn rules() -> Rules {
    Rules { durable: true, deadline: DEADLINE, ..Rules::mode(TaskMode::Always) }
}

/// Asks after a second, returns a second after it was answered.
pub(super) fn asks() -> Script {
    Script::of([elicits("a", 1), heard(1), returns(2)])
}

pub(super) async fn get(world: &World, id: &str) -> Value {
    result_of(world, &Ask::task("tasks/get", id).declaring(declared())).await
}

pub(super) fn declared() -> Value {
    json!({ "elicitation": { "form": {}, "url": {} }, "extensions": { "io.modelcontextprotocol/tasks": {} } })
}

/// A call that becomes a task.
pub(super) async fn task(world: &World, ask: Ask) -> String {
    world.handle(&ask.declaring(declared())).await
}

/// Waits until a task asks something; returns the keys of its questions.
pub(super) async fn asking(world: &World, id: &str) -> Vec<String> {
    for _ in 0..60 {
        let task = get(world, id).await;
        if let Some(open) = task["inputRequests"].as_object() {
            return open.keys().cloned().collect();
        }
        tokio::time::sleep(seconds(1)).await;
    }
    panic!("it asks nothing: {}", get(world, id).await);
}

pub(super) async fn answer(world: &World, id: &str, key: &str) -> Value {
    let update = Ask::task("tasks/update", id).declaring(declared()).member("inputResponses", json!({ key: accept() }));
    world.send(&update).await.json().await
}

/// How a task ends, once the store is back.
pub(super) async fn ends(world: &World, id: &str) -> Value {
    for _ in 0..200 {
        let task = get(world, id).await;
        world.every_row_is_run().await;
        if !matches!(task["status"].as_str(), Some("working" | "input_required")) {
            return task;
        }
        tokio::time::sleep(seconds(1)).await;
    }
    panic!("it does not end: {}", get(world, id).await);
}

/// A row, also a hidden one.
pub(super) async fn row(world: &World, key: &TaskKey) -> Option<Arc<Task>> {
    world.store.load(key, Timestamp::from_millis(0)).await.unwrap().map(|row| row.task)
}

/// A task whose server asks something while the store is in trouble.
async fn asked_in(trouble: Trouble, script: Script) -> (World, String) {
    let world = World::with(rules(), script);
    let id = task(&world, Ask::call()).await;
    trouble.strike(&world);
    tokio::time::sleep(seconds(100)).await;
    assert_eq!((answers(&world), world.upstream.cancels()), (Vec::new(), 0), "{trouble:?}: no question is refused");
    (world, id)
}

/// F71: a question that the store does not take is asked once it is back: once, though it may be in the row.
#[tokio::test(start_paused = true)]
async fn f71_a_question_waits_for_the_store_and_is_asked_once() {
    for trouble in Trouble::EACH {
        let (world, id) = asked_in(trouble, asks()).await;
        world.store.faults.heal();
        let keys = asking(&world, &id).await;
        tokio::time::sleep(seconds(20)).await;
        assert_eq!(asking(&world, &id).await, keys, "{trouble:?}");
        assert_eq!(keys.len(), 1, "{trouble:?}");
        assert!(answer(&world, &id, &keys[0]).await["result"].is_object());
        check_done(&ends(&world, &id).await["result"]);
        assert_eq!(answers(&world).len(), 1, "{trouble:?}");
        world.is_idle().await;
    }
}

/// Later questions come in their order behind it.
#[tokio::test(start_paused = true)]
async fn questions_that_wait_for_the_store_keep_their_order() {
    for trouble in Trouble::EACH {
        let (world, id) =
            asked_in(trouble, Script::of([elicits("a", 1), elicits("b", 2), elicits("c", 3), heard(3), returns(4)]))
                .await;
        world.store.faults.heal();
        tokio::time::sleep(seconds(20)).await;
        let keys = asking(&world, &id).await;
        assert_eq!(keys.len(), 3, "{trouble:?}");
        for key in &keys {
            answer(&world, &id, key).await;
        }
        check_done(&ends(&world, &id).await["result"]);
        let told: Vec<_> = answers(&world)
            .into_iter()
            .map(|saw| if let Saw::Answer { ask, .. } = saw { ask } else { unreachable!() })
            .collect();
        assert_eq!(told, [r#""a""#, r#""b""#, r#""c""#], "{trouble:?}");
        world.is_idle().await;
    }
}

/// The time that a call has to run goes on.
#[tokio::test(start_paused = true)]
async fn a_call_whose_question_waits_for_the_store_ends_at_its_deadline() {
    for trouble in Trouble::EACH {
        let (world, id) = asked_in(trouble, asks()).await;
        tokio::time::sleep(DEADLINE).await;
        assert_eq!((answers(&world).len(), world.upstream.cancels()), (0, 1), "{trouble:?}");
        world.store.faults.heal();
        let task = ends(&world, &id).await;
        assert_eq!(task["error"]["data"]["reason"], "deadline_exceeded", "{trouble:?} {task}");
        world.is_idle().await;
    }
}

/// L6: a cancel takes effect while the call waits, and no question follows it.
#[tokio::test(start_paused = true)]
async fn l6_a_cancel_ends_a_call_whose_question_waits_for_the_store() {
    for trouble in Trouble::EACH {
        let (world, id) = asked_in(trouble, asks()).await;
        world.store.faults.heal();
        world.engine.cancel(&key(&id)).await.unwrap();
        assert_eq!(world.get(&id).await["status"], "cancelled", "{trouble:?}");
        tokio::time::sleep(seconds(60)).await;
        assert_eq!((answers(&world).len(), world.upstream.cancels()), (0, 1), "{trouble:?}");
        world.is_idle().await;
    }
}

/// F76: the end of all calls ends it, too.
#[tokio::test(start_paused = true)]
async fn f76_a_question_that_waits_for_the_store_holds_up_no_end_of_the_calls() {
    for trouble in Trouble::EACH {
        let (world, _) = asked_in(trouble, asks()).await;
        assert_eq!(world.engine.drain(seconds(10)).await, 1, "{trouble:?}: a call that was sent is waited for");
        world.engine.end_calls(Reason::ReplicaLost);
        assert_eq!(world.engine.drain(seconds(1)).await, 0, "{trouble:?}");
        assert_eq!((answers(&world).len(), world.upstream.cancels()), (0, 0), "{trouble:?}");
    }
}

/// GW-41: a call is not left to a later process behind a question that only this process knows.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_left_to_a_later_life_is_left_with_its_question() {
    for trouble in Trouble::EACH {
        let (world, id) = asked_in(trouble, asks().resumed(Resumes::Follows)).await;
        let (left, ()) = tokio::join!(world.engine.drain(seconds(60)), async {
            tokio::time::sleep(seconds(10)).await;
            world.store.faults.heal();
        });
        assert_eq!(left, 0, "{trouble:?}");
        let next = world.next_life();
        next.recover().await;
        let keys = asking(&next, &id).await;
        assert_eq!(keys.len(), 1, "{trouble:?}");
        answer(&next, &id, &keys[0]).await;
        check_done(&ends(&next, &id).await["result"]);
        assert_eq!(answers(&next).len(), 1, "{trouble:?}");
        next.is_idle().await;
    }
}

/// GW-41: nor before one that was cancelled: the later process would show it until its deadline.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_left_to_a_later_life_is_left_without_the_question_that_was_taken_back() {
    for trouble in Trouble::EACH {
        let script = Script::of([elicits("a", 1), (seconds(5), Happens::Withdraws("a")), returns(200)]);
        let world = World::with(rules(), script.resumed(Resumes::Follows));
        let id = task(&world, Ask::call()).await;
        assert_eq!(asking(&world, &id).await.len(), 1, "{trouble:?}");
        tokio::time::sleep(seconds(2)).await;
        trouble.strike(&world);
        tokio::time::sleep(seconds(4)).await;
        let (left, ()) = tokio::join!(world.engine.drain(seconds(60)), async {
            tokio::time::sleep(millis(10)).await;
            world.store.faults.heal();
        });
        assert_eq!(left, 0, "{trouble:?}");
        let next = world.next_life();
        next.recover().await;
        assert_eq!(next.get(&id).await["status"], "working", "{trouble:?}");
        check_done(&ends(&next, &id).await["result"]);
        next.is_idle().await;
    }
}

/// A question that is cancelled while it waits is not asked.
#[tokio::test(start_paused = true)]
async fn a_question_that_is_taken_back_while_it_waits_is_not_asked() {
    for trouble in Trouble::EACH {
        let script = Script::of([elicits("a", 1), (seconds(2), Happens::Withdraws("a")), returns(200)]);
        let (world, id) = asked_in(trouble, script).await;
        world.store.faults.heal();
        tokio::time::sleep(seconds(20)).await;
        assert_eq!(world.get(&id).await["status"], "working", "{trouble:?}");
        check_done(&ends(&world, &id).await["result"]);
        world.is_idle().await;
    }
}

/// U29: a cancelled question is kept until the task knows of it, and so counts like an open one.
#[tokio::test(start_paused = true)]
async fn u29_questions_that_are_taken_back_while_the_store_is_away_are_bounded() {
    const ASKED: usize = 40;
    const REFUSED: usize = ASKED - 32;
    let names = (0..ASKED).map(|number| &*format!("q{number}").leak());
    let mut steps: Vec<_> = names.flat_map(|name| [elicits(name, 1), (seconds(0), Happens::Withdraws(name))]).collect();
    steps.push(returns(100));
    let world = World::with(rules(), Script::of(steps));
    let id = task(&world, Ask::call()).await;
    Trouble::NotMade.strike(&world);
    tokio::time::sleep(seconds(60)).await;
    assert_eq!(answers(&world).len(), REFUSED);
    world.store.faults.heal();
    check_done(&ends(&world, &id).await["result"]);
    world.is_idle().await;
}

/// An open question reaches its deadline during an outage of the store: its server gets the cancel once the task has it.
#[tokio::test(start_paused = true)]
async fn a_question_is_given_up_once_the_store_is_back() {
    for trouble in Trouble::EACH {
        let world = World::with(Rules { input_deadline: seconds(10), ..rules() }, asks());
        let id = task(&world, Ask::call()).await;
        assert_eq!(asking(&world, &id).await.len(), 1);
        trouble.strike(&world);
        tokio::time::sleep(seconds(100)).await;
        assert_eq!(answers(&world), [], "{trouble:?}");
        world.store.faults.heal();
        check_done(&ends(&world, &id).await["result"]);
        assert_eq!(answers(&world).len(), 1, "{trouble:?}: a refusal, once");
        world.is_idle().await;
    }
}

/// MOD-26: the first question of a call without a row waits as well, and so does one that makes a task.
#[tokio::test(start_paused = true)]
async fn the_first_question_of_a_plain_call_waits_for_the_store() {
    for mode in [TaskMode::Never, TaskMode::Auto] {
        for fault in [StoreFault::Fails, StoreFault::AppliesAndFails, StoreFault::FailsUnsure] {
            let world = World::with(Rules::mode(mode), asks());
            world.store.faults.strike(Method::Insert, fault, 5);
            let asked = round(&result_of(&world, &plain()).await);
            assert!(world.age() > seconds(2), "{mode:?} {fault:?}");
            check_done(&result_of(&world, &again(&plain(), &asked, &["r0"])).await);
            assert_eq!(answers(&world).len(), 1, "{mode:?} {fault:?}");
            world.is_idle().await;
        }
    }
    // Within the grace it makes the task, as ever.
    let world = World::with(Rules::mode(TaskMode::Auto), asks());
    world.store.faults.strike(Method::Insert, StoreFault::Fails, 2);
    let id = world.handle(&modern()).await;
    let keys = asking(&world, &id).await;
    answer(&world, &id, &keys[0]).await;
    check_done(&ends(&world, &id).await["result"]);
    world.is_idle().await;
}

/// Its client may leave meanwhile.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_its_question_waits_cancels_its_call() {
    let world = World::with(Rules::mode(TaskMode::Never), asks());
    world.store.faults.strike(Method::Insert, StoreFault::Fails, ALWAYS);
    let waiting = world.client(&plain());
    tokio::time::sleep(seconds(10)).await;
    waiting.abort();
    world.upstream.sees(&Saw::Cancel(0)).await;
    world.is_idle().await;
}

/// MOD-26: a round that cannot be read when it is due is asked once it can.
#[tokio::test(start_paused = true)]
async fn a_round_that_cannot_be_read_is_asked_once_it_can() {
    let world = World::with(Rules::mode(TaskMode::Never), asks());
    let ask = plain();
    let (asked, ()) = tokio::join!(result_of(&world, &ask), async {
        tokio::time::sleep(seconds(1) + millis(50)).await;
        world.store.faults.strike(Method::Load, StoreFault::Fails, 5);
    });
    check_done(&result_of(&world, &again(&plain(), &round(&asked), &["r0"])).await);
    assert_eq!(answers(&world).len(), 1);
    world.is_idle().await;
}

/// MOD-28: answers that the store does not take may be given again: the call goes on, and waits for them.
#[tokio::test(start_paused = true)]
async fn answers_of_a_round_that_were_not_stored_may_be_given_again() {
    for fault in [StoreFault::Fails, StoreFault::FailsUnsure] {
        let world = World::with(Rules::mode(TaskMode::Never), asks());
        let asked = round(&result_of(&world, &plain()).await);
        let ask = again(&plain(), &asked, &["r0"]);
        world.store.faults.strike(Method::Replace, fault, ALWAYS);
        let refused = world.send(&ask).await.json().await;
        assert_eq!(refused["error"]["data"]["reason"], "store_failed", "{fault:?} {refused}");
        world.store.faults.heal();
        check_done(&result_of(&world, &ask).await);
        assert_eq!(answers(&world).len(), 1, "{fault:?}");
        world.is_idle().await;
    }
}

const DEMAND: &str =
    r#"{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://a.example/","message":"go"}]}"#;

/// A task whose user was where its server sent them; the store's trouble begins before the call may be made again.
async fn demanded(trouble: Trouble) -> (World, String) {
    let asked = std::sync::atomic::AtomicBool::new(false);
    let world = World::choosing(rules(), move |_| match asked.swap(true, std::sync::atomic::Ordering::Relaxed) {
        // The offset of the event before the error is stored.
        false => Script::of([
            (seconds(1), Happens::Progress(1.0, "at work")),
            (seconds(5), Happens::FaultsWith(-32042, DEMAND)),
        ])
        .resumed(Resumes::Follows),
        true => Script::of([returns(1)]),
    });
    let id = task(&world, Ask::call()).await;
    let keys = asking(&world, &id).await;
    // One by which the answer is accepted, one by which it is handed over; then the call is made again.
    world.store.faults.strike(Method::Replace, StoreFault::Delays(seconds(1)), 2);
    let (taken, ()) = tokio::join!(answer(&world, &id, &keys[0]), async {
        tokio::time::sleep(millis(1_500)).await;
        trouble.strike(&world);
    });
    assert!(taken["result"].is_object(), "{trouble:?} {taken}");
    tokio::time::sleep(seconds(100)).await;
    assert_eq!(world.upstream.calls().len(), 1, "{trouble:?}: nothing is sent again yet");
    (world, id)
}

/// T-49: a call that is to be made again waits for the store, and is made again once.
#[tokio::test(start_paused = true)]
async fn t_49_a_call_that_is_made_again_waits_for_the_store() {
    for trouble in Trouble::EACH {
        let (world, id) = demanded(trouble).await;
        world.store.faults.heal();
        check_done(&ends(&world, &id).await["result"]);
        assert_eq!(world.upstream.calls().len(), 2, "{trouble:?}");
        world.is_idle().await;

        let (world, id) = demanded(trouble).await;
        tokio::time::sleep(DEADLINE).await;
        world.store.faults.heal();
        let task = ends(&world, &id).await;
        assert_eq!(task["error"]["data"]["reason"], "deadline_exceeded", "{trouble:?} {task}");
        assert_eq!(world.upstream.calls().len(), 1, "{trouble:?}");

        let (world, id) = demanded(trouble).await;
        world.store.faults.heal();
        world.engine.cancel(&key(&id)).await.unwrap();
        tokio::time::sleep(seconds(60)).await;
        assert_eq!((world.get(&id).await["status"].as_str(), world.upstream.calls().len()), (Some("cancelled"), 1));

        let (world, _) = demanded(trouble).await;
        world.engine.end_calls(Reason::ReplicaLost);
        assert_eq!(world.engine.drain(seconds(1)).await, 0, "{trouble:?}");
    }
}

/// F76: an outcome that waits ends with the calls, and its task is as it is stored.
#[tokio::test(start_paused = true)]
async fn f76_an_outcome_that_waits_for_the_store_ends_with_the_calls() {
    for trouble in Trouble::EACH {
        let world = World::with(rules(), Script::returns(seconds(5), "done"));
        let id = task(&world, Ask::call()).await;
        trouble.strike(&world);
        // One that is seen in its row is not waited for.
        let waits = usize::from(!matches!(trouble, Trouble::MadeAndInDoubt));
        assert_eq!(world.engine.drain(seconds(100)).await, waits, "{trouble:?}");
        world.engine.end_calls(Reason::ReplicaLost);
        assert_eq!(world.engine.drain(seconds(1)).await, 0, "{trouble:?}");
        let next = world.next_life();
        next.store.faults.heal();
        next.recover().await;
        let is_made = matches!(trouble, Trouble::Made | Trouble::MadeAndInDoubt);
        assert_eq!(ends(&next, &id).await["status"], if is_made { "completed" } else { "failed" }, "{trouble:?}");
    }
}

/// T-27, F76: so does a row without a handle that cannot be removed.
#[tokio::test(start_paused = true)]
async fn f76_a_row_that_cannot_be_dropped_holds_up_no_end_of_the_calls() {
    let world = World::with(rules(), Script::returns(seconds(5), "done"));
    world.store.hold_returns();
    world.store.faults.strike(Method::Remove, StoreFault::Fails, ALWAYS);
    let stream = world.start();
    tokio::time::sleep(seconds(1)).await;
    drop(stream);
    world.store.returns.add_permits(1);
    assert_eq!(world.engine.drain(seconds(100)).await, 1);
    world.engine.end_calls(Reason::GatewayRestart);
    assert_eq!(world.engine.drain(seconds(1)).await, 0);
    assert_eq!(world.upstream.calls().len(), 0);
}

/// MOD-20: a held call whose client left is settled once the store is back.
#[tokio::test(start_paused = true)]
async fn a_held_call_whose_client_left_is_settled_once_the_store_is_back() {
    let world = World::with(Rules::mode(TaskMode::Never), Script::of([elicits("a", 1), heard(1), returns(60)]));
    let asked = round(&result_of(&world, &plain()).await);
    let waiting = world.client(&again(&plain(), &asked, &["r0"]));
    tokio::time::sleep(seconds(10)).await;
    world.store.faults.strike(Method::Replace, StoreFault::Fails, ALWAYS);
    waiting.abort();
    world.upstream.sees(&Saw::Cancel(0)).await;
    tokio::time::sleep(seconds(30)).await;
    assert_eq!(world.store.usage().unsettled, 1);
    world.store.faults.heal();
    world.is_idle().await;
}

/// MOD-10: a client learns at once which capability it must declare.
#[tokio::test(start_paused = true)]
async fn a_call_that_its_client_cannot_serve_is_refused_while_the_store_is_away() {
    let asks = Happens::AsksFor("sampling/createMessage", "{}");
    let world = World::with(Rules::mode(TaskMode::Never), Script::of([elicits("a", 1), heard(1), (seconds(5), asks)]));
    let asked = round(&result_of(&world, &plain()).await);
    let retry = again(&plain(), &asked, &["r0"]).declaring(json!({ "elicitation": {} }));
    let (refused, ()) = tokio::join!(world.send(&retry), async {
        tokio::time::sleep(seconds(1)).await;
        world.store.faults.strike(Method::Replace, StoreFault::Fails, ALWAYS);
    });
    assert_eq!(refused.json().await["error"]["code"], -32021);
    assert_eq!(world.store.usage().unsettled, 1, "the store is away still");
    world.store.faults.heal();
    world.is_idle().await;
}

/// GW-24: the last thing that was said before the store was back is shown.
#[tokio::test(start_paused = true)]
async fn progress_waits_for_the_store() {
    let script = Script::of([(seconds(1), Happens::Progress(1.0, "one")), (seconds(2), Happens::Progress(2.0, "two"))]);
    let world = World::with(rules(), script);
    let id = task(&world, Ask::call()).await;
    world.store.faults.strike(Method::Replace, StoreFault::Fails, ALWAYS);
    tokio::time::sleep(seconds(20)).await;
    world.store.faults.heal();
    tokio::time::sleep(seconds(10)).await;
    assert_eq!(world.get(&id).await["statusMessage"], "two");
    world.engine.cancel(&key(&id)).await.unwrap();
    world.is_idle().await;
}
