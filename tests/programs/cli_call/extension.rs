//! Calls with the tasks extension of 2026-07-28, and the common behaviour of all calls of that version.

use std::time::Duration;

use http::header::HeaderName;
use serde_json::{Value, json};
use taskgate::cli::call::{CallExit, Flavour, QuestionPolicy, RetryPolicy, Wait};
use taskgate::cli::ui::StepCount;

use super::script::{Run, Scenario, Step, Typed, accepted, bounded, error, question, text};

const CALL: &str = "tools/call";
const GET: &str = "tasks/get";
const CANCEL: &str = "tasks/cancel";
const UPDATE: &str = "tasks/update";
const LIST: &str = "tools/list";

/// A task, as a handle and as `tasks/get` shows it.
fn task(status: &str, more: Value) -> Value {
    let mut task = json!({
        "resultType": "complete", "taskId": "t1", "status": status, "ttlMs": 60_000, "pollIntervalMs": 1,
        "createdAt": "2026-07-28T00:00:00Z", "lastUpdatedAt": "2026-07-28T00:00:00Z",
    });
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task
}

pub(crate) fn handle() -> Step {
    Step::Result(task("working", json!({ "resultType": "task" })))
}

pub(crate) fn working() -> Step {
    Step::Result(task("working", json!({ "statusMessage": "section 3/10 written" })))
}

pub(crate) fn completed(result: Value) -> Step {
    Step::Result(task("completed", json!({ "result": result })))
}

pub(crate) fn cancelled() -> Step {
    Step::Result(task("cancelled", json!({})))
}

fn acknowledged() -> Step {
    Step::Result(json!({ "resultType": "complete" }))
}

fn elicit(params: Value) -> Value {
    json!({ "method": "elicitation/create", "params": params })
}

fn asking(questions: Value) -> Step {
    Step::Result(task("input_required", json!({ "inputRequests": questions })))
}

fn of(script: impl IntoIterator<Item = Step>) -> Scenario {
    Scenario::of(Some(Flavour::Extension), script)
}

async fn check(scenario: Scenario, verdict: CallExit, output: &[&str], methods: &[&str]) -> Run {
    super::script::check(scenario, verdict, output, methods).await
}

#[tokio::test]
async fn a_plain_answer_is_printed() {
    let image = json!({ "type": "image", "data": "", "mimeType": "image/png" });
    let mixed = json!({ "content": [{ "type": "text", "text": "a" }, image.clone()] });
    let failed = json!({ "content": [{ "type": "text", "text": "b" }], "isError": true });
    let structured = json!({ "content": [], "structuredContent": { "n": 1 } });
    for (step, verdict, output) in [
        (Step::Result(text("Hello")), CallExit::Returned, &["Hello"][..]),
        (Step::Stream(Vec::new(), text("Hello")), CallExit::Returned, &["Hello"]),
        (Step::Result(mixed), CallExit::Returned, &["a", &image.to_string()]),
        (Step::Result(structured), CallExit::Returned, &[r#"{"n":1}"#]),
        (Step::Result(failed), CallExit::ToolFailed, &["b"]),
        (Step::Error(200, error(-32603)), CallExit::Faulted, &[]),
        (Step::Error(400, error(-32021)), CallExit::Faulted, &[]),
        (Step::Error(503, error(-32603)), CallExit::Faulted, &[]),
    ] {
        check(of([step]), verdict, output, &[CALL]).await;
    }
}

#[tokio::test]
async fn answers_that_make_no_sense_are_a_lost_call() {
    for step in [
        Step::Page(200),
        Step::Page(502),
        Step::Drop,
        Step::Result(json!([])),
        Step::Result(json!({ "resultType": "surprise" })),
        Step::Result(json!({ "resultType": "task" })),
        Step::Result(json!({ "resultType": "complete", "content": 1 })),
        Step::Result(json!({ "resultType": "input_required" })),
        Step::Result(json!({ "resultType": "input_required",
            "inputRequests": { "k": { "method": "sampling/createMessage", "params": {} } } })),
    ] {
        // Never sent again: the tool may have run.
        check(of([step]), CallExit::Lost, &[], &[CALL]).await;
    }
}

/// UPC-10, UPC-15, UPC-27.
#[tokio::test]
async fn every_request_has_the_headers_and_metadata_of_its_version() {
    let tools = json!({ "tools": [{ "name": "grüße", "inputSchema": { "type": "object" } }] });
    let arguments = r#"{"b":1.10,"a":12345678901234567890123}"#;
    let scenario = Scenario { arguments, ..of([Step::Result(tools), handle(), completed(text("done"))]) };
    let run = check(scenario, CallExit::Returned, &["done"], &[LIST, CALL, GET]).await;
    let seen = run.server.seen.lock();
    for (seen, name) in seen.iter().zip([None, Some("=?base64?Z3LDvMOfZQ==?="), Some("t1")]) {
        let header = |name: &'static str| {
            seen.headers.get(HeaderName::from_static(name)).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(header("accept").unwrap(), "application/json, text/event-stream");
        assert_eq!(header("content-type").unwrap(), "application/json");
        assert_eq!(header("mcp-protocol-version").unwrap(), "2026-07-28");
        assert_eq!(header("mcp-method").unwrap(), seen.message["method"]);
        assert_eq!(header("mcp-name").as_deref(), name);
        let meta = &seen.message["params"]["_meta"];
        assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
        assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "taskgate");
        let capabilities = json!({
            "extensions": { "io.modelcontextprotocol/tasks": {} }, "elicitation": { "form": {}, "url": {} },
        });
        assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], capabilities);
    }
    assert_ne!(seen[0].message["id"], seen[1].message["id"]);
    assert!(seen[1].body.contains(arguments), "arguments go out as they were given");
}

/// UPC-15, UPC-16.
#[tokio::test]
async fn annotated_arguments_are_repeated_in_headers_and_the_list_is_read_again_once() {
    let tools = |header: &str, more: Value| {
        let property = json!({ "type": "string", "x-mcp-header": header });
        let tool = json!({ "name": "grüße", "inputSchema": { "type": "object", "properties": { "r": property } } });
        let mut page = json!({ "tools": [{ "name": "other" }, tool] });
        page.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Step::Result(page)
    };
    let first_page = Step::Result(json!({ "tools": [], "nextCursor": "" }));
    let mismatch = Step::Error(400, error(-32020));
    let script =
        [tools("Old", json!({})), mismatch.clone(), first_page, tools("Region", json!({})), Step::Result(text("x"))];
    let scenario = Scenario { arguments: r#"{"r":"größe"}"#, ..of(script) };
    let run = check(scenario, CallExit::Returned, &["x"], &[LIST, CALL, LIST, LIST, CALL]).await;
    {
        let seen = run.server.seen.lock();
        assert_eq!(seen[1].headers["mcp-param-old"], "=?base64?Z3LDtsOfZQ==?=");
        assert_eq!(seen[3].message["params"]["cursor"], "");
        assert_eq!(seen[4].headers["mcp-param-region"], "=?base64?Z3LDtsOfZQ==?=");
        assert!(!seen[4].headers.contains_key("mcp-param-old"));
    }

    // A second mismatch is the user's to see; a tool with annotations that break the rules is not called at all.
    let script = [tools("A", json!({})), mismatch.clone(), tools("A", json!({})), mismatch];
    let scenario = Scenario { arguments: r#"{"r":"a"}"#, ..of(script) };
    check(scenario, CallExit::Faulted, &[], &[LIST, CALL, LIST, CALL]).await;
    let scenario = Scenario { arguments: r#"{"r":"a"}"#, ..of([tools("a b", json!({}))]) };
    check(scenario, CallExit::Lost, &[], &[LIST]).await;
}

/// UPC-01, UPC-09.
#[tokio::test]
async fn a_task_is_polled_until_it_settles() {
    let failed = Step::Result(task("failed", json!({ "error": error(-32603) })));
    let is_error = json!({ "content": [{ "type": "text", "text": "b" }], "isError": true });
    for (last, verdict, output) in [
        (completed(text("done")), CallExit::Returned, &["done"][..]),
        (completed(is_error), CallExit::ToolFailed, &["b"]),
        (failed, CallExit::Faulted, &[]),
        (cancelled(), CallExit::Cancelled, &[]),
        (Step::Error(200, error(-32602)), CallExit::Faulted, &[]),
        (Step::Result(task("completed", json!({}))), CallExit::Lost, &[]),
    ] {
        let run = check(of([handle(), working(), last]), verdict, output, &[CALL, GET, GET]).await;
        let shown =
            ("working".to_owned(), Some("section 3/10 written".to_owned()), Some(StepCount { done: 3, total: 10 }));
        assert!(run.user.shown.contains(&shown), "{:?}", run.user.shown);
    }
}

/// GW-34: a stream that began with progress may end in a handle.
#[tokio::test]
async fn progress_may_come_before_a_handle() {
    let progress = json!({ "progressToken": 1, "progress": 2, "total": 4, "message": "half" });
    let Step::Result(task) = handle() else { panic!("a handle is a result") };
    let script = [Step::Stream(vec![progress], task), completed(text("done"))];
    let run = check(of(script), CallExit::Returned, &["done"], &[CALL, GET]).await;
    assert!(run.user.shown.iter().any(|shown| format!("{shown:?}").contains("half")), "{:?}", run.user.shown);
}

#[tokio::test]
async fn progress_of_a_plain_call_is_shown() {
    let progress = json!({ "progressToken": 1, "progress": 2, "total": 4, "message": "half" });
    let run = check(of([Step::Stream(vec![progress], text("done"))]), CallExit::Returned, &["done"], &[CALL]).await;
    let shown = ("calling".to_owned(), Some("half".to_owned()), Some(StepCount { done: 2, total: 4 }));
    assert_eq!(run.user.shown.last(), Some(&shown));
}

#[tokio::test]
async fn a_call_that_waits_for_its_handle_alone_prints_it() {
    let run = Scenario { wait: Wait::ForTheHandle, ..of([handle()]) }.run().await;
    assert_eq!((run.verdict, run.methods()), (CallExit::Returned, vec![CALL.to_owned()]));
    let printed: Value = serde_json::from_str(&run.user.output[0]).unwrap();
    assert_eq!(printed, task("working", json!({ "resultType": "task" })));
}

/// UPC-06, EXT-44: a cancel is a wish; the task may end otherwise.
#[tokio::test]
async fn ctrl_c_cancels_the_task_and_waits_for_how_it_ends() {
    for (last, verdict, output) in
        [(cancelled(), CallExit::Cancelled, &[][..]), (completed(text("too late")), CallExit::Returned, &["too late"])]
    {
        let script = [handle(), acknowledged(), working(), last];
        let scenario = Scenario { cues: &["working"], ..of(script) };
        check(scenario, verdict, output, &[CALL, CANCEL, GET, GET]).await;
    }
}

#[tokio::test]
async fn a_second_ctrl_c_leaves_at_once() {
    let run = Scenario { cues: &["working", "cancelling"], ..of([handle(), Step::Hang]) }.run().await;
    assert_eq!(run.verdict, CallExit::Cancelled);
    assert!(run.user.notes.iter().any(|note| note.contains("t1") && note.contains("may still run")));
}

/// On 2026-07-28 closing the stream is the cancellation (MOD-20).
#[tokio::test]
async fn ctrl_c_closes_the_stream_of_a_plain_call() {
    let run = check(of([Step::Interrupt]), CallExit::Cancelled, &[], &[CALL]).await;
    bounded(run.server.left.notified()).await;
}

#[tokio::test]
async fn polls_are_repeated_while_the_server_is_away() {
    for lost in [Step::Drop, Step::Page(502), Step::Page(503), Step::Error(503, error(-32603)), Step::Page(429)] {
        let scenario = of([handle(), lost.clone(), lost.clone(), completed(text("done"))]);
        let run = check(scenario, CallExit::Returned, &["done"], &[CALL, GET, GET, GET]).await;
        assert_eq!(run.user.notes.iter().filter(|note| note.contains("trying again")).count(), 2);

        let script = [handle(), lost.clone(), lost.clone(), lost.clone()];
        let verdict = if matches!(lost, Step::Error(..)) { CallExit::Faulted } else { CallExit::Lost };
        check(of(script), verdict, &[], &[CALL, GET, GET, GET]).await;
    }
    // A server that stays unavailable is reported as lost in time, with that time.
    let outage_max = Duration::from_millis(700);
    let script = std::iter::once(handle()).chain(std::iter::repeat_n(Step::Drop, 40));
    let retry = RetryPolicy { attempts_max: 1_000, outage_max, ..RetryPolicy::default() };
    let run = Scenario { retry, ..of(script) }.run().await;
    assert_eq!(run.verdict, CallExit::Lost);
    run.assert_note("trying again, for 1s at most");
    // An error that a retry cannot mend is not retried.
    check(of([handle(), Step::Page(404)]), CallExit::Lost, &[], &[CALL, GET]).await;
    check(of([handle(), Step::Error(404, error(-32601))]), CallExit::Faulted, &[], &[CALL, GET]).await;
}

/// UPC-11: a key that is still shown after its answer is not asked again; UPC-10.
#[tokio::test]
async fn a_tasks_questions_are_answered_by_updates_each_once() {
    let both = json!({ "a": elicit(question()), "b": elicit(question()) });
    let (again, last) = (asking(both.clone()), completed(text("done")));
    let script = [handle(), asking(both), acknowledged(), again.clone(), acknowledged(), again, last];
    let run = of(script).typing(["perhaps", "y", "", "n", "d"]).run().await;
    assert_eq!(run.methods(), [CALL, GET, UPDATE, GET, UPDATE, GET, GET]);
    assert_eq!((run.verdict, run.user.output.clone()), (CallExit::Declined, vec!["done".to_owned()]));
    let seen = run.server.seen.lock();
    let answers: Vec<_> = [2, 4].map(|at: usize| seen[at].message["params"]["inputResponses"].clone()).into();
    assert_eq!(answers, [json!({ "a": accepted() }), json!({ "b": { "action": "decline" } })]);
    assert_eq!(seen[2].headers["mcp-name"], "t1");
    assert_eq!(seen[2].message["params"]["taskId"], "t1");
    drop(seen);
    run.assert_note("expected yes or no");
}

/// UPC-14: all answers of a round, the state byte for byte, and a new id.
#[tokio::test]
async fn a_question_before_the_handle_is_answered_by_the_call_itself() {
    let state = r#"s"\u{e9}/"#;
    let asks =
        json!({ "resultType": "input_required", "requestState": state, "inputRequests": { "k": elicit(question()) } });
    let shed = json!({ "resultType": "input_required", "requestState": "later" });
    let script = [Step::Result(asks), Step::Result(shed), handle(), completed(text("done"))];
    let run = of(script).typing(["y", "a"]).run().await;
    assert_eq!((run.verdict, run.methods()), (CallExit::Returned, [CALL, CALL, CALL, GET].map(str::to_owned).into()));
    let seen = run.server.seen.lock();
    let params = |at: usize| &seen[at].message["params"];
    assert_eq!(params(1)["inputResponses"], json!({ "k": accepted() }));
    assert_eq!(params(1)["requestState"], state);
    assert_eq!(params(1)["arguments"], params(0)["arguments"]);
    assert_eq!((&params(2)["requestState"], params(2).get("inputResponses")), (&json!("later"), None));
    assert_ne!(seen[0].message["id"], seen[1].message["id"]);
}

#[tokio::test]
async fn a_server_that_asks_without_end_is_left() {
    let asks = json!({ "resultType": "input_required", "inputRequests": { "k": elicit(question()) } });
    let run = Scenario { input: QuestionPolicy::Declined, ..of(vec![Step::Result(asks); 20]) }.run().await;
    assert_eq!((run.verdict, run.methods().len()), (CallExit::Lost, 10));
}

#[tokio::test]
async fn without_input_every_question_is_declined_unseen() {
    let script = [handle(), asking(json!({ "a": elicit(question()) })), acknowledged(), completed(text("kept"))];
    let scenario = Scenario { input: QuestionPolicy::Declined, ..of(script) };
    let run = check(scenario.typing(["y"]), CallExit::Declined, &["kept"], &[CALL, GET, UPDATE, GET]).await;
    let answers = &run.server.seen.lock()[2].message["params"]["inputResponses"];
    assert_eq!(answers, &json!({ "a": { "action": "decline" } }));
    run.assert_note("the tool asks \"Sure?\"; declined, because of --no-input");
}

#[tokio::test]
async fn a_question_that_the_server_takes_back_is_not_waited_for() {
    let script = [handle(), asking(json!({ "a": elicit(question()) })), working(), completed(text("done"))];
    let scenario = Scenario { typed: vec![Typed::Nothing], ..of(script) };
    let run = check(scenario, CallExit::Returned, &["done"], &[CALL, GET, GET, GET]).await;
    run.assert_note("the question was withdrawn");
}

#[tokio::test]
async fn ctrl_c_at_a_question_cancels_its_task() {
    let script = [handle(), asking(json!({ "a": elicit(question()) })), acknowledged(), cancelled()];
    let scenario = Scenario { typed: vec![Typed::CtrlC], ..of(script) };
    check(scenario, CallExit::Cancelled, &[], &[CALL, GET, CANCEL, GET]).await;
}

#[tokio::test]
async fn a_question_that_cannot_be_shown_is_declined_with_a_reason() {
    let url = |url: &str| json!({ "mode": "url", "message": "Pay", "url": url, "elicitationId": "e" });
    let form =
        json!({ "message": "?", "requestedSchema": { "type": "object", "properties": { "f": { "type": "null" } } } });
    for (params, typed, answer, note) in [
        (
            url("https://bank.example/pay?x=1"),
            &["what", "a"][..],
            json!({ "action": "accept" }),
            "leads to: bank.example",
        ),
        (url("https://good.example@evil.example/"), &["c"], json!({ "action": "cancel" }), "leads to: evil.example"),
        (url("https://b\u{e4}nk.example/"), &["d"], json!({ "action": "decline" }), "leads to: xn--bnk-qla.example"),
        (url("javascript:alert(1)"), &[], json!({ "action": "decline" }), "its address is of the scheme javascript"),
        (url("nothing"), &[], json!({ "action": "decline" }), "its address is invalid"),
        (form, &[], json!({ "action": "decline" }), "the field f is of type null"),
        (json!({ "mode": "song", "message": "?" }), &[], json!({ "action": "decline" }), "the mode song is unknown"),
        // The end of the input.
        (question(), &[], json!({ "action": "decline" }), "ok (yes/no): "),
        (question(), &["y", "cancel"], json!({ "action": "cancel" }), "Send this?"),
    ] {
        let script = [handle(), asking(json!({ "a": elicit(params) })), acknowledged(), completed(text("done"))];
        let run = of(script).typing(typed.iter().copied()).run().await;
        let verdict = if answer["action"] == "accept" { CallExit::Returned } else { CallExit::Declined };
        assert_eq!(run.verdict, verdict, "{note}");
        assert_eq!(run.server.seen.lock()[2].message["params"]["inputResponses"], json!({ "a": answer }), "{note}");
        run.assert_note(note);
    }
}

#[tokio::test]
async fn a_call_that_was_given_a_name_says_it_with_each_try() {
    let asks = json!({ "resultType": "input_required", "requestState": "s" });
    for key in [None, Some("k-1")] {
        let run = Scenario { key, ..of([Step::Result(asks.clone()), Step::Result(text("done"))]) }.run().await;
        assert_eq!(run.verdict, CallExit::Returned);
        for seen in run.server.seen.lock().iter() {
            assert_eq!(seen.message["params"]["_meta"]["io.taskgate/idempotency-key"].as_str(), key);
        }
    }
}
