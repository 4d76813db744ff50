//! Messages on an open stream.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::client::{ADA, Gate};
use super::upstream::{BodySender, ScriptedReply, ScriptedServer, ScriptedState, SeenRequest, answer, polite};
use crate::stateless_pipe::peers;

/// `ask` asks the client, `steps` reports progress, `held` never ends; all others answer with their arguments.
async fn act(seen: SeenRequest, world: Arc<ScriptedState>) -> Option<ScriptedReply> {
    let tools = ["ask", "steps", "held", "quick"].map(|name| json!({ "name": name, "inputSchema": {} }));
    let tools = json!({ "tools": tools });
    match (seen.rpc(), seen.body["params"]["name"].as_str()) {
        ("tools/list", _) => Some(answer(&seen, &tools)),
        ("tools/call", Some("held")) => std::future::pending().await,
        ("tools/call", Some("steps")) => {
            let (events, reply) = BodySender::open();
            let token = &seen.body["params"]["_meta"]["progressToken"];
            for progress in 1..=3 {
                let params = json!({ "progressToken": token, "progress": progress });
                events.message(&json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }));
            }
            events.result(&seen, &json!({ "content": [] }));
            Some(reply)
        }
        ("tools/call", Some("ask")) => {
            let (events, reply) = BodySender::open();
            let question = seen.body["params"]["arguments"].clone();
            events.message(&json!({
                "jsonrpc": "2.0", "id": "q", "method": question["method"], "params": question["params"],
            }));
            TaskTracker::new().spawn(async move {
                let told = world.first(|other| other.body["id"] == "q" && other.body.get("result").is_some()).await;
                events.result(&seen, &json!({ "content": [], "structuredContent": told.body["result"] }));
            });
            Some(reply)
        }
        _ => Some(polite(&seen, &world)),
    }
}

async fn gate() -> Gate {
    Gate::before(ScriptedServer::slow(act).await).await
}

#[tokio::test]
async fn answers_come_as_they_are_ready_and_not_in_the_order_of_the_questions() {
    let gate = gate().await;
    let mut stream = gate.client("2024-11-05").await;
    stream.call(1, "held", json!({})).await;
    for id in 2..=50 {
        stream.call(id, "quick", json!({ "n": id })).await;
    }
    let mut found = Vec::new();
    for _ in 2..=50 {
        let answer = stream.message().await;
        assert_eq!(answer["id"], answer["result"]["n"], "{answer}");
        found.push(answer["id"].as_u64().unwrap());
    }
    found.sort_unstable();
    assert_eq!(found, (2..=50).collect::<Vec<_>>());
    assert!(stream.is_silent().await, "the one that is held has no answer");
}

/// Bytes that are not ours leave as they came.
#[tokio::test]
async fn a_payload_is_the_same_on_both_sides() {
    let server = ScriptedServer::start(|seen| {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{{"b":1.10,"a":123456789012345678901234}}}}"#,
            seen.body["id"]
        );
        seen.is_call().then(|| super::upstream::json_text(text))
    });
    let gate = Gate::before(server.await).await;
    let mut stream = gate.client("2024-11-05").await;
    let call =
        r#"{"method":"tools/call" ,"params":{"name":"t","arguments":{"z":1.10,"y":[ ]}},"id":5,"jsonrpc":"2.0"}"#;
    assert_eq!(stream.post(call).await.0, 202);
    let expected = r#"{"jsonrpc":"2.0","id":5,"result":{"b":1.10,"a":123456789012345678901234}}"#;
    assert_eq!(stream.text().await.as_deref(), Some(expected));
    assert_eq!(gate.server.world.first(SeenRequest::is_call).await.bytes, call);
}

#[tokio::test]
async fn progress_comes_before_the_result_and_a_question_is_answered_by_a_post() {
    let gate = gate().await;
    let mut stream = gate.client("2024-11-05").await;
    stream.ask(1, "tools/call", json!({ "name": "steps", "arguments": {}, "_meta": { "progressToken": "p" } })).await;
    let (answer, before) = stream.response().await;
    let steps: Vec<_> = before.iter().map(|step| step["params"].clone()).collect();
    assert_eq!(steps, [1, 2, 3].map(|n| json!({ "progressToken": "p", "progress": n })), "{answer}");
    for (id, method) in [(2, "sampling/createMessage"), (3, "roots/list"), (4, "elicitation/create")] {
        let gate = self::gate().await;
        let mut stream = gate.client(if id == 4 { "2025-06-18" } else { "2024-11-05" }).await;
        let params = json!({ "message": "Who?", "messages": [], "maxTokens": 1, "requestedSchema": {} });
        stream.call(id, "ask", json!({ "method": method, "params": params })).await;
        let question = stream.message().await;
        assert_eq!((&question["method"], &question["id"]), (&json!(method), &json!("q")), "{question}");
        let result = json!({ "action": "accept", "roots": [], "said": id });
        stream.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": result })).await;
        let answer = stream.message().await;
        assert_eq!((&answer["id"], &answer["result"]["structuredContent"]), (&json!(id), &result), "{answer}");
    }
}

/// LEG-14.
#[tokio::test]
async fn a_cancelled_call_has_no_answer_and_its_server_is_told() {
    let gate = gate().await;
    let mut stream = gate.client("2024-11-05").await;
    stream.call(7, "held", json!({})).await;
    gate.server.world.first(SeenRequest::is_call).await;
    stream.note("notifications/cancelled", json!({ "requestId": 7, "reason": "enough" })).await;
    let told = gate.server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
    assert_eq!(told.body["params"]["requestId"], 7);
    stream.call(8, "quick", json!({ "n": 8 })).await;
    assert_eq!(stream.message().await["id"], 8);
}

/// LEG-12.
#[tokio::test]
async fn an_array_is_taken_in_2025_03_26_and_refused_in_all_others() {
    let gate = gate().await;
    let call = |id: u32| json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "quick", "arguments": { "n": id } } });
    let array = json!([call(1), call(2)]).to_string();
    for version in ["2024-11-05", "2025-06-18", "2025-11-25"] {
        let mut stream = gate.client(version).await;
        assert_eq!(stream.post(array.clone()).await.0, 202);
        for id in [1, 2] {
            let refused = stream.message().await;
            assert_eq!((&refused["error"]["code"], &refused["id"]), (&json!(-32600), &json!(id)), "{version}");
        }
    }
    let mut stream = gate.client("2025-03-26").await;
    assert_eq!(stream.post(array).await.0, 202);
    let mut ids = Vec::new();
    while ids.len() < 2 {
        let answer = stream.message().await;
        let answers = answer.as_array().cloned().unwrap_or_else(|| vec![answer]);
        ids.extend(answers.iter().map(|answer| answer["id"].clone()));
    }
    ids.sort_by_key(Value::as_u64);
    assert_eq!(ids, [1, 2]);
}

/// 2025-11-25 has tasks over any transport; a stream that ends takes none with it.
#[tokio::test]
async fn a_task_outlives_the_stream_that_it_was_made_on() {
    let (let_go, mut held) = tokio::sync::mpsc::channel::<()>(1);
    let let_go = Arc::new(parking_lot::Mutex::new(Some(let_go)));
    let server = {
        let let_go = Arc::clone(&let_go);
        ScriptedServer::slow(move |seen: SeenRequest, world| {
            let waiting = seen.is_call().then(|| let_go.lock().clone()).flatten();
            async move {
                if let Some(waiting) = waiting {
                    waiting.closed().await;
                }
                Some(polite(&seen, &world))
            }
        })
    };
    let gate = Gate::before(server.await).await;
    let mut stream = gate.client("2025-11-25").await;
    stream.ask(1, "tools/call", json!({ "name": "t", "arguments": { "content": [] }, "task": {} })).await;
    let handle = stream.message().await;
    let id = handle["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {handle}")).to_owned();
    gate.server.world.first(SeenRequest::is_call).await;
    drop(stream);
    let mut stream = gate.stream(ADA).await;
    stream.initialize("2025-11-25").await;
    stream.ask(1, "tasks/get", json!({ "taskId": id })).await;
    let (state, _) = stream.response().await;
    assert_eq!(state["result"]["status"], "working", "{state}");
    stream.ask(2, "tasks/result", json!({ "taskId": id })).await;
    held.close();
    let (result, _) = stream.response().await;
    assert_eq!((&result["id"], &result["result"]["content"]), (&json!(2), &json!([])), "{result}");
    assert_eq!(gate.server.world.count("notifications/cancelled"), 0);
}

/// UPC-15, UPC-27: the client's messages have no headers that could be forwarded.
#[tokio::test]
async fn upc_15_a_server_of_2026_07_28_gets_the_headers_that_repeat_a_message_of_a_stream() {
    let server = peers::server(|seen| {
        let is_asked = !matches!(seen.rpc(), "server/discover" | "tools/list" | "initialize");
        is_asked.then(|| answer(seen, &json!({ "resultType": "complete", "content": [] })))
    });
    let gate = Gate::open(server.await, "").await;
    let mut stream = gate.stream(ADA).await;
    for (method, params, name, region) in [
        ("server/discover", "", None, None),
        ("tools/list", "", None, None),
        ("tools/call", r#""name":"t","arguments":{}"#, Some("t"), None),
        ("tools/call", r#""name":"region","arguments":{"r":"eu"}"#, Some("region"), Some("eu")),
        ("prompts/get", r#""name":"é""#, Some("=?base64?w6k=?="), None),
        ("resources/read", r#""uri":"file:///a""#, Some("file:///a"), None),
        ("completion/complete", "", None, None),
    ] {
        assert_eq!(stream.post(peers::body(method, params)).await.0, 202, "{method}");
        let (answer, _) = stream.response().await;
        assert!(answer["result"].is_object(), "{method}: {answer}");
        // The gateway's own requests have other ids.
        let seen = gate.server.world.all(|seen| seen.rpc() == method && seen.body["id"] == "ab").pop().unwrap();
        let headers =
            ["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-param-region"].map(|key| seen.header(key));
        assert_eq!(headers, [Some(peers::VERSION), Some(method), name, region], "{params}");
    }
}

/// GW-05: until 2025-06-18 a sampling result has one content, no array.
#[tokio::test]
async fn a_server_of_2025_06_18_gets_the_only_content_of_a_sampling_result() {
    let text = |text: &str| json!({ "type": "text", "text": text });
    for (contents, member, heard) in [
        (json!([text("a")]), "/result/content", text("a")),
        (json!([text("a"), text("b")]), "/error/code", json!(-32603)),
    ] {
        let gate = gate().await;
        *gate.server.world.initialize_result.lock() = json!({ "protocolVersion": "2025-06-18" });
        let mut stream = gate.stream(ADA).await;
        let asking = r#""name":"ask","arguments":{"method":"sampling/createMessage","params":{}}"#;
        let ask = |more: &str| peers::body_of("tools/call", r#"{"sampling":{}}"#, &format!("{asking}{more}"));
        assert_eq!(stream.post(ask("")).await.0, 202);
        let (asked, _) = stream.response().await;
        let key = asked["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap();
        let said = json!({ key: { "role": "assistant", "model": "m", "content": contents } });
        let state = &asked["result"]["requestState"];
        assert_eq!(stream.post(ask(&format!(r#","inputResponses":{said},"requestState":{state}"#))).await.0, 202);
        let told = gate.server.world.first(|seen| seen.body["id"] == "q").await;
        assert_eq!(told.body.pointer(member), Some(&heard), "{}", told.body);
    }
}
