//! The answer to a 2025-11-25 creation waits a moment for the outcome of a quick tool, so that the first poll finds it.

use serde_json::{Value, json};
use taskgate::store::TaskStore;
use tokio::time::timeout;

use super::bridged::Caller;
use super::script::{Happens, Saw, Script, result};
use super::world::{Rules, World, millis, seconds};

fn call() -> Value {
    json!({"id": 1, "method": "tools/call", "params": {"name": "work", "task": {}}})
}

/// The handle, when it came, and how the task stands right after it.
async fn made(world: &World) -> (Value, std::time::Duration, Value) {
    let caller = Caller::open(world, json!({"elicitation": {}})).await;
    let answer = caller.post(call()).await;
    let at = answer.at;
    let handle = answer.json().await["result"]["task"].take();
    let get = json!({"id": 2, "method": "tasks/get", "params": {"taskId": handle["taskId"]}});
    let status = caller.post(get).await.json().await["result"]["status"].take();
    (handle["status"].clone(), at, status)
}

/// L25-10, T-79: with any state meanwhile, the task begins as `working`.
#[tokio::test(start_paused = true)]
async fn t_79_the_first_poll_of_a_quick_call_finds_its_end() {
    let asks = || Script::of([(millis(4), Happens::Elicits("q"))]);
    for (script, held_until, status) in [
        (Script::returns(millis(4), "done"), millis(4), "completed"),
        (Script::of([(millis(4), Happens::Faults(-32000, "no"))]), millis(4), "failed"),
        (asks(), millis(4), "input_required"),
        (Script::of([(millis(4), Happens::Progress(1.0, "on"))]), millis(100), "working"),
        (Script::returns(millis(101), "done"), millis(100), "working"),
        (Script::silent(), millis(100), "working"),
    ] {
        let world = World::with(Rules::default(), script.clone());
        assert_eq!(made(&world).await, (json!("working"), held_until, json!(status)), "{script:?}");
    }
}

/// GW-37: the row is there before the call is sent, however quick its answer is (L25-10, F06).
#[tokio::test(start_paused = true)]
async fn the_row_is_stored_before_the_call_is_sent() {
    let world = World::with(Rules::default(), Script::of([(millis(4), Happens::Returns(result("done")))]));
    made(&world).await;
    assert_eq!(world.upstream.saw()[0], Saw::Begin { call: 0, rows: 1 });
    world.is_idle().await;
}

/// T-27: no client knows a task whose client disconnected before it had the handle.
#[tokio::test(start_paused = true)]
async fn t_27_a_client_that_leaves_in_that_moment_leaves_no_call_behind() {
    let world = World::with(Rules::default(), Script::silent());
    let caller = Caller::open(&world, json!({})).await;
    assert!(timeout(millis(50), caller.post(call())).await.is_err(), "no handle yet");
    world.upstream.sees(&Saw::Cancel(0)).await;
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(world.store.usage().unsettled, 0);
    world.is_idle().await;
}
