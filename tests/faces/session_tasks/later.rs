//! Clients of 2026-07-28 that still declare tasks of 2025-11-25 reach the tasks that they made in a session (T-10).

use http::StatusCode;
use http_body_util::Full;
use serde_json::{Value, json};

use super::client::Client;
use super::talk::ManualSetup;

const META: &str = "io.modelcontextprotocol/";

/// Asks without a session; the status, and the answer.
async fn ask(client: &Client, declared: &Value, method: &str, params: &Value) -> (StatusCode, Value) {
    let mut params = params.clone();
    params["_meta"] =
        json!({format!("{META}protocolVersion"): "2026-07-28", format!("{META}clientCapabilities"): declared});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let client = Client { session: None, version: None, ..client.clone() };
    let mut request = client
        .request("POST")
        .header("content-type", "application/json")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", method);
    if let Some(name) = params["taskId"].as_str().or_else(|| params["name"].as_str()) {
        request = request.header("mcp-name", name);
    }
    let reply = client.send(request.body(Full::from(body.to_string())).unwrap()).await;
    (reply.status, reply.json().await)
}

fn old() -> Value {
    json!({"tasks": {"requests": {}, "cancel": {}}})
}

/// T-10, EXT-63, T-65: in the form that it had in the session, with the members of each result of the version.
#[tokio::test]
async fn ext_63_a_task_made_in_a_session_is_read_and_cancelled_by_a_client_of_the_next_version() {
    let (_stage, person, task) = ManualSetup::started().await;
    let named = json!({"taskId": task});
    let (status, read) = ask(&person.client, &old(), "tasks/get", &named).await;
    let mut shown = read["result"].clone();
    assert_eq!(status, StatusCode::OK, "{read}");
    let members = shown.as_object_mut().unwrap();
    assert_eq!(members.remove("resultType"), Some(json!("complete")));
    assert!(members.remove("_meta").unwrap().get(format!("{META}serverInfo")).is_some());
    assert_eq!(shown, person.task(&task).await, "the same as in a session: {shown}");
    assert!(shown["ttl"].is_u64() && shown.get("ttlMs").is_none());
    let (_, cancelled) = ask(&person.client, &old(), "tasks/cancel", &named).await;
    assert_eq!((&cancelled["result"]["status"], &cancelled["result"]["taskId"]), (&json!("cancelled"), &task));
    assert_eq!(person.task(&task).await["status"], "cancelled");
    let (status, again) = ask(&person.client, &old(), "tasks/cancel", &named).await;
    assert_eq!((status, &again["error"]["code"]), (StatusCode::OK, &json!(-32602)), "as in a session");
}

/// EXT-62, EXT-63, T-10: all else is refused for lack of the extension, and the refusal is the same for every id.
#[tokio::test]
async fn ext_62_a_client_that_declares_only_old_tasks_reaches_no_task() {
    let stage = ManualSetup::with("[upstreams.up.tasks]\nmode = \"always\"").await;
    let person = stage.person().await;
    let made_in_session = person.start().await["taskId"].clone();
    let extension = json!({"extensions": {format!("{META}tasks"): {}}});
    let call = json!({"name": "work", "arguments": {}});
    let (_, handle) = ask(&person.client, &extension, "tools/call", &call).await;
    let made_without = handle["result"]["taskId"].clone();
    assert!(made_without.is_string(), "{handle}");
    let unknown = json!("0123456789abcdef0123456789abcdef");
    for (declared, method, task, code) in [
        (old(), "tasks/get", &made_without, -32021),
        (old(), "tasks/cancel", &made_without, -32021),
        (old(), "tasks/get", &unknown, -32021),
        (old(), "tasks/get", &json!(7), -32021),
        (old(), "tasks/update", &made_in_session, -32021),
        (old(), "tasks/result", &made_in_session, -32601),
        (old(), "tasks/list", &made_in_session, -32601),
        (json!({"tasks": false}), "tasks/get", &made_in_session, -32021),
        (json!({}), "tasks/get", &made_in_session, -32021),
    ] {
        let (_, answer) = ask(&person.client, &declared, method, &json!({"taskId": task})).await;
        assert_eq!(answer["error"]["code"], code, "{declared} {method} {task}: {answer}");
    }
    let (_, still) = ask(&person.client, &extension, "tasks/get", &json!({"taskId": made_without})).await;
    assert_eq!(still["result"]["status"], "working", "nothing was cancelled: {still}");
    let declared = old();
    let calling = ask(&person.client, &declared, "tools/call", &call);
    let answering = async {
        let _held = (stage.call().await, stage.call().await);
        stage.call().await.answer(&json!({"content": [], "n": 1}));
    };
    let ((_, plain), ()) = tokio::join!(calling, answering);
    assert_eq!(plain["result"]["n"], 1, "its calls become no tasks: {plain}");
}
