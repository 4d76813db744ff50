//! Questions that no client gets (GW-16). Others are in `inputs` and `rounds`.

use serde_json::{Value, json};
use taskgate::task::TaskMode;

use super::script::{Happens, Saw, Script, result};
use super::world::{Ask, Rules, World, seconds};

fn asks(method: &'static str) -> Script {
    Script::of([(seconds(1), Happens::Asks(method)), (seconds(10), Happens::Returns(result("done")))])
}

const KINDS: [(&str, &str); 3] =
    [("elicitation/create", "elicitation"), ("sampling/createMessage", "sampling"), ("roots/list", "roots")];

/// MOD-10: the client learns which capability the call needs, and the upstream stops.
#[tokio::test(start_paused = true)]
async fn an_undeclared_question_ends_a_plain_call_with_the_capability_that_it_lacks() {
    for (question, capability) in KINDS.into_iter().take(2) {
        let world = World::with(Rules::mode(TaskMode::Never), asks(question));
        let answer = world.send(&Ask::call().without_extension()).await;
        assert_eq!((answer.at, answer.status), (seconds(1), 400));
        let error = answer.json().await["error"].take();
        assert_eq!(error["code"], -32021);
        assert_eq!(error["data"], json!({ "requiredCapabilities": { capability: {} } }));
        world.upstream.sees(&Saw::Drop(0)).await;
        assert_eq!(world.upstream.saw()[1..], [Saw::Cancel(0), Saw::Drop(0)]);
        world.is_idle().await;
    }
}

/// Servers ask for roots whenever a session begins, for no call in particular.
#[tokio::test(start_paused = true)]
async fn undeclared_roots_are_refused_and_the_call_goes_on() {
    let world = World::with(Rules::mode(TaskMode::Never), asks("roots/list"));
    check(world, &Ask::call().without_extension(), "-32601").await;
}

/// The upstream gets this answer, and its call goes on to its result.
async fn check(world: World, ask: &Ask, answer: &str) {
    let first = world.send(ask).await.json().await["result"].take();
    let result = match first["taskId"].as_str() {
        Some(id) => world.settled(id).await["result"].take(),
        None => first,
    };
    assert_eq!(result["content"][0]["text"], "done");
    let expected = Saw::Answer { call: 0, ask: r#""ask-1""#.to_owned(), answer: answer.to_owned() };
    assert_eq!(world.upstream.saw()[1], expected);
    assert_eq!(world.upstream.cancels(), 0);
    world.is_idle().await;
}

fn declaring(capability: &str) -> Value {
    json!({ capability: {}, "extensions": { "io.modelcontextprotocol/tasks": {} } })
}

const UNANSWERED: [&str; 3] = [r#"{"action":"cancel"}"#, "-1", "-32603"];

/// Methods without rounds (MOD-26): no client can be asked.
#[tokio::test(start_paused = true)]
async fn mod26_a_question_in_another_method_is_refused_as_unanswered_and_the_call_goes_on() {
    for ((question, capability), answer) in KINDS.into_iter().zip(UNANSWERED) {
        let ask = Ask::new("completion/complete", json!({})).declaring(declaring(capability));
        check(World::with(Rules::default(), asks(question)), &ask, answer).await;
    }
}

/// EXT-41, GW-16: a task's client gets no question of an undeclared capability; the upstream gets a refusal.
#[tokio::test(start_paused = true)]
async fn an_undeclared_question_in_a_task_is_refused_and_the_task_goes_on() {
    for ((question, _), answer) in KINDS.into_iter().zip(["-32602", "-32601", "-32601"]) {
        check(World::with(Rules::mode(TaskMode::Always), asks(question)), &Ask::call(), answer).await;
    }
}

/// U30.
/// EXT-42.
#[tokio::test(start_paused = true)]
async fn an_unknown_question_is_refused_and_the_call_goes_on() {
    for mode in [TaskMode::Never, TaskMode::Always] {
        check(World::with(Rules::mode(mode), asks("custom/question")), &Ask::call(), "-32601").await;
    }
}

/// UPC-21, EXT-60, GW-12: the upstream gets the capabilities of this request, less tasks, and no more.
#[tokio::test(start_paused = true)]
async fn the_upstream_learns_this_requests_capabilities_alone() {
    let world = World::with(Rules::default(), Script::returns(seconds(1), "done"));
    for declared in [declaring("elicitation"), json!({ "tasks": {}, "sampling": {} }), json!({})] {
        world.send(&Ask::call().declaring(declared)).await;
    }
    let told: Vec<_> =
        world.upstream.calls().iter().map(|call| call.context.client.capabilities.as_str().to_owned()).collect();
    assert_eq!(told, [r#"{"elicitation":{}}"#, r#"{"sampling":{}}"#, "{}"]);
}
