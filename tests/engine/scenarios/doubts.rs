//! Commits that are reported as failed and were made, or are unknown: their effects come without another request. And
//! stores that fail for a while: a waiting runner continues when they work.

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;
use taskgate::engine::sweeper::sweep;
use taskgate::engine::{CallEnd, CallEvent, CallSpec};
use taskgate::metric;
use taskgate::store::TaskStore;
use taskgate::task::{
    ChosenId, Executed, Failure, GatewayFault, Outcome, Plan, Principal, Reason, SessionScope, TaskMode,
};
use taskgate::upstream::BeginError;
use taskgate::wire::{JsonPieces, RpcError};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::bridged::Caller;
use super::rounds::{accept, answers};
use super::script::{Happens, Saw, Script, result};
use super::store_faults::{Method, StoreFault};
use super::unmarked::key;
use super::world::{Ask, Rules, World, millis, seconds};

/// More than any test uses.
const ALWAYS: usize = 1_000_000;

pub(super) fn asking(ask: Ask) -> Ask {
    let extension = json!({ "io.modelcontextprotocol/tasks": {} });
    ask.declaring(json!({ "elicitation": { "form": {} }, "extensions": extension }))
}

/// The next change is made and reported as failed, and then nothing can be read for a while.
fn hide_the_next_change(world: &World) {
    world.store.blind_after.store(3, std::sync::atomic::Ordering::Relaxed);
    world.store.faults.strike(Method::Replace, StoreFault::AppliesAndFails, 1);
}

/// Ends when a client that waits for the task is woken and sees its end.
fn waiter(world: &World, id: &str) -> tokio::task::JoinHandle<()> {
    let (engine, key) = (std::sync::Arc::clone(&world.engine), key(id));
    TaskTracker::new().spawn(async move {
        let mut watcher = engine.watchers().watch(&key).unwrap();
        while !engine.load_visible(&key).await.is_ok_and(|task| task.is_settled()) {
            watcher.changed().await;
        }
    })
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_was_committed_after_all_wakes_waiting_clients() {
    let world = World::with(Rules::mode(TaskMode::Always), Script::returns(seconds(5), "done"));
    let id = world.handle(&Ask::call()).await;
    let waiting = waiter(&world, &id);
    tokio::time::sleep(seconds(4)).await;
    hide_the_next_change(&world);
    timeout(seconds(60), waiting).await.expect("it is woken").unwrap();
    assert_eq!(world.get(&id).await["result"]["content"][0]["text"], "done");
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_that_was_refused_and_stored_all_the_same_reaches_the_upstream() {
    let world = World::with(Rules::mode(TaskMode::Always), Script::silent());
    let id = world.handle(&Ask::call()).await;
    let waiting = waiter(&world, &id);
    tokio::time::sleep(seconds(1)).await;
    hide_the_next_change(&world);
    let refused = world.send(&Ask::task("tasks/cancel", &id)).await.json().await;
    assert_eq!(refused["error"]["data"]["reason"], "store_failed", "{refused}");
    world.upstream.sees(&Saw::Cancel(0)).await;
    timeout(seconds(60), waiting).await.expect("it is woken").unwrap();
    assert_eq!((world.get(&id).await["status"].as_str(), world.upstream.cancels()), (Some("cancelled"), 1));
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_refused_and_stored_all_the_same_reaches_the_upstream_once() {
    let script = Script::of([
        (seconds(1), Happens::Elicits("a")),
        (seconds(0), Happens::Heard(1)),
        (seconds(1), Happens::Returns(result("done"))),
    ]);
    let world = World::with(Rules::mode(TaskMode::Always), script);
    let id = world.handle(&asking(Ask::call())).await;
    tokio::time::sleep(seconds(2)).await;
    let shown = world.send(&asking(Ask::task("tasks/get", &id))).await.json().await["result"].take();
    let open = shown["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let update = asking(Ask::task("tasks/update", &id)).member("inputResponses", json!({ open: accept() }));
    hide_the_next_change(&world);
    let refused = world.send(&update).await.json().await;
    assert_eq!(refused["error"]["data"]["reason"], "store_failed", "{refused}");
    timeout(seconds(60), waiter(&world, &id)).await.expect("it ends").unwrap();
    assert_eq!(world.get(&id).await["status"], "completed");
    assert!(world.send(&update).await.json().await["result"].is_object(), "a repetition is taken");
    assert_eq!(answers(&world).len(), 1);
    world.is_idle().await;
}

/// A change that was not written is not done, and no unknown commit is left.
#[tokio::test(start_paused = true)]
async fn a_change_that_was_not_made_has_no_consequences() {
    let world = World::with(Rules::mode(TaskMode::Always), Script::returns(seconds(60), "done"));
    let id = world.handle(&Ask::call()).await;
    tokio::time::sleep(seconds(1)).await;
    world.store.faults.strike(Method::Replace, StoreFault::Fails, 20);
    let refused = world.send(&Ask::task("tasks/cancel", &id)).await.json().await;
    assert_eq!(refused["error"]["data"]["reason"], "store_failed", "{refused}");
    assert_eq!(world.settled(&id).await["status"], "completed");
    assert_eq!(world.upstream.cancels(), 0);
    world.is_idle().await;
}

/// L3: a row that the store did not let recovery settle is looked at until it does.
#[tokio::test(start_paused = true)]
async fn recovery_goes_on_until_every_row_is_done_with() {
    for method in [Method::Replace, Method::Load] {
        let world = World::with(Rules { durable: true, ..Rules::mode(TaskMode::Always) }, Script::silent());
        let mut ids = Vec::new();
        for _ in 0..6 {
            ids.push(world.handle(&Ask::call()).await);
        }
        tokio::time::sleep(seconds(3)).await;
        let world = world.next_life();
        world.store.faults.strike(method, StoreFault::Fails, ALWAYS);
        let recovered = async {
            tokio::join!(world.recover(), async {
                tokio::time::sleep(seconds(100)).await;
                world.store.faults.heal();
            })
        };
        timeout(seconds(200), recovered).await.expect("recovery comes to its end");
        for id in ids {
            let task = world.get(&id).await;
            let why = (&task["status"], &task["error"]["data"]["reason"]);
            assert_eq!(why, (&json!("failed"), &json!("gateway_restart")), "{method:?}");
        }
        world.is_idle().await;
    }
}

/// A stored outcome is counted once, after any number of tries.
#[tokio::test(start_paused = true)]
async fn a_task_that_recovery_settled_at_the_second_try_is_counted_once() {
    for fault in [StoreFault::Fails, StoreFault::AppliesAndFails, StoreFault::FailsUnsure] {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _recorded = metrics::set_default_local_recorder(&recorder);
        let world = World::with(Rules { durable: true, ..Rules::mode(TaskMode::Always) }, Script::silent());
        let id = world.handle(&Ask::call()).await;
        tokio::time::sleep(seconds(3)).await;
        let world = world.next_life();
        // As many as one look makes, and a few more.
        world.store.faults.strike(Method::Replace, fault, 6);
        timeout(seconds(200), world.recover()).await.expect("recovery comes to its end");
        assert_eq!(world.get(&id).await["status"], "failed", "{fault:?}");
        let page = recorder.handle().render();
        let counted: Vec<_> = page.lines().filter(|line| line.starts_with(metric::RECOVERED)).collect();
        assert_eq!(counted, ["taskgate_recovered_total{outcome=\"failed\"} 1"], "{fault:?}");
    }
}

/// The log has the cause of the store's own error, and the task.
#[tokio::test(start_paused = true)]
async fn a_failing_store_is_logged_with_the_cause_and_the_task() {
    let log = Log::default();
    let into = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || into.clone()).finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    let world = World::with(Rules::mode(TaskMode::Always), Script::returns(seconds(5), "done"));
    world.store.faults.strike(Method::Insert, StoreFault::Fails, 1);
    assert_eq!(world.send(&Ask::call()).await.status, 503);
    let id = world.handle(&Ask::call()).await;
    tokio::time::sleep(seconds(1)).await;
    world.store.faults.strike(Method::Replace, StoreFault::Fails, 1);
    assert_eq!(world.settled(&id).await["status"], "completed");
    let log = String::from_utf8(log.0.lock().clone()).unwrap();
    let told = |cause: &str| log.lines().find(|line| line.contains(cause)).unwrap_or_else(|| panic!("{cause}: {log}"));
    told("Insert fails on purpose");
    let reference = taskgate::task::ShortReference::of(&key(&id)).to_string();
    assert!(told("Replace fails on purpose").contains(&reference), "{log}");
    world.is_idle().await;
}

/// A plain call has no span at this level, so the line itself names the server.
#[tokio::test(start_paused = true)]
async fn a_refused_handshake_of_a_plain_call_is_logged_with_its_server() {
    let log = Log::default();
    let into = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || into.clone()).finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    let refusal = Some(BeginError::Refused(RpcError::new(-1, "not you")));
    let world = World::with(Rules::mode(TaskMode::Never), Script { refusal, ..Script::silent() });
    world.send(&Ask::call()).await.json().await;
    let log = String::from_utf8(log.0.lock().clone()).unwrap();
    let line = log.lines().find(|line| line.contains("the upstream refused the handshake"));
    assert!(line.is_some_and(|line| line.contains("upstream=scripted")), "{log}");
}

#[derive(Clone, Default)]
struct Log(std::sync::Arc<parking_lot::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Nothing runs at the upstream while an outcome waits for the store, so its permit is free.
#[tokio::test(start_paused = true)]
async fn a_permit_is_free_once_the_upstream_is_done_in_any_state_of_the_store() {
    let rules = Rules { in_flight_max: 1, ..Rules::mode(TaskMode::Always) };
    let world = World::with(rules, Script::returns(seconds(1), "done"));
    let id = world.handle(&Ask::call()).await;
    tokio::time::sleep(millis(500)).await;
    world.store.faults.strike(Method::Replace, StoreFault::Fails, ALWAYS);
    tokio::time::sleep(seconds(1)).await;
    let answer = world.send(&Ask::call().without_extension()).await;
    assert_eq!((answer.status, answer.at), (200, millis(2_500)), "it is called at once");
    assert_eq!(answer.json().await["result"]["content"][0]["text"], "done");
    world.store.faults.heal();
    assert_eq!(world.settled(&id).await["status"], "completed");
    world.is_idle().await;
}

/// A task that cannot be ended holds up no other, and frees go on beside it.
#[tokio::test(start_paused = true)]
async fn a_sweep_goes_on_past_a_row_that_is_stuck() {
    let rules = Rules { ttl: seconds(100), keep_result_min: seconds(1), ..Rules::mode(TaskMode::Always) };
    let first = std::sync::atomic::AtomicBool::new(true);
    let world = World::choosing(rules, move |_| {
        let is_first = first.swap(false, std::sync::atomic::Ordering::SeqCst);
        if is_first { Script::returns(seconds(1), "done") } else { Script::silent() }
    });
    let settled = world.handle(&Ask::call()).await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(world.handle(&Ask::call()).await);
    }
    assert_eq!(world.settled(&settled).await["status"], "completed");
    tokio::time::sleep(seconds(101)).await;
    *world.store.stuck.lock() = Some(key(&ids[0]));
    assert!(sweep(&world.engine).await.is_err(), "one could not be ended");
    let usage = world.store.usage();
    assert_eq!((usage.unsettled, usage.tasks), (1, 5), "the others are ended, and the settled one is freed");
    *world.store.stuck.lock() = None;
    sweep(&world.engine).await.unwrap();
    assert_eq!(world.store.usage().unsettled, 0);
    world.is_idle().await;
}

/// A listener gets the end of a task that could not be read at that moment.
#[tokio::test(start_paused = true)]
async fn a_listener_looks_again_at_a_task_that_could_not_be_read() {
    let world = World::with(Rules::mode(TaskMode::Always), Script::returns(seconds(5), "done"));
    let id = world.handle(&Ask::call()).await;
    let wishes = json!({ "notifications": { "taskIds": [id] } });
    let mut stream = world.send(&Ask::new("subscriptions/listen", wishes).id("l")).await;
    tokio::time::sleep(seconds(4)).await;
    world.store.blind_after.store(2, std::sync::atomic::Ordering::Relaxed);
    let told = async {
        loop {
            let (_, event) = stream.event().await.expect("the stream goes on");
            if event["params"]["status"] == "completed" {
                return;
            }
        }
    };
    timeout(seconds(60), told).await.expect("it is told");
}

/// A session's questions are put though its task could not be read when it asked.
#[tokio::test(start_paused = true)]
async fn a_question_is_put_though_its_task_could_not_be_read_at_first() {
    let script = Script::of([
        (seconds(5), Happens::Elicits("q")),
        (seconds(5), Happens::Heard(1)),
        (seconds(5), Happens::Returns(result("heard"))),
    ]);
    let world = World::with(Rules::default(), script);
    let caller = Caller::open(&world, json!({"elicitation": {}})).await;
    let call = json!({"id": 1, "method": "tools/call", "params": {"name": "work", "task": {}}});
    let handle = caller.post(call).await.json().await;
    let id = &handle["result"]["task"]["taskId"];
    let wait = json!({"id": 2, "method": "tasks/result", "params": {"taskId": id}});
    world.store.blind_after.store(3, std::sync::atomic::Ordering::Relaxed);
    // The head comes with the first that there is to say.
    let mut stream = timeout(seconds(60), caller.post(wait)).await.expect("the stream begins");
    let (_, question) = timeout(seconds(60), async {
        loop {
            let (at, event) = stream.event().await.expect("the stream goes on");
            if event["method"] == "elicitation/create" {
                return (at, event);
            }
        }
    })
    .await
    .expect("the question is put");
    let said = json!({"id": question["id"], "result": {"action": "decline"}});
    assert_eq!(caller.post(said).await.status, 202);
    let events = stream.events().await;
    assert_eq!(events.last().unwrap().1["result"]["content"][0]["text"], "heard", "{events:?}");
}

/// An error in its place would be the outcome (L25-24), and the call made again: a client that waits for an outcome
/// goes on waiting while the store cannot be read, settled or not.
#[tokio::test(start_paused = true)]
async fn an_outcome_is_waited_for_while_the_store_cannot_be_read() {
    let world = World::with(Rules::default(), Script::returns(seconds(30), "done"));
    let caller = Caller::open(&world, json!({})).await;
    let call = json!({"id": 1, "method": "tools/call", "params": {"name": "work", "task": {}}});
    let handle = caller.post(call).await.json().await;
    let wait = json!({"id": 2, "method": "tasks/result", "params": {"taskId": handle["result"]["task"]["taskId"]}});
    for is_settled in [false, true] {
        let begun = tokio::time::Instant::now();
        world.store.faults.strike(Method::Load, StoreFault::Fails, 9);
        let stream = timeout(seconds(120), caller.post(wait.clone())).await.expect("the stream begins");
        let events = timeout(seconds(120), stream.events()).await.expect("it ends");
        assert_eq!(events.last().unwrap().1["result"]["content"][0]["text"], "done", "{is_settled}: {events:?}");
        assert!(begun.elapsed() > seconds(15), "the store was away: {is_settled}");
    }
    world.is_idle().await;
}

/// A write with an unknown commit that was not made is repeated: no change is made twice, and none is lost.
#[tokio::test(start_paused = true)]
async fn a_change_in_doubt_that_was_not_made_is_made_again() {
    for fault in [StoreFault::FailsUnsure, StoreFault::AppliesAndFails] {
        let world = World::with(Rules::mode(TaskMode::Always), Script::silent());
        let id = world.handle(&Ask::call()).await;
        tokio::time::sleep(seconds(1)).await;
        world.store.faults.strike(Method::Replace, fault, 2);
        let answer = world.send(&Ask::task("tasks/cancel", &id)).await.json().await;
        assert!(answer["result"].is_object(), "{fault:?}: {answer}");
        world.upstream.sees(&Saw::Cancel(0)).await;
        assert_eq!((world.get(&id).await["status"].as_str(), world.upstream.cancels()), (Some("cancelled"), 1));
        world.is_idle().await;
    }
}

/// The second change finds the first one in the row before its own writer does.
#[tokio::test(start_paused = true)]
async fn a_change_in_doubt_that_another_one_finds_made_is_still_the_change_of_its_writer() {
    let world = World::with(Rules::mode(TaskMode::Always), Script::silent());
    let key = key(&world.handle(&Ask::call()).await);
    tokio::time::sleep(seconds(1)).await;
    world.store.faults.strike(Method::Replace, StoreFault::AppliesAndFails, 1);
    let (first, second) = tokio::join!(world.engine.cancel(&key), world.engine.cancel(&key));
    assert_eq!((first.unwrap().was_settled, second.unwrap().was_settled), (false, true));
    world.upstream.sees(&Saw::Cancel(0)).await;
    world.is_idle().await;
}

/// A client retries after an error, and then finds no task: its task is removed, by this call or by another.
#[tokio::test(start_paused = true)]
async fn a_removal_in_doubt_that_was_made_is_one() {
    for (fault, is_made) in [(StoreFault::AppliesAndFails, true), (StoreFault::FailsUnsure, false)] {
        let world = World::with(Rules::mode(TaskMode::Always), Script::returns(seconds(1), "done"));
        let id = world.handle(&Ask::call()).await;
        world.settled(&id).await;
        world.store.faults.strike(Method::Remove, fault, 1);
        let (caller, key) = (taskgate::task::Caller::of(Principal::local()), key(&id));
        assert_eq!(world.engine.delete(&caller, key.id).await.is_ok(), is_made, "{fault:?}");
        assert_eq!(world.engine.load_visible(&key).await.is_err(), is_made, "{fault:?}");
        world.is_idle().await;
    }
}

/// As long as the store cannot say how the row stands nothing is decided upon it; then it is, by itself.
#[tokio::test(start_paused = true)]
async fn a_doubt_that_cannot_be_settled_for_a_while_is_settled_when_it_can_be() {
    for fault in [StoreFault::FailsUnsure, StoreFault::AppliesAndFails] {
        let world = World::with(Rules::mode(TaskMode::Always), Script::silent());
        let id = world.handle(&Ask::call()).await;
        tokio::time::sleep(seconds(1)).await;
        world.store.faults.strike(Method::Replace, fault, 1);
        world.store.faults.strike(Method::SettleDoubt, StoreFault::Fails, 9);
        let refused = world.send(&Ask::task("tasks/cancel", &id)).await.json().await;
        assert_eq!(refused["error"]["data"]["reason"], "store_failed", "{refused}");
        tokio::time::sleep(seconds(60)).await;
        let was_made = fault == StoreFault::AppliesAndFails;
        assert_eq!(world.get(&id).await["status"] == "cancelled", was_made, "{fault:?}");
        assert_eq!(world.upstream.cancels(), usize::from(was_made));
        world.engine.cancel(&key(&id)).await.unwrap();
        world.is_idle().await;
    }
}

/// The first event of a call whose client chose the id of its task.
async fn call_named(world: &World) -> Option<CallEvent> {
    let chosen = Some(ChosenId { session: SessionScope(1), text: "mine".into() });
    let spec = CallSpec { chosen, ..world.spec(Plan::Task, &Principal::local()) };
    world.engine.call(spec).next().await
}

/// Whether a row that is gone was freed says nothing of a call that takes its id, and that was not sent.
#[tokio::test(start_paused = true)]
async fn a_call_whose_id_may_not_be_free_yet_was_certainly_not_sent() {
    for fault in [StoreFault::FailsUnsure, StoreFault::AppliesAndFails] {
        let rules = Rules { ttl: seconds(60), ..Rules::default() };
        let world = World::with(rules, Script::returns(seconds(1), "done"));
        let next = async || call_named(&world).await;
        assert!(matches!(next().await, Some(CallEvent::Created(_))));
        tokio::time::sleep(seconds(3_600)).await;
        world.store.faults.strike(Method::SweepOne, fault, 1);
        let refused = next().await;
        let Some(CallEvent::Ended(CallEnd::Outcome(Outcome::Faulted(Failure::Gateway(why))))) = refused else {
            panic!("{fault:?}: {refused:?}")
        };
        assert_eq!(why, GatewayFault::new(Reason::StoreFailed, Executed::No), "{fault:?}");
        assert_eq!(world.upstream.calls().len(), 1);
        assert!(matches!(next().await, Some(CallEvent::Created(_))), "{fault:?}");
        tokio::time::sleep(seconds(3)).await;
        world.is_idle().await;
    }
}

/// D86-06: a store that frees nothing, as one on disk that distrusts its clock, keeps an id whose task is gone. No task
/// has it, so the call is not refused for good.
#[tokio::test(start_paused = true)]
async fn an_id_that_may_not_be_freed_for_a_while_is_not_said_to_be_taken() {
    let world = World::with(Rules { ttl: seconds(60), ..Rules::default() }, Script::returns(seconds(1), "done"));
    let Some(CallEvent::Created(task)) = call_named(&world).await else { panic!("no task") };
    assert!(matches!(call_named(&world).await, Some(CallEvent::Ended(CallEnd::IdempotencyMismatch))), "it is taken");
    tokio::time::sleep(seconds(3_600)).await;
    world.store.frees_max.store(0, std::sync::atomic::Ordering::Relaxed);
    assert!(world.engine.load_visible(&task.key).await.is_err(), "its task is gone");
    let refused = call_named(&world).await;
    let Some(CallEvent::Ended(CallEnd::Outcome(Outcome::Faulted(Failure::Gateway(why))))) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(why, GatewayFault::new(Reason::StoreFailed, Executed::No));
    world.store.frees_max.store(usize::MAX, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(call_named(&world).await, Some(CallEvent::Created(_))));
    tokio::time::sleep(seconds(3)).await;
    assert_eq!(world.upstream.calls().len(), 2);
    world.is_idle().await;
}

/// The response with the first result is still being sent, and both results are equally long.
#[tokio::test(start_paused = true)]
async fn a_task_that_has_the_id_of_a_deleted_one_shows_its_own_result() {
    let letters = parking_lot::Mutex::new("ab".chars());
    let world = World::choosing(Rules::default(), move |_| {
        let letter = letters.lock().next().unwrap().to_string();
        Script::returns(seconds(1), &letter.repeat(JsonPieces::SHARED_MIN))
    });
    let mut shown = Vec::new();
    for letter in ["a", "b"] {
        let Some(CallEvent::Created(task)) = call_named(&world).await else { panic!("no task") };
        tokio::time::sleep(seconds(3)).await;
        let task = world.engine.share(world.task(&task.key).await).await.unwrap();
        let Some(Outcome::Returned { result, .. }) = task.outcome() else { panic!("{:?}", task.phase) };
        assert!(result.as_str().contains(&format!("\"{letter}{letter}")), "{}", &result.as_str()[..80]);
        world.engine.delete(&taskgate::task::Caller::of(Principal::local()), task.key.id).await.unwrap();
        shown.push(task);
    }
    world.is_idle().await;
}
