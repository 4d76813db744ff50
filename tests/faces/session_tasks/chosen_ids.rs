//! Tasks of SEP-1686: ids that clients chose, calls that are answered all the same.

use http::StatusCode;
use serde_json::{Value, json};

use super::talk::{ManualSetup, SessionMessages, SessionUser};
use super::upstream::{SeenRequest, in_time};

const DRAFT: &str = "[upstreams.up.tasks]\ndrafts = [\"sep-1686\"]";
const TASK: &str = "modelcontextprotocol.io/task";
const RELATED: &str = "modelcontextprotocol.io/related-task";
const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

async fn person_of(stage: &ManualSetup, version: &str) -> SessionUser {
    let capabilities = json!({"elicitation": {"form": {}}, "sampling": {}, "roots": {}});
    SessionUser::meet(&stage.gate, version, &capabilities).await
}

fn call_as(task: &Value) -> Value {
    json!({"name": "work", "arguments": {}, "_meta": {TASK: task, "progressToken": "mine"}})
}

/// Makes a call; its stream, once its task is there.
async fn begin(person: &SessionUser, id: u32, task: &Value) -> SessionMessages {
    let mut stream = SessionMessages::of(person.request(id, "tools/call", &call_as(task)).await);
    let created = stream.next().await.unwrap();
    let related = json!({"_meta": {RELATED: {"taskId": task["taskId"]}}});
    assert_eq!(created, json!({"jsonrpc": "2.0", "method": "notifications/tasks/created", "params": related}));
    stream
}

async fn asked(person: &SessionUser, method: &str, id: &str) -> Value {
    person.answered(method, &json!({"taskId": id})).await
}

fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{answer}"))
}

/// D86-02, D86-03, D86-07, D86-10 to D86-13, D86-15 to D86-17, D86-24.
#[tokio::test]
async fn d86_03_a_call_has_a_task_and_its_own_answer_in_every_version_of_sessions() {
    for version in VERSIONS {
        let stage = ManualSetup::with(DRAFT).await;
        let person = person_of(&stage, version).await;
        let mut stream = begin(&person, 5, &json!({"taskId": "mine-1", "keepAlive": 7_200_000})).await;
        let call = stage.call().await;
        assert_eq!(call.seen.body["params"]["_meta"].get(TASK), None, "the key is of this hop");
        let task = person.until(&json!("mine-1"), "working").await;
        assert_eq!(task["keepAlive"], 7_200_000, "{version}");
        assert_eq!(task["_meta"], json!({RELATED: {"taskId": "mine-1"}}));
        assert!(task["pollFrequency"].is_u64() && task.get("createdAt").is_none(), "{task}");
        assert_eq!(code(&asked(&person, "tasks/result", "mine-1").await), -32602, "D86-15");
        assert_eq!(code(&asked(&person, "tasks/delete", "mine-1").await), -32600, "it runs");

        let token = &call.seen.body["params"]["_meta"]["progressToken"];
        let params = json!({"progressToken": token, "progress": 1});
        call.send(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}));
        let told = stream.next_of("notifications/progress").await;
        let meta = json!({RELATED: {"taskId": "mine-1"}});
        assert_eq!(told["params"], json!({"progressToken": "mine", "progress": 1, "_meta": meta}), "{version}");
        call.ask(&json!(0), "sampling/createMessage", &json!({"messages": [], "maxTokens": 1}));
        let question = stream.next_of("sampling/createMessage").await;
        assert_eq!(question["params"]["_meta"], meta, "D86-11");
        assert_eq!(person.task(&json!("mine-1")).await["status"], "input_required", "D86-10");
        let said = json!({"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m", "_meta": meta});
        person.respond(&question["id"], &said).await;
        let is_answer = |seen: &SeenRequest| seen.body.get("method").is_none() && seen.body["id"] == 0;
        let answer = stage.server.world.first(is_answer).await.body;
        assert_eq!((&answer["result"]["model"], answer["result"].get("_meta")), (&json!("m"), None));
        person.until(&json!("mine-1"), "working").await;

        call.answer(&json!({"content": [], "n": 9}));
        let result = json!({"content": [], "n": 9, "_meta": meta});
        assert_eq!(stream.rest().await, [json!({"jsonrpc": "2.0", "id": 5, "result": result})], "{version}");
        assert_eq!(person.task(&json!("mine-1")).await["status"], "completed");
        for _ in 0..2 {
            assert_eq!(asked(&person, "tasks/result", "mine-1").await["result"], result, "D86-16");
        }
        let listed = person.answered("tasks/list", &json!({})).await["result"].clone();
        assert_eq!(listed["tasks"][0]["taskId"], "mine-1", "D86-22: {listed}");
        assert_eq!(asked(&person, "tasks/delete", "mine-1").await["result"], json!({"_meta": meta}));
        assert_eq!(code(&asked(&person, "tasks/get", "mine-1").await), -32602, "D86-24");
        assert_eq!(person.answered("tasks/list", &json!({})).await["result"], json!({"tasks": []}));
    }
}

/// D86-05, D86-06, D86-23, D86-27.
#[tokio::test]
async fn d86_06_an_id_stands_for_one_call_of_its_session() {
    let stage = ManualSetup::with(DRAFT).await;
    let (person, other) = (person_of(&stage, "2025-06-18").await, person_of(&stage, "2025-06-18").await);
    let task = json!({"taskId": "one"});
    let stream = begin(&person, 5, &task).await;
    let call = stage.call().await;
    let again = person.answered("tools/call", &call_as(&task)).await;
    let message = "Invalid params: taskId names an existing task";
    assert_eq!(again["error"], json!({"code": -32602, "message": message}));
    for method in ["tasks/get", "tasks/result", "tasks/cancel", "tasks/delete"] {
        let refused = asked(&other, method, "one").await;
        assert_eq!(refused, asked(&other, method, "none").await, "{method}: as an unknown one");
        assert_eq!(code(&refused), -32602, "{method}");
    }
    assert_eq!(other.answered("tasks/list", &json!({})).await["result"], json!({"tasks": []}));
    let theirs = begin(&other, 5, &task).await;
    stage.call().await.answer(&json!({"content": [], "n": 2}));
    assert_eq!(theirs.rest().await[0]["result"]["n"], 2);
    call.answer(&json!({"content": [], "n": 1}));
    assert_eq!(stream.rest().await[0]["result"]["n"], 1, "the first runner is still the one that is reached");
    assert_eq!(code(&person.answered("tools/call", &call_as(&task)).await), -32602, "settled, and known all the same");
    assert_eq!(stage.server.world.count("tools/call"), 2);
    asked(&person, "tasks/delete", "one").await;
    let fresh = begin(&person, 6, &task).await;
    stage.call().await.answer(&json!({"content": [], "n": 3}));
    assert_eq!(fresh.rest().await[0]["result"]["n"], 3);
}

/// D86-18, D86-19; T-31.
#[tokio::test]
async fn d86_18_taking_the_call_back_cancels_its_task_and_leaving_does_not() {
    let stage = ManualSetup::with(DRAFT).await;
    let person = person_of(&stage, "2025-03-26").await;
    let take_back = |id: u32| {
        let params = json!({"requestId": id, "reason": "enough"});
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).to_string()
    };
    let stream = begin(&person, 5, &json!({"taskId": "first"})).await;
    let call = stage.call().await;
    assert_eq!(person.client.post(take_back(5)).await.status, StatusCode::ACCEPTED);
    assert_eq!(stream.rest().await, [] as [Value; 0], "no answer");
    assert_eq!(person.until(&json!("first"), "cancelled").await.get("error"), None);
    let told = stage.server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
    assert_eq!(told.body["params"]["requestId"], call.seen.body["id"], "the server is told, of its own request");
    assert_eq!(code(&asked(&person, "tasks/result", "first").await), -32602);

    drop(begin(&person, 6, &json!({"taskId": "left"})).await);
    let call = stage.call().await;
    assert_eq!(person.task(&json!("left")).await["status"], "working");
    call.answer(&json!({"content": [], "isError": true}));
    person.until(&json!("left"), "completed").await;
    assert_eq!(person.client.post(take_back(6)).await.status, StatusCode::ACCEPTED);
    assert_eq!(person.task(&json!("left")).await["status"], "completed", "D86-19");

    let stream = begin(&person, 7, &json!({"taskId": "third"})).await;
    let _held = stage.call().await;
    let cancelled = asked(&person, "tasks/cancel", "third").await;
    assert_eq!(cancelled["result"]["status"], "cancelled", "{cancelled}");
    let rest = stream.rest().await;
    assert_eq!((rest.len(), &rest[0]["id"], code(&rest[0])), (1, &json!(7), -32603), "the call was not cancelled");
}

/// D86-09, D86-25.
#[tokio::test]
async fn d86_25_an_error_answers_the_call_and_shows_in_the_task() {
    let stage = ManualSetup::with(DRAFT).await;
    let person = person_of(&stage, "2024-11-05").await;
    let stream = begin(&person, 5, &json!({"taskId": "bad"})).await;
    let call = stage.call().await;
    let error = json!({"code": -7, "message": "broke", "data": 1.5});
    call.send(&json!({"jsonrpc": "2.0", "id": call.seen.body["id"], "error": error}));
    assert_eq!(stream.rest().await, [json!({"jsonrpc": "2.0", "id": 5, "error": error})]);
    let task = person.task(&json!("bad")).await;
    assert_eq!((&task["status"], &task["error"]), (&json!("failed"), &json!("broke")));
}

/// D86-01, T-37, T-38.
#[tokio::test]
async fn d86_01_where_a_task_is_not_to_be_had_the_call_is_a_plain_one() {
    let keys = format!("{DRAFT}\n[[upstreams.up.tools]]\nmatch = \"work\"\nmode = \"never\"");
    for (keys, accept, task) in [
        (keys.as_str(), super::client::BOTH, json!({"taskId": "a"})),
        (DRAFT, "application/json", json!({"taskId": "a"})),
        (DRAFT, super::client::BOTH, json!({"keepAlive": 1})),
        ("", super::client::BOTH, json!({"taskId": "a"})),
    ] {
        let stage = ManualSetup::with(keys).await;
        let mut person = person_of(&stage, "2025-06-18").await;
        person.client.accept = accept;
        let waiting = person.clone();
        let params = call_as(&task);
        let reply = person
            .client
            .connections
            .spawn(async move { waiting.request(5, "tools/call", &params).await.text().await });
        let call = stage.call().await;
        let seen = call.seen.body.clone();
        call.answer(&json!({"content": [], "n": 9}));
        let text = in_time(reply).await.unwrap();
        assert!(text.contains(r#""n":9"#) && !text.contains("created") && !text.contains(RELATED), "{text}");
        let is_passed_on = seen["params"]["_meta"].get(TASK).is_some();
        assert_eq!(is_passed_on, keys.is_empty(), "a server that knows the draft would make a task of its own");
        let expected = if keys.is_empty() { -32601 } else { -32602 };
        assert_eq!(code(&asked(&person, "tasks/get", "a").await), expected);
    }
}

/// The shape that was shipped between the draft and 2025-11-25: the request is the latter's, the answer is read as a result.
#[tokio::test]
async fn a_handle_is_an_empty_result_too_where_the_draft_is_on() {
    for (keys, is_on) in [(DRAFT, true), ("", false)] {
        let stage = ManualSetup::with(keys).await;
        let person = person_of(&stage, "2025-11-25").await;
        let params = json!({"name": "work", "arguments": {}, "task": {"ttl": 60000}});
        let handle = person.answered("tools/call", &params).await["result"].clone();
        let task = &handle["task"];
        let stub = json!({TASK: {"taskId": task["taskId"], "status": task["status"]}});
        let rest = is_on.then(|| (json!([]), stub));
        assert_eq!(handle.get("content").cloned().zip(handle.get("_meta").cloned()), rest, "{handle}");
        assert_eq!(handle.as_object().unwrap().len(), if is_on { 3 } else { 1 });
    }
}

/// D86-04, D86-23, D86-31: exact answers, and nothing reaches the server.
#[tokio::test]
async fn d86_23_an_invalid_member_is_refused_by_name() {
    let stage = ManualSetup::with(DRAFT).await;
    let person = person_of(&stage, "2025-06-18").await;
    let bad_id = "Invalid params: taskId must be a string of 1 to 256 characters without control characters".to_owned();
    let bad_keep = "Invalid params: keepAlive must be a number of milliseconds, 0 or more, or null".to_owned();
    for (task, message) in [
        (json!({"taskId": ""}), &bad_id),
        (json!({"taskId": "x".repeat(257)}), &bad_id),
        (json!({"taskId": "a\nb"}), &bad_id),
        (json!({"taskId": 7}), &bad_id),
        (json!({"taskId": null}), &bad_id),
        (json!({"taskId": "a", "keepAlive": -1}), &bad_keep),
        (json!({"taskId": "a", "keepAlive": "60000"}), &bad_keep),
        (json!({"taskId": "a", "keepAlive": []}), &bad_keep),
    ] {
        let refused = person.answered("tools/call", &call_as(&task)).await["error"].clone();
        assert_eq!(refused, json!({"code": -32602, "message": message}), "{task}");
    }
    for (method, params, error) in [
        ("tasks/get", json!({}), json!({"code": -32602, "message": bad_id})),
        ("tasks/get", json!({"taskId": "x".repeat(257)}), json!({"code": -32602, "message": bad_id})),
        ("tasks/result", json!({"taskId": 7}), json!({"code": -32602, "message": bad_id})),
        ("tasks/delete", json!({"taskId": ""}), json!({"code": -32602, "message": bad_id})),
        ("tasks/get", json!({"taskId": "unknown"}), json!({"code": -32602, "message": "Task not found"})),
        ("tasks/result", json!({"taskId": "unknown"}), json!({"code": -32602, "message": "Task not found"})),
        ("tasks/delete", json!({"taskId": "unknown"}), json!({"code": -32602, "message": "Task not found"})),
        (
            "tasks/list",
            json!({"cursor": "c"}),
            json!({"code": -32602, "message": "Invalid params: cursor is not one that was given for this list"}),
        ),
    ] {
        assert_eq!(person.answered(method, &params).await["error"], error, "{method} {params}");
    }
    assert_eq!(person.answered("tasks/list", &json!({})).await["result"], json!({"tasks": []}));
    assert_eq!(stage.server.world.count("tools/call"), 0);
}
