//! `subscriptions/listen` for tasks: acknowledgements, notifications, and their moments.

use serde_json::{Value, json};
use taskgate::face::http::AcceptedTypes;
use taskgate::task::TaskMode;
use tokio::time::timeout;

use super::script::{Happens, Script, result};
use super::store_faults::{Method, StoreFault};
use super::world::{Answer, Ask, Rules, World, seconds};

const TAG: &str = "io.modelcontextprotocol/subscriptionId";
const UNKNOWN: &str = "ffffffffffffffffffffffffffffffff";

fn listen(ids: &[&str]) -> Ask {
    Ask::new("subscriptions/listen", json!({ "notifications": { "taskIds": ids } })).id("listen-1")
}

/// The next message; comments are passed over.
async fn message(answer: &mut Answer) -> Value {
    loop {
        let (_, event) = timeout(seconds(3600), answer.event()).await.expect("a message").expect("the stream goes on");
        if !event.is_null() {
            assert!(event.get("id").is_none() || event.get("method").is_none(), "MOD-18: a request: {event}");
            return event;
        }
    }
}

/// The task in `notifications/tasks`, which must equal the answer of `tasks/get` at the same moment (EXT-50).
async fn told(world: &World, answer: &mut Answer, id: &str) -> Value {
    let said = message(answer).await;
    assert_eq!(said["method"], "notifications/tasks");
    assert_eq!(said["params"]["_meta"], json!({ TAG: "listen-1" }), "EXT-51");
    let mut expected = world.get(id).await;
    expected.as_object_mut().unwrap().remove("resultType");
    expected["_meta"] = said["params"]["_meta"].clone();
    assert_eq!(said["params"], expected, "EXT-50");
    said["params"].clone()
}

/// EXT-48 to EXT-52, MOD-24, T-53.
#[tokio::test(start_paused = true)]
async fn ext_49_own_tasks_are_acknowledged_shown_at_once_and_then_whenever_they_change() {
    let chatty = [
        (seconds(5), Happens::Progress(1.0, "first")),
        (seconds(6), Happens::Log("error")),
        (seconds(9), Happens::Returns(result("done"))),
    ];
    let world = World::with(Rules::default(), Script::of(chatty));
    let id = world.handle(&Ask::call()).await;
    let foreign = world.handle(&Ask::call().principal("key:other")).await;
    let mut answer = world.send(&listen(&[UNKNOWN, &foreign, "no id", &id, &id])).await;
    assert_eq!((answer.status, answer.is_stream()), (200, true));
    assert_eq!(answer.headers["x-accel-buffering"], "no");
    let acknowledged = json!({
        "jsonrpc": "2.0",
        "method": "notifications/subscriptions/acknowledged",
        "params": { "_meta": { TAG: "listen-1" }, "notifications": { "taskIds": [id] } },
    });
    assert_eq!(message(&mut answer).await, acknowledged, "T-53: neither foreign nor unknown ids");
    assert_eq!(told(&world, &mut answer, &id).await["status"], "working", "a snapshot after the acknowledgement");
    assert_eq!(told(&world, &mut answer, &id).await["statusMessage"], "first");
    let last = told(&world, &mut answer, &id).await;
    assert_eq!((&last["status"], &last["result"]["content"][0]["text"]), (&json!("completed"), &json!("done")));
    assert_eq!(world.age(), seconds(9), "at once");
    // The end of a task is not the end of the stream, and comments keep it alive.
    for n in 1..4 {
        let event = timeout(seconds(60), answer.event()).await.expect("a sign of life").expect("the stream goes on");
        assert_eq!(event, (seconds(9 + 15 * n), Value::Null));
    }
}

/// T-53: an absent task is left out, and not one that could not be read.
#[tokio::test(start_paused = true)]
async fn t_53_a_task_that_cannot_be_read_is_not_taken_for_one_that_there_is_not() {
    let world = World::with(Rules::default(), Script::silent());
    let id = world.handle(&Ask::call()).await;
    world.store.faults.strike(Method::Load, StoreFault::Fails, 1_000);
    let refused = world.send(&listen(&[&id])).await;
    assert_eq!(refused.status, 503);
    let data = refused.json().await["error"]["data"].take();
    assert_eq!((&data["reason"], &data["executed"]), (&json!("store_failed"), &json!("no")));
    world.store.faults.heal();
    let mut answer = world.send(&listen(&[UNKNOWN, &id])).await;
    assert_eq!(message(&mut answer).await["params"]["notifications"]["taskIds"], json!([id]));
}

/// EXT-41, GW-25: no client gets a question of a kind that it did not declare on this request.
#[tokio::test(start_paused = true)]
async fn ext_41_a_listener_that_cannot_be_asked_is_not_told_of_the_question() {
    let asks = Script::of([(seconds(5), Happens::Elicits("a"))]);
    let world = World::with(Rules::mode(TaskMode::Always), asks);
    let all = json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let id = world.handle(&Ask::call().declaring(all.clone())).await;
    let mut asked = world.send(&listen(&[&id]).declaring(all)).await;
    let mut deaf = world.send(&listen(&[&id])).await;
    for answer in [&mut asked, &mut deaf] {
        message(answer).await;
        assert_eq!(told(&world, answer, &id).await["status"], "working");
    }
    assert_eq!(message(&mut asked).await["params"]["status"], "input_required");
    let (_, event) = timeout(seconds(60), deaf.event()).await.unwrap().unwrap();
    assert!(event.is_null(), "{event}");
    world.send(&Ask::task("tasks/cancel", &id)).await;
    for answer in [&mut asked, &mut deaf] {
        assert_eq!(told(&world, answer, &id).await["status"], "cancelled");
    }
}

/// A reader that comes late sees how things stand, not how they came to stand there.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_told_once_of_all_that_happened_meanwhile() {
    let chatty = (1..50).map(|n| (seconds(2 + n), Happens::Progress(f64::from(u32::try_from(n).unwrap()), "")));
    let events: Vec<_> = chatty.chain([(seconds(60), Happens::Returns(result("done")))]).collect();
    let world = World::with(Rules::default(), Script::of(events));
    let id = world.handle(&Ask::call()).await;
    let mut answer = world.send(&listen(&[&id])).await;
    message(&mut answer).await;
    told(&world, &mut answer, &id).await;
    tokio::time::sleep(seconds(40)).await;
    let late = told(&world, &mut answer, &id).await;
    assert_eq!(late["status"], "working");
    tokio::time::sleep(seconds(40)).await;
    assert_eq!(told(&world, &mut answer, &id).await["status"], "completed");
    let (_, next) = timeout(seconds(60), answer.event()).await.unwrap().unwrap();
    assert!(next.is_null(), "nothing more than a comment: {next}");
}

/// EXT-47, EXT-55, MOD-10, B132: refused before anything is opened.
#[tokio::test(start_paused = true)]
async fn ext_47_an_invalid_subscription_is_refused() {
    let world = World::with(Rules::default(), Script::silent());
    let many: Vec<Value> = (0..1_001).map(|_| json!(UNKNOWN)).collect();
    let with = |notifications: Value| Ask::new("subscriptions/listen", json!({ "notifications": notifications }));
    for (ask, status, code) in [
        (listen(&[]).without_extension(), 400, -32021),
        (with(json!({ "taskIds": many[1..] })).without_extension(), 400, -32021),
        (with(json!({ "taskIds": many })), 200, -32602),
        (with(json!({ "taskIds": "x" })), 200, -32602),
        (with(json!({ "toolsListChanged": 1 })), 200, -32602),
        (with(json!({ "resourceSubscriptions": [1] })), 200, -32602),
        (with(json!([])), 200, -32602),
        (Ask::new("subscriptions/listen", json!({})), 200, -32602),
        (Ask::new("subscriptions/listen", json!({ "Notifications": {} })), 200, -32602),
    ] {
        let answer = world.send(&ask).await;
        let found = answer.status;
        assert_eq!((found, &answer.json().await["error"]["code"]), (status, &json!(code)), "{ask:?}");
    }
    let answer = world.send(&listen(&[]).accepting(AcceptedTypes::Json)).await;
    assert_eq!(answer.status, 406, "there is no answer but a stream");
    let refused = answer.json().await;
    assert_eq!((&refused["error"]["code"], &refused["id"]), (&json!(-32600), &json!("listen-1")));
    let mut answer = world.send(&with(json!({ "taskIds": many[1..] }))).await;
    assert_eq!(message(&mut answer).await["params"]["notifications"], json!({ "taskIds": [] }), "1,000 may be named");
    let mut answer = world.send(&with(json!({})).without_extension()).await;
    assert_eq!(message(&mut answer).await["params"]["notifications"], json!({}), "nothing may be asked for");
}

/// B159, F18: permits come back when the client disconnects, in any spelling of its request.
#[tokio::test(start_paused = true)]
async fn b159_the_sixty_fifth_stream_of_a_principal_is_refused() {
    let world = World::with(Rules::default(), Script::silent());
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(world.send(&listen(&[])).await);
    }
    assert!(open.iter().all(Answer::is_stream));
    let refused = world.send(&listen(&[])).await;
    assert_eq!((refused.status, refused.headers["retry-after"].to_str().unwrap()), (429, "1"));
    let error = &refused.json().await["error"];
    assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32603), &json!("too_many_listeners")));
    assert!(world.send(&listen(&[]).principal("key:other")).await.is_stream(), "others may");
    open.pop();
    assert!(world.send(&listen(&[])).await.is_stream());
}

/// MOD-25, T-52: the result, then the end; the id as it was spelt.
#[tokio::test(start_paused = true)]
async fn mod_25_a_stream_that_the_gateway_ends_ends_with_its_result() {
    for id in [json!("listen-1"), json!(0), json!("7"), json!(7)] {
        let world = World::with(Rules::mode(TaskMode::Always), Script::silent());
        let task = world.handle(&Ask::call()).await;
        let mut answer = world.send(&listen(&[&task]).id(id.clone())).await;
        for _ in 0..2 {
            assert_eq!(message(&mut answer).await["params"]["_meta"][TAG], id);
        }
        world.ending.cancel();
        let last = message(&mut answer).await;
        assert_eq!(last["id"], id);
        assert_eq!((&last["result"]["resultType"], &last["result"]["_meta"][TAG]), (&json!("complete"), &id));
        assert_eq!(answer.event().await, None, "and nothing after it");
        assert_eq!(world.send(&listen(&[&task])).await.status, 503);
        assert_eq!(world.get(&task).await["status"], "working", "the task goes on");
    }
}

/// T-27: listening, like polling, is no part of the call.
#[tokio::test(start_paused = true)]
async fn a_listener_that_leaves_changes_nothing() {
    let world = World::with(Rules::default(), Script::returns(seconds(30), "done"));
    let id = world.handle(&Ask::call()).await;
    let mut answer = world.send(&listen(&[&id])).await;
    message(&mut answer).await;
    drop(answer);
    assert_eq!(world.settled(&id).await["status"], "completed");
    assert_eq!(world.upstream.cancels(), 0);
    world.is_idle().await;
}

/// A slow reader gets one notification for any number of missed ones.
#[tokio::test(start_paused = true)]
async fn a_flood_of_changes_is_one_change_for_a_slow_reader() {
    const CHANGED: &str = "notifications/tools/list_changed";
    let world = World::with(Rules::default(), Script::silent());
    let wishes = json!({ "notifications": { "toolsListChanged": true, "promptsListChanged": true } });
    let mut answer = world.send(&Ask::new("subscriptions/listen", wishes).id(3)).await;
    let granted = message(&mut answer).await["params"]["notifications"].take();
    assert_eq!(granted, json!({ "toolsListChanged": true }));
    world.upstream.change("notifications/prompts/list_changed");
    world.upstream.change(CHANGED);
    for _ in 0..1_000 {
        world.upstream.change("notifications/prompts/list_changed");
    }
    let expected = json!({ "jsonrpc": "2.0", "method": CHANGED, "params": { "_meta": { TAG: 3 } } });
    assert_eq!(message(&mut answer).await, expected);
    let (_, next) = timeout(seconds(60), answer.event()).await.unwrap().unwrap();
    assert!(next.is_null(), "told twice: {next}");
    world.upstream.change(CHANGED);
    assert_eq!(message(&mut answer).await, expected);
}
