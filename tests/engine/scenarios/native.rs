//! Upstreams with tasks of their own, as the engine and the clients see them: which calls ask for such a task, and the
//! messages that only such a task has.

use std::time::Duration;

use taskgate::task::TaskMode;
use taskgate::upstream::UpstreamTaskMode;

use super::script::{Happens, Script, result};
use super::world::{Ask, GRACE, Rules, World, millis, seconds};

/// GW-11; the deadline is the one of the tool's policy.
#[tokio::test(start_paused = true)]
async fn upc_05_a_call_asks_for_a_native_task_where_the_tool_wants_one_or_the_call_may_become_one_here() {
    let wanted = UpstreamTaskMode::WhereServed { deadline: seconds(1800) };
    let never = UpstreamTaskMode::Never;
    for (tool, mode, extension, expected) in [
        ("only_as_task", TaskMode::Auto, true, wanted),
        ("only_as_task", TaskMode::Auto, false, wanted),
        ("only_as_task", TaskMode::Never, true, wanted),
        ("work", TaskMode::Auto, true, wanted),
        ("work", TaskMode::Always, true, wanted),
        ("work", TaskMode::Auto, false, never),
        ("work", TaskMode::Never, true, never),
        ("never_as_task", TaskMode::Always, true, never),
        ("mirrored", TaskMode::Always, true, never),
    ] {
        let world = World::with(Rules::mode(mode), Script::returns(Duration::ZERO, "done"));
        let ask = if extension { Ask::tool(tool) } else { Ask::tool(tool).without_extension() };
        world.send(&ask).await.json().await;
        tokio::time::sleep(seconds(1)).await;
        let calls = world.upstream.calls();
        assert_eq!(calls.len(), 1, "{tool} {mode:?}");
        assert_eq!(calls[0].context.native_task, expected, "{tool} {mode:?} {extension}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_status_message_of_an_upstreams_task_is_that_of_ours() {
    let events = [
        (millis(1), Happens::Progress(1.0, "one")),
        (millis(2), Happens::States("two")),
        (GRACE + seconds(1), Happens::States("three")),
        (GRACE + seconds(9), Happens::Returns(result("done"))),
    ];
    let world = World::with(Rules::default(), Script::of(events));
    let id = world.handle(&Ask::call()).await;
    assert_eq!(world.get(&id).await["statusMessage"], "two", "held back by the grace period, and newer than progress");
    tokio::time::sleep(seconds(2)).await;
    assert_eq!(world.get(&id).await["statusMessage"], "three");
    assert_eq!(world.settled(&id).await["status"], "completed");
    world.is_idle().await;
}

/// GW-24: no number belongs to it that could be kept growing.
#[tokio::test(start_paused = true)]
async fn the_status_message_of_an_upstreams_task_is_no_progress_of_a_plain_call() {
    let events = [(millis(1), Happens::States("one")), (seconds(9), Happens::Returns(result("done")))];
    let world = World::with(Rules::default(), Script::of(events));
    let answer = world.send(&Ask::call().without_extension().token(7)).await;
    assert!(!answer.is_stream(), "GW-24: nothing came before the result");
    assert_eq!(answer.json().await["result"]["content"][0]["text"], "done");
    world.is_idle().await;
}

/// T-01, GW-31.
#[tokio::test(start_paused = true)]
async fn a_task_that_the_upstream_cancels_is_cancelled_here_too() {
    let events = [(GRACE + seconds(1), Happens::States("maintenance")), (GRACE + seconds(2), Happens::Cancels)];
    let world = World::with(Rules::default(), Script::of(events));
    let id = world.handle(&Ask::call()).await;
    let task = world.settled(&id).await;
    let message = Some("The task was cancelled; last message: maintenance");
    assert_eq!((task["status"].as_str(), task["statusMessage"].as_str()), (Some("cancelled"), message));
    assert_eq!(world.upstream.cancels(), 0, "it knows");
    world.is_idle().await;

    let plain = World::with(Rules::default(), Script::of([(seconds(1), Happens::Cancels)]));
    let answer = plain.send(&Ask::call().without_extension()).await.json().await;
    assert_eq!(answer["error"]["code"], -32603, "a plain call has no such end");
    plain.is_idle().await;
}
