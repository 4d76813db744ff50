//! Questions to clients without a handle: the call is held, and continues when its request is made again (MOD-26,
//! GW-20). Where a handle comes after that: `ask_first`.

use serde_json::{Value, json};
use taskgate::store::TaskStore;
use taskgate::task::{Principal, TaskMode};

use super::script::{Happens, Saw, Script, result};
use super::world::{Ask, Rules, World, millis, seconds};

pub(crate) const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// How long a round waits for further questions.
pub(crate) const ROUND: std::time::Duration = millis(100);

pub(crate) fn plain() -> Ask {
    Ask::call().declaring(json!({ "elicitation": {}, "sampling": {}, "roots": {} }))
}

/// A client that also takes tasks.
pub(crate) fn modern() -> Ask {
    Ask::call().declaring(json!({ "elicitation": {}, "extensions": { EXTENSION: {} } }))
}

pub(crate) fn accept() -> Value {
    json!({ "action": "accept" })
}

pub(crate) fn elicits(name: &'static str, after: u64) -> (std::time::Duration, Happens) {
    (seconds(after), Happens::Elicits(name))
}

pub(crate) fn heard(count: usize) -> (std::time::Duration, Happens) {
    (seconds(0), Happens::Heard(count))
}

pub(crate) fn returns(after: u64) -> (std::time::Duration, Happens) {
    (seconds(after), Happens::Returns(result("done")))
}

pub(crate) fn answered(ask: &str, answer: &str) -> Saw {
    Saw::Answer { call: 0, ask: format!("{ask:?}"), answer: answer.to_owned() }
}

pub(crate) fn answers(world: &World) -> Vec<Saw> {
    world.upstream.saw().into_iter().filter(|saw| matches!(saw, Saw::Answer { .. })).collect()
}

/// The content of a round.
pub(crate) struct Round {
    pub(crate) keys: Vec<String>,
    pub(crate) state: Value,
}

#[track_caller]
pub(crate) fn round(result: &Value) -> Round {
    assert_eq!(result["resultType"], "input_required", "{result}");
    assert!(result.get("taskId").is_none());
    let keys = result["inputRequests"].as_object().unwrap().keys().cloned().collect();
    Round { keys, state: result["requestState"].clone() }
}

/// The request again, with an `accept` to each of these.
pub(crate) fn again(ask: &Ask, round: &Round, keys: &[&str]) -> Ask {
    let responses: Value =
        keys.iter().map(|key| ((*key).to_owned(), accept())).collect::<serde_json::Map<_, _>>().into();
    ask.clone().id(2).member("inputResponses", responses).member("requestState", round.state.clone())
}

pub(crate) async fn result_of(world: &World, ask: &Ask) -> Value {
    world.send(ask).await.json().await["result"].take()
}

#[track_caller]
pub(crate) fn check_done(result: &Value) {
    assert_eq!(
        (result["resultType"].as_str(), result["content"][0]["text"].as_str()),
        (Some("complete"), Some("done"))
    );
}

/// MOD-27, GW-21, GW-20: questions that come together are asked together, and the call goes on where it was.
#[tokio::test(start_paused = true)]
async fn a_plain_call_is_asked_answers_and_gets_its_result() {
    let script = Script::of([elicits("a", 1), (seconds(1) + millis(20), Happens::Elicits("b")), heard(2), returns(2)]);
    for (mode, ask) in [
        (TaskMode::Never, plain()),
        (TaskMode::Auto, plain()),
        (TaskMode::Always, plain()),
        (TaskMode::Never, modern()),
    ] {
        let world = World::with(Rules::mode(mode), script.clone());
        let first = world.send(&ask).await;
        assert_eq!((first.status, first.at), (200, seconds(1) + ROUND), "{mode:?}");
        let asked = first.json().await["result"].take();
        assert_eq!(
            asked["inputRequests"]["r0"],
            json!({ "method": "elicitation/create", "params": { "message": "?" } })
        );
        let asked = round(&asked);
        assert_eq!(asked.keys, ["r0", "r1"]);
        assert_eq!(world.engine.permits_taken(), 1);
        check_done(&result_of(&world, &again(&ask, &asked, &["r0", "r1"])).await);
        assert_eq!(answers(&world), [answered("a", r#"{"action":"accept"}"#), answered("b", r#"{"action":"accept"}"#)]);
        assert_eq!(world.upstream.calls().len(), 1, "the tool ran once");
        world.is_idle().await;
    }
}

/// MOD-26: prompts and resources have questions too; elsewhere no client can be asked.
#[tokio::test(start_paused = true)]
async fn mod26_prompts_and_resources_have_rounds_as_tools_have() {
    for (method, member) in [("prompts/get", "name"), ("resources/read", "uri")] {
        let world = World::with(Rules::default(), Script::of([elicits("a", 1), heard(1), returns(2)]));
        let ask = Ask::named(method, member, "a:b").declaring(json!({ "elicitation": {} }));
        let asked = round(&result_of(&world, &ask).await);
        check_done(&result_of(&world, &again(&ask, &asked, &["r0"])).await);
        world.is_idle().await;
    }
}

/// MOD-29: a missing answer is asked for again at once, a superfluous one is ignored, and a repetition changes nothing.
#[tokio::test(start_paused = true)]
async fn mod29_missing_answers_are_asked_for_again_and_repeated_ones_ignored() {
    let script = Script::of([elicits("a", 1), elicits("b", 1), heard(2), returns(9)]);
    let world = World::with(Rules::mode(TaskMode::Never), script);
    let first = round(&result_of(&world, &plain()).await);
    let rest = result_of(&world, &again(&plain(), &first, &["r0", "r7", "other"])).await;
    assert_eq!(world.age(), seconds(1) + ROUND);
    assert_eq!(round(&rest).keys, ["r1"]);
    let rest = round(&result_of(&world, &again(&plain(), &first, &["r0"])).await);
    assert_eq!(rest.keys, ["r1"], "the older state is as good");
    // Two requests at a time wait for the same call, and both are answered.
    let ask = again(&plain(), &rest, &["r1"]);
    let (one, other) = tokio::join!(result_of(&world, &ask), result_of(&world, &ask));
    check_done(&one);
    check_done(&other);
    check_done(&result_of(&world, &ask).await);
    assert_eq!(answers(&world).len(), 2);
    world.is_idle().await;
}

/// B129 holds here too: a malformed answer is refused, and the question stays open.
#[tokio::test(start_paused = true)]
async fn a_malformed_answer_is_refused_and_the_call_stays_held() {
    let world = World::with(Rules::mode(TaskMode::Never), Script::of([elicits("a", 1), heard(1), returns(9)]));
    let asked = round(&result_of(&world, &plain()).await);
    for wrong in [json!({ "r0": { "action": "perhaps" } }), json!({ "r0": 7 }), json!([])] {
        let ask = again(&plain(), &asked, &[]).member("inputResponses", wrong);
        assert_eq!(world.send(&ask).await.json().await["error"]["code"], -32602);
    }
    // MOD-27: this request does not declare the capability of the open question.
    let lacking = world.send(&again(&plain(), &asked, &[]).declaring(json!({}))).await;
    assert_eq!(lacking.status, 400);
    assert_eq!(lacking.json().await["error"]["code"], -32021);
    check_done(&result_of(&world, &again(&plain(), &asked, &["r0"])).await);
    world.is_idle().await;
}

/// B135, T-24, T-56, MOD-28: no state but this request's own, and the tool is never run again for another.
#[tokio::test(start_paused = true)]
async fn b135_a_state_that_is_not_this_requests_runs_nothing() {
    let world = World::with(Rules::mode(TaskMode::Never), Script::of([elicits("a", 1), heard(1), returns(9)]));
    let asked = round(&result_of(&world, &plain()).await);
    let good = again(&plain(), &asked, &["r0"]);
    let mut forged = asked.state.as_str().unwrap().to_owned();
    forged.replace_range(40..41, if &forged[40..41] == "A" { "B" } else { "A" });
    for (what, ask) in [
        ("forged", good.clone().member("requestState", json!(forged))),
        ("made up", good.clone().member("requestState", json!("x"))),
        ("no text", good.clone().member("requestState", json!(7))),
        ("other arguments", good.clone().arguments(json!({ "n": 1 }))),
        ("foreign", good.clone().principal("key:b")),
    ] {
        let error = world.send(&ask).await.json().await["error"].take();
        assert_eq!(
            (&error["code"], &error["data"]["reason"]),
            (&json!(-32602), &json!("invalid_request_state")),
            "{what}"
        );
    }
    check_done(&result_of(&world, &good).await);
    // T-56: after a while the call is forgotten, and its request does not start another.
    tokio::time::sleep(seconds(301)).await;
    let error = world.send(&good).await.json().await["error"].take();
    assert_eq!(error["data"]["reason"], "invalid_request_state");
    assert_eq!(world.upstream.calls().len(), 1);
    world.is_idle().await;
}

/// No face finds a hidden task, also by its id.
#[tokio::test(start_paused = true)]
async fn a_held_call_is_no_task_of_anybodys() {
    let world = World::with(Rules::mode(TaskMode::Never), Script::of([elicits("a", 1), heard(1), returns(2)]));
    let asked = round(&result_of(&world, &modern()).await);
    let stored = world.store.unsettled().await;
    let id = stored[0].id.to_string();
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let error = world.send(&Ask::task(method, &id).member("inputResponses", json!({}))).await.json().await;
        assert_eq!(error["error"]["message"], "Task not found", "{method}");
    }
    check_done(&result_of(&world, &again(&modern(), &asked, &["r0"])).await);
    world.is_idle().await;
}

/// MOD-20: a disconnect cancels while a client waits; between two rounds there is no connection.
#[tokio::test(start_paused = true)]
async fn leaving_cancels_a_call_that_is_waited_for_and_no_other() {
    let script = Script::of([elicits("a", 1), heard(1), returns(60)]);
    // Before the round is asked.
    let world = World::with(Rules::mode(TaskMode::Never), script.clone());
    let waits = tokio::time::timeout(seconds(1) + millis(10), world.sending(&plain())).await;
    assert!(waits.is_err());
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!(world.upstream.cancels(), 1);
    world.is_idle().await;
    // After its answers, while the upstream works.
    let world = World::with(Rules::mode(TaskMode::Never), script);
    let asked = round(&result_of(&world, &plain()).await);
    tokio::time::sleep(seconds(20)).await;
    assert_eq!(world.upstream.cancels(), 0);
    let ask = again(&plain(), &asked, &["r0"]);
    assert!(tokio::time::timeout(seconds(5), world.sending(&ask)).await.is_err());
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!(world.upstream.cancels(), 1);
    let error = world.send(&ask).await.json().await["error"].take();
    assert_eq!(error["data"]["reason"], "invalid_request_state");
    world.is_idle().await;
}

/// The same while the hidden row is being stored.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_before_its_round_cancels_the_call() {
    let world = World::with(Rules::mode(TaskMode::Never), Script::of([elicits("a", 1)]));
    world.store.hold_returns();
    assert!(tokio::time::timeout(millis(1_500), world.sending(&plain())).await.is_err());
    world.store.returns.add_permits(1);
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!(world.upstream.cancels(), 1);
    world.is_idle().await;
}

/// MOD-19, MOD-27: the client's last request decides which questions it can get.
#[tokio::test(start_paused = true)]
async fn mod27_a_question_after_a_retry_is_judged_by_the_retry() {
    let script = Script::of([
        elicits("a", 1),
        heard(1),
        (seconds(5), Happens::AsksFor("sampling/createMessage", "{}")),
        returns(9),
    ]);
    let world = World::with(Rules::mode(TaskMode::Never), script);
    let asked = round(&result_of(&world, &plain()).await);
    let retry = again(&plain(), &asked, &["r0"]).declaring(json!({ "elicitation": {} }));
    let answer = world.send(&retry).await;
    assert_eq!(answer.status, 400);
    let error = answer.json().await["error"].take();
    assert_eq!(error["data"], json!({ "requiredCapabilities": { "sampling": {} } }));
    assert_eq!(world.upstream.cancels(), 1);
    world.is_idle().await;
}

/// Of two that wait one may go.
#[tokio::test(start_paused = true)]
async fn a_call_goes_on_while_one_client_waits_for_it() {
    let world = World::with(Rules::mode(TaskMode::Never), Script::of([elicits("a", 1), heard(1), returns(12)]));
    let asked = round(&result_of(&world, &plain()).await);
    let ask = again(&plain(), &asked, &["r0"]);
    let stays = world.client(&ask);
    assert!(tokio::time::timeout(seconds(5), world.sending(&ask)).await.is_err());
    check_done(&stays.await.unwrap().json().await["result"].take());
    assert_eq!(world.upstream.cancels(), 0);
    world.is_idle().await;
}

/// An end between two rounds is kept for a while, a fault like a result.
#[tokio::test(start_paused = true)]
async fn an_end_between_two_rounds_is_kept_for_the_next_one() {
    for (end, good) in [(Happens::Returns(result("done")), true), (Happens::Faults(-32050, "broke"), false)] {
        let world = World::with(Rules::mode(TaskMode::Never), Script::of([elicits("a", 1), (seconds(30), end)]));
        let asked = round(&result_of(&world, &plain()).await);
        tokio::time::sleep(seconds(60)).await;
        let answer = world.send(&again(&plain(), &asked, &["r0"])).await.json().await;
        if good {
            check_done(&answer["result"])
        } else {
            assert_eq!(answer["error"]["code"], -32050)
        }
        assert_eq!(answers(&world), []);
        world.is_idle().await;
    }
}

/// GW-18: the client does not return, the upstream gets a cancel, and its result is kept for a while.
#[tokio::test(start_paused = true)]
async fn an_unanswered_round_of_a_held_call_is_cancelled_at_its_deadline() {
    let world = World::with(
        Rules { input_deadline: seconds(100), ..Rules::mode(TaskMode::Never) },
        Script::of([elicits("a", 1), heard(1), returns(9)]),
    );
    let asked = round(&result_of(&world, &plain()).await);
    tokio::time::sleep(seconds(110)).await;
    assert_eq!(answers(&world), [answered("a", r#"{"action":"cancel"}"#)]);
    check_done(&result_of(&world, &again(&plain(), &asked, &["r0"])).await);
    world.is_idle().await;
}

/// GW-17: a question that the upstream cancelled meanwhile is not asked again.
#[tokio::test(start_paused = true)]
async fn a_question_that_is_taken_back_between_two_rounds_is_no_more() {
    let script =
        Script::of([elicits("a", 1), elicits("b", 1), (seconds(5), Happens::Withdraws("a")), heard(1), returns(20)]);
    let world = World::with(Rules::mode(TaskMode::Never), script);
    let asked = round(&result_of(&world, &plain()).await);
    tokio::time::sleep(seconds(10)).await;
    let rest = round(&result_of(&world, &again(&plain(), &asked, &["r0"])).await);
    assert_eq!(rest.keys, ["r1"]);
    check_done(&result_of(&world, &again(&plain(), &rest, &["r1"])).await);
    assert_eq!(answers(&world).len(), 1);
    world.is_idle().await;
}

/// T-58 for rounds: without a permit no call can be held, and the question is refused.
#[tokio::test(start_paused = true)]
async fn without_a_place_the_question_is_refused_and_the_call_goes_on() {
    let world = World::with(
        Rules { tasks_max: 0, ..Rules::mode(TaskMode::Never) },
        Script::of([elicits("a", 1), heard(1), returns(2)]),
    );
    check_done(&result_of(&world, &plain()).await);
    assert_eq!(answers(&world), [answered("a", r#"{"action":"cancel"}"#)]);
    world.is_idle().await;
}

/// GW-06: eight rounds; further questions are refused, and the call goes on.
#[tokio::test(start_paused = true)]
async fn after_eight_rounds_questions_are_refused() {
    let mut events = Vec::new();
    for count in 1..=9 {
        events.extend([elicits("a", 0), heard(count)]);
    }
    events.push(returns(0));
    let world = World::with(Rules::mode(TaskMode::Never), Script::of(events));
    let mut ask = plain();
    let mut rounds = 0;
    let last = loop {
        let result = result_of(&world, &ask).await;
        if result["resultType"] == "complete" {
            break result;
        }
        rounds += 1;
        let asked = round(&result);
        assert_eq!(asked.keys, [format!("r{}", rounds - 1)], "keys are not used again");
        let key = asked.keys[0].clone();
        ask = again(&plain(), &asked, &[&key]);
    };
    check_done(&last);
    assert_eq!((rounds, answers(&world).last().cloned()), (8, Some(answered("a", r#"{"action":"cancel"}"#))));
    world.is_idle().await;
}

/// The held call's deadline ends it like a task's, and a waiting client gets the error.
#[tokio::test(start_paused = true)]
async fn a_held_call_that_outlives_its_deadline_is_ended() {
    let rules = Rules { deadline: seconds(30), input_deadline: seconds(500), ..Rules::mode(TaskMode::Never) };
    let world = World::with(rules, Script::of([elicits("a", 1)]));
    let asked = round(&result_of(&world, &plain()).await);
    tokio::time::sleep(seconds(40)).await;
    let error = world.send(&again(&plain(), &asked, &["r0"])).await.json().await["error"].take();
    assert_eq!(error["data"]["reason"], "deadline_exceeded");
    assert_eq!(world.upstream.cancels(), 1);
    world.is_idle().await;
}

/// Each principal's own places, held calls included.
#[tokio::test(start_paused = true)]
async fn a_held_call_gives_its_place_back_when_it_ends() {
    let world = World::with(
        Rules { tasks_max: 1, ..Rules::mode(TaskMode::Never) },
        Script::of([elicits("a", 1), heard(1), returns(2)]),
    );
    for _ in 0..3 {
        let asked = round(&result_of(&world, &plain()).await);
        assert_eq!(world.store.usage_of(&Principal::local()).unsettled, 1);
        check_done(&result_of(&world, &again(&plain(), &asked, &["r0"])).await);
    }
    world.is_idle().await;
}
