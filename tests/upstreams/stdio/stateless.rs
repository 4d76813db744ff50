//! Programs of 2026-07-28, and how it is found out which programs are.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::client::{StandaloneClient, fault, text};
use super::gate::{GatewayProcess, in_time};

async fn heard(client: &StandaloneClient) -> Vec<String> {
    text(&client.call(90, "heard", json!({})).await).lines().map(str::to_owned).collect()
}

async fn until_heard(client: &StandaloneClient, what: &str) {
    let waiting = async {
        while !heard(client).await.iter().any(|line| line.starts_with(what)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    in_time(waiting).await;
}

/// UPC-22, T-70.
#[tokio::test]
async fn upc22_a_new_process_is_asked_for_its_version_and_then_serves() {
    for keys in ["", "protocol = \"2026-07-28\"\n"] {
        let gate = GatewayProcess::with("stateless", keys).await;
        let client = StandaloneClient::stateless(&gate);
        assert_eq!(text(&client.call(1, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!", "{keys}");
        let heard = heard(&client).await;
        assert!(!heard.iter().any(|line| line == "initialize"), "{heard:?}");
        assert!(heard.iter().filter(|line| *line == "server/discover").count() <= 1, "{heard:?}");
        assert!(keys.is_empty() == (heard[0] == "server/discover"), "{heard:?}");
        assert_eq!(gate.programs().len(), 1, "the process that was asked goes on");
        let (list, _) = client.ask(2, "tools/list", json!({})).await.answer().await;
        assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 8, "{list}");
    }
}

/// UPC-22: a server of an older version may do anything at an unknown request; `initialize` goes to a process that has
/// received none.
#[tokio::test]
async fn upc22_a_server_that_refuses_ends_or_hangs_at_the_question_is_spoken_to_in_a_session_of_a_fresh_process() {
    for faults in ["", "strict", "mute"] {
        let gate = GatewayProcess::with(faults, "").await;
        let client = StandaloneClient::stateless(&gate);
        let began = tokio::time::Instant::now();
        assert_eq!(text(&client.call(1, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!", "{faults}");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(25), "{faults}: {took:?}");
        gate.until_processes(2).await;
        let began = tokio::time::Instant::now();
        assert_eq!(text(&client.call(2, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!", "{faults}");
        assert!(began.elapsed() < Duration::from_secs(8), "{faults}: the server is not asked again");
    }
}

#[tokio::test]
async fn calls_of_a_stateless_client_have_progress_questions_and_logs_of_their_own() {
    let gate = GatewayProcess::with("stateless", "").await;
    let client = StandaloneClient::stateless(&gate);
    // Ids and tokens that are the same for all.
    let calls = (0..50).map(|number| {
        let client = &client;
        async move {
            let name = format!("call {number}");
            let params = json!({ "name": "slow", "arguments": { "name": name, "millis": 300 },
                "_meta": { "progressToken": "same" } });
            let mut reply = client.ask(1, "tools/call", params).await;
            let (answer, progress) = reply.answer().await;
            assert_eq!((text(&answer), &answer["id"]), (format!("waited for {name}").as_str(), &json!(1)));
            progress
        }
    });
    let progress: usize = join_all(calls).await.into_iter().sum();
    assert!(progress >= 1, "{}", gate.log());

    let params = json!({ "name": "confirm", "arguments": {} });
    let (asked, _) = client.ask(1, "tools/call", params.clone()).await.answer().await;
    assert_eq!(asked["result"]["inputRequests"]["sure"]["method"], "elicitation/create", "{asked}");
    let mut again = params;
    again["requestState"] = asked["result"]["requestState"].clone();
    again["inputResponses"] = json!({ "sure": { "action": "accept", "content": { "yes": true } } });
    let (answer, _) = client.ask(2, "tools/call", again).await.answer().await;
    assert_eq!(text(&answer), "confirmed with half way");

    let logging = json!({ "name": "log", "arguments": {}, "_meta": { "io.modelcontextprotocol/logLevel": "debug" } });
    let mut reply = client.ask(3, "tools/call", logging).await;
    let said = reply.next().await.unwrap();
    assert_eq!(
        (&said["method"], &said["params"]["data"]),
        (&json!("notifications/message"), &json!("debug")),
        "{said}"
    );
    assert_eq!(text(&reply.answer().await.0), "logged");
    let silent = json!({ "name": "log", "arguments": {} });
    let (answer, before) = client.ask(4, "tools/call", silent).await.answer().await;
    assert_eq!((text(&answer), before), ("logged", 0), "MOD-23");
    assert_eq!(gate.programs().len(), 1);
}

/// MOD-20.
#[tokio::test]
async fn mod20_an_abandoned_call_or_task_is_cancelled_by_its_id() {
    let gate = GatewayProcess::with("stateless", "[upstreams.up.tasks]\ngrace = \"100ms\"\n").await;
    let client = StandaloneClient::stateless(&gate);
    let slow = json!({ "name": "slow", "arguments": { "millis": 60_000 } });
    let left = client.start(1, "tools/call", slow.clone()).await;
    until_heard(&client, "tools/call").await;
    let calls = |heard: &[String]| heard.iter().filter(|line| line.starts_with("notifications/cancelled")).count();
    assert_eq!(calls(&heard(&client).await), 0);
    drop(left);
    until_heard(&client, "notifications/cancelled").await;

    let client = client.with_tasks();
    let handle = client.ask(2, "tools/call", slow).await.answer().await.0;
    let id = handle["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {handle}"));
    client.ask(3, "tasks/cancel", json!({ "taskId": id })).await.answer().await;
    let waiting = async {
        while calls(&heard(&StandaloneClient::stateless(&gate)).await) < 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    in_time(waiting).await;
    assert_eq!(gate.programs().len(), 1, "and the process goes on");
}

#[tokio::test]
async fn subscriptions_are_made_with_the_program_told_apart_and_made_again_after_a_crash() {
    let gate = GatewayProcess::with("stateless", "").await;
    let client = StandaloneClient::stateless(&gate);
    let wishes = json!({ "notifications": { "toolsListChanged": true } });
    let mut listener = client.ask(1, "subscriptions/listen", wishes.clone()).await;
    let first = listener.next().await.unwrap();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
    assert_eq!(first["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 1, "{first}");
    let told = client.call(2, "change", json!({})).await;
    assert!(text(&told).starts_with("told "), "{told}");
    let changed = listener.next().await.unwrap();
    assert_eq!(changed["method"], "notifications/tools/list_changed", "{changed}");
    assert_eq!(changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 1, "{changed}");
    let broken = client.call(3, "broken", json!({ "how": "exit", "code": 7 })).await;
    assert_eq!(
        (&fault(&broken)["exitStatus"], &fault(&broken)["executed"]),
        (&json!(7), &json!("unknown")),
        "{broken}"
    );
    let mut again = client.ask(4, "subscriptions/listen", wishes).await;
    assert_eq!(again.next().await.unwrap()["method"], "notifications/subscriptions/acknowledged");
    client.call(5, "change", json!({})).await;
    assert_eq!(again.next().await.unwrap()["method"], "notifications/tools/list_changed");
}

/// A server without sessions, in front of clients that have one.
#[tokio::test]
async fn a_session_client_is_served_by_a_program_that_knows_no_sessions() {
    for keys in ["", "protocol = \"2026-07-28\"\n"] {
        let gate = GatewayProcess::with("stateless", keys).await;
        let client = StandaloneClient::session(&gate).await;
        assert_eq!(text(&client.call(1, "greet", json!({ "name": "Ada" })).await), "Hello, Ada!", "{keys}");
        let mut reply = client.ask(2, "tools/call", json!({ "name": "confirm", "arguments": {} })).await;
        let question = reply.next().await.unwrap();
        assert_eq!(question["method"], "elicitation/create", "{question}");
        let result: Value = json!({ "action": "accept", "content": { "yes": true } });
        client.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })).await;
        assert_eq!(text(&reply.answer().await.0), "confirmed with half way");
    }
}
