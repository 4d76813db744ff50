//! How a session begins, who may use it, and how it ends.

use http::StatusCode;
use serde_json::{Value, json};

use super::client::{Client, TestGateway, call, initialize};
use super::upstream::{ScriptedServer, answer};

#[tokio::test]
async fn initialize_tells_neither_side_of_the_others_tasks() {
    let server = ScriptedServer::polite().await;
    *server.world.initialize_result.lock() = json!({
        "capabilities": {
            "tools": {"listChanged": true},
            "tasks": {"list": {}},
            "extensions": {"io.modelcontextprotocol/tasks": {}, "a/b": {"n": 1}},
        },
        "instructions": "be kind",
        "_meta": {"k": 1},
    });
    let gate = TestGateway::before(&server).await;
    let capabilities = json!({
        "tasks": {"cancel": {}},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
        "sampling": {"tools": {}},
    });
    let reply = gate.client_without_session().post(initialize("2025-11-25", &capabilities)).await;
    assert_eq!(reply.header("set-cookie"), None);
    let id = reply.header("mcp-session-id").unwrap().to_owned();
    assert!(id.len() <= 2048 && id.bytes().all(|byte| byte.is_ascii_graphic()), "LEG-04: {id}");
    let result = reply.json().await["result"].clone();
    let expected = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {
            "tools": {"listChanged": true},
            "extensions": {"a/b": {"n": 1}},
            "tasks": {"requests": {"tools": {"call": {}}}, "cancel": {}, "list": {}},
        },
        "serverInfo": {"name": "scripted", "version": "1"},
        "instructions": "be kind",
        "_meta": {"k": 1},
    });
    assert_eq!(result, expected, "GW-12");
    let seen = server.world.first(|seen| seen.rpc() == "initialize").await;
    assert_eq!(seen.body["params"]["capabilities"], json!({"sampling": {"tools": {}}}));
    assert_eq!(seen.body["params"]["clientInfo"], json!({"name": "raw", "version": "1"}));
    assert_eq!((seen.header("mcp-session-id"), seen.header("mcp-protocol-version")), (None, None));
}

#[tokio::test]
async fn an_initialize_that_needs_no_edit_goes_through_byte_for_byte() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let text = r#"{"id":"i","params":{"clientInfo":{"version":"1","name":"n"},"capabilities":{"x":1.10},"protocolVersion":"2025-06-18"},"method":"initialize","jsonrpc":"2.0"}"#;
    let reply = gate.client_without_session().post(text).await;
    assert_eq!(reply.json().await["id"], "i");
    assert_eq!(server.world.first(|seen| seen.rpc() == "initialize").await.bytes, text.as_bytes());
}

#[tokio::test]
async fn a_refused_initialize_is_the_upstreams_own_error() {
    let server = ScriptedServer::start(|seen| {
        let error =
            json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32099, "message": "not today", "data": {"n": 1}}});
        (seen.rpc() == "initialize").then(|| {
            let mut reply = super::upstream::json_text(error.to_string());
            *reply.status_mut() = StatusCode::FORBIDDEN;
            reply
        })
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let reply = gate.client_without_session().post(initialize("2025-11-25", &json!({}))).await;
    assert_eq!((reply.status, reply.header("mcp-session-id")), (StatusCode::OK, None));
    let expected = json!({"code": -32099, "message": "not today", "data": {"n": 1}});
    assert_eq!(reply.json().await["error"], expected);
}

/// B197: for sessions the bound of the handshake, for 2026-07-28 the one of any result.
#[tokio::test]
async fn b197_an_initialize_result_that_is_too_large_has_its_own_reason() {
    let instructions = "x".repeat(2 << 20);
    let server = ScriptedServer::polite().await;
    *server.world.initialize_result.lock() = json!({ "instructions": instructions });
    let gate = TestGateway::before(&server).await;
    let reply = gate.client_without_session().post(initialize("2025-11-25", &json!({}))).await;
    let error = reply.json().await["error"].take();
    let data = &error["data"];
    assert_eq!((&data["reason"], &data["executed"]), (&json!("initialize_result_too_large"), &json!("no")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("1 MiB"), "{error}");
    let description = json!({
        "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {} },
        "instructions": instructions,
    });
    let server = ScriptedServer::start(move |seen| match seen.rpc() {
        "server/discover" => Some(answer(seen, &description)),
        "initialize" => Some(super::upstream::status(404)),
        _ => None,
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    assert_eq!(client.post(call(3)).await.json().await["result"]["n"], 3);
}

/// B268: the head of the response has opened it.
#[tokio::test]
async fn b268_a_session_whose_initialize_result_is_unreadable_ends_at_its_server() {
    let server = ScriptedServer::start(|seen| {
        (seen.rpc() == "initialize").then(|| {
            let mut reply = super::upstream::json_text("{");
            reply.headers_mut().insert("mcp-session-id", "s-1".parse().unwrap());
            reply
        })
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let reply = gate.client_without_session().post(initialize("2025-11-25", &json!({}))).await;
    assert_eq!(reply.json().await["error"]["data"]["reason"], "upstream_malformed");
    let ended = server.world.first(|seen| seen.method == "DELETE").await;
    assert_eq!(ended.header("mcp-session-id"), Some("s-1"));
}

/// A server without session ids serves clients that always get one.
#[tokio::test]
async fn a_server_that_gives_no_session_id_needs_none() {
    let server = ScriptedServer::start(|seen| {
        let result =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}});
        (seen.rpc() == "initialize").then(|| answer(seen, &result))
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    assert_eq!(client.post(call(1)).await.json().await["result"], json!({"n": 1}));
    assert_eq!(server.world.first(super::upstream::SeenRequest::is_call).await.header("mcp-session-id"), None);
    assert_eq!(client.delete().await.status, StatusCode::OK);
    assert_eq!(client.post(call(2)).await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.world.all(|seen| seen.method == "DELETE").len(), 0, "there is nothing to end");
}

/// LEG-04: directly such a server answers clients that do not repeat the gateway's id.
#[tokio::test]
async fn a_client_that_names_no_session_is_served_where_its_server_gives_none() {
    let server = ScriptedServer::start(|seen| {
        let result =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}});
        (seen.rpc() == "initialize").then(|| answer(seen, &result))
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = Client { session: None, ..gate.client().await };
    let notified = client.post(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string()).await;
    assert_eq!(notified.status, StatusCode::ACCEPTED);
    assert_eq!(client.post(call(1)).await.json().await["result"], json!({"n": 1}));
    let seen = server.world.first(super::upstream::SeenRequest::is_call).await;
    assert_eq!(seen.header("mcp-session-id"), None);
    assert!(!client.get(None).await.status.is_success(), "a stream needs its session");
}

/// LEG-04.
#[tokio::test]
async fn a_request_needs_a_session_that_is_its_own() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    let with = |session: Option<&str>| Client { session: session.map(str::to_owned), ..client.clone() };
    let known = client.session.clone().unwrap();
    let mut changed = known.clone();
    changed.replace_range(40..41, if &known[40..41] == "A" { "B" } else { "A" });
    for (session, status) in [
        (None, StatusCode::BAD_REQUEST),
        (Some("s-1"), StatusCode::NOT_FOUND),
        (Some(changed.as_str()), StatusCode::NOT_FOUND),
        (Some(&known[1..]), StatusCode::NOT_FOUND),
        (Some(known.as_str()), StatusCode::OK),
    ] {
        assert_eq!(with(session).post(call(1)).await.status, status, "{session:?}");
    }
    assert_eq!(with(Some("s-1")).get(None).await.status, StatusCode::NOT_FOUND);
    assert_eq!(with(Some("s-1")).delete().await.status, StatusCode::NOT_FOUND);
    let elsewhere =
        TestGateway::with(server.address, "[upstreams.other]\nurl = \"http://127.0.0.1:1/mcp\"\npath = \"/o\"").await;
    let moved = Client { address: elsewhere.gateway.address(), ..client.clone() };
    assert_eq!(moved.post(call(2)).await.status, StatusCode::OK, "another gateway with the same key serves it");
    let request = moved.request("POST").uri("/o").header("content-type", "application/json");
    let reply = moved.send(request.body(http_body_util::Full::from(call(3))).unwrap()).await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND, "but not for another upstream");
}

/// U04: through the pipe, and as a task.
#[tokio::test]
async fn a_body_that_names_the_request_is_its_answer_under_404_and_is_made_once() {
    for outcome in [
        json!({"error": {"code": -32004, "message": "no such document"}}),
        json!({"error": {"code": -32602, "message": "no"}}),
        json!({"result": {"n": 1}}),
    ] {
        let body = outcome.clone();
        let server = ScriptedServer::start(move |seen| {
            let mut reply = answer(seen, &json!({}));
            let (key, value) = body.as_object().unwrap().iter().next().unwrap();
            if seen.rpc() == "tools/call" {
                reply = super::upstream::json_text(
                    json!({"jsonrpc": "2.0", "id": seen.body["id"], key: value}).to_string(),
                );
                *reply.status_mut() = StatusCode::NOT_FOUND;
            }
            (seen.rpc() == "tools/call").then_some(reply)
        })
        .await;
        let gate = TestGateway::before(&server).await;
        let answered = gate.client().await.post(call(1)).await;
        assert_eq!(answered.status, StatusCode::OK);
        let answered = answered.json().await;
        let (key, value) = outcome.as_object().unwrap().iter().next().unwrap();
        assert_eq!((&answered["id"], &answered[key]), (&json!(1), value));
        assert_eq!((server.world.count("tools/call"), server.world.count("initialize")), (1, 1), "{outcome}");
    }
}

/// UPC-29: a client's own session is not replaced silently if the server's refusal may mean something else.
#[tokio::test]
async fn a_clients_session_that_its_server_refuses_with_a_ping_in_it_is_404() {
    let server = ScriptedServer::start(|seen| {
        (seen.header("mcp-session-id") == Some("s-1") && ["tools/call", "ping"].contains(&seen.rpc())).then(|| {
            let mut reply = super::upstream::whole("who are you?");
            *reply.status_mut() = StatusCode::BAD_REQUEST;
            reply
        })
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    for n in 1..=2 {
        let answered = client.post(call(n)).await;
        assert_eq!(answered.status, StatusCode::OK);
        assert_eq!(answered.json().await["error"]["data"]["executed"], "unknown");
    }
    let gone = client.post(call(3)).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    assert_eq!(gone.json().await["error"]["code"], -32001, "hosts recover on this code");
    let made = (server.world.count("tools/call"), server.world.count("ping"), server.world.count("initialize"));
    assert_eq!(made, (2, 1, 1), "nothing is made again");
    assert_eq!(gate.client().await.post(call(4)).await.json().await["result"], json!({"n": 4}));
}

#[tokio::test]
async fn an_ended_session_is_not_found_any_more() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let (client, other) = (gate.client().await, gate.client().await);
    assert_eq!(client.delete().await.status, StatusCode::OK);
    let seen = server.world.first(|seen| seen.method == "DELETE").await;
    assert_eq!(seen.header("mcp-session-id"), Some("s-1"));
    assert_eq!(client.post(call(1)).await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.get(None).await.status, StatusCode::NOT_FOUND);
    assert_eq!(client.delete().await.status, StatusCode::NOT_FOUND);
    assert_eq!(other.post(call(1)).await.status, StatusCode::OK, "others go on");
}

/// The server has no stream of its own to end, and tasks would have used this one.
#[tokio::test]
async fn a_sessions_own_stream_ends_with_its_session_though_its_server_has_none() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    let own = client.get(None).await;
    assert_eq!(own.status, StatusCode::OK);
    assert_eq!(client.delete().await.status, StatusCode::OK);
    assert_eq!(own.text().await, "");
}

#[tokio::test]
async fn a_server_that_ends_no_sessions_says_so() {
    let server = ScriptedServer::start(|seen| (seen.method == "DELETE").then(|| super::upstream::status(405))).await;
    let gate = TestGateway::before(&server).await;
    let client = gate.client().await;
    let reply = client.delete().await;
    assert_eq!((reply.status, reply.header("allow")), (StatusCode::METHOD_NOT_ALLOWED, Some("GET, POST")));
    assert_eq!(client.post(call(1)).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_session_survives_a_restart_of_the_gateway_between_two_calls() {
    let server = ScriptedServer::polite().await;
    let first = TestGateway::before(&server).await;
    let client = first.client().await;
    assert_eq!(client.post(call(1)).await.status, StatusCode::OK);
    drop(first);
    let second = TestGateway::before(&server).await;
    let client = Client { address: second.gateway.address(), ..client };
    assert_eq!(client.post(call(2)).await.json().await["result"], json!({"n": 2}));
    assert_eq!(server.world.count("initialize"), 1, "the token alone is enough");
}

/// GW-12, GW-13: no tasks for clients of older versions, so lists do not mention them.
#[tokio::test]
async fn tool_lists_say_nothing_of_tasks_and_the_rest_stays_as_it_came() {
    let list = r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","execution":{"taskSupport":"forbidden"},"x":1.10},{"x":2.0, "name":"b"}],"nextCursor":"c"}}"#;
    let edited =
        r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","x":1.10},{"x":2.0, "name":"b"}],"nextCursor":"c"}}"#;
    let request = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let plain = r#"{"id":1,"jsonrpc":"2.0","result":{ "tools":[ {"name":"execution"} ] } }"#;
    for (sent, shown) in [(list, edited), (plain, plain)] {
        let server =
            ScriptedServer::start(move |seen| (seen.rpc() == "tools/list").then(|| super::upstream::json_text(sent)))
                .await;
        let gate = TestGateway::before(&server).await;
        assert_eq!(gate.client_of("2025-06-18").await.post(request).await.text().await, shown);
        let (events, stream) = super::upstream::Once::events();
        let server =
            ScriptedServer::start(move |seen| (seen.rpc() == "tools/list").then(|| stream.take()).flatten()).await;
        let gate = TestGateway::before(&server).await;
        events.raw(format!(": c\n\nid: e2\nevent: message\ndata: {sent}\n\n"));
        drop(events);
        let reply = gate.client_of("2025-06-18").await.post(request).await.text().await;
        assert_eq!(reply, format!(": c\n\nid: e2\nevent: message\ndata: {shown}\n\n"));
    }
}

/// L25-03: where no tasks were offered the call runs as any other.
#[tokio::test]
async fn a_wish_for_a_task_is_left_out() {
    let server = ScriptedServer::polite().await;
    let gate = TestGateway::before(&server).await;
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"n":1.10},"task":{"ttl":1}}}"#;
    assert_eq!(gate.client_of("2025-06-18").await.post(text).await.status, StatusCode::OK);
    let seen = server.world.first(super::upstream::SeenRequest::is_call).await;
    assert_eq!(seen.body["params"].get("task"), None::<&Value>);
}
