//! Arrays of messages: in sessions of 2025-03-26, and nowhere else (LEG-12).

use http::StatusCode;
use serde_json::{Value, json};

use super::client::{TestGateway, call};
use super::upstream::{Once, ScriptedServer};

const NOTE: &str = r#"{"jsonrpc":"2.0","method":"notifications/n"}"#;
const ANSWER: &str = r#"{"jsonrpc":"2.0","id":"q","result":{}}"#;

fn batch(items: &[&str]) -> String {
    format!(" [{}]", items.join(" , "))
}

/// The messages in the events of a stream, by id.
fn messages(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut messages: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    messages.sort_by_key(|message| message["id"].to_string());
    messages
}

#[tokio::test]
async fn the_messages_of_an_array_go_their_own_ways_and_are_answered_together() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let mut client = gate.client_of("2025-03-26").await;
    let (one, two) = (call(1), call(2));
    let items = [NOTE, &one, r#"{"jsonrpc":"2.0","id":3,"method":7}"#, &two, ANSWER];
    let reply = client.post(batch(&items)).await;
    assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, Some("text/event-stream")));
    let answers = messages(&reply.text().await);
    assert_eq!(answers[0]["result"], json!({"n": 1}));
    assert_eq!(answers[1]["result"], json!({"n": 2}));
    assert_eq!((&answers[2]["id"], &answers[2]["error"]["code"]), (&json!(3), &json!(-32600)));
    for item in [NOTE, &one, &two, ANSWER] {
        assert_eq!(server.world.all(|seen| seen.bytes == item.as_bytes()).len(), 1, "{item}");
    }
    client.accept = "application/json";
    let answers = client.post(batch(&items)).await.json().await;
    assert_eq!(answers.as_array().map(Vec::len), Some(3), "{answers}");
}

/// GW-46.
#[tokio::test]
async fn an_idempotency_key_of_one_call_in_an_array_leaves_the_other_calls_as_they_came() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let mut client = gate.client_of("2025-03-26").await;
    client.accept = "application/json";
    let mut keyed: Value = serde_json::from_str(&call(1)).unwrap();
    keyed["params"]["_meta"]["io.taskgate/idempotency-key"] = json!("key");
    let (keyed, plain) = (keyed.to_string(), call(2));
    client.post(batch(&[&keyed, &plain])).await.text().await;
    assert_eq!(server.world.all(|seen| seen.bytes == plain.as_bytes()).len(), 1);
    assert_eq!(server.world.all(|seen| seen.bytes == keyed.as_bytes()).len(), 0, "its call is the gateway's");
}

#[tokio::test]
async fn an_array_that_asks_nothing_is_accepted() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client_of("2025-03-26").await;
    let reply = client.post(batch(&[NOTE, ANSWER])).await;
    assert_eq!((reply.status, reply.text().await), (StatusCode::ACCEPTED, String::new()));
}

#[tokio::test]
async fn streams_in_an_array_stand_event_by_event() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| (seen.body["id"] == 1).then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client_of("2025-03-26").await;
    events.raw("data: {\"jsonrpc\":\"2.0\",");
    let mut reply = client.post(batch(&[&call(1), &call(2)])).await;
    let first = reply.until("\n\n").await;
    assert_eq!(messages(&first)[0]["id"], 2, "half an event is waited for, not everything behind it");
    events.raw("\"id\":1,\"result\":{}}\n\n");
    drop(events);
    assert_eq!(reply.text().await, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n");
}

/// B90, LEG-12.
#[tokio::test]
async fn arrays_are_refused_where_there_are_none() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let old = gate.client_of("2025-03-26").await;
    let new = gate.client().await;
    let seen = server.world.all(|_| true).len();
    let modern = r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
    let initialize = super::client::initialize("2025-03-26", &json!({}));
    assert_eq!(new.post(batch(&[&call(1)])).await.verdict().await, "400 -32600");
    assert_eq!(old.post("[]").await.verdict().await, "400 -32600");
    assert_eq!(old.post(batch(&[&call(1), modern])).await.verdict().await, "400 -32600");
    assert_eq!(old.post(format!("[{}]", vec![NOTE; 101].join(","))).await.verdict().await, "400 -32600");
    let reply = old.post(batch(&[&initialize])).await;
    assert_eq!(reply.json().await[0]["error"]["code"], -32600, "initialize stands alone");
    assert_eq!(server.world.all(|_| true).len(), seen, "nothing was passed on");
}
