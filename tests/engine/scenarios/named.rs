//! Calls that their client gave a name: made once, found again, whatever happens in between (B135, T-27, F47).

use serde_json::{Value, json};
use taskgate::store::TaskStore;
use taskgate::task::{EarlyInput, TaskMode};

use super::script::{Happens, Script};
use super::world::{Ask, GRACE, Rules, World, millis, seconds};

const KEY: &str = "io.taskgate/idempotency-key";

fn named(key: &str) -> Ask {
    Ask::call().saying(KEY, key)
}

fn id_of(answer: &Value) -> String {
    answer["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {answer}")).to_owned()
}

/// F47: the row is there before the call is sent.
#[tokio::test(start_paused = true)]
async fn a_named_call_has_its_handle_at_once_and_a_repetition_has_the_same() {
    let world = World::with(Rules::default(), Script::returns(seconds(5), "done"));
    let id = world.handle(&named("k")).await;
    assert_eq!(world.age(), millis(0), "no grace");
    assert_eq!(world.handle(&named("k")).await, id);
    assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
    // Settled, it is found still, and its handle says so.
    let again = world.send(&named("k")).await.json().await;
    assert_eq!((id_of(&again), &again["result"]["status"]), (id, &json!("completed")));
    assert_eq!((world.upstream.calls().len(), world.store.inserted()), (1, 1));
    world.is_idle().await;
}

/// B135.
#[tokio::test(start_paused = true)]
async fn b135_a_name_that_another_call_has_is_refused_and_nothing_is_sent() {
    let world = World::with(Rules::default(), Script::returns(seconds(5), "done"));
    world.handle(&named("k").arguments(json!({"a": 1, "b": 2}))).await;
    let same = world.send(&named("k").arguments(json!({"b": 2, "a": 1}))).await.json().await;
    id_of(&same);
    for other in [
        named("k").arguments(json!({"a": 1, "b": 3})),
        named("k"),
        Ask::tool("other").saying(KEY, "k").arguments(json!({"a": 1, "b": 2})),
    ] {
        let answer = world.send(&other).await;
        assert_eq!(answer.status, 200);
        let answer = answer.json().await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert_eq!(answer["error"]["data"], json!({"reason": "idempotency_mismatch"}));
    }
    assert_eq!(world.upstream.calls().len(), 1);
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn names_are_each_principals_own_and_each_calls_own() {
    let world = World::with(Rules::default(), Script::returns(seconds(5), "done"));
    let one = world.handle(&named("k").principal("a")).await;
    let two = world.handle(&named("k").principal("b").arguments(json!({"other": true}))).await;
    let three = world.handle(&named("l").principal("a")).await;
    assert!(one != two && one != three);
    assert_eq!(world.handle(&named("k").principal("a")).await, one);
    assert_eq!(world.upstream.calls().len(), 3);
    world.is_idle().await;
}

/// Both looked for the name before either had its row.
#[tokio::test(start_paused = true)]
async fn of_two_that_come_at_once_one_makes_the_call_and_both_have_its_handle() {
    let world = World::with(Rules::default(), Script::returns(seconds(5), "done"));
    world.store.hold_inserts();
    let clients: Vec<_> = (0..8).map(|_| world.client(&named("k"))).collect();
    tokio::time::sleep(millis(10)).await;
    assert_eq!(world.store.inserted(), 8, "all are about to insert");
    world.store.inserts.add_permits(8);
    let mut ids = Vec::new();
    for client in clients {
        ids.push(id_of(&client.await.unwrap().json().await));
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!((world.upstream.calls().len(), world.store.usage().tasks), (1, 1));
    world.is_idle().await;
}

/// T-27, F47: without a name the row would be dropped and nothing sent.
#[tokio::test(start_paused = true)]
async fn f47_a_named_call_whose_client_left_before_its_handle_goes_on() {
    for mode in [TaskMode::Auto, TaskMode::Always, TaskMode::Required] {
        let world = World::with(Rules::mode(mode), Script::returns(seconds(5), "done"));
        world.store.hold_returns();
        let left = tokio::time::timeout(seconds(1), world.sending(&named("k"))).await;
        assert!(left.is_err());
        world.store.returns.add_permits(9);
        tokio::time::sleep(seconds(9)).await;
        let found = world.send(&named("k")).await.json().await;
        assert_eq!(found["result"]["status"], "completed", "{mode:?}");
        assert_eq!((world.upstream.calls().len(), world.upstream.cancels()), (1, 0), "{mode:?}");
        world.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_is_free_again_once_its_task_is_gone() {
    let rules = Rules { ttl: seconds(60), keep_result_min: seconds(10), ..Rules::default() };
    let world = World::with(rules, Script::returns(seconds(5), "done"));
    let id = world.handle(&named("k")).await;
    tokio::time::sleep(seconds(59)).await;
    assert_eq!(world.handle(&named("k")).await, id);
    tokio::time::sleep(seconds(1)).await;
    let other = world.handle(&named("k")).await;
    assert_ne!(other, id);
    world.settled(&other).await;
    assert_eq!(world.upstream.calls().len(), 2);
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_task_keeps_its_name() {
    let world = World::with(Rules::default(), Script::silent());
    let id = world.handle(&named("k")).await;
    world.send(&Ask::task("tasks/cancel", &id)).await;
    let again = world.send(&named("k")).await.json().await;
    assert_eq!((id_of(&again), &again["result"]["status"]), (id, &json!("cancelled")));
    world.is_idle().await;
}

/// A client without tasks has no use for a name, and tools that are never tasks have none either.
#[tokio::test(start_paused = true)]
async fn where_no_task_can_be_a_name_means_nothing_and_goes_nowhere() {
    for (mode, ask) in [
        (TaskMode::Auto, named("k").without_extension()),
        (TaskMode::Never, named("k")),
        (TaskMode::Auto, named("not a key").without_extension()),
    ] {
        let world = World::with(Rules::mode(mode), Script::returns(millis(5), "done"));
        for _ in 0..2 {
            let answer = world.send(&ask).await.json().await;
            assert_eq!(answer["result"]["content"][0]["text"], "done", "{mode:?}");
        }
        assert_eq!((world.upstream.calls().len(), world.store.inserted()), (2, 0), "{mode:?}");
        world.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_upstream_does_not_see_a_calls_name() {
    let world = World::with(Rules::default(), Script::returns(millis(5), "done"));
    world.handle(&named("k").saying("traceparent", "00-1")).await;
    world.send(&named("k").without_extension().saying("traceparent", "00-1")).await.json().await;
    let calls = world.upstream.calls();
    assert_eq!(calls.len(), 2);
    for call in calls {
        let params: Value = serde_json::from_str(&call.params).unwrap();
        assert_eq!(params["_meta"], json!({"traceparent": "00-1"}));
    }
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_nobody_can_mean_is_refused_before_anything_is_sent() {
    let world = World::with(Rules::default(), Script::silent());
    for key in [json!(""), json!("a b"), json!("k".repeat(257)), json!(7)] {
        let answer = world.send(&Ask::call().saying(KEY, key.clone())).await;
        assert_eq!((answer.status, &answer.json().await["error"]["code"]), (200, &json!(-32602)), "{key}");
    }
    assert_eq!((world.upstream.saw(), world.store.inserted()), (vec![], 0));
}

/// Where questions come before handles, a named call has its handle first: it must be found.
#[tokio::test(start_paused = true)]
async fn a_named_call_is_asked_in_its_task() {
    let rules = Rules { early_input: EarlyInput::AskFirst, ..Rules::default() };
    let world = World::with(rules, Script::of([(millis(5), Happens::Elicits("q"))]));
    let tasks = json!({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
    let ask = named("k").declaring(tasks);
    let id = world.handle(&ask).await;
    tokio::time::sleep(GRACE).await;
    let status = world.send(&ask).await.json().await["result"]["status"].take();
    assert_eq!(status, "input_required");
    assert_eq!(world.handle(&ask).await, id);
    world.send(&Ask::task("tasks/cancel", &id)).await;
    world.is_idle().await;
}

/// A full house refuses what is new, and finds what is old.
#[tokio::test(start_paused = true)]
async fn a_repetition_needs_no_place_of_its_own() {
    let world = World::with(Rules { tasks_max: 1, ..Rules::default() }, Script::returns(seconds(5), "done"));
    let id = world.handle(&named("k")).await;
    assert_eq!(world.handle(&named("k")).await, id);
    let other = world.send(&named("l")).await;
    assert_eq!((other.status, &other.json().await["error"]["data"]["reason"]), (429, &json!("too_many_tasks")));
    assert_eq!(world.upstream.calls().len(), 1);
    world.is_idle().await;
}
