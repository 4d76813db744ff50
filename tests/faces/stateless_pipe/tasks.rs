//! Calls that may become tasks, in front of a server of the same era, with and without tasks of its own.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Client, TestGateway};
use super::peers::{body_of, client, post, server};
use super::upstream::{ScriptedReply, SeenRequest, answer, in_time, json_text};

const TAKES_TASKS: &str = r#"{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;

async fn ask(client: &Client, method: &str, params: &str) -> Value {
    post(client, &body_of(method, TAKES_TASKS, params)).await.json().await["result"].take()
}

/// Calls as a task and polls until it settles.
async fn settled(client: &Client, params: &str) -> Value {
    let handle = ask(client, "tools/call", params).await;
    assert_eq!(handle["resultType"], "task", "{handle}");
    let id = handle["taskId"].as_str().unwrap().to_owned();
    in_time(async {
        loop {
            let task = ask(client, "tasks/get", &format!(r#""taskId":"{id}""#)).await;
            if task["status"] != "working" {
                return task;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
}

const ALWAYS: &str = "[upstreams.up.tasks]\nmode = \"always\"\npoll_interval = \"100ms\"";

/// UPC-14, UPC-21: metadata and headers are the gateway's own, arguments the client's.
#[tokio::test]
async fn upc21_a_task_of_the_gateways_is_a_call_with_metadata_of_its_own() {
    let server = server(|_| None).await;
    let gate = TestGateway::with(server.address, ALWAYS).await;
    let client = client(&gate);
    let task = settled(&client, r#""name":"t","arguments":{"n":1.10,"content":[]}"#).await;
    assert_eq!(task["status"], "completed");
    assert_eq!(task["result"]["n"], json!(1.10));
    let seen = server.world.first(SeenRequest::is_call).await;
    let meta = &seen.body["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "taskgate");
    let capabilities: Value = serde_json::from_str(TAKES_TASKS).unwrap();
    assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], capabilities);
    assert_eq!((&meta["x"], seen.header("mcp-name")), (&json!(1.10), Some("t")));
    assert!(String::from_utf8_lossy(&seen.bytes).contains(r#""arguments":{"n":1.10,"content":[]}"#));
}

/// MOD-10: as from the server itself, though the gateway makes the call.
#[tokio::test]
async fn mod_10_a_client_of_tasks_learns_which_capability_a_tool_needs() {
    let server = server(|seen| {
        let needs = |required: Value| {
            let error = json!({"code": -32021, "message": "m", "data": {"requiredCapabilities": required}});
            let mut refusal = json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string());
            *refusal.status_mut() = http::StatusCode::BAD_REQUEST;
            refusal
        };
        seen.is_call().then(|| needs(seen.body["params"]["arguments"].clone()))
    })
    .await;
    let gate = TestGateway::with(server.address, "").await;
    let client = client(&gate);
    for (needed, verdict) in [
        (r#"{"sampling":{}}"#, "400 -32021 id \"ab\""),
        (r#"{"elicitation":{"url":{}}}"#, "400 -32021 id \"ab\""),
        (r#"{"elicitation":{}}"#, "200 -32603 id \"ab\""),
    ] {
        let call = format!(r#""name":"t","arguments":{needed}"#);
        assert_eq!(
            post(&client, &body_of("tools/call", TAKES_TASKS, &call)).await.verdict().await,
            verdict,
            "{needed}"
        );
    }
}

/// A server with tasks of its own: call, then two polls.
fn with_tasks(seen: &SeenRequest) -> Option<ScriptedReply> {
    let task = |status: &str| {
        json!({"resultType": "complete", "taskId": "up/1", "status": status, "createdAt": "2026-01-01T00:00:00Z",
               "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttlMs": null, "pollIntervalMs": 50})
    };
    match seen.rpc() {
        "tools/call" => {
            let mut handle = task("working");
            handle["resultType"] = json!("task");
            Some(answer(seen, &handle))
        }
        "tasks/get" => {
            let mut settled = task("completed");
            settled["result"] = json!({"resultType": "complete", "content": [{"type": "text", "text": "done"}]});
            Some(answer(seen, &settled))
        }
        _ => None,
    }
}

/// UPC-01, UPC-09, UPC-10, T-67.
#[tokio::test]
async fn upc10_an_upstreams_own_task_is_watched_and_its_id_stays_here() {
    let server = server(with_tasks).await;
    let gate = TestGateway::with(server.address, ALWAYS).await;
    let task = settled(&client(&gate), r#""name":"t""#).await;
    assert_eq!((&task["status"], &task["result"]["content"][0]["text"]), (&json!("completed"), &json!("done")));
    assert_ne!(task["taskId"], "up/1");
    let poll = server.world.first(|seen| seen.rpc() == "tasks/get").await;
    assert_eq!((poll.header("mcp-name"), &poll.body["params"]["taskId"]), (Some("up/1"), &json!("up/1")));
}

/// UPC-01: polled every five minutes, the outcome would be lost at the deadline.
#[tokio::test]
async fn upc_01_an_upstreams_own_task_is_polled_before_the_deadline_of_its_call() {
    let server = server(|seen| match seen.rpc() {
        "tools/call" => {
            let mut handle = answer_working();
            (handle["resultType"], handle["pollIntervalMs"]) = (json!("task"), json!(300_000));
            Some(answer(seen, &handle))
        }
        _ => with_tasks(seen),
    })
    .await;
    let gate = TestGateway::with(server.address, &format!("deadline = \"10s\"\n{ALWAYS}")).await;
    let task = settled(&client(&gate), r#""name":"t""#).await;
    assert_eq!(
        (&task["status"], &task["result"]["content"][0]["text"]),
        (&json!("completed"), &json!("done")),
        "{task}"
    );
}

/// The grace period ends a fast call plainly; the upstream gets the cancel of a slow one (UPC-06).
#[tokio::test]
async fn upc06_a_cancelled_task_is_cancelled_by_its_name() {
    let server = server(|seen| match seen.rpc() {
        "tasks/get" => {
            let mut working = answer_working();
            working["resultType"] = json!("complete");
            Some(answer(seen, &working))
        }
        _ => with_tasks(seen),
    })
    .await;
    let gate = TestGateway::with(server.address, ALWAYS).await;
    let client = client(&gate);
    let handle = ask(&client, "tools/call", r#""name":"t""#).await;
    let id = handle["taskId"].as_str().unwrap().to_owned();
    server.world.first(|seen| seen.rpc() == "tasks/get").await;
    let acked = ask(&client, "tasks/cancel", &format!(r#""taskId":"{id}""#)).await;
    assert_eq!(acked["resultType"], "complete");
    let cancel = server.world.first(|seen| seen.rpc() == "tasks/cancel").await;
    assert_eq!(cancel.body["params"]["taskId"], "up/1");
    assert_eq!(server.world.count("notifications/cancelled"), 0);
}

fn answer_working() -> Value {
    json!({"taskId": "up/1", "status": "working", "createdAt": "x", "lastUpdatedAt": "x", "ttlMs": null, "pollIntervalMs": 50})
}

/// A fast answer within the grace period stays plain.
#[tokio::test]
async fn a_fast_call_stays_plain_within_its_grace() {
    let server = server(|_| None).await;
    // Longer than any answer takes on a busy machine.
    let gate = TestGateway::with(server.address, "[upstreams.up.tasks]\ngrace = \"30s\"").await;
    let plain = ask(&client(&gate), "tools/call", r#""name":"t","arguments":{"content":[]}"#).await;
    assert_eq!(plain["resultType"], "complete", "{plain}");
    let info = &plain["_meta"]["io.modelcontextprotocol/serverInfo"]["name"];
    assert_eq!(info, "scripted");
}
