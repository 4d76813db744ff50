//! Modes other than `auto`, and calls without a permit for a further task.

use serde_json::json;
use taskgate::store::TaskStore;
use taskgate::task::TaskMode;

use super::script::{Saw, Script};
use super::world::{Ask, Rules, World, millis, seconds};

/// EXT-12, GW-32: insert, answer, then begin.
#[tokio::test(start_paused = true)]
async fn always_and_required_store_the_task_before_the_upstream_sees_anything() {
    for mode in [TaskMode::Always, TaskMode::Required] {
        let world = World::with(Rules::mode(mode), Script::returns(millis(1), "done"));
        world.store.hold_inserts();
        let client = world.client(&Ask::call());
        tokio::time::sleep(seconds(60)).await;
        assert_eq!(world.upstream.saw(), [], "{mode:?}");
        world.store.inserts.add_permits(1);
        let answer = client.await.unwrap();
        assert_eq!(answer.at, seconds(60), "the handle comes at once, however fast the call is");
        let id = answer.json().await["result"]["taskId"].as_str().unwrap().to_owned();
        world.upstream.sees(&Saw::Begin { call: 0, rows: 1 }).await;
        assert_eq!(world.settled(&id).await["status"], "completed");
        world.is_idle().await;
    }
}

/// EXT-02, EXT-03, EXT-62, MOD-10, MOD-33, B118.
#[tokio::test(start_paused = true)]
async fn required_without_the_extension_is_refused_and_nothing_is_sent() {
    let world = World::with(Rules::mode(TaskMode::Required), Script::silent());
    for capabilities in [json!({}), json!({ "tasks": { "requests": { "tools": { "call": {} } } } })] {
        let answer = world.send(&Ask::call().declaring(capabilities)).await;
        assert_eq!(answer.status, 400);
        let error = answer.json().await["error"].take();
        assert_eq!(error["code"], -32021);
        let required = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
        assert_eq!(error["data"]["requiredCapabilities"], required);
    }
    assert_eq!(world.upstream.saw(), []);
}

/// EXT-02, EXT-04: a client that did not declare the extension on this request never gets a task.
#[tokio::test(start_paused = true)]
async fn calls_that_may_not_become_tasks_are_held_to_their_end() {
    for (mode, ask) in [
        (TaskMode::Never, Ask::call()),
        (TaskMode::Never, Ask::call().without_extension()),
        (TaskMode::Auto, Ask::call().without_extension()),
        (TaskMode::Always, Ask::call().without_extension()),
    ] {
        let world = World::with(Rules::mode(mode), Script::returns(seconds(10), "done"));
        let answer = world.send(&ask).await;
        assert_eq!(answer.at, seconds(10), "{mode:?}");
        assert_eq!(answer.json().await["result"]["resultType"], "complete");
        assert_eq!(world.store.inserted(), 0);
        world.is_idle().await;
    }
}

/// EXT-05, MOD-26: with any policy of tools, other requests are answered plainly.
#[tokio::test(start_paused = true)]
async fn only_tool_calls_become_tasks() {
    for ask in [
        Ask::named("prompts/get", "name", "p"),
        Ask::named("resources/read", "uri", "file:///a"),
        Ask::new("completion/complete", json!({})),
    ] {
        for mode in [TaskMode::Auto, TaskMode::Required] {
            let world = World::with(Rules::mode(mode), Script::returns(seconds(14), "done"));
            let answer = world.send(&ask).await;
            assert_eq!((answer.at, answer.is_stream()), (seconds(14), false), "{ask:?}");
            assert_eq!(answer.json().await["result"]["resultType"], "complete");
            assert_eq!(world.store.inserted(), 0);
            world.is_idle().await;
        }
    }
}

/// EXT-59: a request for a task of the older flavour has no meaning here, and the upstream does not get it.
#[tokio::test(start_paused = true)]
async fn a_task_parameter_neither_makes_a_task_nor_reaches_the_upstream() {
    let world = World::with(Rules::default(), Script::returns(millis(1), "done"));
    let ask = Ask::call().arguments(json!({ "n": 1 })).member("task", json!({ "ttl": 60_000 }));
    assert_eq!(world.send(&ask).await.json().await["result"]["resultType"], "complete");
    assert_eq!(world.upstream.calls()[0].params, r#"{"arguments":{"n":1},"name":"work"}"#);
}

/// T-58.
#[tokio::test(start_paused = true)]
async fn with_no_task_place_free_auto_runs_plainly() {
    let rules = Rules { tasks_max: 1, ..Rules::default() };
    let world = World::with(rules, Script::returns(seconds(30), "done"));
    let id = world.handle(&Ask::call()).await;
    let answer = world.send(&Ask::call().accepting(taskgate::face::http::AcceptedTypes::Json)).await;
    assert_eq!(answer.at, seconds(32));
    assert_eq!(answer.json().await["result"]["content"][0]["text"], "done");
    assert_eq!(world.settled(&id).await["status"], "completed");
    assert_eq!(world.store.usage().tasks, 1);
    world.is_idle().await;
}

/// T-58, L4: 429 promises that nothing was sent.
/// L25-56.
#[tokio::test(start_paused = true)]
async fn with_no_task_place_free_always_and_required_are_refused() {
    for mode in [TaskMode::Always, TaskMode::Required] {
        let rules = Rules { tasks_max: 1, ..Rules::mode(mode) };
        let world = World::with(rules, Script::returns(seconds(30), "done"));
        let id = world.handle(&Ask::call()).await;
        let answer = world.send(&Ask::call()).await;
        assert_eq!((answer.status, answer.headers["retry-after"].as_bytes()), (429, &b"1"[..]));
        let error = answer.json().await["error"].take();
        assert_eq!(error["code"], -32603);
        assert_eq!(error["data"], json!({ "source": "gateway", "reason": "too_many_tasks", "executed": "no" }));
        assert_eq!(world.upstream.calls().len(), 1);
        assert_eq!(world.settled(&id).await["status"], "completed");
        let again = world.handle(&Ask::call()).await;
        assert_eq!(world.settled(&again).await["status"], "completed", "the place is free again");
        world.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_full_store_always_is_refused_and_nothing_is_sent() {
    let rules = Rules { stored_bytes_max: 1024, ..Rules::mode(TaskMode::Always) };
    let world = World::with(rules, Script::returns(seconds(1), "done"));
    let id = world.handle(&Ask::call()).await;
    let answer = world.send(&Ask::call()).await;
    assert_eq!(answer.status, 503);
    let error = answer.json().await["error"].take();
    assert_eq!(error["data"], json!({ "source": "gateway", "reason": "store_full", "executed": "no" }));
    assert_eq!(world.upstream.calls().len(), 1);
    assert_eq!(world.settled(&id).await["status"], "completed");
    world.is_idle().await;
}

/// L8: a result that the store has no room for is not lost in silence.
#[tokio::test(start_paused = true)]
async fn a_result_that_the_store_has_no_room_for_settles_the_task_as_a_fault() {
    let rules = Rules { stored_bytes_max: 2048, ..Rules::mode(TaskMode::Always) };
    let world = World::with(rules, Script::returns(seconds(1), &"x".repeat(4096)));
    let id = world.handle(&Ask::call()).await;
    let task = world.settled(&id).await;
    assert_eq!((&task["status"], &task["error"]["code"]), (&json!("failed"), &json!(-32603)));
    assert_eq!(task["error"]["data"], json!({ "source": "gateway", "reason": "store_full", "executed": "yes" }));
}

/// A plain call that waits too long for its slot was certainly not sent.
#[tokio::test(start_paused = true)]
async fn a_plain_call_waits_for_its_slot_only_so_long() {
    let rules = Rules { in_flight_max: 1, ..Rules::mode(TaskMode::Never) };
    let world = World::with(rules, Script::returns(seconds(60), "done"));
    let first = world.client(&Ask::call());
    tokio::time::sleep(millis(1)).await;
    let answer = world.send(&Ask::call()).await;
    assert_eq!((answer.at, answer.status), (seconds(10) + millis(1), 503));
    assert_eq!(answer.json().await["error"]["data"]["reason"], "queue_deadline");
    let first = first.await.unwrap();
    assert!(first.is_stream(), "a silent call shows that it lives");
    assert_eq!(first.events().await.last().unwrap().0, seconds(60));
    world.is_idle().await;
}
