//! Lists of tasks, and tasks of the other flavour.

use http_body_util::Full;
use serde_json::{Value, json};

use super::client::Client;
use super::talk::ManualSetup;

async fn ids(stage: &ManualSetup, cursor: Option<&Value>) -> (Vec<Value>, Option<Value>) {
    let person = stage.person().await;
    let params = cursor.map_or_else(|| json!({}), |cursor| json!({"cursor": cursor}));
    let page = person.answered("tasks/list", &params).await["result"].clone();
    assert_eq!(page.get("_meta"), None, "L25-30");
    let ids = page["tasks"].as_array().unwrap().iter().map(|task| task["taskId"].clone()).collect();
    (ids, page.get("nextCursor").cloned())
}

/// L25-33 to L25-36, L25-51.
#[tokio::test]
async fn l25_33_34_35_a_list_has_each_task_once_over_its_pages() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let mut made = Vec::new();
    for _ in 0..120 {
        made.push(person.start().await["taskId"].clone());
    }
    let (mut listed, mut cursor, mut pages) = (Vec::new(), None, 0);
    loop {
        let (ids, next) = ids(&stage, cursor.as_ref()).await;
        assert!(ids.len() <= 50);
        listed.extend(ids);
        pages += 1;
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(pages, 3);
    listed.sort_by_key(Value::to_string);
    made.sort_by_key(Value::to_string);
    assert_eq!(listed, made);
}

/// L25-36, B206.
#[tokio::test]
async fn l25_36_a_cursor_that_was_never_given_is_refused() {
    let stage = ManualSetup::new().await;
    let person = stage.person().await;
    let session = person.client.session.clone().unwrap();
    for cursor in [json!(""), json!("next"), json!(7), json!(session)] {
        let answer = person.answered("tasks/list", &json!({"cursor": cursor})).await;
        assert_eq!(answer["error"]["code"], -32602, "{cursor}");
    }
    for first in [json!({}), json!({"cursor": null})] {
        assert_eq!(person.answered("tasks/list", &first).await["result"], json!({"tasks": []}), "{first}");
    }
}

fn modern(method: &str, params: &Value) -> Value {
    let mut params = params.clone();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        },
    });
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

async fn stateless(client: &Client, method: &str, name: &str, params: &Value) -> Value {
    let client = Client { session: None, version: None, ..client.clone() };
    let request = client
        .request("POST")
        .header("content-type", "application/json")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", method)
        .header("mcp-name", name);
    let reply = client.send(request.body(Full::from(modern(method, params).to_string())).unwrap()).await;
    reply.json().await["result"].clone()
}

/// T-01, T-64 to T-66: one record, each flavour's own words.
#[tokio::test]
async fn t_66_a_task_of_the_extension_is_read_and_listed_in_this_flavour() {
    let stage = ManualSetup::with("[upstreams.up.tasks]\nmode = \"always\"").await;
    let person = stage.person().await;
    let task = stateless(&person.client, "tools/call", "work", &json!({"name": "work"})).await["taskId"].clone();
    stage.call().await.answer(&json!({"content": [{"type": "text", "text": "no"}], "isError": true}));
    let read = person.until(&task, "failed").await;
    assert!(read.get("ttlMs").is_none() && read.get("resultType").is_none() && read["ttl"].is_u64(), "{read}");
    let polled = stateless(&person.client, "tasks/get", task.as_str().unwrap(), &json!({"taskId": task})).await;
    assert_eq!(polled["status"], "completed", "T-01");
    let outcome = person.answered("tasks/result", &json!({"taskId": task})).await["result"].clone();
    assert_eq!(outcome["_meta"], json!({super::talk::RELATED: {"taskId": task}}));
    assert_eq!(outcome.get("resultType"), None);
    assert_eq!(ids(&stage, None).await.0, [task], "L25-35");
}

/// L25-33: a call that is held between two rounds of questions is not a client's task yet.
#[tokio::test]
async fn l25_33_a_held_call_of_the_other_flavour_is_not_listed() {
    let stage = ManualSetup::with("[upstreams.up.tasks]\nearly_input = \"ask-first\"\ngrace = \"30s\"").await;
    let person = stage.person().await;
    let task = person.start().await["taskId"].clone();
    let _running = stage.call().await;
    let other = person.client.clone();
    let calling = person.client.connections.spawn(async move {
        let params = json!({"name": "work", "arguments": {}});
        stateless(&other, "tools/call", "work", &params).await
    });
    let held = stage.call().await;
    held.ask(&json!(0), "elicitation/create", &json!({"message": "Who?", "requestedSchema": {"type": "object"}}));
    let asked = super::in_time(calling).await.unwrap();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    assert_eq!(ids(&stage, None).await.0, [task]);
}
