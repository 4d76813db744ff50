//! Arrays of messages: in sessions of 2025-03-26, and nowhere else (LEG-12).

use http::StatusCode;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::client::{TestGateway, call, initialize};
use super::upstream::{Once, ScriptedServer, SeenRequest, in_time, json_text};

const NOTE: &str = r#"{"jsonrpc":"2.0","method":"notifications/n"}"#;
const ANSWER: &str = r#"{"jsonrpc":"2.0","id":"q","result":{}}"#;

fn batch(items: &[&str]) -> String {
    format!(" [{}]", items.join(" , "))
}

/// Messages by id.
fn by_id(mut messages: Vec<Value>) -> Vec<Value> {
    messages.sort_by_key(|message| message["id"].to_string());
    messages
}

#[tokio::test]
async fn each_message_of_an_array_is_forwarded_alone_and_one_array_has_all_responses() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let mut client = gate.client_of("2025-03-26").await;
    let (one, two) = (call(1), call(2));
    let items = [NOTE, &one, r#"{"jsonrpc":"2.0","id":3,"method":7}"#, &two, ANSWER];
    for (times, accept) in
        ["application/json, text/event-stream", "application/json", "text/event-stream"].iter().enumerate()
    {
        client.accept = accept;
        let reply = client.post(batch(&items)).await;
        let kind = reply.header("content-type").unwrap().to_owned();
        assert_eq!((reply.status, kind == "application/json"), (StatusCode::OK, accept.contains("json")), "{accept}");
        let text = reply.text().await;
        let answers = match serde_json::from_str(&text) {
            Ok(answers) => answers,
            // For a client that accepts nothing else.
            Err(_) => {
                let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
                data.map(|data| serde_json::from_str(data).unwrap()).collect()
            }
        };
        let answers = by_id(answers);
        assert_eq!(answers.len(), 3, "{text}");
        assert_eq!((&answers[0]["result"], &answers[1]["result"]), (&json!({"n": 1}), &json!({"n": 2})));
        assert_eq!((&answers[2]["id"], &answers[2]["error"]["code"]), (&json!(3), &json!(-32600)));
        for item in [NOTE, &one, &two, ANSWER] {
            assert_eq!(server.world.all(|seen| seen.bytes == item.as_bytes()).len(), times + 1, "{item}");
        }
    }
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

/// F34: the client can read the responses to its other calls, which may be of other servers.
#[tokio::test]
async fn a_response_that_is_no_json_fails_alone() {
    let fine = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
    for body in [&fine[..fine.len() - 1], &format!("{fine}]"), &format!("\u{feff}{fine}"), &format!("{fine},{fine}")] {
        let body = body.to_owned();
        let server = ScriptedServer::start(move |seen| (seen.body["id"] == 1).then(|| json_text(body.clone()))).await;
        let gate = TestGateway::before(&server).await;
        let client = gate.client_of("2025-03-26").await;
        let Value::Array(answers) = client.post(batch(&[&call(1), &call(2)])).await.json().await else {
            panic!("no array");
        };
        let answers = by_id(answers);
        assert_eq!((answers.len(), &answers[0]["error"]["code"]), (2, &json!(-32603)), "{answers:?}");
        assert_eq!(answers[1]["result"], json!({"n": 2}));
    }
}

/// Of a call's stream the array has the response alone.
#[tokio::test]
async fn responses_in_an_array_are_written_as_they_come() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| (seen.body["id"] == 1).then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client_of("2025-03-26").await;
    events.raw("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/n\"}\n\ndata: {\"jsonrpc\":\"2.0\",");
    let mut reply = client.post(batch(&[&call(1), &call(2)])).await;
    let second = reply.until("}}").await;
    assert!(second.starts_with('[') && second.contains("\"id\":2"), "{second}");
    events.raw("\"id\":1,\"result\":{}}\n\n");
    drop(events);
    assert_eq!(reply.text().await, ",{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}]");
}

/// A client that gets no stream cannot see a question: its server is refused at once, and does not wait.
#[tokio::test]
async fn a_question_of_a_call_in_an_array_is_refused() {
    let (events, stream) = Once::events();
    let question = json!({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {"messages": []}});
    events.raw(format!("data: {question}\n\n"));
    let server = ScriptedServer::start(move |seen| SeenRequest::is_call(seen).then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let mut client = gate.client_without_session();
    let opened = client.post(initialize("2025-03-26", &json!({"sampling": {}}))).await;
    client.session = opened.header("mcp-session-id").map(str::to_owned);
    let posted = TaskTracker::new().spawn(async move { client.post(batch(&[&call(1)])).await.json().await });
    let refused = server.world.first(|seen| seen.body["id"] == "q").await;
    assert_eq!(refused.body["error"]["code"], -32601, "{}", refused.body);
    events.raw("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n");
    assert_eq!(in_time(posted).await.unwrap().as_array().map(Vec::len), Some(1));
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
    let initialize = initialize("2025-03-26", &json!({}));
    assert_eq!(new.post(batch(&[&call(1)])).await.verdict().await, "400 -32600");
    assert_eq!(old.post("[]").await.verdict().await, "400 -32600");
    assert_eq!(old.post(batch(&[&call(1), modern])).await.verdict().await, "400 -32600");
    assert_eq!(old.post(format!("[{}]", vec![NOTE; 101].join(","))).await.verdict().await, "400 -32600");
    let reply = old.post(batch(&[&initialize])).await;
    assert_eq!(reply.json().await[0]["error"]["code"], -32600, "initialize stands alone");
    assert_eq!(server.world.all(|_| true).len(), seen, "nothing was passed on");
}
