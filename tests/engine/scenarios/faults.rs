//! Upstreams that fail, and bugs of our own: who waits always learns whether the call may have run.

use serde_json::json;
use taskgate::task::{Executed, GatewayFault, Reason, TaskMode};
use taskgate::upstream::BeginError;
use taskgate::wire::RpcError;

use super::script::{Happens, Script};
use super::world::{Ask, Rules, World, seconds};

struct Expected {
    /// HTTP status of a plain call.
    status: u16,
    code: i64,
    reason: &'static str,
    executed: &'static str,
}

/// One way to fail, seen by a plain call, by a call within its grace, and by a task.
async fn check(script: Script, expected: &Expected) {
    let data = json!({ "source": "gateway", "reason": expected.reason, "executed": expected.executed });
    for (mode, ask) in [(TaskMode::Never, Ask::call().without_extension()), (TaskMode::Auto, Ask::call())] {
        let world = World::with(Rules::mode(mode), script.clone());
        let answer = world.send(&ask).await;
        assert_eq!(answer.status, expected.status, "{mode:?} {}", expected.reason);
        assert_eq!(answer.headers.contains_key("retry-after"), expected.status == 503);
        let error = answer.json().await["error"].take();
        assert_eq!((error["code"].as_i64(), &error["data"]), (Some(expected.code), &data), "{mode:?}");
        assert_eq!(world.store.inserted(), 0);
        world.is_idle().await;
    }
    let world = World::with(Rules::mode(TaskMode::Always), script);
    let id = world.handle(&Ask::call()).await;
    let task = world.settled(&id).await;
    assert_eq!(task["status"], "failed");
    assert_eq!((task["error"]["code"].as_i64(), &task["error"]["data"]), (Some(expected.code), &data));
    // EXT-27, EXT-56.
    assert!(!task["statusMessage"].as_str().unwrap().is_empty());
    assert_eq!(world.upstream.cancels(), 0);
    world.is_idle().await;
}

fn refuses(refusal: BeginError) -> Script {
    Script { begins_after: seconds(1), refusal: Some(refusal), ..Script::silent() }
}

/// EXT-26, EXT-54, GW-38: only where nothing was sent the status invites a repetition.
#[tokio::test(start_paused = true)]
async fn an_upstream_that_cannot_be_reached_ran_nothing() {
    let fault = GatewayFault::new(Reason::UpstreamUnreachable, Executed::No);
    let expected = Expected { status: 503, code: -32603, reason: "upstream_unreachable", executed: "no" };
    check(refuses(BeginError::Gateway(fault)), &expected).await;
}

#[tokio::test(start_paused = true)]
async fn an_upstream_that_refuses_the_handshake_ran_nothing() {
    let expected = Expected { status: 503, code: -32603, reason: "upstream_refused", executed: "no" };
    check(refuses(BeginError::Refused(RpcError::new(-32602, "not you"))), &expected).await;
}

/// EXT-56.
/// L25-43.
#[tokio::test(start_paused = true)]
async fn an_upstream_that_is_lost_may_have_run_the_call() {
    for (reason, key) in [
        (Reason::UpstreamClosed, "upstream_closed"),
        (Reason::UpstreamTimeout, "upstream_timeout"),
        (Reason::UpstreamMalformed, "upstream_malformed"),
    ] {
        let script = Script::of([(seconds(1), Happens::Loses(reason, Executed::Unknown))]);
        check(script, &Expected { status: 200, code: -32603, reason: key, executed: "unknown" }).await;
    }
}

/// A result that is no result: the tool did run.
#[tokio::test(start_paused = true)]
async fn a_result_that_is_no_object_is_a_fault_of_the_upstream() {
    let script = Script::of([(seconds(1), Happens::Returns("[]".to_owned()))]);
    check(script, &Expected { status: 200, code: -32603, reason: "upstream_malformed", executed: "yes" }).await;
}

/// A panicking runner settles its task as a fault.
/// L25-42.
#[tokio::test(start_paused = true)]
async fn a_panicking_exchange_settles_its_task_and_answers_its_caller() {
    let script = Script::of([(seconds(1), Happens::Panics)]);
    check(script, &Expected { status: 200, code: -32603, reason: "internal", executed: "unknown" }).await;
    let world = World::with(Rules::default(), Script::of([(seconds(9), Happens::Panics)]));
    let id = world.handle(&Ask::call()).await;
    assert_eq!(world.settled(&id).await["error"]["data"]["reason"], "internal");
    world.is_idle().await;
}

/// EXT-30: the upstream's own error, unchanged.
#[tokio::test(start_paused = true)]
async fn an_error_of_the_upstream_is_answered_and_kept_as_it_came() {
    for (code, shown) in [(-32603, -32603), (-32601, -32601), (42, 42), (-32002, -32602), (-32042, -32603)] {
        let script = Script::of([(seconds(1), Happens::Faults(code, "no such luck"))]);
        let world = World::with(Rules::mode(TaskMode::Never), script.clone());
        let answer = world.send(&Ask::call()).await;
        assert_eq!(answer.status, 200);
        let error = answer.json().await["error"].take();
        assert_eq!(error, json!({ "code": shown, "message": "no such luck" }));
        let world = World::with(Rules::mode(TaskMode::Always), script);
        let id = world.handle(&Ask::call()).await;
        let task = world.settled(&id).await;
        assert_eq!((&task["status"], &task["error"]), (&json!("failed"), &error));
        assert_eq!(task["statusMessage"], "no such luck");
        world.is_idle().await;
    }
}

/// EXT-28, EXT-29: a tool's own report of its failure is a result.
#[tokio::test(start_paused = true)]
async fn a_result_that_says_error_is_a_completed_task() {
    let script = Script::of([(seconds(1), Happens::Returns(r#"{"content":[],"isError":true}"#.to_owned()))]);
    let world = World::with(Rules::mode(TaskMode::Always), script);
    let id = world.handle(&Ask::call()).await;
    let task = world.settled(&id).await;
    assert_eq!((&task["status"], &task["result"]["isError"]), (&json!("completed"), &json!(true)));
    assert!(task.get("error").is_none());
}
