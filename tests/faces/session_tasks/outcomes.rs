//! Outcomes of tasks: results, errors, cancels, and the clients that wait for them.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;

use super::client::{BOTH, Client};
use super::talk::{ManualSetup, RELATED, SessionMessages};

/// L25-22, L25-24, L25-26 to L25-29, T-14.
#[tokio::test]
async fn l25_22_a_settled_task_returns_the_result_of_its_call() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let task = person.start().await;
    let call = stage.call().await;
    let id = call.seen.body["id"].as_str().unwrap().to_owned();
    call.events.raw(format!(
        "data: {{\"jsonrpc\":\"2.0\",\"id\":\"{id}\",\"result\":{{\"content\":[], \"n\":12345678901234567890123,\"_meta\":{{\"k\":1.10}}}}}}\n\n"
    ));
    person.until(&task["taskId"], "completed").await;
    let other = json!({"taskId": task["taskId"], "task": {"ttl": 1}, "_meta": {RELATED: {"taskId": "another"}}});
    for _ in 0..2 {
        let text = person.request(5, "tasks/result", &other).await.text().await;
        let expected = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{{\"content\":[], \"n\":12345678901234567890123,\"_meta\":{{\"k\":1.10,\"{RELATED}\":{{\"taskId\":{}}}}}}}}}",
            task["taskId"]
        );
        assert_eq!(text, expected);
    }
    assert_eq!(person.answered("tasks/get", &other).await["result"]["status"], "completed", "L25-29");
}

/// L25-25, L25-26, L25-44, L25-45, T-01, T-02.
#[tokio::test]
async fn l25_44_45_both_kinds_of_failure_are_failed_and_say_why() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let result = json!({"content": [{"type": "text", "text": "it broke"}], "isError": true});
    let failed = person.start().await["taskId"].clone();
    stage.call().await.answer(&result);
    assert_eq!(person.until(&failed, "failed").await["statusMessage"], "it broke");
    let outcome = person.answered("tasks/result", &json!({"taskId": failed})).await["result"].clone();
    assert_eq!((&outcome["isError"], &outcome["content"]), (&json!(true), &result["content"]));
    let refused = person.start().await["taskId"].clone();
    let call = stage.call().await;
    let error = json!({"code": -32042, "message": "not so", "data": {"n": 1}});
    call.send(&json!({"jsonrpc": "2.0", "id": call.seen.body["id"], "error": error}));
    assert_eq!(person.until(&refused, "failed").await["statusMessage"], "not so");
    assert_eq!(person.answered("tasks/result", &json!({"taskId": refused})).await["error"], error, "L25-25");
}

/// L25-23, L25-67, T-33: every waiting client gets the outcome, in any way of reading.
#[tokio::test]
async fn l25_23_67_every_waiting_client_gets_the_outcome() {
    let (stage, person, task) = ManualSetup::started().await;
    let call = stage.call().await;
    let waiting: Vec<_> = [BOTH, "application/json", "text/event-stream"]
        .into_iter()
        .zip(1..)
        .map(|(accept, id)| {
            let client = Client { accept, ..person.client.clone() };
            let body = json!({"jsonrpc": "2.0", "id": id, "method": "tasks/result", "params": {"taskId": task}});
            person.client.connections.spawn(async move { client.post(body.to_string()).await.text().await })
        })
        .collect();
    let last = person.client.connections.spawn(person.result(4, &task));
    // The client waits for certain: a log message of the call comes before there is an outcome.
    while !last.is_finished() {
        call.log();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(person.task(&task).await["status"], "working", "L25-23");
    call.answer(&json!({"content": [], "n": 1}));
    let mut answers = vec![SessionMessages::of(last.await.unwrap()).rest().await.pop().unwrap()];
    for answer in waiting {
        let text = super::in_time(answer).await.unwrap();
        let data = text.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&text);
        answers.push(serde_json::from_str(data).unwrap());
    }
    for (answer, id) in answers.into_iter().zip([4, 1, 2, 3]) {
        assert_eq!((&answer["id"], &answer["result"]["n"]), (&json!(id), &json!(1)), "{answer}");
        assert_eq!(answer["result"]["_meta"][RELATED], json!({"taskId": task}), "L25-28");
    }
}

/// L25-37 to L25-40, L25-67, T-06 to T-08.
#[tokio::test]
async fn l25_39_a_cancel_settles_the_task_at_once_and_for_every_waiting_client() {
    let (stage, person, task) = ManualSetup::started().await;
    let call = stage.call().await;
    let waiting = person.client.connections.spawn(person.result(4, &task));
    while !waiting.is_finished() {
        call.log();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut stream = SessionMessages::of(super::in_time(waiting).await.unwrap());
    assert_eq!(stream.next().await.unwrap()["method"], "notifications/message");
    let cancelled = person.answered("tasks/cancel", &json!({"taskId": task})).await["result"].clone();
    assert_eq!((&cancelled["taskId"], &cancelled["status"]), (&task, &json!("cancelled")));
    assert_eq!(cancelled.get("_meta"), None, "L25-30");
    let seen = stage.server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
    assert_eq!(seen.body["params"]["requestId"], call.seen.body["id"], "L25-38, by the upstream's own id");
    call.answer(&json!({"content": []}));
    let end = stream.rest().await.pop().unwrap();
    assert_eq!((&end["id"], &end["error"]["code"]), (&json!(4), &json!(-32603)), "T-08: {end}");
    assert_eq!(person.task(&task).await["status"], "cancelled", "L25-40");
    for _ in 0..2 {
        let again = person.answered("tasks/cancel", &json!({"taskId": task})).await;
        assert_eq!(again["error"]["code"], -32602, "L25-37: {again}");
    }
    let outcome = person.answered("tasks/result", &json!({"taskId": task})).await;
    assert_eq!(outcome["error"]["code"], -32603, "T-08");
}

/// L25-41, B119 to B123: an invalid id is answered like an unknown one.
#[tokio::test]
async fn l25_41_an_unknown_task_is_not_found_by_any_method() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let unknown = json!({"taskId": "0123456789abcdef0123456789abcdef"});
    for method in ["tasks/get", "tasks/result", "tasks/cancel"] {
        let answer = person.answered(method, &unknown).await;
        assert_eq!(answer["error"], json!({"code": -32602, "message": "Task not found"}), "{method}");
        assert_eq!(person.answered(method, &json!({"taskId": "gate-test"})).await, answer, "{method}");
        assert_eq!(person.answered(method, &json!({})).await["error"]["code"], -32602, "{method}");
    }
}

/// L25-64, T-27: a client that drops its stream, or all of them, cancels nothing.
#[tokio::test]
async fn l25_64_a_dropped_stream_cancels_nothing() {
    let (stage, person, task) = ManualSetup::started().await;
    let call = stage.call().await;
    let waiting = person.client.connections.spawn(person.result(4, &task));
    while !waiting.is_finished() {
        call.log();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(super::in_time(waiting).await.unwrap());
    assert_eq!(person.task(&task).await["status"], "working");
    call.answer(&json!({"content": []}));
    person.until(&task, "completed").await;
    assert_eq!(stage.server.world.count("notifications/cancelled"), 0);
}

/// L25-55: those who wait for one task are bounded; the others are refused and may poll.
#[tokio::test]
async fn l25_55_waiters_of_one_task_are_bounded() {
    let (stage, person, task) = ManualSetup::started().await;
    let call = stage.call().await;
    let mut waiting = tokio::task::JoinSet::new();
    for id in 0..65 {
        let (client, body) = (
            person.client.clone(),
            json!({"jsonrpc": "2.0", "id": id, "method": "tasks/result", "params": {"taskId": task}}),
        );
        waiting.spawn(async move { client.post(body.to_string()).await.text().await });
    }
    let refused = super::in_time(waiting.join_next()).await.unwrap().unwrap();
    assert!(refused.contains("too_many_waiters"), "{refused}");
    call.answer(&json!({"content": []}));
    while let Some(answer) = super::in_time(waiting.join_next()).await {
        assert!(answer.unwrap().contains("result"));
    }
}

/// L25-63: polls are answered in JSON.
#[tokio::test]
async fn l25_63_a_poll_is_no_stream() {
    let (_stage, person, task) = ManualSetup::started().await;
    let reply = person.request(3, "tasks/get", &json!({"taskId": task})).await;
    assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, Some("application/json")));
}
