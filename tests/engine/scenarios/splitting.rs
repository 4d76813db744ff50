//! Calls with a list that are made as one call for each element.

use serde_json::{Value, json};
use taskgate::task::{Executed, Reason, TaskMode};

use super::script::{Call, Happens, Saw, Script, result};
use super::world::{Ask, Rules, World, millis, seconds};

/// At most ten elements, three side by side.
const SPLIT: Rules = Rules { split: Some((3, 10)), ..Rules::DEFAULT };

fn plain() -> Rules {
    Rules { mode: TaskMode::Never, ..SPLIT }
}

fn ask(items: &Value) -> Ask {
    Ask::call().arguments(json!({ "items": items, "keep": 1.5 }))
}

/// The only element of the list that a call of the server has.
fn element(call: &Call) -> Value {
    let mut params: Value = serde_json::from_str(&call.params).unwrap();
    assert_eq!(params["arguments"]["keep"], 1.5);
    let items = params["arguments"]["items"].take();
    assert_eq!(items.as_array().unwrap().len(), 1, "{items}");
    items[0].clone()
}

/// A server that takes as many seconds for an element as the element says, and returns it.
fn slow(rules: Rules) -> World {
    World::choosing(rules, |call| {
        let element = element(call).as_u64().unwrap();
        Script::returns(seconds(element), &element.to_string())
    })
}

pub(super) fn texts(result: &Value) -> Vec<&str> {
    result["content"].as_array().unwrap().iter().map(|block| block["text"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn elements_run_side_by_side_and_their_results_stand_in_the_order_of_the_list() {
    let world = slow(plain());
    let answer = world.send(&ask(&json!([4, 1, 2, 3, 1]))).await;
    // 4 beside 1, 3 beside 2, 1.
    assert_eq!(answer.at, seconds(4));
    let result = answer.json().await["result"].take();
    assert_eq!(texts(&result), ["4", "1", "2", "3", "1"]);
    assert_eq!(result.get("isError"), None);
    let order: Vec<u64> = world.upstream.calls().iter().map(|call| element(call).as_u64().unwrap()).collect();
    assert_eq!(order, [4, 1, 2, 3, 1]);
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_one_becomes_a_task_that_says_how_many_are_done() {
    let world = slow(SPLIT);
    let id = world.handle(&ask(&json!([1, 3, 6, 9]))).await;
    assert_eq!(world.age(), seconds(2), "after its grace");
    let mut seen = Vec::new();
    for at in [4, 7, 10] {
        tokio::time::sleep_until(world.started + seconds(at)).await;
        seen.push(world.get(&id).await["statusMessage"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(seen, ["2/4", "3/4", "3/4"]);
    let task = world.settled(&id).await;
    assert_eq!((&task["status"], texts(&task["result"])), (&json!("completed"), vec!["1", "3", "6", "9"]));
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn each_call_has_a_permit_of_its_own_and_waits_for_it() {
    let world = slow(Rules { in_flight_max: 2, ..plain() });
    let answer = world.send(&ask(&json!([2, 2, 2, 2]))).await;
    assert_eq!(answer.at, seconds(4), "two at a time, where three may");
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_names_its_element_and_keeps_the_others() {
    let world = World::choosing(plain(), |call| match element(call).as_str().unwrap() {
        "tool" => Script::of([(
            seconds(1),
            Happens::Returns(
                json!({ "isError": true, "content": [{ "type": "text", "text": "no such page" }] }).to_string(),
            ),
        )]),
        "error" => Script::of([(seconds(1), Happens::Faults(-32_000, "bad"))]),
        "lost" => Script::of([(seconds(1), Happens::Loses(Reason::UpstreamClosed, Executed::Unknown))]),
        "cancelled" => Script::of([(seconds(1), Happens::Cancels)]),
        "structured" => {
            let returned = json!({ "content": [], "structuredContent": { "n": 1 } });
            Script::of([(seconds(1), Happens::Returns(returned.to_string()))])
        }
        words => Script::returns(seconds(1), words),
    });
    let items = json!(["fine", "tool", "error", "lost", "cancelled", "structured"]);
    let result = world.send(&ask(&items)).await.json().await["result"].take();
    let expected = [
        "fine",
        "items[1] failed: no such page",
        "items[2] failed: bad",
        "items[3] failed: The upstream server ended the connection before it answered",
        "items[4] failed: it was cancelled",
    ];
    assert_eq!(texts(&result), expected);
    assert_eq!(result["structuredContent"], json!({ "results": [null, null, null, null, null, { "n": 1 }] }));
    assert_eq!(result.get("isError"), None);
    let result = world.send(&ask(&json!(["tool", "error"]))).await.json().await["result"].take();
    assert_eq!(
        (&result["isError"], texts(&result)),
        (&json!(true), vec!["items[0] failed: no such page", "items[1] failed: bad"])
    );
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_reaches_every_call_that_runs_and_none_is_made_after_it() {
    let world = slow(SPLIT);
    let id = world.handle(&ask(&json!([1, 60, 60, 60, 60]))).await;
    assert_eq!(world.send(&Ask::task("tasks/cancel", &id)).await.status, 200);
    assert_eq!(world.settled(&id).await["status"], "cancelled");
    for call in 1..4 {
        world.upstream.sees(&Saw::Drop(call)).await;
    }
    assert_eq!((world.upstream.cancels(), world.upstream.begins()), (3, 4));
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_cancels_all_calls_of_a_plain_one() {
    let world = slow(plain());
    let asked = world.client(&ask(&json!([60, 60])));
    world.upstream.sees(&Saw::Begin { call: 1, rows: 0 }).await;
    asked.abort();
    for call in 0..2 {
        world.upstream.sees(&Saw::Drop(call)).await;
    }
    assert_eq!(world.upstream.cancels(), 2);
    world.is_idle().await;
}

/// In real time, as a paused clock stands still under a flood.
#[tokio::test]
async fn an_element_that_never_pauses_does_not_hold_back_the_others() {
    let rules = Rules { split: Some((2, 10)), ..plain() };
    let world = World::choosing(rules, |call| match element(call).as_str().unwrap() {
        "flood" => Script::of([(seconds(0), Happens::Floods)]),
        quick => Script::returns(seconds(0), quick),
    });
    let asked = world.client(&ask(&json!(["flood", "quick", "next"])));
    let next = Saw::Begin { call: 2, rows: 0 };
    tokio::time::timeout(seconds(60), world.upstream.sees(&next)).await.expect("the place of the second one is free");
    asked.abort();
}

/// A question of one element is a question of the task, and its answer goes to that element's call.
#[tokio::test(start_paused = true)]
async fn questions_of_elements_are_the_tasks_and_each_answer_reaches_its_own_call() {
    let world = World::choosing(SPLIT, |_| {
        Script::of([
            (seconds(3), Happens::Elicits("which")),
            (seconds(3), Happens::Heard(1)),
            (seconds(4), Happens::Returns(result("answered"))),
        ])
    });
    let declared = json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let id = world.handle(&ask(&json!(["a", "b"])).declaring(declared.clone())).await;
    tokio::time::sleep_until(world.started + millis(3_100)).await;
    let asked =
        world.send(&Ask::task("tasks/get", &id).declaring(declared.clone())).await.json().await["result"].take();
    let keys: Vec<String> = asked["inputRequests"].as_object().unwrap().keys().cloned().collect();
    assert_eq!((keys.len(), &asked["status"]), (2, &json!("input_required")));
    for (key, action) in keys.iter().zip(["decline", "cancel"]) {
        let update = Ask::task("tasks/update", &id).declaring(declared.clone());
        let answers = json!({ key: { "action": action } });
        assert_eq!(world.send(&update.member("inputResponses", answers)).await.status, 200);
    }
    let task = world.settled(&id).await;
    assert_eq!(texts(&task["result"]), ["answered", "answered"]);
    for (call, action) in ["decline", "cancel"].into_iter().enumerate() {
        let (ask, answer) = (r#""which""#.to_owned(), json!({ "action": action }).to_string());
        assert!(world.upstream.saw().contains(&Saw::Answer { call, ask, answer }), "{:?}", world.upstream.saw());
    }
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn results_that_are_too_large_together_end_the_call_and_its_running_elements() {
    let text = "x".repeat(400_000);
    let world = World::choosing(plain(), move |call| match element(call).as_u64().unwrap() {
        0 => Script::silent(),
        after => Script::returns(seconds(after), &text),
    });
    let answer = world.send(&ask(&json!([1, 2, 3, 0, 0, 4]))).await;
    let error = answer.json().await["error"].take();
    assert_eq!(error["data"], json!({ "source": "gateway", "reason": "result_too_large", "executed": "yes" }));
    assert_eq!(world.upstream.cancels(), 2, "of those that run beside it");
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_too_long_is_refused_and_nothing_is_sent() {
    let world = slow(SPLIT);
    let answer = world.send(&ask(&json!([1_u64; 11].as_slice()))).await;
    let error = answer.json().await["error"].take();
    assert_eq!(error["code"], -32602);
    assert_eq!(
        error["message"],
        "Invalid params: arguments.items has more than 10 elements, the most that this tool takes"
    );
    assert_eq!(world.upstream.begins(), 0);
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_list_is_sent_as_it_came() {
    for arguments in [
        json!({}),
        json!({ "items": [] }),
        json!({ "items": "a" }),
        json!({ "items": null }),
        json!({ "items": { "0": 1 } }),
    ] {
        let world = World::with(SPLIT, Script::returns(seconds(1), "plain"));
        let result = world.send(&Ask::call().arguments(arguments.clone())).await.json().await["result"].take();
        assert_eq!(texts(&result), ["plain"]);
        let calls = world.upstream.calls();
        let sent: Value = serde_json::from_str(&calls[0].params).unwrap();
        assert_eq!((calls.len(), &sent["arguments"]), (1, &arguments));
        world.is_idle().await;
    }
}

/// An element whose call ends takes its questions back.
#[tokio::test(start_paused = true)]
async fn a_question_of_an_element_that_ended_is_open_no_more() {
    for mode in [TaskMode::Auto, TaskMode::Always] {
        let world = World::choosing(Rules { mode, ..SPLIT }, |call| match element(call).as_str().unwrap() {
            "asks" => Script::of([
                (seconds(1), Happens::Elicits("which")),
                (seconds(3), Happens::Returns(result("without an answer"))),
            ]),
            slow => Script::returns(seconds(9), slow),
        });
        let declared = json!({ "elicitation": {}, "extensions": { "io.modelcontextprotocol/tasks": {} } });
        let id = world.handle(&ask(&json!(["asks", "slow"])).declaring(declared.clone())).await;
        let status = async |at| {
            tokio::time::sleep_until(world.started + at).await;
            world.send(&Ask::task("tasks/get", &id).declaring(declared.clone())).await.json().await["result"].take()
        };
        assert_eq!(status(millis(1_500)).await["status"], "input_required", "{mode:?}");
        assert_eq!(status(millis(3_500)).await["status"], "working", "{mode:?}");
        assert_eq!(texts(&world.settled(&id).await["result"]), ["without an answer", "slow"]);
        world.is_idle().await;
    }
}
