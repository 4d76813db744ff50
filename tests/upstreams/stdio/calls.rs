//! Responses to clients of a program, with a session and without.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::{StandaloneClient, text};
use super::gate::{GatewayProcess, in_time};

async fn both(gate: &GatewayProcess) -> [StandaloneClient; 2] {
    [StandaloneClient::session(gate).await, StandaloneClient::stateless(gate)]
}

#[tokio::test]
async fn a_tool_answers_and_reports_progress_and_its_list_is_served() {
    let gate = GatewayProcess::new().await;
    for client in both(&gate).await {
        assert_eq!(text(&client.call(1, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!");
        let (list, _) = client.ask(2, "tools/list", json!({})).await.answer().await;
        assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 7, "{list}");
        let slow = json!({ "name": "slow_report", "arguments": { "seconds": 0.3, "steps": 3 },
            "_meta": { "progressToken": "p" } });
        let (answer, progress) = client.ask(3, "tools/call", slow).await.answer().await;
        assert!(text(&answer).contains("3 sections"), "{answer}");
        assert!(progress >= 1, "{client:?}");
        let (unknown, _) = client.ask(4, "no/such", json!({})).await.answer().await;
        assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
    }
}

#[tokio::test]
async fn fifty_calls_at_once_share_one_process_and_each_gets_its_own_answer() {
    let gate = GatewayProcess::new().await;
    for client in both(&gate).await {
        let calls = (0..50).map(|id| {
            let client = &client;
            async move {
                let params = json!({ "name": "slow_report", "arguments": { "seconds": 0.5, "steps": id + 1 } });
                let (answer, _) = client.ask(id, "tools/call", params).await.answer().await;
                assert_eq!(answer["id"], id);
                assert!(text(&answer).contains(&format!("{} sections", id + 1)), "{answer}");
            }
        });
        futures_util::future::join_all(calls).await;
    }
    assert_eq!(gate.programs().len(), 2, "one for each client");
}

#[tokio::test]
async fn a_slow_call_becomes_a_task_of_either_flavour() {
    let gate = GatewayProcess::with("", "[upstreams.up.tasks]\ngrace = \"100ms\"\n").await;
    let client = StandaloneClient::stateless(&gate).with_tasks();
    let handle = client.call(1, "slow_report", json!({ "seconds": 5, "steps": 2 })).await;
    let id = handle["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {handle}")).to_owned();
    let task = until_ended(&client, &id).await;
    assert_eq!(task["result"]["content"][0]["text"], "The report is ready: 2 sections in 5 s.", "{task}");

    let client = StandaloneClient::session(&gate).await;
    let params = json!({ "name": "slow_report", "arguments": { "seconds": 1, "steps": 2 }, "task": { "ttl": 60_000 } });
    let (handle, _) = client.ask(1, "tools/call", params).await.answer().await;
    let id = handle["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {handle}")).to_owned();
    assert_eq!(until_ended(&client, &id).await["status"], "completed");
    let (result, _) = client.ask(2, "tasks/result", json!({ "taskId": id })).await.answer().await;
    assert!(text(&result).contains("2 sections"), "{result}");
}

async fn until_ended(client: &StandaloneClient, id: &str) -> Value {
    in_time(async {
        loop {
            let (answer, _) = client.ask(9, "tasks/get", json!({ "taskId": id })).await.answer().await;
            if answer["result"]["status"] != "working" {
                return answer["result"].clone();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
}

/// T-20.
#[tokio::test]
async fn t_20_a_question_reaches_the_client_of_the_only_call() {
    let gate = GatewayProcess::new().await;
    let client = StandaloneClient::session(&gate).await;
    let params = json!({ "name": "confirm_delete", "arguments": { "path": "a.txt" } });
    let mut reply = client.ask(1, "tools/call", params.clone()).await;
    let question = reply.next().await.unwrap();
    assert_eq!(question["method"], "elicitation/create", "{question}");
    let result = json!({ "action": "accept", "content": { "confirm": true } });
    client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })).await;
    assert_eq!(text(&reply.answer().await.0), "Deleted a.txt.");

    let client = StandaloneClient::stateless(&gate);
    let (asked, _) = client.ask(1, "tools/call", params.clone()).await.answer().await;
    let (key, question) = asked["result"]["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(question["method"], "elicitation/create", "{asked}");
    let mut again = params;
    again["requestState"] = asked["result"]["requestState"].clone();
    again["inputResponses"] = json!({ key.as_str(): result });
    let (answer, _) = client.ask(2, "tools/call", again).await.answer().await;
    assert_eq!(text(&answer), "Deleted a.txt.");
}

/// T-20: a guess would show one call's question to another.
#[tokio::test]
async fn t_20_a_question_of_one_call_among_several_is_refused() {
    let gate = GatewayProcess::new().await;
    let client = StandaloneClient::session(&gate).await;
    let slow = json!({ "name": "slow_report", "arguments": { "seconds": 30, "steps": 1 } });
    let _running = client.ask(1, "tools/call", slow).await;
    let answer = client.call(2, "confirm_delete", json!({ "path": "a.txt" })).await;
    assert!(text(&answer).starts_with("Kept a.txt"), "{answer}");
}

#[tokio::test]
async fn a_cancel_ends_the_call_at_the_program_and_nothing_else() {
    let gate = GatewayProcess::with("cancel", "").await;
    let client = StandaloneClient::session(&gate).await;
    let slow = json!({ "name": "slow_report", "arguments": { "seconds": 60, "steps": 60 } });
    let mut cancelled = client.ask(1, "tools/call", slow.clone()).await;
    let mut other = client.ask(2, "tools/call", slow).await;
    // This server ends when it reads a cancel: so the test sees that it got it.
    client.note("notifications/cancelled", json!({ "requestId": 1 })).await;
    let (lost, _) = other.answer().await;
    assert_eq!(lost["error"]["data"]["exitStatus"], 4, "F45: {lost}");
    let rest = cancelled.next().await;
    assert!(rest.as_ref().is_none_or(|message| message.get("result").is_none()), "{rest:?}");
    assert_eq!(text(&client.call(3, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!", "started again");
}
