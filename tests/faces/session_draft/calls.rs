//! Calls under chosen ids: the messages on their streams, and the states of their tasks.

use serde_json::json;

use super::{RELATED, TASK, begun, called, person, setup};

/// D86-02 to D86-04, D86-07, D86-08, D86-13, D86-16, D86-17, D86-22: in sessions of every version.
#[tokio::test]
async fn d86_02_03_a_call_under_a_chosen_id_is_a_task_and_is_answered_all_the_same() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let stage = setup().await;
        let person = person(&stage, version).await;
        let stream = begun(&person, 4, "mine").await;
        let call = stage.call().await;
        let sent = call.seen.body["params"]["_meta"].as_object().unwrap().clone();
        assert_eq!(sent.keys().collect::<Vec<_>>(), ["progressToken"], "{version}: the server hears nothing of it");
        let task = person.task(&json!("mine")).await;
        let meta = json!({RELATED: {"taskId": "mine"}});
        let shown =
            json!({"taskId": "mine", "status": "working", "keepAlive": 900_000, "pollFrequency": 1000, "_meta": meta});
        assert_eq!(task, shown, "{version}");
        let early = person.answered("tasks/result", &json!({"taskId": "mine"})).await;
        assert_eq!(early["error"]["code"], -32602, "{version}");
        call.answer(&json!({"content": [], "n": 1, "_meta": {"k": 1}}));
        let rest = stream.rest().await;
        let result = json!({"content": [], "n": 1, "_meta": {"k": 1, RELATED: {"taskId": "mine"}}});
        assert_eq!(rest, [json!({"jsonrpc": "2.0", "id": 4, "result": result})], "{version}");
        assert_eq!(person.task(&json!("mine")).await["status"], "completed", "{version}");
        for _ in 0..2 {
            let fetched = person.answered("tasks/result", &json!({"taskId": "mine"})).await;
            assert_eq!(fetched["result"], result, "{version}");
        }
        let listed = person.answered("tasks/list", &json!({})).await["result"].clone();
        let one = json!({"taskId": "mine", "status": "completed", "keepAlive": 900_000, "pollFrequency": 1000});
        assert_eq!(listed, json!({"tasks": [one]}), "{version}");
    }
}

/// D86-05, D86-06, T-36: an id belongs to one session and to one call.
#[tokio::test]
async fn d86_06_an_id_that_is_there_already_is_refused_and_nothing_runs_twice() {
    let stage = setup().await;
    let (one, other) = (person(&stage, "2025-06-18").await, person(&stage, "2025-06-18").await);
    let stream = begun(&one, 4, "mine").await;
    let call = stage.call().await;
    let again = one.answered("tools/call", &called(&json!({"taskId": "mine"}))).await;
    assert_eq!(again["error"], json!({"code": -32602, "message": "Invalid params: taskId names an existing task"}));
    let theirs = begun(&other, 4, "mine").await;
    stage.call().await.answer(&json!({"content": [], "n": 2}));
    assert_eq!(theirs.rest().await[0]["result"]["n"], 2);
    call.answer(&json!({"content": [], "n": 1}));
    assert_eq!(stream.rest().await[0]["result"]["n"], 1);
    let settled = one.answered("tools/call", &called(&json!({"taskId": "mine"}))).await;
    assert_eq!(settled["error"]["code"], -32602, "as long as it is known");
    assert_eq!(stage.server.world.count("tools/call"), 2, "{TASK}");
}

/// D86-06: a session of 2025-11-25 also has tasks whose ids the gateway chose, and reads both kinds by the same methods.
#[tokio::test]
async fn d86_06_an_id_of_another_task_of_the_session_is_refused() {
    let stage = setup().await;
    let person = person(&stage, "2025-11-25").await;
    let task = person.start().await["taskId"].clone();
    let call = stage.call().await;
    let taken = json!({"code": -32602, "message": "Invalid params: taskId names an existing task"});
    let refused = person.answered("tools/call", &called(&json!({"taskId": task}))).await;
    assert_eq!(refused["error"], taken);
    assert_eq!(person.task(&task).await["status"], "working");
    call.answer(&json!({"content": [], "n": 1}));
    person.until(&task, "completed").await;
    let refused = person.answered("tools/call", &called(&json!({"taskId": task}))).await;
    assert_eq!(refused["error"], taken, "as long as it is known");
    assert_eq!(person.answered("tasks/result", &json!({"taskId": task})).await["result"]["n"], 1);
    assert_eq!(stage.server.world.count("tools/call"), 1);
    // In the same form, but no task's.
    let stream = begun(&person, 5, &"0".repeat(32)).await;
    stage.call().await.answer(&json!({"content": [], "n": 2}));
    assert_eq!(stream.rest().await[0]["result"]["n"], 2);
}

/// D86-01, T-38: a client that takes no stream gets an answer and nothing else; so does each client where the draft is off.
#[tokio::test]
async fn d86_01_without_a_stream_or_the_draft_a_call_is_answered_plainly() {
    let stage = setup().await;
    let mut person = person(&stage, "2025-06-18").await;
    person.client.accept = "application/json";
    let called = called(&json!({"taskId": "mine"}));
    let asking = person.client.connections.spawn({
        let person = person.clone();
        async move { person.request(4, "tools/call", &called).await.json().await }
    });
    stage.call().await.answer(&json!({"content": [], "n": 1}));
    assert_eq!(super::upstream::in_time(asking).await.unwrap()["result"], json!({"content": [], "n": 1}));
    let unknown = person.answered("tasks/get", &json!({"taskId": "mine"})).await;
    assert_eq!(unknown["error"], json!({"code": -32602, "message": "Task not found"}));
}
