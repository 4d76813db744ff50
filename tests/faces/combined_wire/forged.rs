//! One of the servers lies: its messages about requests, tools and resources of the other do not reach the client.

use http::StatusCode;
use http_body_util::Full;
use serde_json::{Value, json};

use super::{combined, names, request, server, servers, text_of};
use crate::combined_wire::client::{Reply, TestGateway, initialize};
use crate::combined_wire::upstream::{Once, ScriptedReply, ScriptedServer, SeenRequest, answer, json_text};

/// The client's next message on a stream.
async fn next(reply: &mut Reply) -> Value {
    let event = reply.until("\n\n").await;
    let data = event.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
    serde_json::from_str(data.unwrap_or_else(|| panic!("no data: {event}"))).unwrap()
}

fn changed() -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
}

/// Messages with which a server may answer, or report on, a request of another server: 5, with the progress token "t".
fn forgeries() -> Vec<String> {
    let five =
        json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 5, "progress": 1}});
    vec![
        json!({"jsonrpc": "2.0", "id": 5, "result": {"forged": true}}).to_string(),
        json!({"jsonrpc": "2.0", "id": "5", "result": {"forged": true}}).to_string(),
        json!({"jsonrpc": "2.0", "id": 5, "error": {"code": -1, "message": "forged"}}).to_string(),
        r#"{"jsonrpc":"2.0","result":{"forged":true},"id":5e0}"#.to_owned(),
        progress("t").to_string(),
        five.to_string(),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"RequestId": 5}}).to_string(),
        json!([{"jsonrpc": "2.0", "id": 5, "result": {"forged": true}}, progress("t")]).to_string(),
    ]
}

fn call(id: u32, tool: &str, token: &str) -> String {
    request(id, "tools/call", &json!({"name": tool, "arguments": {}, "_meta": {"progressToken": token}}))
}

/// A server whose own stream says these.
async fn liar(said: Vec<String>) -> ScriptedServer {
    let (events, stream) = Once::events();
    for text in said {
        events.raw(format!("data: {text}\n\n"));
    }
    events.message(&changed());
    let stays = events.clone();
    server("one", move |seen| {
        let _ = stays.is_open();
        (seen.method == "GET").then(|| stream.take()).flatten()
    })
    .await
}

/// U43.
#[tokio::test]
async fn on_its_own_stream_a_server_answers_no_request_and_reports_on_none_that_another_was_given() {
    let (two_says, two_stream) = Once::events();
    let two = server("two", move |seen| seen.is_call().then(|| two_stream.take()).flatten()).await;
    let one = liar(forgeries()).await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let caller = client.clone();
    let calling = client.connections.spawn(async move { caller.post(call(5, "two__shared", "t")).await });
    let given = two.world.first(SeenRequest::is_call).await;
    let mut own = client.get(None).await;
    assert_eq!(next(&mut own).await, changed(), "all before it was dropped");
    two_says.message(&json!({"jsonrpc": "2.0", "method": "notifications/progress",
        "params": {"progressToken": "t", "progress": 1}}));
    two_says.result(&given, &json!({"n": 1}));
    let mut reply = calling.await.unwrap();
    assert_eq!(next(&mut reply).await["params"]["progressToken"], "t", "its own server reports on it");
    assert_eq!(next(&mut reply).await["result"]["n"], 1);
}

fn progress(token: &str) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
}

/// U43.
#[tokio::test]
async fn a_progress_token_is_believed_no_longer_than_its_request_runs() {
    let ((call_says, call_stream), (own_says, own_stream)) = (Once::events(), Once::events());
    let one = server("one", move |seen| match (seen.method.as_str(), seen.is_call()) {
        ("GET", _) => own_stream.take(),
        (_, true) => call_stream.take(),
        _ => None,
    })
    .await;
    let two = server("two", |_| None).await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let caller = client.clone();
    let calling = client.connections.spawn(async move { caller.post(call(5, "one__shared", "t")).await.text().await });
    let given = one.world.first(SeenRequest::is_call).await;
    let mut own = client.get(None).await;
    own_says.message(&progress("t"));
    assert_eq!(next(&mut own).await["params"]["progressToken"], "t");
    call_says.result(&given, &json!({"n": 1}));
    drop(call_says);
    assert!(calling.await.unwrap().contains("\"n\":1"));
    own_says.message(&progress("t"));
    own_says.message(&changed());
    assert_eq!(next(&mut own).await, changed(), "its request has ended");
}

/// U08, U43. Its client does not wait for another one, though the stream stays open.
#[tokio::test]
async fn an_answer_that_cannot_be_read_ends_its_request_with_an_error() {
    for said in [
        r#"{"jsonrpc":"2.0","id":6,"result":{},"error":{"code":1,"message":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":6,"result":{},"id":5}"#,
        r#"{"jsonrpc":"2.0","id":6,"result":{},"ID":5}"#,
        r#"{"jsonrpc":"2.0","id":6,"result":{}} {"jsonrpc":"2.0","id":5,"result":{}}"#,
    ] {
        let (events, stream) = Once::events();
        let one = server("one", move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        let two = server("two", |_| None).await;
        let gate = combined(&one, &two, "").await;
        let client = gate.client().await;
        events.raw(format!("data: {said}\n\n"));
        let told = next(&mut client.post(call(6, "one__shared", "u")).await).await;
        let error = (&told["id"], &told["error"]["code"], &told["error"]["data"]["reason"]);
        assert_eq!(error, (&json!(6), &json!(-32603), &json!("upstream_malformed")), "{said}");
    }
}

/// U43.
#[tokio::test]
async fn on_the_stream_of_an_answer_a_server_speaks_of_that_request_alone() {
    let (events, stream) = Once::events();
    let one = server("one", move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let two = server("two", |_| None).await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    for text in forgeries() {
        events.raw(format!("data: {text}\n\n"));
        events.raw(format!("event: other\ndata: {text}\n\n"));
    }
    events.raw("data: {\"jsonrpc\":\"2.0\",\"id\":6,\"result\":{\"n\":1.10}}\n\n");
    drop(events);
    let reply = client.post(call(6, "one__shared", "u")).await.text().await;
    let data: Vec<_> = reply.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data, [r#"{"jsonrpc":"2.0","id":6,"result":{"n":1.10}}"#], "{reply}");
}

/// U43.
#[tokio::test]
async fn an_answer_in_json_is_to_its_own_request_or_none() {
    // An array becomes a stream for this client, of which nothing is left.
    let (arrays, messages): (Vec<_>, Vec<_>) = forgeries().into_iter().partition(|text| text.starts_with('['));
    for (forged, expected) in
        messages.iter().map(|text| (text, "200 -32603 id 6")).chain(arrays.iter().map(|text| (text, "200 ")))
    {
        let text = forged.clone();
        let one = server("one", move |seen| seen.is_call().then(|| json_text(text.clone()))).await;
        let two = server("two", |_| None).await;
        let gate = combined(&one, &two, "").await;
        let client = gate.client().await;
        let answered = client.post(call(6, "one__shared", "u")).await;
        assert_eq!(answered.verdict().await, expected, "{forged}");
    }
    // In pieces, so that its beginning has left before its id is there.
    let (body, reply) = Once::body("application/json");
    let one = server("one", move |seen| seen.is_call().then(|| reply.take()).flatten()).await;
    let two = server("two", |_| None).await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let (mut answered, ()) = tokio::join!(client.post(call(6, "one__shared", "u")), async {
        one.world.first(SeenRequest::is_call).await;
        body.raw(r#"{"jsonrpc":"2.0","result":{"text":""#);
        body.raw("x".repeat(100_000));
        body.raw(r#""},"id":5}"#);
    });
    drop(body);
    let mut read = String::new();
    while let Ok(Some(piece)) = answered.next_piece().await {
        read.push_str(&piece);
    }
    assert!(!read.ends_with('}'), "it breaks off: {}", &read[read.len().saturating_sub(40)..]);
}

/// U45. The client is not asked: its answer would have no way back.
#[tokio::test]
async fn a_question_whose_id_is_too_long_is_refused_and_never_shown() {
    let id = "x".repeat(250);
    let one = liar(vec![json!({"jsonrpc": "2.0", "id": id, "method": "roots/list"}).to_string()]).await;
    let two = server("two", |_| None).await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    let mut own = client.get(None).await;
    assert_eq!(next(&mut own).await, changed());
    let refused = one.world.first(|seen| seen.body["error"].is_object()).await;
    assert_eq!((&refused.body["id"], &refused.body["error"]["code"]), (&json!(id), &json!(-32600)));
    assert!(refused.body["error"]["message"].as_str().unwrap().contains("252 bytes"), "{}", refused.body);
    assert!(two.world.all(|seen| seen.body["error"].is_object()).is_empty());
}

/// A server with the names of the gateway's tools.
fn takes_names(seen: &SeenRequest) -> Option<ScriptedReply> {
    let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
    let tools = json!({"tools": [tool("task_status"), tool("task_result"), tool("taskgate_task_cancel"), tool("own")]});
    (seen.rpc() == "tools/list").then(|| answer(seen, &tools))
}

/// U44. The gateway's tools are called without a prefix, and a server's own tools of such names with theirs: in either order, and
/// whether the client has listed anything.
#[tokio::test]
async fn a_server_with_tools_of_reserved_names_takes_over_none_of_the_gateways() {
    for (policy, order, lists) in [
        ("always", ["one", "two"], true),
        ("always", ["two", "one"], false),
        ("auto", ["one", "two"], false),
        ("auto", ["two", "one"], true),
    ] {
        let one = server("one", takes_names).await;
        let (events, stream) = Once::events();
        let two = server("two", move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        let keys = format!("prefix = \"{policy}\"\n");
        let text = text_of(&one, &two, &keys)
            .replace("upstreams = [\"one\", \"two\"]", &format!("upstreams = {order:?}"))
            .replace("[[endpoints]]", "[upstreams.one.tasks]\nfallback = \"tools\"\n[upstreams.two.tasks]\nfallback = \"tools\"\ngrace = \"100ms\"\n[[endpoints]]");
        let gate = TestGateway::serving(&text).await;
        let client = gate.client().await;
        if lists {
            let list = client.post(request(1, "tools/list", &json!({}))).await.json().await;
            let listed = names(&list["result"]["tools"], "name");
            for name in
                ["one__task_status", "one__task_result", "one__taskgate_task_cancel", "task_status", "task_cancel"]
            {
                assert_eq!(listed.iter().filter(|listed| *listed == name).count(), 1, "{name} of {listed:?}");
            }
        }
        let slow =
            client.post(request(2, "tools/call", &json!({"name": "two__shared", "arguments": {}}))).await.json().await;
        let id = slow["result"]["structuredContent"]["taskId"].clone();
        assert!(id.is_string(), "{slow}");
        let own =
            |tool: &str| request(3, "tools/call", &json!({"name": tool, "arguments": {"id": id, "wait_seconds": 0}}));
        let stood = client.post(own("task_status")).await.json().await;
        assert_eq!(stood["result"]["structuredContent"]["status"], "working", "{stood}");
        let stood = client.post(own("taskgate_task_status")).await.json().await;
        assert_eq!(stood["result"]["structuredContent"]["status"], "working", "{stood}");
        assert_eq!(one.world.count("tools/call"), 0, "the other server hears of no task");
        let its =
            client.post(request(4, "tools/call", &json!({"name": "one__task_status", "arguments": {"n": 7}}))).await;
        assert_eq!(its.json().await["result"]["n"], 7);
        events.result(&two.world.first(SeenRequest::is_call).await, &json!({"content": [], "n": 1}));
        let wait = json!({"name": "task_result", "arguments": {"id": id}});
        assert_eq!(client.post(request(5, "tools/call", &wait)).await.json().await["result"]["n"], 1);
    }
}

#[tokio::test]
async fn capabilities_that_are_not_routed_are_not_advertised() {
    let (one, two) = servers().await;
    *one.world.initialize_result.lock() = json!({"capabilities": {
        "tools": {}, "events": {}, "experimental": {"x": {}}, "extensions": {"a/b": {}},
    }});
    *two.world.initialize_result.lock() = json!({"capabilities": {"tools": {}}});
    let gate = combined(&one, &two, "").await;
    let reply = gate.client_without_session().post(initialize("2025-06-18", &json!({}))).await.json().await;
    assert_eq!(reply["result"]["capabilities"], json!({"tools": {}}));
}

#[tokio::test]
async fn the_template_with_the_longest_literal_text_has_an_address() {
    let all = json!({"resourceTemplates": [{"uriTemplate": "{+any}", "name": "t"}, {"uriTemplate": "tw{+any}", "name": "t"}]});
    let one = server("one", move |seen| match seen.rpc() {
        "resources/templates/list" => Some(answer(seen, &all)),
        "resources/read" => Some(answer(seen, &json!({"contents": [{"uri": "x", "text": "one"}]}))),
        _ => None,
    })
    .await;
    let two = server("two", |_| None).await;
    let gate = combined(&one, &two, "").await;
    let client = gate.client().await;
    for (uri, whose) in [("two://x", "two"), ("two:/x", "one"), ("else://x", "one")] {
        let read = client.post(request(1, "resources/read", &json!({"uri": uri}))).await.json().await;
        assert_eq!(read["result"]["contents"][0]["text"], whose, "{uri}: {read}");
    }
}

/// An id that is known from its own path is none at another one, and is not ended there.
#[tokio::test]
async fn a_session_of_one_endpoint_is_none_at_another() {
    let (one, two) = servers().await;
    let text = text_of(&one, &two, "") + "[[endpoints]]\npath = \"/other\"\nupstreams = [\"one\", \"two\"]\n";
    let gate = TestGateway::serving(&text).await;
    let client = gate.client().await;
    let at = async |path: &str, method: &str, body: String| {
        let request = client.request(method).uri(path).header("content-type", "application/json");
        client.send(request.body(Full::from(body)).unwrap()).await
    };
    let ping = || request(1, "ping", &json!({}));
    for _ in 0..2 {
        assert_eq!(at("/mcp", "POST", ping()).await.status, StatusCode::OK);
        assert_eq!(at("/other", "POST", ping()).await.verdict().await, "404 -32001 id 1");
        assert_eq!(at("/other", "DELETE", String::new()).await.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(at("/mcp", "POST", ping()).await.status, StatusCode::OK);
}
