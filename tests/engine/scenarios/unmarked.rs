//! Tasks that get their permit at the server while the store is unavailable: they wait for it, and each is sent once, or not at all.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use taskgate::engine::sweeper::sweep;
use taskgate::task::{AfterCrash, Attempt, Phase, Principal, Reason, TaskId, TaskKey, TaskMode};
use taskgate::upstream::limits::CallPermit;
use tokio::time::timeout;

use super::script::{Happens, Saw, Script};
use super::store_faults::{Method, StoreFault};
use super::world::{Ask, Rules, World, millis, seconds};

/// More than any test uses.
const ALWAYS: usize = 1_000_000;

/// When no try is under way: each takes up to 150 ms, and the pauses grow.
const BETWEEN_TRIES: Duration = millis(900);

/// One call at a time, which is a task.
fn rules() -> Rules {
    Rules { in_flight_max: 1, durable: true, ..Rules::mode(TaskMode::Always) }
}

fn returns() -> Script {
    Script::returns(seconds(5), "done")
}

pub(super) fn key(id: &str) -> TaskKey {
    TaskKey { owner: Principal::local(), id: TaskId::parse(id).unwrap() }
}

/// A task that waits for the place that another has.
async fn waiting(world: &World) -> (String, CallPermit) {
    let place = world.permits.try_acquire(&Principal::new("another")).unwrap();
    let id = world.handle(&Ask::call()).await;
    assert_eq!(world.task(&key(&id)).await.phase, Phase::Queued);
    (id, place)
}

/// The fault of the next mark, and of the store before it works again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// No change is made.
    Away,
    /// The same, since the disk below the store is full.
    NoRoom,
    /// It is made, with an unknown commit; then nothing can be read for a while.
    Made,
    /// The same, and then the store cannot say for long how the row stands.
    MadeAndInDoubt,
    /// It is not made, with an unknown commit.
    NotMade,
}

impl Trouble {
    pub(super) const EACH: [Self; 5] = [Self::Away, Self::NoRoom, Self::Made, Self::MadeAndInDoubt, Self::NotMade];

    pub(super) fn strike(self, world: &World) {
        let faults = &world.store.faults;
        match self {
            Self::Away => faults.strike(Method::Replace, StoreFault::Fails, ALWAYS),
            Self::NoRoom => faults.strike(Method::Replace, StoreFault::NoRoom, ALWAYS),
            Self::Made => {
                world.store.blind_after.store(ALWAYS, Ordering::Relaxed);
                faults.strike(Method::Replace, StoreFault::AppliesAndFails, 1);
            }
            Self::MadeAndInDoubt => {
                faults.strike(Method::SettleDoubt, StoreFault::Fails, ALWAYS);
                faults.strike(Method::Replace, StoreFault::AppliesAndFails, 1);
            }
            Self::NotMade => {
                faults.strike(Method::SettleDoubt, StoreFault::Fails, ALWAYS);
                faults.strike(Method::Replace, StoreFault::FailsUnsure, ALWAYS);
            }
        }
    }

    const fn is_made(self) -> bool {
        matches!(self, Self::Made | Self::MadeAndInDoubt)
    }
}

fn why(task: &Value) -> (&str, &str) {
    let data = &task["error"]["data"];
    (data["reason"].as_str().unwrap(), data["executed"].as_str().unwrap())
}

/// L3, L4, GW-37: it waits for the store, and is sent once it is marked.
#[tokio::test(start_paused = true)]
async fn l4_a_task_that_gets_its_permit_during_an_outage_of_the_store_is_sent_after_it() {
    for durable in [true, false] {
        for trouble in Trouble::EACH {
            let world = World::with(Rules { durable, ..rules() }, returns());
            let (id, place) = waiting(&world).await;
            trouble.strike(&world);
            drop(place);
            tokio::time::sleep(seconds(100)).await;
            assert_eq!(world.upstream.saw(), [], "{trouble:?}: nothing is sent without a mark");
            world.store.faults.heal();
            let task =
                timeout(seconds(60), world.settled(&id)).await.unwrap_or_else(|_| panic!("{trouble:?}: it ends"));
            assert_eq!(task["result"]["content"][0]["text"], "done", "{trouble:?} {task}");
            assert_eq!((world.upstream.calls().len(), world.upstream.cancels()), (1, 0), "{trouble:?}");
            world.is_idle().await;
        }
    }
}

/// Its time to run begins when it is sent.
#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_call_that_waits_for_the_store_has_not_begun() {
    let world = World::with(Rules { deadline: seconds(10), ..rules() }, returns());
    let (id, place) = waiting(&world).await;
    Trouble::Away.strike(&world);
    drop(place);
    tokio::time::sleep(seconds(100)).await;
    world.store.faults.heal();
    assert_eq!(world.settled(&id).await["status"], "completed");
    world.is_idle().await;
}

/// L6: with any result of the mark.
#[tokio::test(start_paused = true)]
async fn l6_a_cancel_while_a_task_waits_for_the_store_sends_nothing() {
    for trouble in Trouble::EACH {
        let world = World::with(rules(), returns());
        let (id, place) = waiting(&world).await;
        trouble.strike(&world);
        drop(place);
        tokio::time::sleep(BETWEEN_TRIES).await;
        assert_eq!(world.upstream.saw(), [], "{trouble:?}");
        world.store.faults.heal();
        world.engine.cancel(&key(&id)).await.unwrap();
        assert_eq!(world.get(&id).await["status"], "cancelled", "{trouble:?}");
        tokio::time::sleep(seconds(60)).await;
        assert_eq!(world.upstream.saw(), [], "{trouble:?}");
        world.is_idle().await;
    }
}

/// The task's own time ends it, too.
#[tokio::test(start_paused = true)]
async fn a_task_whose_time_is_over_while_it_waits_for_the_store_is_not_sent() {
    let world = World::with(Rules { ttl: seconds(30), ..rules() }, returns());
    let (id, place) = waiting(&world).await;
    world.store.faults.strike(Method::SettleDoubt, StoreFault::Fails, ALWAYS);
    world.store.faults.strike(Method::Replace, StoreFault::FailsUnsure, ALWAYS);
    drop(place);
    tokio::time::sleep(seconds(31)).await;
    world.store.faults.heal();
    sweep(&world.engine).await.unwrap();
    assert_eq!(why(&world.get(&id).await), ("ttl_expired", "no"));
    tokio::time::sleep(seconds(60)).await;
    assert_eq!(world.upstream.saw(), []);
    world.is_idle().await;
}

/// F75, L4: only the holder of a row in `working` may send it.
#[tokio::test(start_paused = true)]
async fn f75_a_gateway_that_is_replaced_while_a_task_waits_for_the_store_sends_nothing() {
    for trouble in Trouble::EACH {
        let one = World::with(rules(), Script::returns(seconds(20), "done"));
        let other = one.beside();
        let (id, place) = waiting(&one).await;
        trouble.strike(&one);
        drop(place);
        tokio::time::sleep(BETWEEN_TRIES).await;
        assert_eq!(one.upstream.saw(), [], "{trouble:?}");
        // It does not see who has the row before it tries again, while the other one's call runs.
        one.store.faults.strike(Method::Load, StoreFault::Fails, ALWAYS);
        one.store.is_declared_ended();
        tokio::time::sleep(millis(5_500)).await;
        one.store.faults.heal();
        let task = timeout(seconds(60), other.settled(&id)).await.expect("the other one has it");
        if trouble.is_made() {
            assert_eq!(why(&task), ("replica_lost", "unknown"), "{trouble:?}");
        } else {
            assert_eq!(task["status"], "completed", "{trouble:?}");
        }
        tokio::time::sleep(seconds(60)).await;
        let sent = usize::from(!trouble.is_made());
        assert_eq!((one.upstream.calls().len(), one.upstream.cancels()), (sent, 0), "{trouble:?}");
        other.is_idle().await;
        one.is_idle().await;
    }
}

/// F76: after `alone_max`, or where the gateway ends, it is left as it is stored: the gateway that takes it over sends it.
#[tokio::test(start_paused = true)]
async fn f76_a_task_that_waits_for_the_store_when_the_calls_end_is_left_to_the_next_life() {
    for why in [Some(Reason::ReplicaLost), None] {
        let world = World::with(rules(), returns());
        let (id, place) = waiting(&world).await;
        Trouble::Away.strike(&world);
        drop(place);
        tokio::time::sleep(seconds(100)).await;
        why.into_iter().for_each(|why| world.engine.end_calls(why));
        assert_eq!(world.engine.drain(seconds(9)).await, 0, "it is not waited for");
        let next = world.next_life();
        next.store.faults.heal();
        assert_eq!(next.upstream.saw(), []);
        next.recover().await;
        assert_eq!(next.settled(&id).await["status"], "completed");
        assert_eq!(next.upstream.calls().len(), 1);
        next.is_idle().await;
    }
    // Without a next process the drain waits for it, as long as it waits at all.
    let world = World::with(Rules { durable: false, ..rules() }, returns());
    let (_, place) = waiting(&world).await;
    Trouble::Away.strike(&world);
    drop(place);
    assert_eq!(world.engine.drain(seconds(100)).await, 1);
    world.engine.end_calls(Reason::GatewayRestart);
    assert_eq!(world.engine.drain(seconds(9)).await, 0);
    assert_eq!(world.upstream.saw(), []);
}

/// F23: a call that is sent again is one try more, however often that had to be stored.
#[tokio::test(start_paused = true)]
async fn f23_a_call_that_is_sent_again_waits_for_the_store_as_well() {
    for trouble in Trouble::EACH {
        let world = World::with(Rules { after_crash: AfterCrash::Rerun, ..rules() }, returns());
        let id = world.handle(&Ask::call()).await;
        world.upstream.sees(&Saw::Begin { call: 0, rows: 1 }).await;
        let world = world.next_life();
        trouble.strike(&world);
        tokio::join!(world.recover(), async {
            tokio::time::sleep(seconds(100)).await;
            world.store.faults.heal();
        });
        assert_eq!(world.settled(&id).await["status"], "completed", "{trouble:?}");
        assert_eq!(world.upstream.calls().len(), 2, "{trouble:?}");
        assert_eq!(world.task(&key(&id)).await.attempt, Attempt(2), "{trouble:?}");
        world.is_idle().await;
    }
}

/// The elements of a split call are tasks like others.
#[tokio::test(start_paused = true)]
async fn elements_of_a_split_call_wait_for_the_store_as_well() {
    for trouble in Trouble::EACH {
        let world = World::with(Rules { split: Some((2, 10)), ..rules() }, returns());
        let id = world.handle(&Ask::call().arguments(json!({ "items": [1, 2, 3, 4] }))).await;
        tokio::time::sleep(seconds(4)).await;
        // The second one's place comes with the end of the first.
        trouble.strike(&world);
        tokio::time::sleep(seconds(100)).await;
        assert!(!matches!(trouble, Trouble::Away) || world.upstream.calls().len() == 1);
        world.store.faults.heal();
        let task = timeout(seconds(100), world.settled(&id)).await.expect("it ends");
        let texts: Vec<_> = task["result"]["content"].as_array().unwrap().iter().map(|one| &one["text"]).collect();
        assert_eq!(texts, ["done"; 4], "{trouble:?}");
        assert_eq!(world.upstream.calls().len(), 4, "{trouble:?}");
        world.is_idle().await;
    }
}

/// A call whose outcome comes while its row cannot be written is another matter than one that was not sent: nothing of it waits
/// for a mark.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_marked_with_its_row_is_not_marked_again() {
    let world = World::with(rules(), Script::of([(seconds(1), Happens::Returns(super::script::result("done")))]));
    let id = world.handle(&Ask::call()).await;
    assert_eq!(world.store.replaced(), 0);
    assert_eq!(world.settled(&id).await["status"], "completed");
    assert_eq!(world.store.replaced(), 1);
    world.is_idle().await;
}
