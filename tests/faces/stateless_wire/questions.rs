//! Questions of a tool in mid-call, over sockets: in a task, and between two rounds of a plain call.

use serde_json::{Value, json};

use super::gate::{Ask, Gate, meta};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// A request whose client declares these capabilities.
fn declaring(method: &str, mut params: Value, capabilities: &Value) -> Ask {
    params["_meta"] = meta(capabilities);
    Ask::new(method, params)
}

fn sampled() -> Value {
    json!({ "role": "assistant", "model": "m", "content": { "type": "text", "text": "short" } })
}

fn summarise(more: &Value, capabilities: &Value) -> Ask {
    let mut params = json!({ "name": "summarise", "arguments": { "text": "long", "n": 1.5 } });
    for (key, value) in more.as_object().unwrap() {
        params[key] = value.clone();
    }
    declaring("tools/call", params, capabilities)
}

/// EXT-22, EXT-37, EXT-70, T-11, T-12, T-13.
#[tokio::test]
async fn a_task_is_asked_by_tasks_get_and_answered_by_tasks_update() {
    let gate = Gate::start().await;
    let everything = json!({ "elicitation": {}, "extensions": { EXTENSION: {} } });
    let call = json!({ "name": "confirm_delete", "arguments": { "path": "a.txt" } });
    let handle = gate.result(&declaring("tools/call", call, &everything)).await;
    let id = handle["taskId"].as_str().unwrap();
    let get = declaring("tasks/get", json!({ "taskId": id }), &everything);
    let task = loop {
        let task = gate.result(&get).await;
        if task["status"] != "working" {
            break task;
        }
    };
    assert_eq!(task["status"], "input_required");
    let (key, request) = task["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(request["method"], "elicitation/create");
    assert_eq!(request["params"]["message"], "Delete a.txt?");
    let undeclared = declaring("tasks/get", json!({ "taskId": id }), &json!({ "extensions": { EXTENSION: {} } }));
    assert_eq!(gate.send(&undeclared).await.summary(), "400 -32021 id=7");
    let update = |answer: Value| {
        declaring("tasks/update", json!({ "taskId": id, "inputResponses": { key.as_str(): answer } }), &everything)
    };
    assert_eq!(gate.send(&update(json!({ "action": "yes" }))).await.summary(), "200 -32602 id=7", "B129");
    gate.result(&update(json!({ "action": "accept", "content": { "confirm": true } }))).await;
    let ended = loop {
        let task = gate.result(&get).await;
        assert!(task.get("inputRequests").is_none(), "EXT-70");
        if task["status"] != "working" {
            break task;
        }
    };
    assert_eq!(ended["result"]["content"][0]["text"], "Deleted a.txt.");
}

/// MOD-11, MOD-13, MOD-27, MOD-28, B135: the state is opaque, this request's alone, and good for one call of the tool.
#[tokio::test]
async fn a_plain_call_is_asked_by_its_answer_and_goes_on_when_it_is_made_again() {
    let gate = Gate::start().await;
    let can = json!({ "sampling": {} });
    let asked = gate.result(&summarise(&json!({}), &can)).await;
    let members: Vec<_> = asked.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(members, ["_meta", "inputRequests", "requestState", "resultType"]);
    assert_eq!(asked["resultType"], "input_required");
    assert!(asked["_meta"]["io.modelcontextprotocol/serverInfo"].is_object());
    let (key, request) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(request["method"], "sampling/createMessage");
    let state = asked["requestState"].as_str().unwrap();
    assert!(state.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{state}");
    let retry = |state: &Value| json!({ "inputResponses": { key.as_str(): sampled() }, "requestState": state });
    let good = summarise(&retry(&json!(state)), &can);
    for (what, wrong) in [
        ("cut", summarise(&retry(&json!(state[1..])), &can)),
        ("empty", summarise(&retry(&json!("")), &can)),
        ("null", summarise(&retry(&json!(null)), &can)),
        ("long", summarise(&retry(&json!("x".repeat(100_000))), &can)),
        ("other arguments", good.clone().edit("long", "longer")),
        ("another spelling", good.clone().edit("requestState", "requeststate")),
    ] {
        assert_eq!(gate.send(&wrong).await.summary(), "200 -32602 id=7", "{what}");
    }
    assert_eq!(
        gate.send(&summarise(&retry(&json!(state)), &json!({})).clone()).await.status,
        200,
        "it asks nothing more"
    );
    // Answers are in by now: the same again brings the same end, and asks for no second call.
    let ended = gate.result(&good).await;
    assert_eq!(
        (ended["resultType"].as_str(), ended["content"][0]["text"].as_str()),
        (Some("complete"), Some("Summary: short"))
    );
}

/// `auto`: the question makes the handle, long before the grace's end where that is far.
#[tokio::test]
async fn a_client_of_tasks_gets_a_handle_that_already_waits_for_input() {
    let gate = Gate::start().await;
    let both = json!({ "sampling": {}, "extensions": { EXTENSION: {} } });
    let handle = gate.result(&summarise(&json!({}), &both)).await;
    assert_eq!((handle["resultType"].as_str(), handle["status"].as_str()), (Some("task"), Some("input_required")));
    assert!(handle.get("inputRequests").is_none() && handle.get("requestState").is_none(), "EXT-18, EXT-73");
}
