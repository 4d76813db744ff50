//! Requests, the messages before their answers, and their cancels.

use std::sync::Arc;

use serde_json::{Value, json};

use super::client::{TestGateway, call};
use super::server::{Stream, ask, open, refused, request, stateless};
use super::upstream::{BodySender, Once, answer, in_time};

const META: &str = "io.modelcontextprotocol/";

/// UPC-15, UPC-21, EXT-64.
#[tokio::test]
async fn ext_64_the_server_is_told_of_the_client_with_each_request_and_of_no_session() {
    let server = stateless(|_| None).await;
    let gate = TestGateway::before(&server).await;
    let declared = json!({
        "roots": {"listChanged": true}, "sampling": {}, "extensions": {"io.modelcontextprotocol/tasks": {}, "a/b": {}},
    });
    let client = open(&gate, "2025-06-18", &declared).await;
    let params =
        json!({"name": "t", "arguments": {"n": 1}, "task": {"ttl": 1}, "_meta": {"progressToken": "own", "k": 1}});
    let answered = ask(&client, "tools/call", &params).await;
    assert_eq!(answered, json!({"jsonrpc": "2.0", "id": 9, "result": {"n": 1}}), "a plain result, and no task");
    let seen = server.world.first(|seen| seen.is_call()).await;
    assert_eq!(seen.header("mcp-session-id"), None);
    assert_eq!(
        (seen.header("mcp-protocol-version"), seen.header("mcp-method")),
        (Some("2026-07-28"), Some("tools/call"))
    );
    assert_eq!(seen.header("mcp-name"), Some("t"));
    let params = &seen.body["params"];
    assert!(params.get("task").is_none());
    assert_ne!(params["_meta"]["progressToken"], "own");
    assert_eq!(params["_meta"]["k"], 1);
    assert_eq!(params["_meta"][format!("{META}protocolVersion")], "2026-07-28");
    let capabilities = &params["_meta"][format!("{META}clientCapabilities")];
    let own = json!({"a/b": {}, "io.modelcontextprotocol/tasks": {}});
    assert_eq!(capabilities, &json!({"roots": {}, "sampling": {}, "extensions": own}));
}

/// LEG-17, T-77.
#[tokio::test]
async fn leg_17_t_77_results_lose_members_that_older_versions_lack() {
    let server = stateless(|seen| {
        let meta = json!({"io.modelcontextprotocol/serverInfo": {"name": "s"}});
        let result = match seen.rpc() {
            "tools/call" => json!({"resultType": "complete", "content": [], "structuredContent": [1], "_meta": meta}),
            "tools/list" => json!({
                "resultType": "complete", "ttlMs": 5, "cacheScope": "public", "nextCursor": "c",
                "tools": [{"name": "t", "inputSchema": {"type": "object"}, "outputSchema": {"type": "array"}}],
            }),
            "resources/read" => json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "contents": []}),
            _ => return None,
        };
        Some(answer(seen, &result))
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-06-18", &json!({})).await;
    for (method, params, result) in [
        ("tools/call", json!({"name": "t"}), json!({"content": []})),
        (
            "tools/list",
            json!({}),
            json!({"nextCursor": "c", "tools": [{"name": "t", "inputSchema": {"type": "object"}}]}),
        ),
        ("resources/read", json!({"uri": "file:///a"}), json!({"contents": []})),
    ] {
        assert_eq!(ask(&client, method, &params).await["result"], result, "{method}");
    }
}

/// The gateway is the HTTP client of its server.
#[tokio::test]
async fn u108_a_tool_with_an_invalid_header_annotation_is_left_out_of_the_list() {
    let tool = |name: &str, header: &str| {
        let schema = json!({"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": header}}});
        json!({"name": name, "inputSchema": schema})
    };
    let tools = json!([{"name": "plain", "inputSchema": {"type": "object"}}, tool("bad", "a b"), tool("good", "A")]);
    let result = json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": tools});
    let server = stateless(move |seen| (seen.rpc() == "tools/list").then(|| answer(seen, &result))).await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-06-18", &json!({})).await;
    let list = ask(&client, "tools/list", &json!({})).await;
    assert_eq!(list["result"]["tools"], json!([tools[0], tools[2]]), "{list}");
    let called = ask(&client, "tools/call", &json!({"name": "bad", "arguments": {"n": 1}})).await;
    assert_eq!(called["result"]["n"], 1, "an unlisted tool is called (T-72): {called}");
}

/// T-50.
#[tokio::test]
async fn t_50_errors_are_those_of_the_clients_version() {
    let server = stateless(|seen| {
        let error = match (seen.rpc(), seen.body["params"]["uri"].as_str()) {
            ("resources/read", Some("file:///gone")) => {
                json!({"code": -32602, "message": "m", "data": {"uri": "file:///gone"}})
            }
            ("resources/read", _) => json!({"code": -32602, "message": "m", "data": {"uri": "file:///other"}}),
            ("prompts/get", _) => json!({"code": -32021, "message": "m"}),
            ("tools/call", _) => json!({"code": 4711, "message": "m", "data": {"n": 1}}),
            ("custom/method", _) => json!({"code": -32601, "message": "m"}),
            _ => return None,
        };
        let status = if error["code"] == -32601 { 404 } else { 400 };
        Some(refused(seen, status, &error))
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-06-18", &json!({})).await;
    for (method, params, code) in [
        ("resources/read", json!({"uri": "file:///gone"}), -32002),
        ("resources/read", json!({"uri": "file:///a"}), -32602),
        ("prompts/get", json!({"name": "p"}), -32603),
        ("tools/call", json!({"name": "t"}), 4711),
        ("custom/method", json!({}), -32601),
        ("tools/call", json!({"name": 7}), -32602),
        ("tools/call", json!({"Name": "t", "name": "u"}), -32602),
    ] {
        let answered = ask(&client, method, &params).await;
        assert_eq!((&answered["error"]["code"], &answered["id"]), (&json!(code), &json!(9)), "{method} {params}");
    }
    assert_eq!(ask(&client, "tools/call", &json!({"name": "t"})).await["error"]["data"], json!({"n": 1}));
}

/// LEG-13.
#[tokio::test]
async fn leg_13_methods_of_sessions_alone_are_answered_by_the_gateway() {
    let server = stateless(|_| None).await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-06-18", &json!({})).await;
    let level = |level: &str| json!({"level": level});
    for (method, params, code) in [
        ("ping", json!({}), None),
        ("logging/setLevel", level("loud"), Some(-32602)),
        ("logging/setLevel", level("warning"), None),
        ("resources/subscribe", json!({"uri": "file:///a"}), None),
        ("resources/subscribe", json!({"uri": 1}), Some(-32602)),
        ("resources/unsubscribe", json!({"uri": "file:///a"}), None),
        ("tasks/get", json!({"taskId": "t"}), Some(-32601)),
        ("tasks/list", json!({}), Some(-32601)),
        ("server/discover", json!({}), Some(-32601)),
        ("subscriptions/listen", json!({}), Some(-32601)),
    ] {
        let answered = ask(&client, method, &params).await;
        match code {
            Some(code) => assert_eq!(answered["error"]["code"], code, "{method}"),
            None => assert_eq!(answered["result"], json!({}), "{method}"),
        }
        assert_eq!(
            server.world.count(method),
            usize::from(method == "server/discover"),
            "{method}: it is not passed on"
        );
    }
    ask(&client, "tools/call", &json!({"name": "t"})).await;
    let seen = server.world.first(|seen| seen.is_call()).await;
    assert_eq!(seen.body["params"]["_meta"][format!("{META}logLevel")], "warning");
}

fn held() -> (BodySender, Arc<Once>) {
    Once::events()
}

/// MOD-22, T-73.
#[tokio::test]
async fn progress_rises_under_the_clients_own_token_and_logs_pass_by_level() {
    let (events, stream) = held();
    let server = stateless(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-11-25", &json!({})).await;
    ask(&client, "logging/setLevel", &json!({"level": "info"})).await;
    let params = json!({"name": "t", "_meta": {"progressToken": 7}});
    let posting = client.post(request(1, "tools/call", &params));
    let telling = async {
        let seen = server.world.first(|seen| seen.is_call()).await;
        let notify = |method: &str, params: &Value| {
            events.message(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
        };
        for progress in ["1", "1", "2"] {
            let value: Value = serde_json::from_str(progress).unwrap();
            notify(
                "notifications/progress",
                &json!({"progressToken": seen.body["params"]["_meta"]["progressToken"], "progress": value, "message": "m"}),
            );
        }
        notify("notifications/message", &json!({"level": "debug", "data": 1}));
        notify("notifications/message", &json!({"level": "error", "data": 2}));
        events.result(&seen, &json!({"resultType": "complete", "content": []}));
    };
    let (reply, ()) = tokio::join!(posting, telling);
    let mut stream = Stream::of(reply);
    let progress = |value: u32| json!({"progressToken": 7, "progress": value, "message": "m"});
    assert_eq!(stream.next().await.unwrap()["params"], progress(1));
    assert_eq!(stream.next().await.unwrap()["params"], progress(2));
    assert_eq!(stream.next().await.unwrap()["params"], json!({"level": "error", "data": 2}));
    assert_eq!(stream.next().await.unwrap(), json!({"jsonrpc": "2.0", "id": 1, "result": {"content": []}}));
    assert_eq!(stream.next().await, None);
}

/// LEG-14.
#[tokio::test]
async fn leg_14_a_cancelled_request_has_no_response_and_its_own_session_alone_cancels_it() {
    let (events, stream) = held();
    let server = stateless(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-11-25", &json!({})).await;
    let other = open(&gate, "2025-11-25", &json!({})).await;
    let params = json!({"name": "t", "_meta": {"progressToken": 7}});
    let posting = client.post(request(1, "tools/call", &params));
    let progress = async |value: u32| {
        let seen = server.world.first(|seen| seen.is_call()).await;
        let params = json!({"progressToken": seen.body["params"]["_meta"]["progressToken"], "progress": value});
        events.message(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}));
    };
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}).to_string();
    let (reply, ()) = tokio::join!(posting, progress(1));
    let mut stream = Stream::of(reply);
    assert_eq!(stream.next().await.unwrap()["params"]["progress"], 1);
    assert_eq!(other.post(cancel.clone()).await.status, 202);
    progress(2).await;
    assert_eq!(
        stream.next().await.unwrap()["params"]["progress"],
        2,
        "another session's cancel is about its own request"
    );
    assert_eq!(client.post(cancel).await.status, 202);
    assert_eq!(stream.next().await, None);
    events.left().await;
}

/// Whether a tool is hidden is known once the server has listed its tools.
#[tokio::test]
async fn leg_14_a_request_that_is_cancelled_while_its_tool_is_looked_up_is_not_made() {
    let (events, lists) = held();
    let server = stateless(move |seen| (seen.rpc() == "tools/list").then(|| lists.take()).flatten()).await;
    let gate = TestGateway::with(server.address, "[[upstreams.up.tools]]\nmatch = \"other\"\nhide = true\n").await;
    let client = open(&gate, "2025-11-25", &json!({})).await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}).to_string();
    let (reply, ()) = tokio::join!(client.post(request(1, "tools/call", &json!({"name": "t"}))), async {
        let asked = server.world.first(|seen| seen.rpc() == "tools/list").await;
        assert_eq!(client.post(cancel).await.status, 202);
        let tool = json!({"name": "t", "inputSchema": {"type": "object"}});
        let list = json!({"resultType": "complete", "tools": [tool], "ttlMs": 60_000, "cacheScope": "public"});
        events.result(&asked, &list);
    });
    assert_eq!(reply.text().await, "");
    assert_eq!(server.world.all(|seen| seen.is_call()).len(), 0);
    assert_eq!(client.post(request(1, "tools/call", &json!({"name": "t"}))).await.status, 200, "another of this id");
    assert_eq!(server.world.all(|seen| seen.is_call()).len(), 1);
}

/// LEG-11, T-81.
#[tokio::test]
async fn leg_11_t_81_a_call_whose_client_disconnects_runs_on_and_its_questions_are_refused() {
    let (events, stream) = held();
    let server = stateless(move |seen| {
        if !seen.is_call() {
            return None;
        }
        match seen.body["params"]["requestState"].as_str() {
            None => stream.take(),
            Some(_) => Some(answer(seen, &json!({"resultType": "complete", "content": []}))),
        }
    })
    .await;
    let gate = TestGateway::with(server.address, "[upstreams.up.tasks]\ninput_deadline = \"1s\"\n").await;
    let client = open(&gate, "2025-11-25", &json!({"elicitation": {}})).await;
    let params = json!({"name": "t", "_meta": {"progressToken": 7}});
    let posting = client.post(request(1, "tools/call", &params));
    let begun = async {
        let seen = server.world.first(|seen| seen.is_call()).await;
        let params = json!({"progressToken": seen.body["params"]["_meta"]["progressToken"], "progress": 1});
        events.message(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}));
        seen
    };
    let (reply, seen) = tokio::join!(posting, begun);
    drop(reply);
    client.connections.close();
    in_time(client.connections.wait()).await;
    let question = json!({"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}});
    events
        .result(&seen, &json!({"resultType": "input_required", "inputRequests": {"k": question}, "requestState": "s"}));
    let again = server.world.nth(1, |seen| seen.is_call()).await;
    assert_eq!(again.body["params"]["inputResponses"], json!({"k": {"action": "cancel"}}));
}

#[tokio::test]
async fn a_silent_call_of_a_client_that_takes_no_stream_is_answered_in_json() {
    let server = stateless(|_| None).await;
    let gate = TestGateway::before(&server).await;
    let mut client = open(&gate, "2025-11-25", &json!({})).await;
    for (accept, media) in [("application/json", "application/json"), ("text/event-stream", "text/event-stream")] {
        client.accept = accept;
        assert_eq!(client.post(call(1)).await.header("content-type"), Some(media), "{accept}");
    }
}

/// T-77, GW-05: the outcome of a task too is as the client's version knows it.
#[tokio::test]
async fn t_77_structured_content_that_is_no_object_is_left_out_of_a_tasks_outcome() {
    for (structured, kept) in [(json!([1]), json!(null)), (json!("x"), json!(null)), (json!({"n": 1}), json!({"n": 1}))]
    {
        let text = json!([{"type": "text", "text": "[1]"}]);
        let result = json!({"resultType": "complete", "content": text, "structuredContent": structured});
        let server = stateless(move |seen| seen.is_call().then(|| answer(seen, &result))).await;
        let gate = TestGateway::before(&server).await;
        let client = open(&gate, "2025-11-25", &json!({})).await;
        let call = json!({"name": "t", "arguments": {}, "task": {}});
        let task = ask(&client, "tools/call", &call).await["result"]["task"]["taskId"].clone();
        let reply = client.post(request(8, "tasks/result", &json!({"taskId": task}))).await.text().await;
        let data = reply.lines().find_map(|line| line.strip_prefix("data: ").filter(|data| data.contains("\"id\":8")));
        let outcome: Value = serde_json::from_str(data.unwrap_or(&reply)).unwrap();
        assert_eq!(outcome["result"]["structuredContent"], kept, "{outcome}");
        assert_eq!(outcome["result"]["content"], text, "the text says it still");
        assert!(outcome["result"].get("resultType").is_none(), "{outcome}");
    }
}
