//! Questions that are asked in a task: `inputRequests` one way, `tasks/update` back (GW-16 to GW-19).

use serde_json::{Value, json};
use taskgate::store::TaskStore;
use taskgate::task::{Executed, Reason, TaskMode};

use super::rounds::{answered, answers};
use super::script::{Happens, Saw, Script, result};
use super::world::{Ask, Rules, World, millis, seconds};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// A client that can be asked everything.
fn everything() -> Value {
    json!({ "elicitation": { "form": {}, "url": {} }, "sampling": {}, "roots": {}, "extensions": { EXTENSION: {} } })
}

fn call() -> Ask {
    Ask::call().declaring(everything())
}

fn accept() -> Value {
    json!({ "action": "accept", "content": {} })
}

async fn get(world: &World, id: &str) -> Value {
    world.send(&Ask::task("tasks/get", id).declaring(everything())).await.json().await["result"].take()
}

/// Polls to the end, by requests that declare everything.
async fn settled(world: &World, id: &str) -> Value {
    loop {
        let task = get(world, id).await;
        if !matches!(task["status"].as_str(), Some("working" | "input_required")) {
            return task;
        }
        tokio::time::sleep(seconds(1)).await;
    }
}

async fn update(world: &World, id: &str, responses: Value) -> Value {
    let ask = Ask::task("tasks/update", id).declaring(everything()).member("inputResponses", responses);
    world.send(&ask).await.json().await
}

fn keys(task: &Value) -> Vec<&str> {
    task["inputRequests"].as_object().map_or_else(Vec::new, |all| all.keys().map(String::as_str).collect())
}

/// Asks after a second, returns once it was answered.
fn confirms() -> Script {
    Script::of([
        (seconds(1), Happens::Elicits("a")),
        (seconds(0), Happens::Heard(1)),
        (seconds(1), Happens::Returns(result("done"))),
    ])
}

fn later((at, happens): (std::time::Duration, Happens)) -> (std::time::Duration, Happens) {
    if matches!(happens, Happens::Returns(_)) { (at + seconds(1), happens) } else { (at, happens) }
}

/// EXT-22, EXT-37, T-12: the question makes the handle at once, and the row is there with it.
#[tokio::test(start_paused = true)]
async fn a_question_within_the_grace_makes_the_handle_and_the_answer_ends_the_call() {
    for (mode, at) in [(TaskMode::Auto, seconds(1)), (TaskMode::Always, seconds(0)), (TaskMode::Required, seconds(0))] {
        // The upstream goes on for a while after the answer: a client may look before the end, or after.
        let script = Script { events: confirms().events.into_iter().map(later).collect(), ..confirms() };
        let world = World::with(Rules::mode(mode), script);
        let answer = world.send(&call()).await;
        assert_eq!(answer.at, at, "{mode:?}");
        let handle = answer.json().await["result"].take();
        assert!(handle.get("inputRequests").is_none(), "EXT-18");
        tokio::time::sleep(seconds(1) - at + millis(1)).await;
        let id = handle["taskId"].as_str().unwrap();
        let task = get(&world, id).await;
        assert_eq!(task["status"], "input_required");
        assert_eq!(
            task["inputRequests"],
            json!({ "r0": { "method": "elicitation/create", "params": { "message": "?" } } })
        );
        let ack = update(&world, id, json!({ "r0": accept() })).await;
        assert_eq!(ack["result"]["resultType"], "complete");
        assert_eq!(get(&world, id).await["status"], "working", "EXT-70, EXT-74");
        world.upstream.sees(&answered("a", r#"{"action":"accept","content":{}}"#)).await;
        assert_eq!(settled(&world, id).await["status"], "completed");
        world.is_idle().await;
    }
}

/// B127, B128, B129, B130, B131, EXT-23, EXT-34 to EXT-36, EXT-39, EXT-40.
#[tokio::test(start_paused = true)]
async fn answers_are_taken_one_by_one_and_each_question_is_answered_once() {
    let script = Script::of([
        (seconds(1), Happens::Elicits("a")),
        (seconds(1), Happens::AsksFor("sampling/createMessage", "{}")),
        (seconds(0), Happens::Heard(2)),
        (seconds(2), Happens::Elicits("c")),
        (seconds(0), Happens::Heard(3)),
        (seconds(9), Happens::Returns(result("done"))),
    ]);
    let world = World::with(Rules::mode(TaskMode::Always), script);
    let id = world.handle(&call()).await;
    tokio::time::sleep(millis(1_500)).await;
    assert_eq!(keys(&get(&world, &id).await), ["r0", "r1"]);
    for wrong in [
        json!({ "r0": { "action": "perhaps" } }),
        json!({ "r0": accept(), "r1": { "role": "assistant" } }),
        json!({ "r0": 7 }),
        json!([]),
    ] {
        assert_eq!(update(&world, &id, wrong.clone()).await["error"]["code"], -32602, "{wrong}");
        assert_eq!(keys(&get(&world, &id).await), ["r0", "r1"], "{wrong}");
    }
    // B130: of two answers to one question one is delivered.
    for action in ["decline", "accept"] {
        let ack = update(&world, &id, json!({ "r0": { "action": action }, "r7": { "action": "x" }, "other": 7 })).await;
        assert_eq!(ack["result"]["resultType"], "complete");
    }
    let task = get(&world, &id).await;
    assert_eq!((task["status"].as_str(), keys(&task)), (Some("input_required"), vec!["r1"]));
    let sampled = json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "t" } });
    update(&world, &id, json!({ "r1": sampled })).await;
    tokio::time::sleep(seconds(2)).await;
    assert_eq!(keys(&get(&world, &id).await), ["r2"], "keys are not used again");
    update(&world, &id, json!({ "r2": { "action": "cancel" } })).await;
    assert_eq!(settled(&world, &id).await["status"], "completed");
    assert_eq!(update(&world, &id, json!({ "r2": accept() })).await["result"]["resultType"], "complete");
    let expected = [
        answered("a", r#"{"action":"decline"}"#),
        answered("ask-1", r#"{"content":{"text":"t","type":"text"},"model":"m","role":"assistant"}"#),
        answered("c", r#"{"action":"cancel"}"#),
    ];
    assert_eq!(answers(&world), expected);
    world.is_idle().await;
}

/// T-11, EXT-41: an open question must be shown, and one of an undeclared capability must not.
#[tokio::test(start_paused = true)]
async fn t_11_a_poll_that_lacks_the_capability_of_an_open_question_gets_its_name() {
    let script = Script::of([(
        seconds(1),
        Happens::AsksFor("elicitation/create", r#"{"mode":"url","url":"https://a.example/","elicitationId":"e"}"#),
    )]);
    let world = World::with(Rules { ttl: seconds(60), ..Rules::mode(TaskMode::Always) }, script);
    let id = world.handle(&call()).await;
    tokio::time::sleep(seconds(2)).await;
    for (lacking, needed) in [
        (json!({}), json!({ "elicitation": { "url": {} } })),
        (json!({ "elicitation": {} }), json!({ "elicitation": { "url": {} } })),
    ] {
        let mut declared = lacking.clone();
        declared["extensions"] = json!({ EXTENSION: {} });
        let answer = world.send(&Ask::task("tasks/get", &id).declaring(declared)).await;
        assert_eq!(answer.status, 400);
        let error = answer.json().await["error"].take();
        assert_eq!((&error["code"], &error["data"]), (&json!(-32021), &json!({ "requiredCapabilities": needed })));
    }
    let shown = get(&world, &id).await["inputRequests"]["r0"]["params"].take();
    assert_eq!(shown, json!({ "mode": "url", "url": "https://a.example/" }), "T-49: no elicitationId");
    world.send(&Ask::task("tasks/cancel", &id)).await;
    world.is_idle().await;
}

/// T-48, GW-18: no answer comes, the upstream gets a cancel, and the task goes on.
#[tokio::test(start_paused = true)]
async fn an_unanswered_question_is_cancelled_at_its_deadline() {
    for (question, answer) in
        [("elicitation/create", r#"{"action":"cancel"}"#), ("sampling/createMessage", "-1"), ("roots/list", "-32603")]
    {
        let script = Script::of([
            (seconds(1), Happens::Asks(question)),
            (seconds(0), Happens::Heard(1)),
            (seconds(1), Happens::Returns(result("done"))),
        ]);
        let world = World::with(Rules { input_deadline: seconds(300), ..Rules::default() }, script);
        let id = world.handle(&call()).await;
        tokio::time::sleep(seconds(299)).await;
        assert_eq!(get(&world, &id).await["status"], "input_required");
        tokio::time::sleep(seconds(2)).await;
        assert_eq!(answers(&world), [answered("ask-1", answer)]);
        assert_eq!(settled(&world, &id).await["status"], "completed");
        world.is_idle().await;
    }
}

/// GW-17: a question that the upstream cancelled is neither shown nor answered any more.
#[tokio::test(start_paused = true)]
async fn a_question_that_is_taken_back_leaves_the_task() {
    let script = Script::of([
        (seconds(1), Happens::Elicits("a")),
        (seconds(1), Happens::Elicits("b")),
        (seconds(10), Happens::Withdraws("a")),
        (seconds(20), Happens::Withdraws("b")),
        (seconds(30), Happens::Returns(result("done"))),
    ]);
    let world = World::with(Rules::default(), script);
    let id = world.handle(&call()).await;
    for (at, open, status) in
        [(5, vec!["r0", "r1"], "input_required"), (15, vec!["r1"], "input_required"), (25, vec![], "working")]
    {
        tokio::time::sleep(seconds(at) - world.age()).await;
        let task = get(&world, &id).await;
        assert_eq!((keys(&task), task["status"].as_str()), (open, Some(status)));
    }
    update(&world, &id, json!({ "r0": accept(), "r1": accept() })).await;
    assert_eq!(settled(&world, &id).await["status"], "completed");
    assert_eq!(answers(&world), []);
    world.is_idle().await;
}

/// Both at one moment, in either order: the upstream gets at most one answer, and the task goes on.
#[tokio::test(start_paused = true)]
async fn an_answer_that_meets_the_deadline_is_told_once() {
    for late_by in [millis(0), millis(1)] {
        let world = World::with(Rules { input_deadline: seconds(10), ..Rules::default() }, confirms());
        let id = world.handle(&call()).await;
        tokio::time::sleep(seconds(10) + late_by).await;
        update(&world, &id, json!({ "r0": accept() })).await;
        assert_eq!(settled(&world, &id).await["status"], "completed");
        assert_eq!(answers(&world).len(), 1, "{late_by:?}");
        world.is_idle().await;
    }
}

/// T-07, L6: a cancel settles the task with any open questions; a later answer goes nowhere.
#[tokio::test(start_paused = true)]
async fn a_cancel_ends_a_task_that_waits_for_answers() {
    let world = World::with(Rules::default(), confirms());
    let id = world.handle(&call()).await;
    let cancel = Ask::task("tasks/cancel", &id);
    let late =
        Ask::task("tasks/update", &id).declaring(everything()).member("inputResponses", json!({ "r0": accept() }));
    let (cancelled, acknowledged) = tokio::join!(world.send(&cancel), world.send(&late));
    assert_eq!((cancelled.status, acknowledged.status), (200, 200));
    assert_eq!(get(&world, &id).await["status"], "cancelled");
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!((world.upstream.cancels(), answers(&world)), (1, vec![]));
    world.is_idle().await;
}

/// L5: an answer that cannot be handed over is not lost in silence.
#[tokio::test(start_paused = true)]
async fn an_answer_that_does_not_reach_the_upstream_fails_the_task() {
    let script = Script::of([(seconds(1), Happens::Elicits("a"))]);
    let world = World::with(Rules::default(), Script { deaf: true, ..script });
    let id = world.handle(&call()).await;
    update(&world, &id, json!({ "r0": accept() })).await;
    let task = settled(&world, &id).await;
    assert_eq!(task["status"], "failed");
    assert_eq!(task["error"]["data"]["reason"], "upstream_unreachable");
    assert_eq!(task["error"]["data"]["executed"], "unknown");
    world.is_idle().await;
}

/// The result that lies in front of the broken way is the outcome.
#[tokio::test(start_paused = true)]
async fn an_upstream_that_returned_while_an_answer_was_on_its_way_is_believed() {
    let script = Script::of([(seconds(1), Happens::Elicits("a")), (seconds(4), Happens::Returns(result("gave up")))]);
    let world = World::with(Rules::default(), Script { deaf: true, answer_takes: seconds(9), ..script });
    let id = world.handle(&call()).await;
    update(&world, &id, json!({ "r0": accept() })).await;
    let task = settled(&world, &id).await;
    assert_eq!(task["result"]["content"][0]["text"], "gave up");
    assert_eq!(answers(&world).len(), 1);
    world.is_idle().await;
}

/// The same race with a slow store: the answer that was acknowledged is the one that is delivered (L5).
#[tokio::test(start_paused = true)]
async fn l5_a_deadline_that_loses_the_race_for_the_row_tells_nothing() {
    let world = World::with(Rules { input_deadline: seconds(10), ..Rules::default() }, confirms());
    let id = world.handle(&call()).await;
    let release = world.store.hold_next_replace();
    tokio::time::sleep(seconds(11)).await;
    update(&world, &id, json!({ "r0": accept() })).await;
    release.send(()).unwrap();
    assert_eq!(settled(&world, &id).await["status"], "completed");
    assert_eq!(answers(&world), [answered("a", r#"{"action":"accept","content":{}}"#)]);
    world.is_idle().await;
}

/// T-27: the client leaves while the row that its question makes is being stored.
#[tokio::test(start_paused = true)]
async fn t_27_a_client_that_leaves_before_its_questions_handle_leaves_no_task() {
    let world = World::with(Rules::default(), confirms());
    world.store.hold_inserts();
    assert!(tokio::time::timeout(millis(1_500), world.sending(&call())).await.is_err());
    world.store.inserts.add_permits(1);
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!((world.upstream.cancels(), answers(&world)), (1, vec![]));
    assert_eq!(world.store.usage().tasks, 0);
    world.is_idle().await;
}

/// A call that is lost takes its questions with it.
#[tokio::test(start_paused = true)]
async fn an_upstream_that_goes_away_settles_a_task_that_waits_for_answers() {
    let script = Script::of([
        (seconds(1), Happens::Elicits("a")),
        (seconds(5), Happens::Loses(Reason::UpstreamClosed, Executed::Unknown)),
    ]);
    let world = World::with(Rules::default(), script);
    let id = world.handle(&call()).await;
    let task = settled(&world, &id).await;
    assert_eq!((task["status"].as_str(), task.get("inputRequests")), (Some("failed"), None), "EXT-32");
    world.is_idle().await;
}

/// U29.
#[tokio::test(start_paused = true)]
async fn u29_the_33rd_open_question_is_refused() {
    let many = (0..33).map(|_| (seconds(3), Happens::Elicits("same")));
    let world = World::with(Rules::mode(TaskMode::Always), Script::of(many));
    let id = world.handle(&call()).await;
    tokio::time::sleep(seconds(4)).await;
    assert_eq!(keys(&get(&world, &id).await).len(), 32);
    assert_eq!(answers(&world), [answered("same", "-32603")]);
    world.send(&Ask::task("tasks/cancel", &id)).await;
    world.is_idle().await;
}

/// U32: no client gets an address that is no web page, with any capability.
#[tokio::test(start_paused = true)]
async fn u32_a_question_with_an_address_that_is_no_page_is_declined() {
    let script = Script::of([
        (seconds(1), Happens::AsksFor("elicitation/create", r#"{"mode":"url","url":"javascript:alert(1)"}"#)),
        (seconds(2), Happens::Returns(result("done"))),
    ]);
    for mode in [TaskMode::Never, TaskMode::Auto, TaskMode::Always] {
        let world = World::with(Rules::mode(mode), script.clone());
        let first = world.send(&call()).await.json().await["result"].take();
        if let Some(id) = first["taskId"].as_str() {
            settled(&world, id).await;
        }
        assert_eq!(answers(&world), [answered("ask-1", r#"{"action":"decline"}"#)]);
        world.is_idle().await;
    }
}
