//! Plain calls, of 2026-07-28 and in a session.

use std::iter;

use serde_json::{Value, json};
use taskgate::cli::call::{CallExit, Flavour, QuestionPolicy};
use taskgate::cli::ui::StepCount;

use super::extension::handle;
use super::script::{Run, Scenario, Step, Typed, accepted, check, error, question, text};

pub(crate) const DISCOVER: &str = "server/discover";
pub(crate) const INITIALIZE: &str = "initialize";
pub(crate) const INITIALIZED: &str = "notifications/initialized";
const CALL: &str = "tools/call";
const CANCELLED: &str = "notifications/cancelled";
const ANSWER: &str = "answer";
const DELETE: &str = "DELETE";

pub(crate) fn discovered(versions: &[&str], capabilities: Value) -> Step {
    Step::Result(json!({ "resultType": "complete", "supportedVersions": versions, "capabilities": capabilities }))
}

pub(crate) fn unknown() -> Step {
    Step::Error(404, error(-32601))
}

pub(crate) fn initialized(capabilities: Value) -> Step {
    Step::Result(json!({
        "protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": { "name": "s", "version": "1" },
    }))
}

/// A call in a session, and all methods of the session.
async fn in_session(call: Step, change: impl FnOnce(Scenario) -> Scenario, verdict: CallExit, methods: &[&str]) -> Run {
    let script = [unknown(), initialized(json!({})), call];
    let scenario = change(Scenario::of(Some(Flavour::None), script));
    let all = [&[DISCOVER, INITIALIZE, INITIALIZED, CALL], methods, &[DELETE]].concat();
    let output: &[&str] = if verdict == CallExit::Cancelled || verdict == CallExit::Faulted { &[] } else { &["done"] };
    check(scenario, verdict, output, &all).await
}

/// Nothing is said of tasks, so a handle is a mistake of the server (UPC-09).
#[tokio::test]
async fn a_server_of_2026_07_28_is_called_without_the_extension() {
    for (step, verdict, output) in
        [(Step::Result(text("Hello")), CallExit::Returned, &["Hello"][..]), (handle(), CallExit::Lost, &[])]
    {
        let scenario = Scenario::of(Some(Flavour::None), [discovered(&["2026-07-28"], json!({})), step]);
        let run = check(scenario, verdict, output, &[DISCOVER, CALL]).await;
        for seen in run.server.seen.lock().iter() {
            let meta = &seen.message["params"]["_meta"];
            let capabilities = json!({ "elicitation": { "form": {}, "url": {} } });
            assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], capabilities);
        }
    }
}

/// Any other answer of an old server to a request that it does not know (UPC-22).
#[tokio::test]
async fn any_other_answer_to_discover_leads_to_a_session() {
    for answer in [
        Step::Error(200, error(-32601)),
        Step::Error(400, error(-32600)),
        Step::Error(400, json!({ "code": -32022, "message": "no", "data": { "supported": ["2025-11-25"] } })),
        discovered(&["2025-11-25"], json!({})),
        Step::Page(404),
        Step::Page(500),
        Step::Page(200),
        Step::Drop,
    ] {
        let script = [answer.clone(), initialized(json!({})), Step::Result(text("done"))];
        let methods = [DISCOVER, INITIALIZE, INITIALIZED, CALL, DELETE];
        let scenario = Scenario::of(Some(Flavour::None), script);
        let run = check(scenario, CallExit::Returned, &["done"], &methods).await;
        let seen = run.server.seen.lock();
        let params = &seen[1].message["params"];
        assert_eq!(params["protocolVersion"], "2025-11-25");
        assert_eq!(params["capabilities"], json!({ "elicitation": { "form": {}, "url": {} } }));
        assert!(!seen[1].headers.contains_key("mcp-session-id"), "{answer:?}");
        for seen in &seen[2..] {
            assert_eq!(seen.headers["mcp-session-id"], "s1");
            assert_eq!(seen.headers["mcp-protocol-version"], "2025-06-18", "the version that was agreed on");
        }
    }
}

/// B268: a session that the server has opened is ended.
#[tokio::test]
async fn a_handshake_that_fails_is_a_lost_call() {
    let opened = &[INITIALIZE, DELETE][..];
    for (answer, handshakes, methods) in [
        // Each version of sessions in turn (UPC-22).
        (Step::Error(200, error(-32602)), 4, opened),
        (Step::Page(502), 1, &[INITIALIZE]),
        (Step::Result(json!({ "protocolVersion": "2026-07-28", "capabilities": {} })), 1, opened),
        (Step::Result(json!({ "protocolVersion": "1.0", "capabilities": {} })), 1, opened),
        (Step::Drop, 1, &[INITIALIZE]),
    ] {
        let script = iter::once(unknown()).chain(iter::repeat_n(answer, handshakes));
        let all = iter::repeat_n(methods, handshakes).flatten().copied();
        let seen: Vec<_> = iter::once(DISCOVER).chain(all).collect();
        check(Scenario::of(Some(Flavour::None), script), CallExit::Lost, &[], &seen).await;
    }
}

#[tokio::test]
async fn a_session_ends_with_its_call_after_any_outcome() {
    let failed = json!({ "content": [{ "type": "text", "text": "done" }], "isError": true });
    for (step, verdict) in [
        (Step::Result(text("done")), CallExit::Returned),
        (Step::Stream(Vec::new(), text("done")), CallExit::Returned),
        (Step::Result(failed), CallExit::ToolFailed),
        (Step::Error(200, error(-32603)), CallExit::Faulted),
        // UPC-17: the stream ends without the answer, and a further one has it.
        (Step::Pause(text("done")), CallExit::Returned),
    ] {
        in_session(step, |scenario| scenario, verdict, &[]).await;
    }
}

#[tokio::test]
async fn progress_of_a_call_in_a_session_is_shown() {
    let progress = |token: i64| json!({ "progressToken": token, "progress": token, "total": 4, "message": "half" });
    let step = Step::Stream(vec![progress(1), progress(3)], text("done"));
    let run = in_session(step, |scenario| scenario, CallExit::Returned, &[]).await;
    let shown = ("calling".to_owned(), Some("half".to_owned()), Some(StepCount { done: 1, total: 4 }));
    assert_eq!(run.user.shown.last(), Some(&shown), "what bears the token of nothing is not shown");
}

#[tokio::test]
async fn questions_on_the_calls_stream_and_on_the_sessions_own_are_answered() {
    for step in [Step::Ask(question(), text("done")), Step::AskElsewhere(question(), text("done"))] {
        let run = in_session(step, |scenario| scenario.typing(["y", ""]), CallExit::Returned, &[ANSWER]).await;
        assert_eq!(run.answers(), [accepted()]);
        assert_eq!(run.server.seen.lock()[4].message["id"], "q1");
    }
}

/// UPC-08.
#[tokio::test]
async fn an_answer_names_the_task_that_its_question_named() {
    let mut params = question();
    params["_meta"] = json!({ "io.modelcontextprotocol/related-task": { "taskId": "up" } });
    let run = in_session(
        Step::Ask(params, text("done")),
        |scenario| scenario.typing(["y", "accept"]),
        CallExit::Returned,
        &[ANSWER],
    );
    let mut expected = accepted();
    expected["_meta"] = json!({ "io.modelcontextprotocol/related-task": { "taskId": "up" } });
    assert_eq!(run.await.answers(), [expected]);
}

#[tokio::test]
async fn without_input_a_sessions_question_is_declined() {
    let decline = |scenario| Scenario { input: QuestionPolicy::Declined, ..scenario };
    let run = in_session(Step::Ask(question(), text("done")), decline, CallExit::Declined, &[ANSWER]).await;
    assert_eq!(run.answers(), [json!({ "action": "decline" })]);
}

#[tokio::test]
async fn a_question_that_a_session_takes_back_is_not_waited_for() {
    let idle = |scenario| Scenario { typed: vec![Typed::Nothing], ..scenario };
    let run = in_session(Step::Withdraw(question(), text("done")), idle, CallExit::Returned, &[]).await;
    run.assert_note("the question was withdrawn");
}

/// In a session a closed stream cancels nothing (LEG-11), so the server gets a notification.
#[tokio::test]
async fn ctrl_c_is_told_to_a_session() {
    let run = in_session(Step::Interrupt, |scenario| scenario, CallExit::Cancelled, &[CANCELLED]).await;
    {
        let seen = run.server.seen.lock();
        assert_eq!(seen[4].message["params"]["requestId"], seen[3].message["id"]);
    }
    let leave = |scenario| Scenario { typed: vec![Typed::CtrlC], ..scenario };
    in_session(Step::Ask(question(), text("done")), leave, CallExit::Cancelled, &[CANCELLED]).await;
}
