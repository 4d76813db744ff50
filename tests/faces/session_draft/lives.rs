//! A task under a chosen id while its call runs: questions, progress, cancels, clients that disconnect.

use http::StatusCode;
use serde_json::{Value, json};

use super::talk::{ManualSetup, SessionMessages, SessionUser};
use super::upstream::{SeenRequest, in_time};
use super::{RELATED, TASK, begun, called, person, setup};

const ASK: &str = "elicitation/create";

fn form() -> Value {
    json!({"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}})
}

async fn take_back(person: &SessionUser, id: u32) {
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    assert_eq!(person.client.post(notice.to_string()).await.status, StatusCode::ACCEPTED);
}

async fn is_told(stage: &ManualSetup) {
    stage.server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
}

/// D86-10 to D86-12, D86-17: on the call's own stream, each under its task, until the last is answered.
#[tokio::test]
async fn d86_10_11_12_questions_come_on_the_calls_own_stream_and_name_the_task() {
    let stage = setup().await;
    let person = person(&stage, "2025-06-18").await;
    let mut stream = begun(&person, 4, "mine").await;
    let call = stage.call().await;
    call.ask(&json!(0), ASK, &form());
    call.ask(&json!(1), "roots/list", &json!({}));
    let questions = [stream.next().await.unwrap(), stream.next().await.unwrap()];
    for question in &questions {
        assert_eq!(question["params"]["_meta"], json!({RELATED: {"taskId": "mine"}}));
    }
    assert_eq!(person.until(&json!("mine"), "input_required").await["taskId"], "mine");
    let said = json!({"action": "accept", "content": {"n": 1}, "_meta": {RELATED: {"taskId": "mine"}}});
    let [form, roots] = questions.map(|question| question["id"].clone());
    person.respond(&form, &said).await;
    let is_answer = |seen: &SeenRequest| seen.body.get("method").is_none() && seen.body["id"] == 0;
    let answer = stage.server.world.first(is_answer).await.body;
    assert_eq!(answer["result"], json!({"action": "accept", "content": {"n": 1}}), "less what belongs to this hop");
    assert_eq!(person.task(&json!("mine")).await["status"], "input_required", "one is open");
    person.respond(&roots, &json!({"roots": []})).await;
    person.until(&json!("mine"), "working").await;
    call.answer(&json!({"content": []}));
    assert_eq!(stream.rest().await.len(), 1, "the answer alone");
}

/// D86-17.
#[tokio::test]
async fn d86_17_progress_and_log_messages_of_a_call_name_its_task() {
    let stage = setup().await;
    let person = person(&stage, "2025-03-26").await;
    let mut params = called(&json!({"taskId": "mine"}));
    params["_meta"]["progressToken"] = json!("token");
    let mut stream = SessionMessages::of(person.request(4, "tools/call", &params).await);
    assert_eq!(stream.next().await.unwrap()["method"], "notifications/tasks/created");
    let call = stage.call().await;
    let token = &call.seen.body["params"]["_meta"]["progressToken"];
    let step = json!({"progressToken": token, "progress": 1, "total": 4});
    call.send(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": step}));
    let related = json!({RELATED: {"taskId": "mine"}});
    let shown = stream.next_of("notifications/progress").await;
    assert_eq!(shown["params"], json!({"progressToken": "token", "progress": 1, "total": 4, "_meta": related}));
    call.log();
    assert_eq!(stream.next_of("notifications/message").await["params"]["_meta"], related);
    call.answer(&json!({"content": []}));
    assert_eq!(stream.rest().await.len(), 1);
}

/// D86-18, D86-19, LEG-14.
#[tokio::test]
async fn d86_18_19_a_call_that_is_taken_back_is_cancelled_at_once_and_not_answered() {
    for version in ["2024-11-05", "2025-11-25"] {
        let stage = setup().await;
        let person = person(&stage, version).await;
        let mut stream = begun(&person, 4, "mine").await;
        let call = stage.call().await;
        call.ask(&json!(0), ASK, &form());
        let question = stream.next_of(ASK).await;
        take_back(&person, 4).await;
        assert_eq!(
            person.task(&json!("mine")).await["status"],
            "cancelled",
            "{version}: as soon as it is acknowledged"
        );
        is_told(&stage).await;
        let rest = stream.rest().await;
        assert!(rest.iter().all(|message| message.get("id").is_none()), "{version}: {rest:?}");
        person.respond(&question["id"], &json!({"action": "accept", "content": {}})).await;
        take_back(&person, 4).await;
        let fetched = person.answered("tasks/result", &json!({"taskId": "mine"})).await;
        let error = json!({"code": -32602, "message": "The task has no result: its status is cancelled"});
        assert_eq!(fetched["error"], error, "{version}");
        let answers = stage.server.world.all(|seen| seen.body.get("method").is_none() && seen.body["id"] == 0);
        assert!(answers.is_empty(), "{version}: D86-19");
        drop(call);
    }
}

/// `tasks/cancel`, which the draft does not have, does the same, and the call is answered.
#[tokio::test]
async fn d86_08_a_cancel_by_method_ends_the_call_and_is_final() {
    let stage = setup().await;
    let person = person(&stage, "2025-06-18").await;
    let stream = begun(&person, 4, "mine").await;
    let _call = stage.call().await;
    let cancelled = person.answered("tasks/cancel", &json!({"taskId": "mine"})).await["result"].clone();
    assert_eq!((&cancelled["taskId"], &cancelled["status"]), (&json!("mine"), &json!("cancelled")));
    let rest = stream.rest().await;
    assert_eq!(rest[0]["error"], json!({"code": -32603, "message": "The task was cancelled"}));
    let again = person.answered("tasks/cancel", &json!({"taskId": "mine"})).await;
    assert_eq!(again["error"]["code"], -32602);
    assert_eq!(person.task(&json!("mine")).await["status"], "cancelled");
}

/// T-31: its client returns for the task.
#[tokio::test]
async fn a_client_that_leaves_its_call_finds_the_task_and_its_question() {
    let stage = setup().await;
    let person = person(&stage, "2025-11-25").await;
    let stream = begun(&person, 4, "mine").await;
    let call = stage.call().await;
    drop(stream);
    let mut own = person.listen().await;
    call.ask(&json!(0), ASK, &form());
    let question = own.next_of(ASK).await;
    assert_eq!(question["params"]["_meta"], json!({RELATED: {"taskId": "mine"}}), "the session's own stream is left");
    person.respond(&question["id"], &json!({"action": "decline"})).await;
    stage.server.world.first(|seen| seen.body.get("method").is_none() && seen.body["id"] == 0).await;
    call.answer(&json!({"content": [], "n": 1}));
    person.until(&json!("mine"), "completed").await;
    let fetched = person.answered("tasks/result", &json!({"taskId": "mine"})).await;
    assert_eq!(fetched["result"]["n"], 1);
    assert_eq!(stage.server.world.count("notifications/cancelled"), 0);
}

/// D86-24, D86-23.
#[tokio::test]
async fn d86_24_a_task_that_has_ended_can_be_deleted_and_its_id_used_again() {
    let stage = setup().await;
    let person = person(&stage, "2025-06-18").await;
    let named = json!({"taskId": "mine"});
    let stream = begun(&person, 4, "mine").await;
    let call = stage.call().await;
    let early = person.answered("tasks/delete", &named).await;
    let error = json!({"code": -32600, "message": "The task has not ended: cancel it first"});
    assert_eq!(early["error"], error);
    call.answer(&json!({"content": []}));
    stream.rest().await;
    assert_eq!(person.answered("tasks/delete", &named).await["result"], json!({"_meta": {RELATED: named}}));
    for method in ["tasks/get", "tasks/result", "tasks/delete", "tasks/cancel"] {
        let gone = person.answered(method, &named).await;
        assert_eq!(gone["error"], json!({"code": -32602, "message": "Task not found"}), "{method}");
    }
    assert_eq!(person.answered("tasks/list", &json!({})).await["result"], json!({"tasks": []}));
    let stream = begun(&person, 5, "mine").await;
    stage.call().await.answer(&json!({"content": [], "n": 2}));
    assert_eq!(stream.rest().await[0]["result"]["n"], 2);
}

/// D86-25, D86-26, D86-03: a failure of the tool's is a result, an error of the server's is one of the task's.
#[tokio::test]
async fn d86_25_26_an_error_fails_the_task_and_a_failed_tool_completes_it() {
    let stage = setup().await;
    let person = person(&stage, "2025-06-18").await;
    let stream = begun(&person, 4, "tool").await;
    stage.call().await.answer(&json!({"content": [], "isError": true}));
    assert_eq!(stream.rest().await[0]["result"]["isError"], true);
    let task = person.task(&json!("tool")).await;
    assert_eq!((&task["status"], task.get("error")), (&json!("completed"), None));
    let stream = begun(&person, 5, "server").await;
    let call = stage.call().await;
    let error = json!({"code": -32001, "message": "no such page", "data": {"n": 1}});
    call.send(&json!({"jsonrpc": "2.0", "id": call.seen.body["id"], "error": error}));
    assert_eq!(stream.rest().await[0]["error"], error);
    let task = person.task(&json!("server")).await;
    assert_eq!((&task["status"], &task["error"]), (&json!("failed"), &json!("no such page")));
    let fetched = person.answered("tasks/result", &json!({"taskId": "server"})).await;
    assert_eq!(fetched["error"]["code"], -32602, "D86-15");
}

/// D86-03, GW-38: the call's own response, though nothing of its task is kept.
#[tokio::test]
async fn d86_03_a_call_that_outlives_the_ttl_of_its_task_may_have_run() {
    let keys = "[upstreams.up.tasks]\ndrafts = [\"sep-1686\"]\nttl = \"10s\"\nkeep_result_min = \"0s\"\n";
    let stage = ManualSetup::with(keys).await;
    let person = person(&stage, "2025-06-18").await;
    let stream = begun(&person, 4, "mine").await;
    let _call = stage.call().await;
    let rest = stream.rest().await;
    let data = &rest.last().unwrap()["error"]["data"];
    assert_eq!((&data["reason"], &data["executed"]), (&json!("ttl_expired"), &json!("unknown")), "{rest:?}");
}

/// D86-07: until its call has a place at the server.
#[tokio::test]
async fn d86_07_a_task_is_submitted_until_its_call_is_sent() {
    let stage = ManualSetup::with("in_flight_max = 1\n[upstreams.up.tasks]\ndrafts = [\"sep-1686\"]\n").await;
    let person = person(&stage, "2025-06-18").await;
    let first = begun(&person, 4, "first").await;
    let call = stage.call().await;
    let second = begun(&person, 5, "second").await;
    assert_eq!(person.task(&json!("second")).await["status"], "submitted");
    call.answer(&json!({"content": []}));
    first.rest().await;
    let call = stage.call().await;
    person.until(&json!("second"), "working").await;
    call.answer(&json!({"content": []}));
    assert_eq!(second.rest().await.len(), 1);
}

/// D86-06: of two calls under one id that come at once, one runs.
#[tokio::test]
async fn d86_06_of_two_calls_at_once_under_one_id_one_is_made() {
    let stage = setup().await;
    let person = person(&stage, "2025-06-18").await;
    let calling = |id: u32| {
        let person = person.clone();
        person.client.connections.clone().spawn(async move {
            let reply = person.request(id, "tools/call", &called(&json!({"taskId": "mine"}))).await;
            (reply.header("content-type").unwrap().to_owned(), reply)
        })
    };
    let both = [calling(4), calling(5), calling(6), calling(7)];
    stage.call().await.answer(&json!({"content": [], "n": 1}));
    let (mut made, mut refused) = (0, 0);
    for one in both {
        let (media, reply) = in_time(one).await.unwrap();
        if media == "text/event-stream" {
            made += 1;
            assert_eq!(SessionMessages::of(reply).rest().await.last().unwrap()["result"]["n"], 1);
        } else {
            refused += 1;
            assert_eq!(reply.json().await["error"]["code"], -32602);
        }
    }
    assert_eq!((made, refused, stage.server.world.count("tools/call")), (1, 3, 1), "{TASK}");
}
