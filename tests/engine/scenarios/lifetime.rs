//! Deadlines, and a task's time to live.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use taskgate::engine::sweeper;
use taskgate::store::TaskStore;
use taskgate::task::TaskMode;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::script::{Resumes, Saw, Script};
use super::world::{Ask, Rules, World, millis, seconds};

#[track_caller]
fn check_fault(task: &Value, reason: &str, executed: &str) {
    assert_eq!(task["status"], "failed", "{task}");
    assert_eq!(task["error"]["code"], -32603);
    assert_eq!(task["error"]["data"], json!({ "source": "gateway", "reason": reason, "executed": executed }));
    // EXT-27: the status message says why.
    assert_eq!(task["statusMessage"], task["error"]["message"]);
}

/// EXT-26, UPC-19.
#[tokio::test(start_paused = true)]
async fn a_task_that_outlives_its_deadline_is_cancelled_at_the_upstream_and_failed() {
    let rules = Rules { deadline: seconds(30), ..Rules::default() };
    let world = World::with(rules, Script { begins_after: seconds(1), ..Script::silent() });
    let id = world.handle(&Ask::call()).await;
    tokio::time::sleep_until(world.started + seconds(29)).await;
    assert_eq!(world.get(&id).await["status"], "working");
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!(world.age(), seconds(30), "counted from the dispatch");
    check_fault(&world.settled(&id).await, "deadline_exceeded", "unknown");
    assert_eq!(world.upstream.cancels(), 1);
    world.is_idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_the_dispatch_and_not_from_the_wait_for_a_slot() {
    let rules = Rules { deadline: seconds(30), in_flight_max: 1, ..Rules::default() };
    let world = World::with(rules, Script::silent());
    let first = world.handle(&Ask::call()).await;
    let second = world.handle(&Ask::call()).await;
    world.upstream.sees(&Saw::Drop(1)).await;
    assert_eq!(world.age(), seconds(60));
    check_fault(&world.settled(&first).await, "deadline_exceeded", "unknown");
    check_fault(&world.settled(&second).await, "deadline_exceeded", "unknown");
    world.is_idle().await;
}

/// The operators' duration counts from the call, which was sent before its task was made.
#[tokio::test(start_paused = true)]
async fn a_settled_task_knows_when_its_call_began() {
    for is_cancelled in [false, true] {
        let world = World::with(Rules::default(), Script::returns(seconds(4), "done"));
        let id = world.handle(&Ask::call()).await;
        let key = world.store.unsettled().await.remove(0);
        tokio::time::sleep_until(world.started + seconds(3)).await;
        if is_cancelled {
            world.send(&Ask::task("tasks/cancel", &id)).await;
        }
        world.settled(&id).await;
        world.is_idle().await;
        let task = world.task(&key).await;
        let spans = [task.created_at, task.updated_at].map(|at| at.since(task.began_at()));
        assert_eq!(spans, [super::world::GRACE, seconds(if is_cancelled { 3 } else { 4 })]);
    }
}

/// A plain call may have run, so the status is 200 (GW-38).
#[tokio::test(start_paused = true)]
async fn a_plain_call_that_outlives_its_deadline_may_have_run() {
    let rules = Rules { deadline: seconds(10), ..Rules::mode(TaskMode::Never) };
    let world = World::with(rules, Script::silent());
    let answer = world.send(&Ask::call()).await;
    assert_eq!((answer.at, answer.status), (seconds(10), 200));
    let error = answer.json().await["error"].take();
    assert_eq!(error["data"], json!({ "source": "gateway", "reason": "deadline_exceeded", "executed": "unknown" }));
    assert_eq!(world.upstream.cancels(), 1);
    world.is_idle().await;
}

/// F88: neither at a poll, nor at its resumption, nor by its deadline. When the clock is trusted again its time counts.
#[tokio::test(start_paused = true)]
async fn f88_no_running_task_ends_by_a_clock_that_may_be_wrong() {
    const LEAP: std::time::Duration = seconds(24 * 3_600);
    let rules = Rules { in_flight_max: 1, queue_deadline: seconds(3_600), durable: true, ..Rules::default() };
    for is_trusted in [false, true] {
        let before = World::choosing(rules, |call| match call.params.contains("other") {
            true => Script::returns(seconds(20), "done"),
            false => Script::returns(LEAP + seconds(600), "done").resumed(Resumes::Follows),
        });
        let id = before.handle(&Ask::call()).await;
        let queued = before.handle(&Ask::tool("other")).await;
        let world = before.next_life();
        world.store.is_time_distrusted.store(!is_trusted, Ordering::Relaxed);
        tokio::time::sleep(LEAP).await;
        if !is_trusted {
            assert_eq!(world.get(&id).await["status"], "working");
        }
        world.recover().await;
        sweeper::sweep(&world.engine).await.unwrap();
        let task = world.settled(&id).await;
        if is_trusted {
            check_fault(&task, "ttl_expired", "unknown");
            check_fault(&world.get(&queued).await, "ttl_expired", "no");
        } else {
            assert_eq!(task["result"]["content"][0]["text"], "done", "{task}");
            assert_eq!(world.settled(&queued).await["result"]["content"][0]["text"], "done");
        }
        world.is_idle().await;
    }
}

const SHORT: Rules = Rules {
    mode: TaskMode::Always,
    ttl: seconds(100),
    keep_result_min: seconds(60),
    early_input: taskgate::task::EarlyInput::Task,
    fallback: taskgate::task::FallbackPolicy::Hold,
    split: None,
    input_deadline: seconds(600),
    deadline: seconds(1800),
    in_flight_max: 10,
    queue_max: 100,
    queue_deadline: seconds(10),
    tasks_max: 10,
    stored_bytes_max: 1 << 20,
    life_signs: true,
    after_crash: taskgate::task::AfterCrash::Fail,
    durable: false,
};

/// The lapse settles the task as a fault, which like every outcome stays readable for `keep_result_min` (D86-14).
#[tokio::test(start_paused = true)]
async fn an_unsettled_task_past_its_ttl_fails_and_stays_readable_for_a_while() {
    let world = World::with(SHORT, Script::silent());
    let id = world.handle(&Ask::call()).await;
    tokio::time::sleep(seconds(100) - millis(1)).await;
    assert_eq!(world.get(&id).await["status"], "working");
    tokio::time::sleep(millis(1)).await;
    // No sweeper runs here: the read decides.
    let task = world.get(&id).await;
    check_fault(&task, "ttl_expired", "unknown");
    assert_eq!(task["ttlMs"], 160_000, "raised by keep_result_min");
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!(world.upstream.cancels(), 1);
    tokio::time::sleep(seconds(60) - millis(1)).await;
    assert_eq!(world.get(&id).await, task);
    tokio::time::sleep(millis(1)).await;
    check_gone(&world, &id).await;
    world.is_idle().await;
}

/// B122: byte for byte the answer for an id that never existed.
async fn check_gone(world: &World, id: &str) {
    for method in ["tasks/get", "tasks/cancel"] {
        let gone = world.send(&Ask::task(method, id)).await;
        let never = world.send(&Ask::task(method, "00000000000000000000000000000abc")).await;
        assert_eq!((gone.status, &gone.headers), (never.status, &never.headers));
        let (gone, never) = (gone.text().await, never.text().await);
        assert_eq!(gone, never);
        assert!(gone.contains("-32602"), "{gone}");
    }
}

/// A queued task that lapses was certainly not sent.
#[tokio::test(start_paused = true)]
async fn a_queued_task_past_its_ttl_fails_without_having_been_sent() {
    let world = World::with(Rules { in_flight_max: 1, ..SHORT }, Script::silent());
    let _first = world.handle(&Ask::call()).await;
    let second = world.handle(&Ask::call()).await;
    tokio::time::sleep(seconds(100)).await;
    sweeper::sweep(&world.engine).await.unwrap();
    check_fault(&world.get(&second).await, "ttl_expired", "no");
    assert_eq!(world.upstream.calls().len(), 1);
    world.is_idle().await;
}

/// EXT-69: reading a result does not use it up, and nothing shortens its time.
/// L25-19.
#[tokio::test(start_paused = true)]
async fn a_settled_task_stays_readable_for_its_whole_ttl() {
    let world = World::with(SHORT, Script::returns(seconds(1), "done"));
    let id = world.handle(&Ask::call()).await;
    world.upstream.sees(&Saw::Drop(0)).await;
    let task = world.get(&id).await;
    assert_eq!((&task["status"], &task["ttlMs"]), (&json!("completed"), &json!(100_000)));
    for _ in 0..98 {
        tokio::time::sleep(seconds(1)).await;
        sweeper::sweep(&world.engine).await.unwrap();
        assert_eq!(world.get(&id).await, task);
    }
    tokio::time::sleep(seconds(1)).await;
    check_gone(&world, &id).await;
}

/// A late result raises the rest of the ttl (GW-28).
#[tokio::test(start_paused = true)]
async fn a_late_result_raises_the_ttl_so_that_it_can_be_read() {
    let world = World::with(SHORT, Script::returns(seconds(90), "done"));
    let id = world.handle(&Ask::call()).await;
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!(world.get(&id).await["ttlMs"], 150_000);
    tokio::time::sleep(seconds(59)).await;
    assert_eq!(world.get(&id).await["status"], "completed");
    tokio::time::sleep(seconds(1)).await;
    check_gone(&world, &id).await;
}

/// F50, L25-58: once a second, until it is stopped.
#[tokio::test(start_paused = true)]
async fn the_sweeper_runs_without_any_request() {
    let world = World::with(SHORT, Script::silent());
    let (sweepers, stop) = (TaskTracker::new(), CancellationToken::new());
    sweepers.spawn(sweeper::run(Arc::clone(&world.engine), stop.clone()));
    world.handle(&Ask::call()).await;
    world.upstream.sees(&Saw::Drop(0)).await;
    assert_eq!((world.age(), world.store.usage().unsettled), (seconds(100), 0));
    tokio::time::sleep(seconds(61)).await;
    assert_eq!(world.store.usage().tasks, 0);
    stop.cancel();
    sweepers.close();
    sweepers.wait().await;
}

#[tokio::test(start_paused = true)]
async fn the_sweeper_settles_overdue_tasks_and_removes_expired_ones() {
    let world = World::with(SHORT, Script::silent());
    for _ in 0..3 {
        world.handle(&Ask::call()).await;
    }
    tokio::time::sleep(seconds(99)).await;
    sweeper::sweep(&world.engine).await.unwrap();
    assert_eq!(world.store.usage().unsettled, 3);
    tokio::time::sleep(seconds(1)).await;
    sweeper::sweep(&world.engine).await.unwrap();
    assert_eq!((world.store.usage().tasks, world.store.usage().unsettled), (3, 0));
    tokio::time::sleep(seconds(60)).await;
    sweeper::sweep(&world.engine).await.unwrap();
    assert_eq!((world.store.usage().tasks, world.store.usage().bytes), (0, 0));
    assert_eq!(world.upstream.cancels(), 3);
    world.is_idle().await;
}

/// Also if the store frees few at a time, as they are large.
#[tokio::test(start_paused = true)]
async fn one_sweep_frees_all_that_is_gone_however_few_the_store_frees_at_a_time() {
    let world = World::with(SHORT, Script::silent());
    world.store.frees_max.store(1, Ordering::Relaxed);
    for _ in 0..3 {
        world.handle(&Ask::call()).await;
    }
    tokio::time::sleep(seconds(100)).await;
    sweeper::sweep(&world.engine).await.unwrap();
    tokio::time::sleep(seconds(60)).await;
    sweeper::sweep(&world.engine).await.unwrap();
    assert_eq!(world.store.usage().tasks, 0);
    world.is_idle().await;
}
