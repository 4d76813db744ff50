//! Questions to clients without a handle: the call is held, and taken up when its request is made again
//! (protocol.md 1.12, 5.10; design.md 3.4, `ask-first`).

use serde_json::{Value, json};
use taskgate::store::TaskStore;
use taskgate::task::{EarlyInput, Mode, Principal};

use crate::script::{Happens, Saw, Script, result};
use crate::world::{Ask, GRACE, Rules, World, millis, seconds};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// How long a round waits for further questions.
const ROUND: std::time::Duration = millis(30);

fn plain() -> Ask {
    Ask::call().declaring(json!({ "elicitation": {}, "sampling": {}, "roots": {} }))
}

/// A client that also takes tasks.
fn modern() -> Ask {
    Ask::call().declaring(json!({ "elicitation": {}, "extensions": { EXTENSION: {} } }))
}

fn accept() -> Value {
    json!({ "action": "accept" })
}

fn elicits(name: &'static str, after: u64) -> (std::time::Duration, Happens) {
    (seconds(after), Happens::Elicits(name))
}

fn heard(count: usize) -> (std::time::Duration, Happens) {
    (seconds(0), Happens::Heard(count))
}

fn returns(after: u64) -> (std::time::Duration, Happens) {
    (seconds(after), Happens::Returns(result("done")))
}

fn answered(ask: &str, answer: &str) -> Saw {
    Saw::Answer { call: 0, ask: format!("{ask:?}"), answer: answer.to_owned() }
}

fn answers(world: &World) -> Vec<Saw> {
    world.upstream.saw().into_iter().filter(|saw| matches!(saw, Saw::Answer { .. })).collect()
}

/// What a round holds.
struct Round {
    keys: Vec<String>,
    state: Value,
}

#[track_caller]
fn round(result: &Value) -> Round {
    assert_eq!(result["resultType"], "input_required", "{result}");
    assert!(result.get("taskId").is_none());
    let keys = result["inputRequests"].as_object().unwrap().keys().cloned().collect();
    Round { keys, state: result["requestState"].clone() }
}

/// The request again, with an `accept` to each of these.
fn again(ask: &Ask, round: &Round, keys: &[&str]) -> Ask {
    let responses: Value =
        keys.iter().map(|key| ((*key).to_owned(), accept())).collect::<serde_json::Map<_, _>>().into();
    ask.clone().id(2).member("inputResponses", responses).member("requestState", round.state.clone())
}

async fn result_of(world: &World, ask: &Ask) -> Value {
    world.send(ask).await.json().await["result"].take()
}

#[track_caller]
fn check_done(result: &Value) {
    assert_eq!(
        (result["resultType"].as_str(), result["content"][0]["text"].as_str()),
        (Some("complete"), Some("done"))
    );
}

/// MOD-27, protocol.md 5.10: questions that come together are asked together, and the call goes on where it was.
#[tokio::test(start_paused = true)]
async fn a_plain_call_is_asked_answers_and_gets_its_result() {
    let script = Script::of([elicits("a", 1), (seconds(1) + millis(20), Happens::Elicits("b")), heard(2), returns(2)]);
    for (mode, ask) in [(Mode::Never, plain()), (Mode::Auto, plain()), (Mode::Always, plain()), (Mode::Never, modern())]
    {
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
        assert_eq!(world.engine.places_taken(), 1);
        check_done(&result_of(&world, &again(&ask, &asked, &["r0", "r1"])).await);
        assert_eq!(answers(&world), [answered("a", r#"{"action":"accept"}"#), answered("b", r#"{"action":"accept"}"#)]);
        assert_eq!(world.upstream.calls().len(), 1, "the tool ran once");
        world.is_idle().await;
    }
}

/// MOD-26: prompts and resources ask too; elsewhere nobody can be asked.
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

/// MOD-29: what is missing is asked again at once, what is too much is ignored, and a repetition changes nothing.
#[tokio::test(start_paused = true)]
async fn mod29_missing_answers_are_asked_for_again_and_repeated_ones_ignored() {
    let script = Script::of([elicits("a", 1), elicits("b", 1), heard(2), returns(9)]);
    let world = World::with(Rules::mode(Mode::Never), script);
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
    let world = World::with(Rules::mode(Mode::Never), Script::of([elicits("a", 1), heard(1), returns(9)]));
    let asked = round(&result_of(&world, &plain()).await);
    for wrong in [json!({ "r0": { "action": "perhaps" } }), json!({ "r0": 7 }), json!([])] {
        let ask = again(&plain(), &asked, &[]).member("inputResponses", wrong);
        assert_eq!(world.send(&ask).await.json().await["error"]["code"], -32602);
    }
    // MOD-27: this request does not declare what is still open.
    let lacking = world.send(&again(&plain(), &asked, &[]).declaring(json!({}))).await;
    assert_eq!(lacking.status, 400);
    assert_eq!(lacking.json().await["error"]["code"], -32021);
    check_done(&result_of(&world, &again(&plain(), &asked, &["r0"])).await);
    world.is_idle().await;
}

/// B135, T-24, T-56, MOD-28: no state but this request's own, and the tool is never run again for another.
#[tokio::test(start_paused = true)]
async fn b135_a_state_that_is_not_this_requests_runs_nothing() {
    let world = World::with(Rules::mode(Mode::Never), Script::of([elicits("a", 1), heard(1), returns(9)]));
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

/// No face finds a hidden task, whoever knows its id.
#[tokio::test(start_paused = true)]
async fn a_held_call_is_no_task_of_anybodys() {
    let world = World::with(Rules::mode(Mode::Never), Script::of([elicits("a", 1), heard(1), returns(2)]));
    let asked = round(&result_of(&world, &modern()).await);
    let stored = world.store.unsettled(None, 9).await.unwrap();
    let id = stored[0].task.key.id.to_string();
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let error = world.send(&Ask::task(method, &id).member("inputResponses", json!({}))).await.json().await;
        assert_eq!(error["error"]["message"], "Task not found", "{method}");
    }
    check_done(&result_of(&world, &again(&modern(), &asked, &["r0"])).await);
    world.is_idle().await;
}

/// MOD-20: leaving cancels while somebody waits; between two rounds nobody is there who could leave.
#[tokio::test(start_paused = true)]
async fn leaving_cancels_a_call_that_is_waited_for_and_no_other() {
    let script = Script::of([elicits("a", 1), heard(1), returns(60)]);
    // Before the round is asked.
    let world = World::with(Rules::mode(Mode::Never), script.clone());
    let waits = tokio::time::timeout(seconds(1) + millis(10), world.sending(&plain())).await;
    assert!(waits.is_err());
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!(world.upstream.cancels(), 1);
    world.is_idle().await;
    // After its answers, while the upstream works.
    let world = World::with(Rules::mode(Mode::Never), script);
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
    let world = World::with(Rules::mode(Mode::Never), Script::of([elicits("a", 1)]));
    world.store.hold_returns();
    assert!(tokio::time::timeout(millis(1_500), world.sending(&plain())).await.is_err());
    world.store.returns.add_permits(1);
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!(world.upstream.cancels(), 1);
    world.is_idle().await;
}

/// MOD-19, MOD-27: what this client can be asked is what its last request says.
#[tokio::test(start_paused = true)]
async fn mod27_a_question_after_a_retry_is_judged_by_the_retry() {
    let script = Script::of([
        elicits("a", 1),
        heard(1),
        (seconds(5), Happens::AsksFor("sampling/createMessage", "{}")),
        returns(9),
    ]);
    let world = World::with(Rules::mode(Mode::Never), script);
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
async fn a_call_goes_on_while_anybody_waits_for_it() {
    let world = World::with(Rules::mode(Mode::Never), Script::of([elicits("a", 1), heard(1), returns(12)]));
    let asked = round(&result_of(&world, &plain()).await);
    let ask = again(&plain(), &asked, &["r0"]);
    let stays = world.client(&ask);
    assert!(tokio::time::timeout(seconds(5), world.sending(&ask)).await.is_err());
    check_done(&stays.await.unwrap().json().await["result"].take());
    assert_eq!(world.upstream.cancels(), 0);
    world.is_idle().await;
}

/// An end that nobody waited for is kept for a while, a fault like a result.
#[tokio::test(start_paused = true)]
async fn an_end_between_two_rounds_is_kept_for_the_next_one() {
    for (end, good) in [(Happens::Returns(result("done")), true), (Happens::Faults(-32050, "broke"), false)] {
        let world = World::with(Rules::mode(Mode::Never), Script::of([elicits("a", 1), (seconds(30), end)]));
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

/// protocol.md 5.10: nobody comes back, the upstream is told so, and what it makes of it is kept for a while.
#[tokio::test(start_paused = true)]
async fn a_held_call_that_nobody_comes_back_for_is_given_up_at_its_deadline() {
    let world = World::with(
        Rules { input_deadline: seconds(100), ..Rules::mode(Mode::Never) },
        Script::of([elicits("a", 1), heard(1), returns(9)]),
    );
    let asked = round(&result_of(&world, &plain()).await);
    tokio::time::sleep(seconds(110)).await;
    assert_eq!(answers(&world), [answered("a", r#"{"action":"cancel"}"#)]);
    check_done(&result_of(&world, &again(&plain(), &asked, &["r0"])).await);
    world.is_idle().await;
}

/// protocol.md 5.10: what the upstream took back meanwhile is not asked again.
#[tokio::test(start_paused = true)]
async fn a_question_that_is_taken_back_between_two_rounds_is_no_more() {
    let script =
        Script::of([elicits("a", 1), elicits("b", 1), (seconds(5), Happens::Withdraws("a")), heard(1), returns(20)]);
    let world = World::with(Rules::mode(Mode::Never), script);
    let asked = round(&result_of(&world, &plain()).await);
    tokio::time::sleep(seconds(10)).await;
    let rest = round(&result_of(&world, &again(&plain(), &asked, &["r0"])).await);
    assert_eq!(rest.keys, ["r1"]);
    check_done(&result_of(&world, &again(&plain(), &rest, &["r1"])).await);
    assert_eq!(answers(&world).len(), 1);
    world.is_idle().await;
}

/// T-58 in its way: without a place nobody can be held, and the question is refused.
#[tokio::test(start_paused = true)]
async fn without_a_place_the_question_is_refused_and_the_call_goes_on() {
    let world = World::with(
        Rules { tasks_max: 0, ..Rules::mode(Mode::Never) },
        Script::of([elicits("a", 1), heard(1), returns(2)]),
    );
    check_done(&result_of(&world, &plain()).await);
    assert_eq!(answers(&world), [answered("a", r#"{"action":"cancel"}"#)]);
    world.is_idle().await;
}

/// protocol.md 5.10.1: eight rounds; what is asked beyond is refused, and the call goes on.
#[tokio::test(start_paused = true)]
async fn after_eight_rounds_questions_are_refused() {
    let mut events = Vec::new();
    for count in 1..=9 {
        events.extend([elicits("a", 0), heard(count)]);
    }
    events.push(returns(0));
    let world = World::with(Rules::mode(Mode::Never), Script::of(events));
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

fn ask_first(mode: Mode) -> Rules {
    Rules { early_input: EarlyInput::AskFirst, ..Rules::mode(mode) }
}

/// design.md 3.4, EXT-14, EXT-43: first the questions, then the handle; one row, one id, other keys.
#[tokio::test(start_paused = true)]
async fn ask_first_asks_before_the_handle_and_the_grace_begins_anew() {
    for mode in [Mode::Auto, Mode::Always, Mode::Required] {
        let script = Script::of([elicits("a", 1), heard(1), elicits("b", 20), heard(2), returns(25)]);
        let world = World::with(ask_first(mode), script);
        let first = world.send(&modern()).await;
        assert_eq!(first.at, seconds(1) + ROUND, "{mode:?}");
        let asked = round(&first.json().await["result"].take());
        let hidden = world.store.unsettled(None, 9).await.unwrap()[0].task.key.clone();
        tokio::time::sleep(seconds(9)).await;
        let began = world.age();
        let second = world.send(&again(&modern(), &asked, &["r0"])).await;
        assert_eq!(second.at, began + GRACE, "{mode:?}");
        let handle = second.json().await["result"].take();
        assert_eq!((handle["resultType"].as_str(), handle.get("requestState")), (Some("task"), None), "EXT-73");
        let id = handle["taskId"].as_str().unwrap().to_owned();
        assert_eq!(id, hidden.id.to_string());
        // The same request once more is given the same handle.
        assert_eq!(result_of(&world, &again(&modern(), &asked, &["r0"])).await["taskId"], id.as_str());
        tokio::time::sleep(seconds(21) - world.age()).await;
        let get = Ask::task("tasks/get", &id).declaring(json!({ "elicitation": {}, "extensions": { EXTENSION: {} } }));
        let task = result_of(&world, &get).await;
        assert_eq!(task["inputRequests"].as_object().unwrap().keys().collect::<Vec<_>>(), ["r1"]);
        let update = Ask::task("tasks/update", &id).member("inputResponses", json!({ "r1": accept() }));
        assert_eq!(result_of(&world, &update).await["resultType"], "complete");
        assert_eq!(world.settled(&id).await["status"], "completed");
        assert_eq!(world.engine.places_taken(), 0);
        world.is_idle().await;
    }
}

/// `auto` stays plain where the call is quick after its answers; `always` and `required` end in a handle.
#[tokio::test(start_paused = true)]
async fn ask_first_and_a_quick_call_end_as_their_mode_says() {
    for (mode, kind) in [(Mode::Auto, "complete"), (Mode::Always, "task"), (Mode::Required, "task")] {
        let world = World::with(ask_first(mode), Script::of([elicits("a", 1), heard(1), returns(1)]));
        let asked = round(&result_of(&world, &modern()).await);
        let ended = result_of(&world, &again(&modern(), &asked, &["r0"])).await;
        assert_eq!(ended["resultType"], kind, "{mode:?}");
        if kind == "task" {
            check_done(&world.settled(ended["taskId"].as_str().unwrap()).await["result"]);
        }
        world.is_idle().await;
    }
}

/// design.md 3.4: no question, and the handle comes at the grace's end, `always` and `required` alike.
#[tokio::test(start_paused = true)]
async fn ask_first_without_a_question_hands_over_at_the_end_of_the_grace() {
    for mode in [Mode::Auto, Mode::Always, Mode::Required] {
        let world = World::with(ask_first(mode), Script::of([returns(10)]));
        let answer = world.send(&modern()).await;
        assert_eq!(answer.at, GRACE, "{mode:?}");
        let handle = answer.json().await["result"].take();
        check_done(&world.settled(handle["taskId"].as_str().unwrap()).await["result"]);
        let rows = if mode == Mode::Auto { 0 } else { 1 };
        assert_eq!(world.upstream.saw()[0], Saw::Begin { call: 0, rows }, "the row is there before the call");
        world.is_idle().await;
    }
}

/// EXT-02: a request that does not declare the extension gets no handle, whatever the one before it said.
#[tokio::test(start_paused = true)]
async fn ext02_a_retry_without_the_extension_is_answered_plainly() {
    for mode in [Mode::Auto, Mode::Always] {
        let world = World::with(ask_first(mode), Script::of([elicits("a", 1), heard(1), returns(10)]));
        let asked = round(&result_of(&world, &modern()).await);
        check_done(&result_of(&world, &again(&plain(), &asked, &["r0"])).await);
        world.is_idle().await;
    }
}

/// T-27: the client leaves at the moment of its handle, which nobody knows then.
#[tokio::test(start_paused = true)]
async fn t27_a_revealed_task_that_nobody_took_is_dropped() {
    let world = World::with(ask_first(Mode::Always), Script::silent());
    assert!(tokio::time::timeout(GRACE - millis(1), world.sending(&modern())).await.is_err());
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!(world.upstream.cancels(), 1);
    world.is_idle().await;
}

/// The held call's time to live ends it like a task's, and whoever waits is told.
#[tokio::test(start_paused = true)]
async fn a_held_call_that_outlives_its_deadline_is_ended() {
    let rules = Rules { deadline: seconds(30), input_deadline: seconds(500), ..Rules::mode(Mode::Never) };
    let world = World::with(rules, Script::of([elicits("a", 1)]));
    let asked = round(&result_of(&world, &plain()).await);
    tokio::time::sleep(seconds(40)).await;
    let error = world.send(&again(&plain(), &asked, &["r0"])).await.json().await["error"].take();
    assert_eq!(error["data"]["reason"], "deadline_exceeded");
    assert_eq!(world.upstream.cancels(), 1);
    world.is_idle().await;
}

/// T-49: an error that demands elicitations is read as questions, and the call is made again after them.
#[tokio::test(start_paused = true)]
async fn t49_a_demand_is_asked_and_the_call_repeated_once_it_is_met() {
    const DEMAND: &str =
        r#"{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://a.example/","message":"go"}]}"#;
    let url = json!({ "elicitation": { "url": {} } });
    for (action, code) in [("accept", None), ("decline", Some(-32603))] {
        let demanded = std::sync::atomic::AtomicBool::new(false);
        let world = World::choosing(Rules::mode(Mode::Never), move |_| {
            match demanded.swap(true, std::sync::atomic::Ordering::Relaxed) {
                false => Script::of([(seconds(1), Happens::FaultsWith(-32042, DEMAND))]),
                true => Script::of([returns(1)]),
            }
        });
        let ask = Ask::call().declaring(url.clone());
        let asked = result_of(&world, &ask).await;
        assert_eq!(
            asked["inputRequests"]["r0"],
            json!({ "method": "elicitation/create", "params": { "mode": "url", "url": "https://a.example/", "message": "go" } })
        );
        let retry = again(&ask, &round(&asked), &[]).member("inputResponses", json!({ "r0": { "action": action } }));
        let answer = world.send(&retry).await.json().await;
        match code {
            None => check_done(&answer["result"]),
            Some(code) => assert_eq!(answer["error"]["code"], code),
        }
        assert_eq!(world.upstream.calls().len(), if code.is_none() { 2 } else { 1 });
        assert_eq!(answers(&world), []);
        world.is_idle().await;
    }
    // In a task.
    let demanded = std::sync::atomic::AtomicBool::new(false);
    let world =
        World::choosing(Rules::default(), move |_| match demanded.swap(true, std::sync::atomic::Ordering::Relaxed) {
            false => Script::of([(seconds(1), Happens::FaultsWith(-32042, DEMAND))]),
            true => Script::of([returns(1)]),
        });
    let both = json!({ "elicitation": { "url": {} }, "extensions": { EXTENSION: {} } });
    let id = world.handle(&Ask::call().declaring(both)).await;
    let update = Ask::task("tasks/update", &id).member("inputResponses", json!({ "r0": accept() }));
    assert_eq!(result_of(&world, &update).await["resultType"], "complete");
    check_done(&world.settled(&id).await["result"]);
    world.is_idle().await;
    // Undeclared.
    let world = World::with(Rules::mode(Mode::Never), Script::of([(seconds(1), Happens::FaultsWith(-32042, DEMAND))]));
    let answer = world.send(&plain()).await;
    assert_eq!(answer.status, 400);
    let error = answer.json().await["error"].take();
    assert_eq!(error["data"], json!({ "requiredCapabilities": { "elicitation": { "url": {} } } }));
    world.is_idle().await;
}

/// Each principal's own places, held calls included.
#[tokio::test(start_paused = true)]
async fn a_held_call_gives_its_place_back_when_it_ends() {
    let world = World::with(
        Rules { tasks_max: 1, ..Rules::mode(Mode::Never) },
        Script::of([elicits("a", 1), heard(1), returns(2)]),
    );
    for _ in 0..3 {
        let asked = round(&result_of(&world, &plain()).await);
        assert_eq!(world.store.usage_of(&Principal::local()).unsettled, 1);
        check_done(&result_of(&world, &again(&plain(), &asked, &["r0"])).await);
    }
    world.is_idle().await;
}
