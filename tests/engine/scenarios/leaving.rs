//! Clients that leave: before there is a handle this cancels the call, after it nothing happens (T-27, MOD-20).

use taskgate::engine::CallEvent;
use taskgate::store::TaskStore;
use taskgate::task::TaskMode;

use super::script::{Happens, Saw, Script, result};
use super::world::{Ask, GRACE, Rules, World, millis, seconds};

/// Starts a call over the face and leaves after this long.
async fn leave_after(world: &World, ask: &Ask, after: std::time::Duration) {
    let left = tokio::time::timeout(after, world.sending(ask)).await;
    assert!(left.is_err(), "an answer came before the client left");
}

/// F47, MOD-20, EXT-02.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_before_the_handle_cancels_its_call_and_leaves_no_row() {
    for ask in [Ask::call(), Ask::call().without_extension()] {
        let world = World::with(Rules::default(), Script::silent());
        leave_after(&world, &ask, GRACE - millis(1)).await;
        world.upstream.sees(&Saw::Drop(0)).await;
        assert_eq!(world.upstream.saw(), [Saw::Begin { call: 0, rows: 0 }, Saw::Cancel(0), Saw::Drop(0)]);
        assert_eq!(world.age(), GRACE - millis(1), "at once");
        assert_eq!(world.store.inserted(), 0);
        world.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_before_its_call_was_sent_leaves_nothing_at_all() {
    let rules = Rules { in_flight_max: 1, ..Rules::default() };
    let world = World::with(rules, Script::returns(seconds(60), "done"));
    let id = world.handle(&Ask::call()).await;
    leave_after(&world, &Ask::call(), seconds(1)).await;
    assert_eq!(world.settled(&id).await["status"], "completed");
    assert_eq!(world.upstream.calls().len(), 1);
    world.is_idle().await;

    let world = World::with(Rules::default(), Script { begins_after: seconds(60), ..Script::silent() });
    leave_after(&world, &Ask::call(), seconds(1)).await;
    assert_eq!(world.upstream.saw(), [Saw::Begin { call: 0, rows: 0 }]);
    world.is_idle().await;
    assert!(world.age() < seconds(2), "the handshake is dropped too");
}

/// F49: the stream of a call that cannot become a task is the call.
#[tokio::test(start_paused = true)]
async fn a_client_that_closes_its_stream_cancels_its_call() {
    let chatty = [(seconds(1), Happens::Progress(1.0, "one"))];
    let world = World::with(Rules::mode(TaskMode::Never), Script::of(chatty));
    let mut answer = world.send(&Ask::call().token(1)).await;
    assert_eq!(answer.event().await.unwrap().1["method"], "notifications/progress");
    drop(answer);
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!((world.upstream.cancels(), world.age()), (1, seconds(1)));
    world.is_idle().await;
}

/// T-27: the row is there, the insert has not yet returned, the client is gone.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_its_task_is_stored_takes_the_row_with_it() {
    for mode in [TaskMode::Auto, TaskMode::Always] {
        let world = World::with(Rules::mode(mode), Script::silent());
        world.store.hold_returns();
        leave_after(&world, &Ask::call(), GRACE + millis(1)).await;
        assert_eq!(world.store.usage().tasks, 1, "{mode:?}");
        world.store.returns.add_permits(1);
        world.is_idle().await;
        assert_eq!(world.store.usage().tasks, 0, "{mode:?}");
        let (begun, cancelled) = (world.upstream.calls().len(), world.upstream.cancels());
        assert_eq!((begun, cancelled), if mode == TaskMode::Auto { (1, 1) } else { (0, 0) });
    }
}

/// T-27: the handle is on its way to the client, which does not take it.
#[tokio::test(start_paused = true)]
async fn a_handle_that_no_client_took_leaves_no_task() {
    let world = World::with(Rules::default(), Script::silent());
    let stream = world.start();
    tokio::time::sleep(GRACE + millis(1)).await;
    assert_eq!(world.store.usage().tasks, 1, "the handle waits");
    drop(stream);
    world.is_idle().await;
    assert_eq!(world.store.usage().tasks, 0);
    assert_eq!(world.upstream.saw(), [Saw::Begin { call: 0, rows: 0 }, Saw::Cancel(0), Saw::Drop(0)]);
}

/// F48, L1.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_after_the_handle_changes_nothing() {
    for mode in [TaskMode::Auto, TaskMode::Always] {
        let world = World::with(Rules::mode(mode), Script::returns(seconds(60), "done"));
        let mut stream = world.start();
        let Some(CallEvent::Created(task)) = stream.next().await else { panic!("no handle") };
        drop(stream);
        let id = task.key.id.to_string();
        assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
        assert_eq!(world.upstream.cancels(), 0);
        world.is_idle().await;
    }
}

/// The head of the handle is out, its body was not read: the task stays.
#[tokio::test(start_paused = true)]
async fn a_handle_whose_body_was_not_read_is_a_task() {
    let world = World::with(Rules::default(), Script::of([(seconds(9), Happens::Returns(result("done")))]));
    drop(world.send(&Ask::call()).await);
    assert_eq!(world.store.usage().unsettled, 1);
    world.is_idle().await;
    assert_eq!((world.store.usage().tasks, world.age()), (1, seconds(9)));
}
