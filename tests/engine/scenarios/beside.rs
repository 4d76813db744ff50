//! Several gateways at one store: what one is told, the other does; and a call goes on at one of them alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::json;
use taskgate::task::{AfterCrash, Principal, TaskId, TaskKey, TaskMode};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::rounds::{accept, answers};
use super::script::{Happens, Saw, Script, result};
use super::world::{Ask, Rules, World, millis, seconds};

fn key(id: &str) -> TaskKey {
    TaskKey { owner: Principal::local(), id: TaskId::parse(id).unwrap() }
}

fn rules() -> Rules {
    Rules { durable: true, ..Rules::mode(TaskMode::Always) }
}

fn asking(ask: Ask) -> Ask {
    let extension = json!({ "io.modelcontextprotocol/tasks": {} });
    ask.declaring(json!({ "elicitation": { "form": {} }, "extensions": extension }))
}

/// Two gateways, of which one makes the call, and the task that it becomes. Where hints are lost, the second looks.
async fn pair(script: Script, is_deaf: bool) -> (World, World, String) {
    let one = World::with(rules(), script);
    one.store.is_deaf.store(is_deaf, Ordering::Relaxed);
    let other = one.beside();
    other.store.is_deaf.store(is_deaf, Ordering::Relaxed);
    let id = one.handle(&asking(Ask::call())).await;
    tokio::time::sleep(millis(10)).await;
    (one, other, id)
}

/// F52: what was acknowledged by one is known to the other at once.
#[tokio::test(start_paused = true)]
async fn f52_a_task_is_the_same_at_each_gateway() {
    let (one, other, id) = pair(Script::returns(seconds(5), "done"), false).await;
    for world in [&other, &one, &other] {
        assert_eq!(world.get(&id).await["status"], "working");
    }
    assert_eq!(other.settled(&id).await["result"]["content"][0]["text"], "done");
    let listed = other.engine.list(&Principal::local(), None, 9).await.unwrap();
    assert_eq!(listed.tasks.len(), 1);
    assert_eq!(one.upstream.calls().len(), 1);
    one.is_idle().await;
}

/// F84: with hints at once, without them within a second.
#[tokio::test(start_paused = true)]
async fn f84_a_cancel_at_one_gateway_reaches_the_call_that_another_runs() {
    for is_deaf in [false, true] {
        let (one, other, id) = pair(Script::silent(), is_deaf).await;
        let began = one.age();
        assert!(other.send(&Ask::task("tasks/cancel", &id)).await.json().await["result"].is_object());
        timeout(seconds(5), one.upstream.sees(&Saw::Cancel(0))).await.expect("it is told");
        let took = one.age() - began;
        assert!(took <= if is_deaf { millis(1_100) } else { millis(20) }, "{took:?}");
        assert_eq!(one.get(&id).await["status"], "cancelled");
        one.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f84_an_answer_at_one_gateway_reaches_the_call_that_another_runs() {
    for is_deaf in [false, true] {
        let script = Script::of([
            (seconds(1), Happens::Elicits("a")),
            (seconds(0), Happens::Heard(1)),
            (seconds(1), Happens::Returns(result("done"))),
        ]);
        let (one, other, id) = pair(script, is_deaf).await;
        tokio::time::sleep(seconds(2)).await;
        let shown = other.send(&asking(Ask::task("tasks/get", &id))).await.json().await["result"].take();
        let open = shown["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let update = asking(Ask::task("tasks/update", &id)).member("inputResponses", json!({ open: accept() }));
        assert!(other.send(&update).await.json().await["result"].is_object());
        assert_eq!(timeout(seconds(9), other.settled(&id)).await.expect("it ends")["status"], "completed");
        assert_eq!(answers(&one).len(), 1);
        one.is_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn f84_whoever_waits_at_one_gateway_hears_of_the_end_at_another() {
    for is_deaf in [false, true] {
        let (one, other, id) = pair(Script::returns(seconds(5), "done"), is_deaf).await;
        let (engine, key) = (Arc::clone(&other.engine), key(&id));
        let waiting = TaskTracker::new().spawn(async move {
            let mut watcher = engine.watchers().watch(&key).unwrap();
            while !engine.get(&key).await.unwrap().is_settled() {
                watcher.changed().await;
            }
        });
        timeout(seconds(7), waiting).await.expect("it is woken").unwrap();
        one.is_idle().await;
    }
}

/// F76, F79: one that was declared ended, and goes on, settles nothing; its call is let go of without a cancel.
#[tokio::test(start_paused = true)]
async fn f79_a_gateway_that_was_replaced_settles_nothing() {
    let (one, other, id) = pair(Script::returns(seconds(5), "late"), false).await;
    one.store.is_declared_ended();
    let failed = timeout(seconds(3), other.settled(&id)).await.expect("the other takes it over");
    let data = &failed["error"]["data"];
    assert_eq!((&data["reason"], &data["executed"]), (&json!("gateway_restart"), &json!("unknown")));
    tokio::time::sleep(seconds(9)).await;
    assert_eq!(one.get(&id).await["status"], "failed", "there is one outcome");
    assert_eq!((one.upstream.calls().len(), one.upstream.cancels()), (1, 0));
    other.is_idle().await;
    one.is_idle().await;
}

/// F77, F78: a call that may be sent again is sent by whoever took it over, and by nobody else.
#[tokio::test(start_paused = true)]
async fn f77_a_call_of_a_gateway_that_ended_goes_on_at_another() {
    let rules = Rules { after_crash: AfterCrash::Rerun, ..rules() };
    let one = World::with(rules, Script::returns(seconds(5), "done"));
    let others = [one.beside(), one.beside()];
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(one.handle(&Ask::call()).await);
    }
    tokio::time::sleep(seconds(1)).await;
    one.life.end();
    one.store.is_declared_ended();
    for (number, id) in ids.iter().enumerate() {
        assert_eq!(others[number % 2].settled(id).await["status"], "completed");
    }
    assert_eq!(one.upstream.calls().len(), 80, "each was sent again once");
    for other in &others {
        other.is_idle().await;
    }
}
