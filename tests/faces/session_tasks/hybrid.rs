//! Clients that read a handle as a call's result, as FastMCP 2.14 does, where the draft SEP-1686 is on.

use serde_json::{Value, json};

use super::client::Reply;
use super::talk::{ManualSetup, RELATED, SessionMessages, SessionUser};

const ON: &str = "[upstreams.up.tasks]\ndrafts = [\"sep-1686\"]\nimmediate_response = \"Wait.\"";
const KEY: &str = "modelcontextprotocol.io/task";
const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

fn call(with: &Value) -> Value {
    let mut params = json!({"name": "work", "arguments": {"n": 1}});
    params.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
    params
}

/// The answer, however it comes.
async fn last(reply: Reply) -> Value {
    match reply.header("content-type") {
        Some("application/json") => reply.json().await,
        _ => SessionMessages::of(reply).rest().await.pop().unwrap(),
    }
}

async fn met(stage: &ManualSetup, version: &str) -> SessionUser {
    SessionUser::meet(&stage.gate, version, &json!({"elicitation": {"form": {}}})).await
}

/// T-37: the request says the same in either place, and the answer is a handle of 2025-11-25 and a result with the task's id.
#[tokio::test]
async fn a_handle_can_be_read_as_a_result_and_as_a_task() {
    let stage = ManualSetup::with(ON).await;
    for version in VERSIONS {
        let person = met(&stage, version).await;
        for wish in [json!({"task": {"ttl": 60_000}}), json!({"_meta": {KEY: {"ttl": 60_000}, "progressToken": 7}})] {
            let answer = person.answered("tools/call", &call(&wish)).await;
            let (result, arrived) = (&answer["result"], stage.call().await);
            let id = &result["task"]["taskId"];
            assert_eq!(
                (&result["content"], &result["task"]["ttl"]),
                (&json!([]), &json!(60_000)),
                "{version}: {answer}"
            );
            assert_eq!(result["_meta"][KEY], json!({"taskId": id, "status": "working"}), "{version}: {answer}");
            assert_eq!(result["_meta"]["io.modelcontextprotocol/model-immediate-response"], "Wait.", "{answer}");
            assert_eq!(result.as_object().unwrap().len(), 3, "{answer}");
            assert_eq!(arrived.seen.body["params"]["arguments"], json!({"n": 1}));
            assert_eq!(arrived.seen.body["params"].get("task"), None);
            assert_eq!(arrived.seen.body["params"]["_meta"].get(KEY), None);
            assert_eq!(person.task(id).await["status"], "working", "{version}");
            let answering = async { arrived.answer(&json!({"content": [], "n": 2})) };
            let (waiting, ()) = tokio::join!(person.result(9, id), answering);
            let ended = last(waiting).await;
            assert_eq!((&ended["id"], &ended["result"]["n"]), (&json!(9), &json!(2)), "{version}: {ended}");
            assert_eq!(ended["result"]["_meta"][RELATED], json!({"taskId": id}));
            assert_eq!(person.until(id, "completed").await["taskId"], *id);
        }
    }
}

/// A cancel reaches the server; the outcome is an error, and so is a second cancel.
#[tokio::test]
async fn a_task_of_an_older_version_is_cancelled_as_any_other() {
    let stage = ManualSetup::with(ON).await;
    let person = met(&stage, "2025-06-18").await;
    let id = person.start_with(&call(&json!({"task": {}}))).await["taskId"].clone();
    let arrived = stage.call().await;
    let cancelled = person.answered("tasks/cancel", &json!({"taskId": id})).await;
    assert_eq!(cancelled["result"]["status"], "cancelled");
    let told = stage.server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
    assert_eq!(told.body["params"]["requestId"], arrived.seen.body["id"]);
    let ended = person.answered("tasks/result", &json!({"taskId": id})).await;
    assert!(ended["error"]["code"].is_i64(), "{ended}");
    assert_eq!(person.answered("tasks/cancel", &json!({"taskId": id})).await["error"]["code"], -32602);
}

/// T-32: such a client waits on no stream but the session's own.
#[tokio::test]
async fn a_question_comes_on_the_sessions_own_stream_in_every_version() {
    let stage = ManualSetup::with(ON).await;
    let person = met(&stage, "2025-06-18").await;
    let mut own = person.listen().await;
    let id = person.start_with(&call(&json!({"task": {}}))).await["taskId"].clone();
    let arrived = stage.call().await;
    let form = json!({"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}});
    arrived.ask(&json!(0), "elicitation/create", &form);
    let question = own.next_of("elicitation/create").await;
    assert_eq!(person.task(&id).await["status"], "input_required");
    person.respond(&question["id"], &json!({"action": "accept", "content": {"n": 1}})).await;
    let answer = stage.server.world.first(|seen| seen.body.get("method").is_none() && seen.body["id"] == 0).await;
    assert_eq!(answer.body["result"]["content"], json!({"n": 1}));
    arrived.answer(&json!({"content": []}));
    person.until(&id, "completed").await;
}

/// T-37: a call of neither form is plain, in each version; a ttl that cannot be read is refused, and nothing runs.
#[tokio::test]
async fn a_call_of_neither_form_is_plain_and_one_with_a_bad_ttl_is_refused() {
    let stage = ManualSetup::with(&format!("[[upstreams.up.tools]]\nmatch = \"quick\"\nmode = \"never\"\n{ON}")).await;
    for version in VERSIONS {
        let person = met(&stage, version).await;
        let mut calls = vec![
            call(&json!({"_meta": {KEY: {}}})),
            call(&json!({"_meta": {KEY: {"keepAlive": 60_000}}})),
            call(&json!({"_meta": {KEY: null}})),
            call(&json!({"_meta": {KEY: [{"ttl": 1}]}})),
            call(&json!({"_meta": {KEY: {"ttl": 1}}, "name": "quick"})),
        ];
        if version != "2025-11-25" {
            calls.push(call(&json!({"task": {"ttl": 1}, "name": "quick"})));
        }
        for params in calls {
            let (answer, ()) = tokio::join!(person.request(5, "tools/call", &params), async {
                stage.call().await.answer(&json!({"content": [], "plain": true}));
            });
            let answer = last(answer).await;
            assert_eq!(answer["result"], json!({"content": [], "plain": true}), "{version} {params}");
        }
        let begun = stage.server.world.count("tools/call");
        for params in [call(&json!({"task": {"ttl": "60"}})), call(&json!({"_meta": {KEY: {"ttl": -1}}}))] {
            let answer = person.answered("tools/call", &params).await;
            let message = answer["error"]["message"].as_str().unwrap();
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
            assert!(message.contains("task.ttl must be a number of milliseconds, 0 or more"), "{message}");
        }
        assert_eq!(stage.server.world.count("tools/call"), begun);
    }
}

/// Off means off: in sessions without tasks there are none, and a handle is nothing but one.
#[tokio::test]
async fn without_the_draft_there_is_no_such_handle() {
    let stage = ManualSetup::new().await;
    for version in VERSIONS {
        let person = met(&stage, version).await;
        for wish in [json!({"task": {"ttl": 60_000}}), json!({"_meta": {KEY: {"ttl": 60_000}}})] {
            let params = call(&wish);
            let (answer, ()) = tokio::join!(person.request(5, "tools/call", &params), async {
                stage.call().await.answer(&json!({"content": [], "plain": true}));
            });
            let answer = last(answer).await;
            if version == "2025-11-25" && wish["task"].is_object() {
                let names: Vec<_> = answer["result"].as_object().unwrap().keys().collect();
                assert_eq!(names, ["task"], "{answer}");
            } else {
                assert_eq!(answer["result"], json!({"content": [], "plain": true}), "{version} {wish}");
            }
        }
        if version != "2025-11-25" {
            for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/list"] {
                let refused = person.answered(method, &json!({"taskId": "x"})).await;
                assert_eq!(refused["error"]["code"], -32601, "{version} {method}");
            }
        }
    }
}
