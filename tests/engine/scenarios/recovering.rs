//! Calls across processes: calls in flight at the end of one are resumed, sent again, or settled, and no call is sent
//! twice that may not be (GW-39).

use std::io::{Read as _, Seek as _};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskgate::engine::recovery::{self, CallTargets};
use taskgate::task::{AfterCrash, TaskMode};
use tokio_util::sync::CancellationToken;

use super::fenced::resumes;
use super::rules::Rules;
use super::script::{Call, Happens, Resumes, Saw, Script, result};
use super::store_faults::{Method, StoreFault};
use super::world::{Ask, World, seconds};

const DURABLE: Rules = Rules { durable: true, ..Rules::DEFAULT };

fn rules(after_crash: AfterCrash) -> Rules {
    Rules { after_crash, ..DURABLE }
}

/// A task whose process ends while it is in flight.
async fn crashed(rules: Rules, ask: &Ask, script: Script) -> (World, String) {
    let world = World::with(rules, script);
    let id = world.handle(ask).await;
    tokio::time::sleep(seconds(3)).await;
    (world.next_life(), id)
}

fn data(task: &Value) -> Value {
    json!([task["status"], task["error"]["code"], task["error"]["data"]["reason"], task["error"]["data"]["executed"]])
}

fn lost(reason: &str, executed: &str) -> Value {
    json!(["failed", -32603, reason, executed])
}

fn answers(world: &World) -> Vec<(String, String)> {
    let saw = world.upstream.saw();
    let all = saw.into_iter().filter_map(|saw| match saw {
        Saw::Answer { ask, answer, .. } => Some((ask, answer)),
        Saw::Begin { .. } | Saw::Cancel(_) | Saw::Drop(_) | Saw::Resume { .. } => None,
    });
    all.collect()
}

/// F06, F09: the call is resumed at its offset, and the upstream sees it once. Until then it is as it was stored.
#[tokio::test(start_paused = true)]
async fn f06_f09_a_call_that_can_be_taken_up_goes_on_and_is_never_sent_twice() {
    let script = Script::returns(seconds(60), "done").resumed(Resumes::Follows);
    let (world, id) = crashed(DURABLE, &Ask::call(), script).await;
    assert_eq!(world.get(&id).await["status"], "working", "it was not examined yet");
    world.recover().await;
    assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
    assert_eq!((world.upstream.begins(), resumes(&world), world.upstream.cancels()), (1, 1, 0));
    world.is_idle().await;
}

/// GW-39: the outcome of a call that cannot be resumed, by the operator's settings and the tool's annotations.
#[tokio::test(start_paused = true)]
async fn a_call_that_cannot_be_taken_up_is_sent_again_only_where_it_may_be() {
    let silent = Script::silent;
    for (after_crash, tool, script, sent) in [
        (AfterCrash::Fail, "read", silent(), 1),
        (AfterCrash::Fail, "read", silent().resumed(Resumes::Refuses), 1),
        (AfterCrash::RerunIfSafe, "work", silent(), 1),
        (AfterCrash::RerunIfSafe, "work", silent().resumed(Resumes::Loses(seconds(30))), 1),
        (AfterCrash::RerunIfSafe, "read", silent(), 2),
        (AfterCrash::RerunIfSafe, "read", silent().resumed(Resumes::Loses(seconds(30))), 2),
        (AfterCrash::Rerun, "work", silent(), 2),
        (AfterCrash::Rerun, "work", silent().resumed(Resumes::Refuses), 2),
    ] {
        let first = std::sync::atomic::AtomicBool::new(true);
        let world = World::choosing(rules(after_crash), move |_| {
            let is_first = first.swap(false, std::sync::atomic::Ordering::SeqCst);
            if is_first { script.clone() } else { Script::returns(seconds(5), "again") }
        });
        let id = world.handle(&Ask::tool(tool)).await;
        let world = world.next_life();
        world.recover().await;
        let task = world.settled(&id).await;
        let case = format!("{after_crash:?} {tool} {sent}");
        assert_eq!(world.upstream.begins(), sent, "{case}");
        if sent == 1 {
            assert_eq!(data(&task), lost("gateway_restart", "unknown"), "{case}");
        } else {
            assert_eq!(task["result"]["content"][0]["text"], "again", "{case}");
            let calls = world.upstream.calls();
            assert_eq!(calls[0].params, calls[1].params, "{case}");
        }
        world.is_idle().await;
    }
}

/// GW-39, GW-11: if the server had to keep its task for the rest of the first deadline alone, it would remove the task too early.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_sent_again_may_run_as_long_as_the_first_time() {
    for (resumes, tool) in
        [(None, "work"), (Some(Resumes::Loses(seconds(30))), "work"), (Some(Resumes::Refuses), "read")]
    {
        let script = Script { resumes, ..Script::silent() };
        let (world, id) = crashed(rules(AfterCrash::Rerun), &Ask::tool(tool), script).await;
        tokio::time::sleep(seconds(600)).await;
        world.recover().await;
        tokio::time::sleep(seconds(60)).await;
        let calls = world.upstream.calls();
        let [first, second] = [0, 1].map(|call| calls[call].context.native_task);
        assert_eq!(first, second, "{tool}: {resumes:?}");
        assert_eq!(world.get(&id).await["status"], "working");
    }
}

/// A call is sent three times at most, and one that was in flight at three crashes in a row is not resumed any more.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_in_flight_at_three_crashes_in_a_row_is_poison() {
    for script in [Script::silent(), Script::silent().resumed(Resumes::Follows)] {
        let can_resume = script.resumes.is_some();
        let (mut world, id) = crashed(rules(AfterCrash::Rerun), &Ask::call(), script).await;
        for _ in 0..2 {
            world.recover().await;
            tokio::time::sleep(seconds(5)).await;
            assert_eq!(world.get(&id).await["status"], "working");
            world = world.next_life();
        }
        world.recover().await;
        assert_eq!(data(&world.get(&id).await), lost("poison", "unknown"));
        assert_eq!(world.upstream.begins(), if can_resume { 1 } else { 3 });
        world.is_idle().await;
    }
}

/// F23: processes that end before they look at a task use no attempt, and an event of its upstream gives back the
/// attempts that others used.
#[tokio::test(start_paused = true)]
async fn f23_crashes_during_recovery_burn_no_attempts() {
    let events = (1..100).map(|n| (seconds(4 * n), Happens::Progress(1.0, "on")));
    let script = Script::of(events.chain([(seconds(400), Happens::Returns(result("done")))]));
    let (mut world, id) = crashed(DURABLE, &Ask::call(), script.resumed(Resumes::Follows)).await;
    for number in 0..6 {
        if number % 2 == 0 {
            // Ends with its first commit, which is that it takes the call up.
            world.life.ends_after(usize::from(number > 0));
            tokio::time::timeout(seconds(1), world.recover()).await.ok();
        } else {
            world.recover().await;
            tokio::time::sleep(seconds(5)).await;
        }
        world = world.next_life();
    }
    world.recover().await;
    assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
    assert_eq!(world.upstream.begins(), 1);
    world.is_idle().await;
}

/// The same where the upstream says nothing: a call that is up for longer than it takes to find out is no poison.
#[tokio::test(start_paused = true)]
async fn f23_a_silent_call_that_stays_up_is_no_poison() {
    let script = Script::returns(seconds(600), "done").resumed(Resumes::Follows);
    let (mut world, id) = crashed(DURABLE, &Ask::call(), script).await;
    for _ in 0..4 {
        world.recover().await;
        tokio::time::sleep(seconds(70)).await;
        world = world.next_life();
    }
    world.recover().await;
    assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
}

/// A drain is no crash, however many of them come before the upstream's first event.
#[tokio::test(start_paused = true)]
async fn a_call_that_many_drains_let_go_of_is_no_poison() {
    let script = Script::returns(seconds(600), "done").resumed(Resumes::Follows);
    let (mut world, id) = crashed(DURABLE, &Ask::call(), script).await;
    for _ in 0..4 {
        world.recover().await;
        tokio::time::sleep(seconds(1)).await;
        assert_eq!(world.engine.drain(seconds(30)).await, 0);
        world = world.next_life();
    }
    world.recover().await;
    assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
    assert_eq!(world.upstream.begins(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_queued_call_is_sent_after_the_crash_for_the_first_time() {
    let world = World::with(Rules { in_flight_max: 1, ..DURABLE }, Script::returns(seconds(60), "done"));
    let running = world.handle(&Ask::call()).await;
    let queued = world.handle(&Ask::tool("other")).await;
    let world = world.next_life();
    assert_eq!(world.upstream.begins(), 1, "the other one waits");
    world.recover().await;
    assert_eq!(data(&world.settled(&running).await), lost("gateway_restart", "unknown"));
    assert_eq!(world.settled(&queued).await["result"]["content"][0]["text"], "done");
    assert_eq!(world.upstream.begins(), 2);
    assert!(world.upstream.calls()[1].params.contains("other"), "as it was made");
    world.is_idle().await;
}

/// F20, L6: the cancel was acknowledged, so the task has no other outcome, and the upstream gets one cancel.
#[tokio::test(start_paused = true)]
async fn f20_an_upstream_that_was_not_told_of_a_cancel_is_told_after_the_crash() {
    let script = Script { cancel_takes: seconds(30), ..Script::silent() }.resumed(Resumes::Follows);
    let world = World::with(rules(AfterCrash::Rerun), script);
    let id = world.handle(&Ask::call()).await;
    // The cancel is one commit; the process ends with it.
    world.life.ends_after(1);
    let cancel = world.client(&Ask::task("tasks/cancel", &id));
    tokio::time::sleep(seconds(1)).await;
    cancel.abort();
    let world = world.next_life();
    assert_eq!((world.get(&id).await["status"].as_str(), world.upstream.cancels()), (Some("cancelled"), 0));
    world.recover().await;
    assert_eq!(world.upstream.cancels(), 1);
    let world = world.next_life();
    world.recover().await;
    assert_eq!((world.upstream.cancels(), world.upstream.begins()), (1, 1), "once");
    assert_eq!(world.get(&id).await["status"], "cancelled");
}

fn asking() -> Script {
    let events = [
        (seconds(1), Happens::Elicits("ask-a")),
        (Duration::ZERO, Happens::Heard(1)),
        (seconds(20), Happens::Returns(result("done"))),
    ];
    Script::of(events)
}

fn capabilities() -> Value {
    json!({ "elicitation": { "form": {} }, "extensions": { "io.modelcontextprotocol/tasks": {} } })
}

fn elicits() -> Ask {
    Ask::call().declaring(capabilities())
}

fn answer(id: &str, key: &str) -> Ask {
    Ask::task("tasks/update", id).member("inputResponses", json!({ key: { "action": "accept", "content": {} } }))
}

async fn keys(world: &World, id: &str) -> Vec<String> {
    let poll = Ask::task("tasks/get", id).declaring(capabilities());
    let task = world.send(&poll).await.json().await["result"].take();
    task["inputRequests"].as_object().map(|all| all.keys().cloned().collect()).unwrap_or_default()
}

const ACCEPTED: &str = r#"{"action":"accept","content":{}}"#;

fn accepted() -> Vec<(String, String)> {
    vec![("\"ask-a\"".to_owned(), ACCEPTED.to_owned())]
}

/// F11, F12: the question is shown under the key that it had, a replay of it is no other question, and its answer
/// reaches the upstream.
#[tokio::test(start_paused = true)]
async fn f11_f12_a_question_survives_the_crash_under_its_key() {
    let (world, id) = crashed(DURABLE, &elicits(), asking().resumed(Resumes::Follows)).await;
    let before = keys(&world, &id).await;
    assert_eq!(before.len(), 1);
    // As if the process had not received the question: it is replayed.
    world.upstream.forget_place(&world.store).await;
    world.recover().await;
    tokio::time::sleep(seconds(5)).await;
    assert_eq!(keys(&world, &id).await, before);
    world.send(&answer(&id, &before[0])).await;
    assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
    assert_eq!((answers(&world), resumes(&world)), (accepted(), 1));
    world.is_idle().await;
}

/// F11: once a question was answered, the server may ask another one under its name.
#[tokio::test(start_paused = true)]
async fn f11_a_question_under_a_used_name_is_asked_after_the_crash() {
    let asks = || (seconds(1), Happens::Elicits("ask-a"));
    let heard = |answers| (Duration::ZERO, Happens::Heard(answers));
    let script = Script::of([asks(), heard(1), asks(), heard(2), (seconds(1), Happens::Returns(result("done")))]);
    let (world, id) = crashed(DURABLE, &elicits(), script.resumed(Resumes::Follows)).await;
    let first = keys(&world, &id).await;
    world.upstream.forget_place(&world.store).await;
    world.recover().await;
    tokio::time::sleep(seconds(5)).await;
    world.send(&answer(&id, &first[0])).await;
    tokio::time::sleep(seconds(5)).await;
    let second = keys(&world, &id).await;
    assert!(second.len() == 1 && second != first, "{first:?} {second:?}");
    world.send(&answer(&id, &second[0])).await;
    assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
    world.is_idle().await;
}

/// F13, F14, L5: an answer that was acknowledged is handed over after the crash, wherever the process ended before.
#[tokio::test(start_paused = true)]
async fn f14_an_acknowledged_answer_is_handed_over_after_the_crash() {
    let world = World::with(DURABLE, asking().resumed(Resumes::Follows));
    let id = world.handle(&elicits()).await;
    let key = keys(&world, &id).await.remove(0);
    // Accepting it is the last commit of this process.
    world.life.ends_after(1);
    let update = world.client(&answer(&id, &key));
    tokio::time::sleep(seconds(1)).await;
    update.abort();
    let world = world.next_life();
    assert_eq!((world.get(&id).await["status"].as_str(), answers(&world)), (Some("working"), vec![]));
    world.recover().await;
    assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
    assert_eq!(answers(&world), accepted());
    world.is_idle().await;
}

/// F15, L5: from the commit before it is sent an answer may have arrived, so it is not sent again.
#[tokio::test(start_paused = true)]
async fn f15_an_answer_that_may_have_arrived_is_not_sent_again() {
    for is_sent in [false, true] {
        let script = Script { answer_takes: seconds(30), ..asking() }.resumed(Resumes::Follows);
        let world = World::with(Rules { deadline: seconds(100), ..DURABLE }, script);
        let id = world.handle(&elicits()).await;
        let key = keys(&world, &id).await.remove(0);
        if !is_sent {
            world.life.ends_after(2);
        }
        let update = world.client(&answer(&id, &key));
        tokio::time::sleep(seconds(1)).await;
        update.abort();
        let world = world.next_life();
        world.recover().await;
        let task = world.settled(&id).await;
        if is_sent {
            assert_eq!(task["result"]["content"][0]["text"], "done", "the task goes on");
            assert_eq!(answers(&world), accepted(), "once");
        } else {
            assert_eq!(data(&task), lost("deadline_exceeded", "unknown"));
            assert_eq!(answers(&world), []);
        }
    }
}

/// An upstream that cancels its own task needs no cancel.
#[tokio::test(start_paused = true)]
async fn an_upstream_is_not_told_of_its_own_cancel() {
    let world = World::with(DURABLE, Script::of([(seconds(5), Happens::Cancels)]).resumed(Resumes::Follows));
    let id = world.handle(&Ask::call()).await;
    assert_eq!(world.settled(&id).await["status"], "cancelled");
    let world = world.next_life();
    world.recover().await;
    assert_eq!((resumes(&world), world.upstream.cancels()), (0, 0));
}

/// A call that is sent again asks again, under another key.
#[tokio::test(start_paused = true)]
async fn f11_a_call_that_is_sent_again_asks_anew() {
    let (world, id) = crashed(rules(AfterCrash::Rerun), &elicits(), asking()).await;
    let before = keys(&world, &id).await;
    world.recover().await;
    tokio::time::sleep(seconds(5)).await;
    let after = keys(&world, &id).await;
    assert_eq!((before.len(), after.len()), (1, 1));
    assert_ne!(before, after, "EXT-36");
    world.send(&answer(&id, &after[0])).await;
    assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
}

/// The time that the call ran before the crash counts.
#[tokio::test(start_paused = true)]
async fn a_deadline_counts_from_the_dispatch_in_every_life() {
    let rules = Rules { deadline: seconds(100), ..DURABLE };
    let (world, id) = crashed(rules, &Ask::call(), Script::silent().resumed(Resumes::Follows)).await;
    tokio::time::sleep(seconds(50)).await;
    world.recover().await;
    assert_eq!(data(&world.settled(&id).await), lost("deadline_exceeded", "unknown"));
    assert!((seconds(99)..seconds(102)).contains(&world.age()), "{:?}", world.age());
    assert_eq!(world.upstream.cancels(), 1);
}

/// T-56: no client can return for a call that was held between two rounds, so its upstream gets a cancel.
#[tokio::test(start_paused = true)]
async fn t_56_a_held_call_ends_with_the_process_that_held_it() {
    let world = World::with(DURABLE, asking().resumed(Resumes::Follows));
    let asks = Ask::call().declaring(json!({ "elicitation": { "form": {} } }));
    let first = world.send(&asks).await.json().await;
    let state = first["result"]["requestState"].as_str().unwrap().to_owned();
    tokio::time::sleep(seconds(2)).await;
    let world = world.next_life();
    world.recover().await;
    assert_eq!(world.upstream.cancels(), 1);
    let responses = json!({ "r0": { "action": "accept", "content": {} } });
    let retry = asks.member("requestState", json!(state)).member("inputResponses", responses);
    assert_eq!(world.send(&retry).await.json().await["error"]["code"], -32602);
    assert_eq!(world.upstream.begins(), 1);
    world.is_idle().await;
}

/// F64: a bug at one server keeps no other task from going on.
#[tokio::test(start_paused = true)]
async fn f64_a_panic_while_a_server_is_told_of_a_cancel_harms_no_other_task() {
    let bad = Script { cancel_takes: seconds(60), ..Script::silent() }.resumed(Resumes::Panics);
    let works = Script::returns(seconds(60), "done").resumed(Resumes::Follows);
    let choose = move |call: &Call| if call.params.contains("bad") { bad.clone() } else { works.clone() };
    let world = World::choosing(DURABLE, choose);
    let cancelled = world.handle(&Ask::call().arguments(json!({ "kind": "bad" }))).await;
    let id = world.handle(&Ask::call()).await;
    assert!(world.send(&Ask::task("tasks/cancel", &cancelled)).await.json().await["result"].is_object());
    let world = world.next_life();
    world.recover().await;
    tokio::time::sleep(seconds(100)).await;
    assert_eq!((world.get(&id).await["status"].as_str(), resumes(&world)), (Some("completed"), 2));
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_upstream_is_not_configured_any_more_settles() {
    let (world, id) = crashed(rules(AfterCrash::Rerun), &Ask::call(), Script::silent()).await;
    recovery::run(Arc::clone(&world.engine), CallTargets::default(), CancellationToken::new()).await;
    assert_eq!(data(&world.get(&id).await), lost("gateway_restart", "unknown"));
}

/// F04, GW-37 and all the others: wherever between two commits the process ends, the call is sent once at most, and the
/// task that its client knows of settles.
#[tokio::test(start_paused = true)]
async fn f04_wherever_the_process_ends_a_call_is_sent_at_most_once() {
    let mut cut = 0;
    for writes in 1..30 {
        for resumes in [None, Some(Resumes::Follows), Some(Resumes::Refuses)] {
            let script = Script { resumes, ..asking() };
            let rules = Rules { mode: TaskMode::Always, input_deadline: seconds(40), deadline: seconds(90), ..DURABLE };
            let world = World::with(rules, script);
            world.life.ends_after(writes);
            let client = world.client(&elicits());
            tokio::time::sleep(seconds(10)).await;
            let id = if client.is_finished() {
                let handle = client.await.unwrap().json().await;
                handle["result"]["taskId"].as_str().unwrap().to_owned()
            } else {
                client.abort();
                String::new()
            };
            cut += usize::from(world.life.is_over());
            let world = world.next_life();
            world.recover().await;
            for key in keys(&world, &id).await {
                world.send(&answer(&id, &key)).await;
            }
            tokio::time::sleep(seconds(120)).await;
            assert!(world.upstream.begins() <= 1, "L4: after {writes} commits, {resumes:?}");
            assert!(answers(&world).len() <= 1, "L5: after {writes} commits, {resumes:?}");
            let is_known = !id.is_empty();
            assert!(!is_known || world.settled(&id).await["status"].is_string(), "L1");
            world.is_idle().await;
        }
    }
    assert!(cut >= 6, "the process ended in mid-call {cut} times");
}

/// F67: the drain does not wait for a call that a later process can resume, and its upstream gets no message.
#[tokio::test(start_paused = true)]
async fn a_drain_leaves_resumable_calls_to_the_next_process() {
    let world = World::choosing(Rules { in_flight_max: 2, ..DURABLE }, |call| match call.params.contains("other") {
        true => Script::returns(seconds(20), "done"),
        false => Script::returns(seconds(90), "done").resumed(Resumes::Follows),
    });
    let resumable = world.handle(&Ask::call()).await;
    let waited_for = world.handle(&Ask::tool("other")).await;
    let queued = world.handle(&Ask::call()).await;
    assert_eq!(world.engine.drain(seconds(600)).await, 0);
    assert_eq!(world.age(), seconds(22), "as long as the call that cannot be resumed");
    assert_eq!(world.get(&waited_for).await["status"], "completed");
    assert_eq!((world.upstream.begins(), world.upstream.cancels()), (2, 0));
    let world = world.next_life();
    world.recover().await;
    for id in [resumable, queued] {
        assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
    }
    assert_eq!(world.upstream.begins(), 3);
    world.is_idle().await;
}

/// More rows than are read at a time, each resumed once, and those of this process left alone.
#[tokio::test(start_paused = true)]
async fn f39_a_crowd_of_calls_is_taken_up_each_once() {
    const MANY: usize = 600;
    let script = Script::returns(seconds(60), "done").resumed(Resumes::Follows);
    let world = World::with(DURABLE, script);
    let clients: Vec<_> = (0..MANY).map(|_| world.client(&Ask::call())).collect();
    let mut ids = Vec::new();
    for client in clients {
        let handle = client.await.unwrap().json().await;
        ids.push(handle["result"]["taskId"].as_str().unwrap().to_owned());
    }
    let world = world.next_life();
    let own = world.handle(&Ask::tool("other")).await;
    world.recover().await;
    ids.push(own);
    for id in ids {
        assert_eq!(world.settled(&id).await["status"], "completed");
    }
    assert_eq!((world.upstream.begins(), resumes(&world)), (MANY + 1, MANY));
    world.is_idle().await;
}

/// A row may be unreadable for as long as the process lives.
#[tokio::test(start_paused = true)]
async fn an_error_that_keeps_recovery_from_a_row_is_logged_once() {
    let log = Arc::new(tempfile::tempfile().unwrap());
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(Arc::clone(&log)).finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    let (world, id) = crashed(rules(AfterCrash::Fail), &Ask::call(), Script::silent()).await;
    world.store.faults.strike(Method::Claim, StoreFault::Fails, 5);
    world.store.faults.strike(Method::Load, StoreFault::Fails, 9);
    world.store.faults.strike(Method::Replace, StoreFault::Fails, 9);
    world.recover().await;
    assert_eq!(data(&world.get(&id).await), lost("gateway_restart", "unknown"));
    let mut said = String::new();
    (&*log).rewind().unwrap();
    (&*log).read_to_string(&mut said).unwrap();
    for told in [
        "tasks of earlier processes could not be claimed",
        "a task of an earlier process could not be",
        "could not be handled yet",
    ] {
        assert_eq!(said.matches(told).count(), 1, "{told}: {said}");
    }
}

/// L8: a store that fails for a while loses no outcome.
#[tokio::test(start_paused = true)]
async fn l8_an_outcome_is_stored_once_the_store_works_again() {
    let world = World::with(Rules::mode(TaskMode::Always), Script::returns(seconds(5), "done"));
    let id = world.handle(&Ask::call()).await;
    tokio::time::sleep(seconds(1)).await;
    world.store.failures.store(8, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(world.settled(&id).await["result"]["content"][0]["text"], "done");
    assert_eq!(world.store.failures.load(std::sync::atomic::Ordering::SeqCst), 0);
    world.is_idle().await;
}

/// A store that ends with the process leaves no call to a later process.
#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_every_call_where_the_store_ends_with_the_process() {
    let script = Script::returns(seconds(20), "done").resumed(Resumes::Follows);
    let world = World::with(Rules::default(), script);
    let id = world.handle(&Ask::call()).await;
    assert_eq!(world.engine.drain(seconds(600)).await, 0);
    assert_eq!(world.get(&id).await["status"], "completed");
}
