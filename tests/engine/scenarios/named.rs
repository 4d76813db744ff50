//! Calls with a key of their client: made once, found again, through anything in between (B135, T-27, F47).

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use taskgate::store::TaskStore;
use taskgate::task::{EarlyInput, Executed, FallbackPolicy, GatewayFault, Reason, TaskMode};
use taskgate::upstream::BeginError;

use super::rounds::{again, check_done, elicits, heard, plain, result_of, returns, round};
use super::script::{Happens, Resumes, Script};
use super::store_faults::{Method, StoreFault};
use super::world::{Ask, GRACE, Rules, World, millis, seconds};

const UNREACHABLE: GatewayFault = GatewayFault::new(Reason::UpstreamUnreachable, Executed::No);

const KEY: &str = "io.taskgate/idempotency-key";

pub(super) fn named(key: &str) -> Ask {
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

/// GW-46: without tasks, and of tools that are never tasks. It is waited for, and asked for again after its end.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_answered_under_a_key_is_made_once_and_each_repetition_has_its_outcome() {
    for (mode, ask) in [
        (TaskMode::Auto, named("k").without_extension()),
        (TaskMode::Always, named("k").without_extension()),
        (TaskMode::Never, named("k").without_extension()),
        (TaskMode::Never, named("k")),
    ] {
        let world = World::with(Rules::mode(mode), Script::returns(seconds(5), "done"));
        let first = world.client(&ask);
        tokio::time::sleep(seconds(2)).await;
        let second = world.send(&ask).await;
        assert_eq!(second.at, seconds(5), "{mode:?}: it waits for the running call");
        let outcome = second.json().await["result"].take();
        check_done(&outcome);
        assert_eq!(first.await.unwrap().json().await["result"], outcome);
        assert_eq!(result_of(&world, &ask).await, outcome, "{mode:?}");
        let other = world.send(&ask.clone().arguments(json!({"a": 1}))).await.json().await;
        assert_eq!(other["error"]["data"]["reason"], "idempotency_mismatch", "{mode:?}");
        assert_eq!((world.upstream.calls().len(), world.store.inserted()), (1, 1), "{mode:?}");
        world.is_idle().await;
    }
}

/// GW-46: a cancel is stored while the call returns, so it is the outcome for every client.
#[tokio::test(start_paused = true)]
async fn a_cancel_that_comes_before_the_result_is_the_outcome_for_the_waiting_client_too() {
    let world = World::with(Rules::default(), Script::returns(seconds(5), "done"));
    let first = world.client(&named("k").without_extension());
    tokio::time::sleep(seconds(1)).await;
    let id = world.handle(&named("k")).await;
    tokio::time::sleep(millis(3_500)).await;
    // The cancel's change, and then the result's.
    world.store.faults.strike(Method::Replace, StoreFault::Delays(seconds(1)), 2);
    let cancelled = world.send(&Ask::task("tasks/cancel", &id)).await.json().await;
    assert!(cancelled["result"].is_object(), "{cancelled}");
    let outcome = first.await.unwrap().json().await;
    assert_eq!(outcome["error"]["data"]["reason"], "cancelled", "{outcome}");
    assert_eq!(world.settled(&id).await["status"], "cancelled");
    world.is_idle().await;
}

/// GW-46: both looked for the key before either had its row.
#[tokio::test(start_paused = true)]
async fn of_clients_that_come_at_once_one_makes_the_call_and_all_have_its_outcome() {
    let world = World::with(Rules { in_flight_max: 1, ..Rules::default() }, Script::returns(seconds(5), "done"));
    world.store.hold_inserts();
    let kinds = |n: usize| if n.is_multiple_of(2) { named("k").without_extension() } else { named("k") };
    let clients: Vec<_> = (0..8).map(|n| world.client(&kinds(n))).collect();
    tokio::time::sleep(millis(10)).await;
    world.store.inserts.add_permits(8);
    let mut ids = Vec::new();
    for (n, client) in clients.into_iter().enumerate() {
        let answer = client.await.unwrap().json().await;
        match n % 2 {
            0 => check_done(&answer["result"]),
            _ => ids.push(id_of(&answer)),
        }
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!((world.upstream.calls().len(), world.store.usage().tasks), (1, 1));
    world.is_idle().await;
}

/// GW-46.
#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_cancels_nothing_under_a_key() {
    let ask = named("k").without_extension();
    let world = World::with(Rules::default(), Script::returns(seconds(5), "done"));
    assert!(tokio::time::timeout(seconds(1), world.sending(&ask)).await.is_err());
    assert!(tokio::time::timeout(seconds(1), world.sending(&ask)).await.is_err(), "a repetition may leave, too");
    let again = world.send(&ask).await;
    assert_eq!(again.at, seconds(5));
    check_done(&again.json().await["result"]);
    assert_eq!((world.upstream.calls().len(), world.upstream.cancels()), (1, 0));
    world.is_idle().await;
}

/// GW-46: one principal's clients of both kinds share its keys.
#[tokio::test(start_paused = true)]
async fn a_key_is_one_for_clients_with_tasks_and_without() {
    for tasks_first in [true, false] {
        let world = World::with(Rules::default(), Script::returns(seconds(5), "done"));
        let (with, without) = (named("k"), named("k").without_extension());
        let waits = if tasks_first {
            world.handle(&with).await;
            world.client(&without)
        } else {
            let waits = world.client(&without);
            tokio::time::sleep(seconds(1)).await;
            waits
        };
        let id = world.handle(&with).await;
        check_done(&waits.await.unwrap().json().await["result"]);
        assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
        check_done(&result_of(&world, &without).await);
        assert_eq!(world.upstream.calls().len(), 1, "tasks first: {tasks_first}");
        world.is_idle().await;
    }
}

/// GW-46: a client that repeats the call gets the progress and the first client's questions, as long as that one is there.
#[tokio::test(start_paused = true)]
async fn progress_and_questions_under_a_key_go_to_the_first_client() {
    let script = Script::of([(seconds(1), Happens::Progress(1.0, "half")), elicits("a", 1), heard(1), returns(2)]);
    let world = World::with(Rules::default(), script);
    let ask = plain().saying(KEY, "k").token("t");
    let mut first = world.send(&ask).await;
    assert_eq!(first.event().await.unwrap().1["params"]["message"], "half");
    let second = world.client(&ask);
    let (_, asked) = first.event().await.unwrap();
    let round = round(&asked["result"]);
    let answered = world.send(&again(&ask, &round, &[&round.keys[0]])).await;
    check_done(&answered.json().await["result"]);
    check_done(&second.await.unwrap().json().await["result"]);
    assert_eq!(world.upstream.calls().len(), 1);
    world.is_idle().await;
}

/// GW-46: the client that was asked may never come back; one that cannot be asked waits.
#[tokio::test(start_paused = true)]
async fn a_repetition_that_comes_while_a_question_is_open_is_asked_too() {
    let world = World::with(Rules::default(), Script::of([elicits("a", 1), heard(1), returns(2)]));
    let ask = plain().saying(KEY, "k");
    let left = round(&world.send(&ask).await.json().await["result"]);
    let waits = world.client(&ask.clone().declaring(json!({})));
    let open = round(&world.send(&ask).await.json().await["result"]);
    assert_eq!(open.keys, left.keys);
    let answered = world.send(&again(&ask, &open, &[&open.keys[0]])).await;
    check_done(&answered.json().await["result"]);
    check_done(&waits.await.unwrap().json().await["result"]);
    check_done(&world.send(&again(&ask, &left, &[&left.keys[0]])).await.json().await["result"]);
    assert_eq!((world.upstream.calls().len(), super::rounds::answers(&world).len()), (1, 1));
    assert!(world.age() < seconds(10), "{:?}", world.age());
    world.is_idle().await;
}

/// GW-46: the question is still open, and the client that answered it may not come back.
#[tokio::test(start_paused = true)]
async fn a_repetition_is_asked_after_answers_that_were_not_stored() {
    let world = World::with(Rules::default(), Script::of([elicits("a", 1), heard(1), returns(2)]));
    let ask = plain().saying(KEY, "k");
    let first = round(&result_of(&world, &ask).await);
    // Each try of one change.
    world.store.faults.strike(Method::Replace, StoreFault::Fails, 4);
    let refused = world.send(&again(&ask, &first, &[&first.keys[0]])).await.json().await;
    assert_eq!(refused["error"]["data"]["reason"], "store_failed", "{refused}");
    let second = round(&result_of(&world, &ask).await);
    check_done(&result_of(&world, &again(&ask, &second, &[&second.keys[0]])).await);
    assert_eq!(world.upstream.calls().len(), 1);
    world.is_idle().await;
}

/// GW-46: there is no client to ask, so the server gets a refusal at once, and goes on.
#[tokio::test(start_paused = true)]
async fn a_question_under_a_key_is_refused_where_its_client_has_left() {
    let world = World::with(Rules::default(), Script::of([elicits("a", 5), heard(1), returns(1)]));
    let ask = plain().saying(KEY, "k");
    assert!(tokio::time::timeout(seconds(1), world.sending(&ask)).await.is_err());
    check_done(&result_of(&world, &ask).await);
    assert_eq!((world.age(), world.upstream.calls().len()), (seconds(5), 1));
    world.is_idle().await;
}

/// GW-46: in any state at the end of the process.
#[tokio::test(start_paused = true)]
async fn a_key_of_a_client_without_tasks_outlives_the_process() {
    let durable = Rules { durable: true, in_flight_max: 1, ..Rules::DEFAULT };
    let world = World::with(durable, Script::returns(seconds(60), "done").resumed(Resumes::Follows));
    let (running, queued) = (named("k").without_extension(), named("l").without_extension());
    let _lost = [world.client(&running), world.client(&queued)];
    tokio::time::sleep(seconds(3)).await;
    let world = world.next_life();
    world.recover().await;
    for ask in [&running, &queued] {
        let events = world.send(ask).await.events().await;
        check_done(&events.last().unwrap().1["result"]);
    }
    assert_eq!(world.upstream.calls().len(), 2, "each once");
    world.is_idle().await;
    // A call that cannot be resumed has an outcome, and keeps its key.
    let world = World::with(durable, Script::silent());
    let _lost = world.client(&running);
    tokio::time::sleep(seconds(3)).await;
    let world = world.next_life();
    world.recover().await;
    for _ in 0..2 {
        let answer = world.send(&running).await.json().await;
        assert_eq!(
            answer["error"]["data"],
            json!({"reason": "gateway_restart", "executed": "unknown", "source": "gateway"})
        );
    }
    assert_eq!(world.upstream.calls().len(), 1);
    world.is_idle().await;
}

/// GW-46: the call runs at one gateway, and its repetition waits at another.
#[tokio::test(start_paused = true)]
async fn a_repetition_at_another_gateway_waits_for_the_outcome() {
    let world = World::with(Rules { durable: true, ..Rules::DEFAULT }, Script::returns(seconds(5), "done"));
    let other = world.beside();
    let ask = named("k").without_extension();
    let first = world.client(&ask);
    tokio::time::sleep(seconds(1)).await;
    check_done(&result_of(&other, &ask).await);
    check_done(&first.await.unwrap().json().await["result"]);
    assert_eq!(world.upstream.calls().len(), 1);
}

/// GW-46: of a client that has tools in place of tasks.
#[tokio::test(start_paused = true)]
async fn a_key_holds_for_a_client_that_is_given_tools_in_place_of_tasks() {
    // A repetition needs no place.
    for tasks_max in [2_000, 1] {
        let rules = Rules { fallback: FallbackPolicy::Tools, tasks_max, ..Rules::default() };
        let world = World::with(rules, Script::returns(seconds(5), "done"));
        let ask = named("k").without_extension();
        let first = world.send(&ask).await;
        assert_eq!(first.at, GRACE, "it is held for its grace period");
        let told = first.json().await["result"]["content"].clone();
        assert_eq!(world.send(&ask).await.json().await["result"]["content"], told, "the same task");
        assert_eq!(world.age(), GRACE + GRACE, "{tasks_max}");
        tokio::time::sleep(seconds(5)).await;
        check_done(&result_of(&world, &ask).await);
        assert_eq!(world.upstream.calls().len(), 1);
        world.is_idle().await;
    }
}

/// GW-35: of a call under a key, too.
#[tokio::test(start_paused = true)]
async fn a_call_under_a_key_that_lost_its_handle_waits_no_longer_for_its_slot() {
    let rules = Rules { fallback: FallbackPolicy::Tools, in_flight_max: 1, ..Rules::default() };
    let world = World::with(rules, Script::silent());
    let _held = world.client(&Ask::call());
    tokio::time::sleep(millis(1)).await;
    let waiting = world.client(&named("k").without_extension());
    tokio::time::sleep(millis(1)).await;
    world.store.faults.strike(Method::Load, StoreFault::Fails, 1);
    let answer = tokio::time::timeout(seconds(60), waiting).await.expect("it is answered").unwrap().json().await;
    assert_eq!(answer["error"]["data"]["reason"], "queue_deadline", "{answer}");
    assert_eq!(world.upstream.calls().len(), 1);
}

/// GW-47: nothing ran, so the repetition does.
#[tokio::test(start_paused = true)]
async fn an_outcome_without_a_run_holds_no_key() {
    for ask in [named("k"), named("k").without_extension()] {
        let calls = AtomicUsize::new(0);
        let world = World::choosing(Rules::default(), move |_| match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Script { refusal: Some(BeginError::Gateway(UNREACHABLE)), ..Script::silent() },
            _ => Script::returns(millis(5), "done"),
        });
        let outcome = async || {
            let answer = world.send(&ask).await.json().await;
            match answer["result"]["taskId"].as_str() {
                Some(id) => world.settled(id).await,
                None => answer,
            }
        };
        assert_eq!(outcome().await["error"]["data"]["executed"], "no");
        for _ in 0..2 {
            assert_eq!(outcome().await["result"]["content"][0]["text"], "done");
        }
        assert_eq!(world.upstream.calls().len(), 2, "the first was not sent");
        world.is_idle().await;
    }
}

/// GW-48: a full queue refuses before there is a row, for any form of the call.
#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_before_a_row_is_written() {
    let rules = Rules { in_flight_max: 1, queue_max: 1, ..Rules::default() };
    for (mode, ask) in [
        (TaskMode::Always, Ask::call()),
        (TaskMode::Required, Ask::call()),
        (TaskMode::Auto, named("k")),
        (TaskMode::Auto, named("k").without_extension()),
        (TaskMode::Auto, Ask::call()),
    ] {
        let world = World::with(Rules { mode, ..rules }, Script::returns(seconds(5), "done"));
        let _busy: Vec<_> = (0..2).map(|n| world.client(&Ask::call().saying(KEY, format!("busy-{n}")))).collect();
        tokio::time::sleep(seconds(1)).await;
        for _ in 0..3 {
            let refused = world.send(&ask).await;
            assert_eq!((refused.status, refused.headers.contains_key("retry-after")), (503, true), "{mode:?}");
            let data = refused.json().await["error"]["data"].take();
            assert_eq!((&data["reason"], &data["executed"]), (&json!("queue_full"), &json!("no")), "{mode:?}");
        }
        assert_eq!((world.store.inserted(), world.store.usage().tasks), (2, 2), "{mode:?}: no row was written");
        tokio::time::sleep(seconds(20)).await;
        let served = world.send(&ask).await;
        assert_eq!(served.status, 200, "{mode:?}: nothing was burnt");
        world.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_upstream_does_not_see_a_calls_name() {
    let world = World::with(Rules::default(), Script::returns(millis(5), "done"));
    world.handle(&named("k").saying("traceparent", "00-1")).await;
    world.send(&named("l").without_extension().saying("traceparent", "00-1")).await.json().await;
    let calls = world.upstream.calls();
    assert_eq!(calls.len(), 2);
    for call in calls {
        let params: Value = serde_json::from_str(&call.params).unwrap();
        assert_eq!(params["_meta"], json!({"traceparent": "00-1"}));
    }
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_invalid_key_is_refused_before_anything_is_sent() {
    let world = World::with(Rules::default(), Script::silent());
    for key in [json!(""), json!("a b"), json!("k".repeat(257)), json!(7)] {
        for ask in [Ask::call(), Ask::call().without_extension()] {
            let answer = world.send(&ask.saying(KEY, key.clone())).await;
            assert_eq!((answer.status, &answer.json().await["error"]["code"]), (200, &json!(-32602)), "{key}");
        }
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

/// A full store refuses new tasks, and finds existing ones.
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
