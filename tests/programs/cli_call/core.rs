//! Calls with the tasks of 2025-11-25, and the choice among the flavours.

use serde_json::{Value, json};
use taskgate::cli::call::{CallExit, Flavour, Wait};
use taskgate::cli::ui::StepCount;

use super::none::{DISCOVER, INITIALIZE, INITIALIZED, discovered, initialized, unknown};
use super::script::{Run, Scenario, Step, Typed, accepted, check, error, question, text};

const LIST: &str = "tools/list";
const CALL: &str = "tools/call";
const GET: &str = "tasks/get";
const RESULT: &str = "tasks/result";
const CANCEL: &str = "tasks/cancel";
const ANSWER: &str = "answer";
const DELETE: &str = "DELETE";
const OPENING: [&str; 4] = [INITIALIZE, INITIALIZED, LIST, CALL];

fn task(status: &str) -> Value {
    json!({
        "taskId": "t1", "status": status, "ttl": 60_000, "pollInterval": 1, "statusMessage": "part 1/2",
        "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z",
    })
}

fn is(status: &str) -> Step {
    Step::Result(task(status))
}

/// A task that waits for input, and whose next poll is too far away to come in between.
fn asks() -> Step {
    let mut task = task("input_required");
    task["pollInterval"] = json!(60_000);
    Step::Result(task)
}

fn handle() -> Step {
    Step::Result(json!({ "task": task("working") }))
}

fn offering() -> Step {
    Step::Result(json!({
        "protocolVersion": "2025-11-25",
        "capabilities": { "tasks": { "requests": { "tools": { "call": {} } }, "cancel": {} } },
        "serverInfo": { "name": "s", "version": "1" },
    }))
}

fn tools(support: Option<&str>) -> Step {
    let execution = support.map(|support| json!({ "taskSupport": support }));
    Step::Result(json!({ "tools": [{ "name": "grüße", "inputSchema": {}, "execution": execution }] }))
}

fn of(rest: impl IntoIterator<Item = Step>) -> Scenario {
    let script = [offering(), tools(Some("optional"))].into_iter().chain(rest);
    Scenario::of(Some(Flavour::Core), script)
}

async fn ends(scenario: Scenario, verdict: CallExit, output: &[&str], methods: &[&str]) -> Run {
    check(scenario, verdict, output, &[&OPENING, methods].concat()).await
}

/// UPC-01, UPC-05.
#[tokio::test]
async fn a_task_is_polled_and_its_result_fetched() {
    let failed = json!({ "content": [{ "type": "text", "text": "b" }], "isError": true });
    for (status, last, verdict, output) in [
        ("completed", Step::Result(text("done")), CallExit::Returned, &["done"][..]),
        ("failed", Step::Result(failed), CallExit::ToolFailed, &["b"]),
        ("failed", Step::Error(200, error(-32603)), CallExit::Faulted, &[]),
    ] {
        let scenario = of([handle(), is("working"), is(status), last]);
        let run = ends(scenario, verdict, output, &[GET, GET, RESULT, DELETE]).await;
        let seen = run.server.seen.lock();
        assert_eq!(seen[3].message["params"]["task"], json!({}));
        for seen in &seen[4..7] {
            // UPC-03: the id alone.
            assert_eq!(seen.message["params"], json!({ "taskId": "t1" }));
        }
        let shown = ("working".to_owned(), Some("part 1/2".to_owned()), Some(StepCount { done: 1, total: 2 }));
        assert!(run.user.shown.contains(&shown), "{:?}", run.user.shown);
    }
    ends(of([handle(), is("cancelled")]), CallExit::Cancelled, &[], &[GET, DELETE]).await;
    ends(of([handle(), Step::Error(200, error(-32602))]), CallExit::Faulted, &[], &[GET, DELETE]).await;
}

/// An answer to a question of the task, which names it (UPC-08).
fn of_the_task(mut answer: Value) -> Value {
    answer["_meta"] = json!({ "io.modelcontextprotocol/related-task": { "taskId": "t1" } });
    answer
}

/// UPC-07: the stream of `tasks/result` is where questions come, so it is opened for them.
#[tokio::test]
async fn a_question_of_a_task_is_answered_on_the_stream_that_it_needs() {
    let script = [handle(), asks(), Step::Ask(question(), text("done"))];
    let run = ends(of(script).typing(["y", ""]), CallExit::Returned, &["done"], &[GET, RESULT, ANSWER, DELETE]).await;
    assert_eq!(run.answers(), [of_the_task(accepted())]);
}

/// A server may ask on the session's own stream and never say `input_required` (FastMCP 3.4).
#[tokio::test]
async fn a_question_of_a_task_may_come_on_the_sessions_own_stream() {
    let script = [handle(), Step::AskElsewhere(question(), task("completed")), Step::Result(text("done"))];
    let run = ends(of(script).typing(["n", ""]), CallExit::Returned, &["done"], &[GET, ANSWER, RESULT, DELETE]).await;
    assert_eq!(run.answers(), [of_the_task(json!({ "action": "accept", "content": { "ok": false } }))]);
}

#[tokio::test]
async fn a_lost_answer_of_a_poll_or_a_result_is_asked_for_again() {
    for lost in [Step::Drop, Step::Page(502), Step::Page(503)] {
        let script = [handle(), lost.clone(), is("completed"), lost, is("completed"), Step::Result(text("done"))];
        ends(of(script), CallExit::Returned, &["done"], &[GET, GET, RESULT, GET, RESULT, DELETE]).await;
    }
    let script = [handle(), is("completed"), Step::Pause(text("done"))];
    ends(of(script), CallExit::Returned, &["done"], &[GET, RESULT, DELETE]).await;
    // The task may still run, so its session is left alone.
    ends(of([handle(), Step::Page(400)]), CallExit::Lost, &[], &[GET]).await;
}

#[tokio::test]
async fn a_task_outlives_the_session_that_the_server_forgot() {
    let script = [handle(), Step::Page(404), offering(), is("completed"), Step::Result(text("done"))];
    let methods = [GET, INITIALIZE, INITIALIZED, GET, RESULT, DELETE];
    ends(of(script), CallExit::Returned, &["done"], &methods).await;
}

/// 2025-11-25 alone has these tasks, also if a server declares them in other versions.
#[tokio::test]
async fn a_session_of_another_version_has_no_tasks() {
    let script =
        [initialized(json!({ "tasks": { "requests": { "tools": { "call": {} } } } })), Step::Result(text("plain"))];
    let methods = [INITIALIZE, INITIALIZED, CALL, DELETE];
    check(Scenario::of(Some(Flavour::Core), script), CallExit::Returned, &["plain"], &methods).await;
}

/// UPC-06.
#[tokio::test]
async fn ctrl_c_cancels_the_task_by_its_id() {
    let run = Scenario { cues: &["working"], ..of([handle(), is("cancelled")]) };
    ends(run, CallExit::Cancelled, &[], &[CANCEL, DELETE]).await;
    // The task has ended in between.
    let script = [handle(), Step::Error(200, error(-32602)), is("completed"), Step::Result(text("done"))];
    let run = ends(
        Scenario { cues: &["working"], ..of(script) },
        CallExit::Returned,
        &["done"],
        &[CANCEL, GET, RESULT, DELETE],
    );
    run.await.assert_note("the server refused to cancel");
    let script = [handle(), asks(), Step::Ask(question(), text("no")), is("cancelled")];
    let scenario = Scenario { typed: vec![Typed::CtrlC], ..of(script) };
    ends(scenario, CallExit::Cancelled, &[], &[GET, RESULT, CANCEL, DELETE]).await;
}

/// The session is the task's (T-31), so it is not ended.
#[tokio::test]
async fn a_task_that_is_left_keeps_its_session() {
    let scenario = Scenario { cues: &["working", "cancelling"], ..of([handle(), Step::Hang]) };
    let run = scenario.run().await;
    assert_eq!(run.verdict, CallExit::Cancelled);
    assert!(!run.methods().iter().any(|method| method == DELETE), "{:?}", run.methods());
    run.assert_note("may still run");

    let (scenario, handle) = (of([handle()]), task("working").to_string());
    ends(Scenario { wait: Wait::ForTheHandle, ..scenario }, CallExit::Returned, &[&handle], &[]).await;
}

/// UPC-05.
#[tokio::test]
async fn only_a_tool_that_takes_tasks_is_called_as_one() {
    for (support, is_task) in
        [(None, false), (Some("forbidden"), false), (Some("optional"), true), (Some("required"), true)]
    {
        let script = [offering(), tools(support), Step::Result(text("plain"))];
        let scenario = Scenario::of(Some(Flavour::Core), script);
        let run = check(scenario, CallExit::Returned, &["plain"], &[&OPENING[..], &[DELETE]].concat()).await;
        let called = &run.server.seen.lock()[3].message["params"];
        assert_eq!(called.get("task").is_some(), is_task, "{support:?}");
        assert_eq!(run.user.notes.is_empty(), is_task, "{:?}", run.user.notes);
    }
    // A server without tasks is not even asked for its tools.
    let script = [initialized(json!({})), Step::Result(text("plain"))];
    let methods = [INITIALIZE, INITIALIZED, CALL, DELETE];
    check(Scenario::of(Some(Flavour::Core), script), CallExit::Returned, &["plain"], &methods).await;
}

#[tokio::test]
async fn without_a_flavour_the_best_is_taken_that_the_server_offers() {
    let tasks = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let modern = |capabilities| discovered(&["2026-07-28"], capabilities);
    let plain = || initialized(json!({}));
    let done = || Step::Result(text("done"));
    for (script, flavour, methods) in [
        (vec![modern(tasks), done()], "extension", &[DISCOVER, CALL][..]),
        (
            vec![modern(json!({})), offering(), tools(Some("optional")), done()],
            "core",
            &[DISCOVER, INITIALIZE, INITIALIZED, LIST, CALL, DELETE],
        ),
        (vec![modern(json!({})), plain(), done()], "none", &[DISCOVER, INITIALIZE, INITIALIZED, DELETE, CALL]),
        (vec![modern(json!({})), unknown(), done()], "none", &[DISCOVER, INITIALIZE, CALL]),
        (
            vec![unknown(), offering(), tools(Some("required")), done()],
            "core",
            &[DISCOVER, INITIALIZE, INITIALIZED, LIST, CALL, DELETE],
        ),
        (
            vec![unknown(), offering(), tools(Some("forbidden")), done()],
            "none",
            &[DISCOVER, INITIALIZE, INITIALIZED, LIST, CALL, DELETE],
        ),
        (vec![unknown(), plain(), done()], "none", &[DISCOVER, INITIALIZE, INITIALIZED, CALL, DELETE]),
    ] {
        let run = check(Scenario::of(None, script), CallExit::Returned, &["done"], methods).await;
        assert_eq!(run.user.notes, [format!("flavour: {flavour}")]);
    }
}

#[tokio::test]
async fn a_call_that_was_given_a_name_says_it_in_a_session() {
    let scenario = Scenario { key: Some("k-1"), ..of([handle(), is("completed"), Step::Result(text("done"))]) };
    let run = ends(scenario, CallExit::Returned, &["done"], &[GET, RESULT, DELETE]).await;
    assert_eq!(run.server.seen.lock()[3].message["params"]["_meta"]["io.taskgate/idempotency-key"], "k-1");
}
