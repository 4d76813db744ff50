//! Calls as tasks that their client gave a name.

use http_body_util::Full;
use serde_json::{Value, json};

use super::talk::{ManualSetup, SessionUser};

/// Calls `work` as a task under a name, by the header; the whole answer.
async fn call(person: &SessionUser, key: &str, arguments: &Value) -> Value {
    let params = json!({"name": "work", "arguments": arguments, "task": {}});
    let body = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}).to_string();
    let request = person.client.request("POST").header("content-type", "application/json");
    let request = request.header("idempotency-key", key).body(Full::new(body.into())).unwrap();
    person.client.send(request).await.json().await
}

/// B135. Another session of the same principal finds it too, and polls it.
#[tokio::test]
async fn b135_a_repeated_call_has_the_handle_of_the_first_and_no_other_has_its_name() {
    let stage = ManualSetup::new().await;
    let (one, two) = (stage.person().await, stage.person().await);
    let first = call(&one, "k", &json!({"n": 1})).await["result"]["task"]["taskId"].take();
    let arrived = stage.call().await;
    let fields: Vec<_> = arrived.seen.headers.keys().map(http::HeaderName::as_str).collect();
    assert!(!fields.contains(&"idempotency-key"), "{fields:?}");
    let second = call(&two, "k", &json!({"n": 1})).await["result"]["task"]["taskId"].take();
    assert_eq!(first, second);
    let refused = call(&two, "k", &json!({"n": 2})).await;
    assert_eq!(refused["error"]["code"], -32602);
    assert_eq!(refused["error"]["data"]["reason"], "idempotency_mismatch");
    let refused = call(&two, "k k", &json!({"n": 2})).await;
    assert_eq!(refused["error"]["code"], -32602);
    arrived.answer(&json!({"content": []}));
    two.until(&second, "completed").await;
    let settled = call(&one, "k", &json!({"n": 1})).await;
    assert_eq!(
        (&settled["result"]["task"]["taskId"], &settled["result"]["task"]["status"]),
        (&first, &json!("completed"))
    );
    let calls = stage.server.world.count("tools/call");
    assert_eq!(calls, 1);
}
